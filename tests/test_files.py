"""`forebay files` as its users meet it, on a real file system."""

from __future__ import annotations

import itertools
import json
import os
import pty
import signal
import tempfile
from pathlib import Path

import processes
import pytest
from disks_support import mounted  # noqa: F401
from other_user import UID, OtherUser, somebody  # noqa: F401
from properties import parametrized

PHASES = ("create", "stat", "read", "delete")
FAST = ("--files", "200", "--file-size", "4k", "--workers", "2")


def forebay(*arguments, cwd=None):
    return processes.run([*processes.FOREBAY, "files", *arguments], cwd=cwd)


def test_a_table_of_all_phases_and_nothing_left(tmp_path):
    (tmp_path / "precious").write_text("mine")
    done = forebay(tmp_path, *FAST)
    assert done.returncode == 0, done.stderr
    rows = {
        line.split()[0]: line.split() for line in done.stdout.splitlines() if line.startswith(PHASES)
    }
    assert list(rows) == list(PHASES)
    assert all(cells[1] == "200" for cells in rows.values())
    assert [p.name for p in tmp_path.iterdir()] == ["precious"]


PHASES = ("create", "stat", "read", "delete")


@pytest.mark.promise("CMD-7")
def test_json_is_one_document_with_every_null_explained(tmp_path):
    done = forebay(tmp_path, *FAST, "--json")
    record = json.loads(done.stdout)
    assert record["schema"] == "forebay.files/1" and record["environment"]["host"]
    assert [p["phase"] for p in record["phases"]] == list(PHASES)
    for number, phase in enumerate(record["phases"]):
        assert phase["files"] == 200 and phase["complete"] and phase["ops_s"] > 0
        for key, value in {**phase, **{f"cpu.{k}": v for k, v in phase["cpu"].items()}}.items():
            if value is None:
                assert record["missing"][f"phases.{number}.{key}"]


def test_out_saves_the_record_and_spares_other_files(tmp_path):
    out = tmp_path / "files.json"
    assert forebay(tmp_path, *FAST, "-o", out, "-q").returncode == 0
    assert json.loads(out.read_text())["job"]["files"] == 200
    out.write_text("thesis")
    assert forebay(tmp_path, *FAST, "-o", out).returncode == 2
    assert out.read_text() == "thesis"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--files", "0"), "--files 0"),
        (("--files", "many"), "--files many"),
        (("--workers", "0"), "--workers 0"),
        (("--file-size", "big"), "--file-size big"),
        (("--phases", "stat"), "--phases stat"),
        (("--phases", "create,move"), "'move'"),
        (("--cache", "warm"), "--cache warm"),
        (("--directories", "-1"), "--directories -1"),
    ],
)
def test_bad_requests_name_the_flag(tmp_path, arguments, named):
    done = forebay(tmp_path, *arguments)
    assert done.returncode == 2 and named in done.stderr and "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_missing_directory_is_a_bad_request():
    done = forebay("/nowhere/at/all")
    assert done.returncode == 2 and "mkdir -p /nowhere/at/all" in done.stderr


def test_what_is_suggested_is_not_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    done = forebay(tmp_path / "file")
    assert done.returncode == 2 and "it is a file" in done.stderr and "mkdir" not in done.stderr
    done = forebay("/proc", "--files", "10")
    assert done.returncode == 3 and "0 are free" in done.stderr and "--files 0" not in done.stderr


def test_a_terminal_that_is_lost_leaves_no_files(tmp_path):
    """As of an SSH connection: SIGHUP comes, and what is written to it fails."""
    data = tmp_path / "data"
    data.mkdir()
    arguments = ["files", data, "--files", "4000000", "--file-size", "0", "--workers", "1", "--sync"]
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(tmp_path)
        os.execvp(processes.FOREBAY[0], [str(word) for word in (*processes.FOREBAY, *arguments)])
    ended = None
    try:
        processes.wait_until(lambda: len(list(itertools.islice(data.glob("*/*/*"), 10))) == 10, "files are made")
        os.close(terminal)
        processes.wait_until(lambda: os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT), "its end")
    finally:
        os.kill(child, signal.SIGKILL)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert ended in (4, 130) and list(data.iterdir()) == []


