"""Blocks of prompts in the memory of GPUs, of the host and on storage: what of a request is there, where, and what moves.

The longest prefix that some tier has is a hit; the rest is calculated and kept. A block that is used is in the fastest tier
again. What that tier has no room for goes to the next one, the block used longest ago first; on storage it stays, also while a
faster tier has it, until it is the oldest there, so that it is written once.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from forebay.emulate.kvcache.traces import Request

GPU, HOST, STORAGE = range(3)
NAMES = ("gpu", "host", "storage")


class Tiers:
    """The three tiers, by size in bytes; a size of None has no end."""

    def __init__(self, sizes: tuple[int | None, int | None, int | None]) -> None:
        self.sizes = sizes
        self.held: tuple[OrderedDict[Hashable, int], ...] = (OrderedDict(), OrderedDict(), OrderedDict())
        self.used = [0, 0, 0]
        self.evicted = 0
        # Bytes that went to storage.
        self.stored = 0

    def find(self, key: Hashable) -> int | None:
        return next((tier for tier in (GPU, HOST, STORAGE) if key in self.held[tier]), None)

    def use(self, key: Hashable, size: int) -> None:
        """The block is in the fastest tier from now on that takes one of its size."""
        for tier in (GPU, HOST):
            if key in self.held[tier]:
                self._take(tier, key)
        if key in self.held[STORAGE]:
            self.held[STORAGE].move_to_end(key)
        self._put(GPU, key, size)

    def _take(self, tier: int, key: Hashable) -> None:
        self.used[tier] -= self.held[tier].pop(key)

    def _put(self, tier: int, key: Hashable, size: int) -> None:
        limit = self.sizes[tier]
        held = self.held[tier]
        if tier == STORAGE:
            if key in held:
                return
            if limit is not None and size > limit:
                self.evicted += 1
                return
            self.stored += size
        elif limit is not None and size > limit:
            return self._put(tier + 1, key, size)
        held[key] = size
        self.used[tier] += size
        while limit is not None and self.used[tier] > limit:
            oldest, bytes_ = held.popitem(last=False)
            self.used[tier] -= bytes_
            if tier == STORAGE:
                self.evicted += 1
            else:
                self._put(tier + 1, oldest, bytes_)


@dataclass
class Moves:
    """What the requests of a trace move, in order: when, bytes loaded from and stored to storage, tokens that were found (and
    of those on storage) and that are calculated."""

    at_s: array[float] = field(default_factory=lambda: array("d"))
    loads: array[int] = field(default_factory=lambda: array("Q"))
    stores: array[int] = field(default_factory=lambda: array("Q"))
    found: array[int] = field(default_factory=lambda: array("Q"))
    on_storage: array[int] = field(default_factory=lambda: array("Q"))
    calculated: array[int] = field(default_factory=lambda: array("Q"))
    blocks: int = 0
    hits: list[int] = field(default_factory=lambda: [0, 0, 0])
    # Reads of entries that the trace never wrote.
    unknown: int = 0
    evicted: int = 0


def follow(requests: Iterator[Request], tiers: Tiers, token_bytes: int) -> Moves:
    """Where each block of each request is found, and what that moves."""
    moves, alone = Moves(), 0
    for request in requests:
        loads, tokens = 0, [0, 0, 0]
        calculated, is_prefix = 0, request.reads
        before = tiers.stored
        sized: list[tuple[Hashable, int]] = []
        for key, size in request.blocks:
            if key is None:
                key, alone = ("alone", alone), alone + 1
            bytes_ = size if request.in_bytes else size * token_bytes
            share = size if not request.in_bytes else max(1, size // token_bytes)
            tier = tiers.find(key) if is_prefix else None
            is_prefix = tier is not None
            if tier is None:
                calculated += share
                moves.unknown += request.reads and not request.writes
            else:
                moves.hits[tier] += 1
                tokens[tier] += share
                loads += bytes_ if tier == STORAGE else 0
            moves.blocks += request.reads
            sized.append((key, bytes_))
        for key, bytes_ in sized if request.writes or is_prefix else ():
            tiers.use(key, bytes_)
        moves.at_s.append(request.at_s)
        moves.loads.append(loads)
        moves.stores.append(tiers.stored - before)
        moves.found.append(sum(tokens))
        moves.on_storage.append(tokens[STORAGE])
        moves.calculated.append(calculated if request.writes else 0)
    moves.evicted = tiers.evicted
    return moves
