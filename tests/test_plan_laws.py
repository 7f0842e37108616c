"""Laws that hold of any machine, also of those in no table: drawn at random, from one drive to 64 and 10 to 800 Gb/s."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
from forebay.errors import RequestError
from forebay.plan import answer, catalogue, limits, recommend, system
from forebay.plan.estimate import Z80
from forebay.plan.planner import Planner, published
from hypothesis import assume, given
from hypothesis import strategies as st
from properties import examples, parametrized

# What the smooth rest may bend a curve back by.
BEND = 0.013
TRAINED = [("unet3d", "h100"), ("unet3d", "a100"), ("unet3d", "b200"), ("resnet50", "h100"), ("cosmoflow", "h100"),
           ("retinanet", "b200"), ("flux", "mi355"), ("dlrm", "b200"), ("job", "h100")]  # fmt: skip
FAST = examples(15)


@st.composite
def sheets(draw: st.DrawFn) -> catalogue.Drive:
    """A data sheet: SATA to what PCIe 6.0 will bring."""
    rate = draw(st.floats(500, 28_000))
    iops = draw(st.none() | st.floats(0.3, 1.2))
    return catalogue.Drive(
        "Mine",
        draw(st.sampled_from(catalogue.KINDS)),
        rate,
        "test",
        seq_write_mbps=rate * draw(st.floats(0.2, 1.0)),
        rand_read_4k_iops=None if iops is None else iops * rate * 1e6 / 4096,
        read_latency_us=draw(st.none() | st.floats(40, 200)),
    )


def settings_of(draw: st.DrawFn, drive: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "drive": drive,
        "drives": draw(st.integers(1, 64)),
        "io_size": draw(st.sampled_from([4096 << i for i in range(13)])),
        "workers": draw(st.integers(1, 1024)),
        "depth": draw(st.sampled_from([1, 2, 8, 32])),
        "path": draw(st.sampled_from(["gds", "cpu"])),
        "threads": draw(st.integers(8, 512)),
        "memory": draw(st.floats(64, 4096)),
    }
    if draw(st.booleans()):
        found["cores"] = draw(st.integers(1, found["threads"]))
    if draw(st.booleans()):
        found |= {"location": "remote", "queues": draw(st.integers(1, 31))}
    if draw(st.booleans()):
        found["link"] = f"{draw(st.integers(10, 800))}Gb/s"
        found["sharers"] = draw(st.integers(1, 4))
    if draw(st.booleans()):
        gen, lanes = draw(st.integers(3, 6)), draw(st.sampled_from([4, 8, 16]))
        found["pcie"] = [{"name": "s", "gen": gen, "lanes": lanes, "drives": found["drives"], "gpus": draw(st.integers(0, 2))}]
    return found


@st.composite
def readers(draw: st.DrawFn) -> tuple[Planner, system.System]:
    """Plain reads, of a drive with cells of its own or of a data sheet."""
    known = draw(st.none() | st.sampled_from(sorted(catalogue.drives())))
    more = [] if known else [draw(sheets())]
    return planner_of(more), system.make(settings_of(draw, known or "Mine"), more)


@st.composite
def trainers(draw: st.DrawFn) -> tuple[Planner, system.System]:
    known = draw(st.none() | st.sampled_from(sorted(catalogue.drives())))
    more = [] if known else [draw(sheets())]
    workload, accelerator = draw(st.sampled_from(TRAINED))
    found = settings_of(draw, known or "Mine") | {"workload": workload, "accelerator": accelerator}
    if workload == "job":
        found |= {"sample_bytes": draw(st.floats(100, 1e8)), "samples_per_s": draw(st.floats(0.1, 1e5))}
    if draw(st.booleans()):
        found["accelerators"] = draw(st.integers(1, 1000))
    return planner_of(more), system.make(found, more)


def planner_of(more: list[catalogue.Drive]) -> Planner:
    """The published one; with a data sheet beside it where one was drawn."""
    return published().with_drives(more) if more else published()


def whole(row: dict[str, Any]) -> None:
    """Every estimate is finite, not negative, and inside its interval."""
    for name in (n.removesuffix("_p10") for n in row if n.endswith("_p10")):
        low, value, high = (row[f"{name}{end}"] for end in ("_p10", "", "_p90"))
        assert 0 <= low <= value <= high < math.inf, (name, low, value, high)
    assert row["bottleneck"] and all(0 <= share <= 1 for share in row["utilisation"].values())
    assert row["cpu_user_pct_p90"] <= 100


def most_of_drives(planner: Planner, s: system.System) -> float:
    """GiB/s of the data sheets, and 3 % that published runs exceeded theirs by; IOPS by commands of 128 KiB."""
    drive = catalogue.drive(s.drive, planner.more)
    return s.drives * min(1.03 * drive.read_gibps, drive.iops * min(s.io_size, 131072) / 2**30)


@pytest.mark.promise("PLN-17")
@FAST
@given(readers())
def test_reads_pass_no_link_no_drive_and_no_full_processor(drawn: tuple[Planner, system.System]) -> None:
    planner, s = drawn
    row = answer.answer(planner, s)
    whole(row)
    for name, most in limits.links(s).items():
        assert row["throughput_gib_s_p90"] <= most * (1 + 1e-9), name
    assert row["throughput_gib_s"] <= most_of_drives(planner, s) * (1 + 1e-9)
    assert row["cpu_cores"] <= s.threads * (1 + 1e-6)
    assert row["next"].get("gain", 1.0) >= 1 - BEND


def test_few_cores_beside_a_link_are_unsure_and_the_link_is_not() -> None:
    """What a request costs is unsure within a factor of two, so cores may be the narrower; the link never gives more."""
    planner, found = published(), []
    for link in (2.0, 20.0, 25.0, 30.0, 200.0):
        s = system.make({"drive": "D7-PS1010", "drives": 8, "path": "cpu", "cores": 1, "workers": 64, "link": link}, [])
        rate = answer.rates(planner, [s])[0]
        assert rate.p10 < rate.value <= rate.p90 <= link * (1 + 1e-9)
        found.append(rate)
    assert found[0].bottleneck == "link" and found[0].p10 > 0.95 * found[0].value
    assert all("host cores" in rate.bottleneck for rate in found[2:])
    assert all(rate.p10 < 0.7 * rate.value for rate in found[1:])
    assert found[-1].p90 > 1.4 * found[-1].value


def wider(s: system.System) -> list[system.System]:
    """The same with more of each part of its way that it has."""
    more = []
    if not s.pcie:
        more.append(replace(s, drives=2 * s.drives))
    if s.link is not None:
        more.append(replace(s, link=2 * s.link))
    if s.queues is not None and s.queues < 31:
        more.append(replace(s, queues=s.queues + 1))
    return more


@pytest.mark.promise("PLN-17")
@FAST
@given(readers())
def test_more_of_anything_never_costs_throughput(drawn: tuple[Planner, system.System]) -> None:
    planner, s = drawn
    base = answer.rates(planner, [s])[0].value
    more = [replace(s, workers=2 * s.workers), replace(s, io_size=2 * s.io_size), replace(s, threads=2 * s.threads)]
    more += wider(s)
    for one, rate in zip(more, answer.rates(planner, more), strict=True):
        assert rate.value >= base * (1 - BEND), (s, one)


@pytest.mark.promise("PLN-17")
@FAST
@given(readers())
def test_what_limits_is_what_brings_most(drawn: tuple[Planner, system.System]) -> None:
    """Of a station that limits alone, one per cent more brings at least as much as of any other."""
    planner, s = drawn
    row = answer.answer(planner, s)
    of = {"drive bandwidth": "drives", "drive IOPS": "drives"}
    name = of.get(row["bottleneck"], row["bottleneck"])
    # Twice as many of a DPU's queues are a fifth faster, so they bring less than what they limit.
    assume(name in row["elasticity"] and name != "DPU queues")
    assert row["elasticity"][name] >= max(row["elasticity"].values()) - 0.05, (s, row["bottleneck"], row["elasticity"])


@pytest.mark.promise("PLN-17")
@FAST
@given(trainers())
def test_accelerators_get_no_more_than_passes_the_way_to_them(drawn: tuple[Planner, system.System]) -> None:
    planner, s = drawn
    row = answer.answer(planner, s)
    whole(row)
    assert row["au_pct_p90"] <= 100
    ways = limits.links(s)
    if s.location == "remote":
        most, sd = planner.flow.queues_gibps(s.queues)
        ways["DPU queues"] = most * math.exp(Z80 * sd)
    number = s.accelerators or max(1, row["accelerators_max"])
    for name, most in ways.items():
        taken = row["au_pct_p90"] / 100 * number * s.ask.mibps / 1024
        assert taken <= most * (1 + 1e-9), (name, s)
        assert row["accelerators_max_p90"] * s.ask.mibps / 1024 * s.ask.least_pct / 100 <= most * (1 + 1e-9), name
    if s.accelerators and s.accelerators > row["accelerators_max_p90"]:
        assert row["au_pct"] < s.ask.least_pct + 0.5, (s, row["accelerators_max_p90"], row["au_pct"])


@pytest.mark.promise("PLN-17")
@FAST
@given(trainers())
def test_more_of_anything_never_costs_accelerators_or_utilisation(drawn: tuple[Planner, system.System]) -> None:
    planner, s = drawn
    s = replace(s, accelerators=s.accelerators or 4)
    dataset = 5 * s.memory
    s = replace(s, dataset=dataset)
    more = [replace(s, threads=2 * s.threads), replace(s, memory=2 * s.memory), replace(s, memory=20 * s.memory)]
    more += wider(s)
    base, *found = answer.jobs_estimates(planner, [s, *more])
    for one, estimates in zip(more, found, strict=True):
        for name in ("accelerators_max", "au_pct"):
            assert estimates[name].value >= base[name].value * (1 - 1e-6), (name, s, one)
    fewer = answer.jobs_estimates(planner, [replace(s, accelerators=s.accelerators + 1)])[0]
    assert fewer["au_pct"].value <= base["au_pct"].value * (1 + 1e-9)


@pytest.mark.promise("PLN-17")
@examples(12)
@given(sheets(), st.data())
def test_a_faster_data_sheet_is_never_slower(sheet: catalogue.Drive, data: st.DataObject) -> None:
    found = settings_of(data.draw, "Mine")
    faster = replace(sheet, seq_read_mbps=1.5 * sheet.seq_read_mbps)
    rates = []
    for drive in (sheet, faster):
        planner = planner_of([drive])
        rates.append(answer.rates(planner, [system.make(found, [drive])])[0].value)
    # A faster drive hides less of the way across a fabric, which may cost it a part in a thousand.
    assert rates[1] >= rates[0] * (1 - BEND / 3), (sheet, found)


@pytest.mark.promise("PLN-17")
@pytest.mark.parametrize("gpus", ["D74H-7U", "D54U-3U", "nobody's"])
def test_minutes_know_the_way_from_the_drives_to_the_gpus(gpus: str) -> None:
    """912 bytes of 3.2 billion samples don't come faster than a link carries them."""
    base = {"drive": "D7-PS1010", "drives": 8, "workload": "dlrm", "gpus": gpus}
    made = [system.make({**base, "link": link}, []) for link in ("10Gb/s", "25Gb/s", "100Gb/s", "800Gb/s")]
    found = answer.minutes(published(), made)
    values = [e.value for e in found]
    assert values == sorted(values, reverse=True)
    for s, e in zip(made, found, strict=True):
        assert s.link is not None and e.value * 60 * s.link * 2**30 > 0.7 * 4_195_197_692 * 912
    assert found[0].bottleneck == "link" and found[-1].bottleneck == "compute"
    few, many = (
        answer.minutes(published(), [system.make({**base, "location": "remote", "queues": q}, [])])[0].value for q in (1, 31)
    )
    assert few >= many


