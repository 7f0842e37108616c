"""Checks runs from a folder against the rules of MLPerf Storage: each rule by name, whether it holds, and why.

Sources: the submission guidelines of v1.0, v2.0 and v3.0, and their checkers (report.py, mlpstorage/rules.py). What a
result doesn't tell is `ok` None. The checkers leave epochs, pauses and caches unchecked; these rules don't.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, TypeVar

from forebay.emulate import datasize, division
from forebay.emulate.results import Damaged, Run
from forebay.emulate.workloads import Training
from forebay.units import GIB

T = TypeVar("T")

# How many runs a result may have. Of six the first warms up, and doesn't count.
RUNS: Mapping[str, tuple[int, ...]] = {"v1.0": (5,), "v2.0": (5, 6), "v3.0": (6,), "text": (5,)}
WITH_WARMUP = 6
RUNS_WORDS = {
    (5,): "five",
    (6,): "six, the first as warm-up",
    (5, 6): "five, or six with the first as warm-up",
}
SPREAD_PCT = 5.0
# Overridden by the tools themselves, or of no effect on what is measured.
HARMLESS = ("workflow.", "output.", "profiling.", "dataset.keep_files", "hydra.", "checkpoint.checkpoint_folder")
# A constant that a record of ours states → DLIO's name of it.
STATED = {
    key: division.CONSTANTS[key]
    for key in ("batch", "compute_s", "record_bytes", "samples_per_file", "format", "loader", "au_pct_min")
}


@dataclass(frozen=True)
class Verdict:
    """`ok` None: the results don't tell."""

    id: str
    ok: bool | None
    why: str
    # The runs that it is about, where not all.
    runs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """Metric to compare by: the runs that count, the rule set and division, and the published workload, if there is one."""

    runs: Sequence[Run]
    damaged: Sequence[Damaged]
    rules: str
    division: str
    workload: Training | None

    @property
    def counted(self) -> Sequence[Run]:
        """Without the run that only warms up."""
        return counted(self.runs, self.rules)


def counted(runs: Sequence[T], rules: str) -> Sequence[T]:
    """The runs, or their records, that a result is made of: v2.0's and v3.0's first of six only warms up."""
    return runs[1:] if len(runs) == WITH_WARMUP and WITH_WARMUP in RUNS.get(rules, ()) else runs


def judge(runs: Sequence[Run], damaged: Sequence[Damaged], rules: str, which: str) -> list[Verdict]:
    """Every rule's verdict, in the order in which a reader would ask."""
    workload = division.published(runs[0].workload, runs[0].accelerator, rules) if runs else None
    case = Case(runs, damaged, rules, which, workload)
    return [verdict for rule in RULES for verdict in rule(case)]


# The rules -----------------------------------------------------------------------------------------------


def readable(case: Case) -> Iterator[Verdict]:
    if case.damaged:
        reported = "; ".join(f"{d.place}: {d.why}" for d in case.damaged[:5])
        more = f"; and {len(case.damaged) - 5} more" if len(case.damaged) > 5 else ""
        yield Verdict("readable", False, reported + more, tuple(d.place for d in case.damaged))
    else:
        yield Verdict("readable", True, f"{len(case.runs)} result{'s' * (len(case.runs) != 1)}, each complete")


def known_workload(case: Case) -> Iterator[Verdict]:
    first = case.runs[0] if case.runs else None
    if first is None:
        return
    asked = f"{first.workload} on {first.accelerator or 'an unnamed accelerator'}"
    own = [r for r in case.runs if r.own_constants]
    if case.workload is None:
        yield Verdict("workload", False, f"{asked} isn't a workload of {case.rules}")
    elif case.workload.status != "closed":
        yield Verdict("workload", False, f"{asked} doesn't belong to any division")
    elif own:
        why = f"{asked} from a custom file, whose constants differ from those of {case.rules}"
        yield Verdict("workload", False, why, tuple(r.place for r in own))
    else:
        yield Verdict("workload", True, f"{asked} is one of {case.rules}")


