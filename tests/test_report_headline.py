"""The page's first sentence says of what there were so many."""

from __future__ import annotations

import html
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
from forebay.report import charts, load, write_report
from forebay.report.runs import AXES, studies
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


def shown(tmp_path: Path, *runs: dict[str, Any]) -> tuple[str, str]:
    """The page, and its text."""
    saved = tmp_path / "r.jsonl"
    saved.write_text("".join(json.dumps(run) + "\n" for run in runs))
    write_report([str(saved)], str(tmp_path / "r.html"), charts=False)
    page = (tmp_path / "r.html").read_text()
    return page, html.unescape(" ".join(re.sub(r"<[^>]+>", " ", page).split()))


def local_and_remote() -> list[dict[str, Any]]:
    """As `sweep solidigm-remote --scale` leaves them: files of other sizes, queues that make other workers, two surroundings."""
    runs = []
    for size, file_bytes in ((64 << 10, 81 << 20), (4 << 20, 80 << 20)):
        local = record("host", size, 3.0, workers=16, depth=1, label="local", source="/data/forebay-fabric.dat", cv=0)
        local["job"]["file_bytes"] = file_bytes
        there = "nvme+tcp://10.0.0.7:4420/nqn.x?queues=8"
        remote = record("host", size, 1.5, workers=8, depth=2, label="remote", source=there, cv=0)
        remote["job"]["file_bytes"], remote["path"]["engine"] = None, "nvme-tcp"
        remote["environment"] = {**remote["environment"], "drives": [], "filesystem": None}
        runs += [local, remote]
    return runs


@pytest.mark.promise("REP-11")
def test_series_are_named_by_what_differs_and_the_ratio_is_the_figure(tmp_path: Path) -> None:
    page, text = shown(tmp_path, *local_and_remote())
    heads = re.findall(r'<th scope="colgroup" colspan="2">([^<]*)', page)
    assert heads == ["local", "remote", "remote ÷ local"]
    assert "Remote reached 1.50 GiB/s at 64 KiB, 0.50 × local." in text and "remote ÷ local 0.50 of the throughput" in text
    # What the names leave out is said once.
    assert "local: forebay-fabric.dat, 16 workers, depth 1, io_uring" in text
    assert "remote: nvme+tcp at 10.0.0.7, 8 workers" in text


@pytest.mark.promise("REP-12")
def test_pairs_have_a_chart_of_their_ratio_in_which_what_it_is_of_is_1(tmp_path: Path) -> None:
    [study] = studies(load.Entry(r, "runs.jsonl") for r in local_and_remote())
    found = {chart.title: chart for chart in charts.study_charts(study)}
    ratio = found["Throughput ÷ local"]
    assert [(r["series"], r["place"], r["value"]) for r in ratio.rows] == [
        ("local", "64 KiB", 1.0), ("local", "4 MiB", 1.0), ("remote", "64 KiB", 0.5), ("remote", "4 MiB", 0.5),
    ]  # fmt: skip
    assert "From 0.50 at 64 KiB, remote, to 0.50 at" in ratio.desc and ratio.note.startswith("local is 1.")
    assert "CPU per GiB ÷ local" in found
    # One place is a figure; and without pairs nothing is divided.
    for runs in (local_and_remote()[:2], local_and_remote()[::2]):
        for study in studies(load.Entry(r, "runs.jsonl") for r in runs):
            assert not any("÷" in chart.title for chart in charts.study_charts(study))


@pytest.mark.promise("REP-11")
def test_a_long_name_is_cut_unless_that_would_make_two_alike(tmp_path: Path) -> None:
    files = [f"/data/{'a-name-of-a-file-that-goes-on-and-on' * 2}-{end}" for end in "xy"]
    _, text = shown(tmp_path, *[record("host", size, source=f) for f in files for size in (4096, 8192)])
    assert f"{Path(files[0]).name} ÷" in text or f"÷ {Path(files[0]).name}" in text
    labels = [f"{end} of the runs that I made on Tuesday" for end in "xy"]
    _, text = shown(tmp_path, *[record("host", size, label=name) for name in labels for size in (4096, 8192)])
    assert "x of the runs that I made o… " in text


@pytest.mark.promise("SWP-32")
def test_a_study_of_latency_shows_latency_first_on_the_page_too(tmp_path: Path) -> None:
    page, text = shown(tmp_path, *[record("host", size, 1.0, workers=1, depth=1) for size in (4096, 65536)])
    assert re.search(r"Host took [0-9.]+ µs an I/O at 4 KiB\. 99 % took at most", text), text[:300]
    assert page.index('id="s1-io"') < page.index('id="s1-main"') and "Lowest mean latency" in text
    page, text = shown(tmp_path, *[record("host", size, 1.0, workers=4, depth=8) for size in (4096, 65536)])
    assert page.index('id="s1-main"') < page.index('id="s1-io"') and "Lowest mean latency" not in text


@pytest.mark.promise("REP-11")
def test_each_advice_is_a_line_of_its_own(tmp_path: Path) -> None:
    runs = [record("host", size) for size in (4096, 65536)]
    for run, next in zip(runs, ("--duration 30", "--cpus 0-3"), strict=True):
        run["warnings"] = [{"id": "noisy", "text": "it was noisy", "next": next}]
    page, _ = shown(tmp_path, *runs)
    assert '<p class="next">--duration 30</p>' in page and '<p class="next">--cpus 0-3</p>' in page
    assert re.search(r"it was noisy <small", page)
