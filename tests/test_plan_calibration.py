"""Saved calibrations: `plan calibrate --out`, and `--calibration` of the verbs that plan."""

from __future__ import annotations

import copy
import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from forebay.errors import RequestError
from forebay.plan import calibrate, catalogue, explore, output, saved, verb
from hypothesis import given
from hypothesis import strategies as st
from properties import any_text, examples

SIZES = {64: 5.0, 128: 6.1, 512: 6.6, 4096: 6.7}


def record(kib: int, rate: float, host: str = "mine", members: int = 0, **job: Any) -> str:
    spent = {"user_s": 0.5 * rate, "system_s": 1.5 * rate}
    return json.dumps(
        {
            "job": {"io_bytes": kib << 10, "workers": 32, "depth": 1, "op": "read", **job},
            "result": {"throughput_gib_s": rate, "seconds": 10.0, "cpu": spent, "targets": [{"members": members}]},
            "environment": {"host": host},
            "path": {"ran": "gds"},
        }
    )


def plan(*arguments: object) -> Any:
    return CliRunner().invoke(verb.command, [str(a) for a in arguments], standalone_mode=False)


def document(*arguments: object) -> dict[str, Any]:
    done = plan(*arguments, "--json")
    assert done.exception is None, done.exception
    return json.loads(done.stdout)


def refusal(*arguments: object) -> str:
    done = plan(*arguments)
    assert isinstance(done.exception, RequestError), (done.exception, done.output)
    return str(done.exception)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("calibration")
    (made / "runs.jsonl").write_text("\n".join(record(k, r) for k, r in SIZES.items()))
    sheet = '[[drive]]\nname = "Mine"\nkind = "nvme-tlc"\nseq_read_mbps = 7200\nprice = 100\n'
    (made / "drives.toml").write_text(sheet)
    done = plan(
        "calibrate", made / "runs.jsonl", "--drive", "Mine", "--catalogue", made / "drives.toml", "--out", made / "mine.json"
    )
    assert done.exception is None and "--calibration" in done.stderr, done.exception
    return made


@pytest.mark.long
@pytest.mark.promise("PLN-15")
def test_a_saved_calibration_plans_as_its_runs_do_without_records_or_catalogue(folder: Path) -> None:
    runs = ("run", "--drive", "Mine", "--catalogue", folder / "drives.toml", "--runs", folder / "runs.jsonl")
    for flags in (["--io-size", "128k"], ["--io-size", "2m", "--drives", "3"]):
        alone = document("run", "--calibration", folder / "mine.json", *flags)
        beside = document(*runs, *flags)
        assert alone["query"]["drive"] == "Mine"
        for key in ("throughput_gib_s", "throughput_gib_s_p10", "cpu_cores", "cpu_system_cores_p90"):
            assert alone[key] == pytest.approx(beside[key], rel=1e-9)
    found = json.loads((folder / "mine.json").read_text())
    assert found["schema"] == "forebay.calibration/2" and found["host"] == "mine" and len(found["points"]) == len(SIZES)
    assert {p["source"] for p in found["parameters"]} >= {"calibrated"}


@pytest.mark.long
@pytest.mark.promise("PLN-15")
def test_every_planning_verb_takes_it(folder: Path, tmp_path: Path) -> None:
    use = ("--calibration", folder / "mine.json")
    points = document("whatif", *use, "--vary", "drives=1:2")["points"]
    assert points[0]["throughput_gib_s"] == pytest.approx(6.65, rel=0.03)
    assert points[1]["throughput_gib_s"] > 1.8 * points[0]["throughput_gib_s"]
    chosen = document("recommend", *use, "--gib-s", "12")["choices"]
    assert {c["drive"]: c["drives"] for c in chosen}["Mine"] == 2
    assert len({c["drive"] for c in chosen}) == len(chosen)
    query = tmp_path / "q.csv"
    query.write_text("drive,location,path,io_size_kib,throughput_gibps\nMine,local,gds,512,\nD7-PS1010,local,gds,512,\n")
    done = plan("predict", "--query", query, *use)
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert float(rows[0]["throughput_gibps"]) == pytest.approx(6.6, rel=0.02)
    wide = [float(r["throughput_gibps_p90"]) / float(r["throughput_gibps_p10"]) for r in rows]
    assert wide[1] > wide[0], "a drive without runs goes by its data sheet, and is less sure"
    other = document("run", *use, "--drive", "D7-PS1010")
    assert any("is predicted from its data sheet" in w for w in other["warnings"])


