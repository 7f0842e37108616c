"""Size of a workload's checkpoint as Forebay writes it, which isn't always what the rules state.

The arithmetic of crates/model/src/checkpoint/layout.rs, over all ranks at once; tests hold the two together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forebay.emulate.workloads import Checkpoint

TYPE_BYTES = {"int8": 1, "fp16": 2, "bf16": 2, "fp32": 4, "fp64": 8}
# Values that an optimizer keeps per parameter: itself, and its two moments; and hidden dimensions beside each rank's share.
OPTIMIZER_VALUES, OPTIMIZER_DIMENSIONS = 3, 5


def written_bytes(workload: Checkpoint) -> tuple[int, int]:
    """Bytes of the model's files and of the optimizer's, of one checkpoint by all ranks."""
    w = workload
    # At stage 3 each copy writes its part of every layer, else the first copy writes them all; tensor ranks are alike.
    writers = w.tensor * (w.data if w.zero_stage == 3 else 1)
    model = writers * _parameters_of_a_rank(w) * TYPE_BYTES[w.model_type]
    ranks = w.tensor * w.pipeline * (w.data if w.zero_stage else 1)
    share = _parameters(w) // ranks
    values = OPTIMIZER_VALUES * (share + OPTIMIZER_DIMENSIONS * w.hidden) if share else 0
    return model, ranks * values * TYPE_BYTES[w.optimizer_type]


def _key_values(w: Checkpoint) -> int:
    return w.hidden // w.heads * w.kv_heads


def _parameters(w: Checkpoint) -> int:
    layer = w.hidden * (2 * w.hidden + 2 * _key_values(w)) + 3 * w.hidden * w.ffn_hidden + 2 * w.hidden
    return 2 * w.vocab * w.hidden + w.layers * layer + w.hidden


def _parameters_of_a_rank(w: Checkpoint) -> int:
    """Returns the parameters of every layer that one tensor rank of one copy keeps. Norms are whole on each tensor rank."""
    copies = w.data if w.zero_stage == 3 else 1

    def cut(parameters: int) -> int:
        return parameters // w.tensor // copies

    norm = w.hidden // copies
    layer = 2 * norm
    layer += cut(w.hidden * (w.hidden + 2 * _key_values(w))) + cut(w.hidden * w.hidden)
    layer += cut(w.hidden * 2 * w.ffn_hidden) + cut(w.hidden * w.ffn_hidden)
    return 2 * cut(w.hidden * w.vocab) + w.layers * layer + norm
