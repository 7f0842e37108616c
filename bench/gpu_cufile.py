"""cuFile's calls: `forebay bench --path gds` beside the same calls in a plain C loop (bench/cufile_loop.c).

Both read the same file in I/Os of the same size, with as many workers and as many I/Os in flight: synchronous calls,
batches, reads on a stream, and these in groups with one event behind each. Where cuFile runs in its compatibility mode,
both do; the proof of each run of ours says what the bytes did. In a container without udev cuFile registers no file;
--make-udev writes the two small files under /run/udev that it looks for, and removes them at the end.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import json
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from gpu import MIB, arguments, data_file, fastest, ours, ready, run_main
from peers import run
from side_by_side import Bound, Cell, Contender, Figure, Unavailable, compare, filesystem, say

PROMISES = ("MSR-12",)

OURS, LOOP = "forebay", "C loop"
# name, cuFile's interface, bytes, workers, depth. In compatibility mode no more batched I/Os than cuFile has host
# buffers (64 of 1 MiB) may be in flight, or it hangs.
CELLS = [
    ("sync 1m", "sync", MIB, 8, 1),
    ("batch 1m", "batch", MIB, 4, 8),
    ("stream 1m", "stream", MIB, 4, 8),
    ("stream in groups 1m", "batch-stream", MIB, 4, 8),
]
BOUNDS = [Bound("rate", (LOOP,), at_least=0.98)]


def built_loop() -> Path:
    source = Path(__file__).with_name("cufile_loop.c")
    program = Path(__file__).resolve().parent.parent / "target/bench-tools/cufile_loop"
    program.parent.mkdir(parents=True, exist_ok=True)
    command = [os.environ.get("CC", "gcc"), "-O2", "-pthread", "-o", str(program), str(source), "-ldl"]
    reported = subprocess.run(command, capture_output=True, text=True)
    if reported.returncode:
        raise Unavailable(f"{source.name} doesn't compile: {reported.stderr[-400:]}")
    return program


def libcufile() -> str | None:
    """The library's file where the loader doesn't find it by name: beside nvcc, installed, or in Python's packages."""
    try:
        ctypes.CDLL("libcufile.so.0")
        return None
    except OSError:
        kits = [Path("/usr/local/cuda")]
    if nvcc := shutil.which("nvcc"):
        kits.insert(0, Path(nvcc).resolve().parent.parent)
    packages = {sysconfig.get_path("platlib"), *os.environ.get("PYTHONPATH", "").split(":")} - {""}
    kits += [Path(folder) / "nvidia/cu13" for folder in packages]
    names = ("lib64", "targets/x86_64-linux/lib", "lib")
    found = [kit / name / "libcufile.so.0" for kit in kits for name in names]
    return next((str(f) for f in found if f.exists()), None)


def libraries() -> dict[str, str]:
    """What the loop opens in place of the names it knows."""
    named = {"LIBCUDA": os.environ.get("FOREBAY_LIBCUDA")}
    named["LIBCUFILE"] = os.environ.get("FOREBAY_LIBCUFILE") or libcufile()
    return {key: value for key, value in named.items() if value}


def loop(file: Path, mode: str, block: int, workers: int, depth: int, direct: bool) -> Contender:
    program = built_loop()
    os.environ.update(libraries())
    before = [mode, str(file), str(block), str(workers), str(depth)]

    def measure(seconds: float) -> Figure:
        ran = run([str(program), *before, str(seconds), str(int(direct))], 15 + 3 * seconds)
        reported = json.loads(ran.stdout[ran.stdout.index("{") :])
        return Figure(reported["seconds"], reported["bytes"], reported["ios"], reported["cpu_s"], ran.cpu_s)

    return Contender(LOOP, measure, ["cufile_loop", *before, "SECONDS", str(int(direct))])


@contextmanager
def udev(file: Path, root: Path = Path("/run/udev")) -> Iterator[None]:
    """What libudev must say of the file's device for cuFile to register it; taken away again. Nothing where udev runs.

    Other tools look for /run/udev to decide whether to use cuFile at all, so it mustn't stay.
    """
    if (root / "control").exists():
        say(f"{root}/control exists; left as it is")
        yield
        return
    device = os.stat(file).st_dev
    kind = filesystem(file.parent).split()[0]
    entry = root / f"data/b{os.major(device)}:{os.minor(device)}"
    absent = [folder for folder in (entry.parent, root) if not folder.exists()]
    entry.parent.mkdir(parents=True, exist_ok=True)
    entry.write_text(f"E:ID_FS_TYPE={kind}\nE:ID_FS_USAGE=filesystem\nG:systemd\nV:1\n")
    (root / "control").touch()
    say(f"made {root} for now: {os.major(device)}:{os.minor(device)} is {kind}")
    try:
        yield
    finally:
        (root / "control").unlink()
        entry.unlink()
        for folder in absent:
            folder.rmdir()


def cell(options: argparse.Namespace, file: Path, name: str, mode: str, block: int, workers: int, depth: int) -> Cell:
    made = Cell(f"{name}, {'O_DIRECT' if options.direct else 'cached'}", [], BOUNDS, ours=OURS)
    flags = f"--path gds --allow-compat --cufile {mode} --io-size {block} --workers {workers} --depth {depth}"
    flags += f" --cache {'bypass' if options.direct else 'allow'}"
    fastest(made, options, OURS, lambda _: ours(OURS, file, options, flags))
    fastest(made, options, LOOP, lambda _: loop(file, mode, block, workers, depth, options.direct))
    return made


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.set_defaults(file_gib=4)
    parser.add_argument("--direct", action="store_true", help="O_DIRECT, from the disk")
    parser.add_argument(
        "--make-udev", action="store_true", help="have /run/udev meanwhile, where it is absent (needs root)"
    )
    options = ready(parser)
    file = data_file(options, "forebay-gpu-cufile.dat")
    cells = [
        functools.partial(cell, options, file, *one)
        for one in CELLS
        if not options.only or options.only in one[0]
    ]
    with udev(file) if options.make_udev else nullcontext():
        return compare("Into the GPU, cuFile", options, cells)


if __name__ == "__main__":
    run_main(main)
