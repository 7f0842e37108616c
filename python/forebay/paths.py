"""Data paths by their names. What each can, the engine says; records and plans are read without it, by the names below."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

BOUNCE, GDS = "bounce", "gds"
# What a record says of GPUDirect Storage whose bytes, or some of them, went by cuFile's compatibility mode.
GDS_COMPAT, GDS_MIXED = "gds-compat", "gds-mixed"


class Abilities(NamedTuple):
    """What a path can.

    reaches_gpu       its bytes get to a GPU, where there is one
    needs_gpu         they go nowhere else
    needs_page_cache  they come out of the page cache and from nowhere else
    may_map           pages of files may be registered with a GPU
    may_go_direct     they may go from a device into a GPU by DMA
    reads_files       `forebay.open` takes it
    feeds             the loader does
    """

    reaches_gpu: bool
    needs_gpu: bool
    needs_page_cache: bool
    may_map: bool
    may_go_direct: bool
    reads_files: bool
    feeds: bool


@cache
def abilities(name: object) -> Abilities:
    """Those of the path of that name, which may be `auto`; what isn't a path can nothing."""
    from forebay import _core

    found = _core.path_abilities(name) if isinstance(name, str) else None
    return Abilities(*(found or [False] * len(Abilities._fields)))
