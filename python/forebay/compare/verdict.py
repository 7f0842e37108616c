"""The verdict on a ratio's interval, in one sentence, and what to do if the interval is inconclusive."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from forebay.metrics import Metric
from forebay.stats import Interval, half_width_of, pairs_for

# Stopping at the first interval that is narrow enough prefers those that are narrow by luck, and noise that comes and
# goes with the runs lets few pairs agree by chance. Computed at 98.5 %, from 8 pairs on, at least 94 % of intervals hold
# the true ratio under any of them (tests/test_coverage.py simulates it).
CONFIDENCE_WITH_STOPPING = 0.985
PAIRS_LEAST = 8
# More pairs than anybody would wait for.
PAIRS_ADVISED_MAX = 200
# An interval that leaves more than this open says nothing worth saying.
BOUND_MAX_PCT = 25.0
# Nobody asks for an interval wider than this.
WIDE_MOST_PCT = 50.0


@dataclass(frozen=True)
class Verdict:
    """`kind`: differs, same, too_noisy or none (too few pairs for an interval)."""

    kind: str
    text: str
    next: str = ""

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


def judge(
    ratio: Interval, metric: Metric, asked_pct: float, noise: dict[str, Any] | None = None, longer: str | None = None,
    other: str = "B",
) -> Verdict:  # fmt: skip
    """The verdict on A ÷ B, or ÷ another side. `asked_pct`: the half-width that was asked for, in per cent. `longer`: what makes
    runs of a command longer, which has no flags of a job."""
    if ratio.low is None or ratio.high is None:
        return Verdict(
            "none",
            f"no verdict: {ratio.n} pair{'s give' if ratio.n != 1 else ' gives'} no interval",
            "let at least 3 pairs finish",
        )
    wide = (ratio.half_width_pct or 0.0) > asked_pct
    if ratio.low > 1 or ratio.high < 1:
        text = _difference(ratio, metric, other)
        bound = max(abs(ratio.low - 1), abs(ratio.high - 1)) * 100
        if bound < asked_pct:
            text += f" (a real difference, but below {asked_pct:g} %)"
        if wide:
            return Verdict(
                "differs",
                f"{text}; the interval is wider than the {asked_pct:g} % requested",
                quieter(ratio, asked_pct, noise, longer),
            )
        return Verdict("differs", text)
    bound = max(1 - ratio.low, ratio.high - 1) * 100
    if not wide:
        return Verdict("same", f"no difference above {_at_least(bound)} %")
    if bound < BOUND_MAX_PCT:
        text = f"no difference above {_at_least(bound)} % in {metric.title}; too noisy to rule out {asked_pct:g} %"
    else:
        text = f"too noisy: A is {span(ratio.low, ratio.high)} × {other} in {metric.title}, too wide for a verdict"
    return Verdict("too_noisy", text, quieter(ratio, asked_pct, noise, longer))


def _difference(ratio: Interval, metric: Metric, other: str) -> str:
    """In the direction of the table: A ÷ B, above 1 or below."""
    assert ratio.low is not None and ratio.high is not None
    return metric.sentence.format(x="A", y=other, r=span(ratio.low, ratio.high))


def span(low: float, high: float) -> str:
    """`1.07–1.11`: as many decimals as keep the ends apart and each on its side of 1."""
    least = 2 if high < 10 else 1 if high < 100 else 0
    if high < 0.1:
        least = 1 - math.floor(math.log10(max(high, 1e-9)))
    for decimals in range(least, least + 3):
        ends = [f"{v:.{decimals}f}" for v in (low, high)]
        rounded = (low > 1 and float(ends[0]) <= 1) or (high < 1 and float(ends[1]) >= 1)
        if ends[0] != ends[1] and not rounded:
            return "–".join(ends)
    return f"{(low + high) / 2:.4g}"


def _at_least(pct: float) -> str:
    """Rounded up: the sentence must stay true."""
    digits = 1 if pct < 10 else 0
    return f"{max(0.1, math.ceil(pct * 10**digits - 1e-9) / 10**digits):.{digits}f}".removesuffix(".0")


def quieter(ratio: Interval, asked_pct: float, noise: dict[str, Any] | None, longer: str | None = None) -> str:
    """Advises how to narrow the interval, the most likely cause first."""
    hints = []
    noise = noise or {}
    if (noise.get("steal_pct") or 0) > 1:
        hints.append(f"the hypervisor took {noise['steal_pct']:.0f} % of the CPU: use a machine of your own")
    if (noise.get("others_cores_busy") or 0) > 0.3:
        pin = "" if longer else ", or pin with --cpus"
        hints.append(f"other processes used {noise['others_cores_busy']:.1f} cores: stop them{pin}")
    if noise.get("throttled"):
        hints.append("the processor throttled: let it cool")
    half = ratio.half_width_pct
    if half and ratio.n:
        hints += _more_pairs(ratio, asked_pct)
        wider = f", or a wider interval (--until-ci {math.ceil(half)}%)" if half < WIDE_MOST_PCT else ""
        hints.append(f"longer runs ({longer or '--duration'}){wider}")
    return "; ".join(hints)


def _more_pairs(ratio: Interval, asked_pct: float) -> list[str]:
    """Advice on more pairs: few of them have a wide interval whatever their noise."""
    enough = pairs_for(asked_pct, ratio, CONFIDENCE_WITH_STOPPING, PAIRS_ADVISED_MAX)
    hints = []
    if ratio.n < PAIRS_LEAST and (enough is None or enough > PAIRS_LEAST):
        half = half_width_of(PAIRS_LEAST, ratio, CONFIDENCE_WITH_STOPPING)
        if half < WIDE_MOST_PCT:
            hints.append(
                f"{ratio.n} pairs tell little: {PAIRS_LEAST} as noisy would give about ± {half:.2g} %: --pairs-max {PAIRS_LEAST}"
            )
    if enough is not None:
        hints.append(f"about {enough} pairs would be enough for ± {asked_pct:g} %: --pairs-max {enough}")
    return hints


def reported(ratio: Interval, metric: Metric, tolerance_pct: float) -> str:
    """`ratio` is A ÷ B. worse, better, ok (surely not worse), unsure, or one run (no interval)."""
    good = ratio.inverse() if metric.higher_is_better else ratio
    if good.low is None or good.high is None:
        return "one run"
    # Worse by the tolerance, seen from the figure's own side: 2 % less throughput, or 2 % more CPU.
    floor = 1 - tolerance_pct / 100 if metric.higher_is_better else 1 / (1 + tolerance_pct / 100)
    if good.high < floor:
        return "worse"
    if good.low > 1 / floor:
        return "better"
    return "ok" if good.low >= floor else "unsure"
