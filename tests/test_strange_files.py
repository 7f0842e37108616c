"""Files as a hostile or careless hand leaves them: each is refused by name, with exit code 2, and never by a traceback."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forebay import cli
from properties import parametrized

Said = Callable[..., tuple[int, str, str]]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Said:
    """Runs the command line in this process, in a folder of its own: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main(list(arguments))
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


def strict(text: str) -> Any:
    """JSON as the standard has it: Python's reader lets NaN and Infinity through."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


DRIVE = '[[drive]]\nname = "X"\nkind = "nvme-tlc"\nseq_read_mbps = 7000\n'


@pytest.mark.promise("FLT-21")
@pytest.mark.parametrize(
    ("text", "word"),
    [
        (DRIVE.replace('"X"', "5"), "name = 5"),
        (DRIVE.replace('"X"', "{a = 1}"), "name ="),
        (DRIVE + "interface = 4\n", "interface = 4"),
        (DRIVE.replace("7000", "inf"), "seq_read_mbps"),
        (DRIVE.replace("7000", "1e300"), "seq_read_mbps"),
        (DRIVE.replace("7000", "1" + "0" * 400), "seq_read_mbps"),
        (DRIVE + "price = nan\n", "price"),
    ],
)
def test_a_drive_whose_sheet_cannot_be_is_named(said: Said, tmp_path: Path, text: str, word: str) -> None:
    (tmp_path / "d.toml").write_text(text)
    code, out, err = said("plan", "run", "--drive", "X", "--catalogue", "d.toml", "--json")
    assert code == 2 and word in err and "d.toml" in err and not out


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("memory = 1" + "0" * 400, "memory"),
        ("link = inf", "link"),
        ('[[pcie]]\nname = "a"\ngen = []\nlanes = 16', "gen"),
        ('[[pcie]]\nname = "a"\ngen = {}\nlanes = 16', "gen"),
    ],
)
def test_a_system_whose_numbers_cannot_be_is_named(said: Said, tmp_path: Path, text: str, word: str) -> None:
    (tmp_path / "s.toml").write_text(f'drive = "D7-PS1010"\n{text}\n')
    code, out, err = said("plan", "run", "s.toml", "--json")
    assert code == 2 and word in err and not out


@pytest.mark.parametrize("target", [("--gib-s", "nan"), ("--gib-s", "inf"), ("--minutes", "nan"), ("--gib-s", "-1")])
def test_a_target_that_is_no_number_is_refused(said: Said, target: tuple[str, str]) -> None:
    code, out, err = said("plan", "recommend", *target, "--json")
    assert code == 2 and "the target" in err and not out


def test_a_negative_cell_of_a_query_is_named(said: Said, tmp_path: Path) -> None:
    (tmp_path / "q.csv").write_text("org,system,run_min,init_s\nA,B,,-1\n")
    code, _, err = said("plan", "predict", "--query", "q.csv")
    assert code == 2 and "row 2" in err and "init_s" in err


def test_runs_that_fit_no_drive_calibrate_without_a_word_of_numpy(said: Said, tmp_path: Path) -> None:
    """Paced at 0.5 GiB/s whatever the size: nothing that a drive of 13 GiB/s does explains it."""
    line = "IoType: READ XferType: CPUONLY Threads: {} DataSetSize: 1/1(KiB) IOSize: {}(KiB) Throughput: 0.5 GiB/sec"
    runs = [line.format(threads, kib) for kib in (64, 128, 1024) for threads in (1, 2, 32)]
    (tmp_path / "runs.txt").write_text("\n".join(runs))
    code, out, err = said("plan", "calibrate", "runs.txt", "--drive", "D7-PS1010", "--out", "k.json", "--json")
    assert code == 0 and "Warning" not in err and strict(out)
    sharp = next(p["value"] for p in strict(out)["parameters"] if p["name"] == "sharpness")
    assert sharp > 0.5
    code, out, err = said("plan", "run", "--calibration", "k.json", "--json")
    assert code == 0 and "Warning" not in err and strict(out)["throughput_gib_s"] > 0


@pytest.mark.promise("FLT-21")
@pytest.mark.parametrize(
    "command",
    [
        ("plan", "run", "/dev/zero"),
        ("plan", "predict", "--query", "/dev/zero"),
        ("plan", "calibrate", "/dev/zero", "--drive", "D7-PS1010"),
        ("sweep", "/dev/zero"),
    ],
)
def test_a_file_without_an_end_is_read_to_its_bound(said: Said, command: tuple[str, ...]) -> None:
    code, _, err = said(*command)
    assert code == 2 and re.search(r"larger than \d+ MiB", err)


def test_a_workload_with_a_number_beyond_floats_is_refused(said: Said, tmp_path: Path) -> None:
    (tmp_path / "w.toml").write_text("record_bytes = 1" + "0" * 400 + "\n")
    code, _, err = said("emulate", "workloads", "show", "w.toml")
    assert code == 2 and "record_bytes" in err


def record(**result: Any) -> dict[str, Any]:
    return {
        "schema": "forebay.run/1",
        "job": {"source": "nil:", "io_bytes": 4096, "op": "read"},
        "path": {"ran": "host"},
        "result": {"throughput_gib_s": 1.0, "repeats": [{"throughput_gib_s": v} for v in (1.0, 1.1, 1.05)], **result},
    }


@pytest.mark.promise("FLT-21")
@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"job": {"io_bytes": 4096.5}}, "io_bytes"),
        ({"job": {"io_bytes": []}}, "io_bytes"),
        ({"job": {"io_bytes": 4096, "sources": 5}}, "sources"),
        ({"result": {"throughput_gib_s": {}}}, "not measured"),
        ({"result": {"throughput_gib_s": 10**400}, "missing": []}, "not measured"),
        ({"result": {"throughput_gib_s": 1.0, "repeats": 5}}, "no confidence"),
        ({"result": {"throughput_gib_s": 1.0, "repeats": [5, 6, "x"]}}, "not measured"),
    ],
)
def test_a_damaged_record_is_not_compared(said: Said, tmp_path: Path, change: dict[str, Any], word: str) -> None:
    (tmp_path / "a.json").write_text(json.dumps(record()))
    (tmp_path / "b.json").write_text(json.dumps({**record(), **change}))
    code, out, err = said("compare", "a.json", "b.json", "--json")
    assert code == 2 and word in err and not out


@pytest.mark.parametrize("metric", ["latency_mean", "cpu", "power"])
def test_a_record_whose_parts_are_no_parts_has_no_such_figure(said: Said, tmp_path: Path, metric: str) -> None:
    (tmp_path / "a.json").write_text(json.dumps(record(latency_us=5, cpu="x", power=3)))
    code, _, err = said("compare", "a.json", "a.json", "--metric", metric)
    assert code == 2 and "not measured" in err


def test_wild_figures_make_a_wide_interval_and_no_traceback(said: Said, tmp_path: Path) -> None:
    for name, values in (("a", (1e-9, 1e15)), ("b", (1e15, 1e-9))):
        repeats = [{"throughput_gib_s": v} for v in values]
        (tmp_path / f"{name}.json").write_text(json.dumps(record(repeats=repeats)))
    code, out, _ = said("compare", "a.json", "b.json", "--json")
    assert code == 0 and strict(out)["verdict"]["kind"] == "unsure"


SWEEP = '[job]\nsource = "nil:"\nduration = 0.02\nwarmup = 0\n[matrix]\nio-size = ["4k", "8k"]\n'


@pytest.mark.promise("FLT-21")
@parametrized(
    ("line", "path", "value"),
    [
        (0, ("definition", "points"), 1.5),
        (0, ("definition", "points", 0), []),
        (0, ("definition", "points", 0, "io_bytes"), "x"),
        (0, ("frozen", "fallbacks"), [1]),
        (0, ("frozen", "scale", "files"), None),
        (1, ("point", "sources"), [True]),
        (1, ("record", "path"), 7),
        (1, ("record", "result", "power"), 7),
        (1, ("record", "result", "cpu"), []),
        (1, ("record", "result", "throughput_gib_s"), "fast"),
    ],
    kept=(0, 3, 5, 6, 9),
)
def test_a_damaged_line_of_a_sweep_is_no_obstacle(
    said: Said, tmp_path: Path, line: int, path: tuple[str | int, ...], value: Any
) -> None:
    (tmp_path / "s.toml").write_text(SWEEP)
    assert said("sweep", "s.toml", "-o", "s.jsonl", "--json")[0] == 0
    lines = [json.loads(text) for text in (tmp_path / "s.jsonl").read_text().splitlines()]
    at = lines[line]
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    (tmp_path / "s.jsonl").write_text("".join(json.dumps(each, separators=(",", ":")) + "\n" for each in lines))
    code, out, err = said("sweep", "s.toml", "-o", "s.jsonl", "--json")
    assert code == 0 and strict(out)["finished"] == 2, err
