"""Sending without a copy (MSG_ZEROCOPY, as io_uring's SEND_ZC has it) beside sending with one, over loopback and veth.

The kernel tells of each such send whether it copied the payload all the same. Where a packet is delivered on the machine
that sent it, it does: the pages are the sender's, and a receiver may keep them for as long as it likes.
"""

from __future__ import annotations

import functools
import json
import sys
from contextlib import ExitStack

from gateway import delayed
from peers import available, run
from remote import tool
from side_by_side import Bound, Cell, Contender, Figure, Unavailable, arguments, compare, say

PLAIN, ZERO = "send", "MSG_ZEROCOPY"
SIZES = (128 << 10, 1 << 20)


def contender(name: str, mode: str, block: int, inside: tuple[str, ...]) -> Contender:
    """`tcp_raw`, one connection; `inside`: what stands before it, so that its ends lie in two network namespaces."""
    base = [*inside, str(tool("tcp_raw")), mode, str(block), "1"]

    def measure(seconds: float) -> Figure:
        reported = json.loads(run([*base, str(seconds)], 60 + 3 * seconds).stdout)
        proof = {k: reported[k] for k in ("reported", "copied_share") if k in reported}
        if proof:
            say(f"{name}: the kernel copied {100 * proof['copied_share']:.1f} % of {proof['reported']} sends")
        return Figure(reported["seconds"], reported["bytes"], reported["ios"], reported["cpu_s"], None, proof)

    return Contender(name, measure, [*inside, "tcp_raw", mode, str(block), "1", "SECONDS"])


def cell(where: str, block: int, inside: tuple[str, ...]) -> Cell:
    contenders = available(
        lambda: contender(PLAIN, "stream", block, inside), lambda: contender(ZERO, "zerocopy", block, inside)
    )
    bounds = [Bound("cost", (PLAIN,), at_most=1.0, of=ZERO)]
    return Cell(f"{where}, {block >> 10}k", contenders, bounds, ours=ZERO)


def main() -> int:
    options = arguments(__doc__ or "", seconds=2).parse_args()
    with ExitStack() as stack:
        ways: dict[str, tuple[str, ...]] = {"loopback": ()}
        try:
            link = stack.enter_context(delayed(0))
            ways["veth"] = (*link.gateway, "env", f"NETNS={link.target[-1]},{link.address}")
        except Unavailable as e:
            say(f"veth is left out: {e}")
        cells = [
            functools.partial(cell, where, block, inside)
            for where, inside in ways.items()
            for block in SIZES
            if not options.only or options.only in f"{where}, {block >> 10}k"
        ]
        return compare("Sending without a copy", options, cells)


if __name__ == "__main__":
    sys.exit(main())
