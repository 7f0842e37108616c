"""Rules over folders of results: of ours, of DLIO's shape, and of MLCommons' tool's; and ours in their layout."""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import processes
import pytest
from fake_machine import typed
from forebay.emulate import datasize, judge, results
from forebay.emulate.workloads import Training, builtin
from whole_records import whole

BEGAN = datetime(2026, 1, 5, 8, 0)
MEMORY_GIB = 16.0


def workload(name: str, accelerator: str) -> Training:
    return next(w for w in builtin()[name] if isinstance(w, Training) and w.accelerator == accelerator)


def enough_files(name: str, accelerator: str, number: int, rules: str = "v1.0", hosts: int = 1) -> int:
    return datasize.size(workload(name, accelerator), rules, number, int(MEMORY_GIB * 2**30) * hosts).files


def dlio_run(folder: Path, number: int, *, name: str = "unet3d", accelerator: str = "h100", **other: Any) -> Path:
    """One run as DLIO leaves it. `other`: keys of its summary, of `metric`, or `overrides`."""
    place = folder / f"run{number}"
    (place / "configs").mkdir(parents=True)
    began = BEGAN + timedelta(hours=number)
    accelerators = other.pop("num_accelerators", 4)
    overrides = {"workload": f"{name}_{accelerator}", "++workload.workflow.train": "True", **other.pop("overrides", {})}
    metric = {
        "train_au_mean_percentage": 95.0,
        "train_au_meet_expectation": "success",
        "train_throughput_mean_samples_per_second": 80.0,
        **{key: other.pop(key) for key in list(other) if key.startswith("train_")},
    }
    summary = {
        "start": began.isoformat(),
        "end": (began + timedelta(minutes=50)).isoformat(),
        "num_accelerators": accelerators,
        "num_hosts": 1,
        "metric": metric,
        "num_files_train": enough_files(name, accelerator, accelerators),
        "num_samples_per_file": workload(name, accelerator).samples_per_file,
        "host_memory_GB": [MEMORY_GIB],
        "epochs": workload(name, accelerator).epochs,
        **other,
    }
    (place / "summary.json").write_text(json.dumps(summary))
    (place / "configs" / "overrides.yaml").write_text("".join(f"- {k}={v}\n" for k, v in overrides.items()))
    return place


def five(folder: Path, **other: Any) -> Path:
    for number in range(1, 6):
        dlio_run(folder, number, **dict(other))
    return folder


Check = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def check(capsys: Any) -> Check:
    """`forebay emulate check FOLDER`: exit code and document."""

    def run(folder: Path, *flags: str) -> tuple[int, dict[str, Any]]:
        code, out, _ = typed(capsys, "emulate", "check", folder, "--json", *flags)
        return code, json.loads(out)

    return run


def broken(document: dict[str, Any]) -> set[str]:
    return {v["id"] for v in document["verdicts"] if v["ok"] is False}


@pytest.mark.promise("EMU-10")
def test_five_good_runs_stand_and_what_is_not_told_is_named(tmp_path: Path, check: Check, capsys: Any) -> None:
    code, document = check(five(tmp_path))
    assert code == 0 and document["stands"] and document["untold"] == ["cache"]
    assert document["rules"] == "v1.0" and document["label"] == "MLPerf-style, unverified"
    assert document["result"]["samples_per_s"] == 80.0 and len(document["runs"]) == 5
    code, shown, _ = typed(capsys, "emulate", "check", tmp_path)
    assert code == 0 and "No rule of v1.0's closed division is broken; unknown: cache." in shown


