"""`forebay compare`: is A faster than B, and how sure is that?"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import click

from forebay import own_files
from forebay import run as engine
from forebay.bench import listen, save
from forebay.command_line.lazy import MayBeEmpty
from forebay.compare.bounds import parse as parse_bound
from forebay.compare.ci import JUnit, github
from forebay.compare.files import check_file, compare_files
from forebay.compare.gate import Gate, exit_code
from forebay.compare.jobs import Limits, compare_jobs
from forebay.compare.show import show_files, show_jobs
from forebay.compare.subject import Subject
from forebay.compare.typed import subjects
from forebay.errors import RequestError
from forebay.flags import counted, job_from_flags, job_options, parse_settings
from forebay.metrics import ALL, FIGURES, OF_COMMANDS, Metric, command_with_figures, figure_named
from forebay.units import parse_percent, parse_seconds

# Many short pairs beat few long ones against a machine that drifts.
DURATION_S = 2.0
TOLERANCE_PCT = 2.0


EXAMPLES = """\b
Examples:
  forebay compare --a 'path=bounce depth=8' --b 'path=mapped' /data/big.bin
  forebay compare --a engine=uring --b engine=pread /data/big.bin --io-size 128k --metric cpu
  forebay compare --a '' --b '' --b-python ~/old/bin/python /data/big.bin      (two builds)
  forebay compare --a supply=0.02 --b supply=0.04 -- train toy --dir /data/toy --seconds 5
  forebay compare --a dir=/mnt/a --b dir=/mnt/b --c dir=/mnt/c -- emulate kvcache --users 20 --duration 30
  forebay compare before.jsonl after.jsonl --tolerance 3%                      (two results)
  forebay compare a.jsonl b.jsonl --metric rate,p99 --strict --junit gate.xml  (a gate, for a build server)
  forebay compare runs.jsonl --limit 'p99 < 500us' --limit 'rate > 3GiB/s'     (one result)"""


class Compare(click.Command):
    """Words behind `--` that begin with a verb whose runs have figures of their own are that command, not sources."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        if args[at + 1 :][:1] and args[at + 1] in {name.partition(" ")[0] for name in OF_COMMANDS}:
            ctx.meta[COMMAND] = tuple(args[at + 1 :])
            args = args[:at]
        return super().parse_args(ctx, args)


COMMAND = "forebay.compare.command"


