"""Every -x of gdsio: NVIDIA's own program beside `forebay gdsio`, with the same flags, and the line each prints.

gdsio comes with NVIDIA's GDS tools. GDSIO names it where it isn't on PATH; without it this command says so and
measures nothing.
"""

from __future__ import annotations

import argparse
import functools
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from gpu import arguments, data_file, fastest, ready, run_main
from peers import installed, run
from side_by_side import Bound, Cell, Contender, Figure, Unavailable, compare, say

PROMISES = ("MSR-12",)

OURS, PEER = "forebay gdsio", "gdsio"
BOUNDS = [Bound("rate", (PEER,), at_least=1.0)]
MODES = (0, 1, 2, 3, 4, 5, 6, 7)
LINE = re.compile(
    r"^IoType: (?P<op>\S+) XferType: (?P<label>\S+) Threads: \d+ (?:IoDepth: \d+ )?"
    r"DataSetSize: (?P<kib>\d+)/\d+\(KiB\) IOSize: \S+\(KiB\) Throughput: (?P<gib_s>[\d.]+) GiB/sec, "
    r"Avg_Latency: [\d.]+ usecs ops: (?P<ops>\d+) total_time (?P<seconds>[\d.]+) secs$",
    re.MULTILINE,
)


def read_line(text: str) -> dict[str, str]:
    """The fields of gdsio's one line; unavailable where there is not one of that shape."""
    found = LINE.search(re.sub(r"[ \t]+", " ", text))
    if found is None:
        raise Unavailable(f"printed no line of gdsio's shape: {text.strip()[-300:]!r}")
    return found.groupdict()


def contender(name: str, program: Sequence[str], flags: Sequence[str]) -> Contender:
    def measure(seconds: float) -> Figure:
        # gdsio takes whole seconds.
        ran = run([*program, *flags, "-T", str(max(1, round(seconds)))], 120 + 3 * seconds)
        line = read_line(ran.stdout)
        proof = {"op": line["op"], "label": line["label"]}
        return Figure(float(line["seconds"]), int(line["kib"]) << 10, int(line["ops"]), None, ran.cpu_s, proof)

    return Contender(name, measure, [name, *flags, "-T", "SECONDS"])


def cell(options: argparse.Namespace, file: Path, mode: int) -> Cell:
    made = Cell(f"-x {mode}", [], BOUNDS, ours=OURS)
    flags = f"-f {file} -d 0 -w 8 -s {int(options.file_gib * 1024)}M -i 1M -x {mode} -I 0".split()
    fastest(made, options, OURS, lambda _: contender(OURS, [installed(), "gdsio"], flags))
    fastest(made, options, PEER, lambda _: contender(PEER, [os.environ.get("GDSIO", "gdsio")], flags))
    return made


def main() -> int:
    options = ready(arguments(__doc__ or "", seconds=2))
    if shutil.which(os.environ.get("GDSIO", "gdsio")) is None:
        say("gdsio isn't installed here (GDSIO names it where it isn't on PATH), so nothing was measured")
        return 0
    file = data_file(options)
    cells = [
        functools.partial(cell, options, file, mode)
        for mode in MODES
        if not options.only or options.only in f"-x {mode}"
    ]
    return compare("gdsio", options, cells)


if __name__ == "__main__":
    run_main(main)
