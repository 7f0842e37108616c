"""One predicted quantity: its middle, its 80 % interval, what limits it, and where that comes from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from forebay.plan.fit import Z80, Parameter
from forebay.plan.frozen import replace

# Stations whose utilisations lie within this factor of each other limit together.
BALANCED = 0.9


@dataclass(frozen=True)
class Estimate:
    """`value` with `p10` and `p90`, in `unit`. `stations`: utilisation by station, 0 to 1. `note`: what to know of it."""

    value: float
    p10: float
    p90: float
    unit: str
    bottleneck: str = ""
    stations: dict[str, float] = field(default_factory=dict)
    note: str = ""
    parameters: tuple[Parameter, ...] = ()

    @property
    def log_sd(self) -> float:
        """Standard deviation of its logarithm, by its lower end: the upper one may be held by a limit."""
        return math.log(self.value / self.p10) / Z80

    def document(self) -> dict[str, Any]:
        return {
            "value": self.value,
            "p10": self.p10,
            "p90": self.p90,
            "unit": self.unit,
            "bottleneck": self.bottleneck,
            "stations": self.stations,
            "note": self.note,
        }


# Beyond this factor outside of what was measured, a prediction is extrapolated: marked, and widened by so much of its
# logarithm for each quantity that is.
FAR, FAR_SD = 10.0, 0.15


def far(asked: Sequence[tuple[str, float, float, float]]) -> list[str]:
    """Returns those of (name, value, least and greatest that was measured) that lie more than FAR times outside."""
    return [
        f"{name} {value:g} is more than ten times outside the measured range, {low:g} to {high:g}"
        for name, value, low, high in asked
        if value < low / FAR or value > high * FAR
    ]


def from_log(mean: float, sd: float, unit: str, **more: Any) -> Estimate:
    """Out of a logarithm with its standard deviation."""
    return Estimate(math.exp(mean), math.exp(mean - Z80 * sd), math.exp(mean + Z80 * sd), unit, **more)


def from_sides(mean: float, low: float, high: float, unit: str, **more: Any) -> Estimate:
    """Out of a logarithm with its standard deviations below and above."""
    return Estimate(math.exp(mean), math.exp(mean - Z80 * low), math.exp(mean + Z80 * high), unit, **more)


def from_logit(mean: float, sd: float, unit: str, scale: float = 100.0, **more: Any) -> Estimate:
    """Out of log(share ÷ (1 − share)): a share that can leave neither end."""

    def share(x: float) -> float:
        return scale / (1 + math.exp(-x))

    return Estimate(share(mean), share(mean - Z80 * sd), share(mean + Z80 * sd), unit, **more)


def capped(estimate: Estimate, most: float) -> Estimate:
    """With nothing above `most`, that no measurement can pass: a full link, all processors."""
    if estimate.p90 <= most:
        return estimate
    return replace(
        estimate, value=min(estimate.value, most), p10=min(estimate.p10, most), p90=min(estimate.p90, most)
    )


def bottleneck(stations: dict[str, float]) -> str:
    """The busiest station; "balanced: A, B" where the second is within 10 % of it; "" without any."""
    order = sorted(stations, key=lambda name: -stations[name])
    if not order:
        return ""
    if len(order) > 1 and stations[order[1]] >= BALANCED * stations[order[0]]:
        return f"balanced: {order[0]}, {order[1]}"
    return order[0]
