"""`forebay report`: what counts as a record, and which records are runs of one job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from forebay import flags
from forebay.report import load, write_report
from forebay.report.runs import studies
from report_records import point, record, sweep
from report_support import page_of, run, save, text_of


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


@pytest.mark.promise("REC-2")
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


@pytest.mark.promise("REP-4")
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


@pytest.mark.promise("REP-4")
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


@pytest.mark.promise("REP-4")
def test_a_sweep_over_sync_has_a_bar_for_each(tmp_path: Path) -> None:
    made = [record(op="write", gib_s=rate) for rate in (3.0, 1.0)]
    made[1]["job"]["sync"] = "each"
    text = text_of(page_of(tmp_path, *made))
    assert "sync none" in text and "sync each" in text and "range of 2 runs" not in text


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


def test_a_file_of_data_among_the_runs_is_named_once_and_many_bad_lines_are_counted(tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(bytes(range(256)) * 400)
    (tmp_path / "bad.jsonl").write_text("{oops}\n" * 100)
    found = load.load([save(tmp_path / "runs.jsonl", record()), *(str(tmp_path / name) for name in ("data.bin", "bad.jsonl"))])
    assert len(found.entries) == 1
    assert [text for text in found.problems if "data.bin" in text] == [f"{tmp_path / 'data.bin'}: isn't text; left out"]
    assert len(found.problems) == 22 and found.problems[-1].endswith("bad.jsonl: 80 more are no records; left out")


def test_mounts_are_named_by_the_options_that_differ(tmp_path: Path) -> None:
    runs = []
    for number, own in enumerate((["rw", "relatime", "resuid=65534"], ["rw", "noatime", "resuid=65534"], ["rw", "resuid=65534"])):
        made = record()
        made["id"], made["environment"]["filesystem"] = f"{number:016x}", {"kind": "xfs", "mount_point": "/d", "options": own}
        runs.append(made)
    text = text_of(page_of(tmp_path, *runs))
    assert "mount options relatime" in text and "mount options noatime" in text and "without relatime,noatime" in text
