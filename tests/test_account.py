"""What a run says that it used, against the kernel's own account: control groups for processor time, /sys/block for drives."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import processes
import pytest
from disks_support import loop  # noqa: F401 - a fixture
from properties import parametrized

MIB = 1 << 20
CGROUP = Path("/sys/fs/cgroup")


class Group:
    """A control group of the test's own, of either version."""

    def __init__(self, name: str) -> None:
        self.is_v2 = (CGROUP / "cgroup.controllers").exists()
        base = CGROUP if self.is_v2 else CGROUP / "cpu"
        self.folder = base / name
        self.folder.mkdir()
        if self.is_v2 and not (self.folder / "cpu.max").exists():
            self.folder.rmdir()
            raise OSError("the controller cpu isn't handed down (cgroup.subtree_control)")

    def limit(self, cores: float) -> None:
        if self.is_v2:
            (self.folder / "cpu.max").write_text(f"{int(cores * 100_000)} 100000")
        else:
            (self.folder / "cpu.cfs_period_us").write_text("100000")
            (self.folder / "cpu.cfs_quota_us").write_text(str(int(cores * 100_000)))

    def enter(self) -> None:
        """The calling process moves in."""
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))


@pytest.fixture
def group() -> Iterator[Group]:
    try:
        made = Group(f"forebay-test-{os.getpid()}")
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    yield made
    processes.wait_until(lambda: not (made.folder / "cgroup.procs").read_text(), "the group is empty")
    made.folder.rmdir()


def bench(*flags: Any, **options: Any) -> dict[str, Any]:
    done = processes.run([*processes.FOREBAY, "bench", *map(str, flags), "--json", "-q"], **options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.promise("REC-35")
@pytest.mark.soak
def test_a_cpu_limit_is_named_and_counted_and_not_taken_for_other_processes(group: Group) -> None:
    group.limit(0.25)
    record = bench("nil:", "--workers", 2, "--duration", 1, "--warmup", 0, preexec_fn=group.enter)
    noise, warnings = record["result"]["noise"], {w["id"]: w["text"] for w in record["warnings"]}
    assert noise["cpu_limit_cores"] == 0.25 and noise["cpu_limited_pct"] > 1
    assert "limit of 0.2 cores" in warnings["cpu_limit"] or "limit of 0.3 cores" in warnings["cpu_limit"]
    assert not any("other processes" in text for text in warnings.values())


def test_without_a_limit_the_record_says_so() -> None:
    record = bench("nil:?size=64m", "--passes", 1)
    if record["result"]["noise"]["cpu_limit_cores"] is not None:
        pytest.skip("these tests run under a CPU limit themselves")
    # On a busy machine the meters may come too late for a run as short as this.
    why = record["missing"]["result.noise.cpu_limit_cores"]
    assert "no control group" in why or "got no processor in time" in why, why


def sectors(disk: str) -> tuple[int, int]:
    """Sectors read and written since boot."""
    fields = Path(f"/sys/block/{disk}/stat").read_text().split()
    return int(fields[2]), int(fields[6])


def reported(record: dict[str, Any]) -> int | None:
    """None only where the reading came late, as on a busy machine, and the record says so."""
    assert (record["cache"]["device_bytes"] is None) == ("cache.device_bytes" in record["missing"])
    return record["cache"]["device_bytes"]


@pytest.mark.promise("REC-36")
@pytest.mark.root
@parametrized("engine", ["uring", "pread", "inline"], kept=(0,))
def test_device_bytes_are_the_kernels_to_the_sector(loop: Callable[..., Path], engine: str) -> None:  # noqa: F811
    disk = loop(8)
    flags = (disk, "--engine", engine, "--io-size", "64k", "--depth", 4, "--passes", 1, "--warmup", 0)
    before = sectors(disk.name)
    read = bench(*flags)
    between = sectors(disk.name)
    written = bench(*flags, "--op", "write", "--overwrite-device", disk, "--sync", "none")
    after = sectors(disk.name)
    assert 512 * (between[0] - before[0]) == read["result"]["bytes"] == 8 * MIB
    assert reported(read) in (None, 8 * MIB)
    assert written["result"]["bytes"] == 8 * MIB == 512 * (after[1] - between[1])
    # What is read while the device is opened and written to is the kernel's and the device's, before the run begins.
    assert reported(written) is None or 8 * MIB <= reported(written) <= 512 * (after[1] - between[1] + after[0] - between[0])


def used_s(group: Group) -> float:
    """Processor time of the group so far."""
    if group.is_v2:
        return int((group.folder / "cpu.stat").read_text().split()[1]) / 1e6
    with contextlib.suppress(OSError):
        return int((group.folder / "cpuacct.usage").read_text()) / 1e9
    return int((CGROUP / "cpuacct" / group.folder.name / "cpuacct.usage").read_text()) / 1e9


@pytest.mark.promise("REC-36")
@pytest.mark.soak
@pytest.mark.parametrize("engine", ["uring", "pread", "inline", "map"])
def test_processor_time_is_the_groups_within_5_per_cent(group: Group, tmp_path: Path, engine: str) -> None:
    """Less what Python takes to start and to end, which a run of no length has too."""
    data = tmp_path / "data"
    data.write_bytes(os.urandom(64 * MIB))
    account = group
    if not group.is_v2:
        account = Group.__new__(Group)
        account.is_v2, account.folder = False, CGROUP / "cpuacct" / group.folder.name
        account.folder.mkdir(exist_ok=True)

    def entered() -> None:
        group.enter()
        if account is not group:
            account.enter()

    def spent(*flags: Any) -> tuple[float, float]:
        before = used_s(account)
        record = bench(data, "--engine", engine, "--buffered", "--io-size", "64k", *flags, preexec_fn=entered)
        cpu = record["result"]["cpu"]
        if cpu["user_s"] is None:
            pytest.skip(record["missing"]["result.cpu"])
        return used_s(account) - before, cpu["user_s"] + cpu["system_s"]

    try:
        empty = min(group_s - reported_s for group_s, reported_s in (spent("--passes", 1, "--warmup", 0) for _ in range(3)))
        group_s, reported_s = spent("--duration", 10, "--warmup", 0)
        assert group_s - empty == pytest.approx(reported_s, rel=0.05)
    finally:
        if account is not group:
            processes.wait_until(lambda: not (account.folder / "cgroup.procs").read_text(), "the group is empty")
            account.folder.rmdir()
