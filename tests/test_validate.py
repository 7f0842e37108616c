"""`forebay validate`: as typed on this machine, and on a made-up server that has everything."""

# ruff: noqa: F811  (fixtures are imported and named again as arguments)

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from forebay.validate import promises
from forebay.validate.steps import BY_NAME, STEPS
from validate_support import GDSIO, QUICK, drives, judged, server, states, validate  # noqa: F401 - fixtures

SPECIFICATION = (Path(__file__).resolve().parent.parent / "SPECIFICATION.md").read_text()
# Unscaled, the papers' tables are whole on any machine; a small one can't hold as many workers.
WHOLE = (*QUICK, "--scale", "1")


# as typed, on this machine


@pytest.mark.long
@pytest.mark.promise("GPU-16")
def test_for_real_what_can_run_here_runs_and_the_rest_says_why_not(forebay, tmp_path):
    drive, output = tmp_path / "drive", tmp_path / "v.json"
    drive.mkdir()
    (drive / "mine").write_text("mine")
    done = forebay(
        "validate", drive, "-o", output, *QUICK, "--only", "doctor", "--only", "files", "--only", "host"
    )
    assert done.returncode == 0, done.stderr
    assert [p.name for p in drive.iterdir()] == ["mine"] and (drive / "mine").read_text() == "mine"
    document = json.loads(output.read_text())
    assert document["schema"] == "forebay.validation/1" and document["finished"]
    assert states(output) == {"doctor": "ran", "files": "ran", "host": "ran"}
    records = [r["record"] for s in document["steps"] for r in s["runs"] if "record" in r]
    assert len(records) == 4 and all(r["schema"] == "forebay.run/1" for r in records)
    checked = forebay("validate", "--check", output)
    assert checked.returncode == 0 and "still pending" in checked.stdout


def test_for_real_each_step_that_needs_a_gpu_says_why_it_is_skipped(forebay, tmp_path):
    plan_ = json.loads(forebay("validate", tmp_path, "--dry-run", "--json", *QUICK).stdout)
    assert list(tmp_path.iterdir()) == []
    rows = {s["name"]: s for s in plan_["steps"]}
    assert list(rows) == list(BY_NAME) and rows["host"]["skipped"] is None
    if rows["bounce"]["skipped"] is not None:
        assert all(rows[s.name]["skipped"] for s in STEPS if "gpu" in s.needs)


def test_for_real_where_nothing_could_run_it_exits_3(forebay, tmp_path):
    if json.loads(forebay("doctor", "--json").stdout)["verdicts"]["bounce"]["runs"]:
        pytest.skip("there is a GPU here")
    done = forebay("validate", tmp_path, "-o", tmp_path / "v.json", "--only", "gds-direct", *QUICK)
    assert done.returncode == 3 and "skipped" in done.stdout
    assert states(tmp_path / "v.json") == {"gds-direct": "skipped"}


def test_without_a_source_the_machine_alone_is_examined(forebay, tmp_path):
    output = tmp_path / "v.json"
    done = forebay("validate", "-o", output, "--json", "--only", "doctor", "--only", "host")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert {s["name"]: s["state"] for s in summary["steps"]} == {"doctor": "ran", "host": "skipped"}
    assert all(s["reason"] for s in summary["steps"] if s["state"] == "skipped")
    assert [p.name for p in tmp_path.iterdir()] == ["v.json"]


