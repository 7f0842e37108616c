"""Workloads as data: what comes with Forebay (data/workloads/*.toml), and TOML files of the user's own.

A file holds one workload. Its keys hold for every `[[variant]]` (an accelerator, and the rule sets that have it), which
may set any of them anew. The constants are MLCommons': mlcommons/storage v1.0, v2.0, v3.0, their workload files.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from forebay.errors import RequestError

# As the engine has them (`tables`), which plans do without.
RULES = ("v1.0", "v2.0", "v3.0", "text")
EDITIONS = RULES[:3]
LOADERS = ("pytorch", "tensorflow")
FORMATS = ("npz", "tfrecord", "jpeg", "png", "hdf5", "npy", "parquet", "indexed_binary", "raw", "webdataset")
# Endings of files that aren't their format's name.
ENDINGS = {"webdataset": "tar"}
STATUSES = ("closed", "whatif", "own")
COLUMN_BYTES = {"int8": 1, "uint8": 1, "float16": 2, "int16": 2, "float32": 4, "int32": 4, "float64": 8, "int64": 8}
# Bytes of a value of a checkpoint.
TYPE_BYTES = {"fp16": 2, "bf16": 2, "fp32": 4, "fp64": 8, "int8": 1}
PAGE = "docs/emulate.md"
FILE_BYTES_MAX = 1 << 20
VARIANTS_MAX = 1000


@dataclass(frozen=True)
class Column:
    """A Parquet column: `values` of its type in each sample; `read`: whether a step needs it."""

    name: str
    type: str
    values: int = 1
    read: bool = True

    @property
    def sample_bytes(self) -> int:
        return self.values * COLUMN_BYTES[self.type]


@dataclass(frozen=True)
class Training:
    """A training workload on one accelerator. Bytes and seconds; AU in per cent.

    `record_bytes`: nominal mean of a sample, which also makes the MiB/s of every rule set. `record_bytes_resize`: what
    DLIO hands on after reading. `compute_s`: of one step on one accelerator. `rules`: the rule sets that have it.
    """

    name: str
    accelerator: str
    rules: tuple[str, ...]
    status: str
    title: str
    format: str
    loader: str
    batch: int
    compute_s: float
    record_bytes: float
    samples_per_file: int
    files: int
    read_threads: int
    epochs: int
    au_pct_min: float
    record_bytes_stdev: float = 0.0
    record_bytes_resize: int | None = None
    computation_threads: int = 1
    prefetch: int = 2
    file_shuffle: bool = False
    sample_shuffle: bool = False
    shuffle_samples: int | None = None
    transfer_bytes: int | None = None
    row_group: int | None = None
    columns: tuple[Column, ...] = ()
    note: str = ""

    @property
    def samples_per_s(self) -> float:
        """Returns the samples per second of one accelerator that never waits."""
        return self.batch / self.compute_s

    @property
    def mib_s(self) -> float:
        """Returns the rate of one accelerator that never waits, by the nominal record, as DLIO counts."""
        return self.samples_per_s * self.record_bytes / (1 << 20)

    @property
    def batch_bytes(self) -> float:
        return self.batch * self.record_bytes

    def document(self) -> dict[str, Any]:
        return {"kind": "training", **asdict(self), "samples_per_s": self.samples_per_s, "mib_s": self.mib_s}


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint workload: a transformer's shape, how it is split, and what is written and read.

    `tensor`, `pipeline`, `data`: parallelism; `processes`: how many a full run has; `processes_subset`: of the subset
    mode. `model_gib`, `optimizer_gib`: sizes as the rules state them. `pause_s`: between checkpoints.
    """

    name: str
    rules: tuple[str, ...]
    status: str
    title: str
    layers: int
    hidden: int
    ffn_hidden: int
    heads: int
    kv_heads: int
    vocab: int
    model_type: str
    optimizer_type: str
    tensor: int
    pipeline: int
    data: int
    zero_stage: int
    processes: int
    processes_subset: int
    writes: int
    reads: int
    pause_s: float
    fsync: bool
    model_gib: float | None = None
    optimizer_gib: float | None = None
    note: str = ""

    def model(self) -> dict[str, int]:
        """The model as the engine knows it: dimensions, how it is cut, and the length of its elements."""
        keys = ("layers", "hidden", "ffn_hidden", "heads", "kv_heads", "vocab", "tensor", "pipeline", "data", "zero_stage")
        lengths = {"model_type_bytes": TYPE_BYTES[self.model_type], "optimizer_type_bytes": TYPE_BYTES[self.optimizer_type]}
        return {key: getattr(self, key) for key in keys} | lengths

    def written_bytes(self) -> tuple[int, int]:
        """Bytes of the model's files and of the optimizer's as Forebay writes them, of one checkpoint by all ranks. That isn't
        always what the rules state."""
        from forebay import _core

        return _core.checkpoint_bytes(json.dumps(self.model()))

    def document(self) -> dict[str, Any]:
        model, optimizer = self.written_bytes()
        return {"kind": "checkpoint", **asdict(self), "model_bytes": model, "optimizer_bytes": optimizer}


