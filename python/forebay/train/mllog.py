"""MLPerf's files of a run: its log, as MLCommons' checkers read it, the folder that they check, and reference points.

Functions of records. A log is written after its run, from the clock that the record kept: the same record has the same
lines, whenever they are written. The division is open, the organisation's name is the label: "MLPerf-style, unverified".
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forebay.errors import RequestError, RunError

if TYPE_CHECKING:
    from forebay.train.run import Fed

Record = dict[str, Any]
LABEL, RULES = "MLPerf-style, unverified", "training 4.1.0"
TOKEN = ":::MLLOG "
START, END, POINT = "INTERVAL_START", "INTERVAL_END", "POINT_IN_TIME"
# The benchmark of a model, as that rule set calls it. The toy is none: the checker objects to its name alone. So it does to
# LoRA's, which its list of the open division lacks, although it has a file of that benchmark's rules.
BENCHMARKS = {
    "dlrm": "dlrm_dcnv2", "gnn": "gnn", "bert": "bert", "ssd": "ssd", "lora": "llama2_70b_lora", "toy": "toy"
}  # fmt: skip
NONE_OF_ITS = ("toy",)
# What the rules measure the quality of by more than a number of ours.
UNMEASURED = {"diffusion": "its rules ask for FID and CLIP, two networks' judgements of images, whose weights aren't here"}
# Of LoRA the checker counts samples where it counts epochs of the others.
IN_SAMPLES = ("lora",)
ADAGRAD = {
    "opt_adagrad_learning_rate_decay": 0.0, "opt_weight_decay": 0.0, "opt_adagrad_initial_accumulator_value": 0.0,
    "opt_learning_rate_warmup_steps": 0, "opt_learning_rate_decay_start_step": 0, "opt_learning_rate_decay_steps": 0,
}  # fmt: skip
# Adagrad's epsilon by whose it is: the rules have 1e-8, PyTorch adds less.
EPSILON = {"numpy": 1e-8, "torch": 1e-10, "fused": 1e-10}
# Of a point's seeds, what the checker's mean needs: it leaves out the best and the worst.
SEEDS_LEAST = 3
READ_BEFORE = "phases before run_start read the data, which the benchmark's rules forbid"
GENERATED, REAL = "data are generated, tables are cut", "the network is narrow, on other data than the benchmark's"
# PyTorch's own defaults, with which these models are trained.
BETA_1, BETA_2, ADAM_EPSILON, ADAMW_DECAY = 0.9, 0.999, 1e-8, 0.01


def clock(began_at: float, fed: Fed) -> dict[str, int | None]:
    """Milliseconds of the wall clock: when the first phase began, when the first batch was asked for, and the end."""
    started = round(1e3 * fed.started_at) if fed.started_at else None
    stopped = None if started is None else started + round(1e3 * fed.whole_s)
    return {"init_ms": round(1e3 * began_at), "run_start_ms": started, "run_stop_ms": stopped}


def asked(path: str | None, model: str, quality: bool, seeds: Sequence[int] | None = None) -> Logs | None:
    """`--mllog`, if it was given. Raises RequestError for a run that no checker could take, and a place that is taken."""
    if path is None:
        return None
    flag = f"--mllog {path}"
    if model not in BENCHMARKS:
        known = ", ".join(name for name in BENCHMARKS if name not in NONE_OF_ITS)
        found = UNMEASURED.get(model, f"the open division of {RULES} has no benchmark that {model} could stand for")
        raise RequestError(flag, found, f"one of {known}")
    if not quality:
        raise RequestError(flag, "a log has evaluations, and a target of none asks for none", "the data set's own target")
    return Logs(path, seeds)


def text(record: Record) -> str:
    """The log of a run. Raises RequestError for a record that doesn't hold what a log says."""
    try:
        return "".join(f"{line}\n" for line in _lines(record))
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        found = f"the record doesn't hold what a log says ({error!r:.80})"
        raise RequestError("--mllog", found, "a run of this version") from None