@pytest.mark.parametrize(
    "arguments, words",
    [
        ([], "no source was given"),
        (["/no/such/place"], "is not a file, directory or block device"),
        (["nil:"], "is not a file, directory or block device"),
        ([".", "."], "is named twice"),
        (["--only", "teleport"], "is not a step"),
        (["--gpu", "first", "--only", "doctor"], "is not a list of numbers"),
        (["--gpu", "-1", "--only", "doctor"], "counted from 0"),
        (["--scale", "auto", "--only", "doctor"], "must be a number"),
        (["--scale", "7", "--only", "doctor"], "above 0 and at most 1"),
        (["--seconds", "0", "--only", "doctor"], "above 0"),
        ([".", "--file-size", "1k"], "too small"),
        (["--check", "/no/such/file"], "isn't there"),
    ],
)
def test_a_wrong_request_is_refused_by_name(capsys, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    code, _, err = validate(capsys, *arguments)
    assert (code, words in err) == (2, True), err
    assert list(tmp_path.iterdir()) == []


# on a server that has everything


def with_gdsio(monkeypatch, tmp_path, rate="0.5"):
    tool = tmp_path / "bin" / "gdsio"
    tool.parent.mkdir()
    tool.write_text(GDSIO.format(rate=rate))
    tool.chmod(0o755)
    monkeypatch.setattr("forebay.validate.verb.find_gdsio", lambda: str(tool))
    return tool


@pytest.mark.promise("GPU-16")
@pytest.mark.long
def test_on_a_machine_that_has_everything_each_promise_gets_its_record(capsys, server, drives, tmp_path):
    output = tmp_path / "v.json"
    code, _, err = validate(capsys, *drives, "-o", output, *WHOLE)
    assert code == 0, err
    assert {n: s for n, s in states(output).items() if s != "ran"} == {"gdsio": "skipped"}
    rows = promises.judge(json.loads(output.read_text()))
    assert [r for r in rows if r["verdict"] != "record" and r["step"] != "gdsio"] == []
    code, out, _ = validate(capsys, "--check", output)
    assert code == 0 and "GPU-3" in out and "8 P2PDMA, 0 nvidia-fs, 0 POSIX" in out
    assert all(list(d.iterdir()) == [] for d in drives)


def test_each_step_is_evidence_for_promises_that_exist():
    listed = set(re.findall(r"^\| ([A-Z]+-\d+) \|", SPECIFICATION, re.MULTILINE))
    for step in STEPS:
        assert set(step.proofs) <= listed & promises.PROMISES.keys(), step.name
    assert set(promises.PROMISES) == {p for s in STEPS for p in s.proofs}


def test_each_step_that_the_specification_names_exists():
    named = re.findall(r"forebay validate steps? ([\w-]+(?:(?:, | and )[\w-]+)*)", SPECIFICATION)
    steps = {name for words in named for name in re.split(r", | and ", words)}
    assert steps and steps <= set(BY_NAME), steps - set(BY_NAME)


def test_each_promise_that_a_step_is_evidence_for_names_the_step():
    rows = dict(re.findall(r"^\| ([A-Z]+-\d+) \|(.*)$", SPECIFICATION, re.MULTILINE))
    for step in STEPS:
        for promise in step.proofs:
            named = re.search(r"forebay validate steps? ([\w, -]+)", rows[promise])
            assert named and step.name in re.split(r", | and ", named[1].strip()), (promise, step.name)


@pytest.mark.long
def test_steps_ask_for_the_paths_and_forms_that_they_name(capsys, server, drives, tmp_path):
    validate(capsys, *drives, "-o", tmp_path / "v.json", *QUICK)
    jobs = {str(j.get("label")): j for j in server.jobs}
    assert [
        jobs[f"validate gds-forms: {f}"]["cufile"] for f in ("sync", "stream", "batch", "batch-stream")
    ] == [
        "sync",
        "stream",
        "batch",
        "batch-stream",
    ]
    direct = [j for name, j in jobs.items() if name.startswith("validate gds-direct")]
    assert direct and all(j["require_direct"] and j["path"] == "gds" for j in direct)
    widths = [jobs[f"validate gds-stripe: {n} wide"]["sources"][0].count("m=") for n in (1, 2, 4)]
    assert widths == [1, 2, 4] and "validate gds-stripe: 8 wide" not in jobs
    assert jobs["validate pairs: two pairs"]["pairs"] == [
        f"0={drives[0]}/forebay-validate",
        f"1={drives[1]}/forebay-validate",
    ]


def test_the_papers_tables_run_whole_and_say_how_they_were_scaled(capsys, server, drives, tmp_path):
    output = tmp_path / "v.json"
    validate(capsys, drives[0], "-o", output, "--only", "paper-solidigm-gds", "--scale", "0.01", *QUICK)
    step = json.loads(output.read_text())["steps"][0]
    assert len(step["runs"]) == 10 and {r["record"]["path"]["ran"] for r in step["runs"]} == {"gds", "host"}
    row = next(r for r in promises.judge(json.loads(output.read_text())) if r["step"] == "paper-solidigm-gds")
    assert row["verdict"] == "record" and "scaled" in row["evidence"]


@pytest.mark.promise("GPU-16")
def test_devices_and_files_are_only_read(capsys, server, tmp_path):
    source = tmp_path / "drive"
    source.write_bytes(bytes(1 << 20))
    code, _, err = validate(capsys, source, "-o", tmp_path / "v.json", *QUICK)
    assert code == 0, err
    assert server.jobs and all(j["op"] in ("read", "randread") for j in server.jobs)
    assert not any(j.get("verify") or j.get("overwrite") or j.get("overwrite_devices") for j in server.jobs)
    assert not any(j.get("file_bytes") for j in server.jobs if "label" in j)
    assert source.read_bytes() == bytes(1 << 20)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["drive", "v.json"]
    steps = {s["name"]: s for s in json.loads((tmp_path / "v.json").read_text())["steps"]}
    assert "only read" in steps["writes"]["reason"]


# beside gdsio


def test_gdsio_and_we_run_in_turn_and_are_compared(capsys, server, drives, tmp_path, monkeypatch):
    with_gdsio(monkeypatch, tmp_path)
    monkeypatch.setattr("forebay.validate.runner.sys.executable", str(tmp_path / "bin" / "gdsio"))
    output = tmp_path / "v.json"
    code, _, err = validate(capsys, drives[0], "-o", output, "--only", "gdsio", *QUICK)
    assert code == 0, err
    row = judged(output, "gdsio")["MSR-12"]
    assert row["verdict"] == "record" and "-x 0: 0.50 against 0.50 GiB/s" in row["evidence"]


def test_a_gdsio_that_fails_is_named_with_what_it_said(capsys, server, drives, tmp_path, monkeypatch):
    tool = with_gdsio(monkeypatch, tmp_path)
    tool.write_text("#!/bin/sh\necho no such device >&2\nexit 7\n")
    output = tmp_path / "v.json"
    assert validate(capsys, drives[0], "-o", output, "--only", "gdsio", *QUICK)[0] == 4
    assert "ended with 7: no such device" in json.loads(output.read_text())["steps"][0]["reason"]
