"""A requested emulated run: flags, the workload's constants, and the engine's spec built from both."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import click

from forebay.emulate import division, workloads
from forebay.emulate.workloads import Training
from forebay.errors import RequestError
from forebay.flags import request_from_flags, request_options
from forebay.paths import abilities

# What DLIO shuffles by where nothing else is said.
SEED = 123
# What the readers of each rule set's own tool do to the bytes.
LEVEL_OF = {"v1.0": "parse", "v2.0": "parse", "v3.0": "bytes", "text": "parse"}

# flag, metavar or type, help: those that a run and a search share.
WORKLOAD_OPTIONS = (
    ("--workload", "NAME|FILE", "A workload listed by forebay emulate workloads, or your own TOML file."),
    ("--dlio", "FILE.yaml", "A DLIO workload file, instead of --workload."),
    ("--accelerator", "NAME", "Accelerator to emulate: h100, a100, b200 or mi355. Default: the workload's, if it has only one."),
    ("--rules", "SET", "Rule set: v1.0, v2.0, v3.0 or text. Default: the first that has the workload."),
)


def workload_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The flags that say what is emulated."""
    for name, metavar, text in reversed(WORKLOAD_OPTIONS):
        command = click.option(name, metavar=metavar, help=text)(command)
    return command


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The flags that say what is read, and how."""
    command = request_options("emulate")(command)
    command = click.option("--files", metavar="N", help="Use the first N files of the data set. Default: all.")(command)
    command = click.option("--open", "division", flag_value="open", help="Refuse what the open division forbids.")(command)
    return click.option("--closed", "division", flag_value="closed", help="Refuse what the closed division forbids.")(command)


@dataclass(frozen=True)
class Request:
    """A run without its number of accelerators. `given`: the flags that were typed, by their names without dashes, and
    what a DLIO file says in their place."""

    workload: Training
    rules: str
    level: str
    data: tuple[str, ...]
    glob: tuple[str, ...] = ()
    # The flags that name the workload, as typed: for what to type next.
    asked: str = ""
    division: str | None = None
    files: int | None = None
    # A DLIO file's number, which DLIO reads of however many there are.
    files_by_dlio: bool = False
    steps: int | None = None
    epochs: int = 1
    prefetch: int = 2
    read_threads: int = 1
    seed: int | None = None
    on_error: str = "fail"
    destination: str = "drop"
    supply_gib_s: float | None = None
    decode: bool = False
    job: dict[str, Any] = field(default_factory=dict)
    given: frozenset[str] = frozenset()

    def spec(self, accelerators: int, **changes: Any) -> dict[str, Any]:
        """The engine's EmulateSpec for so many accelerators in this process. `changes`: spec keys set anew."""
        spec = {
            "workload": workload_spec(self.workload, self.rules, self.files),
            "rules": self.rules,
            "level": self.level,
            "asked": self.asked or None,
            "data": list(self.data),
            "glob": list(self.glob) or None,
            "accelerators": accelerators,
            "first_rank": 0,
            "ranks": accelerators,
            "epochs": self.epochs,
            "steps_max": self.steps,
            "seed": self.run_seed(),
            "prefetch": self.prefetch,
            "read_threads": self.read_threads,
            "destination": self.destination,
            "on_error": self.on_error,
            "supply_gib_s": self.supply_gib_s,
            "decode": self.decode or None,
            "closed": self.division == "closed",
            **self.job,
        }
        return {k: v for k, v in {**spec, **changes}.items() if v is not None}

    def run_seed(self) -> int:
        """The seed of one run: those who submit by v2.0 and later must change it from run to run."""
        if self.seed is not None:
            return self.seed
        if self.division is not None and self.rules in division.NEW_SEEDS:
            return int.from_bytes(os.urandom(4), "little")
        return SEED

    def with_epochs(self, epochs: int, steps: int | None) -> Request:
        return replace(self, epochs=epochs, steps=steps)