@pytest.mark.promise("PLN-15")
def test_a_stripe_says_how_many_drives_its_runs_read_unless_the_user_does(tmp_path: Path) -> None:
    runs = tmp_path / "r.jsonl"
    runs.write_text("\n".join(record(k, 3 * r, members=3) for k, r in SIZES.items()))
    asked = ("calibrate", runs, "--drive", "D7-P5520")
    assert [p["drives"] for p in document(*asked)["points"]] == [3] * len(SIZES)
    assert not document(*asked)["warnings"], "three drives read three times as much"
    one = document(*asked, "--drives", "1")
    assert [p["drives"] for p in one["points"]] == [1] * len(SIZES) and any("specification" in w for w in one["warnings"])
    row = document("run", "--drive", "D7-P5520", "--runs", runs, "--io-size", "4m", "--workers", "32")
    assert row["throughput_gib_s"] == pytest.approx(6.7, rel=0.03)


def test_what_contradicts_is_refused(folder: Path) -> None:
    use = ("--calibration", folder / "mine.json")
    assert "one of them" in refusal("run", *use, "--runs", folder / "runs.jsonl")
    assert "which drive" in refusal("recommend", "--runs", folder / "runs.jsonl", "--gib-s", "5")
    assert "No such file" in refusal("run", "--calibration", folder / "none.json")


@pytest.mark.promise("PLN-15")
@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([record(64, 5.0)], "all have the same settings"),
        ([record(64, 5.0), record(64, 5.1)], "all have the same settings"),
        ([record(64, 5.0), record(512, 6.6, "other")], "different machines: mine, other"),
        ([record(64 + i, 5.0) for i in range(1001)], "at most 1000"),
        (["hello"], "holds no run"),
    ],
)
def test_runs_that_cannot_calibrate_save_nothing(tmp_path: Path, lines: list[str], said: str) -> None:
    runs, out = tmp_path / "r.jsonl", tmp_path / "c.json"
    runs.write_text("\n".join(lines))
    assert said in refusal("calibrate", runs, "--drive", "D7-P5520", "--out", out)
    assert not out.exists()


def test_what_is_written_is_whole_or_refused_and_a_link_stays_one(tmp_path: Path) -> None:
    def write(place: object) -> None:
        output.write("--out", str(place), "# How good the planner is\n", output.BACKTEST)

    (tmp_path / "kept").touch()
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    for place in (tmp_path / "link", tmp_path / "plain", "/dev/null"):
        write(place)
    assert (tmp_path / "link").is_symlink() and (tmp_path / "kept").read_text() == (tmp_path / "plain").read_text() != ""
    assert Path("/dev/null").is_char_device()
    for place in (tmp_path, tmp_path / "absent" / "file", tmp_path / "plain" / "file"):
        with pytest.raises(RequestError, match="--out"):
            write(place)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["kept", "link", "plain"]


