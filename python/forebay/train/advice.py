"""Advice, from a record's part `train` alone: storage, GPUDirect Storage, balance. Pure: figures in, sentences out.

A model takes the lesser of its own peak and what the supply brings (measured on two cores and on a GPU: docs/train.md). So
the smallest supply within 5 % of the plateau is 0.95 of the need, whose interval is that of the peak.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from forebay.numbers import percent, ratio, significant, whole
from forebay.paths import GDS, GDS_COMPAT, GDS_MIXED

# Supply ÷ need: below the first a run is bound by its supply, above the second by its compute.
BOUND_BELOW, FREE_ABOVE = 0.95, 1.05
# Between them, a gain beyond which a peak is known too badly to call the two balanced.
FEW = 0.1
# Share of the time that a run may wait for batches without being called bound by them.
WAIT_MAX_PCT = 3.0
# A supply so far above the need is more than is used.
OVER = 1.25
# GiB/s of one GPU, and of how many → (drive, count, what one GPU then gets).
Drives = Callable[[float, int], Sequence[tuple[str, int, float]]]

# A supply that wasn't held back, as records call it.
LOADER = "the loader"
COMPUTE, SUPPLY, BETWEEN, UNKNOWN = "compute", "supply", "between", "unknown"
# Why the effect of GPUDirect Storage isn't told.
COMPATIBILITY = "can't be told here: cuFile runs in compatibility mode"


@dataclass(frozen=True)
class Need:
    """Bytes that the model takes where nothing holds it back, GiB/s. `interval`: None where few pieces of time were measured.
    `above`: the share by which that is more than its own peak, where the run itself was faster."""

    gib_s: float
    interval: tuple[float, float] | None
    above: float = 0.0


def need(train: dict[str, Any]) -> Need | None:
    """That of the model's own peak, which is measured for a moment before the run; where the run was faster, that of the run."""
    peak, rate = train.get("demand_gib_s"), train.get("rate_gib_s")
    if not peak:
        return None
    ends = train.get("demand_gib_s_ci95")
    if not rate or rate <= max(peak, ends[1] if ends else peak):
        return Need(peak, (ends[0], ends[1]) if ends else None)
    ends = train.get("samples_per_s_ci95")
    each = rate / train["samples_per_s"]
    return Need(rate, (each * ends[0], each * ends[1]) if ends else None, rate / peak - 1)


def verdict(train: dict[str, Any]) -> str:
    """The limit of the run: its compute, its supply, or both about alike; unknown where the peak or the supply isn't known."""
    found, supply = need(train), train.get("supply_gib_s")
    if found is None or not supply:
        return UNKNOWN
    low, high = found.interval or (found.gib_s, found.gib_s)
    if supply < BOUND_BELOW * min(low, found.gib_s):
        return SUPPLY
    if supply > FREE_ABOVE * max(high, found.gib_s):
        return COMPUTE
    return BETWEEN


def keeps_up(train: dict[str, Any]) -> bool:
    """Whether batches are there when the model wants them: neither a path nor a supply makes it faster."""
    wait = train.get("input_wait_pct")
    return verdict(train) != SUPPLY and wait is not None and wait <= WAIT_MAX_PCT


def needs(found: Need, ranks: int = 1) -> dict[str, Need]:
    """The smallest supply of a GPU within 5 % and within 1 % of the plateau."""
    # Figures of a run are those of all its ranks.
    shares = {name: share / ranks for name, share in (("5 %", 0.95), ("1 %", 0.99))}
    return {
        name: Need(share * found.gib_s, found.interval and (share * found.interval[0], share * found.interval[1]))
        for name, share in shares.items()
    }


def advice(train: dict[str, Any], drives: Drives | None = None) -> list[dict[str, str]]:
    """Three sentences with their areas."""
    return [
        {"area": "storage", "text": storage(train, drives)},
        {"area": "gds", "text": gds(train)},
        {"area": "balance", "text": balance(train)},
    ]


def storage(train: dict[str, Any], drives: Drives | None) -> str:
    bound, found = verdict(train), need(train)
    if bound == UNKNOWN or found is None:
        return "Nothing can be said of storage: the model's own peak, or the supply, wasn't measured."
    demand, supply = found.gib_s, train["supply_gib_s"]
    least = needs(found, train.get("ranks") or 1)
    wanted = " and ".join(f"{_gib(each.gib_s)} GiB/s a GPU{_within(each)} within {name} of it" for name, each in least.items())
    reported = {
        SUPPLY: f"Storage limits this run: {_gib(supply)} GiB/s is {percent(supply / demand)} of what the model takes, and a "
        f"faster supply gains up to {ratio(demand / supply)} times; the plateau needs",
        COMPUTE: f"Faster storage gains nothing: {_gib(supply)} GiB/s is {ratio(supply / demand)} times what the model takes; "
        "the plateau needs no more than",
        BETWEEN: f"Supply ({_gib(supply)} GiB/s) and need ({_gib(demand)}) are within {percent(FREE_ABOVE - 1)} or their "
        f"interval: more storage gains {_gain(found, supply)}; the plateau needs",
    }[bound]
    if bound == COMPUTE and train.get("cached") and (train.get("supply") or {}).get("kind") == LOADER:
        reported = (
            f"These bytes came out of the page cache, {ratio(supply / demand)} times as fast as the model takes them, which says "
            "nothing of the storage: to reach the plateau that has to bring"
        )
    gpus = max((train.get("supply") or {}).get("gpus") or 1, train.get("ranks") or 1)
    return f"{reported} {wanted}{_drives(list(drives(least['5 %'].gib_s, gpus)) if drives else [], gpus)}."


