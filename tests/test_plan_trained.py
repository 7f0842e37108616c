"""`forebay plan recommend --runs` with runs of training: their demand is the target, and nothing else rests on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fake_engine
import pytest
from fake_machine import typed
from forebay.errors import RequestError
from forebay.plan import calibrate, trained
from forebay.units import GIB


def run(peak: float = 1.07e6, **more: Any) -> dict[str, Any]:
    part = {
        "model": "dlrm", "batch": 6912, "device": "cuda:0", "peak_samples_per_s": peak, "demand_gib_s": peak * 912 / GIB,
        "peak_samples_per_s_ci95": [0.99 * peak, 1.01 * peak], "supply": {"gpus": 8}, "samples_per_s": 0.4 * peak, **more,
    }  # fmt: skip
    record = fake_engine.record()
    return {**record, "train": part, "environment": {**record["environment"], "gpus": [{"name": "NVIDIA H100"}]}}


def real(workers: int) -> dict[str, Any]:
    """A run of a drive that delivers up to 6 GiB/s, as its block device says too."""
    record = fake_engine.record()
    rate = 6 * workers / (workers + 1)
    record["job"] |= {"workers": workers, "depth": 8}
    moved = int(rate * record["result"]["seconds"] * GIB)
    record["result"] |= {"throughput_gib_s": rate, "bytes": moved, "read_bytes": moved}
    record["cache"] |= {"device_bytes": moved, "devices": {"nvme0n1": moved}}
    return record


def written(path: Path, *records: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def recommended(capsys: Any, *words: Any) -> dict[str, Any]:
    code, out, err = typed(capsys, "plan", "recommend", "--drive", "D7-PS1010", *words, "--json")
    assert code == 0, err
    return json.loads(out)


@pytest.mark.long
@pytest.mark.promise("TRN-45")
def test_the_peak_of_training_runs_times_gpus_is_the_target_and_the_answer_says_so(tmp_path: Path, capsys: Any) -> None:
    file = written(tmp_path / "t.jsonl", run(1.06e6), run(1.08e6))
    found = recommended(capsys, "--runs", file, "--accelerators", 64)
    total = 64 * 1.07e6 * 912 / GIB
    assert found["target"] == {"gibps": pytest.approx(total)} and found["demand"]["total_gib_s"] == pytest.approx(total)
    assert found["demand"]["runs"] == 2 and found["demand"]["gib_s_ci95"][0] < total / 64 < found["demand"]["gib_s_ci95"][1]
    assert found["choices"][0]["estimate"]["p10"] >= total and found["decision"].startswith("64 × NVIDIA H100 training dlrm: ")
    target, rest = found["rests_on_runs"]
    assert target.startswith("the target, 64 × ") and "2 runs of dlrm" in target and "1,070,000 samples/s" in target
    assert rest.startswith("nothing else: what drives deliver is of data sheets")
    # The drives that published times of training ask for are more than those of plain reads.
    assert any(text.startswith("training: got 0.") for text in found["advice"])
    same = recommended(capsys, "--gib-s", total)
    assert same["choices"] == found["choices"] and same["demand"] is None and same["rests_on_runs"] == []
    # As many GPUs as shared the runs' supply, where none are named.
    assert recommended(capsys, "--runs", file)["demand"]["gpus"] == 8


@pytest.mark.promise("TRN-45")
def test_runs_of_drives_beside_them_calibrate_and_those_of_training_do_not(tmp_path: Path, capsys: Any) -> None:
    drive = fake_engine.record()
    drive["result"]["throughput_gib_s"] = 2.0
    text = written(tmp_path / "t.jsonl", run(), drive).read_text()
    assert len(calibrate.read(text, "x", "D7-PS1010", 1)) == len(calibrate.read(json.dumps(drive), "x", "D7-PS1010", 1))
    with pytest.raises(RequestError, match="holds no run"):
        calibrate.read(json.dumps(run()), "x", "D7-PS1010", 1)
    code, _, err = typed(capsys, "plan", "recommend", "--runs", tmp_path / "t.jsonl")
    assert code == 2 and "doesn't say which drive the runs read" in err
    drive["cache"]["device_bytes"] = 0  # of no drive: said, not passed over
    cached = written(tmp_path / "c.jsonl", run(), drive)
    code, _, err = typed(capsys, "plan", "recommend", "--drive", "D7-PS1010", "--runs", cached)
    assert code == 2 and "the record is of no drive" in err
    both = written(tmp_path / "b.jsonl", run(), *(real(n) for n in (1, 2, 4)))
    found = recommended(capsys, "--runs", both, "--accelerators", 64)
    assert found["rests_on_runs"][-1] == "what D7-PS1010 delivers" and found["choices"][0]["drives"] > 8
    # A line that was cut is no run of a drive.
    assert not trained.has_others(json.dumps(run()) + "\n" + json.dumps(drive)[:300])


@pytest.mark.promise("TRN-45")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--gib-s", "4"), "whose demand is the target"), (("--minutes", "4"), "whose demand is the target"),
        (("--kv-users", "40"), "whose demand is the target"), (("--workload", "unet3d"), "contradicts the runs"),
        (("--accelerators", "0"), "is below 1"), (("--gpus", "8"), "try: --accelerators 8"),
    ],
)  # fmt: skip
def test_what_contradicts_the_runs_is_refused(tmp_path: Path, capsys: Any, words: tuple[str, ...], said: str) -> None:
    code, _, err = typed(capsys, "plan", "recommend", "--runs", written(tmp_path / "t.jsonl", run()), *words)
    assert code == 2 and said in err and "try: " in err


@pytest.mark.promise("TRN-45")
def test_demands_of_several_trainings_are_none() -> None:
    with pytest.raises(RequestError, match="several demands: dlrm, batches of 6,912, NVIDIA H100; dlrm, batches of 55,296"):
        trained.read("\n".join(map(json.dumps, (run(), run(batch=55_296)))), "x")
    with pytest.raises(RequestError, match="measured no peak"):
        trained.read(json.dumps(run(peak_samples_per_s=None)), "x")
    assert trained.read(json.dumps(fake_engine.record()), "x") is None and trained.read("{", "x") is None
    one = trained.read(json.dumps([run()], indent=1), "x")
    assert one is not None and (one.low, one.high) == (pytest.approx(0.99 * 1.07e6), pytest.approx(1.01 * 1.07e6))
    damaged = run(supply=3, peak_samples_per_s_ci95="x", device="cpu", batch="x")
    found = trained.read(json.dumps({**damaged, "environment": 3}), "x")
    assert found is not None and found.gpus == 1 and found.low is None and "says nothing about a GPU" in found.rests(1, None)[1]


@pytest.mark.promise("TRN-45")
def test_a_run_faster_than_its_own_peak_is_what_its_model_takes() -> None:
    found = trained.read(json.dumps(run(1e6, samples_per_s=1.1e6, samples_per_s_ci95=[1.0e6, 1.2e6])), "x")
    assert found is not None and (found.samples_per_s, found.low, found.high) == (1.1e6, 1.0e6, 1.2e6)
    assert found.sample_bytes == pytest.approx(912) and found.gib_s == pytest.approx(1.1e6 * 912 / GIB)
