"""The page's first sentence: the main finding, in numbers, with what it was compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from forebay import numbers
from forebay.report.documents import Section
from forebay.report.runs import Point, Stat, Study
from forebay.report.tables import CPU_COST, THROUGHPUT

SMALL_BYTES = 16 << 10
FIGURES_MAX = 4
LATENCY = "result.latency_us.mean"


@dataclass
class Figure:
    """One key figure: what, how much, where."""

    title: str
    value: str
    unit: str
    where: str


def sentence(studies: list[Study], comparisons: list[Section], tunings: list[Section]) -> tuple[str, str]:
    """The main finding, and a second, smaller sentence that says what it cost and how sure it is."""
    if studies:
        return _of_study(_main(studies))
    first = next(iter([*comparisons, *tunings]), None)
    return (_sentence(first.finding), "") if first else ("Nothing to report.", "")


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."


def _main(studies: list[Study]) -> Study:
    """Measured before computed; then the one that compares most paths, then the largest."""
    return max(
        studies,
        key=lambda s: (s.origin == "measured", len({s.path_of(n) for n in s.series}) > 1, len(s.points)),
    )


def _of_study(study: Study) -> tuple[str, str]:
    if study.is_about_latency and any(p.stat(LATENCY) for p in study.points):
        return _of_latency(study)
    point = _telling_point(study)
    where = f" at {study.axis.place(point.x)}" if study.axis.key else ""
    text = f"{point.series} reached {_speed(point)}{where}"
    if not study.axis.key:
        io_bytes = point.runs[0].number("job.io_bytes") or 0
        text += f" with {numbers.size(io_bytes)} {'writes' if 'write' in study.op else 'reads'}"
    base_name = study.baseline(point.series)
    base = study.point(point.x, base_name) if base_name else None
    share, rest = _against(point, base, base_name or "") if base else ("", _cost(point))
    return _sentence(_computed(study) + text + share), rest


def _of_latency(study: Study) -> tuple[str, str]:
    """The point with the shortest mean latency, of those that have a baseline where there are any."""
    measured = [p for p in study.points if p.stat(LATENCY)]
    compared = [p for p in measured if (b := study.baseline(p.series)) and study.point(p.x, b)]
    point = min(compared or measured, key=lambda p: p.stat(LATENCY).value)  # type: ignore[union-attr]
    mean, p99 = point.stat(LATENCY), point.stat("result.latency_us.p99")
    assert mean is not None
    where = f" at {study.axis.place(point.x)}" if study.axis.key else ""
    text = f"{point.series} took {numbers.micros(mean.value)} an I/O{where}"
    base_name = study.baseline(point.series)
    base = study.point(point.x, base_name) if base_name else None
    its = base.stat(LATENCY) if base else None
    if quotient := mean.over(its) if its else None:
        text += f", {numbers.ratio(quotient.value)} × {base_name}"
    rest = f"99 % took at most {numbers.micros(p99.value)}." if p99 and p99.value else ""
    return _sentence(_computed(study) + text), rest


def _computed(study: Study) -> str:
    return (
        "" if study.origin == "measured" else f"{study.origin[:1].upper()}{study.origin[1:]}, not measured: "
    )


def _telling_point(study: Study) -> Point:
    """The fastest point of those that have a baseline to compare with; else the fastest."""
    compared = [p for p in study.points if (b := study.baseline(p.series)) and study.point(p.x, b)]
    return max(compared or study.points, key=_rate)


def _rate(point: Point) -> float:
    stat = point.stat(THROUGHPUT)
    return stat.value if stat else 0.0


def _speed(point: Point) -> str:
    iops = point.stat("result.iops")
    if (point.runs[0].number("job.io_bytes") or 0) <= SMALL_BYTES and iops:
        return f"{numbers.short(iops.value)} IOPS ({numbers.rate(_rate(point))} GiB/s)"
    return f"{numbers.rate(_rate(point))} GiB/s"


def _against(point: Point, base: Point, name: str) -> tuple[str, str]:
    mine, its = point.stat(THROUGHPUT), base.stat(THROUGHPUT)
    quotient = mine.over(its) if mine and its else None
    if quotient is None:
        return "", ""
    mine_cpu, its_cpu = point.stat(CPU_COST), base.stat(CPU_COST)
    cost = mine_cpu.over(its_cpu) if mine_cpu and its_cpu else None
    who = f"{point.series[:1].upper()}{point.series[1:]}"
    rest = []
    if quotient.low is None or quotient.high is None:
        rest.append("One run of each: the uncertainty is unknown.")
    elif quotient.low <= 1 <= quotient.high:
        if cost and (_below(cost) or _above(cost)):
            share = f", as fast as {name} within the error bars, for {numbers.ratio(cost.value)} × its CPU time"
            low, high = numbers.ratio(quotient.low), numbers.ratio(quotient.high)
            return share, f"{who}'s throughput was {low} to {high} × that of {name}."
        rest.append("Their intervals overlap: this is no proof of a difference.")
    if cost:
        rest.append(f"{who} took {numbers.ratio(cost.value)} times as much processor time per GiB as {name}.")
    return f", {numbers.ratio(quotient.value)} × {name}", " ".join(rest)


def _below(quotient: Stat) -> bool:
    return quotient.high is not None and quotient.high < 1


def _above(quotient: Stat) -> bool:
    return quotient.low is not None and quotient.low > 1


def _cost(point: Point) -> str:
    cores = point.stat("result.cpu.cores_busy")
    latency = point.stat("result.latency_us.p99")
    parts = [
        f"{numbers.significant(cores.value)} cores were busy" if cores else "",
        f"99 % of the I/Os took at most {numbers.micros(latency.value)}" if latency and latency.value else "",
    ]
    return "; ".join(p for p in parts if p) + "." if any(parts) else ""


def figures(studies: list[Study]) -> list[Figure]:
    """The extremes of the measured runs; of the computed ones where nothing was measured."""
    measured = [s for s in studies if s.origin == "measured"] or studies
    latencies = [
        _extreme(measured, "Lowest mean latency", LATENCY, min, numbers.micros, ""),
        _extreme(measured, "Lowest p99", "result.latency_us.p99", min, numbers.micros, ""),
    ]
    found = [
        *(latencies if all(s.is_about_latency for s in measured) else []),
        _ratio_of_two(measured),
        _extreme(measured, "Highest throughput", THROUGHPUT, max, numbers.rate, "GiB/s"),
        _extreme(measured, "Least CPU", CPU_COST, min, numbers.significant, "CPU-s/GiB"),
        _extreme(measured, "Most I/Os", "result.iops", max, numbers.short, "per second"),
        latencies[1],
    ]
    found = list({id(f): f for f in found}.values())
    return [f for f in found if f][:FIGURES_MAX]


def _ratio_of_two(studies: list[Study]) -> Figure | None:
    """Of a study of two series by one path, as local and remote: the ratio, from its least to its most."""
    for study in studies:
        base = study.base_series
        other = next((name for name in study.series if name != base), None) if base else None
        if base is None or other is None:
            continue
        found = []
        for x in study.xs:
            mine, its = study.point(x, other), study.point(x, base)
            rates = (mine.stat(THROUGHPUT), its.stat(THROUGHPUT)) if mine and its else (None, None)
            if rates[0] and rates[1] and (quotient := rates[0].over(rates[1])):
                found.append((x, quotient.value))
        if found:
            least, most = (numbers.ratio(pick(value for _, value in found)) for pick in (min, max))
            places = [study.axis.place(x) for x in (found[0][0], found[-1][0])] if study.axis.key else []
            where = " to ".join(dict.fromkeys(places))
            return Figure(f"{other} ÷ {base}", least if least == most else f"{least}–{most}", "of the throughput", where)
    return None


def _extreme(studies: list[Study], title: str, path: str, better: Any, show: Any, unit: str) -> Figure | None:
    found: list[tuple[Stat, Study, Point]] = []
    for study in studies:
        for point in study.points:
            stat = point.stat(path)
            if stat is not None and stat.value > 0:
                found.append((stat, study, point))
    if not found:
        return None
    stat, study, point = better(found, key=lambda f: f[0].value)
    where = f"{point.series}, {study.axis.place(point.x)}" if study.axis.key else point.series
    if len(studies) > 1:
        where += f", {study.op}"
    text = show(stat.value)
    value, _, tail = text.partition(" ")
    return Figure(title, value, f"{tail} {unit}".strip(), where)
