"""What bounds a plan besides drives: PCIe uplinks, GPU links, processor cores; and the cores that reading takes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from forebay.errors import RequestError
from forebay.plan import answer, calibrate, catalogue, cores, cpu, limits, pcie, system
from forebay.plan.estimate import Z80
from forebay.plan.planner import Planner, published

TWO = [
    {"name": "a", "gib_s": 40.0, "drives": 2, "gpus": 1},
    {"name": "b", "gib_s": 20.0, "drives": 2, "gpus": 1},
]


def tree(tables: list[dict]) -> tuple[pcie.Switch, ...]:
    return pcie.switches(tables, "test")


def planned(**settings) -> dict:
    made = system.make({"drive": "D7-PS1010", "workers": 128, **settings}, [])
    return answer.answer(published(), made)


@pytest.mark.promise("PLN-13")
def test_each_uplink_carries_the_share_that_goes_over_it() -> None:
    """Half of all bytes come from below each switch; of those, half go to the GPU that is there too."""
    two = tree(TWO)
    assert pcie.limits(two, 4, False, pcie.DIRECT) == pytest.approx({"uplink of a": 160, "uplink of b": 80})
    assert pcie.limits(two, 4, False, pcie.STAGED) == pytest.approx({"uplink of a": 80, "uplink of b": 40})
    assert pcie.limits(two, 4, False, pcie.MEMORY) == pytest.approx({"uplink of a": 80, "uplink of b": 40})
    # Four more drives at the CPU: to each GPU a quarter of its bytes from its own switch.
    assert pcie.limits(two, 8, False, pcie.DIRECT) == pytest.approx({"uplink of a": 40 / 0.375, "uplink of b": 20 / 0.375})


def test_a_switch_under_a_switch_loads_both_uplinks() -> None:
    nested = tree([{"name": "top", "gib_s": 50.0}, {"name": "low", "under": "top", "gib_s": 30.0, "drives": 4}])
    assert pcie.limits(nested, 4, False, pcie.MEMORY) == pytest.approx({"uplink of top": 50, "uplink of low": 30})
    own = tree([{"name": "top", "gib_s": 50.0, "gpus": 1}, {"name": "low", "under": "top", "gib_s": 30.0, "drives": 4}])
    assert pcie.limits(own, 4, False, pcie.DIRECT) == pytest.approx({"uplink of low": 30})


def test_generation_and_lanes_make_a_link() -> None:
    (one,) = tree([{"name": "a", "gen": 4, "lanes": 16}])
    assert one.gib_s == pytest.approx(16 * 1.969e9 * 0.85 / 2**30)


@pytest.mark.promise("PLN-13")
def test_a_nic_under_the_gpus_own_switch_beats_drives_behind_the_cpu() -> None:
    far = [{"name": "gpu side", "gib_s": 25.0, "gpus": 1, "nics": 1}, {"name": "drive side", "gib_s": 25.0, "drives": 4}]
    local = planned(drives=4, pcie=far)
    remote = planned(drives=4, pcie=far, location="remote")
    assert "uplink of" in local["bottleneck"] and local["throughput_gib_s"] <= 25
    assert remote["throughput_gib_s"] > 1.2 * local["throughput_gib_s"]
    assert not any("uplink" in name for name in remote["utilisation"])


def test_what_is_unsure_lets_no_more_through_than_a_link_behind_it() -> None:
    """A DPU's queues that are thought a little narrower than the link: at their best the link limits."""
    queues, sd = published().flow.queues_gibps(2)
    for wide in (1.01, 1.05, 10.0):
        asked = {"drive": "D7-PS1010", "drives": 17, "location": "remote", "queues": 2, "link": wide * queues}
        most, name, unsure = limits.way(published(), system.make(asked, []))
        assert (most, name) == (pytest.approx(queues), "DPU queues")
        assert most * math.exp(Z80 * unsure) == pytest.approx(min(wide, math.exp(Z80 * sd)) * queues)


@pytest.mark.promise("PLN-13")
def test_gpu_links_and_cores_bound_and_are_named() -> None:
    free = planned(drives=8)
    linked = planned(drives=8, gpu_link=25.0, pcie=[{"name": "a", "gib_s": 900.0, "gpus": 2}])
    assert linked["throughput_gib_s"] <= 50 < free["throughput_gib_s"] and linked["bottleneck"] == "GPU links"
    few = planned(drives=8, path="cpu", cores=1, io_size="64k")
    assert few["bottleneck"] == "host cores" and few["elasticity"]["host cores"] > 0.9
    assert few["cpu_cores"] <= 1.0 + 1e-9 and few["next"]["without"] == "host cores" and few["next"]["gain"] > 1.5
    assert few["throughput_gib_s_p90"] / few["throughput_gib_s_p10"] > 1.5  # what a request costs is a guess
    plenty = planned(drives=8, path="cpu", cores=512, io_size="64k")
    assert plenty["utilisation"]["host cores"] < 0.2


