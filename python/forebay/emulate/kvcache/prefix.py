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

from forebay.emulate.kvcache.traces import BLOCK_TOKENS, Request

GPU, HOST, STORAGE = range(3)
NAMES = ("gpu", "host", "storage")


class Tiers:
    """The three tiers, by size in bytes; a size of None has no end."""

    def __init__(self, sizes: tuple[int | None, int | None, int | None]) -> None:
        self.sizes = sizes
        self.held: tuple[OrderedDict[Hashable, int], ...] = (OrderedDict(), OrderedDict(), OrderedDict())
        self.used = [0, 0, 0]
        self.evicted = 0
        # Bytes of the smallest block that there was.
        self.least: int | None = None
        # Bytes that went to storage.
        self.stored = 0
        # What storage does, in order: 4 × a number plus 0 (read), 1 (write) or 2 (remove); each write has a number of its own.
        self.deeds: array[int] = array("Q")
        self.written: array[int] = array("Q")
        self._numbers: dict[Hashable, int] = {}

    def find(self, key: Hashable) -> int | None:
        return next((tier for tier in (GPU, HOST, STORAGE) if key in self.held[tier]), None)

    def use(self, key: Hashable, size: int) -> None:
        """The block is in the fastest tier from now on that takes one of its size."""
        if self.least is None or size < self.least:
            self.least = size
        for tier in (GPU, HOST):
            if key in self.held[tier]:
                self._take(tier, key)
        if key in self.held[STORAGE]:
            self.held[STORAGE].move_to_end(key)
        self._put(GPU, key, size)

    def load(self, key: Hashable) -> int:
        """It is read from storage: its bytes."""
        number = self._numbers[key]
        self.deeds.append(4 * number)
        return self.written[number]

    def _evict(self) -> None:
        oldest, bytes_ = self.held[STORAGE].popitem(last=False)
        self.used[STORAGE] -= bytes_
        self.evicted += 1
        self.deeds.append(4 * self._numbers.pop(oldest) + 2)

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
            # Room first: a drive that is full takes nothing.
            while limit is not None and self.used[STORAGE] + size > limit:
                self._evict()
            self.stored += size
            self._numbers[key] = len(self.written)
            self.deeds.append(4 * len(self.written) + 1)
            self.written.append(size)
        elif limit is not None and size > limit:
            return self._put(tier + 1, key, size)
        held[key] = size
        self.used[tier] += size
        while limit is not None and self.used[tier] > limit:
            oldest, bytes_ = held.popitem(last=False)
            self.used[tier] -= bytes_
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
    # What storage does: `Tiers.deeds`, where each request's end, and bytes of what is written, by its number.
    deeds: array[int] = field(default_factory=lambda: array("Q"))
    ends: array[int] = field(default_factory=lambda: array("Q"))
    written: array[int] = field(default_factory=lambda: array("Q"))
    # Seconds from a user's request to the next; None where the trace doesn't tell users.
    user_interval_s: float | None = None


class Users:
    """Users who ask again, and after how long: by the names of entries, or where a prompt begins with all of an earlier one's
    blocks that nobody had before."""

    def __init__(self) -> None:
        self._ends: dict[Hashable, float] = {}
        self._seen: set[Hashable] = set()
        self._named: dict[str, float] = {}
        self._gaps = self._sum_s = 0.0

    def see(self, request: Request) -> None:
        keys = [key for key, size in request.blocks if key is not None and (request.in_bytes or size == BLOCK_TOKENS)]
        if not keys:
            return
        if request.in_bytes:
            name, _, _ = str(keys[0]).partition("_conv")
            if "_conv" in str(keys[0]) and request.writes:
                before, self._named[name] = self._named.get(name), request.at_s
                self._add(before, request.at_s)
            return
        before = next((self._ends.pop(key) for key in reversed(keys) if key in self._ends), None)
        self._add(before, request.at_s)
        if keys[-1] not in self._seen:
            self._ends[keys[-1]] = request.at_s
        self._seen.update(keys)

    def _add(self, before: float | None, now: float) -> None:
        if before is not None:
            self._gaps += 1
            self._sum_s += now - before

    @property
    def interval_s(self) -> float | None:
        return self._sum_s / self._gaps if self._gaps and self._sum_s > 0 else None


def follow(requests: Iterator[Request], tiers: Tiers, token_bytes: int) -> Moves:
    """Where each block of each request is found, and what that moves."""
    moves, alone, users = Moves(), 0, Users()
    for request in requests:
        users.see(request)
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
                if tier == STORAGE:
                    loads += tiers.load(key)
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
        moves.ends.append(len(tiers.deeds))
    moves.evicted, moves.user_interval_s = tiers.evicted, users.interval_s
    moves.deeds, moves.written = tiers.deeds, tiers.written
    return moves
