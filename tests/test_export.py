"""Runs as a flat table, as Prometheus's text, and a run's metrics over HTTP while it goes."""

from __future__ import annotations

import csv
import io
import json
import re
import socket
import sys
import urllib.error
import urllib.request
from pathlib import Path

import fake_engine
import fake_storage
import processes
import pytest
from forebay import cli, files
from forebay import run as engine
from forebay.bench.endpoint import Endpoint, address
from forebay.emulate import checkpoint, run
from forebay.errors import MachineError, RequestError
from forebay.export import prometheus
from forebay.export.columns import COLUMNS, rows
from forebay.report.load import Entry

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/export.md").read_text()
HERE = Path(__file__).parent
# A sample of the text format: name, labels, value.
LINE = re.compile(r'^([a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\\\|\\"|\\n)*",?)*)\})? (-?[0-9.e+-]+|nan|inf)$')


def forebay(*arguments, cwd):
    return processes.run([*processes.FOREBAY, *arguments], cwd=cwd)


def a_record(number: int = 0, **job) -> dict:
    made = fake_engine.record()
    made["id"] = f"{number:016x}"
    made["job"].update(job)
    return made


@pytest.fixture
def runs(tmp_path) -> Path:
    file = tmp_path / "runs.jsonl"
    lines = [a_record(1), a_record(2, label='=SUM(A1), "x"\nµ', io_bytes=4096)]
    file.write_text("".join(json.dumps(r) + "\n" for r in lines))
    return file


def table_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


