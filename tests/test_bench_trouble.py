"""What goes wrong under a run is named, counted and survived: the installed command over the real engine."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from other_user import OtherUser, somebody  # noqa: F401

FOREBAY = [sys.executable, "-m", "forebay.cli"]


def start(*arguments: Any, cwd: Path, before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    command = [*before, *FOREBAY, "bench", *map(str, arguments), "--json", "--quiet"]
    return subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_file_cut_off_while_it_is_read_ends_the_run_and_keeps_what_was_measured(tmp_path: Path) -> None:
    target = tmp_path / "data"
    target.write_bytes(bytes(8 << 20))
    job = ("--cache", "allow", "--engine", "pread", "--rate-iops", 500, "--io-size", "4k", "--duration", 8)
    run = start(target, *job, "-o", "run.json", cwd=tmp_path)
    time.sleep(2.5)
    target.write_bytes(b"")
    _, err = run.communicate(timeout=60)
    assert run.returncode == 4 and "data" in err, err
    saved = json.loads((tmp_path / "run.json").read_text())
    assert saved["result"]["ios"] > 100 and saved["result"]["errors"]["examples"]


def test_a_device_that_stalls_ends_in_a_named_time_out(tmp_path: Path) -> None:
    job = (
        "--faults",
        "seed=1,stall=0.01",
        "--timeout",
        0.5,
        "--rate-iops",
        500,
        "--duration",
        5,
        "--warmup",
        0,
    )
    run = start("nil:", *job, "-o", "run.json", cwd=tmp_path)
    _, err = run.communicate(timeout=60)
    assert run.returncode == 4 and "--timeout" in err, err
    result = json.loads((tmp_path / "run.json").read_text())["result"]
    assert result["errors"]["timed_out"] >= 1 and result["ios"] > 0


def test_an_injected_error_is_counted_and_named(tmp_path: Path) -> None:
    job = ("--faults", "seed=1,error=0.05", "--rate-iops", 1000, "--duration", 0.5, "--warmup", 0)
    run = start("nil:", *job, "-o", "run.json", cwd=tmp_path)
    _, err = run.communicate(timeout=60)
    errors = json.loads((tmp_path / "run.json").read_text())["result"]["errors"]
    assert run.returncode == 4 and errors["failed"] > 0
    assert "injected error at offset" in errors["examples"][0] and errors["examples"][0] in err


def test_two_runs_that_write_one_folder_are_kept_apart(tmp_path: Path) -> None:
    first = start(
        ".", "--file-size", "4m", "--op", "write", "--duration", 6, "--cache", "allow", cwd=tmp_path
    )
    deadline = time.monotonic() + 20
    while not (tmp_path / "forebay.0").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    second = start(".", "--op", "write", "--duration", 0.2, "--cache", "allow", cwd=tmp_path)
    _, err = second.communicate(timeout=60)
    assert second.returncode == 3 and "another Forebay run" in err
    out, err = first.communicate(timeout=60)
    assert first.returncode == 0 and json.loads(out)["result"]["errors"]["failed"] == 0, err


def test_two_runs_may_read_one_folder_at_once(tmp_path: Path) -> None:
    job = ("--file-size", "4m", "--cache", "allow", "--verify")
    made = start(".", *job, "--passes", 1, cwd=tmp_path)
    made.communicate(timeout=60)
    both = [start(".", *job, "--duration", 1, cwd=tmp_path) for _ in range(2)]
    for run in both:
        out, err = run.communicate(timeout=60)
        assert run.returncode == 0, err
        assert json.loads(out)["result"]["verified_bytes"] > 0


@pytest.mark.root
def test_too_little_locked_memory_is_said_with_what_raises_it(somebody: OtherUser) -> None:  # noqa: F811
    if not shutil.which("prlimit"):
        pytest.skip("prlimit is absent; try: apt install util-linux")
    job = ("--file-size", "4m", "--passes", 1, "--cache", "allow", "--engine", "uring", "--json", "--quiet")
    # Root may lock what it likes; somebody else may not.
    done = somebody.run("bench", somebody.home, *job, before=("prlimit", "--memlock=65536"))
    if done.returncode != 0 and "io_uring" in done.stderr:
        pytest.skip(f"no io_uring: {done.stderr.strip()[:100]}")
    assert done.returncode == 0, done.stderr
    warnings = json.loads(done.stdout)["warnings"]
    assert any(w["id"] == "locked_memory" and "ulimit -l" in w["next"] for w in warnings), warnings


def test_a_record_of_an_older_schema_is_read_and_others_are_refused_by_name(tmp_path: Path) -> None:
    from forebay import _core
    from forebay.errors import RequestError

    out, _ = start("nil:", "--duration", 0.1, cwd=tmp_path).communicate(timeout=60)
    old = json.loads(out)
    rate = old["result"].pop("throughput_gib_s")
    old["result"]["gib_per_s"] = rate
    del old["missing"], old["warnings"]
    old["schema"] = "forebay.run/0"
    read = json.loads(_core.read_record(json.dumps(old)))
    assert read["schema"] == _core.schema() and read["result"]["throughput_gib_s"] == rate
    for text, named in [
        (out.replace("forebay.run/1", "forebay.run/99"), "forebay.run/99"),
        (out[: len(out) // 2], "EOF"),
        ("[]", "JSON object"),
        ("{}", "no schema"),
    ]:
        with pytest.raises(RequestError, match=named):
            _core.read_record(text)