def number_of_runs(case: Case) -> Iterator[Verdict]:
    allowed = RUNS[case.rules]
    what = f"{len(case.runs)} run{'s' * (len(case.runs) != 1)}; {case.rules} requires {RUNS_WORDS[allowed]}"
    yield Verdict("runs", len(case.runs) in allowed, what)


def same_setup(case: Case) -> Iterator[Verdict]:
    """Compares what report.py compares: workload, accelerator, number, files, samples per file; and hosts and epochs besides."""
    shown = ("workload", "accelerator", "accelerators", "hosts", "files", "samples_per_file", "epochs")
    odd = [f"{key.replace('_', ' ')}: {', '.join(sorted({str(getattr(r, key)) for r in case.runs}))}" for key in shown
           if len({getattr(r, key) for r in case.runs}) > 1]  # fmt: skip
    if not case.runs:
        return
    first = case.runs[0]
    same = f"{first.accelerators} accelerators on {first.hosts} host{'s' * (first.hosts > 1)}, {first.files} files, in each run"
    yield Verdict("same", not odd, "; ".join(odd) or same)


def utilisation(case: Case) -> Iterator[Verdict]:
    least = case.workload.au_pct_min if case.workload else None
    if least is None:
        yield Verdict("au", None, "without a published workload there is no minimum utilisation")
        return
    unknown = [r for r in case.counted if r.au_pct is None]
    low = [r for r in case.counted if r.au_pct is not None and r.au_pct < least]
    reported = _some(f"{r.place} {r.au_pct:.2f} %" for r in low)
    if low:
        yield Verdict("au", False, f"below {least:g} %: {reported}", tuple(r.place for r in low))
    elif unknown:
        yield Verdict("au", False, "too few steps for a figure", tuple(r.place for r in unknown))
    elif case.counted:
        lowest = min(r.au_pct for r in case.counted if r.au_pct is not None)
        yield Verdict("au", True, f"every run at {lowest:.2f} % or above; {least:g} % is required")
    reported_runs = [r for r in case.counted if r.said_to_pass is not None and r.au_pct is not None]
    wrong = [r for r in reported_runs if r.said_to_pass != (r.au_pct is not None and r.au_pct >= least)]
    if wrong:
        reported = _some(f"{r.place} reports {'success' if r.said_to_pass else 'failure'} at {r.au_pct:.2f} %" for r in wrong)
        yield Verdict("au-said", False, f"{reported}; the minimum is {least:g} %", tuple(r.place for r in wrong))


def spread(case: Case) -> Iterator[Verdict]:
    rates = [(r, r.samples_per_s) for r in case.counted if r.samples_per_s is not None and r.samples_per_s > 0]
    if len(rates) < 2:
        yield Verdict("spread", None, "a single rate has no spread")
        return
    mean = fmean(rate for _, rate in rates)
    far, rate = max(rates, key=lambda pair: abs(pair[1] - mean))
    off = 100 * (rate - mean) / mean
    why = f"{far.place} is {off:+.1f} % from the mean of {mean:,.4g} samples/s; {SPREAD_PCT:g} % at most"
    yield Verdict("spread", abs(off) <= SPREAD_PCT, why)


