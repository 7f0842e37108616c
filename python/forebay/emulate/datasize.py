"""`forebay emulate datasize`: how large the rules require a data set to be, and which of their two conditions
decides.

500 steps per epoch, and five times the memory of the hosts that read. The formulas are the tools' own: v1.0's script
counts samples and cuts off once, v2.0's and v3.0's code counts files for each condition and cuts off each. `text` cuts
off nothing: what the sentence says is a least size, so files are rounded up.
"""

from __future__ import annotations

import json
import math
import os
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import click

from forebay.emulate.request import count, workload_of, workload_options
from forebay.emulate.workloads import Training
from forebay.errors import DONE, RequestError
from forebay.stages import format_duration
from forebay.units import GIB, parse_bytes

STEPS_MIN = 500
MEMORY_FACTOR = 5
FILES_PER_FOLDER = 131072
# Rule sets whose closed division uses as many files as the formula gives, and no more.
EXACT = ("v3.0",)


@dataclass(frozen=True)
class Size:
    """A data set. `by`: the condition that asks for most, steps or memory. Bytes are nominal: files × samples × record."""

    files: int
    files_by_steps: int
    files_by_memory: int
    by: str
    samples: int
    bytes: float
    steps_per_epoch: int


def size(workload: Training, rules: str, accelerators: int, memory_bytes: int) -> Size:
    """The least data set for so many accelerators in all, on hosts with so much memory together."""
    samples = STEPS_MIN * workload.batch * accelerators
    wanted = MEMORY_FACTOR * memory_bytes
    file_bytes = workload.samples_per_file * workload.record_bytes
    if rules == "v1.0":
        by_steps = samples // workload.samples_per_file
        by_memory = math.floor(wanted / workload.record_bytes) // workload.samples_per_file
    elif rules == "text":
        by_steps, by_memory = math.ceil(samples / workload.samples_per_file), math.ceil(wanted / file_bytes)
    else:
        by_steps, by_memory = samples // workload.samples_per_file, math.floor(wanted / file_bytes)
    files = max(by_steps, by_memory)
    held = files * workload.samples_per_file
    return Size(
        files=files,
        files_by_steps=by_steps,
        files_by_memory=by_memory,
        by="memory" if by_memory > by_steps else "steps",
        samples=held,
        bytes=held * workload.record_bytes,
        steps_per_epoch=held // (workload.batch * accelerators),
    )


def memory_of_this_host(root: str = "/") -> int:
    """Bytes that the kernel could cache in: all memory, or the lowest limit of a control group that this process is in."""
    return memory_and_limit(root)[0]


