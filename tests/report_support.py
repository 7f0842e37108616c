"""What tests of the report's page share: a page made of records, its text, and documents to put on it that aren't runs."""

from __future__ import annotations

import fcntl
import html
import importlib.util
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import processes
import pytest
from forebay.report import write_report
from report_records import record, sweep

# Looked for alone: every worker would import them to collect, whoever draws.
HAS_CHARTS = all(importlib.util.find_spec(name) for name in ("altair", "vl_convert"))

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


@dataclass
class Whole:
    """A page with every chart of runs, as the command writes it, beside a run that is only simulated and a hostile record."""

    folder: Path
    summary: dict[str, Any]
    runs = property(lambda self: self.folder / "runs.jsonl")
    page = property(lambda self: self.folder / "r.html")
    csv = property(lambda self: self.folder / "csv")


def drawn_whole(folder: Path) -> Whole:
    """Drawn by the first that comes, since that takes seconds; nobody changes what is in the folder."""
    folder.mkdir(exist_ok=True)
    made, reported = Whole(folder, {}), folder / "reported.json"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not reported.exists():
            save(made.runs, *sweep(watts=80.0, paths=("host", "bounce", "mapped")), record(), COMPARED, TUNED)
            model = record("host", gib_s=13.4, origin="simulated", source="model:d7-ps1010")
            more = save(folder / "more.jsonl", record("gds", ran="gds-compat"), model, evil_record())
            command = [*processes.FOREBAY, "report", made.runs, more, "-o", made.page, "--csv", made.csv, "--json"]
            done = processes.run(command, within_s=2 * processes.PATIENCE_S)
            assert done.returncode == 0, done.stderr
            reported.write_text(done.stdout)
    made.summary.update(json.loads(reported.read_text()))
    return made


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