@pytest.mark.long
@pytest.mark.promise("PLN-17")
@examples(8)
@given(st.sampled_from(sorted(catalogue.drives())), st.floats(1, 400), st.integers(4, 64))
def test_advice_does_what_it_says(drive: str, wanted: float, workers: int) -> None:
    """The choice meets the target and one drive less in each host doesn't; where more workers are advised, they do it."""
    planner, sheet = published(), catalogue.drive(drive)
    s = system.make({"drive": drive, "workers": workers}, [])
    found = recommend.recommend(planner, s, recommend.Target(gibps=wanted), "drives", [sheet])
    for choice in found["choices"]:
        n, hosts = choice["drives"], choice["hosts"]
        assert answer.rates(planner, [replace(s, drives=n, hosts=hosts)])[0].p10 >= wanted
        # Each host has as many.
        assert n == hosts or answer.rates(planner, [replace(s, drives=n - hosts, hosts=hosts)])[0].p10 < wanted
    if not found["choices"]:
        (why,) = found["advice"]
        if "--workers" in why:
            more = int(why.split("--workers ")[1].split()[0])
            most = found["not_enough"][0]["drives"]
            assert answer.rates(planner, [replace(s, drives=most, workers=more)])[0].p10 >= wanted
        else:
            assert "drive" in why