def _lines(record: Record) -> Iterator[str]:
    part = record["train"]
    times = part["clock"]
    if times["run_start_ms"] is None:
        raise ValueError("the training didn't begin")
    yield f"# {LABEL}: {note(part)}"

    def line(kind: str, key: str, value: Any, ms: int, **metadata: Any) -> str:
        event = {"namespace": "", "time_ms": ms, "event_type": kind, "key": key, "value": value, "metadata": metadata}
        return TOKEN + json.dumps(event)

    began, start = int(times["init_ms"]), int(times["run_start_ms"])
    for key, value in _described(record).items():
        yield line(POINT, key, value, began)
    yield line(POINT, "cache_clear", part["cache"] == "cold", began)
    yield line(START, "init_start", None, began)
    for key, value in _settings(part).items():
        yield line(POINT, key, value, began)
    yield line(END, "init_stop", None, start)
    yield line(START, "run_start", None, start)
    rows, done, since = int(part["data"]["rows"]), 0, start
    for each in part["evaluations"]:
        at = start + round(1e3 * each["began_s"])
        block = {"first_epoch_num": done / rows, "samples_count": done}
        here = {"samples_count": each["samples"], "epoch_num": each["samples"] / rows}
        yield line(START, "block_start", None, since, **block, epoch_count=(each["samples"] - done) / rows)
        yield line(END, "block_stop", None, at, **block)
        yield line(START, "eval_start", None, at, **here)
        done, since = each["samples"], at + round(1e3 * each["seconds"])
        yield line(POINT, "eval_accuracy", each[_measure(each)], since, **here)
        yield line(END, "eval_stop", None, since, **here)
    stopped = int(times["run_stop_ms"])
    if part["samples"] > done:
        block = {"first_epoch_num": done / rows, "samples_count": done}
        yield line(START, "block_start", None, since, **block, epoch_count=(part["samples"] - done) / rows)
        yield line(END, "block_stop", None, stopped, **block)
    reached = part["samples_to_target"] is not None
    ended = {"samples_count": part["samples"], "epoch_num": part["samples"] / rows}
    yield line(END, "run_stop", None, stopped, status="success" if reached else "aborted", **ended)


def note(part: Record) -> str:
    """How the run differs from what the benchmark's rules ask for."""
    return f"{READ_BEFORE}; {REAL if part['data'].get('sources') else GENERATED}"


def _measure(evaluation: Record) -> str:
    return "auc" if "auc" in evaluation else "quality"


def _described(record: Record) -> Record:
    return {
        "submission_benchmark": BENCHMARKS[record["train"]["model"]],
        "submission_org": LABEL,
        "submission_division": "open",
        "submission_status": "research",
        "submission_platform": platform(record),
        "forebay_note": f"{LABEL}: {note(record['train'])}",
    }


def _settings(part: Record) -> Record:
    """Settings of the training in the rules' words."""
    found = {
        "seed": part["seed"],
        "global_batch_size": part["batch"],
        "gradient_accumulation_steps": 1,
        "train_samples": part["data"]["rows"],
        "eval_samples": part["data"]["evaluation_rows"],
    }
    return {**found, **_hyperparameters(part)}


def _hyperparameters(part: Record) -> Record:
    if part["model"] == "gnn":
        return {"opt_name": "adam", "opt_base_learning_rate": part["learning_rate"]}
    if part["optimizer"] in ("Adam", "AdamW"):
        name = part["optimizer"].lower()
        found = {"opt_name": name, "opt_base_learning_rate": part["learning_rate"]}
        found |= {f"opt_{name}_beta_1": BETA_1, f"opt_{name}_beta_2": BETA_2, f"opt_{name}_epsilon": ADAM_EPSILON}
        return {**found, **({"opt_adamw_weight_decay": ADAMW_DECAY} if name == "adamw" else {})}
    own = {"opt_name": "adagrad", "opt_base_learning_rate": part["learning_rate"]}
    return {**own, "opt_adagrad_epsilon": EPSILON[part["optimizer"]], **ADAGRAD}


def platform(record: Record) -> str:
    """Device that it ran on: `1x NVIDIA H100`, or the processor."""
    found = record.get("environment") or {}
    gpus = found.get("gpus") or []
    if str(record["train"]["device"]).startswith("cuda") and gpus:
        return f"{record['train'].get('ranks', 1)}x {gpus[0]['name']}"
    return str(found.get("cpu") or "unknown processor")


# Folders --------------------------------------------------------------------------------------------------


class Logs:
    """Destination of the logs of runs: one file, or the folder that MLCommons' package checker takes, a result for each seed.

    Refuses, before anything runs, what something has already.
    """

    def __init__(self, path: str, seeds: Sequence[int] | None = None) -> None:
        from forebay import pipes

        self.path, self.seeds = Path(path), seeds
        self._flag = f"--mllog {path}"
        pipes.refuse_dash(path, self._flag, "a file")
        pipes.refuse_to_write(path, self._flag)
        if os.path.lexists(path) and not (seeds is not None and self.path.is_dir() and not os.listdir(path)):
            one = "a folder that is empty or isn't there" if seeds is not None else "another file"
            raise RequestError(self._flag, "is there already, and isn't overwritten", one)
        if not self.path.parent.is_dir():
            raise RequestError(self._flag, f"there is no folder {self.path.parent}", f"mkdir -p {self.path.parent}")

    def write(self, records: Sequence[Record]) -> None:
        """Logs of these runs, one for each seed; none of a run that ended before its training. Raises RequestError, RunError."""
        records = [r for r in records if r["train"].get("clock", {}).get("run_start_ms", 0) is not None]
        if not records:
            return
        if self.seeds is None:
            self._place(self.path, text(records[0]))
            return
        name = re.sub(r"[^A-Za-z0-9]+", "_", platform(records[0])).strip("_")
        results = self.path / "results" / name / BENCHMARKS[records[0]["train"]["model"]]
        systems = self.path / "systems"
        try:
            results.mkdir(parents=True)
            systems.mkdir()
        except OSError as error:
            raise RunError(self._flag, str(error.strerror or error), "another folder") from error
        self._place(systems / f"{name}.json", json.dumps(system(records[0], name), indent=1) + "\n")
        for record in records:
            self._place(results / f"result_{record['train']['seed'] - self.seeds[0]}.txt", text(record))

    def _place(self, target: Path, content: str) -> None:
        from forebay.bench import save

        try:
            save.place(target, content)
        except FileExistsError:
            raise RequestError(self._flag, f"{target} was made by something else during the run", "another name") from None
        except OSError as error:
            raise save.unwritable(self._flag, error) from error


