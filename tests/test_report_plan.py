"""The section of `forebay report --plan`: sliders, curves with bands, published and own points, in a real browser."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from typing import Any

import pytest
from forebay.errors import RequestError
from forebay.plan import explore
from forebay.report import load, whatif, write_report
from forebay.report.runs import Run, short_source
from report_browser import executable
from report_records import record
from report_support import EVIL, charts, evil_record, save

browser = pytest.mark.skipif(executable() is None, reason="needs a browser; try: apt-get install chromium")


def runs(path: str = "gds") -> list[dict[str, Any]]:
    """A sweep of the made-up machine that this drive could have given."""
    rates = {64: 4.4, 128: 4.9, 512: 6.5, 1024: 6.55, 4096: 6.6}
    return [record(path, gib_s=rate, io_bytes=kib << 10, workers=32, depth=1) for kib, rate in rates.items()]


def test_a_stripe_goes_by_its_members_and_any_other_source_by_its_name() -> None:
    striped, plain = record(source="stripe:?m=/a&m=/b"), record(source="/data/f")
    striped["result"]["targets"][0]["members"] = 2
    assert [short_source(Run(load.Entry(r, "runs.jsonl"))) for r in (striped, plain)] == ["stripe of 2", "f"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan")
    page = folder / "r.html"
    reported = write_report([save(folder / "r.jsonl", *runs())], str(page), charts=False, plan="d7-p5520")
    assert reported["plan"] == "d7-p5520"
    return page


@pytest.mark.long
@pytest.mark.promise("PLN-12")
@browser
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_the_report_with_sliders_fits_its_window_and_asks_for_nothing(window: Any, made: Path, width: int, dark: bool) -> None:
    window.requests.clear()
    window.console.clear()
    window.open(made, width, 844, dark=dark)
    assert window.value("document.documentElement.scrollWidth") <= width
    assert set(window.requests) <= {made.resolve().as_uri(), "data:,"}
    assert not window.console, window.console
    heads = window.value("[...document.querySelectorAll('h1,h2,h3,h4')].map(h => +h.tagName[1])")
    assert heads.count(1) == 1 and all(b - a <= 1 for a, b in zip(heads, heads[1:], strict=False))


@pytest.mark.promise("PLN-12")
@browser
def test_its_sliders_answer_as_the_planner_calibrated_by_the_same_runs(window: Any, made: Path) -> None:
    window.open(made, 1280, 844)
    assert "calibrated on own runs" in window.value("document.querySelector('.plan').textContent")

    def slide(name: str, to: int) -> str:
        window.value(f"(() => {{ const e = $('{name}'); e.value = {to}; e.dispatchEvent(new Event('input')); return 0 }})()")
        return window.value("$('answer').textContent")

    said = slide("size", explore.SIZES.index(512 << 10))
    value, low, high = (float(v) for v in re.search(r"([\d.]+) GiB/s of plain reads \(([\d.]+) to ([\d.]+)\)", said).groups())
    assert value == pytest.approx(6.5, rel=0.03) and low < value < high
    assert window.value("document.querySelectorAll('#plan-rate .own').length") == len(runs())
    # Published cells are of another number of requests in flight: of another curve.
    assert window.value("document.querySelectorAll('#plan-rate .seen').length") == 0
    assert window.value("document.querySelectorAll('#plan-rate .band').length") == 1
    assert slide("drives", 1) != said
    assert window.value("document.querySelectorAll('#plan-rate .own').length") == 0
    few = slide("queues", 2)
    assert "GiB/s" in few and "H100s" in few and "H100s" not in slide("workload", 0)
    # A square lies where its own axis says: 4 MiB, 6.6 GiB/s, on the curve's last place.
    slide("drives", 0)
    slide("queues", 0)
    right = "Math.max(...[...document.querySelectorAll('#plan-rate .own')].map(r => +r.getAttribute('x') + 4))"
    assert window.value(right) == pytest.approx(50 + 730, abs=0.5)


@pytest.mark.promise("PLN-12")
def test_the_policy_allows_its_one_script_by_hash_and_no_other(made: Path) -> None:
    text = made.read_text()
    allowed = re.search(r"script-src '(sha256-[^']+)'; base-uri", text)
    scripts = re.findall(r"<script>(.*?)</script>", text, re.S)
    assert allowed and len(scripts) == 1
    assert allowed[1] == "sha256-" + base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    assert "unsafe-inline" not in text.split("script-src")[1].split(">")[0]
    assert "http://" not in scripts[0].replace("http://www.w3.org/2000/svg", "") and "fetch(" not in scripts[0]


def test_without_plan_the_report_stays_free_of_scripts(tmp_path: Path) -> None:
    write_report([save(tmp_path / "r.jsonl", *runs())], str(tmp_path / "r.html"), charts=False)
    text = (tmp_path / "r.html").read_text()
    assert "<script" not in text and "script-src" not in text


@pytest.mark.long
def test_runs_that_cannot_calibrate_are_said_to_and_the_data_sheet_stands_in(tmp_path: Path) -> None:
    for documents, said in (
        ([record("gds", gib_s=5.0)], "all have the same settings"),
        ([record("gds", gib_s=5.0, origin="simulated")], "is a measured read"),
        (runs()[:1] + [{**runs()[2], "environment": {**runs()[2]["environment"], "host": "other"}}], "different machines"),
    ):
        loaded = load.load([save(tmp_path / "r.jsonl", *documents)])
        body = whatif.section(loaded.entries, "D7-P5520", []).body
        assert said.lower() in body.lower() and "published measurements" in body


@pytest.mark.long
def test_a_strange_drive_is_refused_and_strange_records_do_no_harm(tmp_path: Path) -> None:
    file = save(tmp_path / "r.jsonl", *runs("host"), evil_record())
    with pytest.raises(RequestError, match="is in no catalogue"):
        write_report([file], str(tmp_path / "r.html"), charts=False, plan="D9")
    with pytest.raises(RequestError, match="applies only to --plan"):
        write_report([file], str(tmp_path / "r.html"), charts=False, catalogue="x.toml")
    with pytest.raises(RequestError, match="applies only to --plan"):
        write_report([file], str(tmp_path / "r.html"), charts=False, plan_drives=2)
    assert not (tmp_path / "r.html").exists()
    write_report([file], str(tmp_path / "r.html"), charts=False, plan="D7-P5520")
    text = (tmp_path / "r.html").read_text()
    assert EVIL not in text and text.count("<script>") == 1
    # That record is of no drive, which is said, escaped.
    assert "1 left out: " in text
    loaded = load.load([save(tmp_path / "h.jsonl", *runs("host"))])
    assert "own runs. Requests in flight: 32 as asked, path cpu." in whatif.section(loaded.entries, "D7-P5520", []).body


@pytest.mark.long
def test_runs_of_several_drives_are_planned_as_such(tmp_path: Path) -> None:
    doubled = [{**r, "result": {**r["result"], "throughput_gib_s": 2 * r["result"]["throughput_gib_s"]}} for r in runs()]
    loaded = load.load([save(tmp_path / "r.jsonl", *doubled)])
    one, two = (whatif.section(loaded.entries, "D7-P5520", [], n).body for n in (None, 2))
    assert "specification" in one and "specification" not in two


@pytest.mark.long
@charts
def test_sliders_and_charts_share_one_page(tmp_path: Path) -> None:
    write_report([save(tmp_path / "r.jsonl", *runs()[:2])], str(tmp_path / "r.html"), plan="D7-PS1010")
    text = (tmp_path / "r.html").read_text()
    assert text.count("<figure") > 3 and 'id="plan-rate"' in text