@pytest.mark.promise("CMD-23")
def test_a_row_a_run_with_every_documented_column(runs, tmp_path):
    done = forebay("export", runs, "--csv", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = table_of(done.stdout)
    assert len(found) == 2 and list(found[0]) == [c.name for c in COLUMNS]
    assert (found[0]["id"], found[0]["throughput_gib_s"], found[0]["latency_us_p99"]) == ("0000000000000001", "2.0", "1800.0")
    assert found[1]["io_bytes"] == "4096" and found[1]["label"] == "'=SUM(A1), \"x\"\nµ"
    assert found[0]["power_watts"] == "" and "result.power" in found[0]["missing"]
    assert found[0]["interrupted"] == "false" and found[0]["line"] == "1"


@pytest.mark.promise("CMD-23")
def test_names_are_unique_and_the_page_has_each_in_order():
    names = [c.name for c in COLUMNS]
    assert len(set(names)) == len(names)
    section = re.search(r"^## The columns\n(.*?)(?=^## )", PAGE, re.S | re.M)
    table = [[c.strip().strip("`") for c in r.split("|")[1:-1]] for r in section[1].splitlines() if r.startswith("| `")]
    kinds = {str: "text", int: "integer", float: "number", bool: "boolean"}
    assert [r[0] for r in table] == names
    assert [(r[1], r[3]) for r in table] == [(kinds[c.kind], c.field) for c in COLUMNS]
    assert all(r[4] for r in table)


@pytest.mark.promise("CMD-23")
def test_what_was_not_measured_is_no_zero():
    record = a_record()
    record["missing"] = {"result.cpu": "virtual time", "cache.device_bytes": "no counter"}
    [row] = rows([Entry(record, "a.json")])
    cells = dict(zip((c.name for c in COLUMNS), row, strict=True))
    assert [cells[n] for n in ("cpu_user_s", "cpu_s_per_gib", "cpu_cores_busy", "device_bytes")] == [None] * 4
    assert cells["throughput_gib_s"] == 2.0
    text = prometheus.text(prometheus.of_runs([Entry(record, "a.json")]))
    assert "forebay_run_cpu" not in text and "forebay_run_throughput" in text


@pytest.mark.promise("CMD-23")
def test_batches_have_columns_of_their_own_which_are_empty_for_other_runs():
    plain, batched, none_whole = a_record(1), a_record(2, batch=2048), a_record(3, batch=2048)
    latency = {"min": 90.0, "mean": 120.0, "p50": 110.0, "p90": 150.0, "p99": 200.0, "p999": 250.0, "max": 300.0}
    found = {"ios": 2048, "count": 900, "latency_us": latency, "histogram": "", "by": "one launch of a kernel"}
    batched["result"]["batch"] = found
    none_whole["result"]["batch"] = {**found, "count": 0, "latency_us": dict.fromkeys(latency, 0.0)}
    entries = [Entry(record, "a.json") for record in (plain, batched, none_whole)]
    names = ("batch", "batches", "batch_latency_us_p50", "batch_latency_us_max", "batch_by")
    cells = [dict(zip((c.name for c in COLUMNS), row, strict=True)) for row in rows(entries)]
    assert [[c[name] for name in names] for c in cells] == [
        [None] * 5,
        [2048, 900, 110.0, 300.0, "one launch of a kernel"],
        [2048, 0, None, None, "one launch of a kernel"],
    ]
    reported = samples(prometheus.text(prometheus.of_runs(entries)))
    latencies = [("0000000000000002" in labels, float(value)) for labels, value in reported["forebay_run_batch_latency_seconds"]]
    assert latencies == [(True, pytest.approx(us / 1e6)) for us in (110, 150, 200, 250)]
    assert [value for _, value in reported["forebay_run_batches"]] == ["900.0", "0.0"]
    assert sum('batch="2048"' in labels for labels, _ in reported["forebay_run_info"]) == 2


@pytest.mark.promise("TRN-41")
def test_what_was_trained_and_what_answered_queries_have_columns_of_their_own():
    plain, trained, answered = a_record(1), a_record(2), a_record(3)
    cost = {"user": 0.5, "system": 0.25}
    trained["train"] = {
        "model": "toy", "samples_per_s": 8e4, "samples_per_s_ci95": [7e4, 9e4], "demand_gib_s": 0.5, "quality": None,
        "supply": {"kind": "simulated supply", "drives": 2}, "cpu_s_per_gib": cost,
        "feed_cpu_s_per_gib": {"user": None, "system": 1.0}, "input_wait_pct": 0.0,
    }  # fmt: skip
    latency = {"p50": 10.0, "p90": 20.0, "p99": 30.0}
    answered["infer"] = {"model": "dlrm", "valid": False, "queries_per_s": 90.0, "latency_ms": latency, "load_bytes": 3}
    entries = [Entry(record, "a.json") for record in (plain, trained, answered)]
    cells = [dict(zip((c.name for c in COLUMNS), row, strict=True)) for row in rows(entries)]
    own = [c.name for c in COLUMNS if c.name.startswith(("train_", "infer_"))]
    assert len(own) == 39 and all(cells[0][name] is None for name in own)
    assert {name: value for name, value in cells[1].items() if name in own and value is not None} == {
        "train_model": "toy", "train_samples_per_s": 8e4, "train_samples_per_s_ci95_low": 7e4,
        "train_samples_per_s_ci95_high": 9e4, "train_demand_gib_s": 0.5, "train_supply_kind": "simulated supply",
        "train_supply_drives": 2, "train_cpu_s_per_gib": 0.75, "train_input_wait_pct": 0.0,
    }  # fmt: skip
    assert cells[2]["infer_valid"] is False and cells[2]["infer_latency_ms_p90"] == 20.0 and cells[2]["samples_per_s"] is None
    reported = samples(prometheus.text(prometheus.of_runs(entries)))
    assert reported["forebay_run_train_demand_bytes_per_second"] == [('id="0000000000000002"', repr(0.5 * 2**30))]
    assert [value for _, value in reported["forebay_run_infer_latency_seconds"]] == ["0.01", "0.02", "0.03"]
    assert [value for _, value in reported["forebay_run_infer_valid"]] == ["0.0"]
    assert [re.findall('model="([a-z]+)"', labels) for labels, _ in reported["forebay_run_info"]] == [[], ["toy"], ["dlrm"]]


@pytest.mark.promise("TRN-41")
@pytest.mark.parametrize("damage", [None, 3, "x", [], True, {"name": {}}])
def test_a_damaged_part_has_empty_cells(damage):
    for part in (damage, dict.fromkeys(("samples_per_s", "samples_per_s_ci95", "supply", "cpu_s_per_gib", "latency_ms"), damage)):
        [row] = rows([Entry({**a_record(), "train": part, "infer": part}, "a.json")])
        assert all(v is None or isinstance(v, c.kind) for v, c in zip(row, COLUMNS, strict=True))


@pytest.mark.parametrize("part", ["environment", "job", "path", "cache", "result"])
@pytest.mark.parametrize("damage", [None, 3, "x", [], True, {"name": {}}])
def test_a_damaged_record_has_empty_cells(part, damage):
    record = a_record()
    for key in record[part]:
        if (part, key) not in (("result", "throughput_gib_s"), ("job", "io_bytes"), ("path", "ran")):
            record[part][key] = damage
    record["missing"], record["warnings"] = damage, damage
    [row] = rows([Entry(record, "a.json")])
    assert len(row) == len(COLUMNS)
    assert all(v is None or isinstance(v, c.kind) for v, c in zip(row, COLUMNS, strict=True))
    samples(prometheus.text(prometheus.of_runs([Entry(record, "a.json")])))


@pytest.mark.promise("CMD-23")
def test_parquet_holds_the_same_table_typed(runs, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow isn't installed")
    done = forebay("export", runs, "--parquet", "-o", "runs.parquet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    read = parquet.read_table(tmp_path / "runs.parquet")
    assert read.column_names == [c.name for c in COLUMNS] and read.num_rows == 2
    assert read.column("latency_us_p99").to_pylist() == [1800.0, 1800.0]
    assert read.column("power_watts").to_pylist() == [None, None]
    assert read.schema.field("bytes").metadata[b"unit"] == b"bytes"
    assert forebay("export", runs, "--parquet", "-o", "runs.parquet", cwd=tmp_path).returncode == 0, "its own may be replaced"


def samples(text: str) -> dict[str, list[tuple[str, str]]]:
    """Name → (labels, value) of each sample; fails where a line isn't the format's."""
    found: dict[str, list[tuple[str, str]]] = {}
    reported = None
    for line in text.splitlines():
        if line.startswith("# "):
            reported = line.split()[2]
            continue
        match = LINE.match(line)
        assert match and match[1] == reported, line
        found.setdefault(match[1], []).append((match[2] or "", match[3]))
    return found


@pytest.mark.promise("CMD-23")
def test_prometheus_text_is_of_the_format_and_names_are_documented(runs, tmp_path):
    done = forebay("export", runs, "--prometheus", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = samples(done.stdout)
    assert len(found["forebay_run_info"]) == 2 and r'label="=SUM(A1), \"x\"\nµ"' in found["forebay_run_info"][1][0]
    assert found["forebay_run_throughput_bytes_per_second"][0][1] == repr(2.0 * 2**30)
    assert ('id="0000000000000001",quantile="0.99"', "0.0018") in found["forebay_run_latency_seconds"]
    assert set(prometheus.HELP) == set(re.findall(r"`(forebay_(?:run|live)_\w+)`", PAGE))


def test_one_library_reads_it(runs, tmp_path):
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus-client isn't installed")
    text = forebay("export", runs, "--prometheus", cwd=tmp_path).stdout
    families = {f.name: f for f in parser.text_string_to_metric_families(text)}
    assert families["forebay_run_info"].samples[1].labels["label"] == '=SUM(A1), "x"\nµ'


@pytest.mark.promise("CMD-23")
@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), "--csv, --parquet, --prometheus or --json"),
        (("--parquet",), "-o FILE.parquet"),
        (("--csv", "--json"), "one of them"),
        (("--csv", "--parquet", "-o", "x"), "--csv --parquet: are formats of one table"),
        (("--csv", "-o", "."), "is a directory"),
        (("--csv", "-o", "thesis"), "isn't a csv export"),
        (("--prometheus", "-o", "none/x"), "can't be written"),
    ],
)
def test_a_wrong_request_is_refused_and_nothing_is_lost(runs, tmp_path, arguments, named):
    (tmp_path / "thesis").write_text("mine")
    done = forebay("export", runs, *arguments, cwd=tmp_path)
    assert done.returncode == 2 and named in done.stderr and "Traceback" not in done.stderr
    assert (tmp_path / "thesis").read_text() == "mine"