def _drives(choices: Sequence[tuple[str, int, float]], gpus: int) -> str:
    """The fewest fast drives and the many cheap ones that give the first of those supplies."""
    if not choices:
        return ""
    of = "one such GPU" if gpus == 1 else f"{gpus} such GPUs"
    listed = [f"{count} × {name}" for name, count, _ in choices]
    if choices[0][1] == choices[-1][1]:
        return f"; by the plan, {choices[0][1]} × any drive that it knows is enough for {of}"
    return f"; by the plan, enough for {of} are {', '.join(listed[:-1])} or {listed[-1]}"


def gds(train: dict[str, Any]) -> str:
    """The effect that GPUDirect Storage would have on this run."""
    bound, ran, device = verdict(train), train.get("path"), str(train.get("device") or "")
    wait, cost = train.get("input_wait_pct"), train.get("feed_cpu_s_per_gib")
    cpu = _sum(cost)
    paid = (
        f"feeding takes {significant(cpu)} CPU-s/GiB"
        if cpu is not None
        else "what feeding costs wasn't measured"
    )
    if device and not device.startswith("cuda"):
        return f"GPUDirect Storage can't be told here: the model runs on the CPU ({paid})."
    if ran == GDS_COMPAT:
        return f"GPUDirect Storage {COMPATIBILITY} ({paid})."
    if bound == COMPUTE and wait is not None and keeps_up(train):
        cores = None if cpu is None else cpu * (train.get("rate_gib_s") or 0.0)
        saved = "" if cores is None else f"; it could save {significant(cores)} cores at most"
        waits = f"compute-bound, {significant(wait)} % of the time waits for batches"
        return f"GPUDirect Storage has no effect on time: {waits}{saved} ({paid})."
    if (train.get("supply") or {}).get("kind") == "simulated supply":
        return f"GPUDirect Storage can't be told here: the supply is simulated, so no path could be faster ({paid})."
    if ran in (GDS, GDS_MIXED):
        part = "" if ran == GDS else " in part"
        return f"These batches came by GPUDirect Storage{part}: compare a run with --path bounce on this machine ({paid})."
    way = ran or "an unknown path"
    return f"GPUDirect Storage wasn't run: the bytes came by {way}; compare the two on this machine ({paid})."


def balance(train: dict[str, Any]) -> str:
    """The bottleneck, what idles beside it, and the next one."""
    bound, found = verdict(train), need(train)
    if bound == UNKNOWN or found is None:
        return "Balance can't be told: the model's own peak, or the supply, wasn't measured."
    demand, supply = found.gib_s, train["supply_gib_s"]
    best = f"{whole(train['peak_samples_per_s'] * (1 + found.above))} samples/s"
    wait, idle = train.get("input_wait_pct"), train.get("gpu_idle_pct")
    what = "the GPU" if str(train.get("device") or "").startswith("cuda") else "the model"
    waits = "" if wait is None else f"{what} waits for batches {significant(wait)} % of the time"
    if idle is not None:
        waits += f" and idles {significant(idle)} %"
    if wait is not None and bound == COMPUTE and wait > WAIT_MAX_PCT:
        waits += ", though the supply is there: that is what handing a batch over takes"
    if found.above > WAIT_MAX_PCT / 100:
        higher = f"that is {percent(found.above)} above its own peak, which a longer --peak-seconds measures better"
        waits = f"{higher}; {waits}" if waits else higher
    waits = f" ({waits})" if waits else ""
    if bound == SUPPLY:
        return (
            f"The supply is the bottleneck{waits}; from {ratio(demand / supply)} times this supply on it is compute, "
            f"at {best}."
        )
    if bound == COMPUTE:
        over = ", which is more than it can use" if supply > OVER * demand else ""
        return (
            f"Compute is the bottleneck, at {best}{waits}; the supply would carry "
            f"{ratio(supply / demand)} times this compute{over}."
        )
    if _open(found, supply) > FEW:
        return (
            f"Which of supply and compute is the bottleneck can't be told{waits}: the interval of the model's own peak holds "
            "both; a longer --peak-seconds, or a quieter machine."
        )
    return f"Supply and compute are balanced{waits}: to gain more than a few per cent, both have to grow."


def _open(found: Need, supply: float) -> float:
    """The gain that the interval of the need leaves open, as a share."""
    return max(found.gib_s, found.interval[1] if found.interval else 0.0) / supply - 1


def _gain(found: Need, supply: float) -> str:
    most = _open(found, supply)
    if most <= FEW:
        return "a few per cent at most"
    return f"nothing, or up to {percent(most)}: the model's own peak is known no better"


def _gib(value: float) -> str:
    return significant(value)


def _within(found: Need) -> str:
    return f" ({_gib(found.interval[0])} to {_gib(found.interval[1])})" if found.interval else ""


def _sum(cost: Any) -> float | None:
    if not isinstance(cost, dict) or cost.get("user") is None or cost.get("system") is None:
        return None
    return float(cost["user"]) + float(cost["system"])
