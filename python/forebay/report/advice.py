"""Reasons to doubt the numbers: the records' own warnings, each once, and what is amiss with the collection (damaged lines,
runs of several machines, runs without repeats)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from forebay import environment
from forebay.report.runs import Run, Study

TITLES = {
    "damaged": "Left out",
    "failed_io": "I/O errors",
    "verify": "Wrong bytes",
    "interrupted": "Interrupted",
    "path": "Path differs from the one requested",
    "client_limited": "The client was measured",
    "skipped": "Samples left out",
    "clock": "Clock in doubt",
    "cached": "From memory",
    "small_data": "Little data",
    "small_ios": "Smaller I/Os than asked for",
    "throttled": "Throttled",
    "noisy": "Noisy",
    "traffic": "Other traffic on the drive",
    "too_short": "Too short",
    "single": "One run only",
    "dropped": "Not run",
    "slow_link": "Slow PCIe link",
    "mixed": "Not one machine or build",
    "few_files": "Fewer files than accelerators",
    "scaled": "Scaled down",
    "throttled_supply": "Supply held back",
    "left_out": "Not the whole job",
    "unfinished": "I/Os never completed",
    "off_model": "Limited by the host, not the model",
    "simulated": "Not measured",
    "predicted": "Not measured",
}

_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


def _numbers(text: str) -> list[float]:
    return [float(n.replace(",", "")) for n in _NUMBER.findall(text)]


@dataclass
class Advice:
    """One kind of trouble: what it is (several texts where runs differ), which runs, what to do."""

    id: str
    texts: dict[str, list[str]] = field(default_factory=dict)
    nexts: list[str] = field(default_factory=list)
    page: bool = False
    varying: set[str] = field(default_factory=set)

    @property
    def next(self) -> str:
        """Returns the advice: runs that were asked for in different ways may each say another thing."""
        return "; ".join(self.nexts)

    @property
    def title(self) -> str:
        return TITLES.get(self.id, self.id.replace("_", " ").capitalize())

    def worst(self, text: str) -> str:
        """The text under which `text` is told: of those that differ in their numbers only, the one with the greatest."""
        same = next((t for t in self.texts if _NUMBER.sub("#", t) == _NUMBER.sub("#", text)), None)
        if same is None or same == text:
            return text
        self.varying.add(same)
        if _numbers(text) <= _numbers(same):
            return same
        self.varying.add(text)
        self.texts = {text if t == same else t: names for t, names in self.texts.items()}
        return text

    def reported(self) -> list[tuple[str, list[str]]]:
        """Each text with the runs that it holds for; where theirs differ in the numbers, it says so."""
        return [
            (f"{text} (at worst)" if text in self.varying else text, names)
            for text, names in self.texts.items()
        ]

    @property
    def runs(self) -> int:
        return len({name for names in self.texts.values() for name in names})


def gather(studies: list[Study], problems: list[str], left_out: list[str], emulated: Sequence[Run] = ()) -> list[Advice]:
    """Every warning once, the gravest first. The records say what their figures imply (crates/model/src/warnings.rs)."""
    found: dict[str, Advice] = {}
    for problem in problems:
        _add(found, "damaged", problem, "", "Run it again, or take the file out of the list.", page=True)
    for text in left_out:
        _add(found, "dropped", text, "", "forebay doctor says what this machine lacks.", page=True)
    for study in studies:
        for point in study.points:
            alone = len(point.runs) == 1
            for run in point.runs:
                for ident, text, next in _recorded(run):
                    _add(found, ident, text, run.name, next)
                if alone and run.repeats < 2 and run.text("origin", "measured") == "measured":
                    _add(found, "single", "A single run shows no spread.", run.name, "--repeat 5")
    for run in emulated:
        for ident, text, next in _recorded(run):
            _add(found, ident, text, run.name, next)
    for text, next in _mixed([run for study in studies for run in study.runs]):
        _add(found, "mixed", text, "", next, page=True)
    order = list(TITLES)
    return sorted(found.values(), key=lambda a: order.index(a.id) if a.id in order else len(order))


def _add(found: dict[str, Advice], ident: str, text: str, run: str, next: str, page: bool = False) -> None:
    advice = found.setdefault(ident, Advice(ident, page=page))
    if next and next not in advice.nexts:
        advice.nexts.append(next)
    if not page:
        text = advice.worst(text)
    names = advice.texts.setdefault(text, [])
    if run and run not in names:
        names.append(run)


Finding = tuple[str, str, str]


def _recorded(run: Run) -> Iterator[Finding]:
    for warning in run.items("warnings"):
        ident, text, next = (warning.get(key) for key in ("id", "text", "next"))
        if isinstance(ident, str) and ident:
            yield ident, text if isinstance(text, str) else "", next if isinstance(next, str) else ""


def _changed(runs: list[Run]) -> Iterator[tuple[str, str]]:
    """Environments of one host and source that changed between its runs: another kernel, firmware, mount options, …"""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.text("environment.host"), run.text("job.source")), []).append(run)
    reported: dict[str, list[str]] = {}
    for group in groups.values():
        for word, read in environment.FACTS:
            values = sorted({read(run.record) for run in group} - {""})
            if word not in ("host", "build") and len(values) > 1:
                reported.setdefault(f"{word}: {', '.join(values[:4])}", []).append(word)
    for text, words in reported.items():
        yield f"Runs of the same source differ in {text}. Each is a series of its own.", f"Compare runs of one {words[0]} only."


def _mixed(runs: list[Run]) -> Iterator[tuple[str, str]]:
    hosts = sorted({run.text("environment.host") for run in runs} - {""})
    if len(hosts) > 1:
        yield (
            f"Runs of {len(hosts)} machines are in this report: {', '.join(hosts[:8])}.",
            "Compare within a machine only.",
        )
    yield from _changed(runs)
    builds = sorted(
        {f"{run.text('forebay.version')} {run.text('forebay.commit')}".strip() for run in runs} - {""}
    )
    if len(builds) > 1:
        yield (
            f"Runs of {len(builds)} builds of Forebay: {', '.join(builds[:8])}.",
            "Compare within a build only.",
        )
