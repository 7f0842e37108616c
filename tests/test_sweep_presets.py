"""The presets of `forebay sweep`: the published methods, scaled to a machine, with what it lacks left out and said."""

# ruff: noqa: F811  (fixtures are imported and named again as arguments)

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from fake_machine import FakeMachine, typed
from forebay.sweep.file import parse, presets
from forebay.sweep.plan import Asks, make
from forebay.sweep.scale import folder_of
from sweep_support import SWEEP, machine, points_of, sweep  # noqa: F401 - fixtures


@pytest.mark.promise("SWP-2")
def test_solidigm_gds_is_the_published_method(machine: FakeMachine, tmp_path: Path, capsys: Any) -> None:
    machine.paths = ("host", "bounce", "gds")
    _, out, _ = typed(capsys, "sweep", "solidigm-gds", "nil:", "--dry-run", "--json", "--scale", 1)
    jobs = [p["point"] for p in json.loads(out)["points"]]
    assert {(j["io_bytes"] >> 10, j["workers"], j["file_bytes"] >> 20) for j in jobs} == {
        (64, 32, 512),
        (128, 32, 512),
        (512, 24, 2048),
        (1024, 24, 2048),
        (4096, 24, 2048),
    }
    assert {j["path"] for j in jobs} == {"gds", "host"} and len(jobs) == 10
    assert all(j["duration_s"] == 45 and j["op"] == "read" and j["depth"] == 1 for j in jobs)


@pytest.mark.promise("SWP-2")
def test_the_other_presets_are_the_published_methods(machine: FakeMachine, capsys: Any) -> None:
    machine.paths = ("host", "bounce", "mapped", "gds")

    def jobs(name: str) -> list[dict[str, Any]]:
        _, out, _ = typed(capsys, "sweep", name, "nil:", "--dry-run", "--json", "--scale", 1)
        return [p["point"] for p in json.loads(out)["points"]]

    four_k = jobs("micron-4k")
    assert {j["workers"] for j in four_k} == {1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96}
    assert {(j["op"], j["io_bytes"]) for j in four_k} == {("randread", 4096)}
    sizes = jobs("micron-io-size")
    assert {j["io_bytes"] for j in sizes} == {4096 << i for i in range(9)} and {
        j["workers"] for j in sizes
    } == {16}
    rows = jobs("rows")
    assert {j["io_bytes"] for j in rows} == {128 << i for i in range(8)} and {j["cache"] for j in rows} == {"warm"}
    assert {j["io_bytes"] for j in rows if j["path"] == "gds"} == {4096, 8192, 16384}
    power = jobs("solidigm-power")
    assert len(power) == 200 and [j["path"] for j in power[:4]] == ["gds", "host", "gds", "host"]


@pytest.mark.promise("GPU-13")
def test_pairs_run_at_once_each_with_the_workers_of_the_paper(machine: FakeMachine, capsys: Any) -> None:
    machine.paths = ("host", "bounce", "gds")
    pairs = ["--pair", "0=/dev/nvme0n1", "--pair", "1=stripe:?m=/a&m=/b"]

    def points(*more: Any) -> list[dict[str, Any]]:
        code, out, err = typed(capsys, "sweep", "micron-4k", *pairs, "--dry-run", "--json", *more)
        assert code == 0, err
        return [p["point"] for p in json.loads(out)["points"]]

    full = points("--scale", 1)
    assert {j["workers"] for j in full} == {2 * n for n in (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96)}
    assert all(j["pairs"] == [pairs[1], pairs[3]] and "sources" not in j for j in full)
    assert all(j["workers"] % 2 == 0 for j in points("--scale", 0.1)), "each pair has as many"
    code, _, err = typed(capsys, "sweep", "micron-4k", "nil:", *pairs, "--dry-run")
    assert code == 2 and "each --pair names its own source" in err


def test_every_preset_says_where_its_method_comes_from(capsys: Any) -> None:
    code, out, _ = typed(capsys, "sweep", "--list", "--json")
    found = json.loads(out)["presets"]
    assert code == 0 and {p["name"] for p in found} == set(presets())
    assert all(p["cites"] and p["method"] and p["title"] for p in found)


@pytest.mark.promise("SWP-2")
def test_without_gds_the_preset_says_so_and_runs_what_is_there(
    machine: FakeMachine, tmp_path: Path, capsys: Any
) -> None:
    target = tmp_path / "o"
    code, _, err = typed(capsys, "sweep", "solidigm-gds", "nil:", "-o", target, "--scale", "0.01")
    assert code == 0 and "path gds can't run here" in err and "libcufile isn't here" in err
    lines = points_of(target)
    assert {line["point"]["path"] for line in lines} == {"bounce", "host"} and len(lines) == 10
    bounced = next(line for line in lines if line["point"]["path"] == "bounce")
    warning = bounced["record"]["warnings"][-1]
    assert warning["id"] == "scaled" and "path gds → bounce" in warning["text"]
    assert "duration 45 s → 0.45 s" in warning["text"] and "file-size" in warning["text"]
    header = json.loads(target.read_text().splitlines()[0])
    assert header["schema"] == "forebay.sweep/1" and header["cites"] and header["frozen"]["fallbacks"]["gds"]


