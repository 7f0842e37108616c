"""Random small jobs of fio's: do their I/Os go where fio's go? `python bench/fio_walks.py [--jobs 500] [--seed 7]`.

Each job is drawn: what it does, block sizes, holes, zones, offsets, sizes that don't divide, loops, limits, jobs side by
side. It is run by fio and by Forebay over a device that notes what it was asked for (bench/fio_traces.py); both do the same
I/Os, or Forebay refuses the job and names the setting. Sizes that each tool draws, and the part of random blocks that a
limit leaves, can't be the same; such jobs are counted apart, with what both have in common. Needs fio, and root for FUSE.
Exit code 1 where one is neither.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

from fio_beside import FILE_BYTES
from fio_traces import SAME, lines, section
from forebay import fio
from forebay.errors import ForebayError

DATA = "data"


def drawn(draw: random.Random) -> dict[str, str]:
    """One section, over one file of the device; sizes are in bytes, so that they needn't be whole KiB or blocks."""
    word = draw.choice(["read", "write", "read", "write", "randread", "randwrite", "rw", "randrw"])
    unit = draw.choice([512, 1024, 4096])
    size = unit * draw.randint(1, 12)
    settings = {"filename": DATA, "rw": word, "bs": str(size), "direct": "0"}
    if word in ("read", "write") and draw.random() < 0.6:
        settings["rw"] += f":{draw.choice([1, 1, 1, -1]) * unit * draw.randint(1, 20)}"
    length = unit * draw.randint(8, 400)
    if draw.random() < 0.7:
        settings["size"] = str(min(length, FILE_BYTES))
    for key, chance, value in (
        ("offset", 0.25, unit * draw.randint(1, 50)),
        ("io_size", 0.2, unit * draw.randint(8, 800)),
        ("loops", 0.15, draw.randint(2, 3)),
        ("number_ios", 0.1, draw.randint(1, 60)),
        ("numjobs", 0.15, draw.randint(2, 3)),
        ("blockalign", 0.1 if word.startswith("rand") else 0.0, size * draw.choice([1, 2])),
        ("norandommap", 0.3 if word.startswith("rand") else 0.0, 1),
        ("rwmixread", 0.5 if word in ("rw", "randrw") else 0.0, draw.randint(1, 99)),
    ):
        if draw.random() < chance:
            settings[key] = str(value)
    if draw.random() < 0.15:
        zone = size * draw.randint(1, 6) + draw.choice([0, 0, unit])
        settings |= {"zonemode": "strided", "zonesize": str(zone), "zoneskip": str(unit * draw.randint(0, 40))}
    sizes = draw.random()
    if sizes < 0.1:
        settings.pop("bs")
        settings["bsrange"] = f"{unit}-{unit * draw.randint(2, 8)}"
    elif sizes < 0.2:
        settings.pop("bs")
        settings["bssplit"] = f"{unit}/60:{unit * draw.randint(2, 8)}/40"
    elif sizes < 0.3 and word in ("rw", "randrw"):
        settings["bs"] = f"{size},{unit * draw.randint(1, 12)}"
    if settings.get("numjobs") and draw.random() < 0.5:
        settings["offset_increment"] = str(unit * draw.randint(1, 60))
    return settings


def outcome(settings: dict[str, str], program: str) -> tuple[str, str]:
    """("same" | "refused" | "differs" | "drawn by each" | "fio refuses", in words)."""
    Path("ours.fio").write_text(lines("walk", settings))
    try:
        fio.jobs("ours.fio")
    except ForebayError as error:
        return "refused", str(error).splitlines()[0]
    try:
        found = section("walk", dict(settings), [DATA], program)
    except (ValueError, ForebayError) as error:
        said = str(error)
        if said.startswith("fio ends"):
            return "fio refuses", said
        return ("refused" if isinstance(error, ForebayError) or "ends with 2" in said else "differs"), said
    if not found.startswith(SAME) and is_drawn(settings):
        return "drawn by each", found
    return ("same" if found.startswith(SAME) else "differs"), found


def is_drawn(settings: dict[str, str]) -> bool:
    """Whether the I/Os themselves hang on what a tool draws: sizes in turn, or which random blocks come before the limit."""
    sizes = {"bsrange", "bssplit"} & settings.keys()
    return bool(sizes) or settings["rw"].startswith("rand") and bool({"io_size", "number_ios"} & settings.keys())


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", type=Path, help="every job with its outcome")
    options = parser.parse_args()
    program = shutil.which("fio")
    if program is None or os.geteuid() != 0:
        print("fio_walks: needs fio, and root for FUSE", file=sys.stderr)
        return 3
    draw, reported = random.Random(options.seed), []
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path(DATA).write_bytes(bytes(FILE_BYTES))
        for number in range(options.jobs):
            settings = drawn(draw)
            kind, words = outcome(settings, program)
            reported.append({"job": settings, "outcome": kind, "reported": words})
            if kind == "differs":
                print(f"{number}: {' '.join(f'{k}={v}' for k, v in settings.items())}\n    {words}", file=sys.stderr, flush=True)
        os.chdir("/")
    counts = Counter(each["outcome"] for each in reported)
    print(f"{options.jobs} jobs of seed {options.seed}: " + ", ".join(f"{n} {kind}" for kind, n in counts.most_common()))
    if options.json:
        options.json.write_text(json.dumps(reported, indent=1) + "\n")
    return 1 if counts["differs"] else 0


if __name__ == "__main__":
    sys.exit(main())
