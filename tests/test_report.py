"""`forebay report`: what the page says, what it never does, and how it looks in a real browser.

All records here are made up (report_records.py); charts are real.
"""

from __future__ import annotations

import csv
import html
import json
import re
import sys
from pathlib import Path
from typing import Any

import processes
import pytest
from click.testing import CliRunner
from forebay import flags
from forebay.bench import summary
from forebay.errors import MachineError, RequestError
from forebay.numbers import significant, size
from forebay.report import command, load, write_report
from forebay.report.runs import studies
from report_records import point, record, sweep
from whole_records import judged

try:
    import altair  # noqa: F401
    import vl_convert  # noqa: F401

    HAS_CHARTS = True
except ImportError:
    HAS_CHARTS = False

charts = pytest.mark.skipif(not HAS_CHARTS, reason="needs charts; try: pip install 'forebay[report]'")

EVIL = '<script>alert(1)</script>"><img src=http://evil.example/x onerror=alert(2)>'


def save(path: Path, *documents: dict[str, Any]) -> str:
    path.write_text("\n".join(json.dumps(d) for d in documents) + "\n")
    return str(path)


def page_of(tmp_path: Path, *documents: dict[str, Any], charts: bool = False) -> str:
    saved = save(tmp_path / "runs.jsonl", *documents)
    write_report([saved], str(tmp_path / "page.html"), charts=charts)
    return (tmp_path / "page.html").read_text()


def text_of(page: str) -> str:
    body = re.sub(r"<(style|svg)\b.*?</\1>", " ", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


def run(arguments: list[str]) -> tuple[int, str, str]:
    done = processes.run([*processes.FOREBAY, "report", *arguments])
    return done.returncode, done.stdout, done.stderr


# -- what is read -------------------------------------------------------------------------------------


def test_records_sweeps_lists_and_folders_are_read_alike(tmp_path: Path) -> None:
    save(tmp_path / "one.json", record())
    (tmp_path / "list.json").write_text(json.dumps([record("bounce"), record("mapped")], indent=2))
    save(tmp_path / "sweep.jsonl", {"schema": "forebay.sweep/1", "definition": {}, "frozen": {}}, *sweep())
    loaded = load.load([str(tmp_path)])
    assert len(loaded.entries) == 13 and not loaded.problems
    assert {e.preset for e in loaded.entries} == {None, "solidigm-gds"}


def test_a_study_is_called_what_the_sweep_calls_itself(tmp_path: Path) -> None:
    header = {
        "schema": "forebay.sweep/1",
        "title": "paths by size",
        "dropped": ["path=gds io-size=64k: no libcufile"],
    }
    text = text_of(page_of(tmp_path, header, *sweep("own")))
    assert "paths by size: sequential read" in text and "sweep own" in text
    assert "Not run" in text and "path=gds io-size=64k: no libcufile" in text


def test_the_same_record_given_twice_counts_once(tmp_path: Path) -> None:
    one = save(tmp_path / "one.json", record())
    loaded = load.load([one, str(tmp_path)])
    assert len(loaded.entries) == 1 and loaded.duplicates == 1


def test_a_damaged_line_is_named_and_left_out_and_the_page_says_so(tmp_path: Path) -> None:
    lines = [json.dumps(line) for line in sweep()[:4]]
    lines[2] = lines[2][:200]
    file = tmp_path / "sweep.jsonl"
    file.write_text("\n".join(lines))
    code, out, err = run([str(file), "-o", str(tmp_path / "r.html"), "--no-charts", "--json"])
    summary = json.loads(out)
    assert code == 0 and summary["records"] == 3
    assert f"{file}:3: not JSON" in err
    assert f"{file}:3: not JSON" in text_of((tmp_path / "r.html").read_text())


FAILED_POINT = {
    "schema": "forebay.point/1",
    "name": "gds 64k",
    "error": {"asked": "--path gds", "found": "no libcufile"},
}


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ({"schema": "forebay.run/9"}, "reads up to 'forebay.run/1'"),
        ({"hello": 1}, "no schema"),
        ([1], "not a JSON object"),
        ({**record(), "result": None}, "without 'result'"),
        ({**record(), "job": {"io_bytes": "many"}}, "without job.io_bytes"),
        (FAILED_POINT, "gds 64k has no record (--path gds: no libcufile)"),
    ],
)
def test_what_is_no_record_is_named_with_the_reason(tmp_path: Path, document: Any, why: str) -> None:
    file = save(tmp_path / "bad.jsonl", document, record())
    loaded = load.load([file])
    assert len(loaded.entries) == 1
    assert len(loaded.problems) == 1 and why in loaded.problems[0] and f"{file}:1" in loaded.problems[0]


