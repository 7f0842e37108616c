"""`forebay report`: the files that it writes, their charts and exports, and what never gets into them.

All records here are made up (report_records.py); charts are real.
"""

from __future__ import annotations

import csv
import html
import json
import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from forebay.errors import MachineError, RequestError
from forebay.report import command, draw, export, load, marks, write_report
from report_records import record, sweep
from report_support import (
    COMPARED,
    EVIL,
    HAS_CHARTS,
    TUNED,
    Whole,
    charts,
    evil_record,
    page_of,
    run,
    save,
    text_of,
)


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


@pytest.mark.long
def test_the_same_records_give_the_same_page(tmp_path: Path) -> None:
    lines = sweep()
    assert page_of(tmp_path, *lines, charts=HAS_CHARTS) == page_of(tmp_path, *lines, charts=HAS_CHARTS)


@pytest.mark.parametrize("with_charts", [False, pytest.param(True, marks=[charts, pytest.mark.long])])
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


@pytest.mark.promise("REP-1", "REP-3")
@charts
def test_a_page_refers_to_nothing_outside_itself_and_has_the_data_of_every_chart(whole: Whole, tmp_path: Path) -> None:
    page, folder = whole.page.read_text(), tmp_path / "csv"
    assert not [str(r) for r in references(page) if not str(r).startswith("data:") and "#" not in str(r)]
    assert "<script" not in page and "default-src 'none'" in page
    assert (
        len(whole.summary["charts"])
        == page.count("<figure")
        == page.count("data:text/csv")
        == len(list(whole.csv.iterdir()))
        > 10
    )
    rows = list(csv.DictReader((whole.csv / "forebay-s1-throughput.csv").open(newline="")))
    assert len(rows) == 15 and {r["unit"] for r in rows} == {"GiB/s"}
    one = next(r for r in rows if r["io_bytes"] == "65536" and r["path"] == "bounce")
    assert (
        float(one["low"]) <= float(one["value"]) <= float(one["high"]) and one["interval"] == "95 % interval"
    )
    kinds = {r["kind"] for r in csv.DictReader((whole.csv / "forebay-s1-cpu-cost.csv").open(newline=""))}
    assert kinds == {"user", "system"}
    name = "forebay-s1-throughput.csv"
    folder.mkdir()
    (folder / name).write_text("mine,all mine\n")
    chart = marks.Chart("s1-throughput", "", "", [{"x": 1}], dict, csv="x\r\n1\r\n")
    with pytest.raises(RequestError, match="isn't a Forebay export"):
        export.write([chart], str(folder), False)
    assert (folder / name).read_text() == "mine,all mine\n"


def test_a_formula_in_a_label_stays_text_in_a_spreadsheet() -> None:
    assert export.as_csv([{"x": "=1+1", "y": -1.5, "z": None}]) == "x,y,z\r\n'=1+1,-1.5,\r\n"


@pytest.mark.long
@charts
def test_every_chart_fits_the_schema_of_vega_lite(
    whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def checked(chart: marks.Chart) -> str:
        asked.append(draw.specification(chart, checked=True)["$schema"])
        return ""

    monkeypatch.setattr(draw, "draw", checked)
    write_report([str(whole.runs)], str(tmp_path / "r.html"))
    assert len(asked) > 10 and len(set(asked)) == 1


@pytest.mark.promise("REP-2")
@charts
def test_colours_follow_the_page_and_every_picture_has_words(whole: Whole) -> None:
    page = whole.page.read_text()
    pictures = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(pictures) >= 10
    for picture in pictures:
        assert "<title" in picture and "<desc" in picture and 'role="img"' in picture
        assert not re.search(r'(fill|stroke)="#(?!000)[0-9a-f]{3,6}"', picture), (
            "a colour that dark mode can't change"
        )
    ids = re.findall(r'\bid="([^"]*)"', page)
    assert len(ids) == len(set(ids))


@pytest.mark.long
@charts
def test_more_series_than_colours_are_said_not_hidden(tmp_path: Path) -> None:
    runs = [record("host", size, 1 + w / 10, workers=w) for size in (4096, 8192) for w in range(1, 12)]
    page = page_of(tmp_path, *runs, charts=True)
    assert "the 8 fastest of 11 series" in text_of(page)


@pytest.mark.long
@charts
def test_a_long_series_is_thinned_in_the_picture_only(tmp_path: Path) -> None:
    made = record(repeats=1, seconds=2000.0)
    summary = write_report([save(tmp_path / "r.json", made)], str(tmp_path / "r.html"))
    assert next(c for c in summary["charts"] if c["id"] == "s1-time")["rows"] == 4000
    assert "means over several intervals" in text_of((tmp_path / "r.html").read_text())
    assert (tmp_path / "r.html").stat().st_size < 2_000_000


@pytest.mark.promise("CMD-7")
@charts
def test_json_says_what_was_written(whole: Whole) -> None:
    summary = whole.summary
    assert summary["schema"] == "forebay.report/1" and summary["output"] == str(whole.page)
    assert summary["records"] == 19 and summary["comparisons"] == summary["tunings"] == 1
    assert all(c["drawn"] and Path(c["csv"]).parent == whole.csv for c in summary["charts"])
    assert any(c["id"] == "s1-throughput" for c in summary["charts"])