def data_size(case: Case) -> Iterator[Verdict]:
    if case.workload is None or not case.runs:
        return
    short, unknown, more = [], [], []
    exact = case.rules in datasize.EXACT and case.division == "closed"
    need = 0
    for run in case.runs:
        size = datasize.size(case.workload, case.rules, run.accelerators, int(run.memory_bytes or 0))
        need = max(need, size.files)
        if run.files < size.files:
            short.append(run)
        if run.memory_bytes is None:
            unknown.append(run)
        elif exact and run.files > size.files:
            more.append(run)
    if short:
        memory = f"{short[0].memory_bytes / GIB:.4g} GiB of memory" if short[0].memory_bytes else "memory unknown"
        wants = f"{need:,} that {case.rules} requires for {short[0].accelerators} accelerators and {memory}"
        why = f"{short[0].files:,} files, of {wants}"
        yield Verdict("data-size", False, why, tuple(r.place for r in short))
    elif more:
        why = f"{more[0].files:,} files, more than the {need:,} that {case.rules} allows: --files {need}"
        yield Verdict("data-size", False, why, tuple(r.place for r in more))
    elif unknown:
        why = "the results don't say how much memory the hosts have"
        yield Verdict("data-size", None, why, tuple(r.place for r in unknown))
    else:
        yield Verdict("data-size", True, f"{case.runs[0].files:,} files; {need:,} are required")


def epochs(case: Case) -> Iterator[Verdict]:
    if case.workload is None:
        return
    wrong = [r for r in case.runs if r.epochs != case.workload.epochs]
    reported = _some(f"{r.place} {r.epochs}" for r in wrong)
    why = f"of {case.workload.epochs}: {reported}" if wrong else f"{case.workload.epochs} in each"
    yield Verdict("epochs", not wrong, why, tuple(r.place for r in wrong))


def whole_runs(case: Case) -> Iterator[Verdict]:
    cut = [r for r in case.runs if r.interrupted]
    if cut:
        yield Verdict("complete", False, "interrupted", tuple(r.place for r in cut))
    skipped = [r for r in case.runs if r.skipped]
    if skipped:
        yield Verdict("on-error", False, "samples were skipped that couldn't be read", tuple(r.place for r in skipped))


def measured(case: Case) -> Iterator[Verdict]:
    fake = [r for r in case.runs if r.simulated]
    if fake:
        yield Verdict("measured", False, "simulated with a modelled drive", tuple(r.place for r in fake))


def hosts(case: Case) -> Iterator[Verdict]:
    uneven = [r for r in case.runs if r.uneven_hosts]
    if uneven:
        reported = ", ".join(f"{r.place}: {r.accelerators} on {r.hosts} hosts" for r in uneven)
        yield Verdict("hosts", False, f"not the same number on each: {reported}", tuple(r.place for r in uneven))
    elif any(r.hosts > 1 for r in case.runs):
        yield Verdict("hosts", True, "the same number of accelerators on each")


def throttled(case: Case) -> Iterator[Verdict]:
    held = [r for r in case.runs if r.throttled]
    if held:
        yield Verdict("supply", False, "--supply: an artificial limit was measured", tuple(r.place for r in held))


def seeds(case: Case) -> Iterator[Verdict]:
    """v2.0 and v3.0: the storage must not know the order of a run by an earlier one."""
    if case.rules not in division.NEW_SEEDS or len(case.runs) < 2:
        return
    known = [r for r in case.runs if r.seed is not None]
    times = Counter(r.seed for r in known)
    again = [r for r in known if times[r.seed] > 1]
    if again:
        reported = _some(f"{r.place} {r.seed}" for r in again)
        yield Verdict("seed", False, f"must change from run to run: {reported}", tuple(r.place for r in again))
    elif len(known) == len(case.runs):
        yield Verdict("seed", True, "different in each run")
    else:
        yield Verdict("seed", None, "the results don't state the seed of each run")


def odirect(case: Case) -> Iterator[Verdict]:
    past = [r for r in case.runs if r.cache == "bypass" or r.parameters.get("reader.odirect", "").lower() == "true"]
    why = division.no_odirect(past[0].workload, case.rules, case.division) if past else None
    if why:
        yield Verdict("odirect", False, f"read with O_DIRECT, {why}; --cache drop", tuple(r.place for r in past))


