"""Checking seeded content in GPU memory beside what that memory moves: the engine's own kernel, and device copies.

A copy's bytes count twice, once read and once written; the check only reads.
"""

from __future__ import annotations

import argparse

from child import Child, asked, closing
from gpu import arguments, fastest, ready, run_main
from side_by_side import Bound, Cell, compare

PROMISES = ("MSR-12",)

CHECK, COPY = "content check", "device copy"
BOUNDS = [Bound("rate", (COPY,), at_least=0.5)]


def cell(options: argparse.Namespace, child: Child) -> Cell:
    made = Cell("4 GiB", [], BOUNDS, ours=CHECK)
    fastest(made, options, CHECK, lambda _: asked(CHECK, child, what="check"))
    fastest(made, options, COPY, lambda _: asked(COPY, child, what="copy"))
    return made


def main() -> int:
    options = ready(arguments(__doc__ or "", seconds=0.5, only=False))
    child = Child("child_verify.py", "0")
    with closing(child):
        return compare("Verified on the GPU", options, [lambda: cell(options, child)])


if __name__ == "__main__":
    run_main(main)
