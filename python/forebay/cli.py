"""The command line: a table of verbs, each loaded when it is used."""

from __future__ import annotations

if __name__ == "__main__":
    from forebay import early

    early.main()  # it imports this module, and ends the process

import _thread
import contextlib
import io
import os
import signal
import sys
import time
from typing import Any

import click

from forebay import scarce
from forebay.command_line.lazy import LazyGroup
from forebay.errors import BAD_REQUEST, BROKE, INTERRUPTED, ForebayError, RequestError

# verb → (module:command, the question it answers)
VERBS = {
    "demo": ("forebay.demo:command", "Show everything in a minute, on whatever hardware I have."),
    "doctor": ("forebay.doctor:command", "What can this machine do, what is wrong, and what do I type to fix it?"),
    "bench": ("forebay.bench:command", "How fast, and at what CPU cost, does a path move data?"),
    "sweep": ("forebay.sweep:command", "The same over any matrix of settings, or by a published method."),
    "compare": ("forebay.compare:command", "Is A faster than B, and how sure is that?"),
    "tune": ("forebay.tune:command", "Which depth, workers and size reach the peak at the least CPU?"),
    "fio": ("forebay.fio.verb:command", "fio's own command line, job files and output."),
    "gdsio": ("forebay.gdsio:command", "gdsio's own flags and output line."),
    "feed": ("forebay.feed.verb:command", "How fast does a loader hand these files to a training script?"),
    "train": ("forebay.train.verb:command", "Does faster storage shorten this training, and what should I change?"),
    "infer": ("forebay.infer.verb:command", "Does inference wait for storage, and where?"),
    "files": ("forebay.files:command", "How fast are create, stat, read and delete of many files?"),
    "serve": ("forebay.serve:command", "Can other machines read this storage, over NVMe/TCP?"),
    "snap": ("forebay.snap:command", "Can remote storage look like a local drive, to this machine or a virtual one?"),
    "discover": ("forebay.discover:command", "What does an NVMe target offer, and under which names?"),
    "identify": ("forebay.identify:command", "What can a namespace and its controller do?"),
    "validate": ("forebay.validate:command", "Which promises hold on this hardware? One file that I can send back."),
    "checksum": ("forebay.checksum:command", "What is the CRC32C of these files, computed on the GPU?"),
    "emulate": ("forebay.emulate:command", "How many accelerators does this storage keep busy, by MLPerf's rules?"),
    "plan": ("forebay.plan:command", "What will k drives, n GPUs, q queues give? What should I change?"),
    "watch": ("forebay.watch:command", "Is my training waiting for storage, and as which workload can it be planned?"),
    "report": ("forebay.report:command", "One self-contained page to share."),
    "export": ("forebay.export:command", "The same runs as CSV, Parquet or Prometheus text, one row each."),
    "completion": ("forebay.command_line.shell:completion", "Tab completion for bash, zsh or fish."),
    "man": ("forebay.command_line.shell:man", "The manual pages."),
}

# Signals that end a run and keep what it measured. SIGHUP comes where the terminal goes, as of a lost SSH connection.
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _NobodyReads(Exception):
    """A pipe whose reader has gone. click would answer a BrokenPipeError itself, with exit code 1."""


class Verbs(LazyGroup):
    table = VERBS

    def make_context(self, *arguments: Any, **more: Any) -> click.Context:
        try:
            return super().make_context(*arguments, **more)
        except BrokenPipeError:
            raise _NobodyReads from None

    def invoke(self, ctx: click.Context) -> Any:
        scarce.answer()
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise _NobodyReads from None
        except click.UsageError as error:
            from forebay.command_line import answering

            answer = answering.answer(error)
            if answer is None:
                raise
            raise answer from None


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda c, p, v: v and show_version(c),
    help="Version, commit and features of this build.",
)
def forebay() -> None:
    """Feeds GPUs from storage, proves how well it does, and says what to change when it doesn't."""


def show_version(ctx: click.Context) -> None:
    import json

    from forebay import _core

    build = json.loads(_core.features())
    click.echo(f"forebay {build['version']}" + (f" ({build['commit']})" if build.get("commit") else ""))
    click.echo("features: " + " ".join(build["features"]))
    ctx.exit()


def main(arguments: list[str] | None = None) -> Any:
    """Runs the command line and exits with the code that scripts rely on."""
    try:
        code = _code_of(arguments)
        _end_in_peace()
        scarce.over()
    except KeyboardInterrupt:  # a second signal, while the first one's end was being told
        os._exit(INTERRUPTED)
    sys.exit(code)


