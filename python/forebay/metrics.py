"""The figures of a record that two runs can be judged by: name, unit, direction, and how to say it. Those of every record come
from the table in `forebay.figures`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forebay.errors import RequestError
from forebay.figures import FIGURES as SHOWN
from forebay.figures import WAYS, Compared, Figure, at, measured


@dataclass(frozen=True)
class Metric:
    """One figure. `of` reads it from a record's `part`: of `result`, also from one of its `repeats`."""

    name: str
    title: str
    unit: str
    higher_is_better: bool
    # x, y: the two names; r: the ratio as text
    sentence: str
    field: str
    of: Callable[[dict[str, Any]], float | None]
    part: str = "result"

    def of_record(self, record: dict[str, Any]) -> float | None:
        """The figure of a whole record."""
        return self.value(record.get(self.part) or {})

    def value(self, result: dict[str, Any]) -> float | None:
        """The figure, or None where it wasn't measured. Zero counts as not measured: it has no ratio."""
        return measured(self.of, result)

    def why_missing(self, record: dict[str, Any]) -> str:
        """The record's own reason for the null."""
        missing = record.get("missing")
        for field, reason in missing.items() if isinstance(missing, dict) else ():
            if field.startswith(self.field) or self.field.startswith(field + "."):
                return str(reason)
        if self.part == "result" and not record["result"].get("ios"):
            return f"no I/O finished within {record['result'].get('seconds') or 0.0:.3g} s; a longer --duration may help"
        return "the run did not report it"


def _latency(name: str) -> Callable[[dict[str, Any]], float | None]:
    return lambda result: (result.get("latency_us") or {}).get(name)


def _of_figure(figure: Figure, compared: Compared) -> Metric:
    place = figure.field.removeprefix("result.")
    return Metric(
        compared.name, compared.title, compared.unit, compared.higher_is_better, compared.sentence, figure.field,
        compared.of or (lambda result: at(result, place)),
    )  # fmt: skip


# The power of a machine last: it is the least of what storage is judged by.
METRICS: dict[str, Metric] = {
    compared.name: _of_figure(figure, compared)
    for figure in sorted(SHOWN, key=lambda figure: figure.name == "power_watts")
    if (compared := figure.compared)
}

# What a comparison reports only where it is asked for.
TAILS: dict[str, Metric] = {
    f"latency_{name}": Metric(
        f"latency_{name}", title, "µs", False, f"{{x}}'s {title} is {{r}} × {{y}}'s", f"result.latency_us.{name}",
        _latency(name),
    )
    for name, title in (
        ("p50", "median latency"), ("p90", "p90 latency"), ("p95", "p95 latency"), ("p999", "p99.9 latency"),
        ("p9999", "p99.99 latency"), ("max", "longest latency"),
    )
}  # fmt: skip
# The figures of every record.
FIGURES = {**METRICS, **TAILS}


def way_of(result: dict[str, Any], way: str) -> dict[str, Any]:
    """The part of a result, or of one of its repeats, that has this direction; of an older record that read or wrote alone it
    is the result. Empty where nothing went this way, or the record doesn't tell."""
    found = result.get(way)
    if isinstance(found, dict):
        return found
    moved = {name: result.get(f"{name}_bytes") for name in ("read", "write")}
    alone = moved.pop(way, None) and not any(moved.values())
    return result if alone and "read" not in result and "write" not in result else {}


def _of_way(way: str, metric: Metric) -> Metric:
    field = metric.field.replace("result.", f"result.{way}.", 1)
    sentence = metric.sentence.replace("'s ", f"'s {way} ").replace("{x} is ", f"{{x}}'s {way}s are ")
    return Metric(
        f"{way}.{metric.name}", f"{way} {metric.title}", metric.unit, metric.higher_is_better, sentence, field,
        lambda result: metric.of(way_of(result, way)),
    )  # fmt: skip


