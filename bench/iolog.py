"""Lists of I/Os that fio writes, replayed: `python bench/iolog.py --dir DIR` (root, for FUSE).

fio writes a list (write_iolog) while a device that isn't ours (tests/fuse_support.py) keeps a trace of what each thread asked
for; then fio replays it (read_iolog), and so does `forebay bench --read-iolog`, both one I/O at a time and without the pauses;
each round has other seeds. All three traces, and the list itself, must have the same I/Os at the same offsets in the same order
a thread. Exit: 0 if they do, 1 if not, 3 without fio or root.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fio_beside import inside
from fio_traces import Io, Trace, difference, trace
from peers import installed
from side_by_side import arguments, middle, publish, save, say, section

PROMISES = ("BEN-52",)
TITLE = "Lists of I/Os that fio writes, replayed"
FILE_BYTES = 8 << 20
DEEP = "reads of 4k at random, written with 64 in flight"


@dataclass(frozen=True)
class Case:
    """What fio does on each of `threads`, in `files` files that all of them share."""

    settings: tuple[str, ...]
    threads: int = 1
    files: int = 1


CASES = {
    "reads and writes of 4k to 16k at random, fsync after 5": Case(("--rw=randrw", "--bsrange=4k-16k", "--size=4m", "--fsync=5")),
    "reads of 128k in turn": Case(("--rw=read", "--bs=128k", "--size=8m")),
    "writes of 4k, Zipf's": Case(("--rw=randwrite", "--bs=4k", "--io_size=2m", "--random_distribution=zipf:1.1")),
    "reads of 4k at random, two files": Case(("--rw=randread", "--bs=4k", "--io_size=2m"), files=2),
    "reads and writes of 8k at random, four threads": Case(("--rw=randrw", "--bs=8k", "--io_size=1m"), threads=4),
    DEEP: Case(("--rw=randread", "--bs=4k", "--io_size=2m", "--ioengine=libaio", "--iodepth=64")),
}


def logs(case: Case) -> list[str]:
    return [f"log.{n}" for n in range(case.threads)]


def commands(case: Case, program: str, seed: int) -> tuple[list[str], list[str], list[str], list[tuple[str, int]]]:
    """fio that writes lists, fio and Forebay that replay them, and the files."""
    names = [f"data.{n}" for n in range(case.files)]
    base = [program, "--output=/dev/null", "--thread", "--direct=1"]
    writes, reads = list(base), list(base)
    for number, log in enumerate(logs(case)):
        own = [f"--name={log}", f"--filename={':'.join(names)}", f"--filesize={FILE_BYTES}", f"--randseed={seed + number}"]
        writes += [*own, *case.settings, f"--write_iolog={log}"]
        reads += [f"--name={log}", f"--read_iolog={log}", "--replay_no_stall=1"]
    ours = [installed(), "bench", "-q", "--read-iolog", ":".join(logs(case)), "--replay-no-stall", "--depth", "1"]
    ours += ["--workers", str(case.threads)] if case.threads > 1 else []
    ours += [word for name in names for word in ("--overwrite", name)]
    return writes, reads, ours, [(name, FILE_BYTES) for name in names]


def listed(case: Case) -> Trace:
    """What the lists say, a thread each."""
    line = re.compile(r"(?:\d+ )?(\S+) (read|write) (\d+) (\d+)")
    found = [[line.fullmatch(text) for text in Path(log).read_text().splitlines()] for log in logs(case)]
    made = [[Io(f[1], f[2] == "write", int(f[3]), int(f[4])) for f in each if f] for each in found]
    return sorted(made)


def measured(name: str, case: Case, program: str, seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="forebay-iolog-") as folder, inside(folder):
        writes, reads, ours, files = commands(case, program, seed)
        made = trace(writes, files)
        reported = listed(case)
        sides = {"fio, replaying": trace(reads, files), "forebay": trace(ours, files)}
        version = Path(logs(case)[0]).read_text().split("\n", 1)[0]
    # Of many in flight the device sees the order in which the kernel passed them on.
    against = sides if name == DEEP else {"fio, writing": made, **sides}
    wrong = [f"{who}: {difference(reported, found)}" for who, found in against.items() if found != reported]
    said = {"case": name, "threads": len(reported), "ios": sum(map(len, reported)), "list": version}
    return {**said, "bytes": sum(io.size for each in reported for io in each), "differs": wrong}


def main() -> int:
    options = arguments(__doc__ or "", None).parse_args()
    program = shutil.which(os.environ.get("FIO", "fio"))
    if program is None or os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        say("needs fio (apt install fio; FIO names it where it isn't on PATH), and root with /dev/fuse: sudo")
        return 3
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    cases = {name: case for name, case in CASES.items() if not options.only or options.only in name}
    found = [[measured(name, case, program, 1000 * n) for n in range(options.rounds)] for name, case in cases.items()]
    if not found:
        say(f"no cell's name holds '{options.only}'")
        return 2
    lines = [f"| {version} writes | I/Os | threads | list |", "|---|---|---|---|"]
    for rows in found:
        counts = middle([row["ios"] for row in rows], 0)
        lines.append(f"| {rows[0]['case']} | {counts} | {rows[0]['threads']} | {rows[0]['list']} |")
    lines += ["", *(f"- {verdict(rows)}" for rows in found), ""]
    text = section(TITLE, options, "\n".join(lines))
    save(options.json, TITLE, options, found, text)
    publish(TITLE, options, text)
    return 1 if any(row["differs"] for rows in found for row in rows) else 0


def verdict(rows: list[dict[str, Any]]) -> str:
    asked = f"{rows[0]['case']}: same I/Os, offsets and order a thread"
    wrong = [text.replace(":", "") for row in rows for text in row["differs"]]
    return f"{asked}: {'; '.join(wrong)}, **does not hold**" if wrong else f"{asked}: holds"


if __name__ == "__main__":
    sys.exit(main())
