"""Records whose parts contradict each other: each is said, by whoever reads records, and nothing is made of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fake_engine
import pytest
from fake_machine import typed
from forebay.doubts import contradictions, of_spans

Change = Callable[[dict[str, Any]], Any]


def span(start: float, wait_end: float, first_end: float, end: float, steps: int, compute: float) -> dict[str, Any]:
    keys = ("start_s", "first_wait_end_s", "first_step_end_s", "end_s", "steps", "compute_s")
    return dict(zip(keys, (start, wait_end, first_end, end, steps, compute), strict=True))


def training() -> dict[str, Any]:
    """Two accelerators of four steps of 50 ms, by hand: 210 ms after the first step, of which three computed."""
    au = 100 * 0.15 / 0.21
    spans = [span(1.0, 1.1, 1.15, 1.36, 4, 0.2)] * 2
    epochs = [{"epoch": n, "steps": 4, "au_pct": au, "accelerators": spans} for n in (1, 2)]
    reported = {"rule_set": "v1.0", "au_pct": au, "au_pct_min": 70.0, "passes": True, "samples_per_s": 9.0, "samples": 64}
    return reported | {"epochs": epochs}


def whole() -> dict[str, Any]:
    made: dict[str, Any] = json.loads(json.dumps(fake_engine.record()))
    return made | {"training": training()}


def test_a_record_as_it_was_written_has_none() -> None:
    assert contradictions(whole()) == contradictions(fake_engine.record()) == []
    assert of_spans(training()["epochs"][0]["accelerators"], "text") == pytest.approx(100 * 0.2 / 0.26)
    assert of_spans([], "v1.0") is of_spans([{"start_s": "x"}], "v1.0") is None


@pytest.mark.promise("REC-37")
@pytest.mark.parametrize(
    ("change", "reported"),
    [
        (lambda r: r["result"].update(throughput_gib_s=2 * r["result"]["throughput_gib_s"]), "throughput_gib_s is"),
        (lambda r: r["result"].update(bytes=-1), "bytes is -1, below zero"),
        (lambda r: r["result"].update(seconds=-2.0), "seconds is -2, below zero"),
        (lambda r: r["result"]["latency_us"].update(p99=float("inf")), "latency_us.p99 is inf"),
        (lambda r: r["result"].update(iops=float("nan")), "iops is nan"),
        (lambda r: r["training"].update(au_pct=99.0), "AU is 99.00 %, and its epochs have 71.43"),
        (lambda r: r["training"].update(au_pct=104.0), "more than all of the time"),
        (lambda r: r["training"]["epochs"][1].update(au_pct=95.0), "epoch 2 says AU 95.00 %"),
        (lambda r: r["training"].update(au_pct_min=90.0), "said to pass with AU 71.43 %, below 90 %"),
        (lambda r: r["training"].update(samples_per_s=-1.0), "samples_per_s is -1, below zero"),
    ],
)
def test_each_is_told_and_no_reader_makes_anything_of_it(
    change: Change, reported: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    made = whole()
    change(made)
    assert any(reported in text for text in contradictions(made)), contradictions(made)
    monkeypatch.chdir(tmp_path)
    Path("odd.json").write_text(json.dumps(made))
    Path("good.json").write_text(json.dumps(fake_engine.record()))
    for words in (("report", "odd.json", "--no-charts"), ("export", "odd.json", "--json"), ("compare", "good.json", "odd.json")):
        code, out, err = typed(capsys, *words)
        assert code == 2 and ("contradicts itself" in err or "is not a JSON number" in err or "NaN" in err), (words, out, err)
        assert "Traceback" not in err and not Path("odd.html").exists()