def workload_spec(workload: Training, rules: str, files: int | None) -> dict[str, Any]:
    """The workload as the engine takes it; `files` 0 stands for all that are found."""
    read = [c.name for c in workload.columns if c.read]
    has = workload.rules
    own = workload.status == "own" and any(division.breaches_of_workload(workload, rules, "closed"))
    if workload.status == "own" and not own and (reference := division.published(workload.name, workload.accelerator, rules)):
        has = reference.rules
    edition = rules if rules in has else has[-1]
    return {
        "name": workload.name,
        "version": "own" if own else edition.removeprefix("v"),
        "accelerator": workload.accelerator,
        "loader": workload.loader,
        "format": workload.format,
        "batch": workload.batch,
        "compute_s": workload.compute_s,
        "record_bytes": workload.record_bytes,
        "record_bytes_stdev": workload.record_bytes_stdev,
        "record_bytes_resize": workload.record_bytes_resize,
        "samples_per_file": workload.samples_per_file,
        "files": files or 0,
        "read_threads": workload.read_threads,
        "computation_threads": workload.computation_threads,
        "prefetch": workload.prefetch,
        "epochs": workload.epochs,
        "au_pct_min": workload.au_pct_min,
        "file_shuffle": workload.file_shuffle,
        "sample_shuffle": workload.sample_shuffle,
        "transfer_bytes": workload.transfer_bytes,
        "columns": read if workload.columns else None,
    }


def workload_of(values: dict[str, Any], needs_training: bool = True) -> tuple[Training, str, dict[str, Any]]:
    """(workload, rule set, what a DLIO file says besides) of the flags above, which are taken out of `values`.

    Without `needs_training` a DLIO file that only makes data will do, too.
    """
    name, file = values.pop("workload"), values.pop("dlio")
    accelerator, rules = values.pop("accelerator"), values.pop("rules")
    workloads.check_rules(rules)
    if file is not None:
        if name is not None:
            raise RequestError(f"--dlio {file} --workload {name}", "both name a workload", "one of them")
        from forebay.emulate import dlio

        return dlio.load(file, accelerator, rules, needs_training)
    if name is None:
        raise RequestError("--workload", "no workload was given", "forebay emulate workloads lists them")
    return *workloads.load(name, accelerator, rules), {}


def typed(values: dict[str, Any]) -> str:
    """Returns the flags that name a workload, as they were typed."""
    flags = ("workload", "dlio", "accelerator")
    return " ".join(f"--{flag} {shlex.quote(str(values[flag]))}" for flag in flags if values.get(flag))


def request_of(values: dict[str, Any]) -> Request:
    """The request in click's `values`; takes what it uses out of them. RequestError names the flag."""
    given = frozenset(k for k, v in values.items() if v not in (None, ()))
    asked = typed(values)
    workload, rules, more = workload_of(values)
    own = request_from_flags("emulate", values)
    data = tuple(own.pop("data", ())) or tuple(more.get("data", ()))
    if not data:
        raise RequestError("--data", "no data set was given", "--data DIR; forebay emulate datagen makes one")
    for theirs, ours in (("transfer_bytes", "io_bytes"), ("cache", "cache")):
        if theirs in more:
            own.setdefault(ours, more[theirs])
    which, glob = values.pop("division"), tuple(own.pop("glob", ()))
    if which is not None and not abilities(own.get("path")).needs_page_cache and not own.get("require_direct"):
        # `auto` reads by O_DIRECT what isn't cached, and out of a warm cache what is: no rules have both.
        own.setdefault("cache", "drop")
    if which is not None and glob:
        asked_for = f"--{which} --glob {shlex.quote(glob[0])}"
        raise RequestError(asked_for, "a submission reads its data set by the names that the rules give it", "one of the two")
    decode = own.pop("decode", False)
    files = values.pop("files")
    return Request(
        workload=workload,
        rules=rules,
        level=own.pop("level", "parse" if decode else LEVEL_OF[rules]),
        data=data,
        glob=glob,
        asked=asked,
        division=which,
        files=_whole("--files", files, 1, more.get("files")),
        files_by_dlio=files is None and "files" in more,
        steps=own.pop("steps_max", more.get("steps")),
        epochs=own.pop("epochs", workload.epochs),
        prefetch=own.pop("prefetch", workload.prefetch),
        read_threads=own.pop("read_threads", workload.read_threads),
        seed=own.pop("seed", more.get("seed")),
        on_error=own.pop("on_error", "fail"),
        destination=own.pop("destination", "drop"),
        supply_gib_s=own.pop("supply_gib_s", None),
        decode=decode,
        job=own,
        given=given | (more.keys() - {"subfolders"}),
    )


def _whole(flag: str, text: Any, low: int, otherwise: int | None, high: int = (1 << 32) - 1) -> int | None:
    if text is None:
        return otherwise
    if not (str(text).isascii() and str(text).isdigit() and len(str(text)) < 30 and low <= int(text) <= high):
        raise RequestError(f"{flag} {text}", f"is not a whole number from {low} to {high}", f"{flag} {max(low, 4)}")
    return int(text)


def count(text: Any, flag: str = "--accelerators") -> int:
    """A number of accelerators."""
    return _whole(flag, text, 1, None, 1 << 20) or 1