def test_a_point_that_failed_and_ran_again_counts_once(tmp_path: Path) -> None:
    good = {**point(None, record()), "key": "k", "round": 0}
    partial = {**point(None, record()), "key": "k", "round": 0, "partial": True}
    failed = {"schema": "forebay.point/1", "key": "k", "round": 0, "error": {"asked": "a", "found": "b"}}
    loaded = load.load([save(tmp_path / "s.jsonl", failed, partial, good)])
    assert [e.record["id"] for e in loaded.entries] == [good["record"]["id"]] and not loaded.problems


@pytest.mark.parametrize("text", ["", "not json", "[1, 2", '{"schema": NaN}', "[" * 100_000, "{}"])
def test_nothing_to_report_is_a_wrong_request(tmp_path: Path, text: str) -> None:
    file = tmp_path / "x.json"
    file.write_text(text)
    code, out, err = run([str(file), "-o", str(tmp_path / "r.html")])
    assert code == 2 and "try:" in err and "Traceback" not in err and not out
    assert not (tmp_path / "r.html").exists()


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    code, _, err = run([str(tmp_path / "gone.json")])
    assert code == 2 and "gone.json" in err


# -- which runs are runs of one job ---------------------------------------------------------------------


def series_of(*made: dict[str, Any]) -> list[list[str]]:
    """For each point of the one study, the ids of its runs."""
    (study,) = studies(load.Entry(r, "runs.jsonl") for r in made)
    assert len({(p.x, p.series) for p in study.points}) == len(study.points)
    return [[run.text("id") for run in p.runs] for p in study.points]


# A value of each kind that no field has by default.
OTHER_VALUES: dict[str, Any] = {
    "path": "mapped", "text": "other", "list": ["other"], "words": ["0=/dev/nvme0n1"], "flag": True, "integer": 3,
    "integers": [1], "whole": 5, "seed": 8, "workers": 2, "number": 1.5, "share": 30, "percent": 3.0, "seconds": 7.0,
    "size": 4096, "signed_size": 4096, "sizes": 4096,
}  # fmt: skip
# What a run did stands elsewhere than in its job.
FOUND_AT = {"path": "path.ran", "cache": "cache.policy", "engine": "path.engine", "pages": "path.slot_pages"}


@pytest.mark.parametrize("field", flags.fields(), ids=lambda f: f.flag)
def test_runs_of_unlike_jobs_are_never_averaged(field: flags.Field) -> None:
    a, b = record(), record()
    value = field.words[-1] if field.words else OTHER_VALUES[field.kind]
    part, _, key = FOUND_AT.get(field.flag, f"job.{field.key}").partition(".")
    b[part][key] = value
    if field.flag in ("op", "read-pct"):
        assert len(studies(load.Entry(r, "runs.jsonl") for r in (a, b))) == 2, "a study has one operation"
        return
    together = [[a["id"], b["id"]]]
    apart = [[a["id"]], [b["id"]]]
    assert sorted(series_of(a, b)) == (sorted(apart) if field.tells else together)


def test_ranges_of_sizes_and_numbers_of_ranks_tell_runs_apart() -> None:
    plain, ranged, finer, many = (record() for _ in range(4))
    ranged["job"] |= {"io_bytes_max": 4 << 20}
    finer["job"] |= {"io_bytes_max": 4 << 20, "io_bytes_step": 4096}
    many["result"]["hosts"] = [{"host": "a"}, {"host": "b"}]
    found = series_of(plain, ranged, finer, many)
    assert sorted(found) == sorted([[r["id"]] for r in (plain, ranged, finer, many)])
    again = record()
    again["job"] |= {"duration_s": None, "passes": None}
    same = record()
    same["job"] |= {"duration_s": 10.0}
    assert len(series_of(again, same)) == 1, "10 s is the default"