@pytest.mark.promise("CMD-10")
@parametrized("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], kept=(0,))
def test_a_signal_keeps_what_was_measured_and_cleans_up(tmp_path, number):
    data, home = tmp_path / "data", tmp_path / "home"
    data.mkdir(), home.mkdir()
    # Each is synced: otherwise a fast machine makes so many until the signal that a busy disk removes them for minutes.
    arguments = ["files", data, "--files", "4000000", "--file-size", "0", "--workers", "2", "--sync"]
    with processes.running([*processes.FOREBAY, *arguments], cwd=home) as started:
        processes.wait_until(lambda: len(list(itertools.islice(data.glob("*/*/*"), 10))) == 10, "files are made", started)
        started.send_signal(number)
        done = processes.finish(started, within_s=2 * processes.PATIENCE_S)
    assert done.returncode == 130, done.stderr
    assert list(data.iterdir()) == [] and "Traceback" not in done.stderr
    saved = json.loads(next(home.glob("forebay-*.json")).read_text())
    assert saved["interrupted"] and saved["phases"][0]["files"] > 0


@pytest.fixture
def tiny_disk(mounted):  # noqa: F811
    """A file system with 150 inodes."""
    return mounted("none", "-t", "tmpfs", "-o", "size=16m,nr_inodes=150")


@pytest.mark.root
def test_a_full_disk_stops_the_run_says_so_and_cleans_up(tiny_disk, tmp_path):
    done = forebay(tiny_disk, *FAST, cwd=tmp_path)
    assert done.returncode == 4, done.stderr
    assert "no inodes left" in done.stderr and "df -i" in done.stderr
    assert list(tiny_disk.iterdir()) == []
    saved = json.loads(next(tmp_path.glob("forebay-*.json")).read_text())
    assert 0 < saved["phases"][0]["files"] < 200


@pytest.mark.promise("FLT-2")
@pytest.mark.root
def test_what_cannot_fit_is_refused_before_anything_is_made(tiny_disk):
    done = forebay(tiny_disk, "--files", "100", "--file-size", "1m")
    assert done.returncode == 3 and "are free" in done.stderr
    assert list(tiny_disk.iterdir()) == []


def test_files_on_a_memory_file_system_are_called_cached():
    shm = Path("/dev/shm")
    if not os.access(shm, os.W_OK):
        pytest.skip("/dev/shm can't be written")
    with tempfile.TemporaryDirectory(prefix="forebay-test-", dir=shm) as folder:
        record = json.loads(forebay(folder, *FAST, "--json").stdout)
    assert "cached" in [w["id"] for w in record["warnings"]]


@pytest.mark.long
@pytest.mark.promise("FLT-14")
@pytest.mark.root
def test_a_limit_on_threads_ends_the_run_and_leaves_nothing(somebody: OtherUser):  # noqa: F811
    """A container's pids limit is met in the same way. Root has none here."""
    theirs = sum(
        len(list(entry.glob("task/*"))) for entry in Path("/proc").glob("[0-9]*") if owner(entry) == UID
    )
    job = ("--workers", "1000", "--files", "1000", "--file-size", "0", "--phases", "create,delete")
    done = somebody.run("files", somebody.home, *job, before=("prlimit", f"--nproc={theirs + 40}"))
    assert done.returncode == 3, done.stderr
    assert "--workers 1000: the system refuses more than" in done.stderr and "ulimit -u" in done.stderr
    assert not list(somebody.home.glob("forebay-files-*"))


def owner(path: Path) -> int | None:
    try:
        return path.stat().st_uid
    except OSError:
        return None


@pytest.mark.long
def test_what_a_killed_run_left_is_named_by_doctor_and_removed_by_clean(tmp_path, tmp_path_factory):
    """Two runs: one killed, whose folder goes; one under way, whose folder stays."""
    many = ("files", tmp_path, "--files", "2000000", "--file-size", "0", "--workers", "1", "--phases", "create")
    (tmp_path / "precious").write_text("mine")
    home = tmp_path_factory.mktemp("home")  # where a run that is ended keeps its record
    folders = lambda: sorted(tmp_path.glob("forebay-files-*"))  # noqa: E731
    with processes.running([*processes.FOREBAY, *many], cwd=home) as process:
        processes.wait_until(lambda: any(tmp_path.glob("forebay-files-*/d0000/f*")), "files are there", process)
        processes.kill(process)
        process.wait()
    (dead,) = folders()
    with processes.running([*processes.FOREBAY, *many], cwd=home) as process:
        processes.wait_until(lambda: len(folders()) == 2, "the other has a folder", process)
        report = json.loads(processes.run([*processes.FOREBAY, "doctor", tmp_path, "--json"]).stdout)
        (left,) = [c for c in report["checks"] if c["id"] == "filesystem.files_left"]
        assert dead.name in left["found"] and left["found"].startswith("1 of") and left["next"].endswith("--clean")
        (dead / "notes").write_text("mine, too")
        done = processes.run([*processes.FOREBAY, *left["next"].split()[1:]])
        assert done.returncode == 4 and "not empty" in done.stderr and (dead / "notes").read_text() == "mine, too"
        (dead / "notes").unlink()
        done = processes.run([*processes.FOREBAY, *left["next"].split()[1:], "--json"])
        assert [row["directory"] for row in json.loads(done.stdout)["removed"]] == [str(dead)]
        assert len(folders()) == 1 and process.poll() is None, "what is in use stays"
        process.send_signal(signal.SIGINT)
        processes.finish(process)
    assert [p.name for p in tmp_path.iterdir()] == ["precious"]
    assert "nothing was left" in processes.run([*processes.FOREBAY, *left["next"].split()[1:]]).stdout
