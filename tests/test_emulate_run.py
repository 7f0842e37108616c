"""`forebay emulate run`: what is asked of the engine, what is refused, what a reader is told."""

from __future__ import annotations

import contextlib
import json
import os
import re
from pathlib import Path
from typing import Any

import fake_storage
import pytest
from fake_machine import typed
from fake_storage import FakeStorage
from forebay.emulate import live, show
from forebay.emulate.workloads import Training, builtin, load
from forebay.errors import RequestError, RunError
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

UNET = ("--workload", "unet3d", "--accelerator", "h100")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twelve files where DLIO has them, and what lies beside them."""
    train = tmp_path / "data" / "train"
    train.mkdir(parents=True)
    for n in range(12):
        (train / f"img_{n:02d}_of_12.npz").write_bytes(b"x")
    (train / ".hidden.npz").write_bytes(b"x")
    (train / "img_00_of_12.npz.idx").write_bytes(b"x")
    (tmp_path / "data" / "other").write_bytes(b"x")
    return tmp_path / "data"


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeStorage:
    monkeypatch.chdir(tmp_path)
    return FakeStorage(10.0).install(monkeypatch)


def run(capsys: Any, *arguments: Any) -> tuple[int, str, str]:
    return typed(capsys, "emulate", "run", *arguments)


# What the engine is asked for -----------------------------------------------------------------------


@pytest.mark.promise("EMU-3")
def test_flags_and_constants_become_the_engines_spec(capsys: Any, storage: FakeStorage, folder: Path) -> None:
    flags = [*UNET, "--accelerators", 3, "--data", folder, "--epochs", 2, "--steps", 7, "--prefetch", 1, "--read-threads", 2]
    flags += ["--seed", 9, "--on-error", "skip", "--destination", "gpu:0", "--supply", "2.5", "--path", "gds"]
    flags += ["--allow-compat", "--require-direct", "--pin-limit", "64m"]
    flags += ["--cache", "drop", "--engine", "uring", "--io-size", "1m", "--depth", 16, "--workers", 2, "--cpus", "0-1"]
    code, out, _ = run(capsys, *flags, "--interval", 250, "--power", "rapl", "--files", 8, "--json")
    assert code == 1 and json.loads(out)["training"]["accelerators"] == 3
    [spec] = storage.specs
    workload = spec.pop("workload")
    assert spec == {
        "rules": "v1.0", "level": "parse", "asked": "--workload unet3d --accelerator h100",
            "data": [str(folder)], "accelerators": 3, "first_rank": 0, "ranks": 3,
        "epochs": 2, "steps_max": 7, "seed": 9, "prefetch": 1, "read_threads": 2, "destination": "gpu:0",
        "on_error": "skip", "supply_gib_s": 2.5, "closed": False, "path": "gds",
        "allow_compat": True, "require_direct": True, "pin_limit_bytes": 64 << 20, "cache": "drop", "engine": "uring",
        "io_bytes": 1 << 20, "depth": 16, "workers": 2, "cpus": "0-1", "interval_s": 0.25, "power": ["rapl"],
    }  # fmt: skip
    assert workload == {
        "name": "unet3d", "version": "1.0", "accelerator": "h100", "loader": "pytorch", "format": "npz", "batch": 7,
        "compute_s": 0.323, "record_bytes": 146600628.0, "record_bytes_stdev": 68341808.0,
        "record_bytes_resize": 2097152, "samples_per_file": 1, "files": 8, "read_threads": 4, "computation_threads": 1,
        "prefetch": 2, "epochs": 5, "au_pct_min": 90.0, "file_shuffle": True, "sample_shuffle": True,
        "transfer_bytes": None, "columns": None,
    }  # fmt: skip


@pytest.mark.promise("EMU-3")
def test_what_is_not_given_is_the_workloads_and_the_rules(capsys: Any, storage: FakeStorage, folder: Path) -> None:
    for rules, level in (("v1.0", "parse"), ("v2.0", "parse"), ("text", "parse")):
        run(capsys, *UNET, "--data", folder, "--rules", rules)
        spec = storage.specs[-1]
        assert (spec["rules"], spec["level"], spec["epochs"], spec["prefetch"], spec["seed"]) == (rules, level, 5, 2, 123)
        assert spec["read_threads"] == 4 and spec["workload"]["files"] == 0 and "steps_max" not in spec
    run(capsys, "--workload", "retinanet", "--accelerator", "b200", "--data", folder)
    assert (storage.specs[-1]["rules"], storage.specs[-1]["level"]) == ("v3.0", "bytes")
    run(capsys, "--workload", "dlrm", "--accelerator", "b200", "--data", folder)
    columns = storage.specs[-1]["workload"]["columns"]
    assert len(columns) == 40 and columns[0] == "feature_011"


@pytest.mark.promise("EMU-30")
def test_every_builtin_workload_is_a_spec_that_the_engine_takes(folder: Path) -> None:
    """Through the real engine, whose parser refuses a key that it doesn't know."""
    from forebay.emulate import engine
    from forebay.emulate.request import Request

    taken = set()
    for workload in (w for ws in builtin().values() for w in ws if isinstance(w, Training)):
        for rules in (*workload.rules, "text"):
            spec = Request(workload, rules, "parse", (str(folder),)).spec(2)
            try:
                assert engine.check(spec)["workload"]["batch"] == workload.batch
                taken.add(workload.format)
            except RequestError as refused:
                assert "doesn't know the format" in refused.found, str(refused)
    assert taken == {"npz", "tfrecord", "jpeg", "parquet"}


