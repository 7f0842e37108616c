"""Cold starts beside other loaders of safetensors, for bench/infer.py: the same file, in turn, cached and not."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from child import Child
from forebay.model_runs import prepare_cache
from side_by_side import GIB, Unavailable, middle, say

OURS, LINK, DISK = "forebay infer, coldstart", "the link (pinned copies)", "the disk (O_DIRECT, to the host)"
# Names of contenders, and what bench/child_safetensors.py calls them.
PEERS = {
    "InstantTensor": "instanttensor", "Run:ai's streamer": "runai", "fastsafetensors": "fastsafetensors",
    "safetensors": "safetensors",
}  # fmt: skip
# What their users may set, tried once each; the fastest takes part.
SETTINGS: dict[str, list[dict[str, int]]] = {
    "InstantTensor": [{"buffered": 0}, {"buffered": 1}],
    "fastsafetensors": [{"threads": 16, "gds": 0}, {"threads": 8, "gds": 0}, {"threads": 16, "gds": 1}],
    DISK: [{"threads": 16, "mib": 4}, {"threads": 64, "mib": 1}, {"threads": 64, "mib": 8}],
}
# Bounds: of the best peer's rate, of the link's where the file is cached, and of the disk's where it isn't.
OF_BEST, OF_LINK, OF_DISK = 1.0, 0.9, 0.97
# Of a load, and of copies over the link.
TIMEOUT_S, COPIES_S = 600.0, 0.5

Row = dict[str, Any]
Said = Callable[[str, list[float], bool], None]


class Asked(Protocol):
    def started(self) -> object: ...

    def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]: ...


def children(file: Path) -> dict[str, Child]:
    """Each in a process of its own, which imports its library when it is asked first."""
    made = {name: Child("child_safetensors.py", kind, str(file)) for name, kind in PEERS.items()}
    return {**made, LINK: Child("child_copy.py", "0"), DISK: Child("child_safetensors.py", "disk", str(file))}


def rates(ours: Callable[[str], float], others: dict[str, Asked], file: Path, cache: str, rounds: int) -> dict[str, Any]:
    """GiB/s of each contender in each round, in turn, forwards and backwards; of one that can't run the reason."""
    found: dict[str, list[float]] = {}
    left_out: dict[str, str] = {}
    best: dict[str, dict[str, int]] = {}
    # Uncounted, as those of the others.
    ours(cache)
    for number in range(rounds):
        names = [OURS, *(name for name in others if name != (DISK if cache == "warm" else LINK))]
        for name in names if number % 2 == 0 else reversed(names):
            if name in left_out:
                continue
            try:
                if name != OURS and name not in best:
                    best[name] = _fastest(others[name], name, file, cache)
                rate = ours(cache) if name == OURS else _asked(others[name], name, file, cache, best[name])
            except Unavailable as error:
                left_out[name] = str(error)
                continue
            say(f"{file.parent.name}, {cache}, {name}: {rate:.2f} GiB/s")
            found.setdefault(name, []).append(rate)
    return {"cache": cache, "rates": found, "left_out": left_out, "settings": best}


def _fastest(child: Asked, name: str, file: Path, cache: str) -> dict[str, int]:
    """The settings that it is fastest with. Raises Unavailable where it runs with none."""
    settings = SETTINGS.get(name, [{}])
    if len(settings) == 1:
        return settings[0]
    tried: list[tuple[float, dict[str, int]]] = []
    reasons: list[Unavailable] = []
    for each in settings:
        try:
            tried.append((_asked(child, name, file, cache, each), each))
        except Unavailable as error:
            reasons.append(error)
    if not tried:
        raise reasons[0]
    return max(tried, key=lambda one: one[0])[1]


def _asked(child: Asked, name: str, file: Path, cache: str, settings: dict[str, int]) -> float:
    if name not in (LINK, DISK):
        # What it does first, and once, is in no figure: a child has loaded the file when it is ready, and has it cached.
        child.started()
        prepare_cache([file], cache)
    reported = child.ask({**settings, "seconds": COPIES_S if name == LINK else 0.0}, TIMEOUT_S)
    return float(reported["bytes"] / reported["seconds"] / GIB)


def judge(model: str, measured: Sequence[dict[str, Any]], bound: Said, tell: Callable[[str], None]) -> list[str]:
    """Bounds beside the best of the others and the link; lines of a table."""
    lines = ["| weights of | cache | contender | GiB/s |", "|---|---|---|---|"]
    for one in measured:
        found, cache = one["rates"], one["cache"]
        for name, values in found.items():
            reported = ", ".join(f"{key} {value}" for key, value in one["settings"].get(name, {}).items())
            lines.append(f"| {model} | {cache} | {name}{f' ({reported})' if reported else ''} | {middle(values, 2)} |")
        for name, why in one["left_out"].items():
            tell(f"- {model}, coldstart, {cache}: {name} left out: {why}")
        peers = {name: statistics.median(values) for name, values in found.items() if name in PEERS}
        if OURS not in found:
            continue
        if peers:
            best = max(peers, key=lambda name: peers[name])
            ratios = [a / b for a, b in zip(found[OURS], found[best], strict=False)]
            text = f"{model}, coldstart, {cache}: rate of reading and allocating ÷ {best}'s, the best, ≥ {OF_BEST:g}"
            bound(text, ratios, statistics.median(ratios) >= OF_BEST)
        for name, words, share in ((LINK, "the link", OF_LINK), (DISK, "the disk", OF_DISK)):
            if name in found:
                ratios = [a / b for a, b in zip(found[OURS], found[name], strict=False)]
                bound(f"{model}, coldstart, {cache}: ÷ {words} ≥ {share:g}", ratios, statistics.median(ratios) >= share)
    return [*lines, ""]
