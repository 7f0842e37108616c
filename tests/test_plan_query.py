"""`forebay plan predict` as strangers use it: tables as spreadsheets write them, cells that know each other, odd figures."""

from __future__ import annotations

import csv
import io
import random

import pytest
from forebay.errors import RequestError
from forebay.plan import backtest, random_reads, training
from forebay.plan.planner import TABLES, Planner, published
from forebay.plan.predict import ROWS, predict_text
from forebay.plan.published import table
from forebay.plan.tables import FORMS
from properties import parametrized

Row = dict[str, str]


@pytest.fixture(scope="module")
def planner() -> Planner:
    return published()


def blanked(name: str) -> tuple[list[str], list[Row]]:
    """A published table with all that is measured taken out."""
    fills = backtest.FORM[name].fills
    return list(table(name)[0]), [{**row, **{c: "" for c in fills if c in row}} for row in table(name)]


def text_of(columns: list[str], rows: list[Row], **how) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n", **how)
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def filled(planner: Planner, text: str) -> list[Row]:
    return list(csv.DictReader(io.StringIO(predict_text(text, "q.csv", planner)[0])))


def ends(row: Row, column: str) -> tuple[float, float, float]:
    return tuple(float(row[f"{column}{end}"]) for end in ("_p10", "", "_p90"))  # type: ignore[return-value]


@pytest.mark.promise("PLN-1")
@parametrized("name", TABLES, kept=(0, 3, 6))
def test_a_table_is_the_same_however_a_spreadsheet_writes_it(planner: Planner, name: str) -> None:
    columns, rows = blanked(name)
    plain = text_of(columns, rows)
    straight = filled(planner, plain)
    mixed = random.Random(7).sample(columns, len(columns))
    ways = {
        "CRLF": plain.replace("\n", "\r\n"),
        "CR": plain.replace("\n", "\r"),
        "byte order mark": "\ufeff" + plain,
        "blank lines": "\n\n" + plain.replace("\n", "\n\n"),
        "lines of commas": plain + "," * (len(columns) - 1) + "\n",
        "all quoted": text_of(columns, rows, quoting=csv.QUOTE_ALL),
        "columns mixed": text_of(mixed, rows),
        "spaces": plain.replace(",", " , "),
        "no last line end": plain.rstrip("\n"),
    }
    for way, text in ways.items():
        assert filled(planner, text) == straight, way
    for row in straight:
        for column in (c.removesuffix("_p10") for c in row if c.endswith("_p10")):
            low, value, high = ends(row, column)
            assert 0 <= low <= value <= high, (column, row)


@pytest.mark.promise("PLN-1")
@parametrized("name", TABLES, kept=(1, 3, 5, 7))
def test_a_row_alone_is_answered_as_among_others(planner: Planner, name: str) -> None:
    columns, rows = blanked(name)
    together = filled(planner, text_of(columns, rows))
    for i in random.Random(7).sample(range(len(rows)), 4):
        assert filled(planner, text_of(columns, [rows[i]])) == [together[i]]
    extra = [{**row, "mine": 'a, "b"'} for row in rows]
    kept = filled(planner, text_of([*columns, "mine"], extra))
    assert [{k: v for k, v in row.items() if k != "mine"} for row in kept] == together
    assert {row["mine"] for row in kept} == {'a, "b"'}


@pytest.mark.promise("PLN-1")
@parametrized("name", TABLES, kept=(0, 2, 4, 6))
def test_a_table_without_rows_and_one_of_very_many_are_answered(planner: Planner, name: str) -> None:
    columns, rows = blanked(name)
    assert filled(planner, text_of(columns, [])) == []
    many = [rows[i % len(rows)] for i in range(ROWS + 7)]
    answers = filled(planner, text_of(columns, many))
    assert len(answers) == len(many) and answers[ROWS] == filled(planner, text_of(columns, [many[ROWS]]))[0]


RUNS = "workload,drive,n_drives,accelerators_h100_emulated,au_1_pct,au_2_pct,throughput_mibps,valid,au_threshold_pct\n"


