"""Plans of the models that `forebay train` and `forebay infer` run: who feeds them, and whether faster drives change anything."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import fake_engine
import pytest
from click.testing import CliRunner
from forebay.errors import RequestError
from forebay.infer import data as inference
from forebay.infer import rules
from forebay.plan import catalogue, explore, models, verb
from forebay.plan.planner import published
from forebay.plan.system import make
from forebay.train import forms, supply
from forebay.units import GIB

TRAINED = ("bert", "lora", "diffusion", "ssd", "resnet")
INFERRED = ("infer-resnet50", "infer-bert", "infer-dlrm")


def plan(*arguments: object) -> dict[str, Any]:
    done = CliRunner().invoke(verb.command, [*(str(a) for a in arguments), "--json"], standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return json.loads(done.stdout)


def refused(*arguments: object) -> str:
    with pytest.raises(RequestError) as found:
        plan(*arguments)
    return f"{found.value.asked}: {found.value.found}; {found.value.next}"


def run(kind: str, model: str, peak: float, size: int, gpu: str = "NVIDIA H200", **more: Any) -> dict[str, Any]:
    part = {
        "model": model, "batch": 32, "device": "cuda:0", "peak_samples_per_s": peak, "demand_gib_s": peak * size / GIB,
        "peak_samples_per_s_ci95": [0.99 * peak, 1.01 * peak], "supply": {"gpus": 8}, "samples_per_s": 0.4 * peak, **more,
    }  # fmt: skip
    record = fake_engine.record()
    return {**record, kind: part, "environment": {**record["environment"], "gpus": [{"name": gpu}]}}


def written(path: Path, *records: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.mark.promise("PLN-24")
def test_a_small_need_is_met_by_any_drive_and_the_answer_says_that_faster_ones_change_nothing() -> None:
    row = plan("run", "--drive", "D3-S4520", "--workload", "bert")
    said = row["decision"]
    assert said.startswith("bert needs 4 MB/s a GPU: one D3-S4520 feeds 8 H100s; ") and "faster drives change nothing" in said
    assert row["au_pct"] == pytest.approx(100, abs=0.1) and row["query"]["accelerators"] == 8
    assert row["throughput_gib_s"] == pytest.approx(8 * 4e6 / GIB, rel=1e-3)
    # As many as the drive's bytes suffice for, at nine tenths of the rate.
    share, _ = supply.efficiency()
    most = catalogue.drive("D3-S4520").seq_read_mbps * share / (0.9 * 4)
    assert row["accelerators_max"] == pytest.approx(most, rel=0.02)
    reported = {a["name"]: a for a in row["assumed"]}
    assert "published" in reported["workload"]["why"] and "--samples-per-s" in reported["workload"]["flags"]
    assert reported["accelerators"]["flags"][0] == "--accelerators" and "of the sheet's rate" in reported["drives"]["why"]
    assert row["need"] == {
        "mb_s": 4.0, "samples_per_s": pytest.approx(4e6 / 4712), "sample_bytes": 4712, "load_bytes": None,
        "source": reported["workload"]["why"],
    }  # fmt: skip


@pytest.mark.long
@pytest.mark.promise("PLN-24")
def test_a_need_that_drives_do_not_meet_is_said_with_what_more_would_bring() -> None:
    row = plan("run", "--drive", "D3-S4520", "--drives", "4", "--workload", "resnet")
    share, _ = supply.efficiency()
    fed = 4 * catalogue.drive("D3-S4520").seq_read_mbps * share
    assert row["au_pct"] == pytest.approx(100 * fed / (8 * 598), rel=0.01) and row["bottleneck"] == "storage"
    assert "and 90 % are asked for" in row["decision"] and "times as much" in row["decision"]
    enough = plan("recommend", "--workload", "resnet", "--accelerators", "8", "--drive", "D3-S4520,D7-PS1010")
    assert enough["choices"][0]["drive"] == "D7-PS1010" and enough["choices"][0]["drives"] == 1
    for choice in enough["choices"]:
        again = plan(*shlex.split(choice["command"])[2:])
        assert again["au_pct_p10"] >= 90 and again["query"]["accelerators"] == 8
    many = plan("recommend", "--workload", "resnet", "--accelerators", "64")["choices"][0]
    assert many["hosts"] == 8 and many["drives_per_host"] == 1
    # Beyond as many hosts as are tried they have more GPUs each.
    most = plan("recommend", "--workload", "bert", "--accelerators", "100000", "--drive", "D7-PS1010")
    assert most["choices"][0]["hosts"] == 256


@pytest.mark.promise("PLN-24")
def test_the_sizes_are_those_that_train_and_infer_read() -> None:
    assert {name: models.TABLE[name].sample_bytes for name in TRAINED} == {n: forms.form(n).row_bytes for n in TRAINED}
    assert set(models.TABLE) == {*TRAINED, *INFERRED, "gnn"} and set(forms.NAMES) == set(TRAINED)
    for name in INFERRED:
        model, plain = models.TABLE[name], name.removeprefix("infer-")
        assert (model.sample_bytes, model.samples) == (inference.row_bytes(plain), rules.MODELS[plain].samples)


@pytest.mark.promise("PLN-24")
def test_a_graph_loads_once_and_trains_from_memory() -> None:
    one, four = (plan("run", "--drive", "D7-PS1010", "--drives", n, "--workload", "gnn") for n in (1, 4))
    assert one["load_s"] == pytest.approx(4 * four["load_s"]) and one["load_s_p10"] < one["load_s"] < one["load_s_p90"]
    share, _ = supply.efficiency()
    assert one["load_s"] == pytest.approx(547_306_935 * 2048 / (catalogue.drive("D7-PS1010").seq_read_mbps * 1e6 * share))
    assert "drives change nothing but the load" in one["decision"]
    half = plan("run", "--drive", "D7-PS1010", "--workload", "gnn", "--dataset", one["need"]["load_bytes"] / GIB / 2)
    assert half["load_s"] == pytest.approx(one["load_s"] / 2)
    narrow = plan("run", "--drive", "D7-PS1010", "--drives", "4", "--workload", "gnn", "--link", "5")
    assert narrow["bottleneck"] == "link" and narrow["throughput_gib_s"] == pytest.approx(5)
    choice = plan("recommend", "--workload", "gnn", "--seconds", "30", "--drive", "D7-PS1010")["choices"][0]
    again = plan(*shlex.split(choice["command"])[2:])
    assert again["load_s_p90"] <= 30 < plan("run", "--drive", "D7-PS1010", "--drives", "3", "--workload", "gnn")["load_s_p90"]


@pytest.mark.promise("PLN-24")
def test_inference_depends_on_drives_by_where_its_samples_are() -> None:
    base = ("run", "--drive", "D7-PS1010", "--workload", "infer-resnet50")
    one, eight = (plan(*base, "--drives", n) for n in (1, 8))
    assert one["samples_per_s"] == eight["samples_per_s"] == pytest.approx(8 * 11_500)
    assert one["load_s"] == pytest.approx(8 * eight["load_s"]) and "whatever the drives" in one["decision"]
    # The lesser of the GPUs' peak and supply ÷ bytes; published beside it: 8,861 of a GPU from an eighth of a drive.
    cold, plenty = (plan(*base, "--mode", "cold", "--drives", n) for n in (1, 8))
    assert cold["samples_per_s"] == pytest.approx(8 * 8_861, rel=0.02) and cold["au_pct"] < 90
    assert plenty["samples_per_s"] == pytest.approx(8 * 11_500, rel=0.01)
    base = ("run", "--drive", "D7-PS1010", "--workload", "infer-bert", "--mode", "coldstart", "--drives")
    start = [plan(*base, n) for n in (1, 8)]
    # Measured: 1.30 and 0.36 s.
    assert [row["start_s"] for row in start] == [pytest.approx(1.30, rel=0.1), pytest.approx(0.36, rel=0.1)]
    never = plan("recommend", "--workload", "infer-bert", "--mode", "coldstart", "--seconds", "0.2")
    assert not never["choices"] and "0.25 s of it depend on no drive" in never["decision"]


@pytest.mark.long
@pytest.mark.promise("PLN-24")
def test_own_runs_say_what_a_gpu_takes_and_flags_outrank_them(tmp_path: Path) -> None:
    file = written(tmp_path / "b.jsonl", run("train", "bert", 249.0, 4712), run("train", "bert", 251.0, 4712))
    row = plan("run", "--drive", "D3-S4520", "--runs", file)
    assert row["query"]["workload"] == "bert" and row["need"]["samples_per_s"] == pytest.approx(250)
    assert "8 × NVIDIA H200" in row["decision"] and row["need"]["source"] == "as 2 runs of yours measured"
    said = plan("run", "--drive", "D3-S4520", "--runs", file, "--samples-per-s", "1000")
    assert said["need"]["mb_s"] == pytest.approx(4.712) and said["need"]["source"] == "as you say"
    bought = plan("recommend", "--workload", "bert", "--runs", file, "--accelerators", "8", "--drive", "D3-S4520,D7-PS1010")
    assert {c["drives"] for c in bought["choices"]} == {1}
    assert any(a["why"] == "as 2 runs of yours measured" for a in bought["assumed"])
    assert "--samples-per-s 250" in bought["choices"][0]["command"]
    assert "the runs train bert" in refused("run", "--drive", "D3-S4520", "--runs", file, "--workload", "ssd")
    cpu = written(tmp_path / "c.jsonl", run("train", "bert", 2.0, 4712, device="cpu"))
    assert any("say nothing about a GPU" in text for text in plan("run", "--drive", "D3-S4520", "--runs", cpu)["warnings"])
    # A model of the benchmark's that isn't planned by itself: a job, at the share of drives' rate that training got.
    clicks = written(tmp_path / "d.jsonl", run("train", "dlrm", 1.07e6, 912))
    found = plan("run", "--drive", "D7-PS1010", "--runs", clicks)
    share, _ = supply.efficiency()
    most = catalogue.drive("D7-PS1010").seq_read_mbps * 1e6 * share / (0.9 * 1.07e6 * 912)
    assert found["query"]["workload"] == "job" and found["accelerators_max"] == int(most)
    assert "planned in minutes" in refused("run", "--drive", "D7-PS1010", "--runs", clicks, "--workload", "dlrm")
    graph = written(tmp_path / "g.jsonl", run("train", "gnn", 5e4, 40_000, graph={"feature_bytes": 10**11}))
    assert plan("run", "--drive", "D7-PS1010", "--runs", graph)["need"]["load_bytes"] == 10**11
    start = {"weights_bytes": 10**9, "coldstart": {"total_s": 2.0, "read_s": 1.5}}
    cold = written(tmp_path / "i.jsonl", run("infer", "bert", 1700.0, 4608, **start))
    own = plan("run", "--drive", "D7-PS1010", "--runs", cold, "--mode", "coldstart", "--accelerators", "1")
    assert own["need"]["load_bytes"] == 10**9 and own["start_s"] > 0.5
    both = written(tmp_path / "x.jsonl", run("train", "bert", 249.0, 4712), run("infer", "bert", 1700.0, 4608))
    assert "of training and of inference" in refused("run", "--drive", "D7-PS1010", "--runs", both)
    assert published().demand is None


@pytest.mark.promise("PLN-24")
def test_own_runs_of_a_drive_beside_them_are_its_rate(tmp_path: Path) -> None:
    drive = []
    for workers in (1, 2, 4):
        record = fake_engine.record()
        record["job"] |= {"workers": workers, "depth": 8}
        moved = int(2 * workers / (workers + 1) * record["result"]["seconds"] * GIB)
        record["result"] |= {"throughput_gib_s": 2 * workers / (workers + 1), "bytes": moved, "read_bytes": moved}
        record["cache"] |= {"device_bytes": moved, "devices": {"nvme0n1": moved}}
        drive.append(record)
    file = written(tmp_path / "m.jsonl", run("train", "resnet", 4000.0, 150_536), *drive)
    slow = plan("run", "--drive", "D7-PS1010", "--runs", file)
    fast = plan("run", "--drive", "D7-PS1010", "--workload", "resnet", "--samples-per-s", "4000")
    assert slow["accelerators_max"] < fast["accelerators_max"] / 3 and "accelerators_max" in slow["own_runs"]["figures"]


@pytest.mark.promise("PLN-24")
def test_every_model_is_in_ranges_tables_and_on_the_page() -> None:
    found = plan("whatif", "--drive", "D7-PS1010", "--vary", "workload=" + ",".join((*TRAINED, "gnn", *INFERRED)))
    assert [p["query"]["workload"] for p in found["points"]] == [*TRAINED, "gnn", *INFERRED]
    rows = plan("compare", "--drive", "D7-PS1010", "--drives", "1,2", "--workload", "gnn")
    assert rows["by"] == "load_s" and rows["rows"][0]["load_s"] > rows["rows"][-1]["load_s"]
    modes = plan("whatif", "--drive", "D7-PS1010", "--workload", "infer-bert", "--vary", "mode=ram,cold,coldstart")["points"]
    assert ["load_s" in modes[0], "accelerators_max" in modes[1], "start_s" in modes[2]] == [True] * 3
    one = make({"drive": "D7-PS1010"}, [])
    choices = explore.Choices(["D7-PS1010"], ["gds"], ["enough"], ["io"], hosts=(1,))
    page = explore.emulation(published(), one, choices, "bert", {})
    row = plan("run", "--drive", "D7-PS1010", "--workload", "bert")
    assert page["greatest"][0][0] == row["accelerators_max"] and page["measure"] == "share of the full rate"
    assert set(explore.MODELS) == {*TRAINED, *INFERRED}


@pytest.mark.promise("PLN-24")
def test_training_is_simulated_and_a_load_is_not() -> None:
    row = plan("run", "--drive", "D3-S4520", "--drives", "4", "--workload", "resnet", "--simulate", "--hours", "0.02")
    job = row["simulation"]["jobs"][0]
    assert job["au_pct"]["value"] == pytest.approx(row["au_pct"], rel=0.02)
    assert "loads first" in refused("run", "--drive", "D7-PS1010", "--workload", "gnn", "--simulate")
    beside = ("--simulate", "--hours", "0.02", "--job")
    mixed = plan("run", "--drive", "D7-PS1010", "--workload", "unet3d", *beside, "workload=bert,accelerators=4")
    assert mixed["simulation"]["jobs"][1]["throughput_gib_s"]["value"] == pytest.approx(4 * 4e6 / GIB, rel=0.05)
    assert "loads first" in refused("run", "--drive", "D7-PS1010", "--workload", "unet3d", *beside, "workload=gnn")


@pytest.mark.promise("PLN-24")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--workload", "bert", "--accelerator", "b200"), "at a rate that nobody published"),
        (("--workload", "bert", "--mode", "cold"), "is of an inference, not of bert"),
        (("--workload", "gnn", "--accelerators", "4"), "features are loaded once"),
        (("--workload", "gnn", "--samples-per-s", "4"), "changes nothing"),
        (("--workload", "infer-bert", "--mode", "cool"), "one of ram, cold, coldstart"),
        (("--workload", "infer-bort"), "infer-bert"),
        (("--workload", "bert", "--rules", "v1.0"), "are for emulated workloads"),
        (("--workload", "bert", "--samples-per-s", "0"), "is not a number above 0"),
    ],
)
def test_what_a_model_has_no_use_for_is_refused(words: tuple[str, ...], said: str) -> None:
    assert said in refused("run", "--drive", "D7-PS1010", *words)


@pytest.mark.promise("PLN-24")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--workload", "gnn", "--accelerators", "4"), "is planned in seconds; --seconds 30"),
        (("--workload", "unet3d", "--seconds", "4"), "isn't planned in seconds"),
        (("--seconds", "4", "--gib-s", "4"), "2 were given"),
        (("--workload", "bert", "--gib-s", "3"), "bert is planned in accelerators"),
    ],
)
def test_a_target_that_does_not_suit_is_refused(words: tuple[str, ...], said: str) -> None:
    assert said in refused("recommend", *words)


@pytest.mark.promise("PLN-24")
def test_another_gpu_is_planned_with_its_own_rate() -> None:
    row = plan("run", "--drive", "D7-PS1010", "--workload", "bert", "--accelerator", "b200", "--samples-per-s", "3000")
    assert "8 B200s" in row["decision"] and row["need"]["mb_s"] == pytest.approx(3000 * 4712 / 1e6)
