"""`forebay report`: what the page says. All records here are made up (report_records.py)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from forebay.bench import summary
from forebay.numbers import significant, size
from forebay.report import write_report
from report_records import record, sweep
from report_support import COMPARED, TUNED, page_of, save, text_of
from whole_records import judged


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


def test_processor_time_per_gib_has_one_unit_in_all_tables(tmp_path: Path) -> None:
    page = page_of(tmp_path, *sweep(cv=0.0, paths=("host", "bounce")))
    tables = dict(re.findall(r'<table id="([^"]+)">(.*?)</table>', page, re.DOTALL))
    heads = {name: map(text_of, re.findall(r"<th scope=\"col\".*?</th>", table, re.DOTALL)) for name, table in tables.items()}
    per_gib = {name: {h for h in found if h.lower().endswith("s/gib")} for name, found in heads.items()}
    assert per_gib["s1-processor"] == per_gib["s1-main"] == {"CPU-s/GiB"}
    assert set().union(*per_gib.values()) == {"CPU-s/GiB"}


def test_a_confounded_worker_count_makes_no_series_of_its_own(tmp_path: Path) -> None:
    page = page_of(tmp_path, *sweep())
    assert "host · 32 workers" not in page and "32 × 1" in page and "24 × 1" in page


def test_a_true_matrix_over_workers_does(tmp_path: Path) -> None:
    page = page_of(tmp_path, *[record("host", size, 2.0, workers=w) for size in (4096, 8192) for w in (1, 4)])
    assert "1 worker<" in page and "4 workers ÷ 1 worker" in page and "host ·" not in page


@pytest.mark.promise("REC-1")
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


@pytest.mark.promise("REP-3")
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


@pytest.mark.promise("REC-5")
def test_what_really_ran_is_shown_with_why(tmp_path: Path) -> None:
    text = text_of(page_of(tmp_path, record("gds", ran="gds-compat")))
    assert (
        "gds → gds-compat" in text
        and "gds was requested, gds-compat ran: made up for a test" in text
        and "Path differs from the one requested" in text
    )


@pytest.mark.promise("ENG-9")
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


@pytest.mark.promise("REC-30", "REC-33")
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


@pytest.mark.promise("REC-33")
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


def changed(record: dict, **drive: str) -> dict:
    """The same run, a week later, with something else of its drive."""
    first = {"name": "nvme0n1", "model": "KIOXIA CD8", "firmware": "1.0", "kind": "nvme", **drive}
    inside = record["record"]
    return {**record, "record": {**inside, "id": inside["id"] + drive.get("firmware", ""), "environment": {
        **inside["environment"], "drives": [first]}}}  # fmt: skip


def test_another_firmware_is_a_series_of_its_own_and_said(tmp_path: Path) -> None:
    old = [changed(r) for r in sweep()]
    new = [changed(r, firmware="1.1") for r in sweep()]
    text = text_of(page_of(tmp_path, *old, *new))
    assert "firmware 1.0" in text and "firmware 1.1" in text
    assert "Runs of the same source differ in firmware: 1.0, 1.1. Each is a series of its own." in text
    alike = text_of(page_of(tmp_path, *old, *old))
    assert "differ in firmware" not in alike


def test_an_anonymous_page_names_nothing_of_the_site(tmp_path: Path) -> None:
    """Hosts, serials, addresses and paths go, also out of warnings and commands; figures and equal names stay."""
    record = changed(sweep()[0], serial="S-4711")["record"]
    record["environment"] |= {"host": "rack7.example"}
    record["environment"]["filesystem"] = {"kind": "xfs", "mount_point": "/srv/acme", "device": "/dev/nvme0n1", "options": []}
    record["job"]["source"] = "/srv/acme/train set.bin"
    record["command"] = ["forebay", "bench", "/srv/acme/train set.bin", "--hosts", "10.1.2.3"]
    odd = {"id": "odd", "text": "/srv/acme/other.bin on rack7.example is odd", "next": "look at nqn.2024-01.acme:a"}
    record["warnings"] = [odd]
    far = "nvme+tcp://store.acme.example:4420/nqn.2024-01.acme:b?nsid=1"
    record["command"] += ["-o", "acme/out.json", "--record=acme4.jsonl", f"file:/srv/acme5 vfio-user:/run/acme6 {far}"]
    lost = "store.acme.example:4420 and fe80::1ff:fe23:4567:890a are lost; 12345678-1234-1234-1234-123456789abc since 12:30:45"
    record["warnings"].append({"id": "lost", "text": lost, "next": "wait"})
    file = save(tmp_path / "acme-runs.jsonl", record)
    reported = write_report([file], str(tmp_path / "page.html"), charts=False, anonymous=True)
    text = (tmp_path / "page.html").read_text()
    for name in ("acme", "rack7", "S-4711", "10.1.2.3", "/dev/", str(tmp_path), "fe80", "890a", "12345678-1234"):
        assert name not in text, name
    assert "12:30:45" in text
    assert "host 1" in text and re.search(r"path \d", text) and reported["records"] == 1
    write_report([file], str(tmp_path / "page.html"), charts=False)
    assert "rack7.example" in (tmp_path / "page.html").read_text()
