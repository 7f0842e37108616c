"""Where fio's I/Os go and where ours do: both on one device that isn't ours, which keeps a trace of what it was asked.

Every section has a region of the device, so that a trace tells them apart. In order the same offsets come in the same
sequence. At random, each tool draws its own numbers: a pass without repeats has the same offsets, each once, and what is drawn
from a distribution is compared by how often the places come that it favours.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import processes
import pytest
from forebay import fio
from forebay.errors import RequestError
from fuse_support import Device, serving

REGION = 1 << 20
SIZE = 256 << 10
BLOCK = 4096
# A job at a time, one I/O at a time: the trace is the sequence.
SEQUENCE = {
    "forward": "rw=read",
    "wraps": "rw=read io_size=300k",
    "loops": "rw=write loops=2",
    "counted": "rw=read number_ios=7",
    # The last I/O goes on behind a size that is no whole number of them.
    "overlong": "rw=read size=100001",
    "journal": "rw=write bs=2300 size=100000 direct=0",
    "default": "rw=write bs=8k,",
}
# Over all of a file: elsewhere fio's holes are no part of what is known here.
WHOLE = {
    "backwards": "rw=read:-8k",
    "holes": "rw=read:12k",
    "written": "rw=write:4k",
    # Holes and I/Os that don't divide it: the next one doesn't fit, or the last ends with it.
    "uneven": "rw=read:4k bs=8k",
    "to the end": "rw=write:32k bs=16k",
    "strided": "rw=read zonemode=strided zonesize=16k zoneskip=32k",
    # The file ends within a zone.
    "cut short": "rw=read zonemode=strided zonesize=20k zoneskip=28k",
    "later": "rw=read zonemode=strided zonesize=16k zoneskip=32k offset=128k",
}
# Reads and writes each in order, side by side as it is drawn.
MIXED = {
    "mix": "rw=rw",
    "mostly": "rw=rw rwmixread=80 bs=4k,8k",
    "timed": "rw=rw size=16k time_based runtime=1 rate_iops=200",
}
# The same I/Os, in an order that is drawn or up to threads.
ONCE = {
    "shuffled": "rw=randread iodepth=8 ioengine=libaio",
    "rewritten": "rw=randwrite",
    "either": "rw=randrw rwmixread=70",
    "aligned": "rw=randread bs=8k blockalign=8k",
    # At random it is left out.
    "short": "rw=randread size=100001",
    "clones": "rw=read numjobs=3",
    "stepped": "rw=read numjobs=3 offset_increment=128k size=128k",
}
# Every byte once, in I/Os of sizes that are drawn.
COVERED = {
    "split": "rw=randread bssplit=4k/60:16k/40",
    "ranged": "rw=randread bsrange=4k-16k",
}
# What part of the I/Os goes to the busiest tenth of the blocks, or of the places.
DRAWN = {
    "zipf": "rw=randread norandommap io_size=2m random_distribution=zipf:1.1",
    "uniform": "rw=randread norandommap io_size=2m",
    "zoned": "rw=randread norandommap io_size=2m random_distribution=zoned:50/5:30/15:20/",
}
SECTIONS = {**SEQUENCE, **MIXED, **ONCE, **COVERED, **DRAWN}
Ios = dict[str, list[tuple[int, int]]]
DIRECTIONS = {True: " writes", False: " reads"}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Ios, Ios]]:
    """What the devices saw of fio, and of Forebay: by section, (offset in its region, bytes) of each I/O in turn; those over a
    whole device under `whole`, one after the other."""
    if shutil.which("fio") is None:
        pytest.skip("fio isn't installed; apt install fio")
    folder = tmp_path_factory.mktemp("offsets")
    text = "[global]\nthread\nstonewall\ndirect=1\nbs=4k\n"
    for number, (name, settings) in enumerate(SECTIONS.items()):
        text += f"[{name}]\nfilename=data\nsize={SIZE}\noffset={number * REGION}\n" + "\n".join(settings.split()) + "\n"
    for name, settings in WHOLE.items():
        text += "\n".join([f"[{name}]", "filename=whole", *settings.split()]) + "\n"
    (folder / "jobs.fio").write_text(text)
    fio = ["fio", "--output=out", "jobs.fio"]
    ours = [*processes.FOREBAY, "bench", "--fio", "jobs.fio", "--overwrite", "data", "--overwrite", "whole", "-q"]
    with serving(folder / "data", len(SECTIONS) * REGION) as data, serving(folder / "whole", SIZE) as whole:
        yield traced(data, whole, fio, folder), traced(data, whole, ours, folder)


def traced(data: Device, whole: Device, command: list[str], folder: Path) -> Ios:
    for device in (data, whole):
        device.begin(device.schedule)
    with processes.running(command, cwd=folder) as process:
        done = processes.finish(process)
    assert done.returncode == 0, done.stdout + done.stderr
    names = list(SECTIONS)
    found: Ios = {name: [] for name in names} | {name + way: [] for name in MIXED for way in DIRECTIONS.values()}
    for io in data.trace:
        name = names[io.offset // REGION]
        found[name + DIRECTIONS[io.write] if name in MIXED else name].append((io.offset % REGION, io.size))
    found["whole"] = [(io.offset, io.size) for io in whole.trace]
    return found


@pytest.mark.promise("BEN-27")
@pytest.mark.parametrize("name", [*SEQUENCE, "whole"])
def test_in_order_the_same_offsets_follow_on_each_other(both: tuple[Ios, Ios], name: str) -> None:
    theirs, ours = (each[name] for each in both)
    assert ours == theirs and theirs


@pytest.mark.promise("BEN-27")
@pytest.mark.parametrize("name", MIXED)
@pytest.mark.parametrize("way", DIRECTIONS.values())
def test_of_a_mix_reads_and_writes_each_go_in_order(both: tuple[Ios, Ios], name: str, way: str) -> None:
    """How many of either there are is drawn."""
    theirs, ours = (each[name + way] for each in both)
    least = min(len(theirs), len(ours))
    assert ours[:least] == theirs[:least] and least > 3


@pytest.mark.promise("BEN-27")
@pytest.mark.parametrize("name", ONCE)
def test_out_of_order_each_comes_as_often(both: tuple[Ios, Ios], name: str) -> None:
    theirs, ours = (Counter(each[name]) for each in both)
    assert ours == theirs and theirs


@pytest.mark.parametrize("name", COVERED)
def test_with_sizes_that_are_drawn_each_byte_comes_once(both: tuple[Ios, Ios], name: str) -> None:
    for each in both:
        blocks = [at for offset, size in each[name] for at in range(offset, offset + size, BLOCK)]
        assert sorted(blocks) == list(range(0, SIZE, BLOCK))


@pytest.mark.promise("BEN-27")
@pytest.mark.parametrize("name", DRAWN)
def test_what_is_drawn_favours_as_few_blocks(both: tuple[Ios, Ios], name: str) -> None:
    shares = []
    for each in both:
        counts = sorted(Counter(offset for offset, _ in each[name]).values(), reverse=True)
        shares.append(sum(counts[: SIZE // BLOCK // 10]) / sum(counts))
        assert len(each[name]) == (2 << 20) // BLOCK
    assert abs(shares[0] - shares[1]) < 0.05, shares


def read(tmp_path: Path, settings: str) -> fio.FioJob:
    (tmp_path / "jobs.fio").write_text(f"[a]\nfilename={tmp_path}/f\n" + "\n".join(settings.split()) + "\n")
    return fio.jobs(str(tmp_path / "jobs.fio"))[0]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ("rw=read:8k offset=4k", "with holes"),
        ("rw=read:-8k offset=4k", "with holes"),
        ("rw=write:8k size=64k", "with holes"),
        ("zonesize=4k zoneskip=8k size=64k", "zones continue beyond size, to the end of the file at 100,000"),
        ("size=2k", "less than an I/O of 4,096 bytes"),
        ("bs=64k size=100k numjobs=2 offset_increment=100k", "a whole number of I/Os"),
        ("bs=0", "at least"),
    ],
)
def test_what_goes_another_way_in_fio_is_refused(tmp_path: Path, settings: str, why: str) -> None:
    (tmp_path / "f").write_bytes(bytes(100_000))
    with pytest.raises(RequestError, match=why):
        read(tmp_path, settings)


@pytest.mark.parametrize(
    ("settings", "fields"),
    [
        ("rw=read", {"file_bytes": 98304}),
        ("rw=read:-8k size=64k", {"file_bytes": 65536}),
        ("rw=randread size=50000", {"file_bytes": 49152}),
        ("rw=read size=50000", {"file_bytes": 53248}),
        ("rw=read size=50000 offset=4k", {"file_bytes": 57344}),
        ("rw=read size=99999", {"file_bytes": 98304}),
        ("rw=read bsrange=4k-8k size=50000", {"file_bytes": 49152}),
        ("rw=read bs=,64k", {"io_bytes": 4096}),
        ("rw=write bs=,64k", {"io_bytes": 65536}),
        ("rw=randwrite bsrange=16k-32k,", {"io_bytes": 4096, "io_bytes_max": None}),
        ("rw=randread blockalign=8k norandommap=1", {"no_repeat": False}),
        ("rw=randread blockalign=4k", {"no_repeat": True}),
    ],
)
def test_ios_are_whole_and_blanks_are_fios_defaults(tmp_path: Path, settings: str, fields: dict[str, int | None]) -> None:
    (tmp_path / "f").write_bytes(bytes(100_000))
    job = read(tmp_path, settings).job
    assert {key: job.get(key) for key in fields} == fields
