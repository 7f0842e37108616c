"""What is left open is settled, as a user sees it: the path, the page cache, the workers; several GPUs."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gpu_stub_support import Gpu, built
from properties import parametrized

MIB = 1 << 20


@pytest.fixture
def gpu(tmp_path: Path) -> Gpu:
    return Gpu(built(), tmp_path)


@pytest.fixture
def made(gpu: Gpu, tmp_path: Path) -> Callable[[str, int], Path]:
    """Makes a file of seeded content."""

    def make(name: str, mib: int) -> Path:
        file = tmp_path / name
        ran = gpu.bench(file, "host", "--create", "--file-size", f"{mib}m", "--passes", "1")
        assert ran.exit == 0, ran.err
        return file

    return make


def warm(file: Path) -> Path:
    file.read_bytes()
    return file


def cold(file: Path) -> Path:
    with file.open("rb+") as f:
        os.fsync(f.fileno())
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return file


@pytest.mark.promise("GPU-10")
def test_auto_says_what_it_chose_for_each_file_and_why(gpu: Gpu, made: Any) -> None:
    a, b = warm(made("a", 8)), cold(made("b", 8))
    flags = ("--passes", "1", "--warmup", "0", "--workers", "2", "--verify", "--json", "--power", "none")
    record = gpu.forebay("bench", a, b, "--path", "auto", *flags, "--quiet").balanced().record
    found = {Path(t["target"]).name: (t["path"], t["cache"]) for t in record["result"]["targets"]}
    assert found["b"] == ("bounce", "bypass") and found["a"][1] == "allow"
    assert record["path"]["requested"] == "auto" and record["cache"]["policy"] == "mixed"
    # A system that gives memory back takes pages out of the cache at any time.
    assert re.search(r"/a \((100|[5-9]\d) % cached", record["path"]["reason"]) and " for " in record["path"]["reason"]
    tried = {t["path"] for t in record["path"]["calibration"]}
    assert found["a"][0] in tried or not tried
    assert record["result"]["errors"]["verify_failed"] == 0 and record["result"]["bytes"] > 0
    text = gpu.forebay("bench", a, b, "--path", "auto", *flags[:5], "2", "--power", "none").out
    assert "auto was asked" in text or "auto chose" in text


def test_without_a_gpu_auto_ends_in_host_memory(gpu: Gpu, made: Any) -> None:
    file = made("f", 2)
    none = str(gpu.home / "no-such-libcuda.so")
    ran = gpu.bench(file, "auto", "--passes", "1", FOREBAY_LIBCUDA=none)
    assert ran.record["path"]["ran"] == "host" and ran.record["path"]["requested"] == "auto"
    assert "host memory" in ran.record["path"]["reason"]
    assert ran.record["cache"]["policy"] in ("bypass", "allow", "memory")


@pytest.mark.long
@pytest.mark.promise("GPU-17")
def test_workers_auto_finds_a_number_and_shows_its_trials(gpu: Gpu, made: Any) -> None:
    file = warm(made("f", 8))
    flags = ("--cache", "allow", "--workers", "auto", "--duration", "0.3", "--warmup", "0")
    record = gpu.bench(file, "bounce", *flags).balanced().record
    job, tried = record["job"], record["path"]["calibration"]
    assert job["workers_from"] == "auto" and job["workers"] in {t["workers"] for t in tried}
    # Null where the meters were read late, as on a busy machine.
    assert all(t["gib_s"] > 0 and (t["cpu_s_per_gib"] is None or t["cpu_s_per_gib"] > 0) for t in tried)
    assert len(record["result"]["workers"]) == job["workers"]
    host = gpu.bench(file, "host", "--cache", "allow", "--duration", "0.2", "--warmup", "0").record
    assert (host["job"]["workers"], host["job"]["workers_from"]) == (1, "default")
    assert not host["path"]["calibration"]


@pytest.mark.long
@pytest.mark.promise("GPU-10")
def test_auto_chooses_the_depth_of_short_random_reads_unless_it_is_typed(gpu: Gpu, made: Any) -> None:
    file = warm(made("f", 8))
    flags = ("--op", "randread", "--io-size", "4k", "--duration", "0.2", "--warmup", "0", "--workers", "1")
    ran = gpu.forebay("bench", file, "--path", "auto", *flags, "--power", "none")
    assert ran.exit == 0 and "depth 4096 (chosen)" in ran.out, ran.out + ran.err
    assert "--depth 4096: short reads" in ran.out, ran.out
    record = gpu.bench(file, "auto", *flags, "--depth", "4").balanced().record
    assert (record["job"]["depth"], record["job"]["depth_from"]) == (4, "given")
    # The most that any choice takes: two workers' slots of 4096 reads, and half as many that are being copied.
    plan = gpu.forebay("bench", file, "--path", "auto", *flags[:4], "--workers", "2", "--dry-run", "--json")
    assert plan.record["gpu_buffer_bytes"] == 2 * (4096 + 2048) * 4096, plan.out


@pytest.mark.long
@pytest.mark.promise("GPU-13")
def test_pairs_feed_each_gpu_from_its_own_source(gpu: Gpu, made: Any) -> None:
    a, b = made("a", 8), made("b", 16)
    ran = gpu.forebay(
        "bench", "--pair", f"1={a}", "--pair", f"0={b}", "--path", "bounce", "--passes", "1", "--workers", "4",
        # Longer than what a launch fetches, so that copies move it.
        "--io-size", "4m",
        "--verify", "--json", "--quiet", "--power", "none", cuda="gpus=2",
    )  # fmt: skip
    record = ran.balanced().record
    assert [(g["gpu"], g["bytes"]) for g in record["result"]["gpus"]] == [(0, 16 * MIB), (1, 8 * MIB)]
    assert record["job"]["pairs"] == [f"1={a}", f"0={b}"] and record["path"]["destination"] == "gpu:0,1"
    assert ran.books
    # What verifies the content there brings a few hundred bytes of its own.
    over = [got - sent for got, sent in zip(ran.books["to_device_bytes"], (16 * MIB, 8 * MIB), strict=False)]
    assert all(0 <= n < 4096 for n in over), over
    plan = gpu.forebay("bench", "--pair", f"0={a}", "--dry-run", cuda="gpus=2")
    assert plan.exit == 0 and f"0={a}" in plan.out
    plan = gpu.forebay("bench", a, "--path", "auto", "--dry-run", cuda="gpus=2")
    assert plan.exit == 0 and "auto: gds, mapped or bounce, decided when it runs" in plan.out


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        (("--pair", "0"), "--pair 0: is not a GPU's number"),
        (("--pair", "0=nil:", "--gpu", "0"), "pairs name their own GPUs"),
        (("nil:", "--pair", "0=nil:"), "each --pair names its own source"),
        (
            ("--pair", "0=nil:", "--pair", "1=nil:?size=1g", "--workers", "1"),
            "each pair needs a worker of its own",
        ),
        (("--pair", "7=nil:"), "--gpu 7: there are 2 GPUs"),
        (("nil:", "--workers", "some"), "--workers some: is not a whole number"),
    ],
)
def test_a_wrong_request_is_refused_by_name(gpu: Gpu, flags: tuple[str, ...], found: str) -> None:
    ran = gpu.forebay("bench", *flags, "--path", "bounce", "--duration", "0.1", cuda="gpus=2")
    assert ran.exit == 2 and found in ran.err, ran.err


@pytest.mark.long
def test_the_summary_names_each_gpu_and_who_counted_the_workers(gpu: Gpu, made: Any) -> None:
    file = warm(made("f", 4))
    out = gpu.forebay(
        "bench", file, "--path", "bounce", "--gpu", "0,1", "--cache", "allow", "--duration", "0.2",
        "--warmup", "0", "--power", "none", cuda="gpus=2",
    ).out  # fmt: skip
    assert "GPU 0 " in out and "GPU 1 " in out and "(found by calibration)" in out


def test_jobs_of_older_records_still_mean_what_they_did(gpu: Gpu) -> None:
    job = {"sources": ["nil:"], "workers": 3, "duration_s": 0.05, "warmup_s": 0.0, "power": ["none"]}
    code = f"import json; from forebay import run; print(json.dumps(run.run({job!r})))"
    record = json.loads(gpu.python("-c", code).out)
    assert (record["job"]["workers"], record["job"]["workers_from"]) == (3, "given")


@parametrized("path", ["host", "bounce", "mapped", "gds"], kept=(0, 2))
def test_any_path_may_leave_the_page_cache_to_us(gpu: Gpu, made: Any, path: str) -> None:
    file = cold(made("f", 4))
    flags = ("--cache", "auto", "--passes", "1", "--verify", "--workers", "1", "--allow-compat")
    record = gpu.bench(file, path, *flags).balanced().record
    assert record["path"]["requested"] == path and record["path"]["ran"].startswith(path)
    assert record["result"]["verified_bytes"] == 4 * MIB
    expected = "allow" if path == "mapped" else "bypass"
    assert record["result"]["targets"][0]["cache"] == expected