Workload = Training | Checkpoint
Check = Callable[[Any], str | None]


def _whole(low: int, high: int = (1 << 32) - 1) -> Check:
    def check(value: Any) -> str | None:
        good = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
        return None if good else f"a whole number from {low} to {high}"

    return check


def _number(low: float, high: float, open_below: bool = False) -> Check:
    def check(value: Any) -> str | None:
        good = isinstance(value, (int, float)) and not isinstance(value, bool)
        good = good and (value > low if open_below else value >= low) and value <= high
        return None if good else f"a number {'above' if open_below else 'from'} {low:g} to {high:g}"

    return check


def _one_of(*choices: Any) -> Check:
    return lambda value: None if value in choices else "one of " + ", ".join(map(str, choices))


def _text(value: Any) -> str | None:
    return None if isinstance(value, str) and value.isprintable() and len(value) <= 1000 else "a line of text"


def _switch(value: Any) -> str | None:
    return None if isinstance(value, bool) else "true or false"


def _rules(value: Any) -> str | None:
    good = isinstance(value, list) and value and all(v in EDITIONS for v in value)
    return None if good else "a list of " + ", ".join(EDITIONS)


COMMON: dict[str, Check] = {"title": _text, "note": _text, "rules": _rules, "status": _one_of(*STATUSES)}
TRAINING: dict[str, Check] = {
    **COMMON,
    "accelerator": _text,
    "format": _one_of(*FORMATS),
    "loader": _one_of(*LOADERS),
    "batch": _whole(1, 1 << 24),
    "compute_s": _number(0, 86400, open_below=True),
    "record_bytes": _number(1, 1 << 40),
    "record_bytes_stdev": _number(0, 1 << 40),
    "record_bytes_resize": _whole(1, 1 << 40),
    "samples_per_file": _whole(1),
    "files": _whole(1),
    "read_threads": _whole(1, 4096),
    "computation_threads": _whole(1, 4096),
    "prefetch": _whole(0, 4096),
    "epochs": _whole(1, 1_000_000),
    "au_pct_min": _number(0, 100),
    "file_shuffle": _switch,
    "sample_shuffle": _switch,
    "shuffle_samples": _whole(1),
    "transfer_bytes": _whole(1, 1 << 40),
    "row_group": _whole(1),
    "columns": lambda value: None if isinstance(value, list) else "a list of { name, type, values, read }",
}
CHECKPOINT: dict[str, Check] = {
    **COMMON,
    **{key: _whole(1, 1 << 30) for key in ("layers", "hidden", "ffn_hidden", "heads", "kv_heads", "vocab")},
    **{key: _one_of(*TYPE_BYTES) for key in ("model_type", "optimizer_type")},
    **{key: _whole(1, 1 << 20) for key in ("tensor", "pipeline", "data", "processes", "processes_subset")},
    "zero_stage": _whole(0, 3),
    "writes": _whole(0, 10_000),
    "reads": _whole(0, 10_000),
    "pause_s": _number(0, 86400),
    "fsync": _switch,
    "model_gib": _number(0, 1e9),
    "optimizer_gib": _number(0, 1e9),
}
COLUMN: dict[str, Check] = {
    "name": _text,
    "type": _one_of(*COLUMN_BYTES),
    "values": _whole(1, 1 << 30),
    "read": _switch,
}


