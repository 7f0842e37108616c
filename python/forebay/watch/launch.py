"""A command that is started to be watched: its streams, its group and its exit code are those of any other command."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Sequence

from forebay.errors import RequestError, RunError

_DEFAULTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)


class Child:
    """The command as this process's child. It waits before it starts until `go`, so that nothing it does is missed."""

    def __init__(self, words: list[str]) -> None:
        self.words = words
        self.code: int | None = None
        self._asked = f"watch -- {' '.join(words)[:200]}"
        held, self._release = os.pipe2(os.O_CLOEXEC)
        self._failed, failing = os.pipe2(os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would take the exit code away
        ignored = [number for number in _DEFAULTS if number != signal.SIGPIPE and signal.getsignal(number) is signal.SIG_IGN]
        try:
            self.pid = os.fork()
        except OSError as error:
            raise RunError(self._asked, f"can't start a process ({error.strerror})", "ulimit -u") from None
        if self.pid == 0:
            _become(words, held, failing, (self._release, self._failed), ignored)
        os.close(held)
        os.close(failing)

    def go(self) -> None:
        """Lets it start. RequestError where it can't."""
        os.write(self._release, b"g")
        self.give_up()
        said = os.read(self._failed, 16)
        os.close(self._failed)
        if not said:
            return
        os.waitpid(self.pid, 0)
        self.code = 127
        number = int(said)
        found = {errno.ENOENT: "there is no such command", errno.EACCES: "isn't a program that may be run"}
        why = found.get(number, f"can't be started ({os.strerror(number)})")
        raise RequestError(self._asked, why, f"command -v {self.words[0]}")

    def give_up(self) -> None:
        """Never lets it start, if it hasn't yet."""
        if self._release >= 0:
            os.close(self._release)
            self._release = -1

    def ended(self) -> bool:
        """Returns whether it has ended; it stays a zombie, whose counters can be read, until `wait`."""
        if self.code is not None:
            return True
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def wait(self) -> int:
        """Its exit code, as a shell has it: 128 and the signal's number where one ended it."""
        if self.code is None:
            status = os.waitpid(self.pid, 0)[1]
            self.code = os.waitstatus_to_exitcode(status)
            self.code = 128 - self.code if self.code < 0 else self.code
        return self.code

    def tell(self, number: int) -> None:
        """Passes a signal on, unless the terminal has sent it to both already."""
        if self.code is None and not (number == signal.SIGINT and _is_in_front()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def _is_in_front() -> bool:
    """Returns whether a terminal's Ctrl-C comes to this process and its children alike."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def _become(words: list[str], held: int, failing: int, others: tuple[int, int], ignored: Sequence[int]) -> None:
    """In the child: waits, then becomes the command. Never returns."""
    try:
        for number in _DEFAULTS:
            signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
        for descriptor in others:
            os.close(descriptor)
        if os.read(held, 1):
            os.execvp(words[0], words)
    except OSError as error:
        os.write(failing, str(error.errno).encode())
    finally:
        os._exit(127)
