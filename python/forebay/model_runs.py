"""Parts that the verbs which run a model share: its device and memory, threads, files in or out of the page cache, progress."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from forebay.errors import MachineError, RequestError
from forebay.flags import _integer
from forebay.paths import abilities

CACHES = ("any", "warm", "cold")
PROGRESS_EVERY_S = 0.25
# Of a cold run's files, what may stay in the page cache.
CACHED_MAX = 0.05
# Threads of linear algebra: beside the loader's, on few cores, more of them wait for each other.
ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


class PathChoice(click.Choice[str]):
    """A path that leads to a GPU. The engine, which has their names, is asked once somebody wants to know."""

    def __init__(self) -> None:
        self.case_sensitive = True

    def __getattr__(self, name: str) -> Any:
        if name != "choices":
            raise AttributeError(name)
        from forebay import run

        self.choices = run.gpu_paths()
        return self.choices


def torch_or_say(asked: str) -> Any:
    """PyTorch, for a model that was asked for. Raises MachineError where it is missing."""
    try:
        import torch
    except ImportError as error:
        found = f"it is a model of PyTorch, which can't be imported ({error})"
        next = f"pip install torch; or forebay {asked.split()[0]} toy, which needs none"
        raise MachineError(asked, found, next) from None
    return torch


def device_of(asked: str, name: str | None) -> str:
    """The device named, else the first GPU where there is one. Raises RequestError, MachineError."""
    torch = torch_or_say(asked)
    if name is None:
        return "cuda:0" if torch.cuda.is_available() else "cpu"
    if name != "cpu" and name.partition(":")[0] != "cuda":
        raise RequestError(f"--device {name}", "is neither cpu nor a GPU", "--device cuda:0")
    if name != "cpu":
        number = name.partition(":")[2] or "0"
        if not number.isdigit():
            raise RequestError(f"--device {name}", "is neither cpu nor a GPU", "--device cuda:0")
        if not torch.cuda.is_available() or int(number) >= torch.cuda.device_count():
            raise MachineError(
                f"--device {name}", f"PyTorch sees {torch.cuda.device_count()} GPUs here", "--device cpu"
            )
        return f"cuda:{number}"
    return name


def available_bytes() -> int:
    """Memory of the host that can be had; all of it where the kernel doesn't say."""
    try:
        with open("/proc/meminfo") as file:
            found = dict(line.split(":", 1) for line in file)
        return int(found["MemAvailable"].split()[0]) << 10
    except (OSError, KeyError, ValueError, IndexError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def few_threads() -> None:
    """One thread of linear algebra beside the loader's, unless NumPy is there already."""
    if "numpy" not in sys.modules:
        for name in ONE_THREAD:
            os.environ.setdefault(name, "1")


def prepare_cache(files: list[Path], policy: str) -> None:
    """Files in the page cache, or out of it, as was asked."""
    for path in files if policy != "any" else []:
        with path.open("rb", buffering=0) as file:
            if policy == "warm":
                while file.read(16 << 20):
                    pass
                continue
            os.fdatasync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def refuse_path(path: str, device: str, by_loader: bool = False) -> None:
    """Raises RequestError for a path by which no file is read, or no batch of a loader, or which leads to no GPU that a model
    has."""
    can = abilities(path)
    if not (can.feeds if by_loader else can.reads_files):
        found, next = f"nothing here is read by {path}", "--path auto"
        if can.may_go_direct:
            found += ": bytes reach a GPU by mapped or bounce, without cuFile"
            next = f"--path mapped; what {path} brings of a file says forebay compare --a path={path} --b path=bounce FILE"
        raise RequestError(f"--path {path}", found, next)
    if path != "auto" and device == "cpu":
        found = "the model runs on the CPU, and its bytes go no further than host memory"
        raise RequestError(f"--path {path}", found, "--path auto")


def refuse_cached(share: float | None) -> None:
    """Raises MachineError where the page cache keeps more than a little of what was to be read cold."""
    if share is None or share > CACHED_MAX:
        reported = "it isn't known what is in memory" if share is None else f"{100 * share:.0f} % stay in memory"
        raise MachineError("--cache cold", reported, "a --dir on a drive, not in memory; or --cache any")


def place_for(folder: Path, names: Sequence[str]) -> Path:
    """The folder that exists of `folder` and its parent, in which these files are to be made. RequestError where one is there
    already, or nothing can be written."""
    for name in names:
        if os.path.lexists(folder / name):
            raise RequestError(f"--dir {folder}", f"{name} is there already, and isn't overwritten", "another --dir")
    if os.path.lexists(folder) and not folder.is_dir():
        raise RequestError(f"--dir {folder}", "is no folder", "another --dir")
    parent = folder if folder.is_dir() else folder.parent
    if not parent.is_dir():
        raise RequestError(f"--dir {folder}", f"there is no folder {parent}", f"mkdir -p {parent}")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise RequestError(f"--dir {folder}", f"{parent} can't be written", "a folder where you can write")
    return parent


def count(text: str, flag: str, most: int) -> int:
    """A whole number from 1 on. Raises RequestError."""
    number = _integer(text, flag, most)
    if number < 1:
        raise RequestError(f"{flag} {text}", "is below 1", f"{flag} 1000")
    return number


@contextlib.contextmanager
def progress(quiet: bool) -> Iterator[Callable[[str], None]]:
    """Says on a terminal how far it is, four times a second at most; the line is gone afterwards."""
    from forebay.bench.terminal import takes_more

    shown, last = not quiet and sys.stderr.isatty(), [0.0]

    def write(text: str) -> None:
        if takes_more(sys.stderr):
            with contextlib.suppress(OSError):
                sys.stderr.write(text)
                sys.stderr.flush()

    def say(text: str) -> None:
        if shown and time.monotonic() - last[0] >= PROGRESS_EVERY_S:
            last[0] = time.monotonic()
            write(f"\r\x1b[K{text}")

    try:
        yield say
    finally:
        if shown:
            write("\r\x1b[K")
