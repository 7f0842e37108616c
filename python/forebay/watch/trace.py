"""strace(1), only where it is asked for: every open of the processes, who are stopped at each."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

from forebay.errors import MachineError
from forebay.watch import stats
from forebay.watch.files import FileTracer, Seen
from forebay.watch.process import Tree

ASKED = "--trace strace"
_RESULT = re.compile(rb"^(\d+) +.*= \d+<(.*?)>(?: \(deleted\))?$")
_WRITES = re.compile(rb"\bO_(?:WRONLY|RDWR)\b")
_ESCAPE = re.compile(rb"\\([0-7]{1,3}|.)", re.S)
_LETTERS = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"v": b"\v", b"f": b"\f"}
_ATTACHED_WITHIN_S = 10.0
_BUFFER_BYTES = 1 << 16


class Traced(FileTracer):
    """Every open, by a strace that follows the process and its descendants. MachineError where it can't."""

    def __init__(self, pid: int) -> None:
        super().__init__("strace", note="the training was stopped at each open: its times are worth little")
        self.events, self.lost, self.pid = 0, False, pid
        program = shutil.which("strace")
        if program is None:
            raise MachineError(ASKED, "strace isn't installed", "apt install strace; or without --trace")
        self.descriptor: int | None
        self.descriptor, end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(end, True)
        self._rest = b""
        words = [program, "-f", "-qqq", "-y", "-e", "trace=open,openat,openat2", "-e", "signal=none", "-o", f"/dev/fd/{end}"]
        words += ["-p", str(pid)]
        # In a session of its own: a Ctrl-C is the training's and ours.
        self._tracer = subprocess.Popen(
            words,
            pass_fds=(end,),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        os.close(end)
        self._wait_until_attached()

    def _wait_until_attached(self) -> None:
        limit = time.monotonic() + _ATTACHED_WITHIN_S
        while _tracer_of(self.pid) != self._tracer.pid:
            if self._tracer.poll() is not None or time.monotonic() > limit:
                self._end()
                said = self._tracer.stderr.read().decode(errors="replace").strip() if self._tracer.stderr else ""
                raise MachineError(ASKED, said or "strace didn't attach", "sysctl kernel.yama.ptrace_scope; or without --trace")
            time.sleep(0.005)

    def mark(self, pid: int) -> None:
        """Nothing: all opens of the traced processes come."""

    def drain(self, tree: Tree, seen: Seen) -> bool:
        """Takes what has come. Returns whether that was all."""
        if self.descriptor is None:
            return True
        found = b""
        with contextlib.suppress(BlockingIOError):
            found = os.read(self.descriptor, _BUFFER_BYTES)
        self._rest += found
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            self.events += 1
            opened = _RESULT.match(line)
            if opened is not None:
                self._opened(int(opened[1]), _text(opened[2]), bool(_WRITES.search(line)), seen)
        return len(found) < _BUFFER_BYTES

    def _opened(self, pid: int, path: str, writes: bool, seen: Seen) -> None:
        for place in (f"/proc/{pid}/root{path}", path):
            with contextlib.suppress(OSError, ValueError):
                file = seen.see(stats.stat(place), None, True, path)
                if file is not None and writes:
                    seen.wrote(file)
                return

    def _end(self) -> None:
        """strace lets go of all that it traces, and ends."""
        with contextlib.suppress(ProcessLookupError):
            self._tracer.send_signal(signal.SIGINT)
        try:
            self._tracer.wait(timeout=_ATTACHED_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._tracer.kill()
            self._tracer.wait()

    def close(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None
            self._end()


def _tracer_of(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("TracerPid:")), 0)


def _text(escaped: bytes) -> str:
    """A path as strace prints it: octal numbers and letters behind a backslash."""

    def plain(found: re.Match[bytes]) -> bytes:
        what = found[1]
        return bytes([int(what, 8) & 255]) if what.isdigit() else _LETTERS.get(what, what)

    return os.fsdecode(_ESCAPE.sub(plain, escaped))
