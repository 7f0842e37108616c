"""A sweep of inference over drives, as functions of its points: ratios with intervals, the control, and advice. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from forebay.numbers import bytes_, ratio, seconds
from forebay.stats import mean_interval
from forebay.units import GIB

PRESET = "inference-drives"
LABEL = "MLPerf-style, unverified"
RAM, COLD = "ram", "cold"
# Queries a second with samples in memory may differ by so much: on a GPU, and on a machine of few cores.
FLAT_GPU, FLAT_HOST = 0.01, 0.03
# A control that grows by less from its least supply to its greatest shows nothing.
GROWS = 1.1

Row = dict[str, Any]
# Of one record's part `infer`: (point, round, part).
Measured = tuple[Mapping[str, Any], int, Mapping[str, Any]]


def rows(measured: Sequence[Measured]) -> list[Row]:
    """One row for each point: medians over its rounds, and the ratio to the fewest drives of that kind, round by round."""
    found: dict[tuple[str, str, str, str, int], dict[int, tuple[Mapping[str, Any], Mapping[str, Any]]]] = {}
    for point, number, part in measured:
        if part.get("queries_per_s"):
            key = (point["model"], point["mode"], point["scenario"], point["drive"], point["drives"])
            found.setdefault(key, {})[number] = (point, part)
    made: list[Row] = []
    for (model, mode, scenario, drive, count), each in found.items():
        point, part = next(iter(each.values()))
        fewest = min(key[4] for key in found if key[:4] == (model, mode, scenario, drive))
        base = found[model, mode, scenario, drive, fewest]
        ratios = [
            each[n][1]["queries_per_s"] / base[n][1]["queries_per_s"] for n in sorted(each) if n in base and count != fewest
        ]
        interval = mean_interval(ratios) if ratios else None
        loads = [p["load_s"] for _, p in each.values() if p.get("load_s")]
        delivered = [p["timed_storage_bytes"] for _, p in each.values() if p.get("timed_storage_bytes") is not None]
        late = [value for _, p in each.values() if (value := (p.get("latency_ms") or {}).get("p99")) is not None]
        made.append({
            "model": model, "mode": mode, "scenario": scenario, "drive": drive, "drives": count, "rounds": len(each),
            "supply_gib_s": point["supply_gib_s"], "gpu": part.get("device") not in (None, "cpu"),
            "queries_per_s": statistics.median(p["queries_per_s"] for _, p in each.values()),
            "p99_ms": statistics.median(late) if scenario == "Server" and late else None,
            "ratio": interval.estimate if interval else None, "low": interval.low if interval else None,
            "high": interval.high if interval else None, "load_s": statistics.median(loads) if loads else None,
            "load_bytes": part.get("load_bytes"), "weights_bytes": point.get("weights_bytes"),
            "timed_storage_bytes": max(delivered) if delivered else None, "seconds": part.get("seconds"),
        })  # fmt: skip
    order = list(dict.fromkeys(row["model"] for row in made))
    return sorted(made, key=lambda r: (order.index(r["model"]), r["mode"] != RAM, r["scenario"], r["drive"], r["drives"]))


def flat(made: Sequence[Row]) -> list[Row]:
    """Of each model, scenario and kind of drive with samples in memory: all ratios, with their intervals, beside the bound."""
    found = []
    for key in dict.fromkeys((r["model"], r["scenario"], r["drive"]) for r in made if r["mode"] == RAM):
        own = [r for r in made if r["mode"] == RAM and (r["model"], r["scenario"], r["drive"]) == key]
        ratios = [r for r in own if r["ratio"] is not None]
        if not ratios:
            continue
        bound = FLAT_GPU if own[0]["gpu"] else FLAT_HOST
        lows, highs = [r["low"] for r in ratios], [r["high"] for r in ratios]
        low, high = (None, None) if None in lows or None in highs else (min(lows), max(highs))
        found.append({
            "model": key[0], "scenario": key[1], "drive": key[2], "most": max(r["drives"] for r in own), "bound": bound,
            "low": low, "high": high, "ratio": max((r["ratio"] for r in ratios), key=lambda value: abs(value - 1)),
            "excludes_1": any(r["low"] is not None and not r["low"] <= 1 <= r["high"] for r in ratios),
            "holds": None if low is None or high is None else bool(1 - bound <= low and high <= 1 + bound),
            "timed_storage_bytes": max((r["timed_storage_bytes"] or 0 for r in own), default=0),
        })  # fmt: skip
    return found


def control(made: Sequence[Row]) -> list[Row]:
    """Of each model and scenario with samples read inside their queries: the rate at the greatest supply over the least."""
    found = []
    for model, scenario in dict.fromkeys((r["model"], r["scenario"]) for r in made if r["mode"] == COLD):
        own = [r for r in made if r["mode"] == COLD and (r["model"], r["scenario"]) == (model, scenario)]
        least, most = (pick(own, key=lambda r: r["supply_gib_s"]) for pick in (min, max))
        grows = most["queries_per_s"] / least["queries_per_s"]
        found.append({
            "model": model, "scenario": scenario, "least": _name(least), "most": _name(most), "ratio": grows,
            "shows": grows >= GROWS,
        })  # fmt: skip
    return found


def _name(row: Row) -> str:
    return f"{row['drives']} × {row['drive']}"


def sentence(row: Row) -> str:
    """`resnet50, Offline, D7-PS1010: 1.0002 to 1.0011 times the queries/s with up to 8 drives, 1 ± 0.01 holds`."""
    if row["holds"] is None:
        told = f"{row['ratio']:.4f} times at most; one round gives no interval"
    else:
        verdict = "holds" if row["holds"] else "does not hold"
        told = f"{row['low']:.4f} to {row['high']:.4f} times (95 %), 1 ± {row['bound']:g} {verdict}"
    storage = f"; {bytes_(row['timed_storage_bytes'])} from storage inside the timed part"
    return f"{row['model']}, {row['scenario']}, up to {row['most']} × {row['drive']}: {told}{storage}"


def told_of_control(row: Row) -> str:
    grows = f"{row['model']}, {row['scenario']}, samples read inside their queries: {ratio(row['ratio'])} times the queries/s"
    where = f"with {row['most']} of those with {row['least']}"
    return f"{grows} {where}" + ("" if row["shows"] else ": flat, too, so that this sweep proves nothing; --scale-to-peak")


def advice(made: Sequence[Row]) -> list[Row]:
    """Of each model: do drives matter to its queries, what do they save at the start, and what is the money for?"""
    found = []
    for model in dict.fromkeys(row["model"] for row in made):
        own = [r for r in made if r["model"] == model and r["mode"] == RAM]
        judged = [row for row in flat(made) if row["model"] == model and row["holds"] is not None]
        shows = [row["shows"] for row in control(made) if row["model"] == model]
        if not own or not judged:
            continue
        still = all(row["holds"] and not row["timed_storage_bytes"] for row in judged)
        found_one = any(row["timed_storage_bytes"] or (not row["holds"] and row["excludes_1"]) for row in judged)
        told = "drives: no effect on queries" if still else "drives: no answer, intervals are wider than the bound"
        told = "drives: an effect on queries that samples in memory should have none of" if found_one else told
        told += "" if not still or not shows or any(shows) else ", but nor has the control shown one"
        slow, fast = (pick([r for r in own if r["load_s"]], key=lambda r: r["supply_gib_s"], default=None) for pick in (min, max))
        if slow and fast and slow is not fast:
            saved = slow["load_s"] - fast["load_s"]
            told += f"; start-up: {seconds(max(0.0, saved))} less of loading samples with {_name(fast)} than with {_name(slow)}"
            if slow["weights_bytes"]:
                more = slow["weights_bytes"] / GIB * (1 / slow["supply_gib_s"] - 1 / fast["supply_gib_s"])
                told += f", and {seconds(more)} of its {bytes_(slow['weights_bytes'])} of weights, by arithmetic"
        gains = still and any(shows)
        if still:
            told += "; spend on GPUs for queries, on drives for the start alone"
            told += ", or where samples stay in storage" if gains else ""
        else:
            wider = "more --rounds, a longer --seconds, a quieter machine"
            told += "; spend on nothing before that is found" if found_one else f"; {wider}"
        found.append({"model": model, "text": told})
    return found
