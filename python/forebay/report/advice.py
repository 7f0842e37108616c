"""What the reader should know before relying on the numbers: the records' own warnings, and what they imply."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from forebay.report.runs import Run, Study

TITLES = {
    "damaged": "Left out",
    "failed_io": "I/Os failed",
    "verify": "Wrong bytes",
    "interrupted": "Interrupted",
    "path": "Ran another path than asked",
    "client_limited": "The client was measured",
    "skipped": "Samples left out",
    "clock": "Clock in doubt",
    "cached": "Partly from memory",
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
    "unfinished": "I/Os never came back",
    "off_model": "The host, not the model",
    "simulated": "Not measured",
    "predicted": "Not measured",
}
SHORT_S, CV_PCT, STEAL_PCT, DEVICE_EXCESS = 3.0, 10.0, 2.0, 1.1
OTHERS_SHARE = 0.05


_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


def _numbers(text: str) -> list[float]:
    return [float(n.replace(",", "")) for n in _NUMBER.findall(text)]


@dataclass
class Advice:
    """One kind of trouble: what it is (several texts where runs differ), which runs, what to do."""

    id: str
    texts: dict[str, list[str]] = field(default_factory=dict)
    next: str = ""
    page: bool = False
    varying: set[str] = field(default_factory=set)

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

    def told(self) -> list[tuple[str, list[str]]]:
        """Each text with the runs that it holds for; where theirs differ in the numbers, it says so."""
        return [
            (f"{text} (at worst)" if text in self.varying else text, names)
            for text, names in self.texts.items()
        ]

    @property
    def runs(self) -> int:
        return len({name for names in self.texts.values() for name in names})


def gather(studies: list[Study], problems: list[str], left_out: list[str], emulated: Sequence[Run] = ()) -> list[Advice]:
    """Every warning once, the gravest first. Of emulated training what its records say themselves."""
    found: dict[str, Advice] = {}
    for problem in problems:
        _add(found, "damaged", problem, "", "Run it again, or take the file out of the list.", page=True)
    for text in left_out:
        _add(found, "dropped", text, "", "forebay doctor says what this machine lacks.", page=True)
    for study in studies:
        for point in study.points:
            alone = len(point.runs) == 1
            for run in point.runs:
                said = set()
                for ident, text, next in _recorded(run):
                    said.add(ident)
                    _add(found, ident, text, run.name, next)
                for ident, text, next in _derived(run, alone):
                    if ident not in said:
                        _add(found, ident, text, run.name, next)
    for run in emulated:
        for ident, text, next in _recorded(run):
            _add(found, ident, text, run.name, next)
    for text, next in _mixed([run for study in studies for run in study.runs]):
        _add(found, "mixed", text, "", next, page=True)
    order = list(TITLES)
    return sorted(found.values(), key=lambda a: order.index(a.id) if a.id in order else len(order))


def _add(found: dict[str, Advice], ident: str, text: str, run: str, next: str, page: bool = False) -> None:
    advice = found.setdefault(ident, Advice(ident, next=next, page=page))
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


def _derived(run: Run, alone: bool) -> Iterator[Finding]:
    yield from _broken(run)
    yield from _noise(run)
    seconds = (run.number("result.seconds") or 0.0) / run.repeats
    origin = run.text("origin", "measured")
    if origin != "measured":
        yield (
            "simulated",
            f"Computed from a model ({origin}), not measured on a drive.",
            "Read it as what a model says.",
        )
        return
    if seconds < SHORT_S:
        yield "too_short", f"Measured for less than {SHORT_S:.0f} s a time.", "--duration 10"
    if alone and run.repeats < 2:
        yield "single", "Without repeats nobody knows the spread.", "--repeat 5"
    for drive in run.items("environment.drives"):
        now, best = (drive.get(key) for key in ("pcie_gen", "pcie_gen_max"))
        if isinstance(now, int) and isinstance(best, int) and now < best:
            yield (
                "slow_link",
                f"{drive.get('name', 'a drive')} runs at PCIe generation {now}; it can do {best}.",
                "forebay doctor",
            )


def _broken(run: Run) -> Iterator[Finding]:
    requested, ran = run.text("path.requested"), run.text("path.ran")
    if requested not in ("", "auto", ran):
        yield (
            "path",
            f"{requested} was asked for, {ran} ran: {run.text('path.reason') or run.reason('path.reason')}.",
            "forebay doctor",
        )
    if run.at("result.interrupted") is True:
        yield "interrupted", "Stopped by a signal; what was measured until then stands.", "Run it to its end."
    counts = {
        name: run.number(f"result.errors.{name}") or 0
        for name in ("failed", "timed_out", "short", "retried", "misaligned")
    }
    told = ", ".join(f"{value:,.0f} {name.replace('_', ' ')}" for name, value in counts.items() if value)
    if told:
        examples = run.at("result.errors.examples")
        first = (
            f" First: {examples[0]}."
            if isinstance(examples, list) and examples and isinstance(examples[0], str)
            else ""
        )
        yield (
            "failed_io",
            f"Of the I/Os: {told}.{first}",
            "Look at the kernel log (dmesg) and the drive's health.",
        )
    wrong = run.number("result.errors.verify_failed")
    if wrong:
        yield (
            "verify",
            f"{wrong:,.0f} blocks didn't hold what they should.",
            "Don't trust this storage with data until it is explained.",
        )


def _noise(run: Run) -> Iterator[Finding]:
    cv, steal, others, throttled = (
        run.number(f"result.noise.{key}")
        for key in ("series_cv_pct", "steal_pct", "others_cores_busy", "throttled")
    )
    if cv is not None and cv > CV_PCT:
        yield (
            "noisy",
            f"Throughput wandered by more than {CV_PCT:.0f} % (coefficient of variation of the series).",
            "--repeat 5, on a quiet machine",
        )
    if steal is not None and steal > STEAL_PCT:
        yield (
            "noisy",
            f"The hypervisor took more than {STEAL_PCT:.0f} % of the CPU time.",
            "--repeat 5, on a quiet machine",
        )
    cores = run.number("environment.cores") or 1
    if others is not None and others > max(0.25, OTHERS_SHARE * cores):
        yield "noisy", "Other processes kept the machine busy meanwhile.", "--repeat 5, on a quiet machine"
    asked, device = run.number("result.bytes"), run.number("cache.device_bytes")
    if (
        device is not None
        and asked
        and device > DEVICE_EXCESS * asked
        and run.text("cache.policy") == "bypass"
    ):
        text = (
            f"The drives moved more than {DEVICE_EXCESS:.1f} times what the job asked for: others used them."
        )
        yield "traffic", text, "a drive that nothing else uses"
    if throttled:
        yield (
            "throttled",
            f"The processor throttled {throttled:,.0f} times.",
            "Check cooling and power limits.",
        )


def _mixed(runs: list[Run]) -> Iterator[tuple[str, str]]:
    hosts = sorted({run.text("environment.host") for run in runs} - {""})
    if len(hosts) > 1:
        yield (
            f"Runs of {len(hosts)} machines stand in one report: {', '.join(hosts[:8])}.",
            "Compare within a machine only.",
        )
    builds = sorted(
        {f"{run.text('forebay.version')} {run.text('forebay.commit')}".strip() for run in runs} - {""}
    )
    if len(builds) > 1:
        yield (
            f"Runs of {len(builds)} builds of Forebay: {', '.join(builds[:8])}.",
            "Compare within a build only.",
        )
