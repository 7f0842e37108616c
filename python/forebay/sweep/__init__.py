"""`forebay sweep`: any matrix over the job's fields, resumable, one line per finished point."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forebay import run as engine
from forebay.bench import listen
from forebay.errors import BAD_REQUEST, DONE, MACHINE, RequestError
from forebay.infer.scaling import PRESET as INFERENCE_DRIVES
from forebay.stages import format_duration
from forebay.sweep import drives, models
from forebay.sweep import plan as planning
from forebay.sweep.fabric import Fabric, Link, parse_elsewhere
from forebay.sweep.file import ROUNDS_MAX, parse, presets
from forebay.sweep.points import parse_overrides
from forebay.sweep.results import HEADER, Results
from forebay.sweep.runner import is_finished, run_points
from forebay.sweep.scale import parse_scale
from forebay.sweep.show import dry_run, heading, making, show, summary
from forebay.sweep.vary import asked_for, refuse_settled
from forebay.units import parse_seconds

if TYPE_CHECKING:
    from forebay.bench.endpoint import Endpoint

EXAMPLES = """\b
Examples:
  forebay sweep --list
  forebay sweep solidigm-gds /data --dry-run
  forebay sweep micron-4k /data --scale 0.1 -o micron.jsonl
  forebay sweep micron-4k --pair 0=/dev/nvme0n1 --pair 1=/dev/nvme1n1
  forebay sweep solidigm-snap-queues /data --netns --link-delay 30us --link-rate 25gbit
  forebay sweep drive-scaling --system d74h-7u --scale-to-peak
  forebay sweep inference-drives /data/infer --models resnet50,llama
  forebay sweep mine.toml /data --rounds 5 --set duration=2
  forebay sweep /data/big --vary workers=1:96 --vary io-size=4k,64k --set op=randread"""


@click.command(name="sweep", epilog=EXAMPLES, context_settings={"max_content_width": 110})
@click.argument("sweep", required=False)
@click.argument("source", nargs=-1)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False),
    help="Results file; an unfinished one is continued.",
)
@click.option(
    "--scale",
    metavar="F|auto",
    help="Scale file sizes and durations by this factor. Default: auto for presets, 1 for files.",
)
@click.option("--max-time", metavar="TIME", help="Shorten the durations until the sweep fits.")
@click.option(
    "--rounds",
    type=click.IntRange(1, ROUNDS_MAX),
    help="How often each point runs; overrides the file's rounds.",
)
@click.option(
    "--set", "settings", multiple=True, metavar="FIELD=VALUE", help="Override a field of every point."
)
@click.option(
    "--vary", multiple=True, metavar="FIELD=VALUES",
    help="Vary a field: a list, 4k,64k; 1:96 doubles from 1 to 96; 8:32:8 goes by steps of 8. Repeat it for more axes.",
)
@click.option(
    "--pair", "pairs", multiple=True, metavar="GPU=SOURCE", help="A GPU and the source that feeds it."
)
@click.option("--fabric", "elsewhere", metavar="tcp://HOST[:PORT][/NQN]", help="Use a running target, e.g. on another machine.")
@click.option("--netns", is_flag=True, help="Run the target in a network namespace, behind a veth pair (root).")
@click.option("--link-delay", "delay", metavar="TIME", help="Delay of that link, set by tc netem, e.g. 30us.")
@click.option("--link-rate", "rate", metavar="RATE", help="Rate of that link, set by tc netem, e.g. 25gbit.")
@click.option("--restart", is_flag=True, help="Start over; the old results are moved to FILE.1.")
@click.option(
    "--extend",
    is_flag=True,
    help="Continue although the sweep has changed; keep the points that are still in it.",
)
@click.option("--dry-run", "only_show", is_flag=True, help="List the runs and how long they take.")
@click.option(
    "--list", "list_presets", is_flag=True, help="List the presets and where their methods come from."
)
@models.options
@listen.option
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(sweep: str | None, source: tuple[str, ...], **values: Any) -> int:
    """The same over any matrix of settings, or by a published method.

    SWEEP is a TOML file, or the name of a preset; with --vary it may be left out. Each finished point is one line of
    the results file.
    After Ctrl-C or a crash, the same command with the same -o continues where it stopped.
    """
    if values["list_presets"]:
        return _list(values["as_json"])
    asked, source = asked_for(sweep, source, values["vary"])
    if asked.systems and asked.name == INFERENCE_DRIVES:
        from forebay.sweep import inference

        return inference.command(asked, source, values)
    if asked.systems:
        return drives.command(asked, source, values)
    models.refuse_own(values, asked.name)
    scale = values["scale"] or ("auto" if asked.origin.startswith("preset ") else "1")
    settings = parse_overrides(values["settings"])
    refuse_settled(settings, values["vary"])
    asks = planning.Asks(
        sources=source,
        settings={**settings, **_pairs(values["pairs"], source)},
        scale=parse_scale(scale),
        seconds_max=_seconds_max(values["max_time"]),
        rounds=values["rounds"],
    )
    link = Link(
        parse_elsewhere(values["elsewhere"]) if values["elsewhere"] else None, values["netns"], values["delay"], values["rate"]
    )
    link.check(asked.needs, asked.name)
    if values["restart"] and values["extend"]:
        raise RequestError(
            "--restart with --extend", "contradict each other", "--extend keeps what is finished"
        )
    if values["only_show"]:
        plan = planning.make(asked, asks)
        click.echo(json.dumps(_listing(plan)) if values["as_json"] else dry_run(plan))
        return 0
    output = Path(values["output"] or time.strftime(f"{asked.name}-%Y%m%d-%H%M%S.jsonl"))
    # A request that can't be right fails before anything is written.
    planning.define(asked, asks)
    with listen.listening(values["metrics"]) as listens, Results(output) as results:
        plan = _continue(asked, asks, results, values["restart"], values["extend"])
        return _run(plan, results, values["as_json"], link, listens)


def _seconds_max(text: str | None) -> float | None:
    if text is None:
        return None
    seconds = parse_seconds(text, "--max-time")
    if seconds <= 0:
        raise RequestError(f"--max-time {text}", "must be above 0", "--max-time 30m")
    return seconds


def _pairs(pairs: tuple[str, ...], sources: tuple[str, ...]) -> dict[str, Any]:
    if pairs and sources:
        raise RequestError(
            f"--pair {pairs[0]} with {' '.join(sources)}", "each --pair names its own source", "no SOURCE"
        )
    return {"pairs": list(pairs)} if pairs else {}


def _run(plan: planning.Plan, results: Results, as_json: bool, link: Link, listens: Endpoint | None) -> int:
    for line in [*heading(plan), *making(plan)]:
        click.echo(line, err=True)
    finished = results.contents.finished()
    before = sum(is_finished(p, finished) for p in plan.points)
    already = f", {before} of them finished before" if before else ""
    click.echo(
        f"{len(plan.points)} runs{already}, {format_duration(plan.seconds)} in all, into {results.path}",
        err=True,
    )
    if before == len(plan.points):
        outcome = run_points(plan, results)
    else:
        with Fabric(plan, link, lambda text: click.echo(text, err=True)) as fabric:
            outcome = run_points(plan, results, fabric.resolve, listens)
        if outcome.exit_code in (BAD_REQUEST, MACHINE):
            results.nothing_measured = True
    kept = "" if results.leaves_nothing else str(results.path)
    document = summary(plan, results.contents.finished(), outcome, kept)
    click.echo(json.dumps(document) if as_json else show(document, plan))
    if outcome.interrupted:
        click.echo(f"forebay: interrupted; the same command with -o {results.path} continues", err=True)
    return MACHINE if outcome.exit_code == DONE and plan.refused else outcome.exit_code


def _continue(
    sweep: Any, asks: planning.Asks, results: Results, restart: bool, extend: bool
) -> planning.Plan:
    """The plan, with the file made ready for it: damage put aside, a changed sweep refused or let in."""
    contents = results.contents
    if restart and (contents.headers or contents.lines or contents.damaged):
        click.echo(f"the old results are in {results.restart()}", err=True)
        contents = results.contents
    old = contents.headers[-1] if contents.headers else None
    changes = planning.differences(old["definition"], planning.define(sweep, asks)) if old else []
    # Where nothing was measured, as by a sweep that this machine refused, there is nothing to keep apart.
    if changes and not extend and any("record" in line for line in contents.lines):
        found = "holds a sweep that differs: " + "; ".join(changes)
        raise RequestError(
            f"-o {results.path}",
            found,
            "--extend to keep the points that match, --restart to start over, or -o another file",
        )
    same_scale = old is not None and not any(
        c.startswith(("scale:", "max_time_s:", "fallback:")) for c in changes
    )
    plan = planning.make(sweep, asks, old["frozen"] if old is not None and same_scale else None)
    _put_damage_aside(results)
    results.mend_end()
    if old is None or changes:
        results.append(_header(plan, asks))
    return plan


def _put_damage_aside(results: Results) -> None:
    aside = results.put_damage_aside()
    for number, found in results.contents.damaged:
        click.echo(
            f"forebay: {results.path}:{number} {found}; kept in {aside}, and its point runs again", err=True
        )


def _header(plan: planning.Plan, asks: planning.Asks) -> dict[str, Any]:
    return {
        "schema": HEADER,
        "preset": plan.sweep.name,
        "origin": plan.sweep.origin,
        "title": plan.sweep.title,
        "method": plan.sweep.method,
        "cites": plan.sweep.cites,
        "sweep": plan.hash,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": engine.typed(),
        "sources": list(asks.sources),
        "definition": plan.definition,
        "frozen": plan.frozen,
        "changes": plan.changes,
        "dropped": plan.dropped,
    }


def _listing(plan: planning.Plan) -> dict[str, Any]:
    return {
        "schema": "forebay.sweep-plan/1",
        "preset": plan.sweep.name,
        "sweep": plan.hash,
        "seconds": plan.seconds,
        "changes": plan.changes,
        "dropped": plan.dropped,
        "points": [
            {"key": p.key, "round": p.round, "name": p.name, "point": p.job, "changes": p.changes}
            for p in plan.points
        ],
    }


def _list(as_json: bool) -> int:
    sweeps = [parse(text, name, f"preset {name}") for name, text in presets().items()]
    if as_json:
        rows = [
            {"name": s.name, "title": s.title, "method": s.method.strip(), "cites": s.cites} for s in sweeps
        ]
        click.echo(json.dumps({"schema": "forebay.presets/1", "presets": rows}))
        return 0
    lines = []
    for s in sweeps:
        lines += [f"{s.name}: {s.title}", *(f"    {line.strip()}" for line in s.method.strip().splitlines())]
        lines += [f"    source: {cite}" for cite in s.cites]
    # At once: a reader that has what it wants, such as head, may be gone by a second time.
    click.echo("\n".join(lines))
    return 0
