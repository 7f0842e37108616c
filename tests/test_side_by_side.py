"""How the peers' commands compare: the order of runs, the ratios, the verdicts, and what they write."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))

import kept  # noqa: E402
import publish  # noqa: E402
import side_by_side  # noqa: E402
from side_by_side import GIB, Bound, Cell, Contender, Figure, find_depth, interleave, judge, table  # noqa: E402


def figure(gib_s: float, cpu_ms_per_gib: float | None = 10.0) -> Figure:
    cpu_s = None if cpu_ms_per_gib is None else cpu_ms_per_gib * gib_s / 1e3
    return Figure(1.0, int(gib_s * GIB), 1000, cpu_s, 0.1)


def contender(name: str, *runs: Figure, order: list[str] | None = None) -> Contender:
    left = list(runs)

    def measure(seconds: float) -> Figure:
        if order is not None:
            order.append(name)
        return left.pop(0)

    return Contender(name, measure, [name])


def test_a_cell_that_cannot_be_built_here_is_refused_with_what_to_install(capsys: pytest.CaptureFixture[str]) -> None:
    def build() -> Cell:
        raise side_by_side.Unavailable("fio isn't installed; try: apt install fio")

    assert side_by_side.compare("t", argparse.Namespace(), [build]) == 3
    assert capsys.readouterr().err == "fio isn't installed; try: apt install fio\n"


def test_rounds_go_forwards_then_backwards() -> None:
    order: list[str] = []
    both = [contender(n, *[figure(1)] * 4, order=order) for n in "AB"]
    figures, noise = interleave(Cell("x", both, []), 4, 1.0, lambda text: None)
    assert "".join(order) == "ABBAABBA" and len(figures["A"]) == len(noise) == 4


def test_a_debug_build_is_named_and_nothing_of_it_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proofs = {"child": {"ready": {"forebay build": "uring debug"}}, "command": {"build": {"features": ["debug"]}}}
    made = [contender(n, *[Figure(1.0, GIB, 1000, 0.1, None, proof)] * 2) for n, proof in {**proofs, "peer": {}}.items()]
    options = argparse.Namespace(rounds=2, seconds=0, json=None, publish=True, dir=tmp_path, only=None)
    assert side_by_side.compare("t", options, [lambda: Cell("x", made, [], ours="child")]) == 2
    out = capsys.readouterr()
    assert "child, command: a debug build of Forebay" in out.out and "nothing is kept of a debug build" in out.err


def test_only_figures_of_one_round_are_compared() -> None:
    """The machine halves its speed between the rounds; the ratio doesn't notice."""
    figures = {"forebay": [figure(2), figure(1), figure(4)], "peer": [figure(1), figure(0.5), figure(2)]}
    reported = judge(Bound("rate", ("peer",), at_least=1.9), Cell("x", [], []), figures)
    assert reported["ratios"] == pytest.approx([2, 2, 2], rel=1e-6) and reported["holds"]


def test_the_fastest_peer_is_the_one_to_beat() -> None:
    figures = {"forebay": [figure(2)], "slow": [figure(1)], "fast": [figure(3)]}
    reported = judge(Bound("rate", ("slow", "fast"), at_least=1.0, pick="fastest"), Cell("x", [], []), figures)
    assert reported["against"] == ["fast"] and not reported["holds"]


def test_a_bound_that_must_be_sure_holds_by_the_lower_end_of_its_interval() -> None:
    bound = Bound("rate", ("peer",), at_least=0.97, sure=True)
    steady = {"forebay": [figure(r) for r in (0.99, 1.0, 0.98, 0.99)], "peer": [figure(1)] * 4}
    reported = judge(bound, Cell("x", [], []), steady)
    assert reported["holds"] and reported["interval"] == pytest.approx((0.977, 1.003), abs=0.002)
    loose = {**steady, "forebay": [figure(r) for r in (1.1, 0.9, 1.1, 0.9)]}
    reported = judge(bound, Cell("x", [], []), loose)
    assert reported["median"] == pytest.approx(1.0) and not reported["holds"]
    assert "95 % interval" in side_by_side.verdict(Cell("x", [], []), reported)
    dear = {"forebay": [figure(1, c) for c in (10.1, 10.3, 10.2, 10.4)], "peer": [figure(1)] * 4}
    most = {limit: Bound("cost", ("peer",), at_most=limit, sure=True) for limit in (1.0, 1.02)}
    assert [judge(bound, Cell("x", [], []), dear)["holds"] for bound in most.values()] == [False, True]