def test_emulated_accelerators_feel_the_tree_too() -> None:
    narrow = planned(drives=8, workload="unet3d", pcie=[{"name": "a", "gib_s": 6.0, "drives": 8}])
    wide = planned(drives=8, workload="unet3d", pcie=[{"name": "a", "gib_s": 60.0, "drives": 8}])
    assert narrow["accelerators_max"] <= 2 < wide["accelerators_max"]


def test_a_tree_comes_from_the_file_and_is_answered(forebay, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text('[system]\ndrive = "D7-PS1010"\ndrives = 4\n[[pcie]]\nname = "s"\ngen = 4\nlanes = 16\ndrives = 4\n')
    done = forebay("plan", "run", plan, "--json")
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)
    assert row["throughput_gib_s"] <= 25.0 and "uplink of s" in row["bottleneck"]
    assert row["query"]["pcie"][0]["drives"] == 4
    plan.write_text(plan.read_text().replace("lanes = 16", "lanes = 17"))
    done = forebay("plan", "run", plan)
    assert done.returncode == 2 and "is not a PCIe link" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.promise("PLN-2")
def test_drives_that_a_tree_needs_in_each_host_are_what_the_refusal_says_to_type() -> None:
    of_two = {"drive": "D7-PS1010", "hosts": 2, "pcie": [{"name": "s", "gen": 4, "lanes": 16, "drives": 2}]}
    with pytest.raises(RequestError, match=r"the PCIe tree has 2 in each of 2 hosts\n  try: drives 4"):
        system.make({**of_two, "drives": 2}, [])
    assert system.make({**of_two, "drives": 4}, []).drives == 4


def record(kib: int, rate: float, user: float, kernel: float) -> str:
    job = {"io_bytes": kib << 10, "workers": 8, "depth": 4, "op": "read"}
    result = {"throughput_gib_s": rate, "seconds": 10.0, "cpu": {"user_s": user * 10, "system_s": kernel * 10}}
    return json.dumps({"job": job, "result": result, "environment": {"host": "a"}, "path": {"ran": "gds"}})


@pytest.mark.promise("PLN-14")
def test_cores_are_calibrated_by_records_in_user_mode_and_in_the_kernel() -> None:
    """What made the records comes back; the other path stays a guess, and says so."""
    lines = []
    for kib, rate in ((4, 2.0), (64, 4.0), (1024, 6.4)):
        requests, mib = rate * 2**20 / kib, rate * 1024
        lines.append(record(kib, rate, (0.9 * requests + 2.0 * mib) / 1e6, (7.0 * requests + 30.0 * mib) / 1e6))
    drive = catalogue.drive("D7-P5520")
    runs = calibrate.read("\n".join(lines), "f", drive.name, 1)
    made = calibrate.cores_of(runs)
    work = cpu.Work("gds", 128.0, 5.0)
    truth = (0.9 + 7.0) * 5 * 8192 / 1e6 + (2.0 + 30.0) * 5 * 1024 / 1e6
    got, guess = made.predict(work)["cpu_cores"], cores.Cores().predict(work)["cpu_cores"]
    assert got.value == pytest.approx(truth, rel=0.05) and got.p10 < truth < got.p90
    assert got.p90 / got.p10 < 1.5 < guess.p90 / guess.p10
    assert not got.note and "guess" in guess.note
    assert "guess" in made.predict(cpu.Work("cpu", 128.0, 5.0))["cpu_cores"].note
    named = {p["name"]: p for p in calibrate.calibrate(runs, drive, [])[1]["parameters"]}
    assert named["system_core_request[gds]"]["source"] == "calibrated"
    assert named["system_core_request[gds]"]["value"] == pytest.approx(7.0, rel=0.15)
    assert "system_core_request[cpu]" not in named


@pytest.mark.promise("PLN-14")
def test_the_cores_that_bound_are_the_cores_that_are_spent() -> None:
    """At the rate that so many cores allow, so many are busy."""
    planner = Planner({}, [])
    for path in cpu.PATHS:
        rate = planner.cores.most_gibps(path, 64.0, 3.0)
        assert planner.cores.predict(cpu.Work(path, 64.0, rate))["cpu_cores"].value == pytest.approx(3.0)
    # Where nothing else is said, I/O may use all threads of the host.
    asked = [system.make({"drive": "D7-PS1010", "threads": n}, []) for n in (8, 16)]
    few, many = (limits.limits(planner, s)["host cores"] for s in asked)
    assert many == pytest.approx(2 * few)