def test_an_export_replaces_its_own_and_damage_is_named(runs, tmp_path):
    for form in ("csv", "prometheus"):
        assert forebay("export", runs, f"--{form}", "-o", form, cwd=tmp_path).returncode == 0
        assert forebay("export", runs, f"--{form}", "-o", form, cwd=tmp_path).returncode == 0
    assert forebay("export", runs, "--csv", "-o", "prometheus", cwd=tmp_path).returncode == 2
    with runs.open("a") as file:
        file.write('{"schema": "forebay.run/9"}\n')
    done = forebay("export", runs, "--json", cwd=tmp_path)
    document = json.loads(done.stdout)
    assert "runs.jsonl:3" in done.stderr and len(document["rows"]) == 2 and document["columns"]["bytes"] == "bytes"


def test_comparisons_are_no_runs(tmp_path):
    (tmp_path / "c.json").write_text('{"schema": "forebay.compare/1"}')
    done = forebay("export", "c.json", "--csv", cwd=tmp_path)
    assert done.returncode == 2 and "not runs" in done.stderr


# While a run goes ---------------------------------------------------------------------------------


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=processes.PATIENCE_S) as answer:
        assert answer.headers["Content-Type"] == prometheus.CONTENT_TYPE
        return answer.read().decode()


@pytest.mark.promise("BEN-20")
def test_the_endpoint_hands_out_the_latest_progress():
    endpoint = Endpoint("0")
    try:
        assert get(endpoint.url) == ""
        job = {"sources": ['/a "b"'], "op": "read", "path": "host", "io_bytes": 4096, "workers": 2, "depth": 8}
        endpoint.see(job, "", fake_engine.progress(gib_s=1.0))
        endpoint.see(job, "", fake_engine.progress(latency_us_p50=None))
        found = samples(get(endpoint.url))
        assert found["forebay_live_throughput_bytes_per_second"] == [("", repr(2.0 * 2**30))]
        assert [labels for labels, _ in found["forebay_live_latency_seconds"]] == ['quantile="0.99"', 'quantile="0.999"']
        assert len(found["forebay_live_target_throughput_bytes_per_second"]) == 2
        assert found["forebay_live_phase"] == [('phase="measure"', "1.0")]
        assert set(found) <= set(prometheus.HELP)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(endpoint.url.replace("metrics", "other"), timeout=processes.PATIENCE_S)
        assert refused.value.code == 404
        refused.value.close()
    finally:
        endpoint.close()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(endpoint.url, timeout=processes.PATIENCE_S)


