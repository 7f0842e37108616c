"""Groups runs into studies, whose runs can be compared with each other.

A study holds the runs of one sweep (or of all the single records given) with one operation and one origin.
Within it, runs lie along one axis (block size, else workers, else batch, else depth) and belong to series named by
whatever else differs at the same place on that axis. So a preset that uses more workers for small blocks
has one series per path, while a true matrix over workers has one per path and number of workers.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from forebay import environment, flags, numbers
from forebay.metrics import is_about_latency
from forebay.paths import BOUNCE, GDS, GDS_COMPAT, GDS_MIXED
from forebay.report.load import Entry
from forebay.uri import known

# As the engine says it of a record that it reads (crates/model/src/reading.rs).
ABSENT = "the record has no such field"
PATH_ORDER = ("host", BOUNCE, "mapped", GDS, GDS_MIXED, GDS_COMPAT)
OP_NAMES = {
    "read": "sequential read",
    "write": "sequential write",
    "randread": "random read",
    "randwrite": "random write",
}


@dataclass(frozen=True)
class Stat:
    """A value, and the interval that its error bar shows. `kind` says what the interval is."""

    value: float
    low: float | None = None
    high: float | None = None
    kind: str | None = None

    def over(self, other: Stat) -> Stat | None:
        """The quotient; its interval is the widest that the two intervals allow."""
        if other.value <= 0:
            return None
        known = (
            all(v is not None for v in (self.low, self.high, other.low, other.high)) and (other.low or 0) > 0
        )
        if not known:
            return Stat(self.value / other.value)
        return Stat(self.value / other.value, self.low / other.high, self.high / other.low, "both intervals")  # type: ignore[operator]


@dataclass(frozen=True)
class Run:
    """One record with safe access to its fields."""

    entry: Entry
    name: str = ""

    @property
    def record(self) -> dict[str, Any]:
        return self.entry.record

    def at(self, path: str) -> Any:
        """The value at a dotted path, or None."""
        value: Any = self.record
        for key in path.split("."):
            if not isinstance(value, dict):
                return None
            value = value.get(key)
        return value

    def number(self, path: str) -> float | None:
        return finite(self.at(path))

    def text(self, path: str, default: str = "") -> str:
        value = self.at(path)
        return value if isinstance(value, str) else default

    def items(self, path: str) -> list[dict[str, Any]]:
        value = self.at(path)
        return [v for v in value if isinstance(v, dict)] if isinstance(value, list) else []

    def reason(self, path: str) -> str:
        """Why `path` is null: the record's own word for it or for what it belongs to; or that it isn't there."""
        missing = self.at("missing")
        missing = missing if isinstance(missing, dict) else {}
        asked = path
        while path:
            if isinstance(missing.get(path), str):
                return missing[path]
            path = path.rpartition(".")[0]
        return "the record gives no reason" if self._has(asked) else ABSENT

    def _has(self, path: str) -> bool:
        value: Any = self.record
        for key in path.split("."):
            if value is None:
                return True  # null as a whole, which has no parts
            if not isinstance(value, dict) or key not in value:
                return False
            value = value[key]
        return True

    @property
    def repeats(self) -> int:
        return max(1, len(self.items("result.repeats")))

    def stat(self, path: str) -> Stat | None:
        """A field of `result` and its spread over the repeats."""
        if path == "result.throughput_gib_s":
            return self._throughput()
        value = self.number(path)
        if value is None:
            return None
        inner = path.removeprefix("result.").split(".")
        spread = [v for v in (finite(_dig(r, inner)) for r in self.items("result.repeats")) if v is not None]
        if len(spread) < 2:
            return Stat(value)
        low, high = min(spread), max(spread)
        return Stat(value, min(low, value), max(high, value), f"range of {len(spread)} repeats")

    def _throughput(self) -> Stat:
        value = self.number("result.throughput_gib_s") or 0.0
        if self.repeats < 2:
            return Stat(value)
        value = self.number("result.summary.throughput_gib_s_median") or value
        interval = self.at("result.summary.throughput_gib_s_ci95")
        ends = [finite(v) for v in interval] if isinstance(interval, list) else []
        kind = "95 % interval"
        if len(ends) != 2 or None in ends:
            ends = [self.number(f"result.summary.throughput_gib_s_{end}") for end in ("min", "max")]
            kind = f"range of {self.repeats} repeats"
        low, high = ends
        if low is None or high is None:
            return Stat(value)
        return Stat(value, max(0.0, min(low, value)), max(high, value), kind)


@dataclass(frozen=True)
class Axis:
    """Axis along which the runs of a study lie. `key` is None where nothing but the series differs."""

    key: str | None
    title: str
    label: Callable[[float], str]
    # What a label counts, where it stands by itself.
    counts: str = ""

    def place(self, x: float) -> str:
        """The label with its unit: `8 workers`, `1 MiB`."""
        label = self.label(x)
        if not self.counts or not label[:1].isdigit():
            return label
        counts = self.counts.replace("workers", "worker").replace("I/Os", "I/O") if x == 1 else self.counts
        return f"{label} {counts}"


AXES = (
    Axis("io_bytes", "Block size", numbers.size),
    Axis("workers", "Workers", lambda v: f"{v:,.0f}", "workers"),
    # Before the depth, which is a multiple of it.
    Axis("batch", "I/Os per batch", lambda v: f"{v:,.0f}" if v else "no batches", "I/Os per batch"),
    Axis("depth", "I/Os in flight per worker", lambda v: f"{v:,.0f}", "I/Os in flight per worker"),
    Axis("read_pct", "Reads, % of I/Os", lambda v: f"{v:.0f} %", "reads"),
)
NO_AXIS = Axis(None, "", lambda v: "")


@dataclass
class Point:
    """The runs of one series at one place on the axis; more than one where a job was run again."""

    x: float
    series: str
    runs: list[Run]

    def stat(self, path: str) -> Stat | None:
        stats = [s for s in (run.stat(path) for run in self.runs) if s is not None]
        if len(stats) <= 1:
            return stats[0] if stats else None
        values = [s.value for s in stats]
        return Stat(statistics.median(values), min(values), max(values), f"range of {len(values)} runs")

    def reason(self, path: str) -> str:
        return self.runs[0].reason(path)


@dataclass
class Study:
    """Runs that can be read against one another."""

    id: str
    title: str
    preset: str | None
    op: str
    origin: str
    axis: Axis
    series: list[str]
    points: list[Point]
    runs: list[Run] = field(default_factory=list)
    # Series → what else tells it from the others, beside its name.
    rest: dict[str, str] = field(default_factory=dict)

    @property
    def xs(self) -> list[float]:
        return sorted({p.x for p in self.points})

    def point(self, x: float, series: str) -> Point | None:
        return next((p for p in self.points if p.x == x and p.series == series), None)

    def path_of(self, series: str) -> str:
        return next(p.runs[0].text("path.ran") for p in self.points if p.series == series)

    @property
    def is_about_latency(self) -> bool:
        """Returns whether its runs tell how long an I/O takes, and no more."""
        jobs = [job for run in self.runs if isinstance(job := run.at("job"), dict)]
        return bool(jobs) and is_about_latency(jobs)

    @property
    def base_path(self) -> str:
        """The path that others are compared with: `host`, or `bounce` where everything went into a GPU."""
        return "host" if any(self.path_of(name) == "host" for name in self.series) else BOUNCE

    @property
    def base_series(self) -> str | None:
        """Of two series by one path, the one that the other is divided by: the local one, else the first."""
        if len(self.series) != 2 or len({self.path_of(name) for name in self.series}) > 1:
            return None
        local = [name for name in self.series if not any(_is_remote(r) for p in self.points if p.series == name for r in p.runs)]
        return local[0] if local else self.series[0]

    @property
    def base(self) -> str:
        """The name of what ratios are of: a path, or a series."""
        return self.base_series or self.base_path

    def is_base(self, series: str) -> bool:
        return series == self.base_series if self.base_series else self.path_of(series) == self.base_path

    def baseline(self, series: str) -> str | None:
        """The series of `base_path` that differs from this one in nothing but the path; of two by one path the other."""
        if self.base_series:
            return None if series == self.base_series else self.base_series
        if self.path_of(series) == self.base_path:
            return None
        rest = series.split(" · ")[1:]
        same = (s for s in self.series if self.path_of(s) == self.base_path and s.split(" · ")[1:] == rest)
        return next(same, None)


def finite(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def _dig(value: Any, keys: list[str]) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def op_name(run: Run) -> str:
    op, pct = run.text("job.op", "read"), run.number("job.read_pct")
    name = OP_NAMES.get(op, op)
    if pct is None or pct == (0 if "write" in op else 100):
        return name
    return f"{'random' if op.startswith('rand') else 'sequential'}, {pct:.0f} % reads"


def members(run: Run) -> int:
    """Returns the members of the stripe that is the run's first source; 0 where it is none, or the record doesn't say."""
    return next((int(finite(target.get("members")) or 0) for target in run.items("result.targets")), 0)


def sources_of(run: Run) -> list[str]:
    """The sources, as a sweep names them that starts some itself, whose addresses change from day to day."""
    asked = run.entry.point.get("sources")
    sources = asked if isinstance(asked, list) and any("{" in str(s) for s in asked) else run.at("job.sources")
    return [s for s in sources if isinstance(s, str)] if isinstance(sources, list) else []


def _source(run: Run) -> str:
    sources = sources_of(run)
    return " ".join(sources) if any("{" in s for s in sources) else run.text("job.source")


def _is_remote(run: Run) -> bool:
    return run.text("job.label") == "remote" or any(s.startswith(("{target}", "{gateway")) or _host(s) for s in sources_of(run))


def _host(source: str) -> str | None:
    """The machine across a network that it is read from."""
    named = known(source)
    return None if named is None else named.host


def short_source(run: Run) -> str:
    """A source in a few characters: the file's name, `stripe of 4`, `model:NAME`, `nvme+tcp at HOST`."""
    sources = sources_of(run)
    if not sources:
        return run.text("job.source", "?")
    first = sources[0]
    if count := members(run):
        name = f"stripe of {count}"
    elif (source := known(first)) is None:
        name = first
    elif source.host is not None:
        name = f"{source.scheme} at " + (f"[{source.host}]" if ":" in source.host else source.host)
    else:
        name = first if source.path is None else source.path.name or first
    return name if len(sources) == 1 else f"{name} + {len(sources) - 1} more"


