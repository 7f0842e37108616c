"""Errors as users see them: what was requested, what was found, what to type next."""

from __future__ import annotations

DONE, CHECK_FAILED, BAD_REQUEST, MACHINE, BROKE, INTERRUPTED = 0, 1, 2, 3, 4, 130


class ForebayError(Exception):
    """Ends a command with `exit_code` and one message, never a traceback."""

    exit_code = BROKE
    # The three texts as the engine has them, where it raised this: fields of a job by their keys, as ‹io_bytes›.
    marked: tuple[str, str, str] | None = None

    def __init__(self, asked: str, found: str, next: str = "") -> None:
        super().__init__(asked, found, next)
        self.asked, self.found, self.next = asked, found, next

    def __str__(self) -> str:
        text = f"{self.asked}: {self.found}"
        return f"{text}\n  try: {self.next}" if self.next else text


class RequestError(ForebayError):
    """The request can't be right on any machine."""

    exit_code = BAD_REQUEST


class MachineError(ForebayError):
    """The request is fine; this machine lacks what it needs."""

    exit_code = MACHINE


class RunError(ForebayError):
    """The run began and broke; what was measured is saved."""

    exit_code = BROKE


class CheckFailed(ForebayError):
    """The run finished and what it checked doesn't hold."""

    exit_code = CHECK_FAILED