def test_a_sweep_over_sync_has_a_bar_for_each(tmp_path: Path) -> None:
    made = [record(op="write", gib_s=rate) for rate in (3.0, 1.0)]
    made[1]["job"]["sync"] = "each"
    text = text_of(page_of(tmp_path, *made))
    assert "sync none" in text and "sync each" in text and "range of 2 runs" not in text


# -- what the tables say ------------------------------------------------------------------------------


def test_the_first_sentence_is_the_finding(tmp_path: Path) -> None:
    text = text_of(
        page_of(
            tmp_path, record("host", gib_s=3.0, cv=0), record("bounce", gib_s=2.4, cv=0, cpu_s_per_gib=0.24)
        )
    )
    assert "Bounce reached 2.40 GiB/s with 1 MiB reads, 0.80 × host." in text
    assert "Bounce took 2.00 times as much processor time per GiB as host." in text


def test_overlapping_intervals_are_no_difference(tmp_path: Path) -> None:
    text = text_of(
        page_of(tmp_path, record("host", gib_s=3.0, cv=0.05), record("bounce", gib_s=2.97, cv=0.05))
    )
    assert "Their intervals overlap" in text


def test_small_blocks_are_told_in_iops(tmp_path: Path) -> None:
    made = record("host", 4096, 1.0, op="randread")
    assert f"Host reached {significant(made['result']['iops'] / 1000)} k IOPS" in text_of(
        page_of(tmp_path, made)
    )


def test_throughput_and_cpu_stand_by_size_and_path_with_each_ratio(tmp_path: Path) -> None:
    page = page_of(tmp_path, *sweep(cv=0.0, paths=("host", "bounce", "gds")))
    table = re.search(r'<table id="s1-main">.*?</table>', page, re.DOTALL)
    assert table
    heads = [text_of(h) for h in re.findall(r"<th scope=\"colgroup\".*?</th>", table[0])]
    assert heads == ["host", "bounce", "gds", "bounce ÷ host", "gds ÷ host"]
    first = [
        text_of(c)
        for c in re.findall(r"<t[hd]\b.*?</t[hd]>", table[0].split("<tbody>")[1].split("</tr>")[0], re.DOTALL)
    ]
    assert first[0].startswith("64 KiB 32 × 1")
    assert [c.split()[0] for c in first[1:]] == [
        "1.90",
        "0.560",
        "1.86",
        "0.756",
        "1.92",
        "0.224",
        "0.98",
        "1.35",
        "1.01",
        "0.40",
    ]


def test_a_confounded_worker_count_makes_no_series_of_its_own(tmp_path: Path) -> None:
    page = page_of(tmp_path, *sweep())
    assert "host · 32 workers" not in page and "32 × 1" in page and "24 × 1" in page


def test_a_true_matrix_over_workers_does(tmp_path: Path) -> None:
    page = page_of(tmp_path, *[record("host", size, 2.0, workers=w) for size in (4096, 8192) for w in (1, 4)])
    assert "host · 1 workers" in page and "host · 4 workers" in page


def test_a_null_is_a_dash_with_the_reason_and_never_zero(tmp_path: Path) -> None:
    made = record(missing={"cache.device_bytes": "tmpfs has no device", "result.cpu": "no /proc here"})
    made["cache"]["device_bytes"] = None
    made["result"]["cpu"]["cpu_s_per_gib"] = None
    made["result"]["repeats"] = []
    page = page_of(tmp_path, made)
    assert page.count('title="tmpfs has no device"') == 1
    notes = text_of(page[page.index('id="missing"') :])
    assert "tmpfs has no device" in notes and "no /proc here" in notes
    row = re.search(r'<table id="s1-main">.*?<tbody>(.*?)</tbody>', page, re.DOTALL)
    assert row and "—" in row[1] and 'title="no /proc here"' in row[1]