OF_WAYS: dict[str, Metric] = {
    found.name: found
    for way in WAYS
    for name in ("throughput", "iops", "latency_mean", "latency_p99", *TAILS)
    if (way, name) != ("flush", "throughput")
    for found in (_of_way(way, FIGURES[name]),)
}
# Shorter names of the same figures, as people say them.
SHORT = {
    "rate": "throughput", "bandwidth": "throughput", "bw": "throughput", "latency": "latency_mean", "mean": "latency_mean",
    "p50": "latency_p50", "median": "latency_p50", "p90": "latency_p90", "p99": "latency_p99", "p99.9": "latency_p999",
    "p999": "latency_p999", "max": "latency_max", "p95": "latency_p95", "p99.99": "latency_p9999", "p9999": "latency_p9999",
}  # fmt: skip


def is_about_latency(jobs: Iterable[dict[str, Any]]) -> bool:
    """Returns whether the runs tell how long an I/O takes, and no more: one in flight, or a load that a clock sets."""
    return all(
        (job.get("workers", 1) == 1 and job.get("depth") == 1) or job.get("rate_iops") or job.get("rate_gib_s") for job in jobs
    )


def _own(part: str, name: str, title: str, unit: str, field: str, sentence: str, higher: bool = False) -> Metric:
    """A figure of a part beside `result`. `field`: its place in that part; an object of user and system time is their sum."""

    def figure(found: Any) -> Any:
        for key in field.split("."):
            found = found.get(key)
        return found["user"] + found["system"] if isinstance(found, dict) else found

    return Metric(f"{part}.{name}", title, unit, higher, sentence, f"{part}.{field}", figure, part)


TRAIN: dict[str, Metric] = {
    m.name: m
    for m in (
        _own("train", "samples_per_s", "training rate", "samples/s", "samples_per_s", "{x} trains at {r} × {y}'s rate", True),
        _own(
            "train", "seconds_to_target", "time to the target", "s", "seconds_to_target",
            "{x} takes {r} × {y}'s time to the target",
        ),
        _own("train", "cpu", "CPU, model and all", "CPU-s/GiB", "cpu_s_per_gib", "{x} takes {r} × {y}'s CPU per GiB"),
        _own(
            "train", "feed_cpu", "CPU of the loader alone", "CPU-s/GiB", "feed_cpu_s_per_gib",
            "feeding {x} takes {r} × {y}'s CPU per GiB",
        ),
        _own(
            "train", "peak_samples_per_s", "own peak", "samples/s", "peak_samples_per_s", "{x}'s own peak is {r} × {y}'s", True
        ),
    )
}  # fmt: skip
INFER: dict[str, Metric] = {
    m.name: m
    for m in (
        _own("infer", "queries_per_s", "queries", "1/s", "queries_per_s", "{x} answers {r} × {y}'s queries a second", True),
        *(
            _own(
                "infer", f"latency_{p}", f"{p} latency", "ms", f"latency_ms.{p}", f"{{x}}'s {p} latency is {{r}} × {{y}}'s"
            )
            for p in ("p50", "p90", "p99")
        ),
        _own("infer", "load_s", "time to load", "s", "load_s", "{x} takes {r} × {y}'s time to load"),
        _own("infer", "coldstart_s", "cold start", "s", "coldstart.total_s", "{x} takes {r} × {y}'s time to its first answer"),
    )
}  # fmt: skip
KVCACHE: dict[str, Metric] = {
    m.name: m
    for m in (
        _own("kvcache", "read_rate", "reads in the window", "GiB/s", "read_gib_s.window", "{x} reads {r} × {y}", True),
        _own("kvcache", "write_rate", "writes in the window", "GiB/s", "write_gib_s.window", "{x} writes {r} × {y}", True),
        *(
            _own(
                "kvcache", f"{way}_{p}", f"{p} of an entry's {way}", "ms", f"latency_ms.entry_{way}.{p}",
                f"{{x}}'s {p} of an entry's {way} is {{r}} × {{y}}'s",
            )
            for way in ("read", "write") for p in ("p50", "p95", "p99")
        ),
        _own(
            "kvcache", "tokens_per_s", "storage tokens", "tokens/s", "storage_tokens_per_s",
            "{x}'s storage gives {r} × {y}'s tokens a second", True,
        ),
        *(METRICS[name] for name in ("cpu", "energy", "power")),
    )
}  # fmt: skip
REPLAY: dict[str, Metric] = {
    m.name: m
    for m in (
        *(
            _own("replay", f"{name}_{p}", f"{p} of {title}", "s", f"{field}.{p}", f"{{x}}'s {p} of {title} is {{r}} × {{y}}'s")
            for name, title, field in (("load", "loads", "load_s"), ("ttft", "TTFT", "ttft_s.load"))
            for p in ("p95", "p50", "p99", "mean")
        ),
        _own(
            "replay", "cpu", "CPU", "CPU-s/GiB", "folder.cpu.cpu_s_per_gib", "{x} takes {r} × {y}'s CPU per GiB",
        ),
    )
}  # fmt: skip
BLOCKS: dict[str, Metric] = {
    m.name: m
    for m in (
        _own("blocks", "load_rate", "loads into pages", "GiB/s", "load.gib_s", "{x} loads {r} × {y}", True),
        _own("blocks", "store_rate", "stores from pages", "GiB/s", "store.gib_s", "{x} stores {r} × {y}", True),
        _own("blocks", "load_cpu", "CPU of loads", "CPU-s/GiB", "load.cpu_s_per_gib", "{x} takes {r} × {y}'s CPU per GiB"),
        *(
            _own("blocks", f"{name}_p95", f"p95 of {title}", "s", f"{field}.p95", f"{{x}}'s p95 of {title} is {{r}} × {{y}}'s")
            for name, title, field in (("ttft", "TTFT", "ttft_s"), ("exposed", "what isn't hidden", "exposed_s"))
        ),
    )
}  # fmt: skip
# Command whose records have figures of their own → these; the first is its headline.
OF_COMMANDS = {
    "train": TRAIN, "infer": INFER, "emulate kvcache": KVCACHE, "emulate kvcache replay": REPLAY, "emulate kvcache run": BLOCKS,
}  # fmt: skip
ALL = {**FIGURES, **TRAIN, **INFER, **KVCACHE, **REPLAY, **BLOCKS}
# Those that a document may have by their name.
NAMED = {**ALL, **OF_WAYS}