@pytest.mark.promise("BEN-20")
def test_a_client_that_says_nothing_holds_nothing_up():
    endpoint = Endpoint("127.0.0.1:0")
    port = int(endpoint.url.rpartition(":")[2].partition("/")[0])
    with socket.create_connection(("127.0.0.1", port)):
        assert get(endpoint.url) == ""
        endpoint.close()


def test_addresses_are_read_and_a_port_that_is_taken_is_named():
    assert address("9400") == ("127.0.0.1", 9400) and address("[::1]:9400") == ("::1", 9400)
    assert address("0.0.0.0:1") == ("0.0.0.0", 1)
    for text in ("", "host", "host:", "1:2:3", "127.0.0.1:99999", ":9400", "-1"):
        with pytest.raises(RequestError, match=re.escape(f"--metrics {text}")):
            address(text)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(MachineError, match="can't listen there"):
            Endpoint(str(taken.getsockname()[1]))


@pytest.mark.promise("BEN-20")
def test_a_run_answers_until_it_is_over(tmp_path):
    over = tmp_path / "over"
    driver = f"""
import sys; sys.path.insert(0, {str(HERE)!r})
import fake_engine, forebay.run, forebay.cli
from pathlib import Path
forebay.run.run = fake_engine.slow_run(3600, over=Path(sys.argv[1]).exists)
forebay.cli.main(["bench", "/data", "--metrics", "0", "--json"])
"""
    with processes.running([sys.executable, "-c", driver, over], cwd=tmp_path) as process:
        url = process.stderr.readline().split()[1]
        text = processes.wait_until(lambda: "forebay_live_ios " in (t := get(url)) and t, "progress", process)
        assert 'forebay_live_info{source="/data",op="read",path="host",io_bytes="1048576"' in text
        over.touch()
        done = processes.finish(process)
    assert done.returncode == 0 and json.loads(done.stdout)["schema"] == "forebay.run/1"


SMALL = "[job]\nduration = 0.05\nwarmup = 0\ninterval = 10\n[matrix]\ndepth = [1]\n"