@pytest.mark.promise("EMU-10")
@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("au", {"train_au_mean_percentage": 89.99}),
        ("au-said", {"train_au_mean_percentage": 60.0}),
        ("data-size", {"num_files_train": 3}),
        ("epochs", {"epochs": 4}),
        ("same", {"num_files_train": 90_000}),
        ("spread", {"train_throughput_mean_samples_per_second": 70.0}),
        ("hosts", {"num_accelerators": 5, "num_hosts": 2, "host_memory_GB": [MEMORY_GIB, MEMORY_GIB]}),
        ("workload", {"accelerator": "b200"}),
        ("parameters", {"overrides": {"++workload.reader.batch_size": 14}}),
        ("parameters", {"overrides": {"++workload.train.computation_time": 0.5}}),
        ("prefetch", {"overrides": {"++workload.reader.prefetch_size": 3}}),
    ],
)
def test_each_rule_finds_the_run_that_breaks_it(tmp_path: Path, rule: str, change: dict[str, Any], check: Check) -> None:
    where = random.Random(rule).randint(1, 5)
    for number in range(1, 6):
        dlio_run(tmp_path, number, **(dict(change) if number == where or rule == "workload" else {}))
    code, document = check(tmp_path)
    assert code == 1 and rule in broken(document), document["verdicts"]
    named = [v for v in document["verdicts"] if v["id"] == rule and v["ok"] is False][0]
    assert rule in ("same", "spread", "workload") or named["runs"] == [f"run{where}"]


def test_what_closed_forbids_open_may_allow(tmp_path: Path, check: Check) -> None:
    five(tmp_path, overrides={"++workload.reader.data_loader": "dali", "++workload.reader.read_threads": 16})
    assert broken(check(tmp_path)[1]) == {"parameters"}
    assert check(tmp_path, "--open")[0] == 0


def test_a_constant_set_to_what_it_is_breaks_nothing(tmp_path: Path, check: Check) -> None:
    five(tmp_path, overrides={"++workload.reader.batch_size": 7, "++workload.train.epochs": 5})
    assert check(tmp_path)[0] == 0


def test_too_many_and_too_few_runs_are_told(tmp_path: Path, check: Check) -> None:
    dlio_run(tmp_path, 1)
    assert broken(check(tmp_path)[1]) == {"runs"}
    for number in range(2, 7):
        dlio_run(tmp_path, number)
    assert broken(check(tmp_path)[1]) == {"runs"}


@pytest.mark.promise("EMU-10")
def test_the_first_of_six_runs_of_v3_warms_up_and_no_run_is_left_out(tmp_path: Path, check: Check) -> None:
    for number in range(1, 7):
        rate = 40.0 if number == 1 else 80.0
        place = dlio_run(
            tmp_path, number, accelerator="b200", train_throughput_mean_samples_per_second=rate,
            num_files_train=enough_files("unet3d", "b200", 4, "v3.0"),
        )  # fmt: skip
        (place / "provenance.json").write_text("{}")
    code, document = check(tmp_path)
    assert document["rules"] == "v3.0" and code == 0, document["verdicts"]
    assert document["result"]["samples_per_s"] == 80.0, "the run that warms up is no part of the mean"
    summary = tmp_path / "run4" / "summary.json"
    late = json.loads(summary.read_text()) | {"start": "2026-01-05T14:00:00", "end": "2026-01-05T14:50:00"}
    summary.write_text(json.dumps(late))
    assert "pauses" in broken(check(tmp_path)[1])


@pytest.mark.promise("EMU-10")
def test_metadata_of_mlcommons_tool_names_workload_and_edition(tmp_path: Path, check: Check) -> None:
    for number in range(1, 6):
        place = dlio_run(tmp_path, number, num_files_train=enough_files("unet3d", "h100", 4, "v2.0"))
        (place / "configs").rename(place / "dlio_config")
        said = {"args": {"model": "unet3d", "accelerator_type": "h100"}}
        (place / "training_20260105_metadata.json").write_text(json.dumps(said))
        (place / "dlio_config" / "overrides.yaml").write_text("- workload=unet3d_h100\n")
    runs, damaged = results.read(str(tmp_path))
    assert not damaged and {r.written_by for r in runs} == {"mlpstorage"} and {r.edition for r in runs} == {"v2.0"}
    assert check(tmp_path)[0] == 0


@pytest.mark.promise("EMU-10")
@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"metric": {}}', '{"metric": {"train_au_mean_percentage": "x"}}', "null", "[" * 3000, "\xff"],
)
def test_a_damaged_result_is_named_and_the_others_are_judged(tmp_path: Path, text: str, check: Check) -> None:
    five(tmp_path)
    (tmp_path / "run3" / "summary.json").write_bytes(text.encode("latin-1"))
    code, document = check(tmp_path)
    assert code == 1 and {"readable", "runs"} <= broken(document)
    assert [d["place"] for d in document["damaged"]] == ["run3"] and len(document["runs"]) == 4


