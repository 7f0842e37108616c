"""`forebay emulate kvcache` as it is typed: rates, hash, eviction, damage under us, refusals, interruption, files, hosts."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import re
import signal
import subprocess
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import processes
import pytest
from fake_machine import typed
from forebay import _core
from forebay.emulate.kvcache import verb
from forebay.errors import RequestError
from mpi_support import AS_ROOT, MPIRUN, needs_mpi

# 64 bytes a token: entries of 8 KiB to 1.6 MB.
TINY = ("--model", "layers=1,kv_heads=1,head_dim=16,dtype=bf16")
SMALL = (*TINY, "--users", "12", "--duration", "1")
LONG = [*processes.FOREBAY, "emulate", "kvcache", *TINY, "--users", "4", "--duration", "60"]


def run(capsys: Any, folder: Any, *flags: Any) -> dict[str, Any]:
    code, out, err = typed(capsys, "emulate", "kvcache", "--dir", folder, "--json", *flags)
    assert code == 0, err
    return json.loads(out)


def refused(capsys: Any, *flags: Any) -> str:
    code, out, err = typed(capsys, "emulate", "kvcache", *flags)
    assert code == 2 and out == "", err
    return err


@pytest.mark.long
@pytest.mark.promise("KVC-5")
def test_the_three_options_on_a_data_sheet_take_seconds_and_say_what_they_assume(capsys: Any) -> None:
    """The whole of 3 options × 3 trials is to take less than a minute; ten times that here."""
    begin = time.monotonic()
    for option, admission in ((1, 16), (2, 16), (3, 4)):
        record = run(capsys, "model:d7-ps1010", "--option", option)
        part = record["kvcache"]
        assert record["origin"] == "simulated" and part["option"] == option and part["admission"] == admission
        rates = part["read_gib_s"]
        assert rates["window"] <= 13.51 and rates["drained"] <= 13.51 < rates["as_published"]
        assert part["limit"] in ("drive", "admission", "users", "cpu") and len(part["assumptions"]) > 3
        assert part["label"] == "MLPerf-style, unverified"
        both = rates["window"] + part["write_gib_s"]["window"]
        assert record["result"]["throughput_gib_s"] == pytest.approx(both, rel=1e-6)
    assert time.monotonic() - begin < 600 / 3


@pytest.mark.promise("KVC-8")
def test_files_and_virtual_time_see_the_same_stream(capsys: Any, tmp_path: Path) -> None:
    spec = ("--users", "5", "--duration", "0.6", "--seed", "3", *TINY)
    other = ("--workers", "1", "--depth", "2", "--io-size", "64k", "--cache", "drop")
    runs = (run(capsys, tmp_path, *spec), run(capsys, tmp_path, *spec, *other), run(capsys, "model:gen5-ideal", *spec))
    hashes = [record["kvcache"]["stream_hash"] for record in runs]
    plan = json.loads(typed(capsys, "emulate", "kvcache", "--dir", tmp_path, *spec, "--dry-run", "--json")[1])
    assert len({*hashes, plan["stream_hash"]}) == 1
    assert run(capsys, "model:gen5-ideal", *spec, "--seed", "4")["kvcache"]["stream_hash"] not in hashes
    assert list(tmp_path.iterdir()) == []


@pytest.mark.promise("KVC-3")
def test_entries_keep_to_their_room(capsys: Any, tmp_path: Path) -> None:
    part = run(capsys, tmp_path, *SMALL, "--capacity", "2m", "--verify")["kvcache"]
    # What is being read stays, so that as much may lie there beside it as is written at once.
    room = (2 << 20) + part["admission"] * part["entries"]["bytes_max"]
    assert part["entries"]["evicted"] > 0 and part["tiers"]["storage"]["used_bytes"] <= room
    assert part["storage_tier_bytes"] == 2 << 20
    # A memory tier takes what it can, and the rest of it moves to storage.
    tiered = run(capsys, tmp_path, *SMALL, "--host-tier", "2m")["kvcache"]
    assert tiered["tiers"]["host"]["reads"] > 0 and tiered["entries"]["demoted"] > 0
    assert tiered["tiers"]["host"]["used_bytes"] <= 2 << 20


def entries(folder: Path) -> list[Path]:
    return sorted(folder.glob("forebay-kv-*/rank_0/*.kv"))


def beside(folder: Path, act: Callable[[Path], None]) -> threading.Thread:
    """Does something to every entry that shows up below a folder, until the folder is gone."""

    def work() -> None:
        end = time.monotonic() + 20
        while time.monotonic() < end and not stop.is_set():
            for entry in entries(folder):
                with contextlib.suppress(OSError):
                    act(entry)
            time.sleep(0.002)

    stop = threading.Event()
    thread = threading.Thread(target=work)
    thread.stop = stop.set  # type: ignore[attr-defined]
    thread.start()
    return thread


@pytest.mark.long
def test_an_entry_that_is_deleted_under_us_is_a_miss(capsys: Any, tmp_path: Path) -> None:
    thread = beside(tmp_path, Path.unlink)
    try:
        record = run(capsys, tmp_path, *SMALL)
    finally:
        thread.stop()  # type: ignore[attr-defined]
        thread.join()
    assert record["kvcache"]["entries"]["lost"] > 0 and record["kvcache"]["requests"]["served"] > 0
    (lost,) = (w["text"] for w in record["warnings"] if w["id"] == "kvcache_lost")
    assert re.search(r"; the first: user\d+_conv\d+_turn\d+ of rank 0$", lost)


@pytest.mark.promise("KVC-7")
def test_a_damaged_block_is_named_with_its_key_and_offset(capsys: Any, tmp_path: Path) -> None:
    block = mmap.mmap(-1, 4096)
    block.write(b"damaged!" * 512)

    def damage(entry: Path) -> None:
        # Past the page cache, which the run's own writes go past, too.
        descriptor = os.open(entry, os.O_WRONLY | os.O_DIRECT)
        try:
            os.pwrite(descriptor, block, 4096)
        finally:
            os.close(descriptor)

    thread = beside(tmp_path, damage)
    try:
        flags = ("--dir", tmp_path, *SMALL, "--duration", "2", "--verify", "--json")
        code, out, err = typed(capsys, "emulate", "kvcache", *flags)
    finally:
        thread.stop()  # type: ignore[attr-defined]
        thread.join()
    record = json.loads(out)
    assert code == 1, err
    assert record["result"]["errors"]["verify_failed"] > 0
    assert "user" in err and "_turn" in err and "offset" in err, err
    assert entries(tmp_path) == []


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--dir", "model:no-such"), "d7-ps1010"),
        (("--dir", "model:d7-ps1010", "--model", "llama9"), "llama3.1-70b-instruct"),
        (("--dir", "model:d7-ps1010", "--model", "layers=1"), "kv_heads"),
        (("--dir", "model:d7-ps1010", "--option", "4"), "--option"),
        (("--dir", "model:d7-ps1010", "--option", "one"), "--option"),
        (("--dir", "model:d7-ps1010", "--users", "0"), "--users"),
        (("--dir", "model:d7-ps1010", "--capacity", "0"), "--capacity"),
        (("--dir", "model:d7-ps1010", "--capacity", "2g"), "an entry of up to 24836 tokens takes"),
        (("--dir", "model:d7-ps1010", "--option", "2", *SMALL), "a smaller --host-tier"),
        (("--dir", "model:d7-ps1010", "--users", "99999999"), "5 million"),
        (("--dir", "model:d7-ps1010", "--duration", "0"), "--duration"),
        (("--dir", "model:d7-ps1010", "--verify"), "--verify"),
        (("--dir", "model:micron-9300-pro?x=1"), "'x'"),
        (("--dir", "/no/such/place/at/all"), "mkdir -p"),
        (("--dir", "/dev/null"), "it holds nothing"),
        (("--dir", "/tmp", "--io-size", "1000"), "4096"),
        (("--dir", "/tmp", "--closed", "--users", "7"), "--closed"),
        (("--users", "7"), "--dir"),
        (("--dir", "/tmp", "--trace", "/etc/passwd"), "--trace"),
    ],
)
def test_what_cannot_be_right_is_refused_with_what_can(capsys: Any, flags: tuple[str, ...], named: str) -> None:
    assert named in refused(capsys, *flags)


@pytest.mark.promise("KVC-24")
def test_a_trace_tells_entries_of_several_ranks_apart(capsys: Any, tmp_path: Path) -> None:
    for ranks in (1, 2):
        name = tmp_path / f"{ranks}.csv"
        flags = ("--users", "3", "--duration", "3", "--ranks", str(ranks), "--trace", name)
        run(capsys, "model:d7-ps1010", *flags)
        keys = {line.split(",")[4] for line in name.read_text().splitlines()[1:]}
        assert {key.partition("user")[0] for key in keys} == ({"rank0_", "rank1_"} if ranks == 2 else {""})


@pytest.mark.long
def test_results_are_the_references_files_and_never_overwritten(capsys: Any, tmp_path: Path) -> None:
    cache, out = tmp_path / "cache", tmp_path / "results"
    record = run(capsys, cache, *SMALL, "--results", out, "--trace", tmp_path / "t.csv")
    assert any(w["id"] == "kvcache_same_filesystem" for w in record["warnings"])
    (document,) = [json.loads(p.read_text()) for p in (out / "option_1/trial_0/rank_0").glob("kvcache_results_*.json")]
    part, stats = record["kvcache"], document["summary"]["cache_stats"]
    assert document["requests_completed"] == part["requests"]["served"] == len(document["end_to_end_latencies"])
    assert stats["cache_hits"] + stats["cache_misses"] == part["hits"]["lookups"]
    assert stats["tier_storage_read_bandwidth_gbps"] == pytest.approx(part["read_gib_s"]["as_published"], rel=1e-9)
    assert json.loads((out / "summary.json").read_text())["options"]["1"]["trial_count"] == 1
    rows = (tmp_path / "t.csv").read_text().splitlines()
    assert rows[0].startswith("Timestamp,Operation") and len(rows) - 1 == sum(
        part["tiers"][tier][way] for tier in ("storage", "host") for way in ("reads", "writes")
    )
    # The next trial takes the next number; the same one is refused.
    run(capsys, cache, *SMALL, "--results", out)
    assert (out / "option_1/trial_1/rank_0").is_dir()
    assert "trial_1" in refused(capsys, "--dir", cache, *SMALL, "--results", out, "--trial", "1")
    assert not cache.exists()
    code, said, _ = typed(capsys, "emulate", "kvcache", "check", out)
    assert code == 0, said


@pytest.mark.long
def test_another_run_in_the_same_folder_is_refused_and_a_killed_ones_folder_is_named(capsys: Any, tmp_path: Path) -> None:
    first = subprocess.Popen([*LONG, "--dir", str(tmp_path), "-q"])
    try:
        end = time.monotonic() + 60
        while not entries(tmp_path) and time.monotonic() < end:
            time.sleep(0.02)
        code, _, err = typed(capsys, "emulate", "kvcache", "--dir", tmp_path, *SMALL)
        assert code == 3 and "another run" in err, err
    finally:
        first.kill()
        first.wait()
    (left,) = tmp_path.glob("forebay-kv-*")
    record = run(capsys, tmp_path, *SMALL)
    assert any(w["id"] == "kvcache_left" and str(left) in w["next"] for w in record["warnings"])
    assert left.is_dir() and len(list(tmp_path.glob("forebay-kv-*"))) == 1


@pytest.mark.long
def test_ctrl_c_keeps_what_was_measured_and_leaves_no_entry(tmp_path: Path) -> None:
    out = tmp_path / "run.json"
    cache = tmp_path / "cache"
    words = [*LONG, "--dir", str(cache), "-o", str(out)]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    end = time.monotonic() + 60
    while not entries(cache) and time.monotonic() < end:
        time.sleep(0.02)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    record = json.loads(out.read_text())
    assert record["result"]["interrupted"] and record["kvcache"]["stream_hash"] is None
    assert record["kvcache"]["write_bytes"] > 0 and record["kvcache"]["read_gib_s"]["window"] >= 0
    assert not cache.exists()


@pytest.mark.long
@needs_mpi
@pytest.mark.promise("KVC-4")
def test_two_processes_make_the_stream_of_one_with_two_ranks(capsys: Any, tmp_path: Path) -> None:
    spec = (*TINY, "--users", "6", "--duration", "0.8")
    whole = run(capsys, "model:gen5-ideal", *spec, "--ranks", "2")["kvcache"]
    words = [str(MPIRUN), "-n", "2", *processes.FOREBAY, "emulate", "kvcache", *spec, "--json", "-q"]
    words += ["--dir", str(tmp_path / "cache"), "--results", str(tmp_path / "results")]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, **AS_ROOT})
    assert done.returncode == 0, done.stderr
    merged = json.loads(done.stdout)["kvcache"]
    assert merged["stream_hash"] == whole["stream_hash"] and merged["ranks"] == 2
    ranks = sorted(p.parent.name for p in (tmp_path / "results").rglob("kvcache_results_*.json"))
    assert ranks == ["rank_0", "rank_1"]
    one = [*processes.FOREBAY, "emulate", "kvcache", *spec, "--dir", str(tmp_path / "other")]
    words = [str(MPIRUN), "-n", "1", *one, ":", "-n", "1", *one, "--seed", "7"]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, **AS_ROOT})
    assert done.returncode == 2 and "--seed: rank 1 on " in done.stderr and not (tmp_path / "other").exists()


@pytest.mark.promise("KVC-4")
def test_ranks_whose_settings_differ_are_refused_before_they_write() -> None:
    spec = verb.option_of(1) | {"dir": "a", "seed": 42, "first_rank": 0}
    for other, said in (
        ({"dir": "b", "first_rank": 1}, None),
        ({"seed": 43}, "--seed: rank 1 on h1 has 43, and rank 0 on h0 42"),
        ({"io_bytes": 65536}, "--io-size: rank 1"),
        ({"model": "llama2-7b"}, "--model: rank 1"),
    ):
        world = types.SimpleNamespace(each=lambda mine, other=other: [("h0", mine), ("h1", mine | other)])
        refused = contextlib.nullcontext() if said is None else pytest.raises(RequestError, match=said)
        with refused:
            verb.refuse_differing(spec, world)


def test_the_engine_knows_the_options_and_refuses_others() -> None:
    assert json.loads(_core.kvcache_option(2))["host_tier_bytes"] == 4 << 30
    with pytest.raises(Exception, match="option 9"):
        _core.kvcache_option(9)
