"""What emulation is set beside: plain reads with the same checksums, DLIO, and ours as its users type it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dlio
from peers import installed, run
from side_by_side import GIB, Contender, Figure, Unavailable, find_depth, say, spent_s

# Exit code 1 of ours: it ran, and the accelerators weren't busy enough.
TOO_SLOW = 1


@dataclass(frozen=True)
class Case:
    """A workload of ours, and the data set that stands for it: `made` files, each under many names, `names` in all.

    `checksum` is what its format carries; `steps` caps an epoch's (DLIO's and ours alike).
    """

    name: str
    made: int
    names: int
    checksum: str
    epochs: int
    steps: int
    least: int  # H100s that must pass on two cores


CASES = (
    Case("resnet50", 4, 512, "crc32c", 1, 60, 36),
    Case("cosmoflow", 200, 8192, "crc32c", 1, 2000, 9),
    Case("unet3d", 7, 672, "crc32", 1, 30, 3),
)


@dataclass(frozen=True)
class Data:
    """A case's folder, its workload, and how large its files are."""

    case: Case
    workload: Any
    folder: Path
    bytes_per_file: float

    @property
    def files(self) -> list[Path]:
        return sorted((self.folder / "train").iterdir())

    @property
    def sample_bytes(self) -> float:
        """On the disk, framing included."""
        return self.bytes_per_file / self.workload.samples_per_file

    def accelerators(self, gib_s: float) -> int:
        """How many that rate feeds to the AU that the rules ask for, by arithmetic."""
        each = self.workload.samples_per_s * self.workload.au_pct_min / 100 * self.sample_bytes
        return int(gib_s * GIB / each)


@contextmanager
def data_set(case: Case, memory: Path, workload: Any) -> Iterator[Data]:
    """Made by our datagen, then hard-linked under so many names that every epoch has enough steps; removed afterwards.

    The links are new names for the same bytes: the memory holds `made` files, far more than any processor's caches.
    """
    # A folder of its own: what a killed run left is in nobody's way.
    home = Path(tempfile.mkdtemp(prefix=f"forebay-{case.name}-", dir=memory))
    made, linked = home / "made", home / "named"
    try:
        generated(case.name, made, case.made)
        files = sorted((made / "train").rglob("img_*"))
        for part in ("train", "valid"):
            (linked / part).mkdir(parents=True, exist_ok=True)
        digits = len(str(case.names))
        for n in range(case.names):
            name = f"img_{n:0{digits}}_of_{case.names}.{workload.format}"
            os.link(files[n % len(files)], linked / "train" / name)
        total = sum(f.stat().st_size for f in (linked / "train").iterdir())
        yield Data(case, workload, linked, total / case.names)
    finally:
        shutil.rmtree(home, ignore_errors=True)


# Plain reads ------------------------------------------------------------------------------------------


def floor(name: str, data: Data, checksum: str, threads: int, scan_s: float) -> Contender:
    """pread of the same files and their checksums by ISA-L, at the block that a short scan finds cheapest."""
    program = built()

    def make(block: int) -> Contender:
        base = [str(program), checksum, str(block), str(threads)]
        files = [str(f) for f in data.files[: data.case.made]]

        def measure(seconds: float) -> Figure:
            ran = run([*base, str(seconds), *files], 60 + 3 * seconds)
            reported = json.loads(ran.stdout)
            return Figure(reported["seconds"], reported["bytes"], reported["files"], reported["cpu_s"], ran.cpu_s)

        return Contender(name, measure, [*base, "SECONDS", "FILE…"])

    return find_depth(make, (256 << 10, 512 << 10, 1 << 20), scan_s, say)[0]


def built() -> Path:
    source = Path(__file__).with_name("emulate_floor.c")
    program = Path(__file__).resolve().parent.parent / "target/bench-tools/emulate_floor"
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        program.parent.mkdir(parents=True, exist_ok=True)
        command = ["gcc", "-O2", "-Wall", "-pthread", "-o", str(program), str(source), "-lisal"]
        tried = subprocess.run(command, capture_output=True, text=True)
        if tried.returncode:
            raise Unavailable(
                f"plain reads don't build; try: apt install libisal-dev ({tried.stderr.strip()[-200:]})"
            )
    return program


# Ours -------------------------------------------------------------------------------------------------