@click.command(name="compare", cls=Compare, epilog=EXAMPLES, context_settings={"max_content_width": 110})
@click.argument("source", nargs=-1)
@click.option("--a", "a_text", cls=MayBeEmpty, metavar="SETTINGS", help="Settings of A, e.g. 'path=bounce depth=8'.")
@click.option("--b", "b_text", cls=MayBeEmpty, metavar="SETTINGS", help="Settings of B, e.g. 'path=mapped'.")
@click.option("--c", "c_text", cls=MayBeEmpty, metavar="SETTINGS", help="Settings of C, a third that is compared with A.")
@click.option("--a-python", metavar="PYTHON", help="Run A with the forebay of this interpreter.")
@click.option("--b-python", metavar="PYTHON", help="Run B with the forebay of this interpreter.")
@click.option(
    "--metric", "metric_texts", multiple=True, metavar="NAME,…",
    help=f"What to compare by: {', '.join(FIGURES)}, or short p99, rate; of a command, its own. Default: the first of these.",
)
@click.option(
    "--limit", "limit_texts", multiple=True, metavar="LIMIT",
    help="What B (and C) must keep to, e.g. 'p99 < 500us', 'rate > 3GiB/s'.",
)
@click.option(
    "--pairs-min", type=click.IntRange(3, 10_000), help="Minimum number of pairs. Default: 8, or --pairs-max if that is less."
)
@click.option(
    "--pairs-max", default=30, show_default=True, type=click.IntRange(3, 10_000), help="Maximum number of pairs."
)
@click.option("--max-time", metavar="TIME", help="Start no further pair after this time.")
@click.option(
    "--order-seed", type=click.IntRange(0), help="Seed for the random order within pairs. Default: a new one each time."
)
@click.option("--tolerance", metavar="PCT", help="How much worse B may be. Default: 2% of two files; no gate of two jobs.")
@click.option("--strict", is_flag=True, help="What is undecided fails, too (exit code 1).")
@click.option("--junit", metavar="FILE", help="Write the cases to FILE as JUnit's XML.")
@click.option("--github", is_flag=True, help="Print GitHub's annotations on stderr.")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False),
    help="Save the document to FILE after each pair; .jsonl appends a line at the end.",
)
@listen.option
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@job_options
def command(source: tuple[str, ...], **values: Any) -> int:
    """Is A faster than B, and how sure is that?

    Two jobs run in pairs, A B or B A at random, until the 95 % interval of their ratio is within --until-ci (2%)
    of it; so do two forms of a command behind --. With --c there are three, and each ratio is A's to another. Given two
    files of records, it acts as a gate: the exit code is 1 if B is worse than A by more than --tolerance, with confidence.
    Whatever is compared, 1 also means that B doesn't keep to a --limit, or, with --strict, that something is undecided.
    """
    typed: tuple[str, ...] = click.get_current_context().meta.get(COMMAND, ())
    texts = [values.pop("a_text"), values.pop("b_text"), values.pop("c_text")]
    pythons = [values.pop("a_python"), values.pop("b_python"), None]
    two_files = not typed and not any(given is not None for given in (*texts, *pythons))
    of_command = OF_COMMANDS.get(command_with_figures(typed) or "", FIGURES)
    gate = _gate(of_command if typed else ALL if two_files else FIGURES, values)
    as_json, output, port = (values.pop(name) for name in ("as_json", "output", "metrics"))
    ends = Ends(as_json, output, values.pop("strict"), values.pop("junit"), values.pop("github"))
    if two_files:
        if port is not None:
            raise RequestError(f"--metrics {port}", "two files are compared, and nothing runs", "--a and --b")
        return _files(source, gate, ends)
    limits = _limits(values)
    sides: list[Any]
    if texts[2] is None:
        del texts[2], pythons[2]
    if typed:
        _refuse_of_jobs(source, values, port)
        sides = subjects(typed, [text or "" for text in texts], pythons)
    else:
        given = zip("ABC", texts, pythons, strict=False)
        sides = [_subject(name, text or "", python, source, dict(values)) for name, text, python in given]
    for other in sides[1:]:
        if sides[0].same_as(other):
            what = "command" if typed else "job"
            click.echo(f"forebay: A and {other.name} are the same {what}; the verdict shows the noise of this machine.", err=True)
    ends.check()
    with listen.listening(port) as listens:
        document = compare_jobs(sides, gate, limits, ends.out, listens)
    return ends.finish(document, show_jobs)


def _gate(known: Mapping[str, Metric], values: dict[str, Any]) -> Gate:
    """The figures and limits that are asked for, of those that are known; the first of these where none is named."""
    texts = values.pop("metric_texts") or (next(iter(known)),)
    names = [name.strip() for text in texts for name in text.split(",")]
    metrics = list(dict.fromkeys(figure_named(name, f"--metric {name}", known) for name in names))
    bounds = [parse_bound(text, known) for text in values.pop("limit_texts")]
    return Gate(metrics, bounds, _tolerance(values.pop("tolerance")))


def _refuse_of_jobs(source: tuple[str, ...], values: dict[str, Any], port: str | None) -> None:
    """Refuses flags and sources of jobs beside a command."""
    given = [word for word in source] + [f"--{k.replace('_', '-')}" for k, v in values.items() if v not in (None, (), False)]
    if port is not None:
        raise RequestError(f"--metrics {port}", "a command's runs are processes of their own", "no --metrics")
    if given:
        raise RequestError(given[0], "is of a job, and a command runs", f"flags of the command behind the --, not {given[0]}")


