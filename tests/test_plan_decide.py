"""What a buyer acts on: own runs outrank tables, what isn't given is a result, and no two answers contradict each other."""

from __future__ import annotations

import itertools
import json
import random
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from forebay.errors import RequestError
from forebay.plan import (
    answer,
    assume,
    calibrate,
    catalogue,
    decide,
    flow,
    saved,
    show,
    system,
    training,
    verb,
    whatif,
)
from forebay.plan.planner import Planner, published
from forebay.sweep import vary
from properties import parametrized

SEED = 20261128
# Sizes in KiB and workers of runs that a drive's bandwidth limits.
BUSY = [(128, 32), (256, 32), (512, 24), (1024, 16), (1024, 32), (1024, 64), (4096, 24)]
TRAININGS = [
    ("unet3d", "h100"), ("resnet50", "h100"), ("cosmoflow", "h100"), ("unet3d", "a100"), ("unet3d", "b200"),
    ("retinanet", "b200"), ("flux", "mi355"), ("resnet50", "a100"),
]  # fmt: skip


def plan(*arguments: object) -> tuple[dict[str, Any], int]:
    """The document, and the exit code."""
    done = CliRunner().invoke(verb.command, [*(str(a) for a in arguments), "--json"], standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return json.loads(done.stdout), done.return_value


def text(*arguments: object) -> str:
    done = CliRunner().invoke(verb.command, [str(a) for a in arguments], standalone_mode=False)
    assert done.exception is None, done.exception
    return " ".join(done.stdout.split())


def record(kib: int, workers: int, rate: float) -> str:
    job = {"io_bytes": kib << 10, "workers": workers, "depth": 1, "op": "read"}
    result = {"throughput_gib_s": rate, "seconds": 10.0}
    return json.dumps({"job": job, "result": result, "environment": {"host": "mine"}, "path": {"ran": "gds"}})


def passing(gib_s: float, ask: training.Ask) -> int:
    """Accelerators that reach their AU where storage delivers so much and nothing else costs time, as with `emulate --supply`."""
    return int(gib_s * 1024 / (ask.mibps * ask.least_pct / 100) + 1e-9)


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of a D7-PS1010 that delivers a quarter of its data sheet."""
    found = tmp_path_factory.mktemp("runs") / "mine.jsonl"
    rates = [(128, 32, 3.1), (512, 24, 3.6), (1024, 24, 4.0), (4096, 24, 3.7)]
    found.write_text("\n".join(record(*run) for run in rates))
    return found


@pytest.mark.promise("PLN-19")
@pytest.mark.parametrize(("workload", "most"), [("unet3d", 1), ("resnet50", 22)])
def test_own_runs_decide_every_figure_that_rests_on_the_drives(slow: Path, workload: str, most: int) -> None:
    row, _ = plan("run", "--drive", "D7-PS1010", "--workload", workload, "--runs", slow)
    assert row["accelerators_max"] <= most and row["throughput_gib_s"] < 4.0
    assert {"throughput_gib_s", "accelerators_max", "au_pct"} <= set(row["own_runs"]["figures"])
    said = text("run", "--drive", "D7-PS1010", "--workload", workload, "--runs", slow)
    assert "4 runs of D7-PS1010 on mine" in said and "decide: throughput · " in said and " · accelerators, at most · AU." in said
    # Another drive is planned as ever.
    other, _ = plan("run", "--drive", "D5-P5336", "--workload", workload)
    assert other["own_runs"] is None


@pytest.mark.promise("PLN-19")
def test_own_runs_decide_minutes_checkpoints_and_purchases(slow: Path) -> None:
    base = ("--drive", "D7-PS1010", "--runs", slow)
    minutes, _ = plan("run", *base, "--workload", "dlrm")
    assert minutes["training_time_min"] > 1.5 * plan("run", *base[:2], "--workload", "dlrm")[0]["training_time_min"]
    saved_, _ = plan("run", *base, "--workload", "llama3-8b")
    gib = 104.0
    assert saved_["checkpoint_read_s"] > gib / 4.0 / 1.1 and "checkpoint_write_s" not in saved_["own_runs"]["figures"]
    found, _ = plan("recommend", *base, "--gib-s", "20")
    (choice,) = found["choices"]
    assert choice["drive"] == "D7-PS1010" and 5 <= choice["drives"] <= 8


@pytest.mark.promise("PLN-19")
@pytest.mark.parametrize("draws", [5, pytest.param(20, marks=pytest.mark.long)])
def test_a_slow_disk_never_feeds_more_than_its_rate_does(draws: int) -> None:
    draw = random.Random(SEED)
    names = [d.name for d in catalogue.drives().values()]
    for _ in range(draws):
        sheet, drives = catalogue.drive(draw.choice(names)), draw.choice([1, 1, 2, 4])
        rate, noise = sheet.read_gibps * draw.uniform(0.05, 0.9), draw.choice([0.0, 0.01])
        lines = [record(k, w, rate * (1 + draw.gauss(0, noise))) for k, w in draw.sample(BUSY, draw.randint(2, 6))]
        planner = saved.planner(published(), calibrate.read("\n".join(lines), "mine", sheet.name, None), sheet, [])
        workload, accelerator = draw.choice(TRAININGS)
        asked = system.make({"drive": sheet.name, "workload": workload, "accelerator": accelerator, "drives": drives}, [])
        most = answer.jobs_estimates(planner, [asked])[0]["accelerators_max"].value
        assert most <= passing(rate * 1.01 * drives, asked.ask), (SEED, sheet.name, rate, drives, workload, accelerator)


@pytest.mark.long
@pytest.mark.promise("PLN-20")
def test_what_is_not_given_is_a_result() -> None:
    found, code = plan("recommend", "--accelerators", "8", "--workload", "unet3d")
    best = found["choices"][0]
    # One limit in decision and advice.
    limit = next(part for part in found["decision"].split("; ") if part.endswith((" limits", " limit")))
    assert any(said.startswith(f"balance: {limit}") for said in found["advice"])
    assert code == 0 and (best["drive"], best["hosts"]) == ("D7-PS1010", 1) and best["drives"] <= 4
    found, _ = plan("recommend", "--gib-s", "40")
    assert {c["drive"]: c["drives"] for c in found["choices"]}["D5-P5336"] == 7


@pytest.mark.long
@pytest.mark.promise("PLN-20")
def test_hosts_and_a_job_of_ones_own_are_taken_as_given() -> None:
    job = ("--workload", "job", "--sample-bytes", "150000", "--samples-per-s", "2500")
    found, _ = plan("recommend", "--accelerators", "64", *job)
    assert (found["choices"][0]["drive"], found["choices"][0]["drives"]) == ("D7-PS1010", 2)
    found, _ = plan("recommend", "--accelerators", "8", "--workload", "unet3d", "--hosts", "8")
    assert all(c["hosts"] == 8 and c["drives"] % 8 == 0 for c in found["choices"])


@pytest.mark.promise("PLN-20")
@pytest.mark.parametrize("draws", [1, pytest.param(8, marks=pytest.mark.long)])
def test_a_recommendation_handed_back_meets_its_target(draws: int) -> None:
    """By its command, by its fields, and at the number of accelerators that was asked for."""
    draw = random.Random(SEED)
    for _ in range(draws):
        place: list[object] = ["--location", "remote"] if draw.random() < 0.4 else []
        place += ["--threads", draw.choice([64, 104, 256])] if draw.random() < 0.4 else []
        if draw.random() < 0.6:
            workload, accelerator = draw.choice(TRAININGS)
            asked: list[object] = [*place, "--workload", workload, "--accelerator", accelerator]
            target, key = draw.randint(1, 40), "accelerators_max_p10"
            found, _ = plan("recommend", *asked, "--accelerators", target)
        else:
            asked, target, key = place, draw.randint(1, 100), "throughput_gib_s_p10"
            found, _ = plan("recommend", *asked, "--gib-s", target)
        for choice in found["choices"]:
            flags = {"workers": choice["requests"], **{name: choice[name] for name in ("drive", "drives", "hosts")}}
            flags |= {"queues": choice["queues"]} if choice["queues"] else {}
            back = [part for name, value in flags.items() for part in (f"--{name}", value)]
            for typed in (shlex.split(choice["command"])[2:], ["run", *asked, *back]):
                assert plan(*typed)[0][key] >= target, (SEED, asked, target, choice["command"])
            if key.startswith("accelerators"):
                row, _ = plan("run", *asked, *back, "--accelerators", target)
                assert " pass on " in row["decision"], (SEED, asked, target, row["decision"])


@pytest.mark.promise("PLN-20")
def test_a_choices_command_names_all_that_it_rests_on(slow: Path, tmp_path: Path) -> None:
    """Own runs, a saved calibration, an own catalogue, a file's PCIe tree, and a link to its last digit."""
    sheets, saved_, tree = (tmp_path / name for name in ("my drives.toml", "mine.json", "tree.toml"))
    sheets.write_text('[[drive]]\nname = "My drive"\nkind = "nvme-tlc"\nseq_read_mbps = 7000\n')
    plan("calibrate", slow, "--drive", "D7-PS1010", "--out", saved_)
    tree.write_text('drive = "D7-PS1010"\ndrives = 2\n[[pcie]]\nname = "s0"\ngen = 4\nlanes = 8\ndrives = 2\n')
    for asked in (
        ("--drive", "D7-PS1010", "--runs", slow),
        ("--drive", "D7-PS1010", "--calibration", saved_, "--io-size", "99999b"),
        ("--drive", "My drive", "--catalogue", sheets, "--link", "200Gb/s"),
        (tree, "--drive", "D7-PS1010", "--location", "remote"),
    ):
        found, _ = plan("recommend", *asked, "--gib-s", "5")
        (choice,) = found["choices"]
        row, _ = plan(*shlex.split(choice["command"])[2:])
        assert row["throughput_gib_s_p10"] == choice["estimate"]["p10"] >= 5, choice["command"]
        assert (row["own_runs"] is None) == ("--runs" not in asked and "--calibration" not in asked)


@pytest.mark.promise("PLN-20")
def test_redundancy_capacity_endurance_and_price_are_bought_too(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(
        '[[drive]]\nname = "Dear"\nkind = "nvme-tlc"\nseq_read_mbps = 14000\nprice = 3000\ncapacity_tb = 8\nendurance_pbw = 14\n'
        '[[drive]]\nname = "Cheap"\nkind = "nvme-tlc"\nseq_read_mbps = 7000\nprice = 500\ncapacity_tb = 4\n'
    )
    base = ("recommend", "--gib-s", "20", "--catalogue", mine, "--by", "price", "--host-price", "10000")
    plain, _ = plan(*base)
    spare, _ = plan(*base, "--parity", "1")
    assert [c["drives"] for c in spare["choices"]] == [c["drives"] + c["hosts"] for c in plain["choices"]]
    assert plain["choices"][0]["price"] == 10000 * plain["choices"][0]["hosts"] + 500 * plain["choices"][0]["drives"]
    large, _ = plan(*base, "--capacity", "100")
    assert {c["drive"]: c["drives"] for c in large["choices"]} == {"Dear": 13, "Cheap": 25 + 25 % large["choices"][0]["hosts"]}
    worn, _ = plan(*base, "--writes", "30")
    assert worn["left_out"] == ["Cheap: no endurance_pbw given"] and worn["choices"][0]["drives"] == 4


@pytest.mark.promise("PLN-21")
@parametrized("workload", ["unet3d", "resnet50", "cosmoflow"], kept=(0,))
def test_the_greatest_number_is_where_au_stops_passing(workload: str) -> None:
    """In the command, on the page and in a what-if alike."""
    base = {"drive": "D7-PS1010", "drives": 4, "workload": workload}
    most = int(answer.answer(published(), system.make(base, []))["accelerators_max"])
    for number in (max(1, most - 1), most, most + 1, 2 * most + 3):
        one = system.make({**base, "accelerators": number}, [])
        row = answer.answer(published(), one)
        assert (row["au_pct"] >= one.ask.least_pct) == (number <= most)
        assert (row["au_pct_p10"] >= one.ask.least_pct) == (number <= row["accelerators_max_p10"])
        (point,) = whatif.points(published(), [one])
        assert all(point[key] == row[key] for key in ("au_pct", "au_pct_p10", "accelerators_max", "throughput_gib_s"))
        assert ("fail" in row["decision"]) == (number > most)


@pytest.mark.promise("PLN-21")
@pytest.mark.parametrize(
    ("drive", "more"),
    [
        ("D7-PS1010", {"workload": "unet3d"}),
        ("D7-PS1010", {"workload": "dlrm", "accelerator": "b200"}),
        ("D5-P5336", {"workload": "job", "samples_per_s": 2000, "sample_bytes": 1e6, "location": "remote"}),
        ("D3-S4520", {"workload": "resnet50", "accelerators": 40}),
        ("D7-P5520", {}),
    ],
)
def test_more_drives_never_carry_fewer_accelerators_nor_less_surely_nor_move_less(drive: str, more: dict[str, Any]) -> None:
    counts = (1, 2, 4, 8, 32, 64)
    found = whatif.points(published(), [system.make({"drive": drive, "drives": n, **more}, []) for n in counts])
    figures = [key for key in ("accelerators_max", "throughput_gib_s") if key in found[0]]
    assert figures
    for key in (f"{figure}{end}" for figure in figures for end in ("", "_p10", "_p90")):
        assert [row[key] for row in found] == sorted(row[key] for row in found), key


@pytest.mark.promise("PLN-22")
def test_an_answer_opens_with_its_assumptions_and_decides_in_words() -> None:
    said = text("run", "--drive", "D7-PS1010", "--drives", "4", "--workload", "unet3d")
    assert said.startswith("assumed 4 × D7-PS1010 as RAID 0") and said.index("decision") < said.index("throughput")
    for flag in ("--location", "--path", "--workers", "--accelerator", "--rules", "--hosts", "--threads", "--memory"):
        assert flag in said.partition("decision")[0]
    assert "sharpness" not in said and "bandwidth[" not in said
    explained = text("run", "--drive", "D7-PS1010", "--drives", "4", "--workload", "unet3d", "--explain")
    assert "how sharply rate bends" in explained and "bandwidth[D7-PS1010]" in explained
    for workload in ("unet3d", "dlrm"):
        parameters = plan("run", "--drive", "D7-PS1010", "--workload", workload)[0]["parameters"]
        assert {p["name"].partition("[")[0] for p in parameters} <= set(show.MEANINGS)
    row, _ = plan("run", "--drive", "D7-PS1010", "--drives", "4", "--workload", "unet3d")
    assert row["decision"] in said and {a["source"] for a in row["assumed"]} <= {"given", "default", "derived"}
    assert all(a["flags"] for a in row["assumed"])
    job = ("--workload", "job", "--samples-per-s", "100", "--sample-bytes", "1000")
    for more in (job, ("--workload", "bert"), ("--workload", "gnn"), ("--workload", "dlrm"), ("--workload", "llama3-8b")):
        assert all(a["flags"] for a in plan("run", "--drive", "D7-PS1010", *more)[0]["assumed"]), more


def test_more_drives_never_have_fewer_requests_whose_number_is_found_at_few_numbers_of_drives() -> None:
    planner, counts = published(), range(1, 101)
    for more in ({"location": "remote", "queues": 8}, {"io_size": 4096, "threads": 16}):
        asked = [system.make({"drive": "D7-P5520", "drives": n, **more}, []) for n in counts]
        found = [s.workers for s in assume.settle_all(planner, asked)]
        assert found == sorted(found)
        assert found[:32] == [s.workers for s in assume.settle_all(planner, asked[:32])]
    assert max(b / a for a, b in itertools.pairwise(assume.COUNTS[assume.FIRST - 1 :])) < 1.07
    assert assume.COUNTS[-1] == flow.DRIVES_MOST


def test_requests_that_nobody_gave_do_not_limit() -> None:
    for settings in ({"io_size": "64k"}, {"drives": 16}, {"location": "remote", "io_size": "128k"}, {"io_size": 4096}):
        row = answer.answer(published(), system.make({"drive": "D7-PS1010", **settings}, []))
        assert row["bottleneck"] != "requests in flight", settings
        asked = next(a for a in row["assumed"] if a["name"] == "requests")
        assert asked["source"] == "derived" and str(row["query"]["workers"]) in asked["text"]
    said = answer.answer(published(), system.make({"drive": "D7-PS1010", "io_size": 4096, "workers": 2}, []))
    assert said["bottleneck"] == "requests in flight" and said["query"]["workers"] == 2


def test_hosts_share_local_drives_evenly_and_have_a_dpu_each() -> None:
    assert system.make({"drive": "D7-PS1010", "hosts": 3}, []).drives == 3
    one, four = (
        answer.answer(published(), system.make({"drive": "D7-PS1010", "drives": 16, "location": "remote", "hosts": n}, []))
        for n in (1, 4)
    )
    assert one["bottleneck"] == "DPU queues" and four["throughput_gib_s"] > 2.5 * one["throughput_gib_s"]


@pytest.mark.long
@pytest.mark.promise("PLN-23")
@pytest.mark.parametrize("each", [5, pytest.param(1, marks=pytest.mark.long)])
def test_places_and_paths_are_compared_in_one_table(each: int) -> None:
    asked = ("--drive", "D7-PS1010,D5-P5336", "--drives", "1,4", "--workload", "unet3d", "--queues", "4")
    found, code = plan("compare", *asked)
    assert code == 0 and len(found["rows"]) == 16 and found["by"] == "accelerators_max" and len(found["verdicts"]) == 2
    for row in found["rows"][::each]:
        query = row["query"]
        flags = {"drive": query["drive"], "drives": query["drives"], "location": query["location"], "path": query["path"]}
        flags |= {"queues": 4} if query["location"] == "remote" else {}
        alone, _ = plan("run", *(part for name, value in flags.items() for part in (f"--{name}", value)), "--workload", "unet3d")
        assert all(row[key] == alone[key] for key in ("accelerators_max", "au_pct", "cpu_cores", "decision", "bottleneck"))
    said = text("compare", *asked)
    assert "remote instead of local" in said and "bounce" in said


@pytest.mark.promise("PLN-10")
def test_a_whatif_takes_the_names_of_the_flags_and_lists() -> None:
    axes = ("location=local,remote", "path=gds,bounce", "hosts=1,2", "io-size=64k,1m", "workload=io,unet3d")
    found, _ = plan("whatif", "--drive", "D7-PS1010", *(part for axis in axes for part in ("--vary", axis)))
    assert len(found["points"]) == 32 and {p["query"]["path"] for p in found["points"]} == {"gds", "cpu"}
    said = text("whatif", "--drive", "D7-PS1010", "--vary", "workload=io,unet3d")
    assert "–" in said


@pytest.mark.promise("PLN-23")
def test_a_range_of_a_whatif_means_what_it_means_in_a_sweep() -> None:
    for words in ("1:96", "1:8,12", "8:32:8", "3:3", "1:5:2"):
        of_sweep = [int(next(iter(s.values()))) for s in vary.axes([f"depth={words}"])[0]]
        assert whatif.axis(f"depth={words}") == ("depth", of_sweep)
    assert whatif.axis("io-size=64k:1m") == ("io_size", [65536, 131072, 262144, 524288, 1048576])
    assert whatif.axis("drives=1:8")[1] == [1, 2, 4, 8] and whatif.axis("drives=1:4:1")[1] == [1, 2, 3, 4]
    for wrong in ("drives=8:1", "drives=0:8", "drives=1:8:0"):
        with pytest.raises(RequestError, match="is not a range from the least to the most"):
            whatif.axis(wrong)
    with pytest.raises(RequestError, match="is not a number"):
        whatif.axis("drives=1:x")


def test_words_for_limits_are_a_readers() -> None:
    assert decide.words("balanced: storage, link") == "the drives and the link"
    assert decide.words("uplink of s0") == "uplink of s0"
    assert Planner({}, []).own_of("D7-PS1010") is None