@dataclass(frozen=True)
class Difference:
    """Property that may tell two series apart, besides the path: how a run's value is read, and how it is said.

    `read` gives None or "" where a run has none: its series then does without that word.
    """

    name: str
    read: Callable[[Run], Any]
    said: Callable[[Any], str]


def _form(form: str) -> Callable[[Any], str]:
    return lambda value: form.format("on" if value is True else "off" if value is False else value)


# Values of fields that older records lack: what held when there was no such field.
_AS_BEFORE = (("start_step_bytes", 0), ("skip_bytes", 0), ("arrivals", "even"))


def _job_field(field: flags.Field) -> Difference:
    """A field of the job as the user writes it: `sync each`, `numa 1`, `verify on`."""

    def read(run: Run) -> Any:
        value = run.at(f"job.{field.key}")
        if field.is_flag:
            return value is True
        if value is None or value == [] or (field.key, value) in _AS_BEFORE:
            return None
        try:
            return flags.spelled(field, {field.key: value})
        except (TypeError, ValueError, ArithmeticError):  # damaged: whatever it is, it isn't the same
            return repr(value)[:60]

    return Difference(field.flag, read, _form(f"{field.flag} {{}}"))


def _sizes(run: Run) -> str | None:
    """The range that sizes were drawn from; None where they were all alike."""
    most, step = run.number("job.io_bytes_max"), run.number("job.io_bytes_step")
    least = run.number("job.io_bytes")
    if most is None or least is None or most == least:
        return None
    return f"{numbers.size(least)} to {numbers.size(most)} by {numbers.size(least if step is None else step)}"