def memory_and_limit(root: str = "/") -> tuple[int, str | None]:
    """(That memory, the file that limits it); no file where all memory of the machine may be used."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [(limit, file) for file in _limit_files(root) if (limit := _limit(file)) is not None and limit < total]
    return min(limits, default=(total, None))


def _limit_files(root: str) -> list[str]:
    """Where limits of memory would be: of this process's groups and of all above them, under version 1 and 2 of cgroup."""
    mounts = {"": ("sys/fs/cgroup", "memory.max"), "memory": ("sys/fs/cgroup/memory", "memory.limit_in_bytes")}
    # A container may see its own group as the mount's root, while its path is told as the host has it.
    found = [os.path.join(root, *mount) for mount in mounts.values()]
    try:
        with open(os.path.join(root, "proc/self/cgroup"), encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except OSError:
        return found
    for line in lines:
        _, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        name = "memory" if "memory" in controllers.split(",") else controllers
        if name not in mounts:
            continue
        folder, limit = mounts[name]
        parts = [part for part in path.split("/") if part not in ("", "..")]
        found += [os.path.join(root, folder, *parts[:depth], limit) for depth in range(1, len(parts) + 1)]
    return found


def _limit(path: str) -> int | None:
    """The limit in that file; None where there is none, as with `max`."""
    try:
        with open(path) as file:
            text = file.read(32).strip()
    except (OSError, ValueError):
        return None
    return int(text) if text.isdigit() and text.isascii() else None


@click.command("datasize", context_settings={"max_content_width": 110})
@workload_options
@click.option("--accelerators", default="1", show_default=True, metavar="N", help="Accelerators on all hosts together.")
@click.option("--hosts", default="1", show_default=True, metavar="N", help="Hosts that read.")
@click.option("--memory", metavar="SIZE", help="Memory of each host, e.g. 64g. Default: this machine's.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(accelerators: str, hosts: str, memory: str | None, as_json: bool, **values: Any) -> int:
    """How large must the data set be under the rules?"""
    source = spelled(values)
    workload, rules, _ = workload_of(values)
    number, machines, each = reading(accelerators, hosts, memory)
    found = size(workload, rules, number, each * machines)
    if as_json:
        click.echo(json.dumps(document(workload, rules, number, machines, each, found)))
    else:
        click.echo("\n".join(lines(workload, rules, number, machines, each, found, source)))
    return DONE


def reading(accelerators: str | None, hosts: str | None, memory: str | None) -> tuple[int, int, int]:
    """(accelerators in all, hosts, bytes of each host's memory) of those flags. RequestError where they can't be."""
    number, machines = count(accelerators), count(hosts, "--hosts")
    if number % machines:
        raise RequestError(
            f"--accelerators {number} --hosts {machines}",
            "every host must have the same number",
            f"--accelerators {number // machines * machines + machines}",
        )
    return number, machines, parse_bytes(memory, "--memory") if memory else memory_of_this_host()


def asked_for(workload: Training, rules: str, accelerators: str | None, hosts: str | None, memory: str | None) -> Size:
    """The least data set by those flags, of which --accelerators must be there."""
    if accelerators is None:
        raise RequestError("--hosts or --memory", "needs --accelerators", "--accelerators 8")
    if not workload.compute_s:
        found = f"the file of {workload.name} only generates data: it names neither batch size nor accelerator"
        raise RequestError(f"--accelerators {accelerators}", found, "--workload and --accelerator, or --files N")
    number, machines, each = reading(accelerators, hosts, memory)
    return size(workload, rules, number, each * machines)


def spelled(values: Mapping[str, Any]) -> str:
    """The workload as it was typed, for the command that makes its data."""
    typed = "--dlio" if values.get("dlio") else "--workload"
    return f"{typed} {shlex.quote(str(values.get('dlio') or values.get('workload')))}"


def document(w: Training, rules: str, accelerators: int, hosts: int, memory: int, found: Size) -> dict[str, Any]:
    """Schema forebay.datasize/1."""
    return {
        "schema": "forebay.datasize/1",
        "workload": w.name,
        "accelerator": w.accelerator,
        "rules": rules,
        "accelerators": accelerators,
        "hosts": hosts,
        "memory_bytes_per_host": memory,
        **asdict(found),
        "folders": folders(found.files),
        "seconds_min": run_seconds(w, found),
    }


def folders(files: int) -> int:
    """Subfolders that keep each below what many file systems like; 0: none are needed."""
    return math.ceil(files / FILES_PER_FOLDER) if files > FILES_PER_FOLDER else 0


def run_seconds(w: Training, found: Size) -> float:
    """Returns the seconds of one run in which no accelerator ever waits."""
    return found.steps_per_epoch * w.epochs * w.compute_s


def lines(w: Training, rules: str, accelerators: int, hosts: int, memory: int, found: Size, source: str) -> list[str]:
    because = {
        "memory": f"{MEMORY_FACTOR} × the memory of {hosts} host{'s' * (hosts > 1)} with {memory / GIB:.4g} GiB",
        "steps": f"{STEPS_MIN} steps of {accelerators} × {w.batch} samples",
    }
    other = {"memory": f"the steps alone would require {found.files_by_steps:,}"}
    other["steps"] = f"the memory alone would require {found.files_by_memory:,}"
    reported = [
        f"files     {found.files:,}, because of {because[found.by]}; {other[found.by]}",
        f"samples   {found.samples:,}, {found.bytes / GIB:,.4g} GiB at the nominal record size",
        f"steps     {found.steps_per_epoch:,} per epoch with {accelerators} {w.accelerator.upper()}",
        f"one run   {format_duration(run_seconds(w, found))} at least, for {w.epochs} epoch{'s' * (w.epochs > 1)}",
    ]
    if folders(found.files):
        reported.append(f"folders   {folders(found.files)}: folders of more than {FILES_PER_FOLDER:,} files are slow to list")
    if found.steps_per_epoch < STEPS_MIN:
        short = f"{rules}'s formula rounds down, which leaves {found.steps_per_epoch} of {STEPS_MIN} steps"
        reported.append(f"note      {short}; --rules text rounds up")
    reported.append(f"next      forebay emulate datagen {source} --files {found.files} --data DIR")
    return reported
