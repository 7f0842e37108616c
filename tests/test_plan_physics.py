"""What must hold whatever is asked: predictions between and beyond the published cells, seen as a physicist would."""

from __future__ import annotations

import csv
import itertools

import numpy as np
import pytest
from forebay.emulate import workloads
from forebay.plan import catalogue, dlrm, flow, jobs, random_reads, show, training, whatif
from forebay.plan import system as systems
from forebay.plan.planner import Planner, published
from forebay.plan.predict import predict_text
from forebay.plan.published import table
from properties import parametrized

DRIVES = ("D7-PS1010", "D7-P5520", "D5-P5336", "D3-S4520", "Micron 9300 PRO")
SIZES = (4, 16, 32, 64, 128, 256, 512, 1024, 2048, 8192, 65536)
# What the smooth rest may bend a curve back by; the published curves themselves do.
BEND = 0.012


@pytest.fixture(scope="module")
def planner() -> Planner:
    return published()


def rates(planner: Planner, loads: list[flow.Load]) -> np.ndarray:
    """Loads × (p10, value, p90)."""
    return np.array([(e.p10, e.value, e.p90) for e in planner.flow.predict(loads)])


@pytest.mark.long
@pytest.mark.promise("PLN-16")
def test_larger_requests_more_queues_more_drives_and_more_workers_never_cost_throughput(planner: Planner) -> None:
    places = [(False, None), (True, 1.0), (True, 4.0), (True, 12.0), (True, 27.0), (True, None)]
    for drive, drives in itertools.product(DRIVES, (1, 3, 16)):
        made = [[flow.Load(drive, k, 32, "gds", r, drives, 1, q) for k in SIZES] for r, q in places]
        found = rates(planner, [x for row in made for x in row])[:, 1].reshape(len(places), len(SIZES))
        assert (np.diff(found, axis=1) >= -BEND * found[:, 1:]).all(), (drive, drives)
        assert (np.diff(found[1:], axis=0) >= -BEND * found[1:-1]).all(), (drive, drives, "queues")
        # Published remote runs are up to 3 % above the same drive's local ones.
        assert (found[1:] <= 1.03 * found[0]).all(), (drive, drives, "remote")
    for drive in DRIVES:
        by_workers = rates(planner, [flow.Load(drive, 128, w) for w in (1, 2, 8, 24, 48, 200)])[:, 1]
        by_drives = rates(planner, [flow.Load(drive, 1024, 64, drives=n) for n in (1, 2, 3, 5, 8, 16)])[:, 1]
        for found in (by_workers, by_drives):
            assert (np.diff(found) >= -BEND * found[1:]).all(), (drive, found)


@pytest.mark.promise("PLN-16")
def test_nothing_passes_the_data_sheet_or_a_full_link(planner: Planner) -> None:
    for drive, drives, remote in itertools.product(DRIVES, (1, 3, 16), (False, True)):
        most = catalogue.drive(drive).read_gibps * drives
        found = rates(planner, [flow.Load(drive, k, 512, "cpu", remote, drives) for k in SIZES])
        # D7-P5520 is published 0.3 % above its sheet, D7-PS1010 across a fabric 2.6 % above it.
        assert (found[:, 1] <= most * (1.03 if remote else 1.005)).all(), (drive, drives, remote)
        capped = rates(planner, [flow.Load(drive, k, 512, "gds", remote, drives, cap_gibps=most / 3) for k in SIZES])
        assert (capped[:, 1] <= most / 3 * 1.0001).all()


def test_intervals_hold_their_middle_and_are_narrowest_where_it_was_measured(planner: Planner) -> None:
    for drive in DRIVES:
        found = rates(planner, [flow.Load(drive, k, 32) for k in SIZES])
        assert (found[:, 0] < found[:, 1]).all() and (found[:, 1] < found[:, 2]).all()
        assert (found[:, 2] / found[:, 0] < 3).all(), drive
    measured, near, unseen = ("D7-P5520", 64), ("D7-P5520", 16), ("D5-P5336", 64)
    width = [r[2] / r[0] for r in rates(planner, [flow.Load(d, k, 32) for d, k in (measured, near, unseen)])]
    assert width[0] < width[1] < width[2]


def test_more_drives_than_were_measured_are_less_sure_as_far_as_drives_limit(planner: Planner) -> None:
    def width(flows: flow.Flow, drives: int, **more: float) -> float:
        e = flows.predict([flow.Load("D7-PS1010", 1024, 64, drives=drives, **more)])[0]  # type: ignore[arg-type]
        return e.p90 / e.p10

    widths = [width(planner.flow, n) for n in (1, 2, 4, 8)]
    assert widths == sorted(widths) and widths[-1] > 1 + 3 * (widths[0] - 1)
    assert width(planner.flow, 8, cap_gibps=10.0) < widths[1]
    # Whose runs were of eight knows eight, and not one.
    eight = [flow.Measured(flow.Load("D7-PS1010", k, 64, drives=8), r) for k, r in ((128, 70.0), (1024, 106.0), (4096, 107.0))]
    own = flow.Flow(eight)
    assert width(own, 8) < 1.08 < width(own, 1)


