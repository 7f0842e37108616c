"""A sweep of trainings over drives, as functions of its points and rates: minutes, speed-up, and how many drives are enough."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from forebay.numbers import whole

PRESET = "drive-scaling"
LABEL = "MLPerf-style, unverified"
# More drives than these shorten the minutes by less.
SHARES = {"5 %": 0.05, "1 %": 0.01}
# A machine whose own peak varies by more, from its least to its greatest, can't tell such shares apart.
STEADY = 1.05

Row = dict[str, Any]


def theirs(cells: Sequence[Mapping[str, str]]) -> dict[tuple[str, str, int], float]:
    """Published minutes by system, drive and number of drives, of the table's rows; a blank cell isn't there."""
    return {
        (cell["system"], cell["drive"], int(cell["n_drives"])): float(cell["training_time_min"])
        for cell in cells
        if cell["training_time_min"]
    }


def minutes(point: Mapping[str, Any], samples_per_s: float) -> float:
    """To train on the point's system, of which each GPU goes so fast: the samples until it converges, and the evaluations."""
    seconds: float = point["samples"] / (samples_per_s * point["gpus"]) + point["evaluations_s"]
    return seconds / 60


def rows(
    measured: Sequence[tuple[Mapping[str, Any], float | None, float | None]], cells: Sequence[Mapping[str, str]]
) -> list[Row]:
    """One row for each point: of (point, samples/s, own peak) of each of its rounds, and the table of published minutes.

    Minutes are those of as many GPUs as the system has, of which each goes so fast: at the scaled supply, that of the
    system's own. They are known of models whose samples until they converge are. The speed-up is of the minutes, else of
    the rate, over those of the fewest drives of that kind.
    """
    rounds: dict[tuple[str, str, str, int], list[tuple[Mapping[str, Any], float, float | None]]] = {}
    for point, rate, peak in measured:
        if rate:
            key = (point["model"], point["system"], point["drive"], point["drives"])
            rounds.setdefault(key, []).append((point, rate, peak))
    made: list[Row] = []
    for (model, system, drive, count), found in rounds.items():
        point, rate = found[0][0], statistics.median(r for _, r, _ in found)
        shares = [r / peak for _, r, peak in found if peak]
        equal = statistics.median(r / (p.get("factor") or 1.0) for p, r, _ in found)
        row: Row = {
            "model": model, "system": system, "drive": drive, "drives": count, "rounds": len(found), "samples_per_s": rate,
            "of_peak": statistics.median(shares) if shares else None, "peaks": [p for _, _, p in found if p],
            "supply_gib_s": point["supply_gib_s"], "capped": point.get("capped") is True, "factor": point.get("factor"),
            "minutes": minutes(point, equal) if point.get("samples") else None,
            **{f"predicted_{k}": point.get(f"predicted_{k}") for k in ("minutes", "p10", "p90")},
        }  # fmt: skip
        # Of whatever unit, within a row's likes.
        by_rate = row["minutes"] is None
        row["time"] = 1 / rate if by_rate else row["minutes"]
        row["predicted_time"] = 1 / point["predicted_samples_per_s"] if by_rate else row["predicted_minutes"]
        made.append(row)
    published = theirs(cells)
    for row in made:
        alike = [r for r in made if all(r[k] == row[k] for k in ("model", "system", "drive"))]
        fewest = min(alike, key=lambda r: r["drives"])
        row["speed_up"] = fewest["time"] / row["time"]
        row["predicted_speed_up"] = fewest["predicted_time"] / row["predicted_time"]
        known = published if row["minutes"] else {}
        row["published_minutes"] = known.get((row["system"], row["drive"], row["drives"]))
        first = known.get((row["system"], row["drive"], fewest["drives"]))
        reported = row["published_minutes"]
        row["published_speed_up"] = first / reported if first and reported else None
    return made


def enough(curve: Sequence[tuple[int, float]], share: float) -> int | None:
    """The fewest drives from which all larger numbers shorten the minutes by less than that share; None where none does.

    Of (drives, minutes). The largest number is no answer: nothing was measured beyond it. Longer is noise, and no gain.
    """
    ordered = sorted(curve)
    for at, (count, minutes) in enumerate(ordered[:-1]):
        if all(1 - more / minutes < share for _, more in ordered[at + 1 :]):
            return count
    return None


def enough_of(made: Sequence[Row]) -> list[Row]:
    """That for each model, system and kind of drive, measured and planned."""
    found = []
    for model, system, drive in dict.fromkeys((r["model"], r["system"], r["drive"]) for r in made):
        alike = [r for r in made if (r["model"], r["system"], r["drive"]) == (model, system, drive)]
        row: Row = {"model": model, "system": system, "drive": drive, "most": max(r["drives"] for r in alike)}
        for kind in ("minutes", "predicted_minutes"):
            curve = [(r["drives"], r[kind.replace("minutes", "time")]) for r in alike]
            row[kind] = {name: enough(curve, share) for name, share in SHARES.items()}
        found.append(row)
    return found


def sentence(row: Row) -> str:
    """`D7-PS1010 on D74H-7U, dlrm: more drives gain less than 5 %: from 2 on (plan: 2); 1 %: …`."""
    said = []
    for name, count in row["minutes"].items():
        planned = row["predicted_minutes"][name]
        beyond = f"not below {row['most']}, the most that ran"
        plan = f"plan: {planned}" if planned else f"plan: {beyond}"
        said.append(f"{name}: from {count} on ({plan})" if count else f"{name}: {beyond} ({plan})")
    return f"{row['drive']} on {row['system']}, {row['model']}: more drives gain less than {'; '.join(said)}"


def _least(point: Mapping[str, Any]) -> tuple[float, float]:
    """Orders points by their supply, and those that are held to one by the drives' share."""
    share = point.get("share_gib_s")
    return point["supply_gib_s"], share if isinstance(share, float) else math.inf


def advice_of(measured: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> list[Row]:
    """What each model's run says of storage, at the least supply that it had: of (point, its record's part `train`)."""
    found: dict[str, Row] = {}
    for point, part in sorted(measured, key=lambda each: _least(each[0])):
        given = part.get("advice")
        reported = [each for each in given if isinstance(each, dict)] if isinstance(given, list) else []
        said = [str(each.get("text")) for each in reported if each.get("area") == "storage"]
        if said:
            found.setdefault(point["model"], {**{key: point[key] for key in ("model", "drive", "drives")}, "text": said[0]})
    return [found[model] for model in dict.fromkeys(point["model"] for point, _ in measured) if model in found]


def unsteady(made: Sequence[Row]) -> str | None:
    """A sentence where the model's own peak wasn't the same all the while: what compute bounds is then the machine's noise."""
    peaks: list[float] = []
    for model in dict.fromkeys(row["model"] for row in made):
        own = [peak for row in made if row["model"] == model for peak in row["peaks"]]
        if own and (not peaks or max(own) / min(own) > max(peaks) / min(peaks)):
            peaks = own
    if not peaks or max(peaks) <= STEADY * min(peaks):
        return None
    between = f"from {whole(min(peaks))} to {whole(max(peaks))} samples/s"
    return f"the model's own peak varied {between} meanwhile, and what compute bounds with it: a quieter machine, or --rounds 5"