def test_a_file_of_the_users_is_never_replaced(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file that plans write replaces an older one of its kind, and refuses any other, the inputs too."""
    monkeypatch.setattr(explore, "document", lambda *_: {})  # what a page says, which takes seconds, decides nothing here
    query = tmp_path / "cells.csv"
    query.write_text("drive,path,io_size_kib,throughput_gibps,cpu_usr_pct\nD7-P5520,gds,128,,\n")
    runs = folder / "runs.jsonl"
    writers = {
        "c.json": ("calibrate", runs, "--drive", "Mine", "--catalogue", folder / "drives.toml", "--out"),
        "t.csv": ("predict", "--query", query, "--out"),
        "w.html": ("whatif", "--drive", "D7-PS1010", "--page"),
    }
    for name, words in writers.items():
        target = tmp_path / name
        for _ in range(2):
            done = plan(*words, target)
            assert done.exception is None and target.stat().st_size > 100, done.exception
    for name, words in writers.items():
        for other in {*writers, "cells.csv"} - {name}:
            before = (tmp_path / other).read_bytes()
            assert "isn't replaced" in (said := refusal(*words, tmp_path / other)) or "is one of the inputs" in said
            assert (tmp_path / other).read_bytes() == before
    before = runs.read_bytes()
    refusal(*writers["c.json"], runs)
    assert runs.read_bytes() == before


@pytest.mark.long
def test_outliers_and_doubts_follow_the_calibration_into_every_plan(tmp_path: Path) -> None:
    runs, out = tmp_path / "r.jsonl", tmp_path / "c.json"
    rates = {**SIZES, 256: 6.4, 1024: 6.65, 2048: 2.0}
    runs.write_text("\n".join(record(k, r) for k, r in rates.items()))
    done = document("calibrate", runs, "--drive", "D7-P5520", "--out", out)
    assert len(done["outliers"]) == 1 and "2.00 GiB/s" in done["outliers"][0]
    warnings = document("run", "--calibration", out)["warnings"]
    assert any("outlier" in w and "2.00 GiB/s" in w for w in warnings)


def test_runs_across_a_network_calibrate_the_way_there(tmp_path: Path) -> None:
    far = {"source": "nvme+tcp://10.0.0.2:4420/nqn.x?nsid=1", "queues": 8}
    runs, out = tmp_path / "r.jsonl", tmp_path / "c.json"
    runs.write_text("\n".join([record(k, r) for k, r in SIZES.items()] + [record(k, r * 0.8, **far) for k, r in SIZES.items()]))
    found = document("calibrate", runs, "--drive", "D7-P5520", "--out", out)
    assert [p["queues"] for p in found["points"] if p["remote"]] == [8] * len(SIZES)
    assert "fabric_residence" in {p["name"] for p in found["parameters"]}
    row = document("run", "--calibration", out, "--location", "remote", "--queues", "8", "--io-size", "64k", "--workers", "32")
    assert row["throughput_gib_s"] == pytest.approx(4.0, rel=0.06)


WRONG = [
    ({"schema": "forebay.calibration/1"}, "forebay.calibration/2"),
    ({"schema": "forebay.run/1"}, "this version reads"),
    ({"points": None}, "no 'points'"),
    ({"points": [7]}, "is not an object"),
    ({"points": [{}] * 1001}, "at most 1000"),
    ({"sheet": {"name": "x"}}, "lacks 'kind'"),
]
POINT = [("gibps", -1), ("gibps", "fast"), ("gibps", float("inf")), ("io_kib", 0), ("workers", None), ("drives", True),
         ("path", "magic"), ("remote", 1), ("queues", 5)]  # fmt: skip


def test_a_file_that_is_no_calibration_is_refused_by_name(folder: Path) -> None:
    good = json.loads((folder / "mine.json").read_text())
    assert len(saved.read(json.dumps(good), "c").runs) == len(SIZES)
    for change, said in WRONG:
        with pytest.raises(RequestError, match=said):
            saved.read(json.dumps({**good, **change}), "c")
    for key, value in POINT:
        bad = copy.deepcopy(good)
        bad["points"][1][key] = value
        with pytest.raises(RequestError, match="c, point 2"):
            saved.read(json.dumps(bad), "c")
    for text, said in (("[" * 100_000, "nested|JSON"), ("{", "not JSON"), ("[]", "a calibration"), (" " * (5 << 20), "larger")):
        with pytest.raises(RequestError, match=said):
            saved.read(text, "c")


@pytest.mark.promise("PLN-15")
@examples(30)
@given(data=st.data())
def test_a_damaged_file_is_refused_and_never_a_crash(data: st.DataObject) -> None:
    sheet = {"name": "Mine", "kind": "nvme-tlc", "seq_read_mbps": 7200, "source": "s"}
    point = {"io_kib": 64.0, "workers": 32.0, "depth": 1, "drives": 1, "path": "gds", "remote": False, "gibps": 5.0}
    good = {"schema": saved.SCHEMA, "host": "h", "sheet": sheet, "points": [point, {**point, "io_kib": 512.0}]}
    junk = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | any_text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text(max_size=4), inner, max_size=3),
        max_leaves=5,
    )
    bad: Any = copy.deepcopy(good)
    place = data.draw(st.sampled_from([bad, bad["sheet"], bad["points"][0]]))
    place[data.draw(st.sampled_from(sorted(place)))] = data.draw(junk)
    try:
        saved.read(json.dumps(bad), "c")
    except RequestError as error:
        assert error.next


FIO = {"fio version": "fio-3.33", "jobs": [{"job options": {"bs": "64k", "numjobs": "4"}, "read": {"bw_bytes": 1 << 30}}]}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"bs": "zz"}, "job 1: bs zz"),
        ({"numjobs": "q"}, "job 1"),
        ({"numjobs": "-4"}, "must be above 0"),
        ({"iodepth": "1e999"}, "must be above 0"),
    ],
)
def test_a_strange_option_of_fios_is_named_with_its_job(change: dict[str, str], said: str) -> None:
    found = copy.deepcopy(FIO)
    found["jobs"][0]["job options"] |= change  # type: ignore[index]
    with pytest.raises(RequestError, match=said):
        calibrate.read(json.dumps(found), "f.json", "D7-P5520", 1)


@pytest.mark.promise("PLN-8")
def test_clones_of_a_job_of_fios_are_one_run_whether_fio_adds_them_up_or_not() -> None:
    def job(rate: float, **more: Any) -> dict[str, Any]:
        return {"jobname": "a", "groupid": 0, "job options": {"bs": "64k", **more}, "read": {"bw_bytes": rate * 2**30}}

    def rates(jobs: list[dict[str, Any]], **shared: str) -> list[tuple[float, float]]:
        text = json.dumps({"fio version": "fio-3.33", "global options": shared, "jobs": jobs})
        return [(r.measured.load.workers, r.measured.gibps) for r in calibrate.read(text, "f.json", "D7-P5520", 1)]

    assert rates([job(1.0, numjobs="2"), job(1.5, numjobs="2")]) == [(2.0, 2.5)]
    assert rates([job(1.0), job(1.5)], numjobs="2") == [(2.0, 2.5)]
    assert rates([job(2.5, numjobs="2")]) == [(2.0, 2.5)]
    # Alike and not as many as clones would be: jobs of their own.
    assert rates([job(1.0), job(1.5)]) == [(1.0, 1.0), (1.0, 1.5)]
    other = {**job(1.5, numjobs="2"), "groupid": 1}
    assert rates([job(1.0, numjobs="2"), other]) == [(2.0, 1.0), (2.0, 1.5)]


def fio_job(name: str = "a", group: int = 0, **more: Any) -> dict[str, Any]:
    """One of four threads that have 32 requests in flight each, as fio adds them up: 12 % of a core in user mode, 40 % not."""
    options = {"bs": "4k", "numjobs": "4", "iodepth": "32", "ioengine": "io_uring", "direct": "1", **more}
    of_thread = {"usr_cpu": 12.0, "sys_cpu": 40.0}
    return {"jobname": name, "groupid": group, "job options": options, "read": {"bw_bytes": 4 << 30}, **of_thread}


def fio_runs(*jobs: dict[str, Any]) -> list[calibrate.Found]:
    return calibrate.read(json.dumps({"fio version": "fio-3.36", "jobs": jobs}), "f.json", "D7-P5520", 1)


@pytest.mark.promise("PLN-14")
def test_fios_processor_time_calibrates_the_cores_of_all_its_threads() -> None:
    (whole,) = fio_runs(fio_job())
    (parts,) = fio_runs(*[{**fio_job(), "read": {"bw_bytes": 1 << 30}}] * 4)
    for run in (whole, parts):
        assert run.spent is not None and run.measured.gibps == 4.0
        assert (run.spent.user, run.spent.system) == pytest.approx((0.48, 1.6))
    runs = [whole, *fio_runs({**fio_job(bs="1m", numjobs="1"), "usr_cpu": 0.5, "sys_cpu": 30.0})]
    _, found = calibrate.calibrate(runs, catalogue.drive("D7-P5520"), [])
    sources = {p["name"]: p["source"] for p in found["parameters"]}
    assert sources["system_core_request[cpu]"] == sources["system_core_mib[cpu]"] == "calibrated"
    kept = saved.read(json.dumps(saved.document(found, runs, catalogue.drive("D7-P5520"))), "c")
    assert [r.spent for r in kept.runs] == [r.spent for r in runs]
    assert fio_runs({**fio_job(), "usr_cpu": None, "sys_cpu": None})[0].spent is None
    with pytest.raises(RequestError, match="job 1: is not as fio writes it"):
        fio_runs({**fio_job(), "sys_cpu": -3})


def test_fios_engine_says_what_is_in_flight_and_which_path() -> None:
    def load(**more: Any) -> tuple[float, str]:
        found = fio_runs(fio_job(**more))[0].measured.load
        return found.depth, found.path

    assert load() == (32.0, "cpu") and load(ioengine="psync") == (1.0, "cpu")
    assert load(ioengine="libcufile")[1] == "gds" and load(ioengine="libcufile", cuda_io="posix")[1] == "cpu"


@pytest.mark.promise("PLN-8")
def test_what_fio_says_against_its_own_figures_is_said() -> None:
    drive = catalogue.drive("D7-P5520")

    def doubts(*jobs: dict[str, Any]) -> list[str]:
        runs = fio_runs(*jobs)
        found = calibrate.calibrate(runs, drive, [])[1]
        kept = saved.read(json.dumps(saved.document(found, runs, drive)), "c")
        assert [r.doubt for r in kept.runs] == [r.doubt for r in runs]
        return [t for t in found["warnings"] if t.startswith("f.json")]

    large = {**fio_job("b", 1, bs="1m"), "read": {"bw_bytes": 6 << 30}}
    assert doubts(fio_job(), large) == []
    assert "ran beside job b" in doubts(fio_job(), {**large, "groupid": 0})[0]
    (cached,) = doubts(fio_job(direct="0"), {**large, "job options": {"bs": "1m"}})
    assert cached.startswith("f.json, job 1 and 1 more") and "direct=1" in cached
    # Reads beside writes aren't what a drive reads.
    with pytest.raises(RequestError, match="holds no run"):
        fio_runs({**fio_job(), "write": {"bw_bytes": 5}})


@pytest.mark.promise("PLN-8")
def test_runs_on_a_model_of_a_drive_are_said_to_be() -> None:
    drive = catalogue.drive("D7-P5520")
    lines = [json.loads(record(kib, rate)) for kib, rate in ((64, 4.3), (1024, 6.5))]
    runs = [r for line in lines for r in calibrate.of_record({**line, "origin": "simulated"}, "r", drive.name, 1)]
    _, found = calibrate.calibrate(runs, drive, [])
    assert "2 of 2 runs are simulated" in found["warnings"][0]
    kept = saved.read(json.dumps(saved.document(found, runs, drive)), "c")
    assert [r.simulated for r in kept.runs] == [True, True]
    measured = [r for line in lines for r in calibrate.of_record({**line, "origin": "measured"}, "r", drive.name, 1)]
    assert not calibrate.calibrate(measured, drive, [])[1]["warnings"]


def test_output_that_is_cut_or_empty_is_no_run() -> None:
    line = "IoType: READ XferType: GPUD Threads: {} DataSetSize: 1/2(KiB) IOSize: {}(KiB) Throughput: {} GiB/sec, Avg\n"
    for numbers in ((0, 64, 1.0), (4, 0, 1.0), (4, 64, 0.0), (4, 64, "1.2.3")):
        with pytest.raises(RequestError, match="holds no run"):
            calibrate.read(line.format(*numbers), "g.txt", "D7-P5520", 1)
    for jobs in ({"a": 3}, None, "x"):
        with pytest.raises(RequestError, match="without 'jobs'"):
            calibrate.read(json.dumps({**FIO, "jobs": jobs}), "f.json", "D7-P5520", 1)
    for deep in ('{"a":' * 100_000, '{"fio version": ' + "[" * 100_000):
        with pytest.raises(RequestError):
            calibrate.read(deep, "f", "D7-P5520", 1)
    strange: list[Any] = [{"io_bytes": 1 << 16, "workers": "x"}, {"io_bytes": "64k"}, {"io_bytes": -4}, [], 7]
    for job in strange:
        document = {"job": job, "result": {"throughput_gib_s": 1.0}, "path": {"ran": "gds"}}
        assert calibrate.of_record(document, "r", "D7-P5520", 1) == []


@examples(60)
@given(
    any_text(max_size=60), st.sampled_from(sorted(FIO)), st.recursive(st.none() | st.floats() | any_text(max_size=4), st.lists)
)
def test_any_text_is_runs_or_a_refusal(text: str, key: str, value: Any) -> None:
    for file in (text, json.dumps({**FIO, key: value}), json.dumps(FIO)[: len(text) + 20]):
        try:
            assert calibrate.read(file, "f", "D7-P5520", 1)
        except RequestError as error:
            assert error.next


def of_no_drive(change: dict[str, Any], source: str = "/mnt/f") -> str:
    """The record's line, with such a state of the cache."""
    made = json.loads(record(64, 300.0, source=source))
    made["result"] |= {"bytes": 1000 << 30, "read_bytes": 1000 << 30, "throughput_gib_s": 100.0}
    made["cache"] = {"policy": "bypass", "device_bytes": 1000 << 30, "devices": {"nvme0n1": 1000 << 30}, **change}
    return json.dumps(made)


@pytest.mark.promise("PLN-8")
@pytest.mark.parametrize(
    ("source", "change", "said"),
    [
        ("nil:", {"policy": "none", "device_bytes": None, "devices": {}}, "completes at once"),
        ("stripe:?m=nil:&m=nil:", {"policy": "none", "device_bytes": None, "devices": {}}, "completes at once"),
        ("/dev/shm/f", {"policy": "memory", "device_bytes": None, "devices": {}}, "lives in memory"),
        ("/mnt/f", {"devices": {"zram0": 1000}}, "zram0, which keeps its data in memory"),
        ("/mnt/f", {"devices": {"host2:ram1": 1000}}, "ram1, which keeps its data in memory"),
        ("/mnt/nfs", {"device_bytes": None, "devices": {}}, "weren't counted"),
        ("/mnt/unwritten", {"device_bytes": 0}, "the devices delivered 0 %"),
        ("/mnt/cached", {"policy": "allow", "device_bytes": 940 << 30}, "delivered 94 % of what was read from /mnt/cached"),
    ],
)
def test_records_of_no_drive_are_refused_by_name(tmp_path: Path, source: str, change: dict[str, Any], said: str) -> None:
    runs = tmp_path / "r.jsonl"
    runs.write_text("\n".join([*(record(k, r) for k, r in SIZES.items()), of_no_drive(change, source)]))
    for words in (("calibrate", runs, "--drive", "D7-P5520"), ("run", "--drive", "D7-P5520", "--runs", runs)):
        reported = refusal(*words)
        assert f"{runs}, line 5: the record is of no drive" in reported and said in reported
    whole = json.loads(of_no_drive({"device_bytes": 960 << 30}))
    assert calibrate.of_record(whole, "r", "D7-P5520", 1), "what a device delivered but for the edges is a drive's"
