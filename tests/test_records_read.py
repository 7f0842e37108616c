"""Whatever field a document lacks: it is read, and what is missing is said."""

from __future__ import annotations

import copy
import html
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from forebay.report import load, write_report
from forebay.report.runs import Run
from properties import parametrized
from report_records import point, record
from whole_records import ABSENT

# Without these a table has nothing to show: such a document is left out by name.
NEEDED = {
    "schema", "job", "path", "cache", "result", "environment", "job.io_bytes", "path.ran", "result.throughput_gib_s",
}  # fmt: skip


def fields(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of each field below `value`; of a list those of its first entry."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield (*at, key)
            yield from fields(part, (*at, key))
    elif isinstance(value, list) and value:
        yield from fields(value[0], (*at, 0))


def without(value: dict[str, Any], place: tuple[Any, ...]) -> dict[str, Any]:
    made = copy.deepcopy(value)
    part: Any = made
    for key in place[:-1]:
        part = part[key]
    del part[place[-1]]
    return made


def name(place: tuple[Any, ...]) -> str:
    return ".".join(str(key) for key in place if key != 0)


COMPARED = {
    "schema": "forebay.compare/1", "kind": "jobs", "metric": "throughput", "until_ci_pct": 2.0, "command": ["forebay"],
    "a": {"settings": "path=bounce", "ran": ["bounce, uring"], "medians": {"throughput": 3.2}, "missing": {}},
    "b": {"settings": "path=host", "ran": ["host, uring"], "medians": {"throughput": 2.9}, "missing": {}},
    "ratios": {"throughput": {"estimate": 1.09, "ci95": [1.07, 1.11], "pairs": 8}},
    "verdict": {"kind": "differs", "text": "A is 1.07–1.11 × B", "next": ""}, "interrupted": False, "error": None,
}  # fmt: skip
TUNED = {
    "schema": "forebay.tune/1", "metric": "throughput", "best": {"name": "depth=8", "job": {"depth": 8}, "value": 3.0},
    "tried": [{"name": "depth=8", "job": {"depth": 8}, "values": [3.0], "round": 1}], "command": ["forebay"],
}  # fmt: skip
SHORT = {"repeats": 1, "seconds": 2.0}
SWEPT = {"schema": "forebay.sweep/1", "title": "mine", "name": "mine", "definition": {}, "dropped": ["a"], "command": []}

DOCUMENTS = (record(**SHORT), point("mine", record(**SHORT)), SWEPT, COMPARED, TUNED)


@pytest.mark.long
@pytest.mark.promise("REC-32")
@parametrized("document", DOCUMENTS, ids=lambda d: d["schema"], kept=(0,))
def test_a_page_is_made_of_documents_that_lack_a_field_each(tmp_path: Path, document: dict[str, Any]) -> None:
    places = list(fields(document))
    lines = []
    for number, place in enumerate(places):
        lacking = without(document, place)
        held = lacking.get("record", lacking)
        if held.get("id"):
            held["id"] = f"{number:016x}"
        lines.append(json.dumps(lacking))
    # One that is whole, so that there is a page.
    lines.append(json.dumps(record()))
    (tmp_path / "runs.jsonl").write_text("\n".join(lines) + "\n")
    loaded = load.load([str(tmp_path / "runs.jsonl")])
    write_report([str(tmp_path / "runs.jsonl")], str(tmp_path / "page.html"), charts=False)
    text = html.unescape((tmp_path / "page.html").read_text())
    assert all(problem in text for problem in loaded.problems[:5]), "the page names five, and how many more"
    left_out = {int(problem.split(":")[1]) - 1 for problem in loaded.problems}
    for number, place in enumerate(places):
        needed = name(place).removeprefix("record.") in NEEDED | {"record"}
        assert (number in left_out) == needed, f"without {name(place)}: {loaded.problems}"


@pytest.mark.promise("REC-32")
def test_a_dash_says_that_the_record_has_no_such_field() -> None:
    made = record()
    del made["result"]["latency_us"]
    made["result"]["cpu"]["cpu_s_per_gib"] = None
    run = Run(load.Entry(made, "r.json"))
    assert run.reason("result.latency_us.p99") == ABSENT
    assert run.reason("result.cpu.cpu_s_per_gib") == "the record gives no reason"
    assert run.reason("result.power") == "no power meter answers here"
