"""`forebay train gnn` with real PyTorch on the host: layers beside PyTorch Geometric's, the sampler, both ways (make test-ml)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.ml

FOREBAY = [sys.executable, "-c", "import sys; from forebay.cli import main; sys.argv[0] = 'forebay'; main(sys.argv[1:])"]
NODES, CLASSES = 2000, 8
SMALL = ("--device", "cpu", "--batch-size", "32", "--fan-out", "2,1", "--hidden", "32", "--peak-seconds", "0.2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from forebay.train import graph

    made = tmp_path_factory.mktemp("train") / "graph"
    graph.generate(made, 5, NODES, CLASSES)
    return made


def forebay(*words: str) -> subprocess.CompletedProcess[str]:
    """One thread of linear algebra: more of them wait for each other where others run."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return subprocess.run([*FOREBAY, "train", *words], capture_output=True, text=True, timeout=280, env=environment)


def record_of(folder: Path, *words: str) -> dict[str, Any]:
    done = forebay("gnn", "--dir", str(folder), *SMALL, "--json", *words)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.promise("TRN-53")
def test_a_layer_is_pytorch_geometrics() -> None:
    """Equal results and gradients within float32's rounding, attention within each relation."""
    import torch

    pytest.importorskip("torch_geometric")
    from forebay.train import gnn
    from torch_geometric.nn import RGATConv

    torch.manual_seed(1)
    nodes, relations, heads, width, inputs = 50, 3, 4, 6, 12
    ours = gnn.layer(torch, inputs, width, relations, heads)
    theirs = RGATConv(inputs, width, relations, heads=heads, attention_mechanism="within-relation")
    with torch.no_grad():
        for name in ("weight", "q", "k", "bias"):
            parameter = getattr(ours, name)
            parameter.copy_(torch.randn_like(parameter))
            getattr(theirs, name).copy_(parameter)
    edges = [(torch.randint(0, nodes, (n,)), torch.randint(0, nodes, (n,))) for n in (120, 40, 1)]
    x = torch.randn(nodes, inputs)
    kinds = torch.cat([torch.full((len(source),), r) for r, (source, _) in enumerate(edges)])
    index = torch.stack([torch.cat([pair[side] for pair in edges]) for side in (0, 1)])
    mine, known = ours(x, edges, nodes), theirs(x, index, kinds)
    assert torch.allclose(mine, known, rtol=1e-4, atol=1e-4)
    assert torch.allclose(ours(x, [(s[t < 20], t[t < 20]) for s, t in edges], 20), known[:20], rtol=1e-4, atol=1e-4)
    target = torch.randn_like(known)
    (mine * target).sum().backward()
    (known * target).sum().backward()
    for name in ("weight", "q", "k", "bias"):
        a, b = getattr(ours, name).grad, getattr(theirs, name).grad
        assert torch.allclose(a, b, rtol=1e-3, atol=1e-3), name


@pytest.mark.promise("TRN-53")
def test_a_sample_has_distinct_neighbours_that_are_some_and_stands_in_order(folder: Path) -> None:
    import torch
    from forebay.train import gnn, graph

    about = graph.open_folder(folder)
    label, relations = graph.read(about)
    sampler = gnn.Sampler(label, relations, "cpu", (5, 3), 9)
    seeds = torch.as_tensor(graph.training(about)(100, 40))
    batch = sampler.sample(seeds, 7)
    again = sampler.sample(seeds, 7)
    assert (batch.nodes == again.nodes).all() and not torch.equal(batch.nodes, sampler.sample(seeds, 8).nodes)
    nodes = batch.nodes.numpy()
    assert len(set(nodes)) == len(nodes) == batch.upto[-1] and (nodes[:40] == seeds.numpy()).all()
    assert (batch.labels.numpy() == label[seeds.numpy()]).all() and len(batch) == 40
    for hop, fan_out in enumerate((5, 3)):
        first, end = ([0, *batch.upto][hop], batch.upto[hop])
        for (begins, neighbours), (source, to) in zip(relations, batch.edges[hop], strict=True):
            assert set(to.tolist()) == set(range(first, end)) and int(source.max()) < batch.upto[hop + 1]
            for place in range(first, end, 7):
                node = nodes[place]
                own = neighbours[begins[node] : begins[node + 1]]
                drawn = nodes[source[to == place].numpy()]
                assert len(drawn) == min(fan_out, len(own))
                # Of a list that has a node twice, each place is drawn once at most.
                assert all((drawn == n).sum() <= (own == n).sum() for n in drawn)
    # Every neighbour of a node with many of them is drawn about equally often.
    begins, neighbours = relations[0]
    most = int(np.diff(begins).argmax())
    one = torch.as_tensor([most])
    draws = np.concatenate([sampler.sample(one, step).nodes[sampler.sample(one, step).edges[0][0][0]] for step in range(400)])
    share = len(set(draws)) / len(set(neighbours[begins[most] : begins[most + 1]]))
    assert share > 0.9


