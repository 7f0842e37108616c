"""DLIO's own workload files: each of its keys is used, is of no effect here, or is refused with the reason.

The keys are those that argonne-lcf/dlio_benchmark reads (v1.0: 2fcdbfa, v2.0: 392621b) and MLCommons' fork of v3.0. A key
that none of them reads is refused, though DLIO itself would pass over it: a workload with a typing error in it measures
something else.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any

import click

from forebay.emulate import workloads, yaml_subset
from forebay.emulate.workloads import (
    COLUMN_BYTES,
    FORMATS,
    LOADERS,
    RULES,
    Column,
    Training,
    builtin,
    check_rules,
)
from forebay.errors import RequestError

# Used: DLIO's key → ours. `dataset.record_length…` is v1.0's spelling.
CONSTANTS = {
    "dataset.record_length": "record_bytes",
    "dataset.record_length_bytes": "record_bytes",
    "dataset.record_length_stdev": "record_bytes_stdev",
    "dataset.record_length_bytes_stdev": "record_bytes_stdev",
    "dataset.record_length_resize": "record_bytes_resize",
    "dataset.record_length_bytes_resize": "record_bytes_resize",
    "dataset.num_files_train": "files",
    "dataset.num_samples_per_file": "samples_per_file",
    "dataset.parquet.row_group_size": "row_group",
    "reader.batch_size": "batch",
    "reader.read_threads": "read_threads",
    "reader.computation_threads": "computation_threads",
    "reader.prefetch_size": "prefetch",
    "reader.shuffle_size": "shuffle_samples",
    "reader.transfer_size": "transfer_bytes",
    "train.epochs": "epochs",
}
# Used, each in its own way, below.
READ = (
    "model.name", "framework", "workflow.train", "workflow.generate_data", "dataset.data_folder", "dataset.format",
    "dataset.parquet.columns", "reader.data_loader", "reader.file_shuffle", "reader.sample_shuffle", "reader.odirect",
    "train.computation_time", "train.total_training_steps", "train.seed",
    "train.seed_change_epoch", "metric.au",
)  # fmt: skip
# What DLIO takes where a key is absent.
DEFAULTS: dict[str, Any] = {
    "record_bytes": 65536, "files": 8, "samples_per_file": 1, "batch": 1, "read_threads": 1, "computation_threads": 1,
    "prefetch": 2, "epochs": 1,
}  # fmt: skip
# Known to DLIO, and of no effect on what an emulated accelerator reads and when.
WITHOUT_EFFECT = (
    "workflow.checkpoint", "workflow.profiling", "workflow.debug", "workflow.do_eval", "workflow.evaluation",
    "profiling.profiler", "profiling.iostat_devices", "output.folder", "output.log_file",
    "train.total_eval_steps", "storage.storage_root", "storage.storage_library",
    "storage.post_generation_settle_seconds", "dataset.keep_files", "dataset.file_prefix",
    "dataset.num_subfolders_train", "dataset.num_subfolders_eval", "dataset.num_files_eval",
    "dataset.eval_num_samples_per_file", "dataset.generation_buffer_size", "dataset.compression_level",
    "dataset.chunk_size", "dataset.record_element_bytes", "dataset.record_element_type", "dataset.record_dims",
    "dataset.hdf5.chunk_dims", "dataset.hdf5.num_dset_per_record", "dataset.hdf5.max_shape",
    "dataset.parquet.read_mode", "dataset.parquet.generation_batch_size", "dataset.parquet.partition_by",
    "dataset.parquet.use_s3dlio_gen", "dataset.skip_listing", "dataset.listing_validation_interval",
    "dataset.data_gen_method", "reader.write_threads", "reader.dont_use_mmap", "reader.multiprocessing_context",
    "reader.batch_size_eval", "reader.read_type", "reader.pin_memory", "reader.transformed_record_dims",
    "reader.transformed_record_element_type", "evaluation.eval_time", "evaluation.eval_time_stdev",
    "evaluation.eval_after_epoch", "evaluation.epochs_between_evals", "evaluation.steps_between_evals",
    "model.type", "model.model_size", "model.model_size_bytes", "model.optimization_groups", "model.num_layers",
    "model.layer_parameters", "model.model_datatype", "model.optimizer_datatype", "model.parallelism.tensor",
    "model.parallelism.pipeline", "model.parallelism.data", "model.parallelism.zero_stage",
    "model.transformer.vocab_size", "model.transformer.hidden_size", "model.transformer.ffn_hidden_size",
    "model.transformer.num_attention_heads", "model.transformer.num_kv_heads", "checkpoint.checkpoint_folder",
    "checkpoint.checkpoint_after_epoch", "checkpoint.epochs_between_checkpoints",
    "checkpoint.steps_between_checkpoints", "checkpoint.type", "checkpoint.checkpoint_mechanism_classname",
    "checkpoint.fsync", "checkpoint.time_between_checkpoints", "checkpoint.num_checkpoints_write",
    "checkpoint.num_checkpoints_read", "checkpoint.recovery_rank_shift", "checkpoint.rank_sync", "checkpoint.mode",
    "checkpoint.model_size", "checkpoint.randomize_tensor", "checkpoint.ksm.madv_mergeable_id",
    "checkpoint.ksm.high_ram_trigger", "checkpoint.ksm.low_ram_exit", "checkpoint.ksm.await_time",
    "checkpoint.optimization_groups", "checkpoint.num_layers", "checkpoint.layer_parameters",
    "checkpoint.tensor_parallelism", "checkpoint.pipeline_parallelism",
)  # fmt: skip
# Known to DLIO, and would change what is measured in a way that isn't emulated: value that says it is off → why.
REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "storage.storage_type": (("local_fs", None), "object stores are out of scope; --data takes folders and block sources"),
    "dataset.compression": (("none", None), "compressed samples aren't supported"),
    "dataset.enable_chunking": ((False, None), "chunked HDF5 isn't supported"),
    "reader.file_access": (("multi", None), "shared files aren't emulated"),
    "reader.preprocess_time": ((0, 0.0, None), "additional time spent by readers isn't emulated"),
    "reader.preprocess_time_stdev": ((0, 0.0, None), "additional time spent by readers isn't emulated"),
    "reader.reader_classname": ((None,), "custom code isn't run"),
    "reader.data_loader_classname": ((None,), "custom code isn't run"),
    "reader.data_loader_sampler": (("iterative", "index", None), "this sampler isn't known"),
    "train.computation_time_stdev": ((0, 0.0, None), "a computation of varying length isn't emulated"),
    "output.metric.exclude_start_steps": ((1, None), "the rules' formulas leave out the first step, and no other"),
    "output.metric.exclude_end_steps": ((0, None), "the rules' formulas leave out the first step, and no other"),
    "storage.storage_options": ((None,), "object stores are out of scope; --data takes folders and block sources"),
}
KNOWN = frozenset({*CONSTANTS, *READ, *WITHOUT_EFFECT, *REFUSED})
# DLIO reads its readers' part under either name; v1.0's files say `model: unet3d`.
ALIASES = {"data_reader": "reader", "model": "model.name"}
# How a data set is made, rather than read.
SUBFOLDERS = "dataset.num_subfolders_train"
FORMAT_ALIASES = {"mmap_indexed_binary": "indexed_binary"}
TYPE_ALIASES = {"float": "float32", "double": "float64", "int": "int32"}


def load(
    file: str, accelerator: str | None, rules: str | None, needs_training: bool = True
) -> tuple[Training, str, dict[str, Any]]:
    """(workload, rule set, {data, files, steps, seed, …}: what the file says of the run) of a DLIO file.

    DLIO's files name no accelerator: without --accelerator it is the end of the file's name, as unet3d_h100.yaml.
    Without `needs_training` a file that only makes data will do, as DLIO's unet3d_datagen.yaml; `compute_s` is then 0.
    """
    found = read(file)
    stem = Path(file).stem
    named = accelerator or (stem.rsplit("_", 1)[1].lower() if "_" in stem else "own")
    workload = found.workload(stem, named, needs_training)
    has = [w for w in builtin().get(workload.name, ()) if isinstance(w, Training) and w.accelerator == named]
    check_rules(rules)
    without = found.without_effect
    if not needs_training:
        without = [key for key in without if key != SUBFOLDERS]
    if without:
        click.echo(f"forebay: {file}: without effect on training: {', '.join(without)}", err=True)
    shuffles = workload.file_shuffle or workload.sample_shuffle
    if needs_training and shuffles and workload.epochs > 1 and found.flat.get("train.seed_change_epoch") is False:
        reported = "train.seed_change_epoch is false, but Forebay shuffles every epoch anew, which doesn't favour caches"
        click.echo(f"forebay: {file}: {reported}", err=True)
    return workload, rules or (has[0].rules[0] if has else "v1.0"), found.run(workload.files)


def read(file: str) -> File:
    """The file, its keys checked. RequestError where it can't be read, or has a key that DLIO doesn't read."""
    from forebay.plan.catalogue import read_text

    text = read_text(file, "--dlio")
    if len(text) > workloads.FILE_BYTES_MAX:
        raise RequestError(f"--dlio {file}", "is larger than 1 MiB, so it isn't a workload file", "a DLIO workload file")
    return File(yaml_subset.parse(text, file), file)


def plain(name: str) -> str:
    """A model's name without what its spellings differ by: llama3_8b and llama3-8b are one."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


