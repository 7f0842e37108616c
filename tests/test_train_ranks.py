"""Ranks of `forebay train` without PyTorch: which tables each has, its supply, what is refused, advice for all of them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import click
import pytest
from fake_machine import typed
from forebay.errors import RequestError
from forebay.train import advice, command, data, ranks, run, supply, verb

LAUNCHED = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


@pytest.mark.promise("TRN-57")
def test_each_table_lies_on_one_rank_and_ranks_are_about_even() -> None:
    rows = list(data.tables(4_000_000))
    for world in (1, 2, 3, 4, 8, 26):
        parts = ranks.shares(list(data.LOOKUPS), rows, world)
        assert sorted(itertools.chain(*parts)) == list(range(26)) and all(parts), world
        looked = [sum(data.LOOKUPS[f] for f in part) / 214 for part in parts]
        held = [sum(rows[f] for f in part) / sum(rows) for part in parts]
        # No rank has much more than the fullest one must: of look-ups 100 are in one table, of rows a sixth.
        assert max(looked) <= max(100 / 214, 1 / world) + 0.1 and max(held) <= 1.4 * max(1 / world, 4e6 / sum(rows)), world
    two = ranks.shares(list(data.LOOKUPS), rows, 2)
    assert all(0.45 < sum(rows[f] for f in part) / sum(rows) < 0.55 for part in two)
    assert all(0.4 < sum(data.LOOKUPS[f] for f in part) / 214 < 0.6 for part in two)
    with pytest.raises(RequestError, match="26 tables"):
        ranks.shares(list(data.LOOKUPS), rows, 27)


@pytest.mark.promise("TRN-57")
def test_hashes_of_ranks_add_up_to_that_of_one_process() -> None:
    rows = data.Teacher(5, 50).rows(0, 0, 96)[0]
    one, shares = run.Digest(), [run.Digest(None, rank, 3) for rank in range(3)]
    for at in range(0, 96, 24):
        one.add(rows[at : at + 24])
        for rank, share in enumerate(shares):
            share.add(rows[at + 8 * rank :][:8])
    reported = [share.sums() for share in shares]
    shares[0].add_others(reported)
    assert (shares[0].text(), shares[0].at()) == (one.text(), one.at()) and shares[0].samples == 96
    assert reported[0] != reported[1]


@pytest.mark.promise("TRN-57")
def test_what_one_process_does_is_refused_under_torchrun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    for name, value in LAUNCHED.items():
        monkeypatch.setenv(name, value)
    for model in ("toy", "gnn"):
        words = () if model == "toy" else ("--dir", "/nowhere")
        code, _, err = typed(capsys, "train", model, *words)
        assert code == 2 and "torchrun started 2 ranks" in err and f"try: forebay train {model} without torchrun" in err
    for words in (("train", "datagen", "dlrm"), ("train", "datagen", "gnn"), ("infer", "datagen", "bert"), ("infer", "toy")):
        code, _, err = typed(capsys, *words, "--dir", tmp_path / "made")
        assert code == 2 and f"try: forebay {' '.join(words)} without torchrun" in err and not (tmp_path / "made").exists()
    monkeypatch.delenv("MASTER_PORT")
    assert ranks.launched() == 1


@pytest.mark.promise("TRN-57")
def test_a_batch_is_shared_evenly_and_a_supply_by_the_gpus(tmp_path: Path) -> None:
    about = data.generate(tmp_path / "d", 5, 1000, 200, 20)
    request = command.Request(about, supply.parse("0.02", 2), 256, ranks=2)
    request.check("cpu")
    assert request.share == 128 and request.supply.gib_s == 0.01
    with click.Context(verb.dlrm) as context:
        found = verb._supply({"gpus": "1", "supply": "0.02"}, 2)
        assert (found.gib_s, found.gpus) == (0.01, 2) and verb._supply({"gpus": "1", "supply": None}, 2).gib_s is None
        context.set_parameter_source("gpus", click.core.ParameterSource.COMMANDLINE)
        assert verb._supply({"gpus": "2", "supply": "0.02"}, 2).gib_s == 0.01
        with pytest.raises(RequestError, match="torchrun started 2 ranks"):
            verb._supply({"gpus": "8", "supply": "0.02"}, 2)
    for batch, ranks_, said in ((255, 2, "--batch-size 256"), (2, 8, "--batch-size 8")):
        with pytest.raises(RequestError) as refused:
            command.Request(about, supply.Supply(None), batch, ranks=ranks_).check("cpu")
        assert refused.value.next == said


@pytest.mark.promise("TRN-57", "TRN-7")
def test_advice_is_of_each_gpu_where_figures_are_of_all() -> None:
    one = {"demand_gib_s": 1.5, "supply_gib_s": 3.0, "peak_samples_per_s": 1e6, "supply": {"kind": "the loader", "gpus": 1}}
    two = {**one, "demand_gib_s": 3.0, "supply_gib_s": 6.0, "peak_samples_per_s": 2e6, "ranks": 2}
    assert advice.needs(advice.Need(1.5, None)) == advice.needs(advice.Need(3.0, None), 2)
    assert advice.verdict(one) == advice.verdict(two) == advice.COMPUTE
    assert "2 such GPUs" in advice.storage(two, supply.drives_for) and "1.4" in advice.storage(two, supply.drives_for)


@pytest.mark.promise("TRN-57")
def test_what_all_ranks_delivered_goes_at_the_sum_of_their_rates() -> None:
    each = run.Delivered(2 << 30, 2.0, run.Cpu(0.5, 0.25)), run.Delivered(3 << 30, 1.0, run.Cpu(1.0, 0.5))
    total = run.Delivered.sum(each)
    assert total is not None and total.gib_s == pytest.approx(4.0) and total.bytes == 5 << 30
    assert (total.cpu.user_s, total.cpu.system_s) == (1.5, 0.75)
    assert run.Delivered.sum((each[0], None)) is None