# What comes out -------------------------------------------------------------------------------------


@pytest.mark.promise("EMU-3")
def test_below_the_threshold_the_exit_code_is_1_and_the_limit_is_named(
    capsys: Any, storage: FakeStorage, folder: Path
) -> None:
    code, out, err = run(capsys, *UNET, "--accelerators", 2, "--data", folder)
    assert code == 0 and "passes, 90 % is needed" in out and "MLPerf-style, unverified" in out
    assert "there is room for more of them" in out and err == ""
    code, out, _ = run(capsys, *UNET, "--accelerators", 4, "--data", folder)
    assert code == 1 and "fails, 90 % is needed" in out and "limit     the storage" in out
    assert re.search(r"waited +15\.\d % of the accelerators' time: storage 15", out)


@pytest.mark.promise("EMU-3")
def test_more_than_the_host_can_emulate_is_a_warning_with_its_evidence(
    capsys: Any, storage: FakeStorage, folder: Path
) -> None:
    storage.client_gib_s = 5.0
    code, out, err = run(capsys, *UNET, "--accelerators", 4, "--data", folder, "--json")
    [warning] = [w for w in json.loads(out)["warnings"] if w["id"] == "client_limited"]
    assert code == 1 and "the client was measured, not the storage: both cores are busy" in warning["text"]
    assert warning["text"] in " ".join(err.split()) and "this client, not the storage" in err


@pytest.mark.promise("EMU-3")
def test_a_run_that_took_longer_than_the_clock_is_doubted(capsys: Any, storage: FakeStorage, folder: Path) -> None:
    """The fake's runs take no time, and report minutes: as if the engine's clock had jumped."""
    code, out, _ = run(capsys, *UNET, "--data", folder, "--json")
    assert code == 0 and "clock" in {w["id"] for w in json.loads(out)["warnings"]}


