"""A KV cache on sources without files: what lies where can be read from the source alone, by the layout of docs/kvcache.md."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import processes
import pytest
from fake_machine import typed
from forebay import _core
from forebay.emulate.kvcache import replay
from serve_support import NQN, Target
from test_emulate_kvcache import TINY
from test_kvcache_replay import TINY as TINY_MODEL
from test_kvcache_replay import drawn, mooncake, options

MIB = 1 << 20
FEW = (*TINY, "--users", "2", "--duration", "0.3", "--workers", "1")


def run(capsys: Any, where: Any, *flags: str) -> dict[str, Any]:
    code, out, err = typed(capsys, "emulate", "kvcache", "--dir", where, "--json", *flags)
    assert code == 0, err
    return json.loads(out)


def logged(raw: bytes) -> list[dict[str, int]]:
    """Records by their number in time."""
    found = []
    # The first is the claim.
    for at in range(4096, 64 * 4096, 4096):
        record = raw[at : at + 4096]
        if record[:8] != b"FBEXTENT":
            assert not any(record[:8])
            continue
        version, crc = struct.unpack_from("<II", record, 8)
        assert version == 1 and _core.crc32c(record[16:], 0) == crc
        names = ("sequence", "at", "bytes", "content", "seed", "rank", "user", "conversation", "turn", "records")
        found.append(dict(zip(names, struct.unpack_from("<5Q5I", record, 32), strict=True)) | {"run": int(record[16:32], 16)})
    return sorted(found, key=lambda record: record["sequence"])


@pytest.mark.promise("KVC-49")
def test_entries_of_a_file_are_verified_logged_and_where_the_log_says(capsys: Any, tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(bytes(64 * MIB))
    taken = run(capsys, file, *FEW, "--verify", "--overwrite", str(file))
    folder = run(capsys, tmp_path, *FEW)
    assert taken["kvcache"]["stream_hash"] == folder["kvcache"]["stream_hash"]
    part = taken["kvcache"]
    assert part["entries"]["lost"] == part["entries"]["given_up"] == taken["result"]["errors"]["verify_failed"] == 0
    raw = file.read_bytes()
    records = logged(raw)
    assert 0 < len(records) <= 64 and len({record["run"] for record in records}) == 1
    held: list[dict[str, int]] = []
    for record in records:
        assert record["at"] >= MIB and record["at"] % 4096 == 0 and record["records"] == 64 and record["seed"] == 42
        assert record["at"] + record["bytes"] <= len(raw)
        held = [r for r in held if r["at"] + r["bytes"] <= record["at"] or record["at"] + record["bytes"] <= r["at"]] + [record]
    # Nothing was evicted, so that all are there, each full of bytes that no drive compresses.
    assert part["entries"]["evicted"] > 0 or len(held) == part["entries"]["count"]
    assert all(raw[r["at"] : r["at"] + r["bytes"]].count(0) < r["bytes"] // 64 for r in held)


@pytest.mark.long
@pytest.mark.promise("KVC-49")
def test_a_stripe_and_a_namespace_over_tcp_serve_the_same_stream(capsys: Any, tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_bytes(bytes(32 * MIB))
    stripe = f"stripe:?chunk=64k&m={tmp_path / 'a'}&m={tmp_path / 'b'}"
    mine = run(capsys, stripe, *FEW, "--verify", "--overwrite", f"{tmp_path / 'a'},{tmp_path / 'b'}")
    (tmp_path / "n").write_bytes(bytes(64 * MIB))
    with Target(tmp_path / "n", "--nqn", NQN, "--writable") as target:
        uri = target.uri()
        code, _, err = typed(capsys, "emulate", "kvcache", "--dir", uri, *FEW)
        assert code == 2 and "--overwrite-device" in err
        theirs = run(capsys, uri, *FEW, "--verify", "--overwrite-device", uri)
        for found in (mine, theirs):
            assert found["kvcache"]["entries"]["lost"] == found["result"]["errors"]["verify_failed"] == 0
            assert found["result"]["verified_bytes"] > 0 if "verified_bytes" in found["result"] else True
        assert mine["kvcache"]["stream_hash"] == theirs["kvcache"]["stream_hash"]
    assert logged((tmp_path / "n").read_bytes())


@pytest.mark.promise("KVC-49")
def test_a_source_that_is_full_evicts_and_goes_on_and_a_trace_is_replayed_on_one(capsys: Any, tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(bytes(3 * MIB))
    # Five requests begin in half a second, of which a busy machine may begin one.
    more = (*TINY, "--users", "6", "--duration", "2", "--capacity", "1700k", "--overwrite", str(file))
    part = run(capsys, file, *more, "--verify")["kvcache"]
    assert part["entries"]["evicted"] + part["entries"]["given_up"] > 0 and part["entries"]["lost"] == 0
    trace = mooncake(tmp_path / "t", *((at / 20, ids) for at, ids in drawn(9, 16)))
    where = {"folder": str(file), "storage_tier": str(20 * 512 * 32), "overwrite": [str(file)]}
    found = replay.replayed(trace, replay.Asked(options(model=TINY_MODEL, verify=True, **where)))
    # No more than the log has records for, however late this machine removes what is evicted.
    assert found["write_bytes"] <= 64 * 512 * 32 and found["blocks"]["evicted"] > 5
    assert found["error"] is None and found["folder"]["lost"] == 0 and found["folder"]["read_bytes"] == found["read_bytes"] > 0


def claim(file: Path) -> tuple[bytes, int, int]:
    """The run that claims a source, its count, and its process; zeros while it is being written."""
    record = file.read_bytes()[:4096]
    magic, version, crc, own, beat, process = struct.unpack_from("<8sII16sQQ", record)
    is_whole = (magic, version, crc) == (b"FBCLAIM\0", 1, _core.crc32c(record[16:], 0))
    return (own, beat, process) if is_whole else (b"", 0, 0)


@pytest.mark.promise("KVC-49")
def test_a_namespace_that_another_run_has_is_refused_until_that_is_dead(capsys: Any, tmp_path: Path) -> None:
    """A file has a lock, a device too; a namespace over a fabric has its claim alone."""
    file = tmp_path / "f"
    file.write_bytes(bytes(64 * MIB))
    with Target(file, "--nqn", NQN, "--writable") as target:
        uri = target.uri()
        mine = (*FEW, "--overwrite-device", uri)
        run(capsys, uri, *mine)
        assert claim(file)[1:] == (0, os.getpid())
        command = [*processes.FOREBAY, "emulate", "kvcache", *mine, "--duration", "600", "--dir", uri]

        def has_it(process: Any) -> None:
            processes.wait_until(lambda: claim(file)[1] > 0 and claim(file)[2] == process.pid, "its claim", process)

        with processes.running(command, cwd=tmp_path) as other:
            has_it(other)
            code, out, err = typed(capsys, "emulate", "kvcache", "--dir", uri, *mine)
            assert code == 3 and out == "" and f"another run has it: process {other.pid} on " in err, err
            other.kill()
            processes.finish(other)
        assert claim(file)[1] > 0
        run(capsys, uri, *mine)
        # A run ends that finds another in its place, as after it was held still: both would write there.
        with processes.running(command, cwd=tmp_path) as other:
            has_it(other)
            record = bytearray(file.read_bytes()[:4096])
            record[16:32] = b"f" * 16
            record[12:16] = struct.pack("<I", _core.crc32c(bytes(record[16:]), 0))
            with open(file, "r+b") as raw:
                raw.write(record)
            done = processes.finish(other)
            assert "took it over" in done.stdout + done.stderr, done
        assert claim(file)[0] == b"f" * 16


@pytest.mark.promise("KVC-49")
def test_nothing_of_anybody_is_overwritten_unasked(capsys: Any, tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(os.urandom(4 * MIB))
    before = file.read_bytes()
    pair = [tmp_path / name for name in "ab"]
    for each in pair:
        each.write_bytes(bytes(32 * MIB))
    stripe = "stripe:?chunk=64k&" + "&".join(f"m={each}" for each in pair)
    for where, flags, said in (
        (file, (), "didn't create"),
        (file, ("--io-size", "1m", "--overwrite", str(file), "--cache", "drop", "--dry-run"), None),
        (f"stripe:?chunk=64k&m={file}&m={tmp_path / 'none'}", (), "didn't create"),
        (stripe, ("--overwrite", str(pair[0]), "--dry-run"), "didn't create"),
        (stripe, ("--overwrite", f"{pair[0]},{pair[1]}", "--dry-run"), None),
        (stripe, ("--overwrite", str(pair[0]), "--overwrite", str(pair[1]), "--dry-run"), None),
    ):
        code, _, err = typed(capsys, "emulate", "kvcache", "--dir", where, *FEW, *flags)
        assert code == (0 if said is None else 2) and (said or "") in err, err
    small = tmp_path / "small"
    small.write_bytes(bytes(MIB))
    code, _, err = typed(capsys, "emulate", "kvcache", "--dir", small, "--overwrite", small, *FEW)
    assert code == 2 and "a larger source" in err
    assert file.read_bytes() == before