def test_the_published_cells_stand_beside_ours_with_their_caveats(tmp_path: Path) -> None:
    text = text_of(page_of(tmp_path, *sweep("solidigm-gds")))
    assert "published: D7-PS1010" in text and "Accelerating AI With High Performance Storage" in text
    assert (
        "13.48" in text and "user time only" in text and "is GiB/s" in text and "can't be told apart" in text
    )
    assert "left blank in the published data" in text
    assert "published: D7" not in text_of(page_of(tmp_path, *sweep("own-sweep")))


def test_a_label_names_the_preset_too(tmp_path: Path) -> None:
    text = text_of(page_of(tmp_path, record("host", 4096, 0.4, op="randread", workers=64, label="micron-4k")))
    assert "July 2020" in text and "8.8 GB/s" in text and "&lt;6" not in text


def test_what_really_ran_is_shown_with_why(tmp_path: Path) -> None:
    text = text_of(page_of(tmp_path, record("gds", ran="gds-compat")))
    assert (
        "gds → gds-compat" in text
        and "gds was requested, gds-compat ran: made up for a test" in text
        and "Path differs from the one requested" in text
    )


def test_computed_runs_are_marked_and_never_mixed_with_measured_ones(tmp_path: Path) -> None:
    page = page_of(
        tmp_path, record("host"), record("host", gib_s=13.4, origin="simulated", source="model:d7-ps1010")
    )
    text = text_of(page)
    assert "simulated, not measured" in text and "simulated runs included" in text
    assert page.count('<section class="study') == 2
    assert "Highest throughput 13.4" not in text


def test_only_computed_runs_say_so_in_the_headline(tmp_path: Path) -> None:
    assert "Simulated, not measured: host reached" in text_of(page_of(tmp_path, record(origin="simulated")))


def test_the_page_repeats_what_the_records_say_and_judges_none_of_it_again(tmp_path: Path) -> None:
    noisy = record("host", repeats=1, seconds=1.0)
    noisy["result"]["noise"] |= {"throttled": 3, "steal_pct": 9.0}
    noisy = judged(noisy)
    text = "the device delivered 50 % of the bytes that were read"
    cached = record("bounce", warnings=[{"id": "cached", "text": text, "next": "--cache bypass"}])
    write_report([save(tmp_path / "r.jsonl", noisy, cached)], str(tmp_path / "r.html"), charts=False)
    text = text_of((tmp_path / "r.html").read_text())
    for expected in ("took 9.0 %", "throttled 3 times", "Too short", "One run only", "From memory"):
        assert expected in text, expected
    assert text.count("the device delivered") == 1 and text.count("hypervisor") == 1
    noisy["warnings"] = []
    text = text_of(page_of(tmp_path, noisy))
    assert "One run only" in text and "hypervisor" not in text and "Too short" not in text


def test_the_terminal_and_the_page_say_the_same(tmp_path: Path) -> None:
    made = record(repeats=1, seconds=4.0)
    made["result"]["noise"] |= {"steal_pct": 1.5, "series_cv_pct": 16.0}
    made["cache"]["device_bytes"] = int(1.15 * made["result"]["bytes"])
    made = judged(made)
    assert [w["id"] for w in made["warnings"]] == ["too_short", "noisy", "noisy"]
    shown, page = summary.text(made, 400), text_of(page_of(tmp_path, made))
    for warning in made["warnings"]:
        assert f"{warning['text']} → {warning['next']}" in shown
        assert warning["text"] in page and warning["next"] in page


def test_warnings_that_differ_in_their_numbers_only_are_told_once_by_the_worst(tmp_path: Path) -> None:
    runs = [
        record("host", size, warnings=[{"id": "noisy", "text": f"varied by {pct} % each time", "next": ""}])
        for size, pct in ((4096, 9), (8192, 31), (16384, 12))
    ]
    text = text_of(page_of(tmp_path, *runs))
    assert text.count("% each time") == 1 and "varied by 31 % each time (at worst)" in text


def test_the_environment_and_the_exact_command_are_there(tmp_path: Path) -> None:
    made = record(source="/data/my set")
    made["environment"]["drives"][0] |= {"pcie_gen": 3}
    text = text_of(page_of(tmp_path, judged(made)))
    assert "forebay bench '/data/my set' --path host" in text
    for expected in (
        "Imagined CPU 9000, 16 logical cores",
        "64 GiB",
        "ext4",
        "Imagined Drive",
        "runs at PCIe generation 3; it can do 4",
    ):
        assert expected in text, expected