def caches(case: Case) -> Iterator[Verdict]:
    ours = [r for r in case.runs if r.cache is not None]
    warm = [r for r in ours if r.cache not in division.caches(case.rules)]
    if warm:
        reported = ", ".join(sorted({str(r.cache) for r in warm}))
        why = f"the page cache was {reported}: reads may have come from memory; --cache drop before each run"
        yield Verdict("cache", False, why, tuple(r.place for r in warm))
    elif case.rules not in division.EMPTIED:
        return
    elif ours and len(ours) == len(case.runs):
        yield Verdict("cache", True, "dropped before each run, or bypassed")
    else:
        yield Verdict("cache", None, "DLIO doesn't record whether caches were cleared between runs")


def level(case: Case) -> Iterator[Verdict]:
    if case.division != "closed" or case.rules == "v3.0":
        return
    lean = [r for r in case.runs if r.level == "bytes"]
    if lean:
        why = f"--level bytes leaves out checks that {case.rules}'s readers make"
        yield Verdict("level", False, why, tuple(r.place for r in lean))


def parameters(case: Case) -> Iterator[Verdict]:
    may = division.allowed(case.rules, case.division)
    found: dict[str, list[str]] = {}
    for run in case.runs:
        for reported in broken_parameters(run, case.workload, may):
            found.setdefault(reported, []).append(run.place)
    for reported, places in found.items():
        yield Verdict("parameters", False, f"{reported}, which {case.division} doesn't allow", tuple(places))
    far = [r for r in case.runs if _as_int(r.parameters.get("reader.prefetch_size")) > division.PREFETCH_MAX]
    if far and case.division == "closed":
        why = f"reader.prefetch_size above {division.PREFETCH_MAX}"
        yield Verdict("prefetch", False, why, tuple(r.place for r in far))
    if not found:
        yield Verdict("parameters", True, f"nothing overridden that {case.division} doesn't allow")


def broken_parameters(run: Run, workload: Training | None, may: frozenset[str]) -> Iterator[str]:
    """Yields the parameters that a run changed and mustn't have. Setting a constant to what it is anyway breaks nothing."""
    for key, value in run.parameters.items():
        if key in may or key.startswith(HARMLESS):
            continue
        name = next((n for n, parameter in division.CONSTANTS.items() if parameter == key), None)
        if workload is None or name is None or not _same(getattr(workload, name), value):
            yield f"{key} is {value}"
    for key, value in run.constants.items():
        if workload is None or STATED[key] in may or _same(getattr(workload, key), value):
            continue
        yield f"{STATED[key]} is {value}, not {getattr(workload, key)}"


def pauses(case: Case) -> Iterator[Verdict]:
    """v3.0: no run is left out between two that count."""
    if case.rules != "v3.0":
        return
    timed = [r for r in case.runs if r.began is not None and r.ended is not None]
    if len(timed) < len(case.runs) or len(timed) < 2:
        yield Verdict("pauses", None, "the results don't say when they began and ended")
        return
    for before, after in zip(timed, timed[1:]):  # noqa: B905
        gap, length = after.began - before.ended, before.ended - before.began  # type: ignore[operator]
        if gap >= length:
            why = f"{gap:.0f} s between {before.place} and {after.place}: long enough for another run of {length:.0f} s"
            yield Verdict("pauses", False, why, (before.place, after.place))
            return
    yield Verdict("pauses", True, "no gap between two runs is long enough for another run")


RULES: tuple[Callable[[Case], Iterator[Verdict]], ...] = (
    readable, known_workload, number_of_runs, whole_runs, measured, same_setup, utilisation, spread, data_size, epochs,
    hosts, throttled, seeds, odirect, caches, level, parameters, pauses,
)  # fmt: skip


def _some(reported: Iterable[str], most: int = 3) -> str:
    listed = list(reported)
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")


def _same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, (int, float)) and not isinstance(ours, bool):
        try:
            return abs(float(ours) - float(theirs)) <= 1e-9 * max(1.0, abs(float(ours)))
        except (TypeError, ValueError):
            return False
    return str(ours).lower() == str(theirs).lower()


def _as_int(text: str | None) -> int:
    try:
        return int(text or 0)
    except ValueError:
        return 0
