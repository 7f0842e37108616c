"""The page's first sentence says of what there were so many."""

from __future__ import annotations

import html
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
from forebay.report import write_report
from forebay.report.runs import AXES
from report_records import record


@pytest.mark.promise("REP-5")
@pytest.mark.parametrize(
    ("key", "one", "several"),
    [
        ("io_bytes", "1 B", "64 B"),
        ("workers", "1 worker", "64 workers"),
        ("batch", "1 I/O per batch", "64 I/Os per batch"),
        ("depth", "1 I/O in flight per worker", "64 I/Os in flight per worker"),
        ("read_pct", "1 % reads", "64 % reads"),
    ],
)
def test_a_place_on_an_axis_has_its_unit(key: str, one: str, several: str) -> None:
    (axis,) = (axis for axis in AXES if axis.key == key)
    assert (axis.place(1), axis.place(64)) == (one, several)


@pytest.mark.promise("REP-5")
def test_the_headline_says_what_there_were_eight_of(tmp_path: Path) -> None:
    saved = tmp_path / "r.jsonl"
    saved.write_text("".join(json.dumps(record("bounce", gib_s=workers, workers=workers)) + "\n" for workers in (1, 8)))
    write_report([str(saved)], str(tmp_path / "r.html"), charts=False)
    text = " ".join(re.sub(r"<[^>]+>", " ", (tmp_path / "r.html").read_text()).split())
    assert re.search(r"Bounce reached [78][0-9.]* GiB/s at 8 workers[ ,.]", text), text[:500]


def test_paths_into_a_gpu_are_compared_with_bounce_where_no_run_used_host(tmp_path: Path) -> None:
    saved = tmp_path / "r.jsonl"
    runs = [record("bounce", gib_s=2.0, cv=0), record("mapped", gib_s=5.0, cv=0)]
    saved.write_text("".join(json.dumps(run) + "\n" for run in runs))
    write_report([str(saved)], str(tmp_path / "r.html"), charts=False)
    text = " ".join(re.sub(r"<[^>]+>", " ", (tmp_path / "r.html").read_text()).split())
    assert "Mapped reached 5.00 GiB/s with 1 MiB reads, 2.50 × bounce." in text
    assert "÷ bounce" in text and "÷ host" not in text


@pytest.mark.parametrize(
    ("cost", "said"),
    [
        (0.002, "as fast as bounce within the error bars, for 0.0200 × its CPU time. Mapped's throughput was 0."),
        (0.4, "as fast as bounce within the error bars, for 4.00 × its CPU time. Mapped's throughput was 0."),
        (0.1, "Their intervals overlap: this is no proof of a difference. Mapped took 1.00 times as much"),
    ],
)
def test_where_one_is_as_fast_as_the_other_the_headline_says_what_it_costs(tmp_path: Path, cost: float, said: str) -> None:
    saved = tmp_path / "r.jsonl"
    runs = [record("bounce", gib_s=49.0, cpu_s_per_gib=0.1), record("mapped", gib_s=49.1, cpu_s_per_gib=cost)]
    saved.write_text("".join(json.dumps(run) + "\n" for run in runs))
    write_report([str(saved)], str(tmp_path / "r.html"), charts=False)
    text = " ".join(re.sub(r"<[^>]+>", " ", (tmp_path / "r.html").read_text()).split())
    assert said in html.unescape(text), text[-600:]


def test_a_picture_of_a_page_that_warns_or_proves_nothing_is_not_taken(tmp_path: Path) -> None:
    """bench/picture.py looks for both in the page."""
    spec = importlib.util.spec_from_file_location("picture", Path(__file__).parent.parent / "bench/picture.py")
    assert spec is not None and spec.loader is not None
    picture = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(picture)

    def against(**differing: Any) -> str:
        runs = [record("host", gib_s=3.0), record("bounce", **{"gib_s": 2.0, **differing})]
        (tmp_path / "r.jsonl").write_text("".join(json.dumps(run) + "\n" for run in runs))
        write_report([str(tmp_path / "r.jsonl")], str(tmp_path / "r.html"), charts=False)
        return "; ".join(picture.objections((tmp_path / "r.html").read_text()))

    assert against() == ""
    assert "isn't proven" in against(gib_s=3.0)
    assert "the page warns: " in against(warnings=[{"id": "short", "text": "2.0 s", "next": "--duration 30"}])
