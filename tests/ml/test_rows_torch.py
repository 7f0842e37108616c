"""`forebay.datasets.Rows` and `forebay.graphs.FeatureStore` with real PyTorch and PyTorch Geometric (make test-ml)."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forebay.datasets import Rows

pytestmark = pytest.mark.ml

COUNTS = (100, 37)
TABLE = np.random.default_rng(11).random((sum(COUNTS), 4, 2), np.float32)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    made = [tmp_path_factory.mktemp("rows") / name for name in "ab"]
    made[0].write_bytes(TABLE[: COUNTS[0]].tobytes())
    made[1].write_bytes(TABLE[COUNTS[0] :].tobytes())
    return made


@pytest.mark.promise("PYT-18")
def test_a_batch_is_collated_without_a_copy(files: list[Path]) -> None:
    import torch

    collate = torch.utils.data.default_collate
    rows, numbers = Rows(files, (4, 2), torch.float32), [7, 120, 3]
    wanted = torch.from_numpy(TABLE[numbers])

    def asked() -> Any:
        return rows.__getitems__(numbers)

    def is_wanted(found: Any) -> bool:
        return all(type(f) is torch.Tensor and torch.equal(f, w) for f, w in zip(found, wanted, strict=True))

    views = asked()
    assert torch.equal(collate(views), wanted) and collate(views).data_ptr() == views[0].data_ptr()
    # Whatever else is done with them, they are views in a list.
    assert isinstance(views, list) and len(views) == 3 and is_wanted(views)
    assert collate(views).data_ptr() != views[0].data_ptr() and torch.equal(collate(views), wanted)
    assert is_wanted(list(asked())) and is_wanted(tuple(asked())) and is_wanted([*asked()]) and is_wanted([] + asked())
    assert is_wanted(asked() + []) and is_wanted(asked()[:2] + asked()[2:]) and is_wanted(asked().copy())
    assert is_wanted(pickle.loads(pickle.dumps(asked()))) and is_wanted([b for a, b in zip(range(3), asked(), strict=True)])
    assert is_wanted(reversed(list(reversed(asked()))))
    assert torch.equal(torch.cat(asked()), torch.cat(list(wanted))) and torch.equal(torch.stack(tensors=asked()), wanted)
    assert torch.equal(torch.stack(asked(), 1), wanted.transpose(0, 1))
    assert torch.equal(torch.stack(asked(), dim=-1)[..., 0], wanted[0])
    assert torch.equal(torch.stack(asked(), out=torch.empty_like(wanted)), wanted) and (np.stack(asked()) == TABLE[numbers]).all()
    views = asked()
    last = views.pop()
    views.append(last)
    views[0] = -views[0]
    assert torch.equal(torch.stack(views)[0], -wanted[0]) and is_wanted([-views[0], *views[1:]])
    with torch._C.DisableTorchFunctionSubclass(), pytest.raises(RuntimeError):
        torch.stack(asked())
    pairs = collate(list(zip(asked(), [1, 2, 3], strict=True)))
    assert torch.equal(pairs[0], wanted) and pairs[1].tolist() == [1, 2, 3]
    assert rows.__getitems__([]) == []


@pytest.mark.promise("PYT-18")
def test_rows_are_tensors_whatever_their_numbers_are_in(files: list[Path]) -> None:
    import torch

    rows, numbers = Rows(files, (4, 2), torch.float32), [7, 120, 3]
    wanted = torch.from_numpy(TABLE[numbers])
    for given in (numbers, tuple(numbers), np.array(numbers), torch.tensor(numbers), torch.tensor(numbers, dtype=torch.int32)):
        assert torch.equal(rows[given], wanted)
    assert torch.equal(rows[90:120:7], torch.from_numpy(TABLE[90:120:7])) and rows[[]].shape == (0, 4, 2)
    flags = Rows(files[0], (), torch.bfloat16)
    assert torch.equal(flags[5:9], torch.from_numpy(TABLE[:1].reshape(-1)).view(torch.bfloat16)[5:9])


@pytest.mark.promise("PYT-18")
def test_a_data_loader_in_this_process_takes_whole_batches(files: list[Path]) -> None:
    import torch

    data = torch.utils.data
    rows, wanted = Rows(files, (4, 2), torch.float32), torch.from_numpy(TABLE)
    order = torch.randperm(len(rows)).split(32)
    assert torch.equal(torch.cat(list(data.DataLoader(rows, batch_size=None, sampler=order))), wanted[torch.cat(order)])
    lists = [numbers.tolist() for numbers in order]
    assert torch.equal(torch.cat(list(data.DataLoader(rows, batch_sampler=lists))), wanted[torch.cat(order)])
    shuffled = torch.cat(list(data.DataLoader(rows, batch_size=32, shuffle=True)))
    assert torch.equal(shuffled.flatten(1).sort(0)[0], wanted.flatten(1).sort(0)[0])


@pytest.mark.promise("PYT-18")
def test_features_are_looked_up_by_tensors(files: list[Path]) -> None:
    import torch
    from forebay.graphs import FeatureStore
    from torch_geometric.data import TensorAttr

    store = FeatureStore().add("paper", "x", files, (4, 2), torch.float32)
    nodes = torch.randint(sum(COUNTS), (500,))
    assert torch.equal(store.get_tensor(TensorAttr("paper", "x", nodes)), torch.from_numpy(TABLE)[nodes])
    store.close()