@pytest.mark.promise("EMU-10")
def test_random_changes_of_a_summary_never_end_in_a_traceback(tmp_path: Path, capsys: Any) -> None:
    seed = int(os.environ.get("FOREBAY_SEED", "5"))
    rng = random.Random(seed)
    whole = json.loads((dlio_run(tmp_path / "first", 1) / "summary.json").read_text())
    place = dlio_run(tmp_path / "second", 1)
    for _ in range(150):
        changed = json.loads(json.dumps(whole))
        at = rng.choice([changed, changed["metric"]])
        at[rng.choice(list(at))] = rng.choice([None, -1, 1e308, "x", [], {}, True, 0, float("nan"), ["a"], 2.5])
        (place / "summary.json").write_text(json.dumps(changed))
        code, out, err = typed(capsys, "emulate", "check", tmp_path / "second")
        assert code in (0, 1), (seed, changed, out, err)


@pytest.mark.parametrize(("what", "next"), [("nowhere", "--results"), ("empty", "forebay emulate run --results DIR")])
def test_a_folder_without_results_is_refused(tmp_path: Path, what: str, next: str) -> None:
    (tmp_path / "empty").mkdir()
    ran = processes.run([*processes.FOREBAY, "emulate", "check", tmp_path / what])
    assert ran.returncode == 2 and next in ran.stderr and "Traceback" not in ran.stderr


# Ours ----------------------------------------------------------------------------------------------------


def record(number: int, **training: Any) -> dict[str, Any]:
    """A record of an emulated run, as far as the rules look at it. `cache`, `origin`: of the record itself."""
    known = workload("resnet50", "h100")
    figures = [
        {"rule_set": "v1.0", "au_pct": 93.0, "samples_per_s": 7000.0},
        {"rule_set": "v2.0", "au_pct": 94.0, "samples_per_s": 6900.0},
    ]
    epochs = [{"epoch": n + 1, "steps": 500, "seconds": 120.0, "by_rules": figures} for n in range(5)]
    own = {"cache": {"policy": training.pop("cache", "drop")}, "origin": training.pop("origin", "measured")}
    if warnings := training.pop("warnings", None):
        own["warnings"] = warnings
    settings = {
        "label": "MLPerf-style, unverified", "rule_set": "v1.0", "workload": "resnet50", "accelerator": "h100", "accelerators": 4,
        "hosts": 1, "level": "parse", "files": enough_files("resnet50", "h100", 4), "epochs": epochs, "au_pct": 93.0,
        "au_pct_min": 90.0, "passes": True, "samples_per_s": 7000.0 + number, "prefetch": 2, "read_threads": 8,
        "skipped": {"count": 0, "examples": []}, "version": "1.0", "seed": 123, "steps": 500, "batch": known.batch,
        "compute_s": known.compute_s, "format": known.format,
        "record_bytes": known.record_bytes, "samples_per_file": known.samples_per_file, "loader": known.loader,
    } | training  # fmt: skip
    made = own | {
        "schema": "forebay.run/1", "id": f"{number:032x}", "started": f"2026-01-05T{8 + number:02}:00:00.000Z",
        "forebay": {"version": "0.1.0"}, "training": settings, "result": {"seconds": 601.5, "interrupted": False},
        "environment": {"host": "h", "cpu": "c", "cores": 2, "memory_bytes": int(MEMORY_GIB * 2**30)},
        "job": {"source": "/data/resnet50"},
    }  # fmt: skip
    return whole(made)


def saved(folder: Path, runs: int = 5, **training: Any) -> Path:
    """`training`: as `record` takes it; a function is called with the number of the run."""
    folder.mkdir(exist_ok=True)
    for number in range(1, runs + 1):
        mine = {key: value(number) if callable(value) else value for key, value in training.items()}
        (folder / f"{number}.json").write_text(json.dumps([record(number, **mine)]))
    return folder


V2 = {"rule_set": "v2.0", "version": "2.0", "seed": lambda number: 1000 + number}
THROTTLED = {"id": "throttled_supply", "text": "the supply was held back to 2 GiB/s", "next": "without --supply"}


