"""Batches of small I/Os on the page: along an axis, and in a table of their own."""

from pathlib import Path

import pytest
from forebay.report.load import Entry
from forebay.report.runs import studies
from report_records import record
from report_support import page_of, text_of


@pytest.mark.promise("BEN-25")
def test_a_sweep_over_batches_lies_along_them_and_shows_their_latency(tmp_path: Path) -> None:
    made = [record("mapped", op="randread", depth=2 * batch or 64) for batch in (0, 512, 2048)]
    for batch, one in zip((None, 512, 2048), made, strict=True):
        one["job"]["batch"] = batch
        if batch:
            latency = {k: v * batch for k, v in one["result"]["latency_us"].items()}
            by = "one launch of a kernel"
            one["result"]["batch"] = {"ios": batch, "count": 1000, "latency_us": latency, "histogram": "", "by": by}
    [study] = studies([Entry(one, "runs.jsonl") for one in made])
    assert study.axis.key == "batch" and study.xs == [0, 512, 2048] and len(study.series) >= 1
    text = text_of(page_of(tmp_path, *made))
    assert "Batches: I/O rate and latency" in text and "no batches" in text and "2,048" in text
    assert text.count("one launch of a kernel") == 2 and "each I/O was a request of its own" in text
    assert "Batches: I/O rate" not in text_of(page_of(tmp_path, record()))
