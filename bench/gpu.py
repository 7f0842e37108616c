"""What the commands of the GPU tables share: their flags, the file they read, and who takes part."""

from __future__ import annotations

import argparse
import functools
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from child import Child, asked
from peers import forebay, installed
from side_by_side import GIB, Cell, Contender, Unavailable, find_depth, say
from side_by_side import arguments as common_arguments

MIB = 1 << 20
WARMUP_S = 0.3
KVIKIO = "KvikIO"
COPY = "PCIe copy"
# A sandbox that stands in for the kernel says this; its figures are of the sandbox.
SANDBOX_KERNEL = "4.4.0"


def arguments(description: str, seconds: float = 0.7, only: bool = True) -> argparse.ArgumentParser:
    # Every one takes the flags of a quick trial of all (bench/gpu_all.sh), whether or not it looks for depths.
    parser = common_arguments(description, seconds, only, scan=True)
    parser.set_defaults(scan_seconds=0.3, gpu=0)  # the peers' default device too
    parser.add_argument("--file-gib", type=float, default=16, help="size of the test file (16)")
    parser.add_argument("--no-scan", action="store_true", help="take each contender's usual setting; quicker")
    return parser


def ready(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The options, once it is sure that there is a GPU and a kernel worth measuring. Else says what is missing: exit 3."""
    options = parser.parse_args()
    if not os.path.exists("/dev/nvidiactl") and "FOREBAY_LIBCUDA" not in os.environ:
        say("no NVIDIA GPU here (/dev/nvidiactl is absent); this command measures copies into one")
        raise SystemExit(3)
    if platform.release().startswith(SANDBOX_KERNEL):
        say(f"kernel {platform.release()} is a sandbox: its figures say nothing of a machine's; take another machine")
        raise SystemExit(3)
    try:
        installed()
    except Unavailable as reason:
        say(str(reason))
        raise SystemExit(3) from None
    return options


def data_file(options: argparse.Namespace, name: str = "forebay-gpu.dat") -> Path:
    """Random bytes, on the disk and in the page cache."""
    file = options.dir / name
    size = int(options.file_gib * GIB)
    began = time.monotonic()
    if not file.exists() or file.stat().st_size != size:
        write_random(file, size)
    cached(file)
    say(f"{file.name}: {options.file_gib:g} GiB ready after {time.monotonic() - began:.1f} s")
    return file


def write_random(file: Path, size: int, piece: int = 16 * MIB, threads: int = 8) -> None:
    """In large writes, so that the page cache holds it in large folios, as a downloaded file lies there."""
    import numpy

    fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)

    def write(offset: int) -> None:
        content = numpy.random.Generator(numpy.random.SFC64(offset)).bytes(min(piece, size - offset))
        os.pwrite(fd, content, offset)

    try:
        with ThreadPoolExecutor(threads) as pool:
            for _ in pool.map(write, range(0, size, piece)):
                pass
        os.fsync(fd)
    finally:
        os.close(fd)


def cached(file: Path, threads: int = 8) -> None:
    """Reads it once, so that every byte is in the page cache."""
    size = file.stat().st_size
    fd = os.open(file, os.O_RDONLY)

    def read(start: int) -> None:
        buffer = bytearray(4 * MIB)
        for offset in range(start, size, threads * len(buffer)):
            os.preadv(fd, [buffer], offset)

    try:
        with ThreadPoolExecutor(threads) as pool:
            for _ in pool.map(read, range(0, threads * 4 * MIB, 4 * MIB)):
                pass
    finally:
        os.close(fd)


def fastest(
    cell: Cell,
    options: argparse.Namespace,
    name: str,
    make: Callable[[Any], Contender],
    settings: Sequence[Any] = (None,),
    show: Callable[[Any], str] = str,
) -> None:
    """Adds to the cell the contender at the setting that a scan finds; with --no-scan, or one setting, the first.

    `show` says the setting in the table. One that can't run is left out, and the cell says why.
    """
    try:
        if options.no_scan or len(settings) == 1:
            contender = make(settings[0])
            how: dict[str, Any] = {"depth": settings[0], "scan": "none"}
        else:
            contender, how = find_depth(make, settings, options.scan_seconds, say)
    except Unavailable as reason:
        say(f"{cell.name}: left out: {name}: {reason}")
        cell.lost[name] = str(reason)
        return
    cell.contenders.append(contender)
    cell.chosen[name] = how | ({} if how["depth"] is None else {"shown": show(how["depth"])})


def kvikio(child: Child, **request: Any) -> Contender:
    return asked(KVIKIO, child, **request)


def copy_rate(child: Child) -> Contender:
    return asked(COPY, child)


@functools.cache
def flags_known() -> str:
    """What `forebay bench --help` lists."""
    ran = subprocess.run([installed(), "bench", "--help"], capture_output=True, text=True, timeout=60)
    return ran.stdout


def count() -> int:
    """GPUs of this machine."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return 0
    return subprocess.run([program, "-L"], capture_output=True, text=True, timeout=60).stdout.count("GPU ")


def ours(
    name: str, file: Path, options: argparse.Namespace, flags: str, gpus: str | None = None, **more: Any
) -> Contender:
    """`forebay bench` into the GPU; unavailable where this build lacks one of the flags."""
    for flag in flags.split():
        if flag.startswith("--") and flag not in flags_known():
            raise Unavailable(f"this build of forebay has no {flag}")
    more.setdefault("destination", f"gpu:{options.gpu}")
    more.setdefault("warmup_s", WARMUP_S)
    more.setdefault("cached", "--cache allow" in flags)
    return forebay(str(file), *flags.split(), "--gpu", gpus or str(options.gpu), name=name, **more)


def run_main(main: Callable[[], int]) -> None:
    """A contender that everything hangs on can't run: exit 3 with its reason, no traceback."""
    try:
        sys.exit(main())
    except Unavailable as reason:
        say(str(reason))
        sys.exit(3)