def test_time_is_compared_by_its_difference() -> None:
    def once(us: float) -> Figure:
        return Figure(1.0, 4096, round(1e6 / us), 0.1, 0.1)

    figures = {"forebay": [once(12), once(24)], "peer": [once(6), once(19)]}
    reported = judge(Bound("time", ("peer",), at_most=8.0), Cell("x", [], [], per="I/O"), figures)
    assert reported["ratios"] == pytest.approx([6, 5], abs=0.01) and reported["holds"]
    assert "µs beyond peer" in side_by_side.verdict(Cell("x", [], []), reported)


def test_the_slower_stage_is_found_in_each_round() -> None:
    figures = {
        "forebay": [figure(1), figure(1)],
        "read": [figure(1), figure(4)],
        "copy": [figure(4), figure(2)],
    }
    reported = judge(Bound("rate", ("read", "copy"), at_least=0.95), Cell("x", [], []), figures)
    assert reported["ratios"] == pytest.approx([1.0, 0.5], rel=1e-6)


def test_cpu_is_compared_like_with_like() -> None:
    """A peer that doesn't tell its CPU of the measured time is compared by the whole process on both sides."""
    figures = {"forebay": [figure(2, 1.0)], "peer": [figure(1, None)]}
    reported = judge(Bound("cost", ("peer",), at_most=1.0), Cell("x", [], []), figures)
    assert reported["ratios"] == pytest.approx([0.5], rel=1e-6)


def test_a_peer_that_did_not_run_leaves_its_bound_open() -> None:
    cell = Cell("x", [], [])
    reported = judge(Bound("rate", ("absent",), at_least=1.0), cell, {"forebay": [figure(1)]})
    assert reported["holds"] is None and "absent" in side_by_side.verdict(cell, reported)


def test_the_depth_chosen_is_the_cheapest_of_the_fastest() -> None:
    speeds = {1: figure(1.0, 5), 8: figure(1.98, 6), 32: figure(2.0, 9)}
    chosen, how = find_depth(lambda d: contender(str(d), speeds[d]), [1, 8, 32], 1.0, lambda text: None)
    assert chosen.name == "8" and how["depth"] == 8


def test_a_published_result_replaces_the_one_of_its_command_and_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "FOLDER", tmp_path)
    monkeypatch.setattr(publish, "PAGE", tmp_path / "benchmarks.md")
    monkeypatch.setattr(sys, "argv", ["bench/stripe.py"])
    options = argparse.Namespace(dir=tmp_path, rounds=5, seconds=1.0, publish=True)
    for gib_s in (1, 2):
        figures = {"stripe": [figure(gib_s), figure(3)], "one file": [figure(2), figure(2)]}
        cell = Cell("1m", [], [], ours="stripe")
        settled = [judge(Bound("rate", ("one file",), at_least=0.95), cell, figures)]
        side_by_side.publish("A stripe", options, side_by_side.section("A stripe", options, table([(cell, figures, settled)])))
    (one,) = kept.load()
    assert one["command"] == "python bench/stripe.py --dir DIR --rounds 5" and one["seconds"] == 1.0 and one["date"]
    assert one["tables"][0]["rows"][0][:4] == ["1m", "stripe", [2.5, 2.0, 3.0], [10.0, 10.0, 10.0]]
    assert one["bounds"] == [{"bound": "1m: rate of stripe ≥ 0.95 × one file", "value": [1.25, 1.0, 1.5], "holds": True}]
    page = (tmp_path / "benchmarks.md").read_text()
    assert "| one file | 2.00 GiB/s | 10.0 ms/GiB | 1.25 (1.00–1.50) |" in page and "- All bounds hold: `stripe.py" in page