def test_a_slow_link_before_fast_flash_does_not_slow_the_flash(planner: Planner) -> None:
    """Eight SATA drives with four requests each: a command waits for its own link, hardly longer."""
    eight = rates(planner, [flow.Load("D3-S4520", 64, 32, drives=8)])[0, 1]
    assert eight > 3 * rates(planner, [flow.Load("D3-S4520", 64, 32)])[0, 1]


@pytest.mark.long
@pytest.mark.promise("PLN-16")
@parametrized("workload", training.WORKLOADS, kept=(1,))
def test_the_greatest_number_is_where_utilisation_crosses_what_it_must_reach(planner: Planner, workload: str) -> None:
    for drive, dataset in itertools.product(("D7-PS1010", "D7-P5520", "D5-P5336", "D3-S4520"), (639.0, 5030.0, 50_000.0)):
        counts = (1, 2, 3, 6, 8, 16)
        setups = [training.Setup(workload, drive, n, None, dataset) for n in counts]
        greatest = planner.training.greatest(setups)
        values = [e.value for e in greatest]
        assert values == sorted(values), (drive, dataset, values)
        least = training.must_reach_pct(workload)
        for setup, e in zip(setups, greatest, strict=True):
            numbers = sorted({1.0, max(1.0, e.value), e.value + 1, e.value + 40})
            asked = [training.Setup(**{**setup.__dict__, "accelerators": n}) for n in numbers]
            au = [a.value for a in planner.training.au(asked)]
            assert au == sorted(au, reverse=True)
            if e.value >= 1:
                assert au[numbers.index(e.value)] >= least - 0.5, (setup, e.value, au)
            if "reader processes" not in e.bottleneck:
                assert au[numbers.index(e.value + 1)] < least + 0.5, (setup, e.value, au)


@pytest.mark.promise("PLN-16")
def test_few_readers_of_small_files_leave_drives_of_a_stripe_without_work(planner: Planner) -> None:
    """n readers at random over k equal drives keep n ÷ (n + k − 1) of them busy; readers of large files all of them."""
    log = planner.training.posterior.log

    def supply(workload: str, drives: int, number: float) -> float:
        setup = training.Setup(workload, "D3-S4520", drives, number, 50_000.0)
        return float(training._bounds(log, training.Rows([setup], [False], planner.training.drives))["supply"][0])

    one = supply("cosmoflow", 1, 2)
    for drives, number in itertools.product((2, 8, 64), (1, 2, 7, 1000)):
        readers = number * training.READERS["cosmoflow"]
        busy = supply("cosmoflow", drives, number) / (drives * one)
        assert busy == pytest.approx(readers / (readers + drives - 1), rel=1e-9)
        assert supply("unet3d", drives, number) == pytest.approx(drives * supply("unet3d", 1, 1), rel=1e-9)
    # By the size of its files, also of a workload that no run is of.
    for workload, accelerator in (("retinanet", "b200"), ("unet3d", "b200")):
        made = workloads.load(workload, accelerator, None)[0]
        found = jobs.ask(workload, accelerator, None, 0.0, None)
        small = made.record_bytes * made.samples_per_file < training.SMALL_FILE
        assert small == (workload == "retinanet") and found.readers == (made.read_threads if small else np.inf)


def test_more_drives_never_train_longer_and_compute_is_the_floor(planner: Planner) -> None:
    for system, drive in itertools.product(("D74H-7U", "D54U-3U", "somebody's"), DRIVES):
        made = planner.training_time([system]).predict([dlrm.Job(system, drive, n) for n in (1, 2, 3, 5, 8, 16, 64)])
        values = [e.value for e in made]
        assert values == sorted(values, reverse=True)
        assert made[-1].bottleneck == "compute" or drive == "D3-S4520"


@pytest.mark.promise("PLN-16")
def test_the_cpu_path_peaks_and_falls_while_its_cores_climb_and_gds_levels_off(planner: Planner) -> None:
    workers = (1, 2, 4, 8, 12, 16, 24, 48, 96, 128)

    def curve(metric: str, path: str, kib: float) -> np.ndarray:
        made = [random_reads.Point(metric, path, kib, w) for w in workers]
        return np.array([e.value for e in planner.random_reads.predict(made)])

    for kib in (4, 8, 32):
        rate = curve("throughput_gbps", "cpu", kib)
        peak = int(np.argmax(rate))
        assert 8 <= workers[peak] <= 24 and rate[-1] < 0.5 * rate[peak]
        assert (np.diff(rate[: peak + 1]) > 0).all() and (np.diff(rate[peak:]) < 0).all()
        direct = curve("throughput_gbps", "gds", kib)
        assert (np.diff(direct) > 0).all() and direct[-1] < 1.05 * direct[-3] and direct[-1] > 2 * rate[-1]
        for path in ("cpu", "gds"):
            cores, latency = curve("cpu_cores_busy", path, kib), curve("latency_us_mean", path, kib)
            assert (np.diff(cores) > -1e-6).all() and cores[-1] <= random_reads.MACHINE_CORES
            assert (np.diff(latency) >= 0).all()
        assert curve("cpu_cores_busy", "cpu", kib)[-1] > 4 * curve("cpu_cores_busy", "gds", kib)[-1]
    for path in ("cpu", "gds"):
        assert (curve("latency_us_mean", path, 32) > curve("latency_us_mean", path, 4)).all()