@pytest.mark.promise("EMU-4")
def test_runs_are_kept_by_name_as_they_end(capsys: Any, storage: FakeStorage, folder: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    code, out, _ = run(capsys, *UNET, "--data", folder, "--runs", 3, "--results", results, "-o", tmp_path / "all.json", "--json")
    kept = sorted(results.iterdir())
    assert code == 0 and len(kept) == 3 and len(json.loads(out)) == 3
    assert all(re.fullmatch(r"unet3d-h100-1-20260102T030405Z-\d{8}(-\d)?\.json", p.name) for p in kept)
    assert [r["id"] for r in json.loads((tmp_path / "all.json").read_text())] == [r["id"] for r in json.loads(out)]


@pytest.mark.promise("EMU-4")
def test_ctrl_c_keeps_what_was_measured_and_says_so(capsys: Any, storage: FakeStorage, folder: Path, tmp_path: Path) -> None:
    storage.interrupt_at = 1
    code, out, err = run(capsys, *UNET, "--data", folder, "--runs", 5, "--results", tmp_path / "r")
    assert code == 130 and len(list((tmp_path / "r").iterdir())) == 2 and len(storage.specs) == 2
    assert "interrupted: these are the results up to that point" in " ".join(out.split())


@pytest.mark.promise("EMU-4")
def test_an_error_of_the_engine_is_told_and_its_part_is_saved(
    capsys: Any, storage: FakeStorage, folder: Path, tmp_path: Path
) -> None:
    error = RunError("img_03_of_12.npz", "record 0 at 0: CRC-32 1 is stored, 2 was found", "forebay emulate datagen")
    error.record = json.dumps(storage.record({**_spec(folder)}, 0))  # type: ignore[attr-defined]
    storage.fail_at[0] = error
    code, out, err = run(capsys, *UNET, "--data", folder)
    assert code == 4 and "CRC-32 1 is stored" in err and "AU" in out
    assert list(tmp_path.glob("forebay-*.json"))


def _spec(folder: Path) -> dict[str, Any]:
    from forebay.emulate.request import Request

    workload, rules = load("unet3d", "h100")
    return Request(workload, rules, "parse", (str(folder),)).spec(1)


@pytest.mark.promise("EMU-4")
@pytest.mark.parametrize(
    ("flags", "reported"),
    [
        (["--data", "DIR"], "--workload: no workload was given"),
        ([*UNET], "no data set was given"),
        ([*UNET, "--data", "DIR", "--accelerators", "0"], "--accelerators 0"),
        ([*UNET, "--data", "DIR", "--accelerators", "1.5"], "--accelerators 1.5"),
        ([*UNET, "--data", "DIR", "--accelerators", "9" * 40], "is not a whole number"),
        ([*UNET, "--data", "DIR", "--epochs", "0"], "--epochs 0"),
        ([*UNET, "--data", "DIR", "--steps", "x"], "--steps x"),
        ([*UNET, "--data", "DIR", "--level", "all"], "--level all"),
        ([*UNET, "--data", "DIR", "--rules", "v4"], "--rules v4"),
        ([*UNET, "--data", "DIR", "--rules", "v3.0"], "has no such workload"),
        ([*UNET, "--data", "DIR", "--on-error", "retry"], "--on-error retry"),
        ([*UNET, "--data", "DIR", "--supply", "-1"], "--supply -1"),
        ([*UNET, "--data", "DIR", "--supply", "nan"], "--supply nan"),
        ([*UNET, "--data", "DIR", "--io-size", "big"], "--io-size big"),
        ([*UNET, "--data", "DIR", "--cache", "maybe"], "--cache maybe"),
        ([*UNET, "--data", "DIR", "--workers", "auto"], "--workers auto"),
        ([*UNET, "--data", "DIR", "--runs", "101"], "--runs 101"),
        ([*UNET, "--data", "DIR", "--results", "DIR/other"], "can't be a folder of results"),
        ([*UNET, "--dlio", "a.yaml", "--data", "DIR"], "both name a workload"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(
    flags: list[str], reported: str, capsys: Any, storage: FakeStorage, folder: Path
) -> None:
    code, out, err = run(capsys, *(f.replace("DIR", str(folder)) for f in flags))
    assert code == 2 and reported in err and "try:" in err and out == "" and not storage.specs


def test_batches_that_do_not_fit_into_memory_are_refused(capsys: Any, storage: FakeStorage, folder: Path) -> None:
    code, _, err = run(capsys, *UNET, "--accelerators", 100_000, "--data", folder, "--destination", "host")
    assert code == 3 and "don't fit into" in err and not storage.specs


# Divisions ------------------------------------------------------------------------------------------


@pytest.fixture
def large_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    from forebay.emulate import data

    monkeypatch.setattr(data, "check_size", lambda *_: None)


@pytest.mark.promise("EMU-5")
@pytest.mark.parametrize("division", ["--closed", "--open"])
@pytest.mark.parametrize(
    ("flags", "id"),
    [
        (["--epochs", "4"], "parameters"),
        (["--steps", "10"], "parameters"),
        (["--seed", "4"], "parameters"),
        (["--on-error", "skip"], "on-error"),
        (["--supply", "3"], "supply"),
        (["--cache", "warm"], "cache"),
        (["--cache", "allow"], "cache"),
        (["--cache", "bypass"], "odirect"),
    ],
)
def test_what_no_division_allows_is_refused(
    division: str, flags: list[str], id: str, capsys: Any, storage: FakeStorage, folder: Path, large_enough: None
) -> None:
    code, _, err = run(capsys, *UNET, "--data", folder, division, *flags)
    assert code == 2 and f"[{id}]" in err and flags[0] in err and not storage.specs


@pytest.mark.promise("EMU-5")
def test_closed_and_open_differ_where_the_rules_say(
    capsys: Any, storage: FakeStorage, folder: Path, large_enough: None
) -> None:
    base = (*UNET, "--data", folder)
    allowed = ("--files", 10, "--read-threads", 8, "--prefetch", 1, "--io-size", "1m", "--cache", "drop")
    assert run(capsys, *base, "--closed", *allowed)[0] == 0 and storage.specs[-1]["closed"] is True
    assert "[prefetch]" in run(capsys, *base, "--closed", "--prefetch", 3)[2]
    assert run(capsys, *base, "--open", "--prefetch", 3)[0] == 0
    assert "[level]" in run(capsys, *base, "--closed", "--level", "bytes")[2]
    assert run(capsys, *base, "--open", "--level", "bytes")[0] == 0
    # O_DIRECT came with v2.0, for 3D U-Net alone.
    assert run(capsys, *base, "--closed", "--rules", "v2.0", "--cache", "bypass")[0] == 0
    resnet = ("--workload", "resnet50", "--accelerator", "h100", "--data", folder, "--rules", "v2.0", "--cache", "bypass")
    assert "for unet3d alone [odirect]" in run(capsys, *resnet, "--closed")[2]
    what_if = ("--workload", "flux", "--accelerator", "b200", "--data", folder, "--closed")
    assert "doesn't belong to any division [workload]" in run(capsys, *what_if)[2]


@pytest.mark.promise("EMU-5")
def test_all_rules_that_are_broken_are_listed_at_once(capsys: Any, storage: FakeStorage, folder: Path) -> None:
    code, _, err = run(capsys, *UNET, "--data", folder, "--closed", "--epochs", 3, "--seed", 1, "--supply", 1)
    assert code == 2 and all(w in err for w in ("--closed by v1.0", "train.epochs", "train.seed", "[supply]"))


@pytest.mark.promise("EMU-5")
def test_a_data_set_below_the_rules_size_is_refused_in_a_division(
    capsys: Any, storage: FakeStorage, folder: Path
) -> None:
    code, _, err = run(capsys, *UNET, "--data", folder, "--closed")
    assert code == 2 and "the data set has 12 files" in err and "[data-size]" in err and "emulate datagen" in err
    assert run(capsys, *UNET, "--data", folder)[0] == 0


@pytest.mark.promise("EMU-5")
def test_runs_of_a_later_submission_have_different_seeds(
    capsys: Any, storage: FakeStorage, folder: Path, large_enough: None
) -> None:
    run(capsys, *UNET, "--data", folder, "--closed", "--rules", "v2.0", "--runs", 4)
    assert len({s["seed"] for s in storage.specs}) == 4
    storage.specs.clear()
    run(capsys, *UNET, "--data", folder, "--closed", "--rules", "v1.0", "--runs", 2)
    assert {s["seed"] for s in storage.specs} == {123}


@pytest.mark.promise("EMU-5")
def test_a_submission_empties_caches_unless_it_is_told_otherwise(
    capsys: Any, storage: FakeStorage, folder: Path, large_enough: None
) -> None:
    run(capsys, *UNET, "--data", folder)
    assert "cache" not in storage.specs[-1]
    for rules, flags in (("v1.0", ["--closed"]), ("v2.0", ["--closed"]), ("v1.0", ["--open"])):
        assert run(capsys, *UNET, "--data", folder, "--rules", rules, *flags)[0] == 0
        assert storage.specs[-1]["cache"] == "drop"
    assert "[cache]" in run(capsys, *UNET, "--data", folder, "--closed", "--cache", "auto")[2]
    assert run(capsys, *UNET, "--data", folder, "--rules", "v2.0", "--closed", "--cache", "allow")[0] == 0
    assert "[cache]" in run(capsys, *UNET, "--data", folder, "--rules", "v2.0", "--closed", "--cache", "warm")[2]


@pytest.mark.promise("EMU-10")
def test_a_run_that_warms_up_is_kept_and_decides_nothing(
    capsys: Any, storage: FakeStorage, folder: Path, large_enough: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    au = storage.au_pct
    monkeypatch.setattr(storage, "au_pct", lambda spec: 30.0 if len(storage.specs) == 1 else au(spec))
    v2 = (*UNET, "--data", folder, "--closed", "--rules", "v2.0", "--runs", 5, "--results", tmp_path / "r")
    assert run(capsys, *v2, "--warmup-run")[0] == 0
    assert len(storage.specs) == len(list((tmp_path / "r").iterdir())) == 6 and len({s["seed"] for s in storage.specs}) == 6
    code, _, err = run(capsys, *UNET, "--data", folder, "--closed", "--warmup-run")
    assert code == 2 and "[runs]" in err and len(storage.specs) == 6


@pytest.mark.promise("EMU-5")
def test_what_is_no_folder_is_no_submission_unless_its_files_are_counted(capsys: Any, storage: FakeStorage) -> None:
    assert "is simulated with a modelled drive [measured]" in run(capsys, *UNET, "--data", "model:d7-ps1010", "--closed")[2]
    stripe = (*UNET, "--data", "stripe:?m=/dev/a&m=/dev/b", "--closed")
    code, _, err = run(capsys, *stripe)
    assert code == 2 and "isn't known in advance" in err and "[data-size]" in err and not storage.specs
    assert run(capsys, *stripe, "--files", re.findall(r"try: --files (\d+)", err)[0])[0] == 0


@pytest.mark.promise("EMU-5")
def test_data_that_isnt_there_is_refused_with_the_command_that_makes_it(
    capsys: Any, storage: FakeStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forebay.emulate.data.memory_of_this_host", lambda: 1 << 30)
    make = "forebay emulate datagen --workload unet3d --accelerator h100"
    for verb in ("run", "search"):
        code, _, err = typed(capsys, "emulate", verb, *UNET, "--data", tmp_path / "none", "--closed")
        assert code == 2 and "there is no such folder" in err and f"try: {make} --data {tmp_path / 'none'}" in err
    code, _, err = run(capsys, *UNET, "--data", tmp_path / "none")
    assert code == 2 and "there is no such folder" in err and "forebay emulate datagen" in err and not storage.specs
    (tmp_path / "few" / "train").mkdir(parents=True)
    for n in range(3):
        (tmp_path / "few" / "train" / f"img_{n}.npz").touch()
    flags = (*UNET, "--data", tmp_path / "few", "--closed", "--rules", "v2.0")
    code, _, err = run(capsys, *flags)
    assert code == 2 and "has 3 files, and 1 accelerator needs 3,500 [data-size]" in err
    assert f"try: {make} --accelerators 1 --rules v2.0 --data DIR" in err
    # Where only --files leaves too few of them, it is what to change.
    monkeypatch.setattr("forebay.emulate.data.found_files", lambda request: 7000)
    code, _, err = run(capsys, *flags, "--files", 3)
    assert code == 2 and "try: --files 3500" in err and not storage.specs


@pytest.mark.promise("EMU-4")
def test_a_missing_gpu_is_told_in_the_flags_of_emulation(capsys: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from forebay import _core
    from forebay.errors import MachineError

    def refuse(*_: Any) -> str:
        raise MachineError("--gpu 0", "no CUDA driver", "forebay doctor; --path host needs no GPU")

    monkeypatch.setattr(_core, "emulate_run", refuse)
    code, _, err = run(capsys, *UNET, "--data", folder, "--destination", "gpu:0")
    assert code == 3 and "--destination gpu:0: no CUDA driver" in err
    assert "try: forebay doctor; --destination drop needs no GPU" in err and "--path" not in err and "--gpu" not in err


@pytest.mark.promise("EMU-5")
def test_v3_uses_as_many_files_as_datasize_says(
    capsys: Any, storage: FakeStorage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forebay.emulate import data, datasize

    monkeypatch.setattr(data, "memory_of_this_host", lambda: 1 << 30)
    b200 = ("--workload", "unet3d", "--accelerator", "b200", "--data", folder, "--files")
    files = datasize.size(load("unet3d", "b200")[0], "v3.0", 1, 1 << 30).files
    assert run(capsys, *b200, files, "--closed")[0] == 0 and run(capsys, *b200, files + 1, "--open")[0] == 0
    code, _, err = run(capsys, *b200, files + 1, "--closed")
    assert code == 2 and f"try: --files {files}" in err and "[data-size]" in err


@pytest.mark.promise("EMU-5")
def test_a_file_of_the_published_constants_is_the_published_workload(folder: Path) -> None:
    from dataclasses import replace

    from forebay.emulate.request import workload_spec

    own = replace(load("unet3d", "h100")[0], status="own", rules=("v1.0", "v2.0", "v3.0"), files=9, read_threads=2)
    assert [workload_spec(own, rules, None)["version"] for rules in ("v1.0", "v2.0", "text")] == ["1.0", "2.0", "2.0"]
    assert workload_spec(replace(own, record_bytes_stdev=0.0), "v1.0", None)["version"] == "own"
    assert workload_spec(own, "v3.0", None)["version"] == "own"


@pytest.mark.promise("EMU-5")
def test_a_workload_of_ones_own_is_no_submission(capsys: Any, storage: FakeStorage, folder: Path, tmp_path: Path) -> None:
    from test_emulate_workloads import OWN

    (tmp_path / "mine.toml").write_text(OWN)
    code, _, err = run(capsys, "--workload", tmp_path / "mine.toml", "--data", folder, "--closed")
    assert code == 2 and "isn't a workload of v1.0 [workload]" in err
    assert run(capsys, "--workload", tmp_path / "mine.toml", "--data", folder)[0] in (0, 1)
    assert storage.specs[-1]["workload"]["version"] == "own"


# Progress and pages ---------------------------------------------------------------------------------


@examples(200)
@given(
    width=st.integers(1, 200),
    epoch=st.integers(0, 9),
    epochs=st.integers(0, 9),
    step=st.integers(0, 10**7),
    steps=st.integers(0, 10**7),
    au=st.none() | st.floats(0, 100),
    phase=st.sampled_from(["prepare", "run", "done", "else"]),
    waiting=st.lists(st.integers(0, 1000), max_size=8),
)
def test_frames_fit_any_terminal(
    width: int, epoch: int, epochs: int, step: int, steps: int, au: float | None, phase: str, waiting: list[int]
) -> None:
    shown = fake_storage.progress(
        phase=phase, epoch=epoch, epochs=epochs, step=step, steps=steps, au_pct=au, waiting_ranks=waiting
    )
    assert all(len(line) <= width for line in live.frame(shown, "unet3d on 8 × H100", 90.0, width))
    assert 0 <= live.share_done(shown) <= 1


def test_a_frame_says_how_it_goes_and_who_waits() -> None:
    lines = live.frame(fake_storage.progress(), "unet3d on 8 × H100", 90.0, 100)
    assert lines[0] == "unet3d on 8 × H100 · epoch 2/5 · step 34/100"
    assert "27 %" in lines[1] and "left" in lines[1]
    assert lines[2] == "AU 93.1 % so far, 90 % needed · 4.20 GiB/s · 1.30 cores"
    assert lines[3] == "waiting #3, #7"


def test_a_terminal_that_takes_nothing_more_holds_nothing_up() -> None:
    reading, writing = os.pipe()
    with open(reading, "rb"), open(writing, "w") as stuck:
        os.set_blocking(writing, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writing, b"x" * 4096)
        os.set_blocking(writing, True)
        view = live.View("unet3d", 90.0, stuck)
        view(fake_storage.progress())
        view.close()


@pytest.mark.promise("EMU-3")
def test_each_cause_of_waiting_is_named(folder: Path) -> None:
    training = FakeStorage(1.0).record(_spec(folder), 0)["training"]
    total = training["accelerators"] * sum(e["seconds"] for e in training["epochs"])
    for cause, id in (("storage_s", "storage"), ("parse_s", "client"), ("cpu_s", "client"), ("barrier_s", "barrier")):
        training["waited"] = {**dict.fromkeys(show.CAUSES, 0.0), cause: 0.3 * total}
        found, reported = show.limit(training)
        assert found == id and reported
        assert show.shares(training)[cause] == pytest.approx(30)
    training["accelerators"], total = 3, 3 * total
    # One of three waits for the storage, and the two others for that one.
    training["waited"] = {"storage_s": 0.1 * total, "parse_s": 0.01 * total, "cpu_s": 0.0, "barrier_s": 0.2 * total}
    assert show.limit(training)[0] == "storage"
    training["waited"]["storage_s"] = 0.02 * total
    assert show.limit(training)[0] == "barrier", "it can't have held up the others for so long"
    training["waited"] = dict.fromkeys(show.CAUSES, 0.001 * total)
    assert show.limit(training)[0] == "accelerator"