@pytest.mark.promise("TRN-53", "TRN-54")
def test_both_ways_train_the_same_batches_to_the_same_quality(folder: Path, tmp_path: Path) -> None:
    words = ("--epochs", "1", "--evaluate-every", "640", "--target-accuracy", "0.89")
    from forebay import _core

    records = [record_of(folder, "--way", way, *words) for way in ("bulk", "gather")]
    assert all(json.loads(_core.read_record(json.dumps(record))) == record for record in records)
    bulk, gather = (record["train"] for record in records)
    assert bulk["batch_hash"] == gather["batch_hash"] and bulk["batch_hash_at"] == gather["batch_hash_at"]
    assert bulk["samples"] == gather["samples"] and bulk["steps"] == gather["steps"] > 20
    qualities = [[(e["samples"], e["quality"]) for e in part["evaluations"]] for part in (bulk, gather)]
    assert qualities[0] == qualities[1] and len(qualities[0]) >= 2
    assert bulk["graph"]["load_s"] > 0 and gather["graph"]["load_s"] is None
    for part in (bulk, gather):
        ways = part["graph"]["ways"]
        assert all(ways[way]["epoch_s"] > 0 and ways[way]["sum_s"] > 0 for way in ways)
        assert part["graph"]["first_batch_s"] > 0 and part["graph"]["bytes_per_sample"] > 2048
        assert [a["area"] for a in part["advice"]] == ["storage", "gds", "balance", "epochs"]
    assert bulk["bytes"]["staged"] + bulk["bytes"]["mapped"] + bulk["bytes"]["direct"] >= NODES * 2048


@pytest.mark.promise("TRN-53")
def test_it_learns_beyond_what_a_nodes_own_features_tell(folder: Path) -> None:
    part = record_of(folder, "--way", "bulk", "--epochs", "8", "--target-accuracy", "0.6")["train"]
    assert part["samples_to_target"] and part["quality"] >= 0.6 > 3 / CLASSES and part["quality"] <= part["quality_best"] + 0.02
    assert part["parts"]["load_s"] > 0 and part["seconds_to_target"] > part["seconds"]


@pytest.mark.promise("TRN-54", "TRN-9")
def test_a_load_takes_its_bytes_over_the_supply_and_each_null_has_a_reason(folder: Path) -> None:
    """And takes no less than that, however busy the machine is."""
    record = record_of(folder, "--way", "bulk", "--supply", "0.01", "--samples", "128", "--target-accuracy", "none")
    part, missing = record["train"], record["missing"]
    expected = NODES * 2048 / (0.01 * 2**30)
    assert part["graph"]["load_s"] >= 0.95 * expected
    nulls = [key for key, value in part.items() if value is None and key not in ("quality_target", "evaluate_every")]
    assert all(missing.get(f"train.{key}") for key in nulls), nulls
    nulls = [key for key, value in part["graph"].items() if value is None]
    assert all(missing.get(f"train.graph.{key}") for key in nulls), nulls


@pytest.mark.promise("TRN-8")
def test_what_cannot_be_is_refused_by_name(folder: Path, capsys: Any) -> None:
    from forebay.cli import main

    for words, said in (
        (("--supply", "100000"), "a load brings"),
        (("--target-accuracy", "0.99"), "drawn by chance"), (("--hidden", "6"), "4 heads"), (("--fan-out", "x"), "isn't up to 8"),
        (("--epochs", "1", "--samples", "5"), "one of them"), (("--path", "mapped"), "runs on the CPU"),
        (("--data-seed", "6"), "has 5"), (("--batch-size", "100000"), "nodes are trained on"),
    ):  # fmt: skip
        with pytest.raises(SystemExit) as done:
            main(["train", "gnn", "--dir", str(folder), *SMALL, *words])
        assert done.value.code == (3 if words[0] == "--supply" else 2) and said in capsys.readouterr().err, words


@pytest.mark.promise("TRN-43", "TRN-50")
def test_seeds_of_it_have_a_spread_and_logs(folder: Path, tmp_path: Path) -> None:
    words = ("--way", "gather", "--samples", "320", "--evaluate-every", "160", "--target-accuracy", "0.89", "--seeds", "3")
    out = ("-o", str(tmp_path / "s.jsonl"), "--mllog", str(tmp_path / "package"), "--json")
    done = forebay("gnn", "--dir", str(folder), *SMALL, *words, *out)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["spread"]["rows"]
    assert [row["converged"] for row in rows] == [False] * 3 and all("before accuracy 0.89" in row["why"] for row in rows)
    results = sorted((tmp_path / "package").glob("results/*/gnn/result_*.txt"))
    assert len(results) == 3 and '"opt_name", "value": "adam"' in results[0].read_text()
    pytest.importorskip("mlperf_logging")
    from mlperf_logging.compliance_checker import mlp_compliance

    checker = mlp_compliance.make_checker("training", "4.1.0", False, True)
    assert mlp_compliance.main(str(results[0]), "training_4.1.0/common.yaml", checker)[0]
