"""The command line of watch."""

from __future__ import annotations

import json
import os
import signal
import sys
from datetime import datetime, timezone
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from forebay.errors import CHECK_FAILED, DONE, INTERRUPTED, RequestError

if TYPE_CHECKING:
    from forebay.watch.launch import Child
    from forebay.watch.workload import Given

EXAMPLES = """\b
Examples:
  forebay watch 12345
  forebay watch 12345 --seconds 20 --batch-size 256 -o job.toml
  forebay watch -o job.toml -- python train.py --epochs 1
  forebay plan run --workload job.toml --drive D7-PS1010"""
FLAG, DASHES = "-o", "forebay.watch.dashes"


class Watching(click.Command):
    """Remembers whether `--` stood before a command: click takes it away."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[DASHES] = "--" in args
        return super().parse_args(ctx, args)


@click.command(name="watch", cls=Watching, epilog=EXAMPLES, context_settings={"max_content_width": 110})
@click.argument("target", nargs=-1, required=True, metavar="PID|-- COMMAND", type=click.UNPROCESSED)
@click.option("--seconds", default="60", metavar="TIME", help="How long to watch, as 30 or 5m; less where it ends before (60).")
@click.option("-o", "--out", metavar="FILE", help="Write the workload (TOML), for plan and emulate.")
@click.option("--batch-size", type=click.IntRange(1, 1 << 24), metavar="N", help="Samples of a step on one accelerator (1).")
@click.option(
    "--samples-per-s", type=float, metavar="RATE", help="Samples that the training takes in a second, all its accelerators."
)
@click.option("--sample-bytes", metavar="SIZE", help="Mean size of a sample, where files hold many.")
@click.option("--accelerators", type=click.IntRange(1, 1 << 20), metavar="N", help="Accelerators that it trains on.")
@click.option("--data", metavar="DIR", help="Only files below DIR are data. Default: all that aren't programs.")
@click.option("--trace", metavar="TOOL", help="strace: learn of files by it. It slows the training; without it nothing does.")
@click.option("--json", "as_json", is_flag=True, help="The record as one JSON document on stdout, behind what a COMMAND printed.")
@click.option("--quiet", "-q", is_flag=True, help="No summary.")
def command(
    target: tuple[str, ...], seconds: str, out: str | None, data: str | None, as_json: bool, quiet: bool, **flags: Any
) -> int:
    """Is my training waiting for storage? And as which workload can it be planned and emulated?

    Looks at a running process and its descendants, or starts COMMAND and looks at that, for a minute. It only reads what
    the kernel shows: the training is neither stopped nor traced. The summary is on standard error for a COMMAND, whose own
    streams and exit code stay as they are.
    """
    from forebay.plan import output
    from forebay.units import parse_seconds
    from forebay.watch import workload

    limit = parse_seconds(seconds, "--seconds")
    if not limit > 0:
        raise RequestError(f"--seconds {seconds}", "is no time", "--seconds 60")
    given, trace = _given(flags), flags["trace"]
    if trace not in (None, "strace"):
        raise RequestError(f"--trace {trace}", "isn't known", "--trace strace")
    if out is not None:
        output.check(FLAG, out, workload.OURS)
    under = os.path.realpath(data) if data is not None else None
    if under is not None and not os.path.exists(under):
        raise RequestError(f"--data {data}", "isn't there", "the folder of the training's files")
    session = Session(target, limit, given, under, trace, quiet)
    try:
        record = session.watched()
        if out is not None and record["workload"] is not None:
            output.write(FLAG, out, workload.toml(record), workload.OURS)
            record["saved"] = out
        session.show(record, as_json, out)
        code = session.code(record, out)
    finally:
        session.close()
    if session.child is not None:
        record["process"]["exit_code"] = code if session.child.code is not None else None
    if as_json:
        sys.stdout.flush()
        click.echo(json.dumps(record, indent=None if session.child is not None else 1))
    return code


def _given(flags: dict[str, Any]) -> Given:
    from forebay.units import parse_bytes
    from forebay.watch.workload import Given

    rate, size = flags["samples_per_s"], flags["sample_bytes"]
    if rate is not None and not 0 < rate < 1e12:
        raise RequestError(f"--samples-per-s {rate:g}", "is no rate of samples", "--samples-per-s 1500")
    bytes_ = parse_bytes(size, "--sample-bytes") if size is not None else None
    if bytes_ is not None and bytes_ < 1:
        raise RequestError(f"--sample-bytes {size}", "is no size of a sample", "--sample-bytes 150k")
    return Given(flags["batch_size"], rate, bytes_, flags["accelerators"])


class Session:
    """One watch, from the command line to its end: the command that it started, and the signals that come meanwhile."""

    def __init__(
        self, target: tuple[str, ...], limit_s: float, given: Given, under: str | None, trace: str | None, quiet: bool
    ) -> None:
        self.limit_s, self.given, self.under, self.trace, self.quiet = limit_s, given, under, trace, quiet
        self.child: Child | None = None
        self.signalled = 0
        self._before: dict[int, Any] = {}
        self.words = list(target)
        self.pid = _pid(self.words)

    def watched(self) -> dict[str, Any]:
        from forebay.run import typed
        from forebay.watch.launch import Child
        from forebay.watch.record import record_of
        from forebay.watch.watching import Watch

        pid = self.pid
        if pid is None:
            self.child = Child(self.words)
            pid = self.child.pid
        self._listen()
        started = datetime.now(timezone.utc)
        watch = Watch(pid, self.under, self.child, self.trace is not None)
        watch.run(self.limit_s, lambda: self.signalled > 0)
        record = record_of(watch, self.given, typed(), started, self.signalled > 0)
        watch.tree.close()
        return record

    def _listen(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._heard)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        """The first signal ends the watch. All go on to the command, which decides what they mean."""
        self.signalled += 1
        if self.child is not None:
            self.child.tell(number)
        elif self.signalled > 1 and number != signal.SIGHUP:
            os._exit(INTERRUPTED)

    def show(self, record: dict[str, Any], as_json: bool, out: str | None) -> None:
        from forebay.watch import show

        if not self.quiet:
            click.echo(show.text(record), err=as_json or self.child is not None)
        elif out is not None and record["workload"] is None:
            click.echo(f"forebay: no workload: {record['missing']['workload']}", err=True)

    def code(self, record: dict[str, Any], out: str | None) -> int:
        """The command's own, once it has ended; 130 after a signal that ended the watch, and the command if there is one; 1 where
        a workload was asked for in vain."""
        code = 0
        if self.child is not None:
            if not self.child.ended() and not self.quiet and not self.signalled:
                click.echo("forebay: measured; now waiting for the command to end", err=True)
            code = self.child.wait()
            if self.signalled and code in (128 + signal.SIGINT, 128 + signal.SIGTERM, 128 + signal.SIGHUP):
                code = INTERRUPTED
        elif self.signalled:
            code = INTERRUPTED
        if code == DONE and out is not None and record["workload"] is None:
            return CHECK_FAILED
        return code

    def close(self) -> None:
        """However the watch ended: a command that was started isn't left behind."""
        if self.child is not None:
            self.child.give_up()
            self.child.wait()
        for number, handler in self._before.items():
            signal.signal(number, handler)


def _pid(words: list[str]) -> int | None:
    """The process that is meant; None where the words are a command."""
    if click.get_current_context().meta.get(DASHES):
        return None
    said = " ".join(words)[:200]
    if len(words) == 1 and words[0].isascii() and words[0].isdigit():
        return int(words[0])
    found = "isn't the number of a process" if len(words) == 1 else "are several words, and a process has one number"
    raise RequestError(f"watch {said}", found, f"forebay watch -- {said}; or a PID: pgrep -af python")