@pytest.mark.promise("BEN-20")
@pytest.mark.parametrize(
    "words",
    [
        ["compare", "--a", "depth=1", "--b", "depth=2", "nil:?size=1m", "--pairs-max", "3"],
        ["sweep", "small.toml", "nil:?size=1m", "-o", "r.jsonl"],
    ],
)
def test_commands_of_many_runs_hand_out_the_one_under_way(words, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(engine, "run", fake_engine.slow_run(0.01, tick_s=0.005))
    monkeypatch.setattr(Endpoint, "see", lambda self, job, title, progress: seen.append((job, title, progress)))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(SMALL)
    assert cli.forebay.main([*words, "--metrics", "0"], standalone_mode=False) in (0, 1, None)
    job, title, progress = seen[-1]
    assert job["sources"] == ["nil:?size=1m"] and ("pair 3/3" in title or "[1/1]" in title) and "gib_s" in progress


@pytest.mark.promise("BEN-20")
def test_emulated_training_hands_out_its_utilisation(monkeypatch):
    class Asked:
        data = ["/data"]
        accelerator = "h100"
        workload = type("Workload", (), {"name": "resnet50", "accelerator": "h100", "au_pct_min": 90.0})

        def spec(self, number):
            return {}

    reported = {"phase": "run", "epoch": 2, "step": 5, "t_s": 1.0, "au_pct": 75.0, "gib_s": 1.5, "cores_busy": 0.5}

    def measured(spec, watch, interrupt, world):
        watch(reported)
        return run.measure.Outcome(None)

    monkeypatch.setattr(run.measure, "measure", measured)
    monkeypatch.setattr(run.live, "view", lambda *_: type("View", (), {"__call__": lambda *_: None, "close": lambda _: None})())
    endpoint = Endpoint("0")
    try:
        run.play(Asked(), 8, None, listens=endpoint)
        found = samples(endpoint.text())
        assert found["forebay_live_accelerator_utilisation_ratio"] == [("", repr(0.75))]
        assert found["forebay_live_epoch"] == [("", "2.0")] and found["forebay_live_step"] == [("", "5.0")]
        assert 'source="/data"' in found["forebay_live_info"][0][0]
    finally:
        endpoint.close()


@pytest.fixture
def handed_out(monkeypatch):
    """What the endpoint would have answered after each Progress that it took: names to labels and values."""
    found, see = [], Endpoint.see

    def seen(self, *progress):
        see(self, *progress)
        found.append(samples(self.text()))

    monkeypatch.setattr(Endpoint, "see", seen)
    return found


def of(handed_out, name):
    return [float(found[name][0][1]) if name in found else None for found in handed_out]


@pytest.mark.promise("BEN-20")
def test_a_search_hands_out_what_it_tries_and_what_passed_so_far(handed_out, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("forebay.emulate.data.found_files", lambda request: 1000)
    # Enough for two H100s of 3D U-Net.
    storage = fake_storage.FakeStorage(2.5 * 0.9 * 3029.92 / 1024).install(monkeypatch)
    words = ["emulate", "search", "--workload", "unet3d", "--accelerator", "h100", "--data", ".", "--metrics", "0"]
    assert cli.forebay.main(words, standalone_mode=False) == 0
    # Of each run: that it begins, and its one Progress.
    numbers = [spec["accelerators"] for spec in storage.specs]
    assert of(handed_out, "forebay_live_accelerators") == [n for n in numbers for _ in range(2)]
    assert numbers[:4] == [1, 2, 4, 3] and numbers[4:9] == [2] * 5
    passed = of(handed_out, "forebay_live_accelerators_passed")
    assert passed[::2] == passed[1::2] and passed[::2] == [None, 1, 2, 2] + [2] * (len(numbers) - 4)
    utilised = of(handed_out, "forebay_live_accelerator_utilisation_ratio")
    assert utilised[0] is None and utilised[1] == pytest.approx(0.995) and utilised[2] is None, "no figure of the run before"
    assert 'job="probe: unet3d on 1 × H100"' in handed_out[0]["forebay_live_info"][0][0]


@pytest.mark.promise("BEN-20")
def test_a_matrix_hands_out_its_cell(handed_out, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fake_storage.FakeStorage(20.0).install(monkeypatch)
    words = ["emulate", "matrix", "solidigm-mlperf", "--workload", "unet3d", "--count", "1", "--metrics", "0"]
    assert cli.forebay.main(words, standalone_mode=False) == 0
    assert set(of(handed_out, "forebay_live_cells")) == {3}
    cells = of(handed_out, "forebay_live_cell")
    assert cells == sorted(cells) and set(cells) == {1, 2, 3}
    begun = [handed_out[cells.index(n)] for n in (1, 2, 3)]
    assert all("forebay_live_accelerators_passed" not in found for found in begun), "a cell knows nothing of the one before"
    assert 'job="unet3d-d7-ps1010-1: probe: unet3d on 1 × H100"' in begun[0]["forebay_live_info"][0][0]


@pytest.mark.promise("BEN-20")
def test_checkpoints_hand_out_whether_they_are_written_or_read(handed_out, monkeypatch):
    def play(spec, observe, barrier):
        for turn in range(spec["writes"] + spec["reads"]):
            observe(fake_engine.progress(repeat=turn, gib_s=1.0 + turn))
        return fake_engine.record()

    monkeypatch.setattr(checkpoint, "engine_run", play)
    words = ["emulate", "checkpoint", "--workload", "llama3-8b", "--writes", "2", "--reads", "1", "--dir", "/data", "--quiet"]
    assert cli.forebay.main([*words, "--metrics", "0"], standalone_mode=False) == 0
    phases = [found["forebay_live_phase"][0][0] for found in handed_out]
    assert phases == ['phase="write"', 'phase="write"', 'phase="read"']
    assert of(handed_out, "forebay_live_repeat") == [1, 2, 3]
    assert of(handed_out, "forebay_live_throughput_bytes_per_second") == [2**30, 2 * 2**30, 3 * 2**30]
    assert handed_out[0]["forebay_live_info"][0][0] == 'job="checkpoints of llama3-8b",source="/data"'


@pytest.mark.promise("BEN-20")
def test_a_data_set_and_files_hand_out_how_many_are_done(handed_out, tmp_path):
    data = ["--workload", "cosmoflow", "--files", "3", "--data", str(tmp_path / "data"), "--quiet"]
    assert cli.forebay.main(["emulate", "datagen", *data, "--metrics", "0"], standalone_mode=False) == 0
    last = handed_out[-1]
    assert last["forebay_live_files"] == last["forebay_live_files_planned"] == [("", "3.0")]
    assert last["forebay_live_phase"] == [('phase="make"', "1.0")]
    assert float(last["forebay_live_bytes"][0][1]) > 6e6
    handed_out.clear()
    words = ["files", str(tmp_path), "--files", "50", "--file-size", "0", "--workers", "2", "--quiet", "--metrics", "0"]
    assert cli.forebay.main(words, standalone_mode=False) in (0, None)
    phases = {re.search('"(.*)"', found["forebay_live_phase"][0][0])[1]: found for found in handed_out}
    assert {"create", "stat", "read", "delete"} <= set(phases)
    assert all(found["forebay_live_files_planned"] == [("", "50.0")] for found in phases.values())
    reported = files.live({"phase": "stat", "done": 20, "files": 50, "bytes": 0, "t_s": 0.5, "ops_s": 40.0})
    found = samples(prometheus.text(prometheus.of_progress({}, "", reported)))
    assert found["forebay_live_files"] == [("", "20.0")] and found["forebay_live_files_per_second"] == [("", "40.0")]


@pytest.mark.promise("BEN-20")
def test_every_long_command_takes_an_address_and_names_a_wrong_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(SMALL)
    training = ["--workload", "unet3d", "--accelerator", "h100", "--data"]
    commands = [
        ["bench", "nil:"],
        ["sweep", "small.toml", "nil:"],
        ["tune", "nil:"],
        ["compare", "--a", "depth=1", "nil:"],
        ["files", "."],
        ["emulate", "run", *training, "model:d7-ps1010"],
        ["emulate", "search", *training, "."],
        ["emulate", "matrix", "solidigm-mlperf"],
        ["emulate", "datagen", *training, "data", "--files", "1"],
        ["emulate", "checkpoint", "--workload", "llama3-8b", "--scale", "0.0001", "--dir", "."],
    ]
    for words in commands:
        with pytest.raises(RequestError, match="--metrics nowhere"):
            cli.forebay.main([*words, "--metrics", "nowhere"], standalone_mode=False)
    assert list(tmp_path.iterdir()) == [tmp_path / "small.toml"]


@pytest.mark.promise("BEN-20")
def test_the_dashboard_asks_for_what_there_is():
    board = json.loads((ROOT / "deploy/grafana-forebay.json").read_text())
    asked = {t["expr"] for panel in board["panels"] for t in panel["targets"]}
    names = {n for expression in asked for n in re.findall(r"forebay_\w+", expression)}
    assert len(names) > 10 and names <= set(prometheus.HELP)
    assert len({p["id"] for p in board["panels"]}) == len(board["panels"])
