"""A sweep of inference over drives, as functions of its points: ratios with intervals, the control, and advice. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from forebay.numbers import bytes_, ratio, seconds, whole
from forebay.stats import Interval, mean_interval
from forebay.units import GIB

PRESET = "inference-drives"
LABEL = "MLPerf-style, unverified"
RAM, COLD = "ram", "cold"
# Queries a second with samples in memory may differ by so much: on a GPU, and on a machine of few cores.
FLAT_GPU, FLAT_HOST = 0.01, 0.03
# A control that grows by less from its least supply to its greatest shows nothing.
GROWS = 1.1
# Highest rates whose intervals overlap are told to be the same if these are no wider: times the low end.
TELLS = 1.5
# Of two rounds that differ, an interval may have no ends to speak of.
LOG_MOST = 60.0

Row = dict[str, Any]
# Of one record's part `infer`: (point, round, part).
Measured = tuple[Mapping[str, Any], int, Mapping[str, Any]]


def rows(measured: Sequence[Measured]) -> list[Row]:
    """One row for each point: medians over its rounds, and the ratio to the fewest drives of that kind, round by round."""
    found: dict[tuple[str, str, str, bool, str, int], dict[int, tuple[Mapping[str, Any], Mapping[str, Any]]]] = {}
    for point, number, part in measured:
        if part.get("queries_per_s"):
            key = (
                point["model"], point["mode"], point["scenario"], bool(point.get("highest")), point["drive"], point["drives"],
            )  # fmt: skip
            found.setdefault(key, {})[number] = (point, part)
    made: list[Row] = []
    for (model, mode, scenario, highest, drive, count), each in found.items():
        point, part = next(iter(each.values()))
        fewest = min(key[5] for key in found if key[:5] == (model, mode, scenario, highest, drive))
        base = found[model, mode, scenario, highest, drive, fewest]
        # Highest rates are a curve, with intervals of its own.
        ratios = [
            each[n][1]["queries_per_s"] / base[n][1]["queries_per_s"]
            for n in sorted(each) if n in base and count != fewest and not highest
        ]  # fmt: skip
        interval = of_logarithms(ratios) if ratios else None
        rates = [rate for _, p in each.values() if (rate := _rate(p, highest))]
        passing = [p for _, p in each.values() if p.get("valid")] if highest else []
        loads = [p["load_s"] for _, p in each.values() if p.get("load_s")]
        delivered = [p["timed_storage_bytes"] for _, p in each.values() if p.get("timed_storage_bytes") is not None]
        of = passing if highest else [p for _, p in each.values()]
        late = [value for p in of if (value := (p.get("latency_ms") or {}).get("p99")) is not None]
        made.append({
            "model": model, "mode": mode, "scenario": scenario, "highest": highest, "drive": drive, "drives": count,
            "rounds": len(each), "passed": len(rates), **_span(passing),
            "supply_gib_s": point["supply_gib_s"], "gpu": part.get("device") not in (None, "cpu"),
            "queries_per_s": _middle(rates, highest),
            "p99_ms": statistics.median(late) if scenario == "Server" and late else None,
            "ratio": interval.estimate if interval else None, "low": interval.low if interval else None,
            "high": interval.high if interval else None, "load_s": statistics.median(loads) if loads else None,
            "load_bytes": part.get("load_bytes"), "weights_bytes": point.get("weights_bytes"),
            "timed_storage_bytes": max(delivered) if delivered else None, "seconds": part.get("seconds"),
        })  # fmt: skip
    order = list(dict.fromkeys(row["model"] for row in made))
    return sorted(
        made,
        key=lambda r: (order.index(r["model"]), r["mode"] != RAM, r["scenario"], r["highest"], r["drive"], r["drives"]),
    )


def of_logarithms(values: Sequence[float]) -> Interval:
    """The mean and its interval by the values' logarithms: of rates and ratios of two rounds that differ none reaches below 0."""
    found = mean_interval([math.log(value) for value in values])
    low, high = (None if end is None else math.exp(min(max(end, -LOG_MOST), LOG_MOST)) for end in (found.low, found.high))
    return Interval(math.exp(found.estimate), low, high, found.n)


