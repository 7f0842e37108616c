"""A gdsio request as a job of Forebay's, and what must hold before it may run."""

from __future__ import annotations

import os
import shlex
import stat
from typing import Any

from forebay import run as engine
from forebay.errors import MachineError, RequestError
from forebay.gdsio.request import Group, Request
from forebay.gdsio.wording import in_gdsios_words
from forebay.units import format_bytes
from forebay.uri import is_connection, of_file

FILE_NAME = "gdsio.%d"
SECTOR_BYTES = 512
# What any O_DIRECT takes.
PAGE_BYTES = 4096
# Transfer type → which of cuFile's interfaces it calls.
CUFILE_MODES = {0: "sync", 5: "stream", 6: "batch", 7: "batch-stream"}


def job(request: Request, *, allow_compat: bool = True) -> dict[str, Any]:
    """JobSpec's fields for `request`; the same on any machine, since nothing is looked up."""
    refuse(request)
    groups = request.groups
    fields: dict[str, Any] = {
        # gdsio's targets are paths, also `a:b`; a namespace of a drive is named as elsewhere.
        "sources": [g.target if is_connection(g.target) else of_file(g.target) for g in groups],
        "path": request.xfer.path,
        "op": request.op,
        "workers": 1 if request.one_thread_batches() else request.threads,
        "depth": request.depth(),
        "start_bytes": request.start_bytes,
        "warmup_s": 0.0,
        "cache": "allow" if request.buffered or request.xfer.page_cache else "bypass",
        "verify": request.verify,
        "refill": request.refill,
    }
    fields.update(zip(("io_bytes", "io_bytes_max", "io_bytes_step"), request.io_bytes, strict=False))
    fields["duration_s" if request.duration_s else "passes"] = request.duration_s or 1
    if request.in_directories:
        fields.update(files=groups[0].threads, file_name=FILE_NAME)
    if request.size_bytes is not None:
        fields["file_bytes"] = request.size_bytes + request.start_bytes
    if request.seed is not None:
        fields["seed"] = request.seed
    if request.is_random and (request.align_bytes or request.unaligned):
        fields["align_bytes"] = request.align_bytes or SECTOR_BYTES
    if request.is_random and request.verify and not request.duration_s:
        fields["no_repeat"] = True
    if request.read_pct is not None and request.xfer_number == 6:
        fields["read_pct"] = request.read_pct
    if groups[0].numa is not None:
        fields["numa"] = groups[0].numa
    if request.xfer.needs_gpu:
        fields["gpus"] = [g.gpu for g in groups if g.gpu is not None]
    if request.xfer.needs_cufile:
        fields.update(allow_compat=allow_compat, require_direct=not allow_compat)
        fields["cufile"] = CUFILE_MODES[request.xfer_number]
        if request.xfer.batches:
            fields["cufile_batch"] = request.depth()
        if request.skip_register:
            fields["cufile_unregistered"] = True
    return fields


def laid_out(fields: dict[str, Any]) -> dict[str, Any]:
    """The job that writes all of the data once, in order, before a timed write that -V will read back."""
    kept = {
        k: v for k, v in fields.items() if k not in ("duration_s", "no_repeat", "align_bytes", "read_pct")
    }
    return {**kept, "op": "write", "passes": 1}


def refuse(request: Request) -> None:
    """Raises where this build can't do as asked, instead of doing something else."""
    xfer, groups = request.xfer, request.groups
    if request.memory >= 2 and not xfer.needs_cufile:
        raise RequestError(
            f"-m {request.memory}",
            f"host memory through cuFile is possible with -x 0, 5, 6 and 7, not with -x {xfer.number}",
            "no -m",
        )
    if request.is_random and request.align_bytes == 0:
        raise RequestError("-a 0", "must be at least 1 byte", "-a 4k")
    for field, letter in (("numa", "n"), ("threads", "w")):
        if len({getattr(g, field) for g in groups}) > 1:
            values = ", ".join(str(getattr(g, field)) for g in groups)
            raise RequestError(
                f"-{letter} {values}",
                "differs between the targets of one run, which Forebay can't do",
                f"one -{letter} for all, or one run for each target",
            )
    if any(g.gpu is None for g in groups) and any(g.gpu is not None for g in groups):
        raise RequestError("-d", "is given for some targets only", "-d after each target")
    if request.one_thread_batches() and len(groups) > 1:
        raise RequestError(f"-x {xfer.number} with several targets", "needs the batch size", "-B 8")
    if not xfer.needs_cufile:
        return
    if request.memory >= 2:
        raise MachineError(
            f"-m {request.memory}",
            "Forebay uses cuFile only with GPU memory, which is -m 0 or 1",
            "-m 0, or -x 1 for host memory",
        )
    if request.nvlink:
        raise MachineError(
            "-p",
            "cuFile chooses its routes by cufile.json (rdma_dynamic_routing_order), not by a switch",
            "the command without -p",
        )


