"""`forebay`, run to its end by a process that has loaded it before: loading takes longer than most commands do.

The process forks for each command. That child is a process as any other, with its own group, folder, environment and
streams, and it runs the command from `early.main` to `exit`. What comes before and after (the dynamic loader, the
interpreter's start, the imports, the end of each module) is not tried; it takes 110 of the 130 ms of processor time of
a command that refuses. `run` declines where the caller asks for something that is decided there, and `processes.start`
never comes here. FOREBAY_TEST_ANEW=1 starts each anew.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import resource
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any

ANEW = "FOREBAY_TEST_ANEW"
# Variables that are read before the command's first line.
READ_AT_START = ("LD_", "PYTHON", "LC_", "LANG", "GLIBC_", "MALLOC_", "TZ", "OMP", "OPENBLAS", "COVERAGE")
MARK = "FOREBAY_TEST_ID"
OF_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
MARK_LENGTH = 32
# How a process ends that can't be forked.
THREADED = 77
MOST_BYTES = 128 << 10
_prepared: set[str] = set()
LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]


# In the tests' process -------------------------------------------------------------------------------------


class Loaded:
    """The process that has loaded `forebay`, and the end of a socket by which it is asked."""

    def __init__(self, mark: str) -> None:
        self.asked, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.state = _state(os.environ)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                # As those of its children: Python decides once which of them are terminals, and which can be sought in.
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                # NumPy may begin threads of its own, which no fork takes along. Commands get their own environment.
                env={**os.environ, **dict.fromkeys(OF_THREADS, "1"), MARK: mark},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def end(self) -> str:
        """What it had to say for itself."""
        self.asked.close()
        return self.process.communicate()[1].decode()


_loaded: Loaded | None = None


def run(
    arguments: list[str], within_s: float, cwd: Any = None, env: Any = None
) -> subprocess.CompletedProcess[str] | None:
    """What `forebay` said to the arguments, and its code. None: it has to be started anew.

    Raises TimeoutError, with its group ended, after `within_s`.
    """
    global _loaded
    environment = dict(os.environ if env is None else env)
    folder = os.fspath(os.getcwd() if cwd is None else cwd)
    mark = environment.get(MARK, "")
    if os.environ.get(ANEW) or len(mark) != MARK_LENGTH or not os.path.isdir(folder) or any("\0" in a for a in arguments):
        return None
    if _loaded is None:
        _loaded = Loaded(os.environ.get("FOREBAY_TEST_SESSION", mark))
    request = json.dumps({"arguments": arguments, "folder": os.path.abspath(folder), "environment": environment}).encode()
    if len(request) > MOST_BYTES or _state(environment) != _loaded.state:
        return None
    answer = _answer(_loaded, request, within_s)
    if answer is None:  # and so it would be with the next one
        os.environ[ANEW] = "1"
    return answer


def end() -> str:
    """The process that has loaded `forebay`, if there is one, is gone; what it had to say."""
    global _loaded
    was, _loaded = _loaded, None
    return was.end() if was is not None else ""


def _state(environment: Any) -> list[Any]:
    """What a process inherits besides its folder, streams and most of its environment."""
    with open("/proc/self/status") as file:
        umask = next(line for line in file if line.startswith("Umask"))
    at_start = {k: v for k, v in environment.items() if k.startswith(READ_AT_START)}
    limits = [resource.getrlimit(limit) for limit in LIMITS]
    users = [os.getresuid(), os.getresgid(), os.getgroups()]
    return [at_start, limits, users, umask, os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0)]


def _answer(loaded: Loaded, request: bytes, within_s: float) -> subprocess.CompletedProcess[str] | None:
    ours, theirs = socket.socketpair()
    out, err = os.pipe(), os.pipe()
    said = {out[0]: b"", err[0]: b"", ours.fileno(): b""}
    ends = time.monotonic() + within_s
    try:
        try:
            socket.send_fds(loaded.asked, [request], [0, out[1], err[1], theirs.fileno()])
        finally:
            os.close(out[1])
            os.close(err[1])
            theirs.close()
        with selectors.DefaultSelector() as waiting:
            for source in said:
                waiting.register(source, selectors.EVENT_READ)
            while waiting.get_map():
                for key, _ in waiting.select(max(0.0, ends - time.monotonic())):
                    if not (more := os.read(key.fd, 1 << 16)):
                        waiting.unregister(key.fd)
                    said[key.fd] += more
                if time.monotonic() > ends and waiting.get_map():
                    raise TimeoutError(_text(said[out[0]]) + _text(said[err[0]]))
        if len(said[ours.fileno()].split()) != 2:
            why = end()
            if loaded.process.returncode == THREADED:
                return None
            raise RuntimeError(f"the process that has loaded forebay ended: {why}")
        code = said[ours.fileno()].split()[1]
        words = json.loads(request)["arguments"]
        return subprocess.CompletedProcess(["forebay", *words], int(code), _text(said[out[0]]), _text(said[err[0]]))
    except BaseException:
        # Which process it is may still be on its way; without one, the socket ends.
        for pid in (said[ours.fileno()] or ours.recv(64)).split()[:1]:
            _kill(int(pid))
        raise
    finally:
        ours.close()
        os.close(out[0])
        os.close(err[0])


def _kill(pid: int) -> None:
    """The group that it leads, or the process alone while it doesn't lead one yet."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(OSError):
            kill(pid, signal.SIGKILL)


