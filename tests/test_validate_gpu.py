"""`forebay validate` with the real engine and doctor, on the stand-ins of NVIDIA's libraries."""

from __future__ import annotations

import json

import pytest
from forebay.validate import promises
from gpu_stub_support import Gpu, built
from validate_support import QUICK, judged, judged_of


@pytest.mark.promise("GPU-16")
@pytest.mark.long
def test_with_a_gpu_the_steps_run_through_the_engine_into_its_memory(tmp_path):
    drive, output = tmp_path / "drive", tmp_path / "v.json"
    drive.mkdir()
    only = [word for step in ("doctor", "bounce", "verify", "writes") for word in ("--only", step)]
    # Long enough for a busy machine to move a byte in each run.
    ran = Gpu(built(), tmp_path).forebay(
        "validate", drive, "-o", output, *only, "--seconds", "0.5", *QUICK[2:]
    )
    steps = {s["name"]: s for s in json.loads(output.read_text())["steps"]}
    runs = {f"{s['name']} {r['name']}": r for s in steps.values() for r in s["runs"]}
    for name in (
        "bounce cold 1m",
        "bounce verify",
        "verify bounce",
        "writes bounce",
        "writes bounce read back",
    ):
        assert runs[name]["state"] == "ran", (name, runs[name]["reason"], ran.err)
        assert runs[name]["record"]["path"]["destination"] == "gpu:0"
    # What a stand-in shows is no evidence about hardware.
    rows = {r["step"]: r for r in promises.judge(json.loads(output.read_text()))}
    assert (
        rows["bounce"]["verdict"] == "pending" and "a stand-in is no evidence" in rows["bounce"]["evidence"]
    )
    document = json.loads(output.read_text())
    document["environment"]["gpus"][0]["driver"] = "580.159.03"
    assert judged_of(document, "bounce")["GPU-7"]["verdict"] == "record"
    assert list(drive.iterdir()) == []


@pytest.mark.long
def test_each_of_cufiles_forms_runs_and_compatibility_mode_is_no_direct_dma(tmp_path):
    drive, output = tmp_path / "drive", tmp_path / "v.json"
    drive.mkdir()
    flags = ("--only", "gds-direct", "--only", "gds-forms", "--seconds", "0.3", *QUICK[2:])
    ran = Gpu(built(), tmp_path).forebay("validate", drive, "-o", output, *flags, cufile="mode=compat")
    assert ran.exit == 0, ran.err
    steps = {s["name"]: s for s in json.loads(output.read_text())["steps"]}
    assert steps["gds-direct"]["state"] == "skipped" and "compatibility mode" in steps["gds-direct"]["reason"]
    runs = {r["name"]: r["record"] for r in steps["gds-forms"]["runs"]}
    assert {n: r["path"]["ran"] for n, r in runs.items()} == dict.fromkeys(runs, "gds-compat")
    for form in ("sync", "stream", "batch", "batch-stream"):
        assert runs[f"verify {form}"]["cufile"]["mode"] == form
        assert runs[f"verify {form}"]["result"]["verified_bytes"] == 16 << 20


@pytest.mark.long
def test_bytes_that_no_drive_delivered_are_not_direct_whatever_cufile_counts(tmp_path):
    """The stand-in counts P2PDMA and reads through the page cache: the drive's counters give it away."""
    drive, output = tmp_path / "drive", tmp_path / "v.json"
    drive.mkdir()
    flags = ("--only", "gds-direct", "--seconds", "0.3", *QUICK[2:])
    Gpu(built(), tmp_path).forebay("validate", drive, "-o", output, *flags, cufile="mode=p2p")
    row = judged(output, "gds-direct")["GPU-3"]
    assert row["verdict"] != "record" and "0 POSIX" in row["evidence"]


@pytest.mark.parametrize(
    "given_settings, words",
    [
        ({"cuda": "init=999"}, "GPU"),
        ({"FOREBAY_LIBCUDA": "/no/such/libcuda.so.1"}, "GPU"),
    ],
)
def test_a_driver_that_refuses_is_a_reason_to_skip_and_no_failure(tmp_path, given_settings, words):
    drive, output = tmp_path / "drive", tmp_path / "v.json"
    drive.mkdir()
    ran = Gpu(built(), tmp_path).forebay(
        "validate", drive, "-o", output, "--only", "bounce", *QUICK, **given_settings
    )
    assert ran.exit == 3, ran.err
    assert words in json.loads(output.read_text())["steps"][0]["reason"]


@pytest.mark.long
def test_gpu_memory_that_runs_out_is_said_and_nothing_is_claimed(tmp_path):
    drive, output = tmp_path / "drive", tmp_path / "v.json"
    drive.mkdir()
    flags = ("--only", "bounce", "--only", "host", *QUICK)
    ran = Gpu(built(), tmp_path).forebay("validate", drive, "-o", output, *flags, cuda="memory=1m")
    steps = {s["name"]: s for s in json.loads(output.read_text())["steps"]}
    assert (steps["host"]["reason"], ran.exit) == (None, 0), ran.err
    assert "out of memory" in steps["bounce"]["reason"] and "--depth" in steps["bounce"]["reason"]
    # The runs that did fit prove nothing about those that were refused.
    assert judged(output, "bounce")["GPU-7"]["verdict"] == "pending"
    assert list(drive.iterdir()) == []