COMPARED = {
    "schema": "forebay.compare/1",
    "kind": "jobs",
    "metric": "throughput",
    "until_ci_pct": 2.0,
    "command": ["forebay", "compare"],
    "a": {
        "settings": "path=bounce",
        "ran": ["bounce, uring"],
        "medians": {"throughput": 3.2, "power": None},
        "missing": {"power": "no meter"},
    },
    "b": {
        "settings": "path=host",
        "ran": ["host, uring"],
        "medians": {"throughput": 2.9, "power": None},
        "missing": {"power": "no meter"},
    },
    "ratios": {"throughput": {"estimate": 1.09, "ci95": [1.07, 1.11], "pairs": 8}, "power": None},
    "verdict": {"kind": "differs", "text": "A is 1.07–1.11 × B", "next": ""},
    "interrupted": False,
    "error": None,
}
GATED = {
    "schema": "forebay.compare/1",
    "kind": "files",
    "metric": "cpu",
    "a": {"file": "old.jsonl"},
    "b": {"file": "new.jsonl"},
    "points": [
        {
            "key": "k",
            "name": "bounce, 64k",
            "runs": [3, 3],
            "a": 0.1,
            "b": 0.2,
            "ratio": {"estimate": 2.0, "ci95": [1.8, 2.2]},
            "verdict": "worse",
        }
    ],
    "overall": None,
    "verdict": {"kind": "worse", "text": "B is worse than A at 1 of 1 points", "next": "look"},
}


def _tried(depth: int, rate: float) -> dict[str, Any]:
    return {
        "io_bytes": 1 << 20,
        "workers": 2,
        "depth": depth,
        "throughput_gib_s": rate,
        "cpu_s_per_gib": 0.1 / rate,
        "watts": None,
        "runs": 3,
    }


TUNED = {
    "schema": "forebay.tune/1",
    "share_asked": 0.98,
    "confirmed": True,
    "failed": [],
    "bench": "forebay bench /data --depth 8",
    "pick": _tried(8, 3.16) | {"share_of_peak": 0.987},
    "peak": _tried(32, 3.2),
    "missing": {"pick.watts": "no power meter answered"},
    "curve": {
        "depth": [_tried(d, r) for d, r in ((1, 1.0), (4, 2.8), (8, 3.16), (32, 3.2))],
        "workers": [],
        "io-size": [],
    },
    "probes": [_tried(d, r) for d, r in ((1, 1.0), (4, 2.8), (8, 3.16), (32, 3.2))],
}


def test_comparisons_and_tunings_are_rendered_alone_or_beside_runs(tmp_path: Path) -> None:
    text = text_of(page_of(tmp_path, COMPARED, GATED, TUNED))
    for expected in (
        "A is 1.07–1.11 × B.",
        "1.090 1.070–1.110",
        "path=bounce (ran: bounce, uring)",
        "bounce, 64k",
        "2.000 1.800–2.200 3 + 3 worse",
        "1 MiB blocks, 2 workers, depth 8: 3.16 GiB/s, 98.7 % of the peak",
        "no power meter answered",
        "forebay bench /data --depth 8",
    ):
        assert expected in text, expected
    assert "host" in text_of(page_of(tmp_path, COMPARED, record()))


# -- what is written ----------------------------------------------------------------------------------


def test_what_is_not_a_report_of_ours_is_never_written_over(tmp_path: Path) -> None:
    runs, out = save(tmp_path / "r.json", record()), tmp_path / "notes.html"
    out.write_text("<html>my notes</html>")
    code, _, err = run([runs, "-o", str(out), "--no-charts"])
    assert code == 2 and "--force" in err and out.read_text() == "<html>my notes</html>"
    assert run([runs, "-o", str(out), "--no-charts", "--force"])[0] == 0
    assert run([runs, "-o", str(out), "--no-charts"])[0] == 0, "our own page is replaced"
    code, _, err = run([runs, "-o", runs, "--no-charts", "--force"])
    assert code == 2 and load.load([runs]).entries, "an input is never the output"


