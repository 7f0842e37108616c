"""MLPerf's files of `forebay train`: lines of a log, folders, reference points. MLCommons' checkers: tests/ml."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_machine import typed
from forebay.errors import RequestError
from forebay.safetensors import SafetensorsFile
from forebay.train import mllog


def made_up(**more: Any) -> dict[str, Any]:
    """A run of DLRM of 4,096 samples, whose second evaluation reaches the target."""
    part = {
        "model": "dlrm", "device": "cuda:0", "seed": 3, "batch": 512, "learning_rate": 0.005, "optimizer": "fused",
        "cache": "cold",
        "data": {"folder": "/d", "seed": 0, "rows": 4096, "table_rows": 50, "evaluation_rows": 1000},
        "samples": 2048, "samples_to_target": 2048, "quality_target": 0.7,
        "evaluations": [
            {"samples": 1024, "auc": 0.61, "seconds": 0.25, "began_s": 1.5},
            {"samples": 2048, "auc": 0.72, "seconds": 0.25, "began_s": 3.0},
        ],
        "clock": {"init_ms": 1000, "run_start_ms": 5000, "run_stop_ms": 8260}, **more,
    }  # fmt: skip
    machine = {"cpu": "A CPU", "cores": 8, "memory_bytes": 1, "os": "Linux", "gpus": [{"name": "NVIDIA H100", "memory_bytes": 2}]}
    return {"started": "2026-01-01T00:00:00Z", "environment": machine, "result": {}, "train": part}


GOLDEN = """\
submission_benchmark 1000 "dlrm_dcnv2"
submission_org 1000 "MLPerf-style, unverified"
submission_division 1000 "open"
submission_status 1000 "research"
submission_platform 1000 "1x NVIDIA H100"
cache_clear 1000 true
init_start 1000 null
seed 1000 3
global_batch_size 1000 512
gradient_accumulation_steps 1000 1
train_samples 1000 4096
eval_samples 1000 1000
opt_name 1000 "adagrad"
opt_base_learning_rate 1000 0.005
opt_adagrad_epsilon 1000 1e-10
opt_adagrad_learning_rate_decay 1000 0.0
opt_weight_decay 1000 0.0
opt_adagrad_initial_accumulator_value 1000 0.0
opt_learning_rate_warmup_steps 1000 0
opt_learning_rate_decay_start_step 1000 0
opt_learning_rate_decay_steps 1000 0
init_stop 5000 null
run_start 5000 null
block_start 5000 null {"first_epoch_num": 0.0, "samples_count": 0, "epoch_count": 0.25}
block_stop 6500 null {"first_epoch_num": 0.0, "samples_count": 0}
eval_start 6500 null {"samples_count": 1024, "epoch_num": 0.25}
eval_accuracy 6750 0.61 {"samples_count": 1024, "epoch_num": 0.25}
eval_stop 6750 null {"samples_count": 1024, "epoch_num": 0.25}
block_start 6750 null {"first_epoch_num": 0.25, "samples_count": 1024, "epoch_count": 0.25}
block_stop 8000 null {"first_epoch_num": 0.25, "samples_count": 1024}
eval_start 8000 null {"samples_count": 2048, "epoch_num": 0.5}
eval_accuracy 8250 0.72 {"samples_count": 2048, "epoch_num": 0.5}
eval_stop 8250 null {"samples_count": 2048, "epoch_num": 0.5}
run_stop 8260 null {"status": "success", "samples_count": 2048, "epoch_num": 0.5}
"""
FIRST = (
    ':::MLLOG {"namespace": "", "time_ms": 1000, "event_type": "POINT_IN_TIME", "key": "submission_benchmark", '
    '"value": "dlrm_dcnv2", "metadata": {}}'
)


def short(text: str) -> str:
    """Key, time, value and metadata of each line but our note's."""
    events = [json.loads(line.removeprefix(mllog.TOKEN)) for line in text.splitlines() if line.startswith(mllog.TOKEN)]
    lines = []
    for e in (e for e in events if e["key"] != "forebay_note"):
        more = " " + json.dumps(e["metadata"]) if e["metadata"] else ""
        lines.append(f"{e['key']} {e['time_ms']} {json.dumps(e['value'])}{more}\n")
    return "".join(lines)


