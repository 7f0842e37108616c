"""`forebay.torch.Loader` with real PyTorch on the host: tensors, states, ranks under torchrun (make test-ml)."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.ml

ROWS = 1999


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("ml") / "x.npy"
    np.save(made, np.arange(ROWS * 6, dtype="f4").reshape(ROWS, 2, 3))
    return made


@pytest.mark.promise("FEED-13")
def test_batches_are_tensors_of_the_rows_and_stay(path: Path) -> None:
    import torch
    from forebay.torch import Loader

    whole = torch.from_numpy(np.load(path))
    loader, kept = Loader(path, 64, seed=2), []
    for batch in loader:
        assert batch["data"].dtype == torch.float32 and batch["data"].shape[1:] == (2, 3)
        kept.append(batch["data"])
    loader.close()
    del loader, batch
    gc.collect()
    together = torch.cat(kept)
    assert torch.equal(together[together[:, 0, 0].argsort()], whole)


@pytest.mark.promise("FEED-13")
def test_tensors_of_safetensors_have_their_types(tmp_path: Path) -> None:
    import torch
    from forebay.torch import Loader
    from safetensors.torch import save_file

    made = {"x": torch.randn(300, 5).to(torch.bfloat16), "y": torch.arange(300), "z": torch.randn(300, 2, 2) > 0}
    save_file(made, tmp_path / "a.safetensors")
    for batch in Loader(tmp_path, 77, shuffle="blocks"):
        for name, tensor in made.items():
            assert batch[name].dtype == tensor.dtype and torch.equal(batch[name], tensor[batch["y"]]), name


@pytest.mark.promise("FEED-13")
def test_it_trains_as_from_memory(path: Path) -> None:
    """The same model, order and data by both: equal weights at the end."""
    import torch
    from forebay.torch import Loader

    def train(batches: Any) -> Any:
        torch.manual_seed(0)
        model = torch.nn.Linear(6, 1)
        optimiser = torch.optim.SGD(model.parameters(), lr=1e-9)
        for x in batches:
            optimiser.zero_grad()
            model(x.reshape(len(x), 6)).square().mean().backward()
            optimiser.step()
        return model.weight.detach()

    loader, whole = Loader(path, 64, seed=5), torch.from_numpy(np.load(path))
    order = [loader.samples_at(at, min(64, ROWS - at)) for at in range(0, ROWS, 64)]
    assert torch.equal(train(batch["data"] for batch in loader), train(whole[samples] for samples in order))


RANK = """
import json, sys, torch, torch.distributed as dist
from forebay.torch import Loader
dist.init_process_group("gloo")
path, state, steps, out = sys.argv[1:5]
other = sys.argv[5] if len(sys.argv) > 5 and dist.get_rank() else "7"
seed, path = (7, "gone.npy") if other == "gone" else (int(other), path)
loader = Loader(path, 32, seed=seed)
if state != "-":
    loader.load_state_dict(json.load(open(state)))
seen = []
for number, batch in enumerate(loader, 1):
    seen += [int(n) // 6 for n in batch["data"][:, 0, 0]]
    if number == int(steps): break
reported = [None] * dist.get_world_size()
dist.all_gather_object(reported, (seen, loader.state_dict(), loader.hash))
if dist.get_rank() == 0:
    json.dump(reported, open(out, "w"))
dist.destroy_process_group()
"""


def ranks(folder: Path, world: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    script = folder / "rank.py"
    script.write_text(RANK)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
    return subprocess.run(
        [*launch, str(script), *map(str, arguments)], capture_output=True, text=True, timeout=240, check=False
    )


@pytest.mark.promise("FEED-13")
def test_two_ranks_are_continued_by_four_under_torchrun(path: Path, tmp_path: Path) -> None:
    first, second, state = tmp_path / "first", tmp_path / "second", tmp_path / "state"
    done = ranks(tmp_path, 2, path, "-", 9, first)
    assert done.returncode == 0, done.stderr
    reported = json.loads(first.read_text())
    assert reported[0][1] == reported[1][1]
    state.write_text(json.dumps(reported[0][1]))
    done = ranks(tmp_path, 4, path, state, 10**6, second)
    assert done.returncode == 0, done.stderr
    reported += json.loads(second.read_text())
    assert sorted(n for seen, _, _ in reported for n in seen) == list(range(ROWS))

    from forebay.torch import Loader

    whole = Loader(path, 100, seed=7, rank=0, world=1)
    assert sum(1 for _ in whole) == 20
    assert f"{sum(int(part, 16) for _, _, part in reported) % (1 << 64):016x}" == whole.hash


@pytest.mark.promise("FEED-13")
def test_ranks_that_disagree_are_told_so_on_every_rank(path: Path, tmp_path: Path) -> None:
    done = ranks(tmp_path, 2, path, "-", 1, tmp_path / "out", 8)
    assert done.returncode != 0
    assert "rank 0 of data" in done.stderr and "rank 1 has data" in done.stderr and "seed 8" in done.stderr


@pytest.mark.promise("FEED-13")
def test_a_rank_that_has_no_loader_is_named_by_the_others(path: Path, tmp_path: Path) -> None:
    done = ranks(tmp_path, 2, path, "-", 1, tmp_path / "out", "gone")
    assert done.returncode != 0
    assert "rank 1 has none: RequestError: open gone.npy: there is no such file" in done.stderr


@pytest.mark.promise("FEED-7")
def test_a_device_is_named_as_pytorch_names_it(path: Path) -> None:
    import torch
    from forebay.errors import RequestError
    from forebay.torch import Loader

    for device in ("cpu", "cpu:0", torch.device("cpu"), torch.device("cpu", 0)):
        assert next(iter(Loader(path, 8, device=device)))["data"].device == torch.device("cpu")
    for wrong in ("bogus", "meta", None, 1.5, -1):
        with pytest.raises(RequestError, match="device="):
            Loader(path, 8, device=wrong)