def _duration(run: Run) -> str | None:
    """Seconds of a repeat; None where the data's end ended it, whatever was given besides."""
    seconds = run.number("job.duration_s")
    if seconds is None and all(run.number(f"job.{key}") is None for key in flags.counted()):
        seconds = flags.duration_default_s()
    return None if seconds is None else f"{seconds:g} s"


def _surrounding(word: str, read: Callable[[dict[str, Any]], str]) -> Difference:
    """A property of what a run was measured on: kernel, firmware, mount options, …"""
    return Difference(word, lambda run: read(run.record), lambda value: f"{word} {value}")


# Those that are read elsewhere than in the job, or said in words of their own.
_WORDED = (
    Difference("source", _source, str),
    Difference("label", lambda r: r.text("job.label"), str),
    Difference("io-size", lambda r: r.number("job.io_bytes"), numbers.size),
    Difference("sizes", _sizes, str),
    Difference("workers", lambda r: r.number("job.workers"), lambda v: numbers.count(int(v), "worker")),
    Difference("depth", lambda r: r.number("job.depth"), "depth {:.0f}".format),
    Difference("engine", lambda r: r.text("path.engine"), flags.engine_name),
    Difference("cache", lambda r: r.text("cache.policy"), "cache {}".format),
    Difference("pages", lambda r: r.text("path.slot_pages"), "{} pages".format),
    Difference("distribution", lambda r: r.text("job.distribution"), str),
    Difference("rate", lambda r: r.number("job.rate_gib_s"), "{:g} GiB/s requested".format),
    Difference("rate-iops", lambda r: r.number("job.rate_iops"), "{:g} IOPS requested".format),
    Difference("files", lambda r: r.number("job.files"), "{:.0f} files".format),
    Difference("file-size", lambda r: r.number("job.file_bytes"), lambda v: f"{numbers.size(v)} files"),
    Difference("duration", _duration, str),
    Difference("cpus", lambda r: r.text("job.cpus"), "CPUs {}".format),
    Difference("destination", lambda r: r.text("path.destination"), "to {}".format),
    Difference("host", lambda r: r.text("environment.host"), "on {}".format),
    Difference("hosts", lambda r: len(r.items("result.hosts")) or None, "{} ranks".format),
    Difference(
        "build",
        lambda r: f"{r.text('forebay.version')} {r.text('forebay.commit')}".strip(),
        "forebay {}".format,
    ),
    *(_surrounding(word, read) for word, read in environment.FACTS if word not in ("host", "build")),
)
# A study has one operation, and a series one path.
_SHOWN_ALREADY = {"path", "op", "read-pct", *(d.name for d in _WORDED)}


