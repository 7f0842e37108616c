"""`forebay validate`: as typed on this machine, and on a made-up server that has everything."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from fake_machine import typed
from forebay.cli import main
from forebay.errors import MachineError, RequestError, RunError
from forebay.validate import counters, document, plan, promises, proofs
from forebay.validate.steps import BY_NAME, STEPS
from gpu_stub_support import Gpu, built
from hypothesis import given, settings
from hypothesis import strategies as st
from validate_support import GDSIO, Server, four_directories

SPECIFICATION = (Path(__file__).resolve().parent.parent / "SPECIFICATION.md").read_text()
QUICK = ("--seconds", "0.1", "--file-size", "16m")
# Unscaled, the papers' tables are whole on any machine; a small one can't hold as many workers.
WHOLE = (*QUICK, "--scale", "1")


def states(path):
    return {s["name"]: s["state"] for s in json.loads(path.read_text())["steps"]}


def validate(capsys, *arguments):
    return typed(capsys, "validate", *arguments)


# as typed, on this machine


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


@pytest.fixture
def server(monkeypatch):
    return Server(monkeypatch)


@pytest.fixture
def drives(tmp_path):
    return four_directories(tmp_path)


def with_gdsio(monkeypatch, tmp_path, rate="0.5"):
    tool = tmp_path / "bin" / "gdsio"
    tool.parent.mkdir()
    tool.write_text(GDSIO.format(rate=rate))
    tool.chmod(0o755)
    monkeypatch.setattr("forebay.validate.verb.find_gdsio", lambda: str(tool))
    return tool


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


# what doesn't hold


def judged_of(document, step):
    return {r["promise"]: r for r in promises.judge(document) if r["step"] == step}


def judged(output, step):
    return judged_of(json.loads(output.read_text()), step)


def test_compatibility_mode_is_never_taken_for_direct(capsys, server, drives, tmp_path):
    """The doctor expected direct DMA; cuFile's counters say otherwise, and they decide."""
    output = tmp_path / "v.json"
    believed = server.report()
    server.compat, server.honest = True, False
    server.report = lambda: believed
    code, _, _ = validate(capsys, drives[0], "-o", output, "--only", "gds-direct", *QUICK)
    row = judged(output, "gds-direct")["GPU-3"]
    assert code == 1 and row["verdict"] == "does not hold" and "compatibility mode" in row["evidence"]
    assert validate(capsys, "--check", output)[0] == 1


@pytest.mark.parametrize(
    "posix, p2p, rerouted, holds", [(0, 8, 0, True), (1, 7, 0, False), (0, 0, 0, False), (0, 8, 1, False)]
)
def test_one_posix_or_rerouted_call_in_cufiles_counters_is_enough_to_doubt(posix, p2p, rerouted, holds):
    calls = {"p2p": p2p, "nvfs": 0, "posix": posix, "rerouted": rerouted}
    record = {
        "path": {"ran": "gds", "compat_bytes": 0, "direct_bytes": 100},
        "result": {"bytes": 100, "errors": {}, "throughput_gib_s": 1.0, "cpu": {}},
        "cufile": {"gpus": [{"reads": calls, "writes": dict.fromkeys(calls, 0)}]},
        "cache": {"device_bytes": 100},
    }
    assert proofs.direct([{"name": "a", "state": "ran", "record": record}])[0] is holds


def test_without_counters_nothing_is_claimed(capsys, server, drives, tmp_path):
    server.blind = True
    output = tmp_path / "v.json"
    assert validate(capsys, drives[0], "-o", output, "--only", "gds-direct", *QUICK)[0] == 0
    row = judged(output, "gds-direct")["GPU-3"]
    assert row["verdict"] == "pending" and "counters couldn't be read" in row["evidence"]


def test_where_direct_dma_cannot_run_the_reason_stands_in_the_file(capsys, monkeypatch, drives, tmp_path):
    server = Server(monkeypatch, direct=False)
    output = tmp_path / "v.json"
    validate(capsys, drives[0], "-o", output, "--only", "gds-direct", "--only", "gds-forms", *QUICK)
    steps = {s["name"]: s for s in json.loads(output.read_text())["steps"]}
    assert steps["gds-direct"]["state"] == "skipped"
    reason = steps["gds-direct"]["reason"]
    assert reason.startswith(
        "nvidia-fs: nvidia-fs isn't loaded; P2PDMA: P2PDMA refuses md; tried all the same: "
    )
    assert sum(label.startswith("validate gds-direct") for label in server.labels()) == 1
    assert steps["gds-forms"]["state"] == "ran"


def test_a_doctor_that_was_wrong_costs_no_evidence(capsys, server, drives, tmp_path):
    """What the doctor doubts is tried; it runs, and cuFile's counters prove it."""
    doubtful = server.report()
    doubtful["verdicts"]["gds"].update(answer="compat_only", through=None)
    server.report = lambda: doubtful
    output = tmp_path / "v.json"
    assert validate(capsys, drives[0], "-o", output, "--only", "gds-direct", *QUICK)[0] == 0
    assert judged(output, "gds-direct")["GPU-3"]["verdict"] == "record"


