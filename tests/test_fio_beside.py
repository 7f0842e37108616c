"""fio's job files beside the fio that is installed: as many bytes, as many I/Os, the same blocks."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import processes
import pytest
from forebay import fio
from forebay import run as engine
from properties import parametrized

pytestmark = pytest.mark.skipif(shutil.which("fio") is None, reason="fio isn't installed; apt install fio")

# What each section of the job file sets. Those whose I/Os are of drawn sizes are as many as they come to.
SAME = {
    "backwards": "rw=read:-8k",
    "strided": "rw=read zonemode=strided zonesize=64k zoneskip=128k",
    "clones": "rw=read numjobs=3",
    "offsets": "rw=read numjobs=4 offset_increment=128k size=128k",
    "less": "rw=read io_size=100k",
    "more": "rw=randread size=48k io_size=100k",
    "counted": "rw=randread number_ios=7",
    "paused": "rw=read number_ios=5 thinktime=50",
    "zoned": "rw=randread norandommap random_distribution=zoned:50/5:30/15:20/",
    "poisson": "rw=randread rate_iops=5000 rate_process=poisson number_ios=20",
    "untimed": "rw=read time_based",
    "batches": "rw=randread ioengine=libaio iodepth=16 iodepth_batch_submit=8 iodepth_batch_complete_max=8 io_size=700k",
}
DRAWN = {
    "split": "rw=randread bssplit=4k/60:16k/40",
    "mixed": "rw=randrw bssplit=4k/60:64k/",
}
WRITTEN = {
    "holes": "rw=write:12k",
    "zones": "rw=write zonemode=strided zonesize=64k zoneskip=64k io_size=200k",
    "checked": "rw=randwrite verify=crc32c",
    "spread": "rw=randwrite bssplit=4k/50:12k/50",
}


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs sections, each over a file of its own, in fio and here: by name, what was read, written, and how often."""

    def run(sections: dict[str, str], written: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        found = []
        for who, runs in (("theirs", theirs), ("ours", ours)):
            (tmp_path / who).mkdir()
            monkeypatch.chdir(tmp_path / who)
            text = "[global]\nbs=4k\nsize=1m\n" + "stonewall\n" * written
            for name, settings in sections.items():
                text += "\n".join([f"[{name}]", f"filename={name}.data", *settings.split()]) + "\n"
                if not written:
                    Path(f"{name}.data").write_bytes(bytes(1 << 20))
            Path("jobs.fio").write_text(text)
            found.append(runs())
        return found[0], found[1]

    def theirs() -> dict[str, Any]:
        done = processes.run(["fio", "--output-format=json", "--output=out.json", "jobs.fio"])
        assert done.returncode == 0, done.stdout + done.stderr
        sums: dict[str, Any] = {}
        said = Path("out.json").read_text()
        for job in json.loads(said[said.index("{") :])["jobs"]:
            reads, writes = job["read"], job["write"]
            ios = reads["total_ios"] + writes["total_ios"]
            add(sums, job["jobname"], reads["io_bytes"], writes["io_bytes"], ios)
        return sums

    def ours() -> dict[str, Any]:
        sums: dict[str, Any] = {}
        for job in fio.jobs("jobs.fio"):
            result = engine.run({**job.job, "overwrite": [f"{job.name}.data"]})["result"]
            assert not result["errors"]["failed"] and not result["errors"]["verify_failed"]
            add(sums, job.name.removesuffix(fio.CHECK), result["read_bytes"], result["write_bytes"], result["ios"])
        return sums

    def add(sums: dict[str, Any], name: str, *counts: int) -> None:
        sums[name] = tuple(a + b for a, b in zip(sums.get(name, (0, 0, 0)), counts, strict=True))

    return run


@pytest.mark.long
@pytest.mark.promise("BEN-27")
def test_as_much_is_moved_in_as_many_ios(beside: Any) -> None:
    theirs, ours = beside({**SAME, **DRAWN}, written=False)
    for name in SAME:
        assert ours[name] == theirs[name], name
    for name in DRAWN:
        # The map of blocks sees to it that each is moved once, whatever is drawn.
        assert sum(ours[name][:2]) == sum(theirs[name][:2]) == 1 << 20, name


@pytest.mark.long
@pytest.mark.promise("BEN-27")
def test_the_same_blocks_are_written(beside: Any, tmp_path: Path) -> None:
    theirs, ours = beside(WRITTEN, written=True)
    for name in WRITTEN:
        assert ours[name][:2] == theirs[name][:2], name
        blocks = [written(tmp_path / who / f"{name}.data") for who in ("theirs", "ours")]
        assert blocks[0] == blocks[1] and blocks[0], name


def written(path: Path) -> list[int]:
    """The blocks that hold anything but zeroes."""
    data = path.read_bytes()
    return [at for at in range(0, len(data), 4096) if any(data[at : at + 4096])]


@pytest.mark.promise("BEN-23")
@parametrized(
    "shares",
    ["size=50%", "offset=30%", "size=50%\noffset=30%", "offset=30%\nsize=90%", "offset=30%\nsize=100%", "offset=30%\nsize=64k"],
    kept=(2, 4),
)
def test_shares_of_a_file_cover_what_fio_covers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shares: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f").write_bytes(os.urandom(1_000_000 // 4096 * 4096))
    (tmp_path / "beside.fio").write_text(f"[a]\nfilename=f\nbs=4k\n{shares}\n")
    theirs = processes.run(["fio", "--output-format=json", "beside.fio"], cwd=tmp_path)
    assert theirs.returncode == 0, theirs.stderr
    moved = json.loads(theirs.stdout[theirs.stdout.index("{") :])["jobs"][0]["read"]
    (job,) = fio.jobs("beside.fio")
    result = engine.run(job.job)["result"]
    assert (result["bytes"], result["ios"]) == (moved["io_bytes"], moved["total_ios"])
