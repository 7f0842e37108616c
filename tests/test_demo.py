"""`forebay demo` on small files: every step runs, the report is named, nothing is left but the results."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import signal
import subprocess
from pathlib import Path
from typing import Any

import processes
import pytest
from forebay import demo
from forebay.errors import MachineError, RequestError
from properties import parametrized

# Long enough that no worker of a busy machine goes without its turn: a comparison refuses a run that moved nothing.
DEMO = [*processes.FOREBAY, "demo", "--seconds", "0.3", "--file-size", "8m"]


def tour(tmp_path: Path, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return processes.run([*DEMO, *arguments], cwd=tmp_path, within_s=2 * processes.PATIENCE_S, **options)


@pytest.mark.promise("CMD-1")
@parametrized("charts", [False, True], kept=(0,))
def test_every_step_runs_and_the_last_line_names_the_report(tmp_path: Path, charts: bool) -> None:
    """Without the extra that draws, whose charts take half of the tour, and with it where it is installed."""
    (tmp_path / "without").mkdir()
    (tmp_path / "without/altair.py").write_text('raise ModuleNotFoundError("No module named altair", name="altair")\n')
    path = os.environ.get("PYTHONPATH", "") if charts else f"{tmp_path}/without:{os.environ.get('PYTHONPATH', '')}"
    done = tour(tmp_path, env={**os.environ, "PYTHONPATH": path.removesuffix(":")})
    out = done.stdout
    assert ("without charts: altair isn't installed" in out) == (not charts or importlib.util.find_spec("altair") is None)
    assert done.returncode == 0, done.stderr
    page = Path(out.splitlines()[-1])
    assert page.is_absolute() and page.read_text().lstrip().lower().startswith("<!doctype html")
    assert all(f"{n}. " in out for n in range(1, 7)) and "step failed" not in out
    for size in demo.SIZES:
        assert out.count(f" {size} ") >= 2, "in the sweep and in the table of the paper"
    assert sorted(p.name for p in page.parent.iterdir()) == [
        "job",
        "job.toml",
        "model.jsonl",
        "report.html",
        "stripe.json",
        "sweep.jsonl",
        "sweep.toml",
    ]
    assert [p.name for p in (tmp_path / ".demo").iterdir()] == [page.parent.name], "the data files are gone"
    assert out.count("$ forebay doctor /") >= 1 and "$ forebay report runs.jsonl -o report.html" in out


@pytest.mark.long
def test_what_it_says_to_type_next_works_on_the_roomiest_mount(tmp_path: Path) -> None:
    table, data = tmp_path / "mounts", tmp_path / "my data"
    data.mkdir()
    spelled = str(data).replace(" ", "\\040")
    rows = ["/dev/vda / ext4", f"/dev/vdb {spelled} xfs", f"tmpfs {tmp_path} tmpfs", "proc /proc proc"]
    table.write_text("".join(f"{row} rw 0 0\n" for row in rows))
    assert demo.mounted(table) == [data] and demo.roomiest([data, tmp_path / "absent"]) == data
    assert demo.mounted(tmp_path / "absent") == [] and demo.roomiest([]) is None
    for command in demo.next_commands(data):
        words = ["64m" if word in ("8g", "1g", "256m") else word for word in shlex.split(command)]
        quick = ["--duration", "0.2"] if words[1] == "bench" else []
        done = processes.run([*processes.FOREBAY, *words[1:], *quick], cwd=tmp_path)
        assert done.returncode in (0, 1), (command, done.stderr)
    assert (tmp_path / "report.html").is_file() and list(data.iterdir())


@pytest.mark.promise("CMD-7")
@pytest.mark.long
def test_json_is_one_document_about_the_steps(tmp_path):
    done = tour(tmp_path, "--json", "--out", "results")
    document = json.loads(done.stdout)
    assert [s["step"] for s in document["steps"]] == ["doctor", "sweep", "stripe", "emulate", "model", "report"]
    assert all(s["error"] is None for s in document["steps"]), done.stderr
    table = {row["io_size"]: row for row in document["steps"][4]["table"]}
    # 32 samples of 1 MiB are three steps of two accelerators with batches of 4.
    search = document["steps"][3]["search"]
    assert search["finished"] and search["accelerators"] <= 2 and search["limit"]["text"]
    assert table["4m"]["gds"] == 13.48 and "gds" not in table["1m"]
    assert 12 < table["4m"]["simulated_gib_s"] < 13.6, "its data sheet says 14,500 MB/s"
    commands = [
        json.loads(line)["command"] for line in (tmp_path / "results/model.jsonl").read_text().splitlines()
    ]
    assert commands[0][:3] == ["forebay", "bench", demo.MODEL], "a command that the reader can repeat"


@pytest.mark.long
def test_ctrl_c_ends_the_tour_and_removes_the_data(tmp_path):
    with processes.running([*DEMO, "--seconds", "60"], cwd=tmp_path) as running:
        processes.wait_until(
            lambda: list(tmp_path.glob(".demo/*/sweep.jsonl")) and processes.has_workers(running),
            "the first point of the sweep",
            running,
        )
        running.send_signal(signal.SIGINT)
        done = processes.finish(running)
    said = done.stdout + done.stderr
    assert done.returncode == 130, said
    assert "Traceback" not in said and "interrupted" in said
    assert not list(tmp_path.glob(".demo/data-*"))
    assert list(tmp_path.glob(".demo/*/sweep.jsonl"))


def test_the_papers_table_keeps_blanks_blank():
    table = demo.paper_table()
    assert table[64] == {"gds": 12.38, "cpu": 12.70}
    assert 128 not in table and 1024 not in table


@pytest.mark.promise("FLT-2")
def test_a_full_disk_is_refused_before_anything_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr(demo.shutil, "disk_usage", lambda path: type("U", (), {"free": 100 << 20}))
    with pytest.raises(MachineError, match="are free"):
        demo.room_for(tmp_path)


def test_a_folder_that_cannot_be_made_is_a_bad_request(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RequestError, match="--out"):
        demo._make_folder(tmp_path / "file" / "below", "--out")


def test_room_is_shared_out_among_the_files(monkeypatch, tmp_path):
    free = 8 << 30
    monkeypatch.setattr(demo.shutil, "disk_usage", lambda path: type("U", (), {"free": free}))
    assert demo.room_for(tmp_path) * demo.FILES_IN_ALL <= free // 4
    assert os.listdir(tmp_path) == []
