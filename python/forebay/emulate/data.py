"""Checks of a data set before it is read: the number of its files, and whether that is sufficient."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from forebay.emulate.datasize import EXACT, memory_and_limit, memory_of_this_host, size
from forebay.emulate.request import Request
from forebay.emulate.workloads import ENDINGS
from forebay.errors import MachineError, RequestError
from forebay.units import GIB
from forebay.uri import parsed

# Usual spellings that the engine reads too (`is_spelled` of crates/training/src/emulate/dataset.rs).
SPELLINGS = {
    "jpeg": (".jpg", ".jpe", ".jfif"),
    "hdf5": (".h5", ".he5", ".hdf"),
    "tfrecord": (".tfrecords", ".tfrec"),
    "parquet": (".parq", ".pq"),
}


def ending_of(format: str) -> str:
    return ENDINGS.get(format, format)


def files_in(folder: Path, format: str) -> int:
    """Files of a format in a data set as DLIO lays it out (train/ and folders within), or in the folder itself."""
    train = folder / "train"
    endings = (f".{ending_of(format)}", *SPELLINGS.get(format, ()))
    return sum(1 for _ in _files(str(train if train.is_dir() else folder), endings))


def _files(folder: str, endings: tuple[str, ...]) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from _files(entry.path, endings)
            elif entry.name.lower().endswith(endings):
                yield entry


def found_files(request: Request) -> int | None:
    """Files of the request's folders; None where the data set is no folder, or patterns choose some, which only the engine
    can count."""
    check_exists(request)
    return None if request.glob else files_of(request.data, request.workload.format)


def files_of(sources: Sequence[str], format: str) -> int | None:
    """Files of a format in all these folders; None where one is no folder."""
    folders = [f for f in (parsed(source).path for source in sources) if f is not None and f.is_dir()]
    if len(folders) < len(sources):
        return None
    try:
        return sum(files_in(f, format) for f in folders)
    except OSError as error:
        raise RequestError(f"--data {error.filename}", f"can't be listed ({error.strerror})", "ls -l DIR") from error


def check_exists(request: Request) -> None:
    """RequestError where a folder isn't there. Names that differ from host to host aren't looked for."""
    for data in request.data:
        if "{" not in data and is_missing(data):
            next = f"{making(request)} --data {data}, or another --data"
            raise RequestError(f"--data {data}", "there is no such folder", next)


def is_missing(source: str) -> bool:
    """Returns whether a source that is a path doesn't exist. Only the engine knows of the others."""
    path = parsed(source).path
    return path is not None and not path.exists()


def making(request: Request) -> str:
    """The command that makes a data set of the request's workload, less how large and where."""
    asked = request.asked or f"--workload {request.workload.name} --accelerator {request.workload.accelerator}"
    return f"forebay emulate datagen {asked}"


def check_number(request: Request) -> None:
    """RequestError where there are fewer files than a DLIO file says, as in DLIO. Where there are more, it is said."""
    if not request.files_by_dlio or (has := found_files(request)) is None:
        return
    files, key = request.files or 0, "dataset.num_files_train"
    if 0 < has < files:
        words = f"holds {has:,} .{ending_of(request.workload.format)} files, and {key} is {files:,}"
        raise RequestError(f"--data {request.data[0]}", words, f"--files {has}, or {making(request)} --data {request.data[0]}")
    if has > files:
        click.echo(f"forebay: {key} is {files:,}: of {has:,} files the first {files:,} are read; --files {has} for all", err=True)


def check_size(request: Request, accelerators: int, hosts: int = 1, exact: bool = True) -> None:
    """RequestError where a submission's data set is smaller than its rules want, or as large as nobody knows. Nothing
    without a division. `accelerators`: of all hosts together. `exact`: a closed one of v3.0 uses no more files than that,
    either."""
    if request.division is None:
        return
    has = request.files if request.files is not None else found_files(request)
    asked = f"--{request.division} by {request.rules}"
    wanted = size(request.workload, request.rules, accelerators, memory_of_this_host() * hosts)
    if has is None:
        words = f"how many files {request.data[0]} has isn't known in advance, and the rules require {wanted.files:,} [data-size]"
        raise RequestError(asked, words, f"--files {wanted.files}")
    if has < wanted.files:
        number = f"{accelerators:,} accelerator{'s need' if accelerators > 1 else ' needs'}"
        words = f"the data set has {has:,} files, and {number} {wanted.files:,} [data-size]"
        several = f" --hosts {hosts}" if hosts > 1 else ""
        next = f"{making(request)} --accelerators {accelerators}{several} --rules {request.rules} --data DIR"
        if request.files is not None and (found_files(request) or 0) >= wanted.files:
            next = f"--files {wanted.files}"
        raise RequestError(asked, words, next)
    if exact and has > wanted.files and is_exact(request):
        words = f"{has:,} files are more than the {wanted.files:,} that datasize gives [data-size]"
        raise RequestError(asked, words, f"--files {wanted.files}")


def is_exact(request: Request) -> bool:
    """Returns whether the rules say how many files are read, no fewer and no more: v3.0's of its closed division."""
    return request.division == "closed" and request.rules in EXACT


def exact_files(request: Request, accelerators: int, hosts: int = 1) -> int | None:
    """Returns the number of the request's files that are read with so many accelerators on all hosts together; None: all."""
    if not is_exact(request):
        return request.files
    return size(request.workload, request.rules, accelerators, memory_of_this_host() * hosts).files


def check_memory(request: Request, accelerators: int) -> None:
    """MachineError where batches that stay in host memory can't fit there."""
    if request.destination != "host":
        return
    wanted = accelerators * max(request.prefetch, 1) * request.workload.batch_bytes
    has, limit = memory_and_limit()
    if wanted > has:
        words = f"{wanted / GIB:,.1f} GiB of batches read ahead don't fit into {has / GIB:,.1f} GiB of memory"
        next = "--destination drop, or fewer"
        if limit:
            words, next = f"{words}, the limit in {limit}", f"{next}; or a container with more memory (docker run --memory SIZE)"
        raise MachineError(f"--accelerators {accelerators} --destination host", words, next)