def _rate(part: Mapping[str, Any], highest: bool) -> float | None:
    """Queries a second that were answered; of a search the rate that LoadGen offered when it was confirmed, None if none was."""
    found: float | None = (part.get("expected_per_s") if part.get("valid") else None) if highest else part["queries_per_s"]
    return found


def _middle(rates: Sequence[float], highest: bool) -> float | None:
    """A median; of highest rates the mean of their logarithms, which the interval is of."""
    if not rates:
        return None
    return statistics.geometric_mean(rates) if highest else statistics.median(rates)


def _span(passing: Sequence[Mapping[str, Any]]) -> Row:
    """Interval of a highest passing rate: between what passed and the next trial above it that didn't, over rounds of 95 %."""
    lows = [p["expected_per_s"] for p in passing]
    failed = [
        [t["queries_per_s"] for t in p.get("search") or [] if not t["passed"] and t["queries_per_s"] > p["expected_per_s"]]
        for p in passing
    ]
    ends: list[float | None] = [None, None]
    for at, values in enumerate((lows, [min(rates) for rates in failed if rates])):
        # An end that a round lacks isn't known.
        if values and len(values) == len(passing):
            interval = of_logarithms(values)
            end = (interval.low, interval.high)[at]
            ends[at] = values[0] if end is None else end
    return {"low_per_s": ends[0], "high_per_s": ends[1]}


def flat(made: Sequence[Row]) -> list[Row]:
    """Of each model, scenario and kind of drive with samples in memory: all ratios, with their intervals, beside the bound."""
    found = []
    of = [r for r in made if r["mode"] == RAM and not r["highest"]]
    for key in dict.fromkeys((r["model"], r["scenario"], r["drive"]) for r in of):
        own = [r for r in of if (r["model"], r["scenario"], r["drive"]) == key]
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
    of = [r for r in made if r["mode"] == COLD and r["queries_per_s"]]
    for model, scenario in dict.fromkeys((r["model"], r["scenario"]) for r in of):
        own = [r for r in of if (r["model"], r["scenario"]) == (model, scenario)]
        least, most = (pick(own, key=lambda r: r["supply_gib_s"]) for pick in (min, max))
        grows = most["queries_per_s"] / least["queries_per_s"]
        found.append({
            "model": model, "scenario": scenario, "least": _name(least), "most": _name(most), "ratio": grows,
            "shows": grows >= GROWS,
        })  # fmt: skip
    return found


def curves(made: Sequence[Row]) -> list[Row]:
    """Of each model, in memory and not: Server's highest passing rate over the supply, of all kinds of drives together.

    Monotonic where no interval lies wholly below that of a lesser supply; rising where the last lies above the first; the same
    where all have a rate in common. None where an interval has an open end; the same also where one is too wide to tell."""
    found = []
    of = sorted((r for r in made if r["highest"]), key=lambda r: r["supply_gib_s"])
    for model, mode in dict.fromkeys((r["model"], r["mode"]) for r in made if r["highest"]):
        own = [r for r in of if (r["model"], r["mode"]) == (model, mode)]
        some = [r for r in own if r["queries_per_s"]]
        lows, highs = [r["low_per_s"] for r in some], [r["high_per_s"] for r in some]
        known = len(some) > 1 and None not in lows and None not in highs
        narrow = known and all(high <= TELLS * low for low, high in zip(lows, highs, strict=True))
        overlap = known and max(lows) <= min(highs)
        found.append({
            "model": model, "mode": mode, "points": [_point(r) for r in own], "least": _name(some[0]) if some else None,
            "most": _name(some[-1]) if some else None,
            "monotonic": all(high >= max(lows[:at], default=0.0) for at, high in enumerate(highs)) if known else None,
            "rises": lows[-1] > highs[0] if known else None,
            "same": None if not known or (overlap and not narrow) else overlap,
        })  # fmt: skip
    return found


