"""A modelled drive in real time, held against what virtual time gives for the same job."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import processes
import pytest
from forebay.report import write_report

# Slow enough for any host to be let through: 8 in flight of 500 us, 16,000 a second.
MODEL = "model:d7-ps1010?latency_us=500&channels=64"
JOB = ("--op", "randread", "--io-size", "4k", "--depth", 8, "--warmup", 0.1, "--duration", 0.4)


def bench(*arguments: Any, cwd: Path) -> subprocess.CompletedProcess[str]:
    return processes.run([*processes.FOREBAY, "bench", *arguments], cwd=cwd)


@pytest.mark.promise("BEN-19")
def test_a_model_that_its_host_holds_up_is_said_to_be_off_and_required_ends_with_1(tmp_path: Path) -> None:
    """The content comes from a drive that takes twenty times as long: no host can keep the law of the one above it."""
    slow = f"{MODEL}&over=model:d7-ps1010%3Ftime=real%26latency_us=10000%26channels=64"
    done = bench(slow, *JOB, "--require-model", "-o", "run.json", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "--require-model" in done.stderr and "fewer" in done.stderr and "time=virtual" in done.stderr
    record = json.loads((tmp_path / "run.json").read_text())
    foretold = record["result"]["foretold"]
    assert foretold["off_pct"] < -50 and 12_000 < foretold["iops"] < 17_000
    warning = next(w for w in record["warnings"] if w["id"] == "off_model")
    # On the terminal, where lines are broken, and on the page.
    assert " ".join(warning["text"].split()) in " ".join(done.stdout.split())
    assert f"its model predicts {foretold['iops']:,.0f} IOPS" in " ".join(done.stdout.split())
    write_report([str(tmp_path / "run.json")], str(tmp_path / "page.html"), charts=False)
    assert "Limited by the host, not the model" in (tmp_path / "page.html").read_text()


@pytest.mark.long
@pytest.mark.promise("BEN-19")
def test_a_law_is_told_or_its_absence_explained(tmp_path: Path) -> None:
    for source, *more in ((f"{MODEL}&time=real",), (f"{MODEL}&time=real", "--repeat", 2), (MODEL,), ("nil:",)):
        done = bench(source, *JOB, *more, "--json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        record = json.loads(done.stdout)
        foretold, warned = record["result"]["foretold"], [w["id"] for w in record["warnings"]]
        if "time=real" not in source:
            assert foretold is None and record["missing"]["result.foretold"] and "off_model" not in warned
            continue
        off = 100 * (record["result"]["iops"] / foretold["iops"] - 1)
        assert foretold["off_pct"] == pytest.approx(off) and ("off_model" in warned) == (abs(off) > 5)


@pytest.mark.promise("BEN-19")
@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (("nil:",), "no model in real time"),
        ((f"{MODEL}&time=real", "--passes", 1), "passes"),
        ((f"{MODEL}&time=real", "--rate-iops", 10), "too few"),
    ],
)
def test_to_require_a_law_there_must_be_one(tmp_path: Path, arguments: tuple[Any, ...], found: str) -> None:
    done = bench(*arguments, *JOB, "--require-model", cwd=tmp_path)
    assert done.returncode == 2 and "--require-model" in done.stderr and found in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and not list(tmp_path.iterdir())