@pytest.mark.promise("PLN-17")
def test_more_accelerators_than_slots_or_bytes_are_held_by_the_narrower() -> None:
    """100 of 3D U-Net on one host: one drive's bytes are fewer than its slots, sixteen drives' are more."""
    base = {"drive": "D7-PS1010", "workload": "unet3d", "accelerators": 100}
    one, many = (answer.answer(published(), system.make({**base, "drives": n}, [])) for n in (1, 16))
    assert one["bottleneck"] == "storage" and many["bottleneck"] == "reader processes"
    assert one["au_pct"] < many["au_pct"] < 10 and many["au_pct_p10"] < many["au_pct"] < many["au_pct_p90"]
    assert one["utilisation"]["reader processes"] < 1 == many["utilisation"]["reader processes"]
    assert any("reader processes" in text for text in many["warnings"])


def test_what_does_not_limit_makes_nothing_less_sure() -> None:
    """What a core costs is a guess, and of 208 threads hardly one is needed."""
    s = system.make({"drive": "D7-PS1010", "workload": "unet3d"}, [])
    planner = published()
    with_cores = planner.training.greatest([answer.setup_of(planner, s, None)])[0]
    without = planner.training.greatest([answer.training_setup(s, None)])[0]
    assert (with_cores.p10, with_cores.p90) == (without.p10, without.p90)


