"""The fused look-up and update of `forebay train dlrm` against torch's own: by Triton's interpreter, or on a GPU where one is."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.ml
ON_GPU = os.path.exists("/dev/nvidiactl")
if not ON_GPU and importlib.util.find_spec("triton"):
    # Read where Triton is imported.
    os.environ["TRITON_INTERPRET"] = "1"
STEPS = 1000
WIDTH = 16


@pytest.fixture(params=["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    name: str = request.param
    if (name == "cpu") == ON_GPU:
        pytest.skip(f"kernels are interpreted, or compiled for a GPU, in one process: here not for {name}")
    if name == "cpu":
        from forebay.train import fused

        # The interpreter takes a program after the other: few large ones, where that changes nothing.
        monkeypatch.setattr(fused, "BLOCK", 1 << 17)
    return name


def both(counts: tuple[int, ...], lookups: tuple[int, ...], device: str) -> tuple[Any, Any, Any]:
    """Vectors of ours, torch's with the same weights, and its Adagrad."""
    import torch
    from forebay.train import fused

    torch.sparse.check_sparse_tensor_invariants.disable()
    torch.manual_seed(1)
    weight = torch.empty(sum(counts), WIDTH, device=device).uniform_(-0.05, 0.05)
    ours = fused.Vectors(weight.clone(), counts, lookups, sum(lookups), 0)
    theirs = torch.nn.EmbeddingBag(*weight.shape, mode="sum", sparse=True, _weight=weight.clone())
    return ours, theirs, torch.optim.Adagrad(theirs.parameters(), lr=0.01)


@pytest.mark.promise("TRN-20")
def test_its_updates_are_those_of_torchs_adagrad_over_a_thousand_steps(device: str) -> None:
    """Rows looked up once, several times, and by nearly all of a step; bags with one row twice; equal gradients for both."""
    import torch
    from forebay.train import data

    counts, lookups, samples = (1, 40), (1, 3), 8
    ours, theirs, adagrad = both(counts, lookups, device)
    wrong = torch.zeros(3, dtype=torch.int64, device=device)
    draw = torch.Generator().manual_seed(2)
    ends = (torch.arange(samples)[:, None] * sum(lookups) + torch.tensor(data.starts(lookups))).flatten().to(device)
    seen: set[int] = set()
    for _ in range(STEPS):
        skewed = [(torch.rand(samples, generator=draw) ** 4 * counts[f]).int() for f, n in enumerate(lookups) for _ in range(n)]
        rows = torch.stack(skewed, 1).contiguous().to(device)
        gradients = torch.randn(samples, (1 + len(counts)) * WIDTH, generator=draw).to(device)
        keys = ours.keys(rows, wrong)
        adagrad.zero_grad()
        (theirs(keys, ends).view(samples, -1) * gradients[:, WIDTH:]).sum().backward()
        adagrad.step()
        ordered, order = torch.sort(keys)
        seen |= set(torch.unique_consecutive(ordered, return_counts=True)[1].tolist())
        ours.update(ordered, order, gradients, 0.01, heads=32, tile=4, long=4)
    assert min(seen) == 1 and max(seen) > 8 and seen & {2, 3, 4}, seen
    state = adagrad.state[theirs.weight]["sum"]
    torch.testing.assert_close(ours.sums, state, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours.weight, theirs.weight.data, rtol=1e-5, atol=1e-6)
    assert not wrong.any()


def test_its_digest_is_the_hosts(device: str) -> None:
    import torch
    from forebay.train import data, fused, run

    rows = np.random.default_rng(3).integers(-(1 << 31), 1 << 31, (37, data.WORDS), dtype=np.int32)
    odd = torch.as_tensor(run.odd_numbers(), device=device)
    for position in (0, 1, 5_000_000_000):
        found = fused.digest(torch.as_tensor(rows, device=device), odd, position)
        assert int(found) % (1 << 64) == run.digest(rows, position)