class _Packaged(Mapping[str, tuple[Workload, ...]]):
    """Files of the package by name, each parsed when it is first asked for: a plan is of one."""

    def __init__(self) -> None:
        folder = resources.files("forebay").joinpath("data").joinpath("workloads")
        found = sorted((f for f in folder.iterdir() if f.name.endswith(".toml")), key=lambda f: f.name)
        self._files = {f.name.removesuffix(".toml"): f for f in found}
        self._parsed: dict[str, tuple[Workload, ...]] = {}

    def __getitem__(self, name: str) -> tuple[Workload, ...]:
        if name not in self._parsed:
            self._parsed[name] = parse(self._files[name].read_text("utf-8"), name, f"workload {name}")
        return self._parsed[name]

    def __contains__(self, name: object) -> bool:
        return name in self._files

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


@lru_cache(maxsize=1)
def builtin() -> Mapping[str, tuple[Workload, ...]]:
    """Name → the variants of each workload that comes with Forebay."""
    return _Packaged()


def variants(name: str) -> tuple[Workload, ...]:
    """All variants of a workload that is named, or in a TOML file. RequestError where there is none."""
    if name.endswith(".toml") or "/" in name:
        from forebay.plan.catalogue import read_text

        path = Path(name)
        if path.is_file() and path.stat().st_size > FILE_BYTES_MAX:
            raise RequestError(f"--workload {name}", "is larger than 1 MiB, so it isn't a workload file", PAGE)
        return parse(read_text(name, "--workload"), path.stem, name)
    known = builtin()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        next = f"--workload {near[0]}" if near else f"a TOML file, or one of {', '.join(known)}"
        raise RequestError(f"--workload {name}", "is not known", next)
    return known[name]


def check_rules(rules: str | None) -> None:
    """Raises RequestError for what is no rule set; None stands for the default."""
    if rules is not None and rules not in RULES:
        raise RequestError(f"--rules {rules}", "is not a rule set", "one of " + ", ".join(RULES))


def load(name: str, accelerator: str | None = None, rules: str | None = None) -> tuple[Training, str]:
    """The training workload on an accelerator, and the rule set: the one asked for, else the first that has it."""
    found = [w for w in variants(name) if isinstance(w, Training)]
    asked = f"--workload {name}"
    if not found:
        raise RequestError(asked, "is a checkpoint workload", f"forebay emulate checkpoint {asked}")
    check_rules(rules)
    if accelerator is not None:
        asked += f" --accelerator {accelerator}"
        having = [w for w in found if w.accelerator == accelerator]
        if not having:
            raise RequestError(asked, "has no constants for it", f"one of {_accelerators(found)}")
        found = having
    fit = [w for w in found if rules in (None, "text") or rules in w.rules]
    if not fit:
        sets = sorted({r for w in found for r in w.rules})
        raise RequestError(f"{asked} --rules {rules}", "has no such workload", f"--rules {' or '.join([*sets, 'text'])}")
    if len({w.accelerator for w in fit}) > 1:
        raise RequestError(asked, "runs on several accelerators", f"--accelerator, one of {_accelerators(fit)}")
    chosen = fit[-1] if rules == "text" else fit[0]
    return chosen, rules if rules is not None else chosen.rules[0]


def load_checkpoint(name: str) -> Checkpoint:
    """The checkpoint workload of that name, or in a TOML file."""
    found = variants(name)[0]
    if not isinstance(found, Checkpoint):
        raise RequestError(f"--workload {name}", "is a training workload", f"forebay emulate run --workload {name}")
    return found


def _accelerators(found: list[Training]) -> str:
    return ", ".join(dict.fromkeys(w.accelerator for w in found))


