"""`forebay plan run --workload kvcache` and `plan recommend --kv-users`: a serving engine's cache planned from data sheets."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from fake_machine import typed
from forebay.plan import kvusers, show

ONE = ("--drive", "D7-PS1010", "--workload", "kvcache")


def planned(capsys: Any, *flags: Any) -> dict[str, Any]:
    code, out, err = typed(capsys, "plan", "run", *flags, "--json")
    assert code == 0, err
    return json.loads(out)


@pytest.mark.promise("KVC-40")
def test_an_option_is_predicted_from_a_data_sheet_with_an_interval_and_its_reason(capsys: Any) -> None:
    row = planned(capsys, *ONE, "--option", "1")
    assert row["origin"] == "predicted" and row["kvcache"]["users"] == 200
    assert row["read_as_published_gib_s"] == pytest.approx(14.53, rel=0.05)
    assert 12.4 < row["read_drained_gib_s"] < 13.5
    for name in ("throughput_gib_s", "write_gib_s", "storage_tokens_per_s", "entry_read_p95_ms"):
        assert row[f"{name}_p10"] <= row[name] <= row[f"{name}_p90"]
    assert row["throughput_gib_s_p90"] <= 13.51  # no drive is faster than its data sheet
    assert "admission" in row["bottleneck"] and "published" in row["interval"] and row["assumptions"]
    assert {p["name"] for p in row["parameters"]} >= {"read bandwidth[D7-PS1010]", "write bandwidth[D7-PS1010]"}
    said = show.kvcache(row)
    assert "read, as published" in said and "15.2" in said, "the text says the same as the document"


@pytest.mark.long
@pytest.mark.promise("KVC-40")
def test_twice_the_drives_move_more(capsys: Any) -> None:
    one, two = (planned(capsys, *ONE, "--option", "1", "--drives", drives) for drives in (1, 2))
    assert two["throughput_gib_s"] > 1.5 * one["throughput_gib_s"]


@pytest.mark.promise("KVC-41")
@pytest.mark.parametrize("least", [1, 2, 3, 7, 64, 128, 129])
def test_the_least_number_is_found_by_few_trials(least: int) -> None:
    tried: list[int] = []

    def serves(number: int) -> bool:
        tried.append(number)
        return number >= least

    assert kvusers.fewest(serves, 1, 128) == (least if least <= 128 else None)
    assert len(tried) <= 16


@pytest.mark.long
@pytest.mark.promise("KVC-41")
def test_the_fewest_drives_serve_the_users_in_time(capsys: Any) -> None:
    small = ("--model", "layers=4,kv_heads=4,head_dim=64")
    code, out, err = typed(capsys, "plan", "recommend", "--kv-users", "20", *small, "--p95", "2s", "--json")
    assert code == 0, err
    found = json.loads(out)
    best = found["choices"][0]
    assert best["drives"] >= 1 and best["p95_ms"] <= 2000 and best["users_max"] >= 20
    by_drive = {choice["drive"]: choice["drives"] for choice in found["choices"]}
    assert by_drive["D7-PS1010"] <= by_drive.get("D5-P5336", 128)


DRIVES = """
[[drive]]
name = "one"
kind = "nvme-tlc"
seq_read_mbps = 14500
seq_write_mbps = 10000
capacity_tb = 4
endurance_pbw = 10
price = 500
watts = 20
[[drive]]
name = "two"
kind = "nvme-tlc"
seq_read_mbps = 14500
seq_write_mbps = 10000
capacity_tb = 16
endurance_pbw = 100
price = 1500
[[drive]]
name = "unknown"
kind = "nvme-tlc"
seq_read_mbps = 14500
seq_write_mbps = 10000
"""


@pytest.mark.long
@pytest.mark.promise("KVC-41")
def test_users_of_a_cache_have_the_needs_of_any_purchase(capsys: Any, tmp_path: Any) -> None:
    sheets = tmp_path / "mine.toml"
    sheets.write_text(DRIVES)
    asked = ("--kv-users", "1", "--model", "layers=4,kv_heads=4,head_dim=64", "--p95", "1h", "--catalogue", sheets)
    asked += ("--capacity", "16", "--writes", "50", "--years", "2", "--parity", "1", "--host-price", "100")
    asked += ("--by", "price", "--json")
    code, out, err = typed(capsys, "plan", "recommend", *asked)
    assert code == 0, err
    found = json.loads(out)
    # 36.5 PB in two years: four of 10 PB, which also hold 16 TB; one of 100 PB. Each with one of parity, in a host of 100.
    rows = [(c["drive"], c["drives"], c["parity_drives"], c["price"], c["watts"], c["capacity_tb"]) for c in found["choices"]]
    assert rows == [("one", 5, 1, 2600.0, 100.0, 16.0), ("two", 2, 1, 3100.0, None, 16.0)]
    assert any(text.startswith("unknown: no capacity_tb") for text in found["left_out"])
    assert "5 × one (1 of them for parity)" in found["decision"] and all(a["flags"] for a in found["assumed"])
    for choice in found["choices"]:
        code, out, err = typed(capsys, *shlex.split(choice["command"])[1:], "--json")
        assert code == 0 and json.loads(out)["request_p95_ms_p90"] <= 3_600_000, err
    for choice, pbw in zip(found["choices"], (40, 100), strict=True):
        assert choice["endures_years"] == pytest.approx(1000 * pbw / (365 * choice["writes_tb_day"]))


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("run", *ONE, "--option", "4"), "option"),
        (("run", *ONE, "--model", "llama9"), "llama3.1-8b"),
        (("run", *ONE, "--users", "0"), "users"),
        (("run", "--drive", "D7-PS1010", "--workload", "unet3d", "--users", "5"), "kvcache"),
        (("recommend", "--kv-users", "0"), "--kv-users"),
        (("recommend", "--kv-users", "5", "--p95", "never"), "--p95"),
        (("recommend", "--accelerators", "5", "--workload", "unet3d", "--p95", "1s"), "--kv-users"),
        (("recommend", "--kv-users", "5", "--gib-s", "3"), "--kv-users"),
        (("recommend", "--kv-users", "5", "--bays", "8"), "--bays"),
        (("recommend", "--kv-users", "5", "--by", "price"), "price"),
        (("recommend", "--kv-users", "5", "--parity", "3"), "--parity"),
    ],
)
def test_what_cannot_be_planned_is_refused(capsys: Any, words: tuple[str, ...], named: str) -> None:
    code, out, err = typed(capsys, "plan", *words)
    assert code == 2 and out == "" and named in err, err
