"""Training runs of others: what their systems' names say of a run that nobody measured."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from forebay.errors import RequestError
from forebay.plan import runs, score
from forebay.plan.planner import Planner, published
from forebay.plan.published import Row, table

NAME = "ext_mlperf_training_v4.1_dlrm_runs"
RUNS = table(NAME)


def predicted(planner: Planner, rows: Sequence[Row]) -> list[dict]:
    blank = [{**row, **dict.fromkeys(runs.FILLS, "")} for row in rows]
    return runs.predict(planner, blank, [f"row {i}" for i in range(len(blank))])


def without(system: str) -> Planner:
    return Planner({NAME: [r for r in RUNS if r["system"] != system]})


@pytest.mark.parametrize(
    ("system", "batch", "gpus", "memory"),
    [
        ("D74H-7U", "55296", 8, 3.35),
        ("ESC_N8_E11", "55296", 8, 3.35),
        ("XE9680x8H200-SXM-141GB", "55296", 8, 4.8),
        ("4xXE9680x8H100-SXM-80GB", "135168", 32, 3.35),
        ("GX2560M7_H100_SXM_80GBx4", "49152", 4, 3.35),
        ("SR675_V3_4xH100-PCIe", "", 4, 2.0),
        ("2xH100", "55296", 2, 3.35),
        ("eos_n16_ngc24.06_merlin_hugectr", "135168", 128, 3.35),
        ("dgx2_n0", "55296", 8, 3.35),
        ("b200_preview_merlin_hugectr", "55296", 8, 8.0),
        ("cluster_12nodes", "135168", 96, 3.35),
        ("", "", 8, 3.35),
    ],
)
def test_a_name_says_how_many_gpus_and_which(system: str, batch: str, gpus: float, memory: float) -> None:
    sheet = runs.sheet_of({"system": system, "gbs": batch})
    assert (sheet.gpus, sheet.memory_tb_s, sheet.unsure) == (gpus, memory, 0.0)


def test_a_large_batch_on_who_knows_how_many_hosts_is_less_sure() -> None:
    hidden, reported = ({"org": "x", "system": s, "gbs": "135168"} for s in ("mystery", "mystery_n8_"))
    wide, narrow = (e["run_min"].p90 / e["run_min"].p10 for e in predicted(published(), [hidden, reported]))
    assert runs.sheet_of(hidden).unsure > 0 and wide > 1.3 * narrow


@pytest.mark.promise("PLN-4")
def test_systems_left_out_lie_in_their_intervals_as_often_as_those_say() -> None:
    """And nearer than the median of others, from which a sixteen-host system is off by a factor of four."""
    cells = []
    for system in {r["system"]: None for r in RUNS}:
        rows = [r for r in RUNS if r["system"] == system]
        for row, found in zip(rows, predicted(without(system), rows), strict=True):
            e, real = found["run_min"], float(row["run_min"])
            cells.append(score.Cell(system, system, real, e.value, e.p10, e.p90, None, "pct", None))
    found = score.summarise(cells)
    assert found.n == 140 and 0.8 <= found.inside <= 0.9 and found.mean < 12 and found.worst < 45


def test_more_gpus_and_faster_memory_train_sooner_and_a_larger_batch_takes_more_epochs() -> None:
    names = ("x4H100", "x8H100", "n2_x8H100", "n8_x8H100", "n16_x8H100")
    minutes = [e["run_min"].value for e in predicted(published(), [{"org": "x", "system": "0" + n, "gbs": ""} for n in names])]
    assert minutes == sorted(minutes, reverse=True)
    memory = [e["run_min"].value for e in predicted(published(), [{"org": "x", "system": n} for n in ("h100", "h200", "b200")])]
    assert memory == sorted(memory, reverse=True)
    batches = [{"system": "h100", "gbs": b} for b in ("49152", "135168")]
    epochs = [e["epoch_at_stop"].value for e in predicted(published(), batches)]
    assert epochs[0] < epochs[1]


def test_one_run_of_a_system_is_worth_more_than_all_others() -> None:
    system = "eos_n16_ngc24.06_merlin_hugectr"
    rows = [r for r in RUNS if r["system"] == system]
    planner = Planner({NAME: [r for r in RUNS if r["system"] != system or r["file"] == rows[0]["file"]]})
    one, none = (predicted(p, [rows[1]])[0]["run_min"] for p in (planner, without(system)))
    assert one.p90 / one.p10 < 0.8 * none.p90 / none.p10
    assert one.p10 < float(rows[1]["run_min"]) < one.p90


@pytest.mark.parametrize("batch", ["-1", "0", "many", "nan"])
def test_a_batch_that_is_none_is_refused_by_row_and_column(batch: str) -> None:
    with pytest.raises(RequestError, match="row 0, column gbs"):
        predicted(published(), [{"org": "x", "system": "x", "gbs": batch}])