@pytest.mark.promise("TRN-50")
def test_a_log_has_these_lines() -> None:
    text = mllog.text(made_up())
    assert short(text) == GOLDEN
    assert text.splitlines()[0].startswith("# MLPerf-style, unverified: ") and text.splitlines()[1] == FIRST
    kinds = {e["key"]: e["event_type"] for e in (json.loads(line[9:]) for line in text.splitlines()[1:])}
    assert {kinds[key] for key in ("init_start", "run_start", "block_start", "eval_start")} == {"INTERVAL_START"}
    assert {kinds[key] for key in ("init_stop", "run_stop", "block_stop", "eval_stop")} == {"INTERVAL_END"}


@pytest.mark.promise("TRN-50")
def test_a_run_that_ended_earlier_is_aborted_and_its_last_block_is_there() -> None:
    lines = short(mllog.text(made_up(samples_to_target=None, samples=3072, cache="any"))).splitlines()
    assert "cache_clear 1000 false" in lines and '"status": "aborted"' in lines[-1]
    assert lines[-3:-1] == [
        'block_start 8250 null {"first_epoch_num": 0.5, "samples_count": 2048, "epoch_count": 0.25}',
        'block_stop 8260 null {"first_epoch_num": 0.5, "samples_count": 2048}',
    ]
    for damage in ({"clock": {}}, {"data": {}}, {"evaluations": [{}]}, {"optimizer": "x"}):
        with pytest.raises(RequestError, match="a run of this version"):
            mllog.text(made_up(**damage))


def of_quality(model: str, **more: Any) -> dict[str, Any]:
    """A run of `--quality` of one of the models that are trained for speed."""
    optimizer = "Adam" if model == "ssd" else "AdamW"
    data = {"folder": "/d", "seed": 0, "rows": 4096, "table_rows": None, "evaluation_rows": 100, "sources": {"name": "texts"}}
    reached = [{"samples": 2048, "quality": 0.72, "seconds": 0.25, "began_s": 3.0}]
    return made_up(model=model, optimizer=optimizer, learning_rate=1e-4, data=data, evaluations=reached, **more)


@pytest.mark.promise("TRN-50")
@pytest.mark.parametrize(("model", "benchmark"), [("bert", "bert"), ("ssd", "ssd"), ("lora", "llama2_70b_lora")])
def test_a_run_on_real_data_is_logged_as_its_benchmark(model: str, benchmark: str) -> None:
    text = mllog.text(of_quality(model))
    lines = short(text).splitlines()
    assert f'submission_benchmark 1000 "{benchmark}"' in lines and "the network is narrow, on other data" in text.splitlines()[0]
    assert 'eval_accuracy 8250 0.72 {"samples_count": 2048, "epoch_num": 0.5}' in lines
    assert "opt_base_learning_rate 1000 0.0001" in lines
    assert ("opt_adamw_weight_decay 1000 0.01" in lines) == (model != "ssd")
    points, left = mllog.rcp([of_quality(model) | {"id": str(n)} for n in range(1)])
    assert not points and "1 of 3 seeds" in left[0]
    (point,) = mllog.rcp([of_quality(model, seed=n) for n in range(3)])[0].values()
    counted = {"samples to converge": [2048] * 3} if model == "lora" else {"Epochs to converge": [0.5] * 3}
    assert point == {**point, "Benchmark": benchmark, **counted}


