"""Emulated 3D U-Net batches from a cached folder → the GPU: by bounce, mapped and gds (in compatibility mode).

Accelerators compute for a microsecond, so that the rate is what the way gives. `mapped, first epoch` is a new process each
time, so that nothing is registered yet; of the 12 epochs of the other, the first one registers.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from gpu import arguments, cached, fastest, ready, run_main, write_random
from peers import installed, run
from side_by_side import GIB, Bound, Cell, Contender, Figure, Unavailable, compare, say, spent_s

PROMISES = ("MSR-21",)

BOUNCE, FIRST, LATER, GDS = "bounce", "mapped, first epoch", "mapped, 12 epochs", "gds, compatibility mode"
# Of 3D U-Net: the mean of a sample, one sample a file.
SAMPLE_BYTES = 146_600_628
ACCELERATORS, BATCH = 4, 1
# Registered once, what is read costs nearly nothing.
BOUNDS = [Bound("rate", (BOUNCE,), at_least=1.0), Bound("cost", (BOUNCE,), at_most=0.5)]
WORKLOAD = f"""
title = "3D U-Net, computing for a microsecond"
format = "raw"
loader = "pytorch"
record_bytes = {SAMPLE_BYTES}
samples_per_file = 1
files = {{files}}
batch = {BATCH}
compute_s = 0.000001
read_threads = 4
prefetch = 2
file_shuffle = true
sample_shuffle = true
epochs = 1
au_pct_min = 0
"""


def folder(options: argparse.Namespace) -> tuple[Path, Path]:
    """(workload, data set): as many files as the size asked for has room for, in the page cache."""
    count = max(int(options.file_gib * GIB // SAMPLE_BYTES) // ACCELERATORS, 1) * ACCELERATORS
    home: Path = options.dir / "forebay-gpu-emulate"
    train = home / "train"
    train.mkdir(parents=True, exist_ok=True)
    for n in range(count):
        file = train / f"img_{n:04d}_of_{count}.raw"
        if not file.exists() or file.stat().st_size != SAMPLE_BYTES:
            write_random(file, SAMPLE_BYTES)
        cached(file)
    for other in set(train.iterdir()) - {train / f"img_{n:04d}_of_{count}.raw" for n in range(count)}:
        other.unlink()
    toml = options.dir / "forebay-gpu-emulate.toml"
    toml.write_text(WORKLOAD.format(files=count))
    say(f"{count} files of {SAMPLE_BYTES / 2**20:.0f} MiB are cached")
    return toml, home


def emulated(name: str, options: argparse.Namespace, data: tuple[Path, Path], flags: str, epochs: int, ran: str) -> Contender:
    """`forebay emulate run` once; what went another way than `ran` isn't counted."""
    toml, home = data
    base = [installed(), "emulate", "run", "--workload", str(toml), "--data", str(home), "--level", "bytes"]
    base += ["--accelerators", str(ACCELERATORS), "--destination", f"gpu:{options.gpu}", "--epochs", str(epochs)]
    base += [*flags.split(), "--power", "none", "--json"]

    def measure(seconds: float) -> Figure:
        # Exit 1 says that utilisation is too low for the rules, as it is of accelerators that compute for no time.
        done = run(base, 120 + 3 * seconds, passing=(0, 1))
        record = json.loads(done.stdout)
        result, path = record["result"], record["path"]
        if path["ran"] != ran or not result["bytes"]:
            raise Unavailable(f"{name}: {path['ran']} ran: {path['reason']}")
        cpu = result["cpu"]
        keys = ("ran", "reason", "staged_bytes", "mapped_bytes", "compat_bytes", "direct_bytes")
        cpu_s = spent_s(cpu)
        proof = {key: path[key] for key in keys}
        return Figure(result["seconds"], result["bytes"], result["ios"], cpu_s, done.cpu_s, proof)

    return Contender(name, measure, base)


def cell(options: argparse.Namespace, data: tuple[Path, Path]) -> Cell:
    made = Cell(f"{options.file_gib:g} GiB of 3D U-Net, cached", [], BOUNDS, ours=LATER)
    pin = f"--pin-limit {int(options.file_gib) + 4}g"
    mapped = f"--path mapped --cache allow {pin}"

    def add(name: str, flags: str, epochs: int, ran: str) -> None:
        fastest(made, options, name, lambda _: emulated(name, options, data, flags, epochs, ran))

    add(BOUNCE, "--path bounce --cache allow --io-size 4m --workers 8 --depth 2", 5, "bounce")
    add(FIRST, mapped, 1, "mapped")
    add(LATER, mapped, 12, "mapped")
    add(GDS, "--path gds --cache allow --allow-compat", 5, "gds-compat")
    return made


def main() -> int:
    options = ready(arguments(__doc__ or "", only=False))
    data = folder(options)
    return compare("Emulated batches into the GPU, cached", options, [lambda: cell(options, data)])


if __name__ == "__main__":
    run_main(main)