def parse(text: str, name: str, origin: str) -> tuple[Workload, ...]:
    """The variants in a file's text; `origin` is what messages call it. Raises RequestError for each bad key."""
    from forebay.plan.catalogue import load_toml

    top = load_toml(text, origin, PAGE)
    kind = top.pop("kind", "training")
    if kind not in ("training", "checkpoint"):
        raise _bad(origin, "kind", f"is {kind!r}", "training or checkpoint")
    listed = top.pop("variant", [{}])
    if not isinstance(listed, list) or not all(isinstance(v, dict) for v in listed) or not listed:
        raise _bad(origin, "variant", "is not a list of tables", "[[variant]] with two brackets")
    if len(listed) > VARIANTS_MAX:
        raise _bad(origin, "variant", f"occurs {len(listed)} times", f"at most {VARIANTS_MAX}")
    keys, made = (TRAINING, _training) if kind == "training" else (CHECKPOINT, _checkpoint)
    found = []
    for number, variant in enumerate(listed, 1):
        where = f"{origin}: variant {number}" if len(listed) > 1 else origin
        for table, place in ((top, origin), (variant, where)):
            _check(table, keys, place)
        found.append(made(name, {**top, **variant}, where))
    return tuple(found)


def _check(table: Mapping[str, Any], keys: Mapping[str, Check], where: str) -> None:
    for key, value in table.items():
        if key not in keys:
            near = difflib.get_close_matches(key, keys, n=1)
            next = f"'{near[0]}'" if near else "one of " + ", ".join(keys)
            raise _bad(where, key, "is not a key of a workload", next)
        wanted = keys[key](value)
        if wanted is not None:
            raise _bad(where, key, f"is {_short(value)}", wanted)


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."


def _bad(where: str, key: str, found: str, next: str) -> RequestError:
    return RequestError(f"{where}: key '{key}'", found, next)


OWN = {"rules": list(EDITIONS), "status": "own", "accelerator": "own"}


def _training(name: str, table: dict[str, Any], where: str) -> Training:
    columns = [_column(c, f"{where}: column {n}") for n, c in enumerate(table.pop("columns", []), 1)]
    given = _whole_table(Training, {"name": name, "title": name, **OWN, **table}, where)
    given["rules"] = tuple(given["rules"])
    for key in ("record_bytes", "record_bytes_stdev", "compute_s", "au_pct_min"):
        if key in given:
            given[key] = float(given[key])
    if given["format"] == "parquet" and not columns:
        raise _bad(where, "columns", "is missing; Parquet needs columns", 'columns = [{ name = "a", type = "float32" }]')
    if len({c.name for c in columns}) < len(columns):
        raise _bad(where, "columns", "names a column twice", "another name")
    if columns and not any(c.read for c in columns):
        raise _bad(where, "columns", "has no column that is read", "read = true for at least one")
    return Training(**given, columns=tuple(columns))


def _checkpoint(name: str, table: dict[str, Any], where: str) -> Checkpoint:
    own = {k: v for k, v in OWN.items() if k != "accelerator"}
    given = _whole_table(Checkpoint, {"name": name, "title": name, **own, **table}, where)
    given["rules"], given["pause_s"] = tuple(given["rules"]), float(given["pause_s"])
    made = Checkpoint(**given)
    split = made.tensor * made.pipeline * made.data
    if split != made.processes:
        found = f"is {made.processes}, but tensor × pipeline × data is {split}"
        raise _bad(where, "processes", found, f"processes = {split}")
    return made


def _whole_table(kind: type, table: dict[str, Any], where: str) -> dict[str, Any]:
    """`table`, all of whose keys without a default are there."""
    from dataclasses import MISSING

    for field in fields(kind):
        if field.default is MISSING and field.name not in table:
            raise _bad(where, field.name, "is missing", PAGE)
    return table


def _column(table: Any, where: str) -> Column:
    if not isinstance(table, dict):
        raise RequestError(where, f"is {_short(table)}", '{ name = "a", type = "float32" }')
    _check(table, COLUMN, where)
    for key in ("name", "type"):
        if key not in table:
            raise _bad(where, key, "is missing", '{ name = "a", type = "float32" }')
    return Column(**table)
