"""A check of results as text for a terminal. Pure: the check's document in, lines out."""

from __future__ import annotations

from typing import Any

from forebay.numbers import DASH, count, rate

MARKS = {True: "NO  ", False: "note"}
MEANS = (
    "as-published: all bytes ÷ the duration asked for",
    "window: those moved within it ÷ the duration",
    "drained: all bytes ÷ the time of the last",
)


def lines(document: dict[str, Any]) -> list[str]:
    """Each rank's rates, with what they follow from and what doesn't hold, the means, and what was left out."""
    reported = [f"{document['label']}: {count(document['files'], 'rank file')} in {document['tree']}"]
    for name, option in document["options"].items():
        reported.append(f"option {name}, {storage(option['storage'])}")
        for trial in option["trials"]:
            for rank in trial["ranks"]:
                reported += rank_lines(trial, rank)
        if len(option["trials"]) > 1:
            reported += rates_lines("  mean of trials", option["aggregated"])
    reported += [finding(f, f"{f['place']}: ") for f in document["findings"]]
    named = {f["place"] for f in document["findings"]}
    reported += [f"skipped {s['file']}: {s['why']}" for s in document["skipped"] if s["file"] not in named]
    return [printable(line) for line in (*reported, "; ".join(MEANS) + ".", verdict(document))]


def printable(line: str) -> str:
    """A line without what a terminal would act on: names of files are other people's."""
    return "".join(c if c.isprintable() else "?" for c in line)


def storage(known: dict[str, Any]) -> str:
    against = " on ".join(filter(None, (known["drive"], known["link"])))
    return f"by {against}" if against else "of which no drive is known: --drive NAME or --link GEN,LANES"


def verdict(document: dict[str, Any]) -> str:
    faults = sum(1 for f in every_finding(document) if f["fault"])
    if not faults:
        return "Nothing found that doesn't hold."
    return f"{count(faults, 'thing')} that {'does' if faults == 1 else 'do'}n't hold."


def every_finding(document: dict[str, Any]) -> list[dict[str, Any]]:
    ranks = (r for option in document["options"].values() for trial in option["trials"] for r in trial["ranks"])
    return [*(f for r in ranks for f in r["findings"]), *document["findings"]]


def rank_lines(trial: dict[str, Any], rank: dict[str, Any]) -> list[str]:
    named = [f"{key} {part[key]}" for part, key in ((trial, "trial"), (rank, "rank")) if part[key] is not None]
    reported = rates_lines("  " + ", ".join([*named, rank["file"]]), rank)
    reported += [f"    {line}" for line in rank["why"]]
    return reported + [f"    {finding(f)}" for f in rank["findings"]]


def finding(found: dict[str, Any], where: str = "") -> str:
    return f"{MARKS[found['fault']]} {found['id']:<8} {where}{found['text']}"


def rates_lines(head: str, part: dict[str, Any]) -> list[str]:
    return [head, *(f"    {way:<6}{rates(part[f'{way}_gib_s'])}" for way in ("read", "write"))]


def rates(found: dict[str, Any]) -> str:
    """`as-published 14.42 GiB/s (states 14.42) · window ≤ 14.42 · drained 12.40 to 13.47`."""
    if found["as_published"] is None:
        return f"{DASH} (not in the file)"
    stated = f" (states {rate(found['stated'])})" if found["stated"] is not None else ""
    brackets = " · ".join(f"{name} {bracket(*found[name])}" for name in ("window", "drained"))
    return f"as-published {rate(found['as_published'])} GiB/s{stated} · {brackets}"


def bracket(low: float | None, high: float | None) -> str:
    if low is None:
        return f"≤ {rate(high)}" if high is not None else DASH
    return f"{rate(low)} to {rate(high)}" if high is not None else f"≥ {rate(low)}"