def test_bounds_that_do_not_hold_are_named_below_their_table() -> None:
    text = "- 1m: rate of a ≥ 2.0 × b: 1.25 (1.15–1.31), **does not hold**\n- under 1 s: holds\n- 1m: left out: b: absent\n"
    machine = {"cpu": "AMD EPYC", "cores": 2, "gpu": None, "date": "2026-11-27"}
    result = kept.document("x", "python bench/x.py --dir DIR", machine, text, None)
    assert [bound["holds"] for bound in result["bounds"]] == [False, True] and result["left_out"] == ["1m: left out: b: absent"]
    assert publish.notes([result]).endswith("1 of 2 hold, **not** 1m: rate of a ≥ 2.0 × b: 1.25.\n")
    assert kept.name(result) == "x-amd-2-cores.json"
    for parts, known in [("in_memory", "x"), ("control", "x-control"), ("in_memory,starts", "x-starts")]:
        told = result | {"command": f"python bench/x.py --dir DIR --only x --parts {parts}"}
        assert kept.name(told) == known.replace("x", "x-amd-2-cores-x") + ".json"


def test_few_commands_are_counted_in_thousands() -> None:
    slow, fast = (Figure(1.0, n * 4096, n, 0.1, 0.1) for n in (2600, 2_600_000))
    cell = Cell("x", [], [], per="I/O")
    assert "| thousand I/Os per s |" in (text := table([(cell, {"forebay": [slow]}, [])])) and "| 2.60 (2.60–2.60) |" in text
    text = table([(cell, {"forebay": [fast], "peer": [slow]}, [])])
    assert "| million I/Os per s |" in text and "| 2.60 (2.60–2.60) |" in text


def test_the_table_has_a_row_for_each_contender() -> None:
    figures = {"forebay": [figure(2)], "peer": [figure(1, None)]}
    cell = Cell("1m", [], [], chosen={"peer": {"depth": 8}})
    text = table([(cell, figures, [judge(Bound("rate", ("peer",), at_least=1.6), cell, figures)])])
    assert "| 1m | peer, depth 8 | 1.00 (1.00–1.00) | – | 100.0 (100.0–100.0) | 2.00 (2.00–2.00) |" in text
    assert "≥ 1.6 × peer: 2.00 (2.00–2.00), holds" in text


def test_a_folder_that_is_missing_or_none_ends_a_command_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = side_by_side.arguments("x", seconds=1)
    assert parser.parse_args(["--dir", str(tmp_path)]).dir == tmp_path
    (tmp_path / "file").touch()
    for name, said in [("a b", f"mkdir -p '{tmp_path}/a b'"), ("file", "is no folder")]:
        with pytest.raises(SystemExit) as ended:
            parser.parse_args(["--dir", str(tmp_path / name)])
        assert ended.value.code == 2 and said in capsys.readouterr().err


def test_options_without_effect_and_missing_files_are_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import kv_blocks

    def refused(*words: object) -> str:
        monkeypatch.setattr(sys, "argv", ["kv_blocks.py", "--dir", str(tmp_path), *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            kv_blocks.main()
        assert ended.value.code == 2
        return capsys.readouterr().err

    (trace := tmp_path / "mooncake.jsonl").touch()
    assert "--trace has no effect without --gpu: add --gpu" in refused("--trace", trace)
    assert "--device has no effect without --gpu" in refused("--device", 1)
    assert f"{trace}l does not exist" in refused("--gpu", "--trace", f"{trace}l")
    assert f"{tmp_path / 'out.json'}" in refused("--json", tmp_path)
    assert "give 1 or more" in refused("--rounds", 0)
    monkeypatch.setattr(sys, "argv", ["kv_blocks.py", "--dir", str(tmp_path), "--only", "32 MiB"])
    assert kv_blocks.main() == 2 and "no cell's name holds '32 MiB'" in capsys.readouterr().err
