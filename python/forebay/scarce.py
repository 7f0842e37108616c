"""Refusals of the system to a process: memory, threads, processes and descriptors, told from what Python raises then.

Imported before any of them can be short, since an import takes both memory and a descriptor.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import sys
from typing import Any

from forebay.errors import ForebayError, MachineError, RunError

MEMORY = "ulimit -v unlimited; a larger memory limit of the container; fewer workers, a smaller depth"
THREADS = "ulimit -u; a larger pids limit of the container; fewer workers"
FILES = "ulimit -n 65536, and the command again"
ALGEBRA = "OPENBLAS_NUM_THREADS=1 before the command; ulimit -u; a larger pids limit of the container"
# How libraries put it that are written in other languages → what is short.
WORDS = {
    "too many open files": "files",
    "error 24": "files",
    "failed to map segment": "memory",
    "cannot allocate": "memory",
    "memory allocation": "memory",
    "unable to allocate": "memory",
    "start new thread": "threads",
    "spawn thread": "threads",
    "wouldblock": "threads",
    "oneshot canceled": "memory",
}
SHORT = {
    "memory": ("memory", "the system refuses this process more of it", MEMORY),
    "threads": ("a thread", "the system refuses this process one more", THREADS),
    "files": ("open files", "the system refuses this process one more", FILES),
}
# Where Python starts processes; elsewhere EAGAIN is a stream that would have to wait.
STARTS = ("_execute_child", "_fork_exec", "fork", "__init__")


def error(raised: BaseException) -> ForebayError | None:
    """Words for a user about an exception that nobody expected. None: it is none of want, nor a panic."""
    kind = _kind(raised)
    if kind is not None:
        asked, found, next = SHORT[kind]
        if kind == "threads" and _is_limited():
            next = f"ulimit -v unlimited, as each takes address space; {next}"
        said = str(raised).strip().splitlines()
        return MachineError(asked, f"{found} ({said[-1][:200]})" if said else found, next)
    if type(raised).__name__ == "PanicException":
        found = f"a bug ended the command: {raised}"
        return RunError("forebay", found, "report it, with the command that was typed")
    return None


def _kind(raised: BaseException) -> str | None:
    if isinstance(raised, MemoryError):
        return "memory"
    if isinstance(raised, OSError) and raised.errno is not None:
        if raised.errno == errno.EAGAIN and not _starts_a_process(raised):
            return None
        return {errno.EMFILE: "files", errno.ENFILE: "files", errno.ENOMEM: "memory", errno.EAGAIN: "threads"}.get(raised.errno)
    known = isinstance(raised, (ImportError, RuntimeError, ValueError, SystemError))
    if not known and type(raised).__name__ != "PanicException":
        return None
    text = str(raised).lower()
    found = next((kind for words, kind in WORDS.items() if words in text), None)
    # A module that could be loaded in part alone, and an interpreter without memory, say what they lack, and not why.
    return found or ("memory" if isinstance(raised, (ImportError, SystemError)) and _is_limited() else None)


def _is_limited() -> bool:
    """Whether the address space of this process has a limit."""
    return resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY


def _starts_a_process(raised: BaseException) -> bool:
    trace = raised.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_name in STARTS


def spare(descriptors: int, threads: int, otherwise: str) -> None:
    """Raises MachineError where a library that ends badly without them couldn't have so many more."""
    import threading

    opened: list[int] = []
    over, started = threading.Event(), []
    try:
        for _ in range(descriptors):
            opened.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        for _ in range(threads):
            thread = threading.Thread(target=over.wait, daemon=True)
            thread.start()
            started.append(thread)
    except (OSError, RuntimeError, MemoryError) as raised:
        reported = error(raised)
        if reported is None:
            raise
        reported.next += f"; or {otherwise}"
        raise reported from None
    finally:
        over.set()
        for thread in started:
            thread.join()
        for number in opened:
            os.close(number)


class LinearAlgebra:
    """A finder of modules, for the import of NumPy: OpenBLAS starts its threads there, and sends its own thread SIGINT if it
    is refused one, which nobody could tell from Ctrl-C. It would go on and wait for that thread for ever."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "numpy":
            return None
        import importlib.util

        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module
            spec.loader.exec_module = lambda module: _heard(lambda: load(module))  # type: ignore[method-assign]
        return spec


def _heard(load: Any) -> None:
    """Loads with SIGINT held back; raises MachineError for one that the thread sent itself."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        load()
        if _own_interrupt():
            signal.sigwait({signal.SIGINT})
            raise MachineError("NumPy's linear algebra", "the system refuses it threads (as OpenBLAS says above)", ALGEBRA)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _own_interrupt() -> bool:
    """Whether a SIGINT for this thread alone is pending; one of the user's is for the whole process."""
    with open("/proc/thread-self/status") as file:
        pending = next((line.split()[1] for line in file if line.startswith("SigPnd:")), "0")
    return bool(int(pending, 16) >> (signal.SIGINT - 1) & 1)


def answer() -> None:
    """Takes over the answer where a process without memory, or a library in it, would end without one."""
    from forebay import _core

    _core.answer_for_memory()
    watched = "numpy" in sys.modules or any(isinstance(finder, LinearAlgebra) for finder in sys.meta_path)
    if not watched and os.path.exists("/proc/thread-self/status"):
        sys.meta_path.insert(0, LinearAlgebra())


def over() -> None:
    """The exit code that follows is the command's own."""
    if "forebay._core" in sys.modules:
        from forebay import _core

        _core.answer_for_memory(ends=True)