def test_no_half_page_is_left_where_it_cannot_be_written(tmp_path: Path) -> None:
    runs = save(tmp_path / "r.json", record())
    code, _, err = run([runs, "-o", str(tmp_path / "no" / "such" / "r.html"), "--no-charts"])
    assert code == 2 and "No such file" in err
    assert run([runs, "-o", str(tmp_path), "--no-charts"])[0] == 2


def test_without_the_extra_charts_are_refused_with_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "altair", None)
    runs = save(tmp_path / "r.json", record())
    with pytest.raises(MachineError, match=r"pip install 'forebay\[report\]'") as error:
        write_report([runs], str(tmp_path / "r.html"))
    assert error.value.exit_code == 3 and not (tmp_path / "r.html").exists()
    assert CliRunner().invoke(command, [runs, "-o", str(tmp_path / "r.html"), "--no-charts"]).exit_code == 0
    assert "made without charts" in text_of((tmp_path / "r.html").read_text())


def test_the_same_records_give_the_same_page(tmp_path: Path) -> None:
    lines = sweep()
    assert page_of(tmp_path, *lines, charts=HAS_CHARTS) == page_of(tmp_path, *lines, charts=HAS_CHARTS)


def evil_record() -> dict[str, Any]:
    made = record(
        label=EVIL,
        source=f"/data/{EVIL}",
        missing={"cache.device_bytes": EVIL},
        warnings=[{"id": "x", "text": EVIL, "next": EVIL}],
    )
    made["environment"]["host"] = made["environment"]["cpu"] = made["command"][1] = made["path"][
        "engine"
    ] = made["path"]["ran"] = EVIL
    made["cache"]["device_bytes"] = None
    return made


@pytest.mark.parametrize("with_charts", [False, pytest.param(True, marks=charts)])
def test_nothing_in_a_record_becomes_markup(tmp_path: Path, with_charts: bool) -> None:
    second = record(label="=cmd|' /C calc'!A0")
    evil_documents = [
        json.loads(json.dumps(d).replace("path=bounce", json.dumps(EVIL)[1:-1])) for d in (COMPARED, TUNED)
    ]
    page = page_of(tmp_path, evil_record(), second, *evil_documents, charts=with_charts)
    assert "<script" not in page and "<img" not in page
    assert html.escape(EVIL, quote=False)[:30] in page


def references(page: str) -> list[str]:
    """Everything that a browser might fetch."""
    found = re.findall(r"""(?:src|href|action|data|poster|xlink:href)\s*=\s*["']([^"']*)""", page)
    return found + re.findall(r"url\(([^)]*)\)|@import\s+(\S+)", page)


@charts
def test_the_page_refers_to_nothing_outside_itself(tmp_path: Path) -> None:
    page = page_of(tmp_path, *sweep(watts=80.0), record(), COMPARED, TUNED, charts=True)
    outside = [
        r
        for r in references(page)
        if not str(r).startswith(("data:", "#")) and "url(#" not in str(r) and "#" not in str(r)
    ]
    assert not outside
    assert "<script" not in page and "default-src 'none'" in page


@charts
def test_every_chart_has_its_data_as_csv_on_the_page_and_in_a_folder(tmp_path: Path) -> None:
    runs, folder = save(tmp_path / "r.jsonl", *sweep(watts=80.0), TUNED), tmp_path / "csv"
    summary = write_report([runs], str(tmp_path / "r.html"), csv_folder=str(folder))
    page = (tmp_path / "r.html").read_text()
    assert (
        len(summary["charts"])
        == page.count("<figure")
        == page.count("data:text/csv")
        == len(list(folder.iterdir()))
        > 10
    )
    rows = list(csv.DictReader((folder / "forebay-s1-throughput.csv").open(newline="")))
    assert len(rows) == 10 and {r["unit"] for r in rows} == {"GiB/s"}
    one = next(r for r in rows if r["io_bytes"] == "65536" and r["path"] == "bounce")
    assert (
        float(one["low"]) <= float(one["value"]) <= float(one["high"]) and one["interval"] == "95 % interval"
    )
    kinds = {r["kind"] for r in csv.DictReader((folder / "forebay-s1-cpu-cost.csv").open(newline=""))}
    assert kinds == {"user", "system"}
    (folder / "forebay-s1-iops.csv").write_text("mine,all mine\n")
    with pytest.raises(RequestError, match="isn't a Forebay export"):
        write_report([runs], str(tmp_path / "r.html"), csv_folder=str(folder))