def command_with_figures(words: Sequence[str]) -> str | None:
    """The one of OF_COMMANDS that the words begin with, the longest; None where it's none."""
    known = [name for name in OF_COMMANDS if tuple(words[: name.count(" ") + 1]) == tuple(name.split())]
    return max(known, key=len, default=None)


def of_mix(records: Iterable[Mapping[str, Any]]) -> dict[str, Metric]:
    """Rates and latencies of each direction where one of the records mixes them."""
    ways = {way for record in records for way in (mixed_ways(record.get("result") or {}))}
    return {
        name: OF_WAYS[name] for way in WAYS if way in ways
        for figure in ("throughput", "iops", "latency_mean", "latency_p99") if (name := f"{way}.{figure}") in OF_WAYS
    }  # fmt: skip


def mixed_ways(result: Mapping[str, Any]) -> list[str]:
    """The directions of a result that has several."""
    found = [way for way in WAYS if isinstance(result.get(way), dict)]
    return found if len(found) > 1 else []


def figure_named(name: str, asked: str, known: Mapping[str, Metric] = FIGURES) -> Metric:
    """The figure with that name or short name, of those that are known; a verb's also without it, as `samples_per_s`.

    RequestError that names them all.
    """
    of_verbs = {full.rpartition(".")[2]: metric for full, metric in known.items()}
    names = {**of_verbs, **known}
    found = names.get(SHORT.get(name.lower(), name.lower()))
    way, dot, figure = name.lower().partition(".")
    if found is None and dot and "iops" in known:
        figure = figure.removesuffix("_us")
        found = OF_WAYS.get(f"{way}.{SHORT.get(figure, figure)}")
    if found is None:
        short = [word for word, full in SHORT.items() if full in names]
        ways = f"; or of {', '.join(WAYS)} alone, as read.p99" if "iops" in known else ""
        raise RequestError(asked, f"{name or 'nothing'} is not one of {', '.join((*known, *short))}{ways}", next(iter(known)))
    return found