def _code_of(arguments: list[str] | None) -> int:
    _have_streams()
    for number in ENDING:
        # One that the caller ignores (nohup, a script's `command &`) stays ignored.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = _send_again
    try:
        _refuse_other_encodings(sys.argv[1:] if arguments is None else arguments)
        if "_FOREBAY_COMPLETE" in os.environ:  # a shell asks
            from forebay.command_line import complete

            complete.register()
        code = forebay.main(args=arguments, prog_name="forebay", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except ForebayError as error:
        _say(f"forebay: {error}")
        _give_up_output()
        return error.exit_code
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.UsageError as error:
        error.show()
        return BAD_REQUEST
    except (click.Abort, KeyboardInterrupt):
        _end_in_peace()
        _say("forebay: interrupted")
        _give_up_output()
        return INTERRUPTED
    except (_NobodyReads, BrokenPipeError):
        _give_up_output()
        return INTERRUPTED
    except BaseException as error:
        return _unexpected(error)


def _unexpected(error: BaseException) -> int:
    reported = scarce.error(error)
    if reported is not None:
        _say(f"forebay: {reported}")
    elif isinstance(error, OSError):
        _say(f"forebay: {error.filename or 'writing the output'}: {error.strerror}\n  try: df -h; ls -l; another place")
    else:
        raise error
    _give_up_output()
    return reported.exit_code if reported is not None else BROKE


def _have_streams() -> None:
    """Standard streams that are open, and take any text.

    A file that was opened in the place of a closed one would get what is printed. An encoding that lacks a character
    (Latin-1 has no superscript, a name that isn't UTF-8 has none anywhere) prints a stand-in.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - for good
            if number == 1:
                from forebay import pipes

                sys.stdout = pipes.nowhere()
    if _locale_may_be_c():
        from forebay import plain

        if plain.wanted():
            plain.streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace" if stream.encoding.lower() == "utf-8" else "replace")


def _locale_may_be_c() -> bool:
    """Returns whether the locale is worth a closer look; Python may have put C.UTF-8 in the place of C."""
    return any(os.environ.get(n) in ("C", "POSIX", "C.UTF-8", "C.utf8", "UTF-8") for n in ("LC_ALL", "LC_CTYPE", "LANG"))


def _say(text: str) -> None:
    """On stderr, if that takes it."""
    with contextlib.suppress(OSError):
        click.echo(text, err=True)


def _give_up_output() -> None:
    """Drops what a full or closed output didn't take: it would fail again at the interpreter's end, and change the code."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _refuse_other_encodings(arguments: list[str]) -> None:
    """Records, plans and reports are JSON, which can only name what is UTF-8."""
    for text in arguments:
        try:
            text.encode()
        except UnicodeEncodeError:
            shown = ascii(os.fsencode(text))[2:-1]
            raise RequestError(
                f"argument '{shown}'", "isn't UTF-8, so a record couldn't name it", "a link to it: ln -s OLD NEW"
            ) from None


def _end_in_peace() -> None:
    """All is done and said; Python would now give signals their default back, and one would change the exit code."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)


class _Interrupted(KeyboardInterrupt):
    """A KeyboardInterrupt that CPython doesn't count as unhandled.

    Where a plain one leaves `exec` of a string (dataclass and namedtuple are made so, at each import), CPython notes it
    for good and ends the process by SIGINT, whatever code it exits with (`run_eval_code_obj` in pythonrun.c).
    """


def _interrupt(signum: int, frame: Any) -> None:
    if signum == signal.SIGHUP:  # the shell may send one as well as the kernel: it asks for nothing more
        signal.signal(signum, signal.SIG_IGN)
    raise _Interrupted(signum)


def _send_again(lost: Any) -> None:
    """`sys.unraisablehook`: an interrupt that came where no exception leaves isn't lost.

    Such places are callbacks of weak references, of which each import has one, and `__del__`. The signal comes once
    more, when that is over, for whoever takes signals by then.
    """
    number = lost.exc_value.args[0] if isinstance(lost.exc_value, _Interrupted) else None
    if number is None:
        sys.__unraisablehook__(lost)
        return

    def send() -> None:
        time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGTERM if number == signal.SIGHUP else number)

    _thread.start_new_thread(send, ())