def _text(said: bytes) -> str:
    """As `subprocess` gives text."""
    return said.decode().replace("\r\n", "\n").replace("\r", "\n")


# In the process that has loaded it -------------------------------------------------------------------------


def _load() -> None:
    """All modules of the package, and what those import that commands come to need."""
    sys.path.pop(0)  # the folder of this file
    import forebay
    import forebay.cli
    from forebay.errors import ForebayError

    for found in pkgutil.walk_packages(forebay.__path__, "forebay."):
        with contextlib.suppress(ForebayError):  # what it adapts isn't installed
            importlib.import_module(found.name)
    _freeze()


def _freeze() -> None:
    if len(os.listdir("/proc/self/task")) > 1:  # a library of this machine began one, and no fork takes it along
        sys.exit(THREADED)
    gc.collect()
    gc.freeze()


def _prepare(words: list[str]) -> None:
    """What each command of a verb begins with, made before the first of them: the libraries it draws with, its calibration."""
    verb = words[0] if words else ""
    if verb in _prepared or verb not in ("plan", "report", "feed", "train"):
        return
    _prepared.add(verb)
    for name in ("numpy", *(("altair", "vl_convert", "jinja2") if verb == "report" else ())):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    if verb == "plan":
        from forebay.plan import answer, planner, system

        answer.answer(planner.published(), system.make({"drive": "D7-PS1010", "workload": "unet3d"}, []))
    _freeze()


def _serve(asked: socket.socket) -> None:
    """Returns in the child that is to be the command."""
    mark_at = _mark_at()
    waiting = selectors.DefaultSelector()
    waiting.register(asked, selectors.EVENT_READ)
    under_way: dict[int, tuple[int, socket.socket]] = {}  # by the descriptor of the process
    while True:
        for key, _ in waiting.select():
            if key.fd != asked.fileno():
                pid, answer = under_way.pop(key.fd)
                waiting.unregister(key.fd)
                os.close(key.fd)
                with contextlib.suppress(OSError), answer:
                    answer.sendall(f" {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}".encode())
                continue
            request, streams, _, _ = socket.recv_fds(asked, MOST_BYTES, 4)
            if not request:
                os._exit(0)
            _prepare(json.loads(request)["arguments"][:1])
            pid = os.fork()
            if pid == 0:
                waiting.close()
                asked.detach()
                for _, other in under_way.values():
                    other.detach()
                _become(json.loads(request), streams[:3], mark_at)
                return
            answer = socket.socket(fileno=streams.pop())
            for stream in streams:
                os.close(stream)
            with contextlib.suppress(OSError):
                answer.sendall(str(pid).encode())
            ended = os.pidfd_open(pid)
            under_way[ended] = (pid, answer)
            waiting.register(ended, selectors.EVENT_READ)


def _become(request: dict[str, Any], streams: list[int], mark_at: int) -> None:
    import ctypes

    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    os.chdir(request["folder"])
    environment = request["environment"]
    # Where /proc shows it, too.
    ctypes.memmove(mark_at, environment[MARK].encode(), MARK_LENGTH)
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update({k: v for k, v in environment.items() if os.environ.get(k) != v})
    import forebay.cli

    sys.path.insert(0, request["folder"])  # as `python -m` does
    sys.argv = [forebay.cli.__file__, *request["arguments"]]


def _mark_at() -> int:
    """The address of the mark's value in the environment that this process was given."""
    import ctypes

    with open("/proc/self/stat") as file:
        start, end = map(int, file.read().rpartition(")")[2].split()[47:49])
    name = f"{MARK}=".encode()
    return start + ctypes.string_at(start, end - start).index(name) + len(name)


def _exit(code: int) -> None:
    """As the interpreter does, but that it leaves its modules as they are: each would be copied to be taken apart."""
    import ctypes

    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        code = 120
    ctypes.PyDLL(None).exit(code)


def _main() -> None:
    _load()
    _serve(socket.socket(fileno=int(sys.argv[1])))
    from forebay import early

    try:
        early.main()
    except SystemExit as ended:
        if isinstance(ended.code, int):
            _exit(ended.code)
        raise


if __name__ == "__main__":
    _main()
