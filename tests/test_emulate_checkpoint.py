"""`forebay emulate checkpoint` as it is typed: sizes, files, verdicts, refusals, interruptions, several processes."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import processes
import pytest
from fake_machine import typed
from forebay import _core
from forebay.emulate import checkpoint, workloads
from gpu_stub_support import Gpu, built
from mpi_support import AS_ROOT, MPIRUN, needs_mpi
from properties import parametrized

ROOT = Path(__file__).resolve().parent.parent
GIB = 1 << 30
# A rank's share of Llama 3 8B at this scale: 1.4 MB, in two files whose lengths are no multiple of a block.
SMALL = ("--scale", "0.0001", "--between", "0", "--io-size", "64k")


def run(capsys: Any, folder: Path, *flags: str) -> dict[str, Any]:
    code, out, err = typed(
        capsys, "emulate", "checkpoint", "--workload", "llama3-8b", "--dir", folder, *SMALL, "--json", *flags
    )
    assert code == 0, err
    return json.loads(out)


def refused(capsys: Any, *flags: Any) -> str:
    code, out, err = typed(capsys, "emulate", "checkpoint", *flags)
    assert code == 2 and out == "", err
    return err


def files(folder: Path) -> dict[str, int]:
    return {str(p.relative_to(folder)): p.stat().st_size for p in folder.rglob("*") if p.is_file() and p.name[0] != "."}


@pytest.mark.promise("CKP-1")
@pytest.mark.parametrize("name", ["llama3-8b", "llama3-70b", "llama3-405b"])
def test_a_plan_has_the_published_sizes(capsys: Any, name: str, tmp_path: Path) -> None:
    """Also where the disk is too small for it, which the plan says."""
    workload = workloads.load_checkpoint(name)
    assert workload.model_gib and workload.optimizer_gib
    flags = ("emulate", "checkpoint", "--workload", name, "--dir", tmp_path, "--writes", "1", "--reads", "0")
    code, out, err = typed(capsys, *flags, "--dry-run", "--json")
    assert code == 0, err
    plan = json.loads(out)
    assert plan["ranks"] == workload.processes
    assert plan["model_bytes"] / GIB == pytest.approx(workload.model_gib, rel=0.01)
    assert plan["optimizer_bytes"] / GIB == pytest.approx(workload.optimizer_gib, rel=0.01)
    assert plan["room_needed_bytes"] > plan["bytes"] and plan["room_bytes"] > 0
    is_too_much = plan["room_needed_bytes"] > plan["room_bytes"]
    code, out, err = typed(capsys, *flags, "--dry-run")
    assert code == 0 and ("are free there → a smaller --scale" in out) == is_too_much, out
    if is_too_much:
        code, out, err = typed(capsys, *flags)
        assert code == 3 and "iB are needed, and " in err and "a smaller --scale" in err, err
    assert files(tmp_path) == {}


@pytest.mark.promise("EMU-24")
@pytest.mark.parametrize("name", ["llama3-8b", "llama3-70b", "llama3-405b", "llama3-1t"])
def test_the_size_that_is_listed_is_the_one_that_is_written(capsys: Any, name: str, tmp_path: Path) -> None:
    flags = ("--scale", "0.0001", "--writes", "1", "--reads", "0", "--dry-run", "--json")
    code, out, err = typed(capsys, "emulate", "checkpoint", "--workload", name, "--dir", tmp_path, *flags)
    assert code == 0, err
    planned = [json.loads(out)[f"{part}_bytes"] * 10_000 for part in ("model", "optimizer")]
    assert workloads.load_checkpoint(name).written_bytes() == pytest.approx(planned, rel=1e-4)


@pytest.mark.promise("EMU-24")
@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
@pytest.mark.parametrize(("tensor", "pipeline", "data"), [(1, 1, 1), (2, 1, 3), (3, 4, 2), (1, 5, 4)])
def test_the_size_follows_the_writer_to_the_byte_however_a_model_is_cut(
    zero_stage: int, tensor: int, pipeline: int, data: int, tmp_path: Path
) -> None:
    shape = {"layers": 5, "hidden": 70, "ffn_hidden": 111, "heads": 7, "kv_heads": 3, "vocab": 301}
    cut = {"tensor": tensor, "pipeline": pipeline, "data": data, "zero_stage": zero_stage}
    small = replace(workloads.load_checkpoint("llama3-8b"), **shape, **cut, model_type="bf16", optimizer_type="fp64")
    spec = {"workload": "small", "version": "v2.0", "rules": "v2.0", "model": small.model(), "dir": str(tmp_path)}
    plan = checkpoint.engine_plan({**spec, "writes": 1, "reads": 0, "between_s": 0.0})
    assert small.written_bytes() == (plan["model_bytes"], plan["optimizer_bytes"])


@pytest.mark.promise("CKP-3")
def test_each_rank_has_its_files_and_every_byte_is_verified(capsys: Any, tmp_path: Path) -> None:
    record = run(capsys, tmp_path, "--writes", "2", "--keep")
    found = record["checkpoint"]
    names = [
        f"zero_pp_rank_{rank}_mp_rank_0_{part}_states.bin" for rank in range(8) for part in ("model", "optim")
    ]
    kept = files(tmp_path)
    assert sorted(kept) == sorted(f"global_epoch1_step{step}/{name}" for step in (1, 2) for name in names)
    assert sum(kept.values()) == 2 * found["bytes"] == record["result"]["write_bytes"]
    assert record["result"]["verified_bytes"] == 2 * found["bytes"] == found["read"]["verified_bytes"]
    for phase in (found["write"], found["read"]):
        assert [turn["step"] for turn in phase["checkpoints"]] == [1, 2]
        for turn in phase["checkpoints"]:
            assert turn["duration_s"] >= turn["rank_s_mean"] >= turn["rank_s_min"] > 0
            assert turn["gib_s"] == pytest.approx(found["bytes"] / GIB / turn["duration_s"])
        assert _core.buckets(phase["histogram"])
    assert found["label"] == "MLPerf-style, unverified"
    assert record["checkpoint"]["write"]["fsync_us"]["max"] > 0
    assert [w["id"] for w in record["warnings"] if w["id"] == "scaled"]


@pytest.mark.promise("CKP-5")
def test_rules_are_judged_each_with_its_reason(capsys: Any, tmp_path: Path) -> None:
    record = run(capsys, tmp_path, "--writes", "1", "--rules", "v3.0")
    verdicts = {rule["id"]: rule["ok"] for rule in record["checkpoint"]["rules"]}
    assert verdicts == {
        "checkpoint.processes": True,
        "checkpoint.ranks_per_host": True,
        "checkpoint.count": False,
        "checkpoint.fsync": True,
        "checkpoint.scale": False,
        "checkpoint.between": False,
        "checkpoint.cache": True,
        "checkpoint.turn": True,
        "checkpoint.complete": True,
    }
    assert all(rule["why"] for rule in record["checkpoint"]["rules"])


@pytest.mark.long
@pytest.mark.promise("CKP-5")
def test_what_the_page_cache_may_still_hold_breaks_the_rule(capsys: Any, tmp_path: Path) -> None:
    def verdict(policy: str) -> bool | None:
        rules = run(capsys, tmp_path / policy, "--writes", "1", "--cache", policy)["checkpoint"]["rules"]
        return next(rule["ok"] for rule in rules if rule["id"] == "checkpoint.cache")

    assert (verdict("bypass"), verdict("drop"), verdict("allow")) == (True, True, False)


def test_a_run_of_ranks_that_the_table_does_not_have_is_a_subset(capsys: Any, tmp_path: Path) -> None:
    record = run(capsys, tmp_path, "--writes", "1", "--ranks", "2", "--quiet")
    found = record["checkpoint"]
    assert (found["mode"], found["ranks"], found["ranks_whole"]) == ("subset", 2, 8)
    whole = run(capsys, tmp_path, "--writes", "1", "--quiet")["checkpoint"]
    assert 4 * found["bytes"] == whole["bytes"] and whole["mode"] == "default"
    assert {r["id"]: r["ok"] for r in found["rules"]}["checkpoint.subset"] is False


def test_reading_is_a_run_of_its_own_where_that_is_wanted(capsys: Any, tmp_path: Path) -> None:
    written = run(capsys, tmp_path, "--writes", "2", "--reads", "0", "--seed", "41")
    assert written["checkpoint"]["read"] is None and "checkpoint.read" in written["missing"]
    read = run(capsys, tmp_path, "--writes", "0", "--reads", "2")
    assert read["checkpoint"]["write"] is None
    assert read["result"]["verified_bytes"] == 2 * written["checkpoint"]["bytes"]
    assert len(files(tmp_path)) == 32


@pytest.mark.promise("CKP-2")
def test_a_damaged_checkpoint_is_exit_code_1_and_named(capsys: Any, tmp_path: Path) -> None:
    run(capsys, tmp_path, "--writes", "1", "--reads", "0")
    victim = tmp_path / "global_epoch1_step1/zero_pp_rank_5_mp_rank_0_optim_states.bin"
    with victim.open("r+b") as file:
        file.seek(123_456)
        file.write(b"not what was written")
    flags = ("--workload", "llama3-8b", "--dir", tmp_path, *SMALL, "--writes", "0", "--reads", "1")
    code, out, _ = typed(capsys, "emulate", "checkpoint", *flags, "--json")
    assert code == 1
    errors = json.loads(out)["result"]["errors"]
    assert errors["verify_failed"] == 1
    assert "zero_pp_rank_5_mp_rank_0_optim_states.bin" in errors["examples"][0] and "123456" in errors["examples"][0]


@pytest.mark.promise("CKP-4")
def test_what_a_user_keeps_there_stays(capsys: Any, tmp_path: Path) -> None:
    mine = tmp_path / "global_epoch1_step1" / "model.bin"
    mine.parent.mkdir()
    mine.write_bytes(b"mine")
    for more in ((), ("--replace",)):
        reported = refused(capsys, "--workload", "llama3-8b", "--dir", tmp_path, *SMALL, *more)
        assert "model.bin" in reported and "another --dir" in reported
    assert files(tmp_path) == {"global_epoch1_step1/model.bin": 4}


def test_requests_that_can_not_be_met_say_what_to_type(capsys: Any, tmp_path: Path) -> None:
    base = ("--workload", "llama3-8b", "--dir", tmp_path)
    assert "forebay emulate run" in refused(capsys, "--workload", "unet3d", "--dir", tmp_path)
    assert "--closed, checkpoint.scale" in refused(capsys, *base, "--scale", "0.1", "--closed")
    assert "a multiple of 1" in refused(capsys, *base, "--ranks", "0")
    assert "only what was written can be read" in refused(capsys, *base, "--writes", "1", "--reads", "2")
    assert "no other host" in refused(capsys, *base, "--shift")
    assert "mkdir -p" in refused(capsys, "--workload", "llama3-8b", "--dir", tmp_path / "a/b", *SMALL)
    assert "is not a folder" in refused(capsys, "--workload", "llama3-8b", "--dir", __file__, *SMALL)
    assert "a multiple of 512" in refused(capsys, *base, *SMALL, "--io-size", "100")
    assert files(tmp_path) == {}


def test_a_checkpoint_larger_than_the_disk_is_refused_before_a_byte(capsys: Any, tmp_path: Path) -> None:
    code, _, err = typed(capsys, "emulate", "checkpoint", "--workload", "llama3-1t", "--dir", tmp_path)
    assert code == 3 and "--scale" in err and files(tmp_path) == {}


@pytest.mark.long
@pytest.mark.promise("CKP-6")
def test_a_disk_that_fills_up_meanwhile_ends_the_run_and_leaves_no_half(tmp_path: Path) -> None:
    """Beside the run something else takes the room, on a file system of a known size."""
    small = tmp_path / "small"
    small.mkdir()
    mounted = processes.run(["mount", "-t", "tmpfs", "-o", "size=140m", "none", small])
    if mounted.returncode:
        pytest.skip("needs root to mount a file system of a known size")
    try:
        # Pauses are long enough for the room to be gone before the last checkpoint.
        command = [*emulate(small / "c"), "--scale", "0.0001", "--writes", "5", "--reads", "0", "--between", "4"]
        with processes.running(command, cwd=tmp_path) as started:
            processes.wait_until(lambda: is_whole(small / "c/global_epoch1_step1"), "a whole checkpoint", started)
            with (small / "filler").open("wb") as filler, contextlib.suppress(OSError):
                while True:
                    filler.write(bytes(1 << 20))
            done = processes.finish(started)
        assert done.returncode == 4, done.stderr
        assert "the file system is full" in done.stderr or "No space left" in done.stderr
        record = json.loads(done.stdout)
        written = len(record["checkpoint"]["write"]["checkpoints"])
        assert 1 <= written < 5
        folders = sorted(p.name for p in (small / "c").iterdir())
        assert folders == [f"global_epoch1_step{n}" for n in range(1, written + 1)]
    finally:
        assert processes.run(["umount", "-l", small]).returncode == 0


def emulate(folder: Path) -> list[str]:
    command = [*processes.FOREBAY, "emulate", "checkpoint", "--workload", "llama3-8b", "--json"]
    return [*command, "--dir", str(folder)]


def is_whole(checkpoint: Path) -> bool:
    """All of its files are listed as they were made, and none as expected only."""
    try:
        files = json.loads((checkpoint / ".forebay.json").read_text())["files"].values()
    except (OSError, ValueError):
        return False
    return bool(files) and all(entry["inode"] for entry in files)


# What is seen in the run's folder → seconds between its checkpoints: so many that what follows doesn't end it.
MOMENTS: dict[str, tuple[Callable[[Path], bool], str]] = {
    "a folder": (lambda folder: (folder / "global_epoch1_step1").exists(), "10"),
    "bytes": (lambda folder: any(folder.glob("global_epoch1_step1/*.bin")), "10"),
    "a whole checkpoint": (lambda folder: is_whole(folder / "global_epoch1_step1"), "10"),
    "the next one": (lambda folder: (folder / "global_epoch1_step2").exists(), "4"),
}


@pytest.mark.promise("CKP-6")
@parametrized("moment", MOMENTS, kept=(1,))
@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, id="int"), pytest.param(signal.SIGTERM, id="term", marks=pytest.mark.long)]
)
def test_a_signal_keeps_what_was_measured_and_leaves_no_file(tmp_path: Path, number: signal.Signals, moment: str) -> None:
    has_come, between = MOMENTS[moment]
    folder = tmp_path / "c"
    with processes.running([*emulate(folder), "--scale", "0.001", "--between", between], cwd=tmp_path) as started:
        processes.wait_until(lambda: has_come(folder), moment, started)
        started.send_signal(number)
        done = processes.finish(started)
    assert done.returncode == 130 and "Traceback" not in done.stderr, done.stderr
    record = json.loads(done.stdout)
    assert record["result"]["interrupted"] is True
    written = len((record["checkpoint"]["write"] or {"checkpoints": []})["checkpoints"])
    assert (1 if moment in ("a whole checkpoint", "the next one") else 0) <= written < 10
    assert not folder.exists() or files(folder) == {}


@pytest.mark.promise("CKP-9")
def test_bytes_come_from_and_go_to_gpu_memory(tmp_path: Path) -> None:
    """With the stand-ins for NVIDIA's libraries: content is made and checked by kernels, and bounced."""
    gpu = Gpu(built(), tmp_path)
    flags = ["--scale", "0.0001", "--between", "0", "--writes", "2", "--io-size", "64k", "--path"]
    for path in ("bounce", "gds"):
        folder = tmp_path / path
        environment = gpu.environment("gpus=1,memory=256m", cufile="mode=p2p")
        done = processes.run([*emulate(folder), *flags, path], env=environment, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        record = json.loads(done.stdout)
        assert (record["path"]["ran"], record["path"]["destination"]) == (path, "gpu:0")
        assert record["result"]["verified_on"] == "gpu:0"
        assert record["result"]["verified_bytes"] == 2 * record["checkpoint"]["bytes"]
        books = json.loads((tmp_path / "books.json").read_text())
        left = {k: n for k, n in books["live"].items() if n and k != "modules"}
        assert not left and books["copies_outside"] == 0, books


@pytest.mark.long
@pytest.mark.promise("CKP-8")
@needs_mpi
def test_two_processes_share_the_ranks_and_read_each_others_files(tmp_path: Path) -> None:
    with under_mpirun(tmp_path, "--scale", "0.0001", "--between", "0", "--writes", "2", "--shift") as started:
        done = processes.finish(started)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    found = record["checkpoint"]
    assert found["hosts"] == 2 and len(record["result"]["hosts"]) == 2
    assert [turn["bytes"] for turn in found["write"]["checkpoints"]] == [found["bytes"]] * 2
    assert found["read"]["verified_bytes"] == 2 * found["bytes"]
    assert record["result"]["errors"]["verify_failed"] == 0
    assert not (tmp_path / "c").exists() or files(tmp_path / "c") == {}


@pytest.mark.promise("CKP-8")
@pytest.mark.long  # mpirun kills what hasn't ended a few seconds after the signal, as on a machine that others use
@needs_mpi
def test_ctrl_c_ends_all_processes_and_keeps_what_was_measured(tmp_path: Path) -> None:
    with under_mpirun(tmp_path, "--scale", "0.001", "--between", "4") as started:
        processes.wait_until((tmp_path / "c/global_epoch1_step2").exists, "a second checkpoint", started)
        started.send_signal(signal.SIGINT)
        processes.finish(started)
    kept = [json.loads(p.read_text()) for p in tmp_path.glob("forebay-*.json")]
    assert kept and all(record["result"]["interrupted"] for record in kept)
    assert any(record["checkpoint"]["write"]["checkpoints"] for record in kept)


def under_mpirun(tmp_path: Path, *flags: str) -> AbstractContextManager[subprocess.Popen[str]]:
    command = [MPIRUN, "--oversubscribe", "-n", "2", *emulate(tmp_path / "c"), *flags]
    return processes.running(command, cwd=tmp_path, env={**os.environ, **AS_ROOT})


def test_the_summary_says_what_ran_and_what_does_not_hold(capsys: Any, tmp_path: Path) -> None:
    flags = ("--workload", "llama3-8b", "--dir", tmp_path, *SMALL, "--writes", "1")
    code, out, err = typed(capsys, "emulate", "checkpoint", *flags)
    assert code == 0, err
    assert "8 ranks of 8" in out and "ZeRO 3" in out and "MLPerf-style, unverified" in out
    assert "checkpoint.scale BROKEN" in out and "verified" in out


def test_the_bench_writes_as_many_bytes_as_it_says(capsys: Any, tmp_path: Path) -> None:
    monitor = importlib.util.spec_from_file_location("bench_checkpoint", ROOT / "bench/checkpoint.py")
    assert monitor and monitor.loader
    sys.path.insert(0, str(ROOT / "bench"))
    bench = importlib.util.module_from_spec(monitor)
    monitor.loader.exec_module(bench)
    flags = ("--scale", "0.001", "--writes", "1", "--reads", "0", "--dry-run", "--json")
    _, out, _ = typed(capsys, "emulate", "checkpoint", "--workload", "llama3-8b", "--dir", tmp_path, *flags)
    assert json.loads(out)["bytes"] == pytest.approx(bench.WHOLE_BYTES / 1000, abs=16)
    assert bench.fio(tmp_path, 0.001, 1 << 20, 4).command[0] == "fio"


def test_a_share_of_the_ranks_is_equal_or_refused() -> None:
    spec = {"model": {"tensor": 8, "pipeline": 1, "data": 8}}
    parts = [checkpoint.share_of(spec, n, 4) for n in range(4)]
    assert [(p["first_rank"], p["ranks_here"]) for p in parts] == [(0, 16), (16, 16), (32, 16), (48, 16)]
    with pytest.raises(checkpoint.RequestError, match="a divisor of 64"):
        checkpoint.share_of(spec, 0, 3)