@pytest.mark.promise("TRN-20")
def test_its_sums_of_bags_are_torchs_and_what_is_beyond_a_table_counts(device: str) -> None:
    import torch
    from forebay.train import data

    counts, lookups, samples = (3, 50, 9), (1, 11, 2), 5
    ours, theirs, _ = both(counts, lookups, device)
    draw = torch.Generator().manual_seed(3)
    numbers = [torch.randint(0, counts[f], (samples,), generator=draw) for f, n in enumerate(lookups) for _ in range(n)]
    rows = torch.stack(numbers, 1).int()
    rows[2, 4], rows[3, 0], rows[4, 13] = 50, -1, 9
    wrong = torch.zeros(3, dtype=torch.int64, device=device)
    keys = ours.keys(rows.to(device), wrong)
    assert wrong.tolist() == [3, 0, 0]
    keys_of = keys.view(samples, -1)
    assert (keys_of[2, 4], keys_of[3, 0], keys_of[4, 13]) == (3 + 49, 0, 3 + 50 + 8)
    out = torch.full((samples, 4 * WIDTH), 7.0, device=device)
    ours.bags(keys, out)
    ends = (torch.arange(samples)[:, None] * sum(lookups) + torch.tensor(data.starts(lookups))).flatten().to(device)
    torch.testing.assert_close(out[:, WIDTH:], theirs(keys, ends).view(samples, -1).detach(), rtol=1e-5, atol=1e-6)
    assert (out[:, :WIDTH] == 7).all()


@pytest.mark.promise("TRN-20")
def test_whole_steps_have_the_losses_of_the_model_with_torchs_optimizer(device: str) -> None:
    """Float32 throughout: what is left are roundings. On a GPU most of these steps are a replayed graph's."""
    import torch
    from forebay.train import data, dlrm, fused

    on_gpu = device != "cpu"
    cap, samples, steps, rate = (1000, 512, STEPS, 5e-5) if on_gpu else (30, 2, 3, 5e-4)
    counts = data.tables(cap)
    theirs = dlrm.Model(counts, 3, device, rate, "torch", half=False)
    ours = dlrm.Model(counts, 3, device, rate, "fused" if on_gpu else "torch", half=False)
    if not on_gpu:
        ours._fused = fused.Step(ours._net, counts, rate, ours._wrong)
    teacher = data.Teacher(5, cap)
    rows = torch.cat([torch.from_numpy(teacher.rows(0, n, data.CHUNK)[0]) for n in range(8 if on_gpu else 1)]).to(device)
    for step in range(steps):
        at = step * samples % len(rows)
        theirs.step(rows[at : at + samples])
        ours.step(rows[at : at + samples])
        # As far from torch's as those are from themselves with each batch's samples reversed: 9e-5.
        assert float(ours.loss) == pytest.approx(float(theirs.loss), rel=1e-3), step
    assert ours.problem() is None and theirs.problem() is None
    if on_gpu:
        before = float(ours.loss)
        ours.reset()
        first = []
        for _ in range(2):
            ours.reset()
            ours.step(rows[:samples])
            first.append(float(ours.loss))
        assert first[0] == first[1] != before


@pytest.mark.promise("TRN-20")
def test_the_fused_one_is_refused_where_it_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    from forebay.errors import MachineError
    from forebay.train import dlrm

    pytest.importorskip("triton")
    assert dlrm.optimizer_of(None, "cpu") == dlrm.optimizer_of("torch", "cuda:0") == "torch"
    with pytest.raises(MachineError, match="--optimizer torch"):
        dlrm.optimizer_of("fused", "cpu")
    monkeypatch.setenv("CC", "cc")
    monkeypatch.setattr(os.path, "exists", lambda path: True)
    assert dlrm.optimizer_of(None, "cuda:0") == dlrm.optimizer_of("fused", "cuda:0") == "fused"
    # What starts a kernel has to be built.
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", "")
    assert dlrm.optimizer_of(None, "cuda:0") == "torch"
    with pytest.raises(MachineError, match="apt install gcc; or --optimizer torch"):
        dlrm.optimizer_of("fused", "cuda:0")
