"""A drive across NVMe/TCP beside the same drive read locally, by the same command.

The drive is a model with content in memory, paced at half of what TCP carries here, so that neither the link nor the
memory is what limits it: what is left is what the protocol takes away. The disk of `--dir` stands beside it.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path

from peers import available, made
from remote import forebay, host_run, raw
from side_by_side import GIB, Bound, Cell, Contender, arguments, compare, existing_folder, say

PROMISES = ("MSR-15",)

# block, depth of each worker, least ratio
SIZES = ((64 << 10, 32, 0.90), (128 << 10, 16, 0.97), (512 << 10, 8, 0.99), (1 << 20, 8, 0.99), (4 << 20, 4, 0.99))
LOCAL = "local"


def local(source: str, *flags: str) -> Contender:
    return Contender(
        LOCAL, lambda seconds: host_run(LOCAL, source, flags, seconds), ["forebay", "bench", source, *flags]
    )


def cell(kind: str, source: str, block: int, depth: int, at_least: float) -> Cell:
    flags = f"--op read --io-size {block} --workers 2 --depth {depth}".split()
    contenders = available(
        lambda: local(source, *flags), lambda: forebay("forebay", source, "?queues=2", *flags)
    )
    bounds = [Bound("rate", (LOCAL,), at_least=at_least, sure=True)]
    return Cell(f"{kind}, {block >> 10}k", contenders, bounds)


def paced(folder: Path, size: int) -> str:
    """The model, at half of what a bare sender and receiver move just now, of as much content into as many buffers."""
    alike = {"SPAN": str(size // 2), "SLOTS": "8"}
    rates = [raw("raw", "stream", str(1 << 20), n, environment=alike).measure(1.0).gib_s for n in ("1", "2")]
    read_mb_s = round(max(rates) / 2 * GIB / 1e6)
    say(f"TCP carries {max(rates):.2f} GiB/s; the drive gives {read_mb_s} MB/s")
    return f"model:gen5-ideal?read_mb_s={read_mb_s}&latency_us=75&over={made(folder / 'forebay-bench.dat', size)}"


def main() -> int:
    parser = arguments(__doc__ or "", seconds=3)
    parser.add_argument("--file-mib", type=int, default=1024, help="size of the test files (1024)")
    parser.add_argument("--memory", type=existing_folder, default=Path("/dev/shm"), help="a folder in memory (/dev/shm)")
    options = parser.parse_args()
    size = options.file_mib << 20
    in_memory = options.memory / "forebay-bench.dat"
    try:
        drive = paced(options.memory, size)
        disk = str(made(options.dir / "forebay-bench.dat", size))
        cells = [
            functools.partial(cell, kind, source, block, depth, least)
            for kind, source in (("paced drive", drive), ("disk", disk))
            for block, depth, least in SIZES
            if not options.only or options.only in f"{kind}, {block >> 10}k"
        ]
        return compare("Remote beside local", options, cells)
    finally:
        in_memory.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
