"""`forebay plan run --simulate`: against the formulas where both know the answer, and what only a simulation can say."""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import time
from pathlib import Path

import pytest
from forebay import run as jobs
from forebay import simulate as engine
from forebay.errors import RequestError
from forebay.plan import answer, flow, system
from forebay.plan.planner import published
from forebay.plan.simulation import fleet, run, scenario

SEED = 20251121
UNET = ("--drive", "D7-PS1010", "--workload", "unet3d")


def simulated(settings: dict, flags: dict | None = None) -> dict:
    found = system.make(settings, [])
    asked = scenario.make_scenario(found, {}, flags or {}, [], "test")
    return run.simulate(published(), asked, engine.play)


def document(forebay, *arguments) -> dict:
    done = forebay("plan", "run", *arguments, "--simulate", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["simulation"]


def any_reader(draw: random.Random) -> tuple[dict, dict]:
    remote = draw.random() < 0.5
    settings = {
        "drive": draw.choice(["D7-PS1010", "D7-P5520", "D5-P5336"]),
        "drives": draw.randint(1, 8),
        "io_size": draw.choice([4096, 65536, 131072, 1 << 20, 4 << 20]),
        "workers": draw.randint(1, 64),
        "depth": draw.choice([1, 2, 8]),
        "path": draw.choice(["gds", "cpu"]),
    }
    if remote:
        settings |= {"location": "remote", "queues": draw.randint(1, 31)}
    if draw.random() < 0.5:
        settings["link"] = draw.uniform(5.0, 60.0)
    return settings, {"hosts": draw.choice([1, 2, 7, 40]), "hours": 0.01}


def any_trainer(draw: random.Random) -> tuple[dict, dict]:
    settings = {
        "drive": draw.choice(["D7-PS1010", "D7-P5520", "D5-P5336"]),
        "drives": draw.randint(1, 8),
        "workload": draw.choice(["unet3d", "resnet50", "cosmoflow"]),
        "accelerator": draw.choice(["h100", "a100"]),
        "accelerators": draw.randint(1, 12),
        # Process slots enough: they aren't simulated, and the formula knows them.
        "threads": 4096,
    }
    return settings, {"hosts": draw.choice([1, 3, 16]), "hours": 0.05 if settings["workload"] != "cosmoflow" else 0.005}


@pytest.mark.long
@pytest.mark.promise("PLN-11")
def test_without_jitter_reads_are_what_the_formula_says() -> None:
    draw = random.Random(SEED)
    for _ in range(24):
        settings, flags = any_reader(draw)
        job = simulated(settings, flags)["jobs"][0]
        ratio = job["throughput_gib_s"]["value"] / job["formula"]["throughput_gib_s"]
        assert abs(ratio - 1) < 0.005, (SEED, settings, flags, ratio)


@pytest.mark.long
@pytest.mark.promise("PLN-11")
def test_without_jitter_au_is_what_the_formula_says() -> None:
    """Within 1 % on the mean; at most 7 % where storage just suffices, where the formula bends and a plan without jitter
    doesn't."""
    draw, off = random.Random(SEED), []
    for _ in range(24):
        settings, flags = any_trainer(draw)
        job = simulated(settings, flags)["jobs"][0]
        off.append(abs(job["au_pct"]["value"] / job["formula"]["au_pct"] - 1))
        assert off[-1] < 0.07, (SEED, settings, flags, job["au_pct"], job["formula"])
    assert statistics.fmean(off) < 0.015, off


@pytest.mark.promise("PLN-11")
@pytest.mark.parametrize("gpus", ["D74H-7U", "D54U-3U"])
def test_without_jitter_dlrm_takes_the_minutes_of_the_formula(gpus: str) -> None:
    """Within 1 % where storage or compute alone limits; where both do the formula bends by up to 5 %."""
    for drive, drives, link in (
        ("D7-PS1010", 1, None), ("D7-PS1010", 8, None), ("D7-PS1010", 4, "25Gb/s"), ("D3-S4520", 3, None), ("D7-P5520", 2, None),
    ):  # fmt: skip
        settings = {"drive": drive, "drives": drives, "workload": "dlrm", "gpus": gpus, "link": link}
        reported = simulated(settings, {"hours": 0.01})
        job, formula = reported["jobs"][0], reported["jobs"][0]["formula"]
        ratio = job["training_time_min"]["value"] / formula["training_time_min"]
        balanced = "balanced" in formula["bottleneck"]
        assert abs(ratio - 1) < (0.05 if balanced else 0.012), (settings, ratio, formula)
        assert job["au_pct"]["value"] == pytest.approx(formula["au_pct"], rel=0.05 if balanced else 0.012)
        expected = {"storage": "drive bandwidth"}.get(formula["bottleneck"], formula["bottleneck"])
        assert balanced or reported["bottleneck"] == expected, (settings, reported["bottleneck"], formula)


def test_jitter_costs_dlrm_and_any_job_minutes_and_utilisation() -> None:
    base = {"drive": "D7-PS1010", "drives": 2, "workload": "dlrm"}
    still, shaken = (simulated(base, {"hours": 0.005, **more})["jobs"][0] for more in ({}, {"jitter": ["compute=0.2"]}))
    assert shaken["training_time_min"]["value"] > 1.1 * still["training_time_min"]["value"]
    own = {**base, "workload": "job", "sample_bytes": 600e3, "samples_per_s": 2500.0, "accelerators": 8}
    job = simulated(own, {"hours": 0.01})["jobs"][0]
    assert job["au_pct"]["value"] == pytest.approx(job["formula"]["au_pct"], rel=0.01)
    few = simulated({**own, "drives": 1, "drive": "D7-P5520"}, {"hours": 0.01})["jobs"][0]
    assert few["au_pct"]["value"] == pytest.approx(few["formula"]["au_pct"], rel=0.07) and few["au_pct"]["value"] < 70


@pytest.mark.long
def test_the_law_is_near_what_following_every_request_gives() -> None:
    """The law of throughput against a drive with the same bandwidth and delay, whose every request is followed in virtual
    time. That drive's service times vary and its requests meet at random; the law's bend is that of measured drives."""
    import numpy as np

    model, draw, off = published().flow, random.Random(SEED), []
    names = [prior.name for prior in model.posterior.priors]
    at = names.index("bandwidth[D7-PS1010]")
    for _ in range(12):
        gib_s, delay_us = draw.uniform(2, 14), draw.uniform(60, 400)
        drives = draw.choice([1, 2, 4])
        # As many at each drive as the law was measured with.
        workers = drives * draw.choice([12, 16, 24, 32, 48, 96])
        log = model.posterior.log.copy()
        log[at : at + 3] = np.log([gib_s, delay_us, 1e-6])
        law = float(np.exp(flow.law(log, flow.Rows([flow.Load("D7-PS1010", 128, workers, drives=drives)], model.names)))[0])
        drive = f"read_mb_s={gib_s * 2**30 / 1e6:.3f}&latency_us={delay_us:.2f}&drives={drives}&channels=16384"
        job = {"sources": [f"model:d7-ps1010?{drive}"], "path": "host", "op": "randread", "io_bytes": 131072}
        job |= {"workers": workers, "depth": 1, "duration_s": 0.5}
        followed = jobs.run(job, command=["test"])["result"]["throughput_gib_s"]
        off.append(law / followed - 1)
        assert -0.05 < off[-1] < 0.2, (SEED, job, law, followed)
    assert statistics.median(map(abs, off)) < 0.07, off


def test_hosts_that_share_drives_get_no_more_than_they_have() -> None:
    shared = {"drive": "D7-PS1010", "drives": 4, "location": "remote", "workload": "unet3d", "accelerators": 4}
    few, many = (simulated(shared, {"hosts": hosts, "hours": 0.05}) for hosts in (1, 16))
    assert few["jobs"][0]["au_pct"]["value"] > 90 > 50 > many["jobs"][0]["au_pct"]["value"]
    assert many["bottleneck"] == "drive bandwidth" and many["utilisation"]["drive bandwidth"] > 0.95


@pytest.mark.long
@pytest.mark.promise("PLN-11")
def test_jitter_costs_more_the_more_hosts_step_together() -> None:
    local = {"drive": "D7-PS1010", "drives": 4, "workload": "unet3d", "accelerators": 4}
    au = [
        simulated(local, {"hosts": hosts, "hours": 0.05, "jitter": ("compute=0.1",)})["jobs"][0]["au_pct"]
        for hosts in (1, 8, 64)
    ]
    assert au[0]["value"] > au[1]["value"] + 3 > au[2]["value"] + 6
    assert all(a["p10"] < a["value"] < a["p90"] for a in au)


@pytest.mark.long
def test_the_same_seed_gives_the_same_and_seeds_are_told(forebay) -> None:
    flags = (*UNET, "--accelerators", "8", "--hours", "0.02", "--hosts", "4", "--jitter", "compute=exponential", "--seeds", "3")
    a, b = document(forebay, *flags, "--seed", "5"), document(forebay, *flags, "--seed", "5")
    for timed in (a, b):
        del timed["wall_s"], timed["simulated_s_per_wall_s"]
    assert a == b and a["seed"] == 5 and a["seeds"] == 3 and a["origin"] == "simulated"
    assert [r["seed"] for r in a["jobs"][0]["runs"]] == [5, 6, 7]
    assert len({r["au_pct"] for r in a["jobs"][0]["runs"]}) == 3
    assert a["jobs"][0]["per_hour"]["steps"] > 0 and len(a["series"]) >= 59


@pytest.mark.promise("PLN-11")
def test_a_drive_that_slows_and_a_job_beside_are_seen_while_they_last(forebay, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(
        '[system]\ndrive = "D7-P5520"\ndrives = 2\nworkers = 64\n[workload]\nworkload = "unet3d"\naccelerators = 8\n'
        "[simulate]\nhours = 0.1\n"
        "[[simulate.fault]]\nkind = \"drive\"\nat = 60\nuntil = 120\nslow = 0.5\n"
        '[[simulate.job]]\nname = "scan"\nworkload = "io"\nworkers = 64\nstart = 180\nstop = 240\n'
    )
    found = document(forebay, plan)
    rate = {round(p["t_s"]): p["gib_s"] for p in found["series"]}
    assert rate[108][0] / rate[54][0] == pytest.approx(0.5, rel=0.03)
    assert rate[168][0] == pytest.approx(rate[54][0], rel=0.03)
    # Two jobs that press alike share the drives.
    assert rate[228][0] < 0.7 * rate[54][0] and rate[228][1] > 0.3 * rate[54][0]
    assert rate[54][1] == rate[300][1] == 0.0
    assert [j["name"] for j in found["jobs"]] == ["unet3d", "scan"]
    assert found["faults"] == [{"kind": "drive", "at": 60.0, "slow": 0.5, "until": 120.0, "drive": 0, "host": 0}]


def test_raid0_stands_still_without_a_drive_and_copies_go_on() -> None:
    base = {"drive": "D7-P5520", "drives": 4, "workers": 64}
    striped = simulated(base, {"hours": 0.1, "fault": ("drive@180",)})
    copied = simulated(base, {"hours": 0.1, "fault": ("drive@180",), "copies": True})
    whole = striped["jobs"][0]["formula"]["throughput_gib_s"]
    assert striped["jobs"][0]["throughput_gib_s"]["value"] == pytest.approx(whole / 2, rel=0.02)
    assert copied["jobs"][0]["throughput_gib_s"]["value"] == pytest.approx(whole * 7 / 8, rel=0.03)
    assert any("RAID 0" in text for text in striped["warnings"])


@pytest.mark.promise("PLN-11")
def test_a_host_that_goes_is_waited_for_or_left_behind() -> None:
    base = {"drive": "D7-PS1010", "drives": 4, "workload": "unet3d", "accelerators": 2}
    gone, back, without = (
        simulated(base, {"hours": 0.1, "hosts": 4, "fault": (f"host@120{after}",)})["jobs"][0]
        for after in ("", ":back=240,host=3", ":without=240,host=3")
    )
    assert gone["stalled_s"] == pytest.approx(240, abs=5) and gone["au_pct"]["value"] < 36
    # Of six minutes all four lose two; or three of them do, and the fourth is done after two.
    for job, share in ((back, 16 / 24), (without, 14 / 20)):
        assert job["au_pct"]["value"] == pytest.approx(98.9 * share, abs=1.5)
    assert without["per_hour"]["samples"] < back["per_hour"]["samples"]


@pytest.mark.promise("PLN-11")
def test_a_simulated_hour_of_a_thousand_accelerators_takes_under_a_minute() -> None:
    """A tenth of an hour in ten times six seconds of processor time, in a build without optimisation; jitter included.
    What it takes is bench/plan_simulate.py's to say."""
    base = {"drive": "D7-PS1010", "drives": 4, "workload": "unet3d", "accelerators": 8}
    began = time.process_time()
    found = simulated(base, {"hosts": 125, "hours": 0.1, "jitter": ("compute=0.05",), "seeds": 1})
    assert found["jobs"][0]["accelerators"] == 1000 and found["simulated_s_per_wall_s"] > 0
    assert time.process_time() - began < 60, found["wall_s"]


@pytest.mark.promise("PLN-11")
def test_ctrl_c_leaves_what_was_simulated(monkeypatch, capfd) -> None:
    """A real signal, once the engine has told of some of it."""
    from forebay.plan.verb import command

    play, sent = engine.play, []

    def struck(fleet, observer):
        def reported(share):
            observer(share)
            if share > 0 and not sent:
                sent.append(share)
                os.kill(os.getpid(), signal.SIGINT)

        return play(fleet, reported)

    monkeypatch.setattr(engine, "play", struck)
    asked = (*UNET, "--accelerators", "4000", "--simulate", "--hosts", "500", "--hours", "8000", "--seeds", "3", "--json")
    code = command.main(["run", *asked], standalone_mode=False)
    out, said = capfd.readouterr()
    found = json.loads(out)["simulation"]
    assert code == 130 and "stopping" in said
    assert found["interrupted"] and 0 < found["hours"] < found["hours_asked"] and found["seeds"] == 1
    assert found["jobs"][0]["au_pct"]["value"] > 0


def test_what_the_engine_or_the_command_refuses_ends_with_2(forebay) -> None:
    for more, said in ((("--dataset", "0.001"), "doesn't fill one step"), (("--fault", "drive"), "has no time")):
        done = forebay("plan", "run", *UNET, "--simulate", *more)
        assert done.returncode == 2 and "Traceback" not in done.stderr and "try:" in done.stderr, done.stderr
        assert said in done.stderr, done.stderr
    with pytest.raises(RequestError):
        engine.play({"seed": 1})


def test_flags_of_a_simulation_need_one(forebay) -> None:
    done = forebay("plan", "run", *UNET, "--hours", "3")
    assert done.returncode == 2 and "--simulate" in done.stderr


def test_what_is_left_of_drives_follows_the_faults() -> None:
    slow = scenario.Fault("drive", 10.0, slow=0.5, until=20.0)
    gone = scenario.Fault("drive", 15.0, drive=1)
    both = [slow, gone]
    assert [fleet.good_for(both, 4, t, False) for t in (5.0, 10.0, 15.0, 20.0)] == [4.0, 2.0, 0.0, 0.0]
    assert [fleet.good_for(both, 4, t, True) for t in (5.0, 10.0, 15.0, 20.0)] == [4.0, 3.5, 2.5, 3.0]


@pytest.mark.long
def test_samples_of_their_own_sizes_hold_steps_up_where_storage_just_suffices() -> None:
    base = {"drive": "D7-P5520", "link": 2.9, "workload": "unet3d", "accelerators": 1, "dataset": 20000.0}
    alike, own = (
        simulated(base, {"hosts": 16, "hours": 0.2, "sizes": sizes, "seeds": 2})["jobs"][0] for sizes in ("mean", "trace")
    )
    assert own["au_pct"]["value"] < alike["au_pct"]["value"] - 0.5
    assert own["runs"][0]["au_pct"] != own["runs"][1]["au_pct"] and alike["runs"][0]["au_pct"] == alike["runs"][1]["au_pct"]


def test_what_is_waited_for_most_is_named_where_nothing_is_full() -> None:
    base = {"drive": "D7-PS1010", "drives": 4, "workload": "unet3d", "accelerators": 8}
    found = simulated(base, {"hosts": 32, "hours": 0.02, "jitter": ("compute=0.1",), "seeds": 1})
    assert found["bottleneck"] == "barriers" and found["jobs"][0]["formula"]["bottleneck"] == "benchmark overhead"
    assert sum(found["jobs"][0]["time_pct"].values()) == pytest.approx(100, abs=2)


def any_saver(draw: random.Random) -> tuple[dict, dict]:
    settings = {
        "drive": draw.choice(["D7-PS1010", "D5-P5336", "D3-S4520"]),
        "drives": draw.randint(1, 64),
        "workload": draw.choice(["llama3-8b", "llama3-70b"]),
    }
    if draw.random() < 0.5:
        settings |= {"location": "remote", "queues": draw.randint(1, 31)}
    if draw.random() < 0.5:
        settings["link"] = draw.uniform(5.0, 60.0)
    return settings, {"hosts": draw.choice([1, 2, 7, 40]), "hours": 40.0}


@pytest.mark.promise("PLN-11")
def test_without_faults_checkpoints_take_the_seconds_of_the_formula() -> None:
    draw, seen = random.Random(SEED), set()
    for _ in range(24):
        settings, flags = any_saver(draw)
        reported = simulated(settings, flags)
        job = reported["jobs"][0]
        for what, done in (("checkpoint_write_s", "written"), ("checkpoint_read_s", "read")):
            assert job[done] == job["asked"][done] == 10, settings
            assert job[what]["value"] == pytest.approx(job["formula"][what], rel=0.01), (settings, flags)
        seen.add(job["formula"]["bottleneck"].split(":")[0])
    assert len(seen) > 2, seen


@pytest.mark.promise("PLN-11")
def test_a_checkpoint_alone_takes_what_the_plan_says_and_beside_readers_longer() -> None:
    settings = {"drive": "D7-PS1010", "drives": 2, "workload": "llama3-8b"}
    planned = answer.answer(published(), system.make(settings, []))
    alone = simulated(settings)["jobs"][0]
    beside = simulated(settings, {"job": ("workload=io,workers=64",)})["jobs"]
    for what in ("checkpoint_write_s", "checkpoint_read_s"):
        assert alone[what]["value"] == pytest.approx(planned[what], rel=0.01)
        assert beside[0][what]["value"] > 1.2 * alone[what]["value"]
    assert "checkpoint_write_s" not in beside[1] and beside[1]["throughput_gib_s"]["value"] > 0


@pytest.mark.promise("PLN-11")
def test_a_host_that_goes_while_it_writes_is_waited_for(forebay) -> None:
    asked = ("--drive", "D7-PS1010", "--drives", "4", "--workload", "llama3-8b", "--hosts", "4")
    reported = document(forebay, *asked, "--fault", "host@0.5:back=100")
    job = reported["jobs"][0]
    first, *others = job["checkpoint_write_s_all"]
    assert first > 99 and max(others) < 0.1 * first and job["written"] == 10
    done = forebay("plan", "run", "--drive", "D7-PS1010", "--workload", "llama3-405b", "--simulate", "--hours", "0.5")
    assert done.returncode == 0 and "of 10 written" in done.stdout and "0 of 10 read" in done.stdout, done.stdout


@pytest.mark.long
@pytest.mark.promise("PLN-11")
def test_points_of_a_whatif_are_played_beside_their_formulas(forebay) -> None:
    vary = ("whatif", *UNET, "--accelerators", "4", "--vary", "drives=1,4")
    done = forebay("plan", *vary, "--simulate", "--hours", "0.02", "--json")
    assert done.returncode == 0, done.stderr
    few, many = json.loads(done.stdout)["points"]
    assert few["simulated_au_pct"] == pytest.approx(few["au_pct"], rel=0.07)
    assert many["simulated_au_pct"] > 90 and few["simulated_gib_s"] <= many["simulated_gib_s"]
    shown = forebay("plan", *vary, "--simulate", "--hours", "0.02")
    assert "simulated AU %" in shown.stdout and "simulated limit" in shown.stdout
    assert forebay("plan", *vary, "--hours", "0.02").returncode == 2
    assert forebay("plan", "whatif", *UNET, "--page", "x.html", "--simulate").returncode == 2