def test_bytes_that_ended_in_the_hosts_memory_are_no_proof_of_a_gpu_path(capsys, server, drives, tmp_path):
    server.gpu_lies = True
    output = tmp_path / "v.json"
    assert validate(capsys, drives[0], "-o", output, "--only", "bounce", *QUICK)[0] == 1
    assert judged(output, "bounce")["GPU-7"]["verdict"] == "does not hold"


@pytest.mark.parametrize("where", ["host", "gpu:0+host", None])
def test_verified_by_the_host_is_not_verified_on_the_gpu(capsys, server, drives, tmp_path, where):
    server.verified_on = where
    assert validate(capsys, drives[0], "-o", tmp_path / "v.json", "--only", "verify", *QUICK)[0] == 1


def test_an_auto_that_chose_badly_is_named(capsys, server, drives, tmp_path):
    server.rates["auto"] = 5.0
    output = tmp_path / "v.json"
    assert validate(capsys, drives[0], "-o", output, "--only", "auto", *QUICK)[0] == 1
    assert "best fixed: gds 6.50" in judged(output, "auto")["GPU-10"]["evidence"]


# trouble midway


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


# on the stand-ins of NVIDIA's libraries, with the real engine and doctor


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


# files from elsewhere


@pytest.mark.parametrize(
    "text, words",
    [
        ("", "isn't JSON"),
        ("[" * 100_000, "isn't JSON"),
        ('{"schema": "forebay.validation/1", "options": {"x": Infinity}, "steps": []}', "Infinity is not a JSON number"),
        ("[1]", "has the schema None"),
        ('{"schema": "forebay.run/1"}', "has the schema 'forebay.run/1'"),
        ('{"schema": "forebay.validation/1"}', "steps or options are missing"),
        ('{"schema": "forebay.validation/1", "options": {}, "steps": [7]}', "step 0"),
        (
            '{"schema": "forebay.validation/1", "options": {}, "steps": [{"name": "host", "state": "dreamt"}]}',
            "step 0",
        ),
        (
            '{"schema": "forebay.validation/1", "options": {}, "steps": [{"name": "host", "state": "ran", "runs": [1]}]}',
            "the runs of step host",
        ),
    ],
)
def test_a_file_that_is_no_validation_is_refused_by_name(capsys, tmp_path, text, words):
    path = tmp_path / "v.json"
    path.write_text(text)
    code, _, err = validate(capsys, "--check", path)
    assert (code, words in err) == (2, True), err


def test_a_record_that_lacks_what_would_tell_proves_nothing(capsys, tmp_path):
    path = tmp_path / "v.json"
    run = {
        "name": "1m",
        "state": "ran",
        "job": {},
        "record": {"path": {}, "result": {"bytes": 1, "errors": {}}},
    }
    step = {"name": "gds-direct", "state": "ran", "reason": None, "runs": [run]}
    path.write_text(json.dumps({"schema": "forebay.validation/1", "options": {}, "steps": [step]}))
    code, out, _ = validate(capsys, "--check", path)
    assert code == 0 and "the file lacks the evidence" in out


def leaves(value, path=()):
    """The path of everything in a document."""
    yield path
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in pairs:
        yield from leaves(below, (*path, key))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A whole validation of the made-up server, with the largest parts of each record left out."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        Server(patch)
        patch.setattr("forebay.validate.verb.conclude", lambda *_: None)
        with pytest.raises(SystemExit):
            main(["validate", *map(str, four_directories(folder)), "-o", str(folder / "v.json"), *QUICK])
    document = json.loads((folder / "v.json").read_text())
    for step in document["steps"]:
        step["runs"] = step["runs"][:2]
        for run in step["runs"]:
            run.get("record", {}).get("result", {}).pop("series", None)
            if "report" in run:
                run["report"] = {k: run["report"][k] for k in ("gpu", "drives", "topology")}
    return json.dumps(document)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_whatever_a_file_holds_it_is_judged_or_refused(finished, data):
    broken = json.loads(finished)
    path = data.draw(st.sampled_from([p for p in leaves(broken) if p]))
    *above, last = path
    parent = broken
    for key in above:
        parent = parent[key]
    scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    nested = st.lists(scalars, max_size=2) | st.dictionaries(st.text(max_size=3), scalars, max_size=2)
    parent[last] = data.draw(scalars | nested)
    if document._damage(broken) is None and isinstance(broken.get("steps"), list):
        rows = promises.judge(broken)
        assert {r["verdict"] for r in rows} <= {"record", "does not hold", "pending"}
        assert all(isinstance(r["evidence"], str) for r in rows)


def test_counters_of_nvidia_fs_are_read_as_numbers():
    text = (
        "GDS Version: 1.15.1.6 \nNVFS statistics(ver: 4.0)\n"
        "Reads\t\t\t\t: n=5 ok=4 err=1 readMiB=20 io_state_err=0\nOps\t\t: Read=2 Write=0 BatchIO=0\n"
    )
    before = counters.parse(text)
    assert (before["reads.n"], before["reads.err"], before["ops.read"]) == (5, 1, 2)
    after = counters.parse(text.replace("n=5 ok=4", "n=9 ok=8"))
    assert counters.change(before, after) == {"reads.n": 4, "reads.ok": 4}
    assert counters.change(None, after) is None and counters.read(Path("/no/such/file")) is None
    assert counters.parse("x" * 9000 + ": =" + "9" * 99) == {}