def test_five_records_of_ours_stand_caches_and_all(tmp_path: Path, check: Check) -> None:
    code, document = check(saved(tmp_path))
    assert code == 0 and document["untold"] == [], document["verdicts"]
    assert document["result"]["samples_per_s"] == 7003.0


@pytest.mark.promise("EMU-10")
@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("cache", {"cache": "allow"}), ("measured", {"origin": "simulated"}), ("level", {"level": "bytes"}),
        ("on-error", {"skipped": {"count": 1, "examples": []}}), ("parameters", {"batch": 200}),
        ("parameters", {"compute_s": 0.5}), ("prefetch", {"prefetch": 9}), ("au", {"au_pct": 20.0, "passes": False}),
        ("parameters", {"steps": 50}), ("supply", {"warnings": [THROTTLED]}), ("odirect", {"cache": "bypass"}),
        ("workload", {"version": "own"}), ("seed", V2 | {"seed": 123}), ("odirect", V2 | {"cache": "bypass"}),
        ("cache", V2 | {"cache": "warm"}), ("cache", {"cache": "memory"}),
    ],
)  # fmt: skip
def test_each_rule_looks_into_our_records(tmp_path: Path, rule: str, change: dict[str, Any], check: Check) -> None:
    code, document = check(saved(tmp_path, **change))
    assert code == 1 and rule in broken(document), document["verdicts"]


