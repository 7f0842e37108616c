"""`forebay compare`: is A faster than B, and how sure is that?"""

from __future__ import annotations

import json
from typing import Any

import click

from forebay.bench import listen, save
from forebay.compare.files import compare_files
from forebay.compare.jobs import Limits, compare_jobs
from forebay.compare.show import show_files, show_jobs
from forebay.compare.subject import Subject
from forebay.compare.typed import subjects
from forebay.errors import CHECK_FAILED, INTERRUPTED, RequestError
from forebay.flags import counted, job_from_flags, job_options, parse_settings
from forebay.metrics import ALL, METRICS, OF_VERBS, Metric
from forebay.units import parse_percent, parse_seconds

# Many short pairs beat few long ones against a machine that drifts.
DURATION_S = 2.0


EXAMPLES = """\b
Examples:
  forebay compare --a 'path=bounce depth=8' --b 'path=mapped' /data/big.bin
  forebay compare --a engine=uring --b engine=pread /data/big.bin --io-size 128k --metric cpu
  forebay compare --a '' --b '' --b-python ~/old/bin/python /data/big.bin      (two builds)
  forebay compare --a supply=0.02 --b supply=0.04 -- train toy --dir /data/toy --seconds 5
  forebay compare before.jsonl after.jsonl --tolerance 3%                      (two results)"""


class Compare(click.Command):
    """Words behind `--` that begin with a verb whose runs have figures of their own are that command, not sources."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args and args[args.index("--") + 1 :][:1] and args[args.index("--") + 1] in OF_VERBS:
            at = args.index("--")
            ctx.meta[COMMAND] = tuple(args[at + 1 :])
            args = args[:at]
        return super().parse_args(ctx, args)


COMMAND = "forebay.compare.command"


@click.command(name="compare", cls=Compare, epilog=EXAMPLES, context_settings={"max_content_width": 110})
@click.argument("source", nargs=-1)
@click.option("--a", "a_text", metavar="SETTINGS", help="Settings of A, e.g. 'path=bounce depth=8'.")
@click.option("--b", "b_text", metavar="SETTINGS", help="Settings of B, e.g. 'path=mapped'.")
@click.option("--a-python", metavar="PYTHON", help="Run A with the forebay of this interpreter.")
@click.option("--b-python", metavar="PYTHON", help="Run B with the forebay of this interpreter.")
@click.option(
    "--metric", metavar="NAME", help=f"Metric to compare by: {', '.join(METRICS)} (throughput), or one of the command's."
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
@click.option("--tolerance", metavar="PCT", help="With two files: how much worse B may be. Default: 2%.")
@click.option("--strict", is_flag=True, help="With two files: undecided fails, too (exit code 1).")
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
    of it; so do two forms of a command behind --. Given two files of records, it acts as a gate: the exit code is 1
    if B is worse than A by more than --tolerance, with confidence; with --strict also if that is undecided.
    """
    typed: tuple[str, ...] = click.get_current_context().meta.get(COMMAND, ())
    metric = _metric(values.pop("metric"), typed, values["a_text"] is None and values["b_text"] is None)
    as_json, output, metrics = (values.pop(name) for name in ("as_json", "output", "metrics"))
    texts = [values.pop("a_text"), values.pop("b_text")]
    pythons = [values.pop("a_python"), values.pop("b_python")]
    tolerance, strict = values.pop("tolerance"), values.pop("strict")
    if texts == [None, None] and pythons == [None, None] and not typed:
        if metrics is not None:
            raise RequestError(f"--metrics {metrics}", "two files are compared, and nothing runs", "--a and --b")
        return _files(source, metric, tolerance, strict, output, as_json)
    if tolerance is not None:
        raise RequestError("--tolerance", "applies only to comparing two files", "--until-ci 2%")
    if strict:
        found = "applies only to comparing two files: two jobs fail where nothing is decided"
        raise RequestError("--strict", found, "no --strict")
    limits = _limits(values)
    sides: list[Any]
    if typed:
        _refuse_of_jobs(source, values, metrics)
        sides = subjects(typed, [text or "" for text in texts], pythons)
    else:
        given = zip("AB", texts, pythons, strict=True)
        sides = [_subject(name, text or "", python, source, dict(values)) for name, text, python in given]
    if sides[0].same_as(sides[1]):
        what = "command" if typed else "job"
        click.echo(f"forebay: A and B are the same {what}; the verdict shows the noise of this machine.", err=True)
    out = _output(output)
    with listen.listening(metrics) as listens:
        document = compare_jobs(sides[0], sides[1], metric, limits, out, listens)
    _finish(document, show_jobs, as_json, out)
    if document["error"]:
        return int(document["error"]["exit_code"])
    if document["interrupted"]:
        return INTERRUPTED
    return CHECK_FAILED if document["verdict"]["kind"] in ("too_noisy", "none") else 0


def _metric(name: str | None, typed: tuple[str, ...], files: bool) -> Metric:
    """The named figure; of a command also without its verb."""
    known = OF_VERBS[typed[0]] if typed else ALL if files else METRICS
    first = next(iter(known))
    found = known.get(name or first) or (known.get(f"{typed[0]}.{name}") if typed else None)
    if found is None:
        raise RequestError(f"--metric {name}", f"is not one of {', '.join(known)}", f"--metric {first}")
    return found


def _refuse_of_jobs(source: tuple[str, ...], values: dict[str, Any], metrics: str | None) -> None:
    """Refuses flags and sources of jobs beside a command."""
    given = [word for word in source] + [f"--{k.replace('_', '-')}" for k, v in values.items() if v not in (None, (), False)]
    if metrics is not None:
        raise RequestError(f"--metrics {metrics}", "a command's runs are processes of their own", "no --metrics")
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
    if not {"duration_s", *counted()} & job.keys():
        job["duration_s"] = DURATION_S
    return Subject(name, text.strip(), job, python, frozenset(own))


def _files(
    source: tuple[str, ...], metric: Any, tolerance: str | None, strict: bool, output: str | None, as_json: bool
) -> int:
    if len(source) != 2:
        raise RequestError(
            f"compare {' '.join(source)}".strip(),
            "needs two jobs, or two files of records",
            "forebay compare --a 'depth=8' --b 'depth=32' SOURCE, or forebay compare A.jsonl B.jsonl",
        )
    pct = parse_percent(tolerance, "--tolerance") if tolerance is not None else 2.0
    if not 0 <= pct < 100:
        raise RequestError(f"--tolerance {tolerance}", "must be from 0 up to 100 per cent", "--tolerance 2%")
    out = _output(output)
    document = compare_files(source[0], source[1], metric, pct)
    _finish(document, show_files, as_json, out)
    failing = ("worse", "unsure") if strict else ("worse",)
    return CHECK_FAILED if document["verdict"]["kind"] in failing else 0


def _output(path: str | None) -> save.Output | None:
    """Refuses, before anything runs, a file that would be lost."""
    return save.Output(path, save.COMPARE) if path is not None else None


def _finish(document: dict[str, Any], show: Any, as_json: bool, out: save.Output | None) -> None:
    try:
        if out is not None:
            out.write([document])
    finally:
        with save.unless_said([document], out):
            click.echo(json.dumps(document) if as_json else show(document))
    if out is not None:
        click.echo(f"saved: {out.path}", err=True)
