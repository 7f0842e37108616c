"""Signals while the command is still being loaded: it ends with 130 and one line, as it does later on.

Imported before anything else by whoever is the program; `cli.main` puts its own handlers in place of these. It imports
only what the interpreter has loaded by itself: `signal` brings `enum`, and a signal in the meantime would be a traceback.
"""

import _signal  # type: ignore[import-not-found]  # what `signal` wraps
import os
import sys

MACHINE, INTERRUPTED = 3, 130


def _end(number: int, frame: object) -> None:
    # Nothing has been done that could be kept, and half of what would say so isn't loaded.
    try:
        os.write(2, b"forebay: interrupted\n")
    except OSError:
        pass
    os._exit(INTERRUPTED)


def _end_unable(error: BaseException) -> None:
    """Not even loaded: what is short can't be told from the error alone, as words about it differ from place to place."""
    found = str(error) or type(error).__name__
    next = "ulimit -v unlimited; ulimit -n 1024; pip install again, where a module is missing"
    os.write(2, f"forebay: the command can't be loaded: {found}\n  try: {next}\n".encode(errors="replace"))
    os._exit(MACHINE)


def listen() -> None:
    """Listens for signals; those that the caller ignores stay ignored."""
    for number in (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP):
        if _signal.getsignal(number) != _signal.SIG_IGN:
            _signal.signal(number, _end)


def main() -> None:
    """The installed command."""
    listen()
    try:
        from forebay.cli import main
    except (MemoryError, OSError, ImportError, SystemError) as error:
        _end_unable(error)
    main()


def gdsio() -> None:
    """The installed command `forebay-gdsio`: `forebay gdsio` as one word, for scripts that name a program."""
    sys.argv.insert(1, "gdsio")  # records keep the command
    main()