@cache
def differences() -> tuple[Difference, ...]:
    """All that may tell two series apart."""
    fields = (f for f in flags.fields() if f.tells and f.flag not in _SHOWN_ALREADY)
    return (*_WORDED, *map(_job_field, fields))


def studies(entries: Iterable[Entry]) -> list[Study]:
    """All runs, each in one study; measured ones first."""
    groups: dict[tuple[str, str, str], list[Run]] = {}
    for entry in entries:
        run = Run(entry)
        home = entry.preset or (entry.file if entry.line is not None or entry.point else "")
        groups.setdefault((home, op_name(run), run.text("origin", "measured")), []).append(run)
    order = sorted(groups.items(), key=lambda item: item[0][2] != "measured")
    return [_study(f"s{number}", key, runs) for number, (key, runs) in enumerate(order, start=1)]


def _study(ident: str, key: tuple[str, str, str], runs: list[Run]) -> Study:
    _, op, origin = key
    axis = _axis(runs)
    by_x: dict[float, list[Run]] = {}
    for run in runs:
        by_x.setdefault(_x(axis, run), []).append(run)
    names, rest = _series_names(runs, by_x, axis)
    points: dict[tuple[float, str], Point] = {}
    for x, members in by_x.items():
        for run in members:
            series = names[id(run)]
            alone = len(names) == 1 and not axis.key
            named = Run(
                run.entry,
                f"{series}, {axis.place(x)}"
                if axis.key
                else f"{series} from {short_source(run)}"
                if alone
                else series,
            )
            points.setdefault((x, series), Point(x, series, [])).runs.append(named)
    ordered = sorted(points.values(), key=lambda p: p.x)
    all_series = sorted({p.series for p in ordered}, key=lambda s: (_path_rank(s), s))
    preset = runs[0].entry.preset
    called = runs[0].entry.title or preset
    title = f"{called}: {op}" if called and op not in called.lower() else called or op[0].upper() + op[1:]
    return Study(
        ident, title, preset, op, origin, axis, all_series, ordered, [r for p in ordered for r in p.runs], rest
    )


def _axis(runs: list[Run]) -> Axis:
    for axis in AXES:
        if len({run.number(f"job.{axis.key}") for run in runs}) > 1:
            return axis
    return NO_AXIS


def _x(axis: Axis, run: Run) -> float:
    return (run.number(f"job.{axis.key}") or 0.0) if axis.key else 0.0


def _path_rank(series: str) -> int:
    path = series.split(" · ")[0]
    return PATH_ORDER.index(path) if path in PATH_ORDER else len(PATH_ORDER)


# A label, or a mount's options, of more letters than these names nothing at a glance.
WORD_LETTERS_MAX = 28
# Properties that come with another more often than they are chosen.
_CONSEQUENCES = ("engine", "cache", "pages", "files", "file-size", "duration", "destination")
_MOUNT = "mount options"
_SURROUNDINGS = frozenset(("host", "build", *(word for word, _ in environment.FACTS)))
Cells = list[list[Run]]