@pytest.mark.promise("PLN-1")
def test_what_a_run_says_of_its_own_blanks_is_taken_from_it(planner: Planner) -> None:
    """MiB/s = accelerators × demand × AU: whichever two stand there tell the third."""
    demand = training.DEMAND_MIBPS["unet3d", "h100"]
    half = f"{4 * demand * 0.5:.1f}"
    rows = filled(
        planner,
        RUNS
        + f"unet3d,D7-PS1010,1,4,,,{half},,\nunet3d,D7-PS1010,1,4,60,,,,\n"
        + f"unet3d,D7-PS1010,1,,50,50,{half},,\nunet3d,D7-PS1010,1,,,,{3 * demand * 0.95:.1f},,\n",
    )
    by_rate, by_run, by_both, by_bytes = rows
    assert float(by_rate["au_1_pct"]) == pytest.approx(50, abs=0.1) and by_rate["valid"] == "false"
    assert float(by_run["au_2_pct"]) == 60 and by_run["valid"] == "false"
    assert float(by_run["throughput_mibps"]) == pytest.approx(4 * demand * 0.6, rel=1e-3)
    assert by_both["accelerators_h100_emulated"] == "4"
    assert by_bytes["accelerators_h100_emulated"] == "3" and by_bytes["valid"] == "true"


@pytest.mark.promise("PLN-1")
def test_what_a_strangers_result_says_of_its_own_blanks_is_taken_from_it(planner: Planner) -> None:
    known = next(r for r in table("ext_mlperf_storage_v1.0") if r["workload"] == "unet3d")
    columns = list(known)
    au, number, rate = (float(known[c]) for c in ("au_mean_pct", "num_accelerators", "throughput_mibps"))
    of_au = {**known, "au_mean_pct": "", "samples_per_s": ""}
    of_samples = {**known, "au_mean_pct": "", "throughput_mibps": ""}
    of_number = {**known, "num_accelerators": ""}
    rows = filled(planner, text_of(columns, [of_au, of_samples, of_number]))
    assert [float(r["au_mean_pct"]) for r in rows[:2]] == pytest.approx([au, au], abs=1.5)
    assert float(rows[2]["num_accelerators"]) == pytest.approx(number, rel=0.02)
    assert float(rows[0]["throughput_mibps"]) == rate


@parametrized(
    "blank",
    [
        ("au_min_pct",), ("au_max_pct",), ("au_mean_pct",), ("au_mean_pct", "au_max_pct"), ("au_mean_pct", "au_min_pct"),
        ("au_mean_pct", "au_min_pct", "au_max_pct"), ("throughput_mibps",), ("samples_per_s",),
        ("throughput_mibps", "samples_per_s"), ("identity_ratio",),
    ],
    kept=(0, 3, 6, 9),
)  # fmt: skip
def test_what_follows_from_a_strangers_other_cells_is_near_and_no_surer_than_it_should_be(blank: tuple[str, ...]) -> None:
    """Each submitter left out, so that no ratio or spread of its own is known."""
    name, inside, off = "ext_mlperf_storage_v1.0", [], []
    form = next(f for f in FORMS if f.name == name)
    for org in sorted({r["org"] for r in table(name)}):
        planner = Planner({name: [r for r in table(name) if r["org"] != org]})
        rows = [r for r in table(name) if r["org"] == org]
        asked = [{**r, **dict.fromkeys(blank, "")} for r in rows]
        for row, found in zip(rows, form.predict(planner, asked, [org] * len(rows)), strict=True):
            for column in blank:
                e, real = found[column], float(row[column])
                assert e.p10 < e.p90 and e.p10 <= e.value <= e.p90, (column, e)
                inside.append(e.p10 <= real * (1 + 1e-9) and real <= e.p90 * (1 + 1e-9))
                off.append(abs(e.value / real - 1))
    assert sum(inside) / len(inside) >= 0.75
    assert sum(off) / len(off) <= 0.02


