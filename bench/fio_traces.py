"""An example of fio's, made small: where do its I/Os go in fio, and where here?

Each section is run alone, over files of a device that isn't ours (tests/fuse_support.py), which notes what it was asked for:
file, direction, offset, length and thread. fio has its own engine and depth. Here I/Os go one by one, so that the trace is the
sequence, whatever the kernel does first.
"""

from __future__ import annotations

import math
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from fio_beside import FILE_BYTES, RUN_S, inside, small  # noqa: E402
from forebay import fio  # noqa: E402
from forebay.errors import ForebayError  # noqa: E402
from forebay.fio import file as fio_file  # noqa: E402
from fuse_support import Device  # noqa: E402

# When, how fast and beside whom, in place of where; what the data is; what leaves nothing to be seen.
ELSEWHERE = re.compile(
    "rate.*|think.*|flow.*|io_submit_mode|stonewall|wait_for|new_group|direct|buffered|"
    "dedupe.*|buffer_compress.*|prio.*|cmdprio.*|allow_file_create|numa.*|cpus.*|ss|description"
)
DEPTHS = re.compile("ioengine|iodepth.*")
# What is drawn is told from what isn't by many I/Os.
DRAWN = "8m"
PAGES = 256
# How far apart what is drawn may be, in standard deviations.
APART = 4.0
SEQUENCE, ONCE, COVERED, ALIKE = "same sequence", "each block once", "each byte once", "drawn alike"
BACK = "read back in the order of the writes"
SAME = (SEQUENCE, ONCE, COVERED, ALIKE, BACK)


@dataclass(frozen=True, order=True)
class Io:
    file: str
    write: bool
    offset: int
    size: int


# What each thread asked for, one I/O after the other.
Trace = list[list[Io]]


def traced(path: Path, program: str) -> str:
    """What the two have in common, where they differ, or why they can't be compared."""
    said: list[str] = []
    try:
        text, names = small(path)
        for name, settings in sections(text):
            with tempfile.TemporaryDirectory(prefix="forebay-fio-") as folder, inside(folder):
                said.append(section(name, settings, names, program))
    except subprocess.TimeoutExpired as error:
        return f"not traced: {error.cmd[0]} isn't done after {RUN_S} s"
    except (ForebayError, OSError, ValueError) as error:
        return f"not traced: {str(error).splitlines()[0][:100]}"
    wrong = [each for each in said if not each.startswith(SAME)]
    return wrong[0] if wrong else ", ".join(dict.fromkeys(said))


def sections(text: str) -> list[tuple[str, dict[str, str]]]:
    """The sections, each with the settings of all that is above it, but for those that say nothing of where."""
    shared: dict[str, str] = {}
    found = []
    with tempfile.NamedTemporaryFile("w", suffix=".fio") as file:
        file.write(text)
        file.flush()
        listed = fio_file.sections(file.name)
    for each in listed:
        settings = {key: value for key, value in each.settings if not ELSEWHERE.fullmatch(key)}
        if settings.get("ioengine") == "null":
            del settings["ioengine"]
        if each.name == "global":
            shared.update(settings)
        else:
            found.append((each.name, {**shared, **settings}))
    return found


def section(name: str, settings: dict[str, str], names: list[str], program: str) -> str:
    word = settings.get("rw", settings.get("readwrite", "read"))
    if word.startswith("rand") and settings.get("norandommap", "0") != "0":
        settings["io_size"] = DRAWN
    own = {key: value for key, value in settings.items() if not DEPTHS.fullmatch(key)}
    # The device is its own cache; direct I/O of fio's threads stays in one piece.
    Path("theirs.fio").write_text(lines(name, {**settings, "direct": "1"}))
    Path("ours.fio").write_text(lines(name, own))
    used = sorted(files(names).items())
    theirs = trace([program, "--output=out", "theirs.fio"], used)
    over = [word for file, _ in used for word in ("--overwrite", file)]
    ours = trace([sys.executable, "-m", "forebay.cli", "bench", "--fio", "ours.fio", "-q", *over], used)
    found = compared(theirs, ours, settings)
    return found if found.startswith(SAME) else f"[{name}] {found}"


def lines(name: str, settings: dict[str, str]) -> str:
    return "\n".join([f"[{name}]", *(f"{key}={value}" for key, value in settings.items())]) + "\n"


def files(names: list[str]) -> dict[str, int]:
    """What a section uses, and how large that is."""
    found: dict[str, int] = {}
    for each in fio.jobs("ours.fio"):
        job = each.job
        for source in job["sources"]:
            if source in names:
                found[source] = FILE_BYTES
            else:
                for n in range(job.get("files", 1)):
                    found[f"{source}/{job['file_name'].replace('%d', str(n))}"] = job["file_bytes"]
    return found


def trace(command: list[str], used: list[tuple[str, int]]) -> Trace:
    with ExitStack() as stack:
        devices = []
        for file, size in used:
            device = Device(Path(file), bytearray(size), pages=PAGES)
            device.mount()
            stack.callback(device.unmount)
            devices.append((file, device))
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S)
        if done.returncode:
            said = (done.stderr + done.stdout).strip().replace("\n", " ")
            raise ValueError(f"{Path(command[0]).name} ends with {done.returncode}: {said}")
        threads: dict[int, list[tuple[int, Io]]] = defaultdict(list)
        for file, device in devices:
            for io in device.trace:
                threads[io.thread].append((io.came_ns, Io(file, io.write, io.offset, io.size)))
    return sorted([io for _, io in sorted(each, key=lambda timed: timed[0])] for each in threads.values())