def without_effect(request: Request) -> list[str]:
    """Flags that change nothing in this run, each with the reason: gdsio takes them, so scripts pass them."""
    given = (
        (
            request.batch not in (None, 1) and not request.xfer.batches,
            f"-B {request.batch}",
            "only -x 6 and 7 use batches; -w sets the threads",
        ),
        (
            request.read_pct is not None and request.xfer_number != 6,
            f"-M {request.read_pct}",
            "only -x 6 mixes reads and writes",
        ),
        (request.skip_register and not request.xfer.needs_cufile, "-b", "only cuFile registers buffers"),
        (request.nvlink and not request.xfer.needs_cufile, "-p", "only cuFile uses NVLink"),
        (request.memory == 1 and not request.xfer.needs_cufile, "-m 1", "only cuFile's buffers have a kind"),
        (request.unaligned and not request.is_random, "-U", "offsets are sequential"),
        (request.align_bytes is not None and not request.is_random, "-a", "offsets are sequential"),
        (request.random_fill, "-R", "Forebay's write buffers always hold random data"),
    )
    return [f"{flag} has no effect: {why}" for holds, flag, why in given if holds]


def check_targets(request: Request) -> None:
    """-D must be a directory and -f must not. Raises RequestError."""
    for group in request.groups:
        if is_connection(group.target) and not group.is_directory and request.size_bytes is None:
            raise RequestError(f"-f {group.target}", "needs the size of the data", "-s 1G")
        target, is_directory = group.target, os.path.isdir(group.target)
        if group.is_directory and is_connection(target):
            named = f"-f {shlex.quote(target)} -s 1G"
            raise RequestError(f"-D {target}", "is a namespace of a drive, which is no directory", named)
        if group.is_directory and not is_directory:
            raise RequestError(
                f"-D {target}", "is not a directory", f"mkdir -p {shlex.quote(target)}, or -f for a file"
            )
        if is_directory and not group.is_directory:
            raise RequestError(f"-f {target}", "is a directory", f"-D {shlex.quote(target)}")


def check_files(request: Request, fields: dict[str, Any]) -> None:
    """A read needs every file there and large enough: gdsio's reads create none. Raises RequestError."""
    if request.writes:
        return
    needed = (request.size_bytes or 1) + request.start_bytes
    for path in (p for p in files(request) if not is_connection(p)):
        try:
            status = os.stat(path)
        except OSError as error:
            raise RequestError(
                path, f"{error.strerror}; a read creates no file", write_first(request, fields)
            ) from None
        if stat.S_ISREG(status.st_mode) and status.st_size < needed:
            found = f"holds {format_bytes(status.st_size)}, and this read needs {format_bytes(needed)}"
            raise RequestError(path, found, write_first(request, fields))


def files(request: Request) -> list[str]:
    """The files, or devices, that the run touches."""
    if not request.in_directories:
        return [g.target for g in request.groups]
    return [os.path.join(g.target, FILE_NAME % n) for g in request.groups for n in range(g.threads)]


def overwritten(request: Request, named: tuple[str, ...]) -> list[str]:
    """The files that a write may overwrite though Forebay didn't make them: those that are `named`, and of a directory
    that is, the regular files called gdsio.N which the run writes. A symbolic link of that name isn't followed."""
    folders = {os.path.realpath(n) for n in named if os.path.isdir(n)}
    inside = [p for p in files(request) if request.in_directories and os.path.realpath(os.path.dirname(p)) in folders]
    return [*(n for n in named if not os.path.isdir(n)), *(p for p in inside if _is_regular(p))]


def _is_regular(path: str) -> bool:
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def write_first(request: Request, fields: dict[str, Any]) -> str:
    """The command that makes the files which a read wants. Raises RequestError where the drive takes no such I/O: neither
    that command nor the read after it would run."""
    if any(fields.get(key, 0) % PAGE_BYTES for key in ("start_bytes", "io_bytes", "file_bytes")):
        try:
            engine.plan({**laid_out(fields), "overwrite": files(request)})
        except RequestError as error:
            raise in_gdsios_words(error) from None
    size = f"-s {format_bytes(request.size_bytes)}" if request.size_bytes else "-s SIZE"
    offset = f" -o {format_bytes(request.start_bytes)}" if request.start_bytes else ""
    verify = (" -V" if request.verify else "") + (" -O 1" if request.buffered else "")
    command = f"forebay gdsio {_targets(request.groups)} {size}{offset} -x {request.xfer_number} -I 1{verify}"
    return f"write first with -I 1: {command}"


def _targets(groups: tuple[Group, ...]) -> str:
    return " ".join(
        f"{'-D' if g.is_directory else '-f'} {shlex.quote(g.target)} -w {g.threads}" for g in groups
    )


def data_bytes(request: Request) -> int:
    """gdsio's data set: -s with -f, -w × -s with -D; without -s what the files hold."""
    if request.size_bytes is not None:
        return request.size_bytes * len(files(request))
    return sum(max(_bytes_of(path) - request.start_bytes, 0) for path in files(request))


def _bytes_of(path: str) -> int:
    """Size of a file or a block device; 0 where it can't be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return 0
    try:
        return os.lseek(descriptor, 0, os.SEEK_END)
    except OSError:
        return 0
    finally:
        os.close(descriptor)


def as_bench(fields: dict[str, Any]) -> str:
    """The `forebay bench` command of the same job."""
    from forebay.flags import fields as job_fields

    words = ["forebay", "bench", *fields["sources"]]
    for field in job_fields():
        value = fields.get(field.key)
        if value is None or value is False or value == []:
            continue
        if field.key == "io_bytes":
            value = ":".join(
                str(fields[k]) for k in ("io_bytes", "io_bytes_max", "io_bytes_step") if k in fields
            )
        values = (
            value if field.multiple else [",".join(map(str, value)) if isinstance(value, list) else value]
        )
        words += (
            [f"--{field.flag}"] if value is True else [w for v in values for w in (f"--{field.flag}", str(v))]
        )
    return shlex.join(words)
