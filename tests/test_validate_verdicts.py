"""`forebay validate`: what its file proves, and what it doesn't, whoever wrote it."""

# ruff: noqa: F811  (fixtures are imported and named again as arguments)

from __future__ import annotations

import json
from pathlib import Path

import pytest
from forebay.cli import main
from forebay.validate import counters, document, promises, proofs
from hypothesis import given
from hypothesis import strategies as st
from properties import any_text, examples
from validate_support import QUICK, Server, drives, four_directories, judged, server, validate  # noqa: F401 - fixtures


@pytest.mark.promise("GPU-16")
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


@pytest.mark.long
@examples(75)
@given(st.data())
def test_whatever_a_file_holds_it_is_judged_or_refused(finished, data):
    broken = json.loads(finished)
    path = data.draw(st.sampled_from([p for p in leaves(broken) if p]))
    *above, last = path
    parent = broken
    for key in above:
        parent = parent[key]
    scalars = st.none() | st.booleans() | st.integers() | st.floats() | any_text(max_size=5)
    nested = st.lists(scalars, max_size=2) | st.dictionaries(any_text(max_size=3), scalars, max_size=2)
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