@pytest.mark.promise("TRN-50")
@pytest.mark.parametrize(("model", "found"), [("diffusion", "ask for FID and CLIP"), ("resnet", "has no benchmark that resnet")])
def test_a_model_that_has_no_such_log_is_refused_with_the_reason(model: str, found: str) -> None:
    with pytest.raises(RequestError, match=found):
        mllog.asked("log.txt", model, True)


@pytest.mark.long
@pytest.mark.promise("TRN-50")
def test_the_toy_writes_a_log_that_calls_it_toy(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("train", "toy", "--dir", "d", "--rows", "2048", "--samples", "1024", "--peak-seconds", "0.05", "-q")
    assert typed(capsys, *words, "--mllog", "log.txt", "-o", "run.json", "--weights", "w")[0] == 0
    weights = SafetensorsFile("w")
    assert weights.tensors["top2"].shape == (32, 1) and weights.tensors["vectors"].dtype == "F32"
    text = Path("log.txt").read_text()
    assert text == mllog.text(json.loads(Path("run.json").read_text()))
    assert '"submission_benchmark", "value": "toy"' in text and '"MLPerf-style, unverified"' in text
    for more, said in ((("--mllog", "log.txt"), "is there already"), (("--mllog", "no/x"), "no folder"),
                       (("--weights", "log.txt"), "is there already"), (("--weights", "no/x"), "no folder"),
                       (("--weights", "w", "--seeds", "2"), "is one run's"),
                       (("--mllog", "x", "--target-auc", "none"), "a log has evaluations")):  # fmt: skip
        code, _, err = typed(capsys, *words, *more)
        assert code == 2 and said in err
    assert typed(capsys, *words, "--seeds", "2", "--mllog", "package")[0] == 0
    found = sorted(str(p.relative_to("package")) for p in Path("package").rglob("*") if p.is_file())
    assert [name.rsplit("/", 2)[-2:] for name in found[:2]] == [["toy", "result_0.txt"], ["toy", "result_1.txt"]]
    assert found[2].startswith("systems/") and json.loads((Path("package") / found[2]).read_text())["division"] == "open"


@pytest.mark.promise("TRN-51")
def test_runs_over_seeds_become_reference_points(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runs = [made_up(seed=n, samples_to_target=1024 * (1 + n % 2)) for n in range(4)]
    runs += [made_up(seed=n, batch=1024, samples_to_target=None if n else 512) for n in range(3)]
    runs += [made_up(seed=1, batch=2048), made_up(model="toy")]
    points, left = mllog.rcp(runs)
    (point,) = points.values()
    assert list(points) == ["dlrm_dcnv2_forebay_512_0.005"] and point["Epochs to converge"] == [0.25, 0.5, 0.25, 0.5]
    assert point["BS"] == 512 and point["Creator"] == mllog.LABEL and point["Hyperparams"]["opt_name"] == "adagrad"
    assert any("seed 1 never reached it" in why for why in left) and any("1 of 3 seeds" in why for why in left)
    rest = {"schema": "forebay.run/1", "cache": {}, "path": {"ran": "host"}, "job": {"io_bytes": 912}}
    whole = [{**r, **rest, "result": {"throughput_gib_s": 1.0}, "id": str(n)} for n, r in enumerate(runs)]
    Path("runs.jsonl").write_text("".join(json.dumps(r) + "\n" for r in whole))
    code, out, _ = typed(capsys, "train", "check", "runs.jsonl", "--rcp", "rcp.json")
    assert code == 0 and json.loads(Path("rcp.json").read_text()) == points and "left out: " in out and mllog.LABEL in out
    code, _, err = typed(capsys, "train", "check", "runs.jsonl", "--rcp", "rcp.json")
    assert code == 2 and "isn't overwritten" in err
    Path("toy.json").write_text(json.dumps(whole[-1]))
    code, _, err = typed(capsys, "train", "check", "toy.json", "--rcp", "other.json")
    assert code == 2 and "is no benchmark of training 4.1.0" in err and not Path("other.json").exists()