def _limits(values: dict[str, Any]) -> Limits:
    for flag in ("repeat", "repeat_max"):
        if values.pop(flag, None) is not None:
            raise RequestError(
                f"--{flag.replace('_', '-')}", "compare repeats the runs itself", "--pairs-min and --pairs-max"
            )
    until, longest, seed = values.pop("until_ci", None), values.pop("max_time"), values.pop("order_seed")
    limits = Limits(
        until_pct=parse_percent(until, "--until-ci") if until is not None else 2.0,
        pairs_min=values["pairs_min"] or min(Limits.pairs_min, values["pairs_max"]),
        pairs_max=values["pairs_max"],
        seconds_max=parse_seconds(longest, "--max-time") if longest else None,
        **({} if seed is None else {"order_seed": seed}),
    )
    for bound in ("pairs_min", "pairs_max"):
        values.pop(bound)
    if not 0 < limits.until_pct < 100:
        raise RequestError(f"--until-ci {until}", "must be between 0 and 100 per cent", "--until-ci 2%")
    if limits.pairs_max < limits.pairs_min:
        raise RequestError(
            f"--pairs-max {limits.pairs_max}",
            f"is below --pairs-min {limits.pairs_min}",
            "--pairs-min 4 --pairs-max 30",
        )
    return limits


def _subject(
    name: str, text: str, python: str | None, source: tuple[str, ...], values: dict[str, Any]
) -> Subject:
    own = parse_settings(text)
    job = {**job_from_flags(source, values), **own}
    if not job["sources"] and not job.get("pairs"):
        raise RequestError(
            "SOURCE", f"{name} has none", "forebay compare --a … --b … FILE, or source=FILE in both"
        )
    for each in own_files.named(job):
        engine.refuse_job_file(each)
    if not {"duration_s", *counted()} & job.keys():
        job["duration_s"] = DURATION_S
    return Subject(name, text.strip(), job, python, frozenset(own))


def _tolerance(text: str | None) -> float | None:
    if text is None:
        return None
    pct = parse_percent(text, "--tolerance")
    if not 0 <= pct < 100:
        raise RequestError(f"--tolerance {text}", "must be from 0 up to 100 per cent", "--tolerance 2%")
    return pct


def _files(source: tuple[str, ...], gate: Gate, ends: Ends) -> int:
    if len(source) != 2 and not (len(source) == 1 and gate.bounds):
        raise RequestError(
            f"compare {' '.join(source)}".strip(),
            "needs two jobs, two files of records, or one and a --limit",
            "forebay compare --a 'depth=8' --b 'depth=32' SOURCE, or forebay compare A.jsonl B.jsonl",
        )
    ends.check()
    if len(source) == 1:
        return ends.finish(check_file(source[0], gate.bounds), show_files)
    tolerance_pct = TOLERANCE_PCT if gate.tolerance_pct is None else gate.tolerance_pct
    return ends.finish(compare_files(*source, gate.metrics, tolerance_pct, gate.bounds), show_files)


class Ends:
    """Ends of a comparison: where it goes, and the exit code."""

    def __init__(self, as_json: bool, output: str | None, strict: bool, junit: str | None, github: bool) -> None:
        self.as_json, self.strict, self.github = as_json, strict, github
        self._names = output, junit
        self.out: save.Output | None = None
        self.junit: JUnit | None = None

    def check(self) -> None:
        """Refuses, before anything runs, files that would be lost."""
        output, junit = self._names
        self.out = save.Output(output, save.COMPARE) if output is not None else None
        self.junit = JUnit(junit) if junit is not None else None

    def finish(self, document: dict[str, Any], show: Callable[[dict[str, Any], bool], str]) -> int:
        try:
            if self.out is not None:
                self.out.write([document])
        finally:
            with save.unless_said([document], self.out):
                click.echo(json.dumps(document) if self.as_json else show(document, self.strict))
        if self.junit is not None:
            self.junit.write(document, self.strict)
        for written in (self.out, self.junit):
            if written is not None:
                click.echo(f"saved: {written.path}", err=True)
        if self.github:
            click.echo(github(document, self.strict), err=True)
        return exit_code(document, self.strict)