def generated(workload: str, folder: Path, files: int) -> dict[str, Any]:
    """What `forebay emulate datagen` tells of making these."""
    which = ["--workload", workload, "--accelerator", "h100", "--files", str(files)]
    ran = run([installed(), "emulate", "datagen", *which, "--data", str(folder), "--quiet", "--json"], 600)
    reported: dict[str, Any] = json.loads(ran.stdout)
    return reported


def emulated(
    data: Data,
    accelerators: int,
    rules: str,
    level: str = "parse",
    accelerator: str = "h100",
    workload: str | None = None,
) -> dict[str, Any]:
    """One `forebay emulate run`; its record, and `process` with what the kernel charged and the clock showed."""
    case = data.case
    command = [installed(), "emulate", "run", "--workload", workload or case.name, "--quiet", "--json"]
    command += ["--accelerator", accelerator, "--accelerators", str(accelerators)]
    command += ["--data", str(data.folder), "--rules", rules, "--level", level]
    command += ["--epochs", str(case.epochs), "--steps", str(case.steps)]
    ran = run(command, 600, passing=(0, TOO_SLOW))
    record: dict[str, Any] = json.loads(ran.stdout)
    record["process"] = {"cpu_s": ran.cpu_s, "wall_s": ran.wall_s}
    return record


def searched(data: Data, rules: str) -> dict[str, Any]:
    """`forebay emulate search`: probes of a few seconds, confirmed by three runs of DLIO's length; its record."""
    case = data.case
    with tempfile.TemporaryDirectory() as results:
        command = [
            installed(),
            "emulate",
            "search",
            "--workload",
            case.name,
            "--accelerator",
            "h100",
            "--json",
        ]
        command += ["--data", str(data.folder), "--rules", rules, "--results", results, "--quiet"]
        command += [
            "--epochs",
            str(case.epochs),
            "--steps",
            str(case.steps),
            "--probe",
            "5",
            "--confirm",
            "3",
        ]
        command += ["--accelerators", str(max(1, case.least // 2))]
        ran = run(command, 1800, passing=(0, TOO_SLOW))
    record: dict[str, Any] = json.loads(ran.stdout)
    return record


def ours(name: str, data: Data, accelerators: int, level: str) -> Contender:
    """CPU of so many accelerators, well below saturation, by what the record counts as read."""

    def measure(seconds: float) -> Figure:
        record = emulated(data, accelerators, "v1.0", level=level)
        result, training = record["result"], record["training"]
        cpu = result["cpu"]
        proof = {"au_pct": training["au_pct"], "level": training["level"], "samples": training["samples"]}
        cpu_s = spent_s(cpu)
        return Figure(
            result["seconds"],
            training["read_bytes"],
            training["samples"],
            cpu_s,
            record["process"]["cpu_s"],
            proof,
        )

    return Contender(
        name, measure, ["forebay", "emulate", "run", f"--accelerators {accelerators}", f"--level {level}"]
    )


# DLIO -------------------------------------------------------------------------------------------------


def trained(
    found: dlio.Dlio, data: Data, accelerators: int, memory: bool = False, workload: Any = None
) -> dlio.Played:
    """One DLIO run over all names of the data set, as many steps as ours takes."""
    case, chosen = data.case, workload or data.workload
    return dlio.play(
        found, chosen, data.folder, case.names, accelerators, case.epochs, case.steps, memory=memory
    )


@dataclass(frozen=True)
class Try:
    """One DLIO run of a search for the greatest number."""

    accelerators: int
    au_pct: float
    passes: bool
    gib_s: float
    cpu_ms_per_gib: float


def passes(found: dlio.Dlio, data: Data, reported: list[Try]) -> Callable[[int], bool]:
    """Whether DLIO keeps so many busy. It gets a second try: one bad moment of the machine shan't count against it."""

    def check(accelerators: int) -> bool:
        for _ in range(2):
            played = trained(found, data, accelerators)
            gib = played.samples * data.sample_bytes / GIB
            cost = played.cpu_s * 1e3 / gib
            reported.append(Try(accelerators, played.au_pct, played.passes, gib / played.seconds, cost))
            say(
                f"{data.case.name}: DLIO {found.version}, {accelerators}: AU {played.au_pct:.1f} %, {cost:.0f} ms/GiB"
            )
            if played.passes:
                return True
        return False

    return check