def test_points_that_scaling_makes_equal_run_once_and_are_named(machine: FakeMachine, capsys: Any) -> None:
    machine.paths = ("host", "bounce", "gds")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("forebay.sweep.scale.os.sched_getaffinity", lambda pid: {0, 1})
        _, out, _ = typed(capsys, "sweep", "micron-4k", "nil:", "--dry-run", "--json", "--scale", "auto")
    found = json.loads(out)
    assert sorted({p["point"]["workers"] for p in found["points"]}) == [1, 2, 4, 8, 12, 16]
    assert len(found["dropped"]) == 15 and "workers 24 → 16" in found["dropped"][0]


def test_scale_1_changes_nothing_and_auto_fits_the_disk(
    machine: FakeMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = '[job]\nfile-size = "1g"\nworkers = 4\nduration = 5\n[matrix]\ndepth = [1, 2]'
    sweep = parse(text, "t", "t.toml")
    monkeypatch.setattr("forebay.sweep.scale.room_in", lambda folder, name: 2 << 30)
    whole = make(sweep, Asks(sources=(str(tmp_path),), scale=1.0))
    assert not whole.changes and whole.points[0].job["file_bytes"] == 1 << 30
    fitted = make(sweep, Asks(sources=(str(tmp_path),), scale=None))
    assert fitted.points[0].job["file_bytes"] == 256 << 20, "four of them fill half of the room"
    assert fitted.changes == ["file-size 1g → 256m (all points)"] and fitted.points[0].job["duration_s"] == 5


def test_max_time_shortens_all_durations_alike(machine: FakeMachine) -> None:
    plan = make(parse(SWEEP, "t", "t.toml"), Asks(sources=("nil:",), seconds_max=6.0))
    assert (
        plan.seconds == pytest.approx(6.0, abs=0.1) and len({p.job["duration_s"] for p in plan.points}) == 1
    )


def test_a_continued_sweep_keeps_the_scale_it_began_with(
    machine: FakeMachine, sweep: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Free space shrinks while a sweep fills it; its points must stay the same points."""
    sweep.write_text('[job]\nfile-size = "1g"\nduration = 1\n[matrix]\ndepth = [1, 2, 4]')
    data = tmp_path / "data"
    data.mkdir()
    monkeypatch.setattr("forebay.sweep.scale.room_in", lambda folder, name: 1 << 30)
    machine.interrupt_at = 1
    typed(capsys, "sweep", sweep, data, "-o", "o", "--scale", "auto")
    machine.interrupt_at, machine.jobs = None, []
    monkeypatch.setattr("forebay.sweep.scale.room_in", lambda folder, name: 1 << 28)
    assert typed(capsys, "sweep", sweep, data, "-o", "o", "--scale", "auto")[0] == 0
    assert [j["file_bytes"] for j in machine.jobs] == [512 << 20] * 2


def test_the_power_of_two_paths_is_told_with_its_ratio(
    machine: FakeMachine, tmp_path: Path, capsys: Any
) -> None:
    machine.watts = {"host": 400.0, "bounce": 440.0}
    _, out, _ = typed(
        capsys, "sweep", "solidigm-power", "nil:", "-o", tmp_path / "o", "--rounds", 8, "--json"
    )
    found = json.loads(out)
    assert [p["power"] for p in found["points"]] == [440.0, 400.0]
    assert found["alternate"][0]["ratios"]["power"] == {
        "estimate": pytest.approx(1.1), "ci95": [pytest.approx(1.1), pytest.approx(1.1)], "rounds": 8
    }  # fmt: skip


def test_sources_that_make_files_are_known(tmp_path: Path) -> None:
    assert folder_of(str(tmp_path)) == tmp_path and folder_of(f"file:{tmp_path}") == tmp_path
    assert folder_of(f"stripe:?chunk=64k&m={tmp_path}&m=/y") == tmp_path
    for source in ("nil:", "model:x", f"{tmp_path}/file", "/dev/nvme0n1", "nvme+rdma://h:1/nqn.x", f"model:x?over={tmp_path}"):
        assert folder_of(source) is None


def test_names_are_read_as_the_engine_reads_them(tmp_path: Path) -> None:
    odd = tmp_path / "why?m=not"
    odd.mkdir()
    assert folder_of(str(odd)) == odd and folder_of(f"file://{odd}") == odd
    inner = quote(f"stripe:?m={quote(str(odd))}", safe="")
    assert folder_of(f"stripe:?m=nil:&m={inner}") == odd
