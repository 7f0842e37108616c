"""DLIO's workload files of checkpoints, as v2.0's llama3_8b.yaml: the model, how it is split, how often it is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from forebay.emulate import dlio, workloads
from forebay.emulate.workloads import Checkpoint, builtin
from forebay.errors import RequestError

# DLIO's key → ours. Some stood among the checkpoint's keys before they stood among the model's.
KEYS = {
    "model.num_layers": "layers",
    "checkpoint.num_layers": "layers",
    "model.transformer.hidden_size": "hidden",
    "model.transformer.ffn_hidden_size": "ffn_hidden",
    "model.transformer.num_attention_heads": "heads",
    "model.transformer.num_kv_heads": "kv_heads",
    "model.transformer.vocab_size": "vocab",
    "model.model_datatype": "model_type",
    "model.optimizer_datatype": "optimizer_type",
    "model.parallelism.tensor": "tensor",
    "checkpoint.tensor_parallelism": "tensor",
    "model.parallelism.pipeline": "pipeline",
    "checkpoint.pipeline_parallelism": "pipeline",
    "model.parallelism.data": "data",
    "model.parallelism.zero_stage": "zero_stage",
    "checkpoint.num_checkpoints_write": "writes",
    "checkpoint.num_checkpoints_read": "reads",
    "checkpoint.time_between_checkpoints": "pause_s",
    "checkpoint.fsync": "fsync",
}
# Would make other files than those of a transformer, or other I/O: the key → values by which it doesn't.
REFUSED: dict[str, tuple[Any, ...]] = {
    "model.layer_parameters": (None, [], {}),
    "checkpoint.layer_parameters": (None, [], {}),
    "model.optimization_groups": (None, [], {}),
    "checkpoint.optimization_groups": (None, [], {}),
    "checkpoint.checkpoint_mechanism_classname": (None,),
    "checkpoint.recovery_rank_shift": (None, False),
}
# What DLIO takes where a key is absent.
DEFAULTS: dict[str, Any] = {
    "model_type": "fp16", "optimizer_type": "fp32", "tensor": 1, "pipeline": 1, "zero_stage": 0, "pause_s": 0, "fsync": False,
    "writes": 0, "reads": 0,
}  # fmt: skip
# Of a model, by which it is told whether it is the published one.
MODEL = (
    "layers", "hidden", "ffn_hidden", "heads", "kv_heads", "vocab", "model_type", "optimizer_type", "tensor", "pipeline", "data",
    "zero_stage",
)  # fmt: skip


def load(file: str, ranks: int | None = None) -> Checkpoint:
    """The checkpoint workload of a DLIO file. RequestError names the key that can't be.

    DLIO takes the data parallelism from the number of its processes. Where the file doesn't state it, either, it is that
    of the published model of those dimensions or of that name; of another model, `ranks` say it.
    """
    found = dlio.read(file)
    for key, off in REFUSED.items():
        if found.flat.get(key) not in off:
            raise found.bad(key, f"is {str(found.flat[key])[:60]}, which isn't emulated", f"without {key}")
    table = _stated(found)
    said = str(found.flat.get("model.name") or Path(file).stem)
    published = of_shape(table) or of_name(said)
    model_ranks = table["tensor"] * table["pipeline"]
    if "data" not in table:
        table["data"] = published.data if published else _replicas(found, ranks, model_ranks)
    processes = model_ranks * table["data"]
    table.update(name=published.name if published else said, title=said, rules=published.rules if published else ("v2.0",))
    table.update(status="own", processes=processes, processes_subset=min(processes, 8), pause_s=float(table["pause_s"]))
    return Checkpoint(**table)


def _stated(found: dlio.File) -> dict[str, Any]:
    """Returns the file's statements about the model and its checkpoints, by our names. Only the data parallelism may be
    missing."""
    table: dict[str, Any] = dict(DEFAULTS)
    for key, ours in KEYS.items():
        value = found.flat.get(key)
        # DLIO's own word for "not set" is -1.
        if value is None or value == -1:
            continue
        wanted = workloads.CHECKPOINT[ours](value)
        if wanted is not None:
            raise found.bad(key, f"is {value!r}", wanted)
        table[ours] = value
    for key, ours in KEYS.items():
        if ours not in table and ours != "data":
            raise found.bad(key, "is missing", f"a file of a transformer's checkpoints, or --workload {', '.join(models())}")
    return table


def _replicas(found: dlio.File, ranks: int | None, model_ranks: int) -> int:
    """Returns the number of copies of the model that so many ranks hold."""
    if ranks is None or ranks < model_ranks or ranks % model_ranks:
        each = f"a multiple of tensor × pipeline, {model_ranks}"
        reported = "is missing" if ranks is None else f"is missing, and {ranks} ranks aren't {each}"
        raise found.bad("model.parallelism.data", reported, f"--ranks {model_ranks}, or {each}")
    return ranks // model_ranks


def models() -> list[str]:
    """Names of the checkpoint workloads that come with Forebay."""
    return [name for name, of in builtin().items() if isinstance(of[0], Checkpoint)]


def of_shape(table: dict[str, Any]) -> Checkpoint | None:
    """The published model of those dimensions, however a file calls it: MLCommons' llama3_8b.yaml says llama_8b."""
    keys = [key for key in MODEL if key != "data"]
    for known in models():
        found = builtin()[known][0]
        if isinstance(found, Checkpoint) and all(getattr(found, key) == table[key] for key in keys):
            return found
    return None


def of_name(name: str) -> Checkpoint | None:
    """The published model of that name, however DLIO's files spell it: llama3_8b, llama3-8b."""
    for known in models():
        found = builtin()[known][0]
        if dlio.plain(name) == dlio.plain(known) and isinstance(found, Checkpoint):
            return found
    return None


def check_closed(file: str, workload: Checkpoint) -> None:
    """RequestError where a closed run's model isn't the published one."""
    published = of_name(workload.name)
    odd = [key for key in MODEL if published is None or getattr(published, key) != getattr(workload, key)]
    if odd:
        reported = f"{workload.name} isn't a published model" if published is None else f"{', '.join(odd)} not as published"
        raise RequestError(f"--dlio {file} --closed", f"{reported} [workload]", f"--workload {', '.join(models())}")