def compared(theirs: Trace, ours: Trace, settings: dict[str, str]) -> str:
    word = settings.get("rw", settings.get("readwrite", "read")).partition(":")[0]
    mixed = word in ("rw", "readwrite", "randrw")
    if not theirs or len(theirs) != len(ours) and "verify" not in settings:
        return f"{len(theirs)} jobs with I/Os in fio, {len(ours)} here"
    if mixed and (reported := direction(theirs, ours)):
        return reported
    if "verify" in settings:
        return verified(theirs, ours)
    if not word.startswith("rand"):
        return in_order(theirs, ours, mixed)
    if settings.get("norandommap", "0") != "0":
        return alike(theirs, ours, settings)
    return once(theirs, ours, "bssplit" in settings)


def in_order(theirs: Trace, ours: Trace, mixed: bool) -> str:
    if not mixed:
        return SEQUENCE if theirs == ours else difference(theirs, ours)
    for write in (False, True):
        sides = [sorted([io for io in each if io.write == write] for each in trace) for trace in (theirs, ours)]
        for their, our in zip(*sides, strict=True):
            both = min(len(their), len(our))
            if their[:both] != our[:both]:
                return difference([their], [our])
    return SEQUENCE


def verified(theirs: Trace, ours: Trace) -> str:
    for who, trace in (("fio", theirs), ("here", ours)):
        writes, reads = ([(io.file, io.offset, io.size) for each in trace for io in each if io.write == w] for w in (True, False))
        if writes != reads:
            return f"isn't read back in the order of the writes: {who}"
    written = [Counter((io.file, io.offset, io.size) for each in trace for io in each if io.write) for trace in (theirs, ours)]
    return f"{ONCE}, {BACK}" if written[0] == written[1] else difference(theirs, ours)


def once(theirs: Trace, ours: Trace, drawn: bool) -> str:
    """`drawn`: sizes are."""
    if not drawn:
        sides = [sorted(sorted((io.file, io.offset, io.size) for io in each) for each in trace) for trace in (theirs, ours)]
        return ONCE if sides[0] == sides[1] else difference(theirs, ours)
    sides = [sorted(sorted(sectors(each)) for each in trace) for trace in (theirs, ours)]
    if sides[0] != sides[1] or any(len(set(each)) != len(each) for each in sides[0]):
        return "covers other bytes than in fio"
    return apart("sizes", [[io.size for each in trace for io in each] for trace in (theirs, ours)]) or COVERED


def sectors(ios: list[Io]) -> list[tuple[str, int]]:
    return [(io.file, at) for io in ios for at in range(io.offset, io.offset + io.size, 512)]


def alike(theirs: Trace, ours: Trace, settings: dict[str, str]) -> str:
    sides = [[io for each in trace for io in each] for trace in (theirs, ours)]
    counts = [sorted(len(each) for each in trace) for trace in (theirs, ours)]
    # A direction that is drawn has a size of its own, too.
    if "bssplit" not in settings and "," not in settings.get("bs", "") and counts[0] != counts[1]:
        return f"{counts[0]} I/Os in fio, {counts[1]} here"
    steps = [math.gcd(*(io.offset for io in side)) for side in sides]
    if steps[0] != steps[1]:
        return f"offsets are multiples of {steps[0]} in fio, of {steps[1]} here"
    ends = [(min(io.offset for io in side), max(io.offset + io.size for io in side)) for side in sides]
    room = int(settings["size"]) + int(settings.get("offset", 0)) if "size" in settings else FILE_BYTES
    if any(end > room for _, end in ends):
        return f"bytes {ends[0]} in fio, {ends[1]} here"
    if "zipf" in settings.get("random_distribution", ""):
        # Which places are favoured is each tool's own affair, how much they are isn't.
        ranks = [Counter(io.offset for io in side).most_common() for side in sides]
        shares = [[n for n, (_, count) in enumerate(each) for _ in range(count)] for each in ranks]
    else:
        shares = [[io.offset for io in side] for side in sides]
    return apart("offsets", shares) or apart("sizes", [[io.size for io in side] for side in sides]) or ALIKE


def direction(theirs: Trace, ours: Trace) -> str:
    sides = [[io.write for each in trace for io in each] for trace in (theirs, ours)]
    shares = [sum(side) / len(side) for side in sides]
    if abs(shares[0] - shares[1]) > APART * math.sqrt(0.25 * sum(1 / len(side) for side in sides)):
        return f"{shares[0]:.0%} are writes in fio, {shares[1]:.0%} here"
    return ""


def apart(what: str, sides: list[list[int]]) -> str:
    """How far the two distributions are from each other, where that is more than chance makes of one (Kolmogorov, Smirnov)."""
    counts = [Counter(side) for side in sides]
    sums, most = [0.0, 0.0], 0.0
    for value in sorted({*counts[0], *counts[1]}):
        sums = [before + count[value] / len(side) for before, count, side in zip(sums, counts, sides, strict=True)]
        most = max(most, abs(sums[0] - sums[1]))
    likely = APART / 2 * math.sqrt(sum(1 / len(side) for side in sides))
    return f"{what} are drawn otherwise than in fio, by {most:.3f}" if most > likely else ""


def difference(theirs: Trace, ours: Trace) -> str:
    """The first I/O that isn't the same."""
    for their, our in zip(theirs, ours, strict=False):
        for n in range(max(len(their), len(our))):
            pair = [reported(each[n]) if n < len(each) else "none" for each in (their, our)]
            if pair[0] != pair[1]:
                return f"I/O {n} is {pair[0]} in fio, {pair[1]} here"
    return "goes elsewhere than in fio"


def reported(io: Io) -> str:
    return f"{'a write' if io.write else 'a read'} of {io.size} at {io.offset} of {io.file}"


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(f"{Path(argument).name}: {traced(Path(argument), 'fio')}", flush=True)