def system(record: Record, name: str) -> dict[str, str]:
    """The description of a system that a package has: what the record says, and blanks."""
    found = record.get("environment") or {}
    gpus = found.get("gpus") or []
    on_gpu = str(record["train"]["device"]).startswith("cuda") and bool(gpus)
    blanks = (
        "host_processors_per_node", "host_processor_core_count", "host_processor_frequency", "host_processor_caches",
        "host_processor_interconnect", "host_storage_type", "host_storage_capacity", "host_networking",
        "host_networking_topology", "host_memory_configuration", "accelerator_host_interconnect", "accelerator_frequency",
        "accelerator_on-chip_memories", "accelerator_memory_configuration", "accelerator_interconnect",
        "accelerator_interconnect_topology", "cooling", "hw_notes", "other_software_stack",
    )  # fmt: skip
    return {
        "submitter": LABEL,
        "division": "open",
        "status": "Research, Development, or Internal (RDI)",
        "system_name": name,
        "number_of_nodes": "1",
        "host_processor_model_name": str(found.get("cpu") or ""),
        "host_processor_vcpu_count": str(found.get("cores") or ""),
        "host_memory_capacity": f"{found.get('memory_bytes') or 0} bytes",
        "accelerators_per_node": "1" if on_gpu else "0",
        "accelerator_model_name": str(gpus[0]["name"]) if on_gpu else "",
        "accelerator_memory_capacity": f"{gpus[0].get('memory_bytes') or 0} bytes" if on_gpu else "",
        "framework": "NumPy" if record["train"]["optimizer"] == "numpy" else "PyTorch",
        "operating_system": str(found.get("os") or ""),
        "sw_notes": f"{LABEL}. {note(record['train'])}",
        **dict.fromkeys(blanks, ""),
    }


# Reference points -----------------------------------------------------------------------------------------


def rcp(records: Sequence[Record]) -> tuple[Record, list[str]]:
    """Reference convergence points in the form that MLCommons' rcp_checker reads, one for each model, batch and learning
    rate, and what was left out, with the reason."""
    grouped: dict[tuple[str, int, float], dict[int, Record]] = {}
    left = []
    for record in records:
        part = record["train"]
        if part["model"] in NONE_OF_ITS or part["model"] not in BENCHMARKS:
            left.append(f"{part['model']}: is no benchmark of {RULES}")
        else:
            grouped.setdefault((part["model"], part["batch"], part["learning_rate"]), {})[part["seed"]] = record
    points: Record = {}
    for (model, batch, rate), by_seed in sorted(grouped.items()):
        runs = list(by_seed.values())
        named = f"{model}, batches of {batch} at {rate:g}"
        never = [seed for seed, run in by_seed.items() if run["train"]["samples_to_target"] is None]
        if never or len(runs) < SEEDS_LEAST:
            few = f"{len(runs)} of {SEEDS_LEAST} seeds at least"
            left.append(f"{named}: {few if len(runs) < SEEDS_LEAST else f'seed {never[0]} never reached it'}")
            continue
        point = f"{BENCHMARKS[model]}_forebay_{batch}_{rate:g}"
        until = [r["train"]["samples_to_target"] for r in runs]
        epochs = [round(n / r["train"]["data"]["rows"], 3) for n, r in zip(until, runs, strict=True)]
        converged = {"samples to converge": until} if model in IN_SAMPLES else {"Epochs to converge": epochs}
        points[point] = {
            "Benchmark": BENCHMARKS[model],
            "Creator": LABEL,
            "When": str(runs[0].get("started") or ""),
            "Platform": platform(runs[0]),
            "BS": batch,
            "Hyperparams": _hyperparameters(runs[0]["train"]),
            **converged,
        }
    return points, list(dict.fromkeys(left))