def _series_names(runs: list[Run], by_x: dict[float, list[Run]], axis: Axis) -> tuple[dict[int, str], dict[str, str]]:
    """Every run's series, and what else tells each series from the others.

    A series is called by its path, where there are several, and by the fewest properties that tell runs of the same path at
    the same place apart: one that differs only from place to place, as scaled files do, or that comes with another (the
    engine of `mapped`, say) makes no series and lengthens no name.
    """
    cells: dict[tuple[float, str], list[Run]] = {}
    for x, members in by_x.items():
        for run in members:
            cells.setdefault((x, run.text("path.ran")), []).append(run)
    own = next((f.flag for f in flags.fields() if f.key == axis.key), None)
    telling = [
        difference
        for difference in differences()
        if difference.name != own
        and any(len({difference.read(r) for r in members}) > 1 for members in cells.values())
    ]
    short = {_source(run): short_source(run) for run in runs}
    if len(set(short.values())) < len(short):
        short = {source: source for source in short}
    short |= _short_mounts(runs)
    chosen = _fewest(telling, list(cells.values()))
    whole = {id(run): _called(run, chosen, short, None) for run in runs}
    brief = {id(run): _called(run, chosen, short, WORD_LETTERS_MAX) for run in runs}
    names = brief if len(set(brief.values())) == len(set(whole.values())) else whole
    one_path = len({run.text("path.ran") for run in runs}) == 1
    if one_path and len(set(names.values())) > 1 and all(" · " in name for name in names.values()):
        names = {run: name.partition(" · ")[2] for run, name in names.items()}
    others = [difference for difference in telling if difference not in chosen]
    return names, _rest(runs, names, others, short)


def _called(run: Run, chosen: list[Difference], short: dict[str, str], letters: int | None) -> str:
    words = _words(run, chosen, short)
    cut = (word if letters is None or len(word) <= letters else f"{word[: letters - 1]}…" for word in words)
    return " · ".join([run.text("path.ran"), *cut])


def _words(run: Run, of: list[Difference], short: dict[str, str]) -> list[str]:
    values = ((d, d.read(run)) for d in of)
    return [short[value] if d.name in ("source", _MOUNT) else d.said(value) for d, value in values if value not in (None, "")]


def _short_mounts(runs: list[Run]) -> dict[str, str]:
    """Mount options → those that not all of the runs have; `without noatime` where one has none of its own."""
    read = dict(environment.FACTS)[_MOUNT]
    whole = {text: text.split(",") for run in runs if (text := read(run.record))}
    common = set.intersection(*map(set, whole.values())) if whole else set()
    named = {text: [each for each in own if each not in common] for text, own in whole.items()}
    lacking = ",".join(dict.fromkeys(each for own in named.values() for each in own))
    return {text: f"{_MOUNT} {','.join(own)}" if own else f"without {lacking}" for text, own in named.items()}


def _fewest(telling: list[Difference], cells: Cells) -> list[Difference]:
    """The fewest of them that tell apart what all of them do: one, two, or one after another as they come.

    Where none of the job's own do, all that the surroundings differ in are told: which of them matters nobody knows.
    """
    all_distinguished = _distinguished(telling, cells)
    runs = [run for cell in cells for run in cell]
    labels = {run.text("job.label") for run in runs}
    brief = all(0 < len(label) <= WORD_LETTERS_MAX for label in labels)
    early = {"label": -1 if brief else 2, **dict.fromkeys(_CONSEQUENCES, 1)}
    own = sorted((d for d in telling if d.name not in _SURROUNDINGS), key=lambda d: early.get(d.name, 0))
    for count in (1, 2):
        for some in itertools.combinations(own[:16], count):
            if _distinguished(list(some), cells) == all_distinguished:
                return [d for d in telling if d in some]
    chosen: list[Difference] = []
    for difference in own:
        if _distinguished([*chosen, difference], cells) > _distinguished(chosen, cells):
            chosen.append(difference)
    if _distinguished(chosen, cells) < all_distinguished:
        chosen += [d for d in telling if d.name in _SURROUNDINGS]
    return [d for d in telling if d in chosen]


def _distinguished(some: list[Difference], cells: Cells) -> int:
    return sum(len({tuple(d.read(run) for d in some) for run in cell}) for cell in cells)


def _rest(runs: list[Run], names: dict[int, str], others: list[Difference], short: dict[str, str]) -> dict[str, str]:
    """Series → its values of the differences that its name leaves out."""
    found: dict[str, dict[str, list[str]]] = {}
    for run in runs:
        of = found.setdefault(names[id(run)], {})
        for difference in others:
            for word in _words(run, [difference], short):
                if word not in of.setdefault(difference.name, []):
                    of[difference.name].append(word)
    return {name: ", ".join(" or ".join(words[:3]) for words in of.values()) for name, of in found.items()}