# Columns as published → rows that no table has, their measured cells blank.
UNSEEN = {
    "gds_vs_cpu": [
        {"drive": d, "path": p, "io_size_kib": k, "gdsio_workers": w}
        for d, p, k, w in itertools.product(("D7-PS1010", "D5-P5336"), ("gds", "cpu"), ("32", "256", "2048", "8192"), ("", "48"))
    ],
    "remote_vs_local": [
        {"drive": d, "location": "remote", "path": "gds", "io_size_kib": k, "snap_queues": "not stated (prose: 32)"}
        for d, k in itertools.product(("D7-P5520", "D3-S4520"), ("32", "256", "8192"))
    ],
    "snap_queues": [
        {"drive": d, "location": "remote", "path": "gds", "io_size_kib": k, "snap_queues": q}
        for d, k, q in itertools.product(("D7-PS1010", "D5-P5336"), ("64", "2048"), ("2", "12", "28"))
    ],
    "mlperf_storage": [
        {"workload": w, "drive": d, "n_drives": n, "system": "D54U-3U", "accelerators_h100_emulated": a, "dataset_gib": "5030"}
        for w, d, n, a in itertools.product(training.WORKLOADS, ("D7-P5520", "D3-S4520"), ("3", "16"), ("", "4"))
    ],
    "micron_gds": [
        {"metric": m, "path": p, "io_size_kib": k, "workers_per_gpu_drive_pair": w, "gpu_drive_pairs": "8"}
        for m, p, k, w in itertools.product(random_reads.METRICS, ("gds", "cpu"), ("8", "32"), ("3", "80"))
    ],
    "dlrm_training_time": [
        {"system": s, "drive": d, "n_drives": n} for s, d, n in itertools.product(("D74H-7U", "other"), DRIVES[:3], ("3", "16"))
    ],
}


@pytest.mark.promise("PLN-16")
@pytest.mark.parametrize("name", UNSEEN)
def test_unseen_rows_in_each_tables_own_columns_are_all_filled(planner: Planner, name: str) -> None:
    columns = list(table(name)[0])
    text = "\n".join([",".join(columns), *(",".join(row.get(c, "") for c in columns) for row in UNSEEN[name])])
    filled, document = predict_text(text, name, planner)
    rows = list(csv.DictReader(filled.splitlines()))
    assert len(rows) == len(UNSEEN[name]) and document["predicted_cells"] > 0
    asked = [c for c in rows[0] if c.endswith("_p10")]
    assert asked and "bottleneck" in rows[0]
    for row, given in zip(rows, UNSEEN[name], strict=True):
        assert row["bottleneck"], row
        for column in (c.removesuffix("_p10") for c in asked):
            low, value, high = (row[f"{column}{end}"] for end in ("_p10", "", "_p90"))
            if given.get(column):
                assert (low, high) == ("", "") and value == given[column]
            else:
                assert 0 <= float(low) <= float(value) <= float(high), (column, row)


HEAD = "drive,location,path,io_size_kib,throughput_gibps,gdsio_workers,snap_queues\n"
RUNS = "workload,drive,n_drives,system,accelerators_h100_emulated,dataset_gib,au_1_pct\n"
TRAIN = "system,drive,n_drives,training_time_min\n"


def test_a_what_if_marks_what_it_extrapolates() -> None:
    system = systems.make({"drive": "D7-PS1010"}, [])
    points = whatif.points(published(), whatif.systems(system, [("io_size", [1 << 20, 1 << 28])], []))
    assert [bool(p["warnings"]) for p in points] == [False, True]
    lines = show.whatif(["io_size"], points).splitlines()
    assert [line.rstrip().endswith("; extrapolated") for line in lines] == [False, False, True]


@pytest.mark.promise("PLN-7")
def test_ten_times_outside_of_what_was_measured_is_answered_marked_and_wider(planner: Planner) -> None:
    loads = HEAD + "D7-PS1010,local,gds,4096,,24,\nD7-PS1010,local,gds,65536,,24,\nD7-PS1010,local,gds,64,,5000,\n"
    runs = RUNS + "unet3d,D7-PS1010,8,D54U-3U,,5030,\nunet3d,D7-PS1010,100,D54U-3U,,5030,\n"
    for text, column in ((loads, "throughput_gibps"), (runs, "accelerators_h100_emulated")):
        near, *beyond = csv.DictReader(predict_text(text, "q.csv", planner)[0].splitlines())
        assert "extrapolated" not in near["bottleneck"]
        for row in beyond:
            assert row["bottleneck"].endswith("; extrapolated")
            # More drives than were measured don't lower what fewer of them give: only the upper end moves.
            wide = [float(r[f"{column}_p90"]) / float(r[column]) for r in (near, row)]
            assert wide[1] > 1.1 * wide[0]
