"""`forebay validate` where a run fails, the machine goes down, or somebody else's files are in the way."""

# ruff: noqa: F811  (fixtures are imported and named again as arguments)

from __future__ import annotations

import json

import pytest
from forebay.errors import MachineError, RequestError, RunError
from forebay.validate import plan
from validate_support import QUICK, drives, judged, server, states, validate  # noqa: F401 - fixtures


@pytest.mark.long
def test_a_run_that_fails_is_kept_with_its_reason_and_the_rest_goes_on(capsys, server, drives, tmp_path):
    server.break_at = {
        "validate bounce: cold 1m": RunError("reading", "Input/output error", "dmesg"),
        "validate mapped: first pass": MachineError("--path mapped", "no huge luck", "--path bounce"),
        "validate auto: auto": RequestError("--path auto", "isn't known here", "--path host"),
    }
    output = tmp_path / "v.json"
    code, _, err = validate(capsys, drives[0], "-o", output, *QUICK)
    assert code == 4 and "Input/output error" in err
    found = states(output)
    assert (found["bounce"], found["mapped"], found["auto"], found["power"]) == (
        "failed",
        "ran",
        "failed",
        "ran",
    )
    steps = {s["name"]: s for s in json.loads(output.read_text())["steps"]}
    assert steps["mapped"]["runs"][0]["reason"].startswith("--path mapped: no huge luck")
    assert judged(output, "bounce")["GPU-7"]["verdict"] == "does not hold"


@pytest.mark.long
@pytest.mark.promise("GPU-16")
def test_after_ctrl_c_the_same_command_goes_on_where_it_stopped(capsys, server, drives, tmp_path):
    output = tmp_path / "v.json"
    server.interrupt_at = 6
    code, _, err = validate(capsys, *drives, "-o", output, *QUICK)
    assert code == 130
    document = json.loads(output.read_text())
    assert document["finished"] is None and states(output)["bounce"] == "partial"
    measured = [
        r["name"] for s in document["steps"] for r in s["runs"] if r["state"] == "ran" and "record" in r
    ]
    assert len(measured) == 6
    server.interrupt_at, first, server.jobs = None, server.labels(), []
    code, _, err = validate(capsys, *drives, "-o", output, *QUICK)
    assert code == 0 and "done before" in err
    # Only the run that was cut short is measured again.
    assert set(server.labels()) & set(first) - {"None"} == {first[-1]}
    assert "partial" not in states(output).values()


@pytest.mark.promise("GPU-16")
@pytest.mark.long
def test_a_run_that_took_the_machine_down_is_not_tried_again_unasked(capsys, server, drives, tmp_path):
    output = tmp_path / "v.json"
    seen = []

    def power_cut(job, **more):
        seen.append(json.loads(output.read_text())["running"])
        raise SystemExit(9)

    only = ("--only", "host", "--only", "bounce")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("forebay.run.run", power_cut)
        assert validate(capsys, drives[0], "-o", output, "--keep", *only, *QUICK)[0] == 9
    assert seen == [{"step": "host", "run": "1m"}]
    assert validate(capsys, drives[0], "-o", output, *QUICK)[0] == 0
    host = next(s for s in json.loads(output.read_text())["steps"] if s["name"] == "host")
    assert [r["state"] for r in host["runs"]] == ["skipped", "ran", "ran"]
    assert "went down during this step" in host["runs"][0]["reason"]
    assert validate(capsys, drives[0], "-o", output, "--only", "host", *QUICK)[0] == 0
    host = next(s for s in json.loads(output.read_text())["steps"] if s["name"] == "host")
    assert [r["state"] for r in host["runs"]] == ["ran", "ran", "ran"]


def test_wrong_bytes_are_a_failure_also_where_the_doctor_expected_a_refusal(
    capsys, server, drives, tmp_path, monkeypatch
):
    doubtful = server.report()
    doubtful["verdicts"]["gds"].update(answer="no", through=None)
    server.report = lambda: doubtful
    plain = server._record

    def corrupted(job):
        made = plain(job)
        made["result"]["errors"].update(verify_failed=1, examples=["forebay.0 at 4096"])
        return made

    monkeypatch.setattr(server, "_record", corrupted)
    output = tmp_path / "v.json"
    assert validate(capsys, drives[0], "-o", output, "--only", "gds-forms", *QUICK)[0] == 4
    assert "forebay.0 at 4096" in json.loads(output.read_text())["steps"][0]["reason"]


def test_what_failed_or_was_skipped_is_tried_again(capsys, server, drives, tmp_path):
    output = tmp_path / "v.json"
    server.break_at = {"validate bounce: cold 1m": RunError("reading", "Input/output error", "dmesg")}
    only = ("--only", "bounce", "--only", "mapped")
    assert validate(capsys, drives[0], "-o", output, *only, *QUICK)[0] == 4
    server.break_at, server.jobs = {}, []
    assert validate(capsys, drives[0], "-o", output, *only, *QUICK)[0] == 0
    assert server.labels() == ["validate bounce: cold 1m"]


def test_another_validation_is_not_mixed_in(capsys, server, drives, tmp_path):
    output = tmp_path / "v.json"
    validate(capsys, drives[0], "-o", output, "--only", "host", *QUICK)
    code, _, err = validate(capsys, drives[1], "-o", output, "--only", "host", *QUICK)
    assert code == 2 and "--restart" in err and "sources" in err
    assert validate(capsys, drives[1], "-o", output, "--only", "host", "--restart", *QUICK)[0] == 0
    old = json.loads((tmp_path / "v.json.1").read_text())
    assert old["options"]["sources"] == [str(drives[0])]


def test_a_folder_of_somebody_elses_is_left_alone(capsys, server, drives, tmp_path):
    theirs = drives[0] / plan.FOLDER
    theirs.mkdir()
    (theirs / "thesis.txt").write_text("years of work")
    code, _, err = validate(capsys, drives[0], "-o", tmp_path / "v.json", *QUICK)
    assert code == 2 and "wasn't created by forebay validate" in err
    assert (theirs / "thesis.txt").read_text() == "years of work" and not server.jobs


def test_what_somebody_put_among_our_files_stays(capsys, drives):
    sources = (str(drives[0]),)
    plan.make_folders(sources)
    folder = drives[0] / plan.FOLDER
    (folder / ".forebay.json").write_text(json.dumps({"files": {"forebay.0": {}, "../../evil": {}}}))
    (folder / "forebay.0").write_text("ours")
    (folder / "notes").write_text("theirs")
    (drives[0].parent / "evil").write_text("outside")
    assert plan.remove_folders(sources) == [str(folder)]
    assert [p.name for p in folder.iterdir()] == ["notes"]
    assert (drives[0].parent / "evil").exists()


def test_with_keep_the_files_stay_for_the_next_time(capsys, server, drives, tmp_path):
    validate(capsys, drives[0], "-o", tmp_path / "v.json", "--only", "host", "--keep", *QUICK)
    assert (drives[0] / plan.FOLDER / plan.MARK).is_file()
    validate(capsys, drives[0], "-o", tmp_path / "w.json", "--only", "host", *QUICK)
    assert list(drives[0].iterdir()) == []


def test_a_gpu_that_is_not_there_is_named(capsys, server, drives, tmp_path):
    output = tmp_path / "v.json"
    assert validate(capsys, drives[0], "-o", output, "--gpu", "7", "--only", "bounce", *QUICK)[0] == 3
    assert "there is no GPU 7, only 0, 1" in json.loads(output.read_text())["steps"][0]["reason"]