def test_samples_a_second_tell_mib_a_second_to_the_digit(planner: Planner) -> None:
    known = next(r for r in table("ext_mlperf_storage_v1.0") if r["workload"] == "cosmoflow")
    row = filled(planner, text_of(list(known), [{**known, "throughput_mibps": ""}]))[0]
    assert float(row["throughput_mibps"]) == pytest.approx(float(known["throughput_mibps"]), rel=1e-4)


@pytest.mark.promise("PLN-1")
def test_a_row_may_ask_for_another_utilisation_than_the_rules_do(planner: Planner) -> None:
    asked = "".join(f"resnet50,D7-PS1010,1,{n},,,,,{least}\n" for n in ("", "50") for least in ("", "90", "95", "100"))
    rows = filled(planner, RUNS + asked)
    usual, same, more, all_of_it = (float(r["accelerators_h100_emulated"]) for r in rows[:4])
    assert usual == same > more > all_of_it == 0
    assert [r["valid"] for r in rows[4:]] == ["true", "true", "true", "false"]


def test_a_host_that_nobody_knows_may_have_more_or_fewer_process_slots(planner: Planner) -> None:
    header = "workload,drive,n_drives,system,accelerators_h100_emulated\n"
    hosts = ("D54U-3U", "", "Mystery")
    slots = filled(planner, header + "".join(f"unet3d,D7-PS1010,4,{s},\n" for s in hosts))
    bytes_ = filled(planner, header + "".join(f"unet3d,D5-P5336,1,{s},\n" for s in hosts))
    name = "accelerators_h100_emulated"
    ends = [[(int(r[f"{name}_p10"]), int(r[name]), int(r[f"{name}_p90"])) for r in rows] for rows in (slots, bytes_)]
    known, unsaid, unknown = ends[0]
    assert known == unsaid and unknown[1] == known[1]
    assert unknown[0] <= known[0] // 2 and unknown[2] >= 1.5 * known[2]
    # 4 × 13.5 GiB/s feed no more than 18 of them, whatever the host.
    assert unknown[2] <= 20
    # Where bytes limit, the host doesn't matter.
    assert len(set(ends[1])) == 1


def test_a_figure_too_small_to_be_printed_has_an_interval_of_a_rounding(planner: Planner) -> None:
    head = "drive,path,io_size_kib,throughput_gibps,cpu_usr_pct\n"
    row = filled(planner, head + "D3-S4520,gds,16384,,\n")[0]
    low, value, high = ends(row, "cpu_usr_pct")
    assert low == 0 and value < 0.001 and high < 0.01


def test_no_more_cores_are_busy_than_there_are(planner: Planner) -> None:
    head = "workload,path,io_size_kib,workers_per_gpu_drive_pair,gpu_drive_pairs,metric,value\n"
    rows = filled(planner, head + "".join(f"rand read,cpu,4,{w},8,cpu_cores_busy,\n" for w in (12, 96, 1000)))
    assert all(float(r["value_p90"]) <= random_reads.MACHINE_CORES for r in rows)


@pytest.mark.promise("PLN-2")
@parametrized("name", TABLES, kept=(0, 1, 2, 4, 6))
def test_odd_figures_are_answered_or_refused_and_never_a_crash(planner: Planner, name: str) -> None:
    rng = random.Random(7)
    odd = ["1e12", "1e-12", "1e300", "0", "-1", "inf", "nan", "", "abc", "<6", "2.5", "0x10", "1_0", "100", "101", "١"]
    columns, fills = list(table(name)[0]), backtest.FORM[name].fills
    answered = 0
    for _ in range(150):
        row = dict(rng.choice(table(name)))
        for column in fills:
            if column in row and rng.random() < 0.6:
                row[column] = ""
        for column in rng.sample(columns, 2):
            row[column] = rng.choice(odd)
        try:
            found = filled(planner, text_of(columns, [row]))[0]
        except RequestError as error:
            assert error.next
            continue
        answered += 1
        for column in fills:
            if found.get(f"{column}_p10"):
                low, value, high = ends(found, column)
                assert 0 <= low <= value <= high < 1e30, (column, row)
    assert answered > 10