def _point(row: Row) -> Row:
    taken = ("supply_gib_s", "drive", "drives", "queries_per_s", "low_per_s", "high_per_s", "p99_ms", "rounds", "passed")
    return {key: row[key] for key in taken}


def curve_sentence(row: Row) -> str:
    """`toy, read inside queries: Server's highest rate rises from 310 (300 to 330) queries/s with … to …, monotonic …`."""
    points = [p for p in row["points"] if p["queries_per_s"]]
    where = {RAM: "samples in memory", COLD: "samples read inside their queries"}[row["mode"]]
    text, none = f"{row['model']}, {where}: ", len(row["points"]) - len(points)
    if not points:
        return text + "no rate of Server's passes at any supply"
    first, last = (f"{whole(p['queries_per_s'])}{between(p)}" for p in (points[0], points[-1]))
    text += f"Server's highest rate is {first} queries/s with {row['least']}"
    if len(points) > 1:
        text += f" and {last} with {row['most']}"
        text += {True: ", and grows", False: ", the same within its intervals" if row["same"] else "", None: ""}[row["rises"]]
        if row["same"] is None:
            text += "; an interval has an open end or is too wide to tell: more --rounds, a longer --seconds"
        elif not row["same"]:
            text += "; monotonic within its intervals" if row["monotonic"] else "; not monotonic within its intervals"
    return text + (f"; none passes at {none} of the supplies" if none else "")


def between(row: Row) -> str:
    """` (300 to 330)`, or nothing."""
    low, high = row["low_per_s"], row["high_per_s"]
    if low is None:
        return ""
    return f" ({whole(low)} to {whole(high)})" if high is not None else f" (at least {whole(low)})"


def scenario_of(row: Mapping[str, Any]) -> str:
    return f"{row['scenario']}, highest rate" if row.get("highest") else str(row["scenario"])


def _name(row: Row) -> str:
    return f"{row['drives']} × {row['drive']}"


def sentence(row: Row) -> str:
    """`resnet50, Offline, D7-PS1010: 1.0002 to 1.0011 times the queries/s with up to 8 drives, 1 ± 0.01 holds`."""
    if row["holds"] is None:
        words = f"{row['ratio']:.4f} times at most; one round gives no interval"
    else:
        verdict = "holds" if row["holds"] else "does not hold"
        words = f"{row['low']:.4f} to {row['high']:.4f} times (95 %), 1 ± {row['bound']:g} {verdict}"
    storage = f"; {bytes_(row['timed_storage_bytes'])} from storage inside the timed part"
    return f"{row['model']}, {row['scenario']}, up to {row['most']} × {row['drive']}: {words}{storage}"


def control_sentence(row: Row) -> str:
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
        words = "drives: no effect on queries" if still else "drives: no answer, intervals are wider than the bound"
        words = "drives: an effect on queries that samples in memory should have none of" if found_one else words
        words += "" if not still or not shows or any(shows) else ", but nor has the control shown one"
        slow, fast = (pick([r for r in own if r["load_s"]], key=lambda r: r["supply_gib_s"], default=None) for pick in (min, max))
        if slow and fast and slow is not fast:
            saved = slow["load_s"] - fast["load_s"]
            words += f"; start-up: {seconds(max(0.0, saved))} less of loading samples with {_name(fast)} than with {_name(slow)}"
            if slow["weights_bytes"]:
                more = slow["weights_bytes"] / GIB * (1 / slow["supply_gib_s"] - 1 / fast["supply_gib_s"])
                words += f", and {seconds(more)} of its {bytes_(slow['weights_bytes'])} of weights, by arithmetic"
        gains = still and any(shows)
        if still:
            words += "; spend on GPUs for queries, on drives for the start alone"
            words += ", or where samples stay in storage" if gains else ""
        else:
            wider = "more --rounds, a longer --seconds, a quieter machine"
            words += "; spend on nothing before that is found" if found_one else f"; {wider}"
        found.append({"model": model, "text": words})
    return found