class File:
    """A parsed file, its keys checked and flattened: dotted key → value."""

    def __init__(self, document: yaml_subset.Document, origin: str) -> None:
        self.document, self.origin = document, origin
        self.flat: dict[str, Any] = {}
        self._flatten(document.values, "", "")
        for key in self.flat:
            self._check(key)
        self.without_effect = [k for k in self.flat if k in WITHOUT_EFFECT]

    def _flatten(self, values: dict[Any, Any], path: str, written: str) -> None:
        for name, value in values.items():
            key, place = (f"{path}.{name}", f"{written}.{name}") if path else (name, name)
            if not path and (name != "model" or not isinstance(value, dict)):
                key = ALIASES.get(name, name)
            if isinstance(value, dict) and value and key not in KNOWN:
                self._flatten(value, key, place)
            elif value is not None or key in KNOWN:
                if key in self.flat:
                    raise self.bad(key, "is set twice", "one of them")
                self.flat[key] = value
                self.document.lines.setdefault(key, self.document.lines.get(place, 0))

    def _check(self, key: str) -> None:
        if key not in KNOWN:
            if self.flat[key] is None or self.flat[key] == {}:
                return
            near = difflib.get_close_matches(key, KNOWN, n=1, cutoff=0.5)
            raise self.bad(key, "is not a key that DLIO reads", near[0] if near else "DLIO's documentation lists its keys")
        if key in REFUSED:
            off, why = REFUSED[key]
            value = self.flat[key].lower() if isinstance(self.flat[key], str) else self.flat[key]
            if value not in off:
                raise self.bad(key, f"is {self.flat[key]}: {why}", f"without {key}")

    def workload(self, stem: str, accelerator: str, trains: bool = True) -> Training:
        self._refuse_checkpoints()
        if trains and self.flat.get("workflow.train") is False:
            reported = "is false: nothing trains, so nothing is emulated"
            raise self.bad("workflow.train", reported, f"forebay emulate datagen --dlio {self.origin}")
        name = str(self.flat.get("model.name") or stem)
        table: dict[str, Any] = {**DEFAULTS, "name": name, "title": name, "status": "own", "rules": RULES[:3]}
        for key, ours in CONSTANTS.items():
            if self.flat.get(key) is not None:
                table[ours] = self._constant(key, ours)
        for ours in ("record_bytes", "record_bytes_stdev"):
            table[ours] = float(table.get(ours, 0))
        table.update(
            accelerator=accelerator,
            format=self._choice("dataset.format", "tfrecord", FORMATS, FORMAT_ALIASES),
            loader=self._choice("reader.data_loader", self._framework(), LOADERS, {}),
            compute_s=self._compute() if trains or "train.computation_time" in self.flat else 0.0,
            au_pct_min=self._au(),
            file_shuffle=self._shuffle("reader.file_shuffle"),
            sample_shuffle=self._shuffle("reader.sample_shuffle"),
            columns=self._columns(),
        )
        if table["format"] == "parquet" and not table["columns"]:
            raise self.bad("dataset.parquet.columns", "is missing", "the columns of the files, with their types")
        return Training(**table)

    def _refuse_checkpoints(self) -> None:
        """DLIO's llama3_8b.yaml and its like write and read a transformer's checkpoints, and nothing else."""
        alone = self.flat.get("workflow.train") is False and not self.flat.get("workflow.generate_data")
        of_layers = any(self.flat.get(key) for key in ("model.num_layers", "checkpoint.num_layers"))
        if alone and of_layers and self.flat.get("workflow.checkpoint"):
            next = f"forebay emulate checkpoint --dlio {self.origin} --dir DIR"
            raise self.bad("workflow.train", "is false and workflow.checkpoint true: a checkpoint workload", next)

    def run(self, files: int) -> dict[str, Any]:
        """Folder, how many of its files, subfolders, steps and seed."""
        more: dict[str, Any] = {"files": files}
        folder, steps = self.flat.get("dataset.data_folder"), self.flat.get("train.total_training_steps")
        if folder is not None:
            more["data"] = (str(folder),)
        if self.flat.get(SUBFOLDERS):
            more["subfolders"] = self._whole(SUBFOLDERS, 0)
        if steps is not None and steps != -1:
            more["steps"] = self._whole("train.total_training_steps", 1)
        if self.flat.get("train.seed") is not None:
            more["seed"] = self._whole("train.seed", 0)
        if self.flat.get("reader.transfer_size") is not None:
            more["transfer_bytes"] = self._whole("reader.transfer_size", 1)
        if self._switch("reader.odirect"):
            more["cache"] = "bypass"
        return more

    def _framework(self) -> str:
        return str(self.flat.get("framework") or "tensorflow").lower()

    def _constant(self, key: str, ours: str) -> Any:
        value = self.flat[key]
        if ours.startswith("record_bytes") and isinstance(value, float) and ours.endswith("resize"):
            value = int(value)
        wanted = workloads.TRAINING[ours](value)
        if ours == "record_bytes_resize" and value == 0:
            return None
        if wanted is not None:
            raise self.bad(key, f"is {value!r}", wanted)
        return value

    def _choice(self, key: str, otherwise: str, choices: tuple[str, ...], aliases: dict[str, str]) -> str:
        value = str(self.flat.get(key) or otherwise).lower()
        value = aliases.get(value, value)
        if value not in choices:
            raise self.bad(key, f"is {value}, which isn't emulated", "one of " + ", ".join(choices))
        return value

    def _compute(self) -> float:
        """Seconds of a step: a number, or a mapping with a mean."""
        key, value = "train.computation_time", self.flat.get("train.computation_time")
        if isinstance(value, dict):
            unknown = [k for k in value if k not in ("mean", "stdev", "type")]
            if unknown or value.get("stdev") not in (None, 0, 0.0) or value.get("type") not in (None, "normal"):
                raise self.bad(key, f"is {value}: a computation of varying length isn't emulated", f"{key}: 0.323")
            value = value.get("mean")
        wanted = workloads.TRAINING["compute_s"](value)
        if wanted is not None:
            raise self.bad(key, "is missing" if value is None else f"is {value!r}", wanted)
        assert isinstance(value, (int, float))
        return float(value)

    def _au(self) -> float:
        value = self.flat.get("metric.au", 0.9)
        good = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1
        if not good:
            raise self.bad("metric.au", f"is {value!r}", "a share from 0 to 1, as 0.90")
        return round(100 * float(value), 9)

    def _shuffle(self, key: str) -> bool:
        value = self.flat.get(key)
        if isinstance(value, str) and value.lower() in ("seed", "random"):
            return True
        if value in (None, False) or isinstance(value, str) and value.lower() == "off":
            return False
        raise self.bad(key, f"is {value!r}", "seed, random or off")

    def _switch(self, key: str) -> bool:
        value = self.flat.get(key)
        if value not in (None, True, False):
            raise self.bad(key, f"is {value!r}", "true or false")
        return bool(value)

    def _whole(self, key: str, low: int) -> int:
        value = self.flat[key]
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value < 1 << 32:
            raise self.bad(key, f"is {value!r}", f"a whole number from {low}")
        return value

    def _columns(self) -> tuple[Column, ...]:
        key, listed = "dataset.parquet.columns", self.flat.get("dataset.parquet.columns") or []
        if not isinstance(listed, list) or len(listed) > 100_000:
            raise self.bad(key, "is not a list of columns", "- name: a")
        return tuple(self._column(c, key) for c in listed)

    def _column(self, column: Any, key: str) -> Column:
        if not isinstance(column, dict) or not isinstance(column.get("name"), str):
            raise self.bad(key, f"has {str(column)[:60]}", "name, dtype, size and read of each column")
        unknown = sorted(set(column) - {"name", "dtype", "size", "read"})
        if unknown:
            raise self.bad(key, f"sets {unknown[0]} of {column['name']}", "name, dtype, size and read of each column")
        kind = str(column.get("dtype", "float32")).lower()
        kind = TYPE_ALIASES.get(kind, kind)
        values, read = column.get("size", 1), column.get("read", True)
        if kind not in COLUMN_BYTES:
            raise self.bad(key, f"has {column['name']} of type {kind}", "one of " + ", ".join(COLUMN_BYTES))
        if not isinstance(values, int) or isinstance(values, bool) or not 1 <= values <= 1 << 30 or not isinstance(read, bool):
            raise self.bad(key, f"has an invalid size or read for {column['name']}", "size: 1, read: true")
        return Column(column["name"], kind, values, read)

    def bad(self, key: str, found: str, next: str) -> RequestError:
        line = self.document.lines.get(key)
        return RequestError(f"{self.origin}:{line}: key '{key}'" if line else f"{self.origin}: key '{key}'", found, next)