@pytest.mark.promise("PLN-18")
@pytest.mark.parametrize(("workload", "accelerator"), TRAINED[:-1])
def test_every_workload_that_comes_with_forebay_is_planned(workload: str, accelerator: str) -> None:
    s = system.make({"drive": "D7-PS1010", "drives": 8, "workload": workload, "accelerator": accelerator}, [])
    row = answer.answer(published(), s)
    assert row["accelerators_max"] >= 1 and 0 < row["au_pct"] <= 100


@pytest.mark.promise("PLN-18")
def test_checkpoints_take_their_bytes_at_the_rate_of_drives_or_link() -> None:
    def planned(**more: Any) -> dict[str, Any]:
        return answer.answer(published(), system.make({"drive": "D7-PS1010", "workload": "llama3-8b", **more}, []))

    one, eight, linked = planned(), planned(drives=8), planned(drives=8, link="100Gb/s")
    assert one["checkpoint_write_s"] == pytest.approx(8 * eight["checkpoint_write_s"])
    # 104.7 GiB over 100 Gb/s (11.64 GiB/s) are 8.99 s, and no less.
    assert linked["checkpoint_read_s_p10"] >= 8.99 and linked["bottleneck"] == "link"
    assert one["checkpoint_write_s"] > 104.6 * 2**30 / 9.3e9
    with pytest.raises(RequestError, match="seq_write_mbps"):
        sheet = catalogue.Drive("Mine", "nvme-tlc", 7000, "test")
        answer.answer(Planner({}, [sheet]), system.make({"drive": "Mine", "workload": "llama3-8b"}, [sheet]))


def test_more_cores_than_the_usual_host_has_are_a_larger_host() -> None:
    assert system.make({"drive": "D7-PS1010", "cores": 400}, []).threads == 400
    assert system.make({"drive": "D7-PS1010", "cores": 4}, []).threads == system.System.threads


@pytest.mark.promise("PLN-6")
@pytest.mark.parametrize("drive", ["D7-P5520", "D7-PS1010", "D5-P5336"])
@pytest.mark.parametrize(("location", "io_size"), [("local", "1m"), ("local", "4k"), ("remote", "128k")])
def test_more_drives_lower_neither_the_rate_nor_its_lower_end(drive: str, location: str, io_size: str) -> None:
    systems = [system.make({"drive": drive, "location": location, "io_size": io_size, "drives": n}, []) for n in range(1, 129)]
    found = answer.rates(published(), systems)
    for less, more in itertools.pairwise(found):
        assert more.value >= less.value * (1 - 1e-12) and more.p10 >= less.p10 * (1 - 1e-12)
        assert more.p10 <= more.value <= more.p90


@pytest.mark.promise("PLN-6")
def test_what_waits_inside_of_a_drive_waits_less_where_drives_have_little_to_do() -> None:
    """256 commands at 8 drives are bound by their delay; at 128 drives each has two, that hardly wait for each other."""
    eight, many = answer.rates(published(), [system.make({"drive": "D7-P5520", "drives": n}, []) for n in (8, 128)])
    assert many.value > 1.3 * eight.value and many.p10 > eight.p10


@pytest.mark.promise("PLN-6")
@parametrized(("workload", "accelerator"), TRAINED[:7], kept=(3,))
def test_more_drives_lower_no_lower_end_of_a_training(workload: str, accelerator: str) -> None:
    before: dict[str, float] = {}
    for drives in (1, 2, 3, 5, 8, 16, 32, 64, 80, 81, 100, 128):
        asked = {"drive": "D7-P5520", "drives": drives, "workload": workload, "accelerator": accelerator, "accelerators": 4}
        now = answer.flat(made := system.make(asked, []), answer.job_estimates(published(), made))
        for name in ("accelerators_max", "accelerators_max_p10", "au_pct", "au_pct_p10"):
            assert now.get(name, 0.0) >= before.get(name, 0.0) - 1e-6, (name, drives)
        before = now