@charts
def test_a_formula_in_a_label_stays_text_in_a_spreadsheet(tmp_path: Path) -> None:
    runs = save(tmp_path / "r.jsonl", record(label="a", source="=1+1"), record(label="b"))
    made = write_report([runs], str(tmp_path / "r.html"), csv_folder=str(tmp_path / "csv"))
    assert made["charts"]
    from forebay.report.export import as_csv

    assert as_csv([{"x": "=1+1", "y": -1.5, "z": None}]) == "x,y,z\r\n'=1+1,-1.5,\r\n"


@charts
def test_colours_follow_the_page_and_every_picture_has_words(tmp_path: Path) -> None:
    page = page_of(tmp_path, *sweep(), charts=True)
    pictures = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(pictures) >= 10
    for picture in pictures:
        assert "<title" in picture and "<desc" in picture and 'role="img"' in picture
        assert not re.search(r'(fill|stroke)="#(?!000)[0-9a-f]{3,6}"', picture), (
            "a colour that dark mode can't change"
        )
    ids = re.findall(r'\bid="([^"]*)"', page)
    assert len(ids) == len(set(ids))


@charts
def test_more_series_than_colours_are_said_not_hidden(tmp_path: Path) -> None:
    runs = [record("host", size, 1 + w / 10, workers=w) for size in (4096, 8192) for w in range(1, 12)]
    page = page_of(tmp_path, *runs, charts=True)
    assert "the 8 fastest of 11 series" in text_of(page)


@charts
def test_a_long_series_is_thinned_in_the_picture_only(tmp_path: Path) -> None:
    made = record(repeats=1, seconds=2000.0)
    summary = write_report([save(tmp_path / "r.json", made)], str(tmp_path / "r.html"))
    assert next(c for c in summary["charts"] if c["id"] == "s1-time")["rows"] == 4000
    assert "means over several intervals" in text_of((tmp_path / "r.html").read_text())
    assert (tmp_path / "r.html").stat().st_size < 2_000_000


@charts
def test_json_says_what_was_written(tmp_path: Path) -> None:
    runs = save(tmp_path / "r.jsonl", *sweep())
    code, out, err = run([runs, "-o", str(tmp_path / "r.html"), "--json"])
    summary = json.loads(out)
    assert (
        code == 0
        and summary["schema"] == "forebay.report/1"
        and summary["output"] == str(tmp_path / "r.html")
    )
    assert summary["records"] == 10 and any(
        c["id"] == "s1-throughput" and c["drawn"] for c in summary["charts"]
    )


@pytest.mark.long
def test_nulls_zeros_and_wrong_types_anywhere_leave_a_page(tmp_path: Path) -> None:
    """Every leaf of a record, one after the other, replaced by what a careless writer may put there."""
    whole = record("bounce", watts=60.0)

    def leaves(value: Any, path: tuple[Any, ...] = ()) -> Any:
        items = (
            value.items()
            if isinstance(value, dict)
            else enumerate(value[:1])
            if isinstance(value, list)
            else ()
        )
        for key, child in items:
            yield (*path, key)
            yield from leaves(child, (*path, key))

    for number, path in enumerate(leaves(whole)):
        made = json.loads(json.dumps(whole))
        at = made
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = (None, 0, "x", [], {}, -1, True)[number % 7]
        file = save(tmp_path / "r.jsonl", made, record("host"))
        write_report([file], str(tmp_path / "r.html"), charts=False)


def test_numbers_keep_few_digits() -> None:
    assert [significant(v) for v in (0, 3.14159, 0.012345, 12345, 9.999, 99.96)] == [
        "0",
        "3.14",
        "0.0123",
        "12,345",
        "10.00",
        "100.0",
    ]
    assert [size(v) for v in (512, 65536, 1 << 20)] == ["512 B", "64 KiB", "1 MiB"]