@pytest.mark.promise("EMU-10")
def test_what_earlier_rules_forbid_later_ones_may_allow(tmp_path: Path, check: Check) -> None:
    """v2.0: caches needn't be empty, 3D U-Net may be read by O_DIRECT, the seed changes."""
    code, document = check(saved(tmp_path / "warm", **V2, cache="allow"))
    assert code == 0 and "cache" not in {v["id"] for v in document["verdicts"]}, document["verdicts"]
    known = workload("unet3d", "h100")
    files = enough_files("unet3d", "h100", 4, "v2.0")
    unet = {key: getattr(known, key) for key in ("batch", "compute_s", "record_bytes", "samples_per_file", "format", "loader")}
    direct = {"workload": "unet3d", "cache": "bypass", "files": files, "steps": files // 28, **unet}
    code, document = check(saved(tmp_path / "direct", **V2, **direct))
    assert code == 0, document["verdicts"]


@pytest.mark.promise("EMU-10")
def test_v2_may_have_a_run_that_warms_up_and_leaves_it_out(tmp_path: Path, check: Check) -> None:
    rates, utilisations = [10.0] + [7000.0] * 5, [5.0] + [93.0] * 5
    slow = {
        "samples_per_s": lambda number: rates[number - 1], "au_pct": lambda number: utilisations[number - 1],
        "passes": lambda number: number > 1,
    }  # fmt: skip
    code, document = check(saved(tmp_path, 6, **V2, **slow))
    assert code == 0 and document["result"]["samples_per_s"] == 7000.0, document["verdicts"]
    assert {"runs", "spread", "au"} <= broken(check(tmp_path, "--rules", "v1.0")[1]), "v1.0 has none"


@pytest.mark.promise("EMU-10")
def test_a_closed_data_set_of_v3_is_no_larger_than_its_rules_say(tmp_path: Path, check: Check) -> None:
    for number in range(1, 7):
        more = enough_files("unet3d", "b200", 4, "v3.0") + 1
        (dlio_run(tmp_path, number, accelerator="b200", num_files_train=more) / "provenance.json").write_text("{}")
    assert broken(check(tmp_path)[1]) == {"data-size"} and check(tmp_path, "--open")[0] == 0


def test_other_json_beside_records_is_passed_over(tmp_path: Path, check: Check) -> None:
    (saved(tmp_path) / "notes.json").write_text('{"mine": 1}')
    assert check(tmp_path)[0] == 0


def of_checkpoints(folder: Path) -> list[str]:
    """Results of checkpoints: ours, DLIO's, MLCommons' tool's, and one of DLIO's that ended early. Their places."""
    ours = {"schema": "forebay.run/1", "checkpoint": {"workload": "llama3-8b"}}
    dlio, tool, early = (folder / name for name in ("dlio", "tool", "early"))
    for place in (dlio, tool, early):
        (place / "configs").mkdir(parents=True)
        (place / "summary.json").write_text('{"metric": {}}')
    (folder / "ckpt.json").write_text(json.dumps([ours]))
    (dlio / "summary.json").write_text('{"metric": {"save_checkpoint_io_mean_GB_per_second": 3.5}}')
    (tool / "checkpointing_metadata.json").write_text('{"args": {"benchmark": "checkpointing", "model": "llama3-8b"}}')
    (early / "configs" / "overrides.yaml").write_text("- workload=llama3_8b\n")
    return ["ckpt.json", "dlio", "early", "tool"]


@pytest.mark.promise("EMU-10")
def test_results_of_checkpoints_are_passed_over_and_named(tmp_path: Path, check: Check, capsys: Any) -> None:
    places = of_checkpoints(saved(tmp_path / "both"))
    code, document = check(tmp_path / "both")
    assert code == 0 and sorted(document["passed_over"]) == places and document["damaged"] == []
    assert "skipped, results of checkpoints: " in typed(capsys, "emulate", "check", tmp_path / "both")[1]
    (tmp_path / "alone").mkdir()
    of_checkpoints(tmp_path / "alone")
    code, _, err = typed(capsys, "emulate", "check", tmp_path / "alone")
    assert code == 2 and "only results of checkpoints (4)" in err and "try: forebay emulate checkpoint" in err


@pytest.mark.promise("EMU-11")
def test_exported_runs_are_read_as_what_they_were(tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out"
    assert typed(capsys, "emulate", "export", saved(tmp_path / "in"), out)[0] == 0
    runs, damaged = results.read(str(out))
    assert not damaged and [r.place for r in runs] == [f"run{n}" for n in range(1, 6)]
    ours, _ = results.read(str(tmp_path / "in"))
    for theirs, own in zip(runs, ours, strict=True):
        same = ("workload", "accelerator", "accelerators", "hosts", "files", "samples_per_file", "epochs", "began", "ended")
        assert all(getattr(theirs, key) == getattr(own, key) for key in same)
        # By v1.0's formula, whatever the run's own rules were.
        assert theirs.au_pct == 93.0 and theirs.samples_per_s == 7000.0
    verdicts = judge.judge(runs, damaged, "v1.0", "closed")
    assert not [v for v in verdicts if v.ok is False]


@pytest.mark.promise("EMU-11")
def test_an_export_has_no_run_that_warms_up(tmp_path: Path, capsys: Any) -> None:
    code, out, _ = typed(capsys, "emulate", "export", saved(tmp_path / "in", 6, **V2), tmp_path / "out")
    assert code == 0 and "5 runs in" in out and "the warm-up run is left out" in out
    began = json.loads((tmp_path / "out/run1/summary.json").read_text())["start"]
    assert began.startswith("2026-01-05T10"), "the second run is the first that counts"


@pytest.mark.promise("EMU-11")
def test_an_export_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("kept")
    ran = processes.run([*processes.FOREBAY, "emulate", "export", saved(tmp_path / "in"), tmp_path / "out"])
    assert ran.returncode == 2 and "not an empty folder" in ran.stderr
    assert os.listdir(tmp_path / "out") == ["mine"]


@pytest.mark.promise("EMU-11")
def test_the_real_report_script_takes_what_was_exported(tmp_path: Path, capsys: Any) -> None:
    script = os.environ.get("MLPERF_STORAGE_REPORT")
    if not script:
        pytest.skip("MLPERF_STORAGE_REPORT names no report.py of mlcommons/storage v1.0")
    # It imports python-dateutil, which DLIO brings.
    python = os.environ.get("DLIO_V1", sys.executable)
    if processes.run([python, "-c", "import dateutil"]).returncode:
        pytest.skip(f"{python} has no python-dateutil; try: DLIO_V1=PYTHON")
    out = tmp_path / "out"
    assert typed(capsys, "emulate", "export", saved(tmp_path / "in"), out)[0] == 0
    ran = processes.run([python, script, "--result-dir", out], cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    report = json.loads((tmp_path / "mlperf_storage_report.json").read_text())
    assert report["overall"]["model"] == "resnet50" and report["overall"]["accelerator"] == "h100"
    assert float(report["overall"]["train_throughput_mean_samples_per_second"]) == 7000.0
