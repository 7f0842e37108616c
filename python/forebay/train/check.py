"""`forebay train check`: runs against reference points of convergence, and what to change where one fails."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from forebay.errors import CHECK_FAILED, DONE, RequestError
from forebay.numbers import whole
from forebay.table import table
from forebay.train import reference

Record = dict[str, Any]
SCHEMA, RCP_SCHEMA = "forebay.train.check/1", "forebay.train.rcp/1"


@click.command("check", context_settings={"max_content_width": 110})
@click.argument("runs", nargs=-1, required=True, metavar="RUNS...")
@click.option("--reference", "given", metavar="FILE", help="Reference points: runs of --seeds, or a document. Default: ours.")
@click.option("--rcp", metavar="FILE", help="Write RUNS as points that MLCommons' rcp_checker reads, and judge nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(runs: tuple[str, ...], given: str | None, rcp: str | None, as_json: bool) -> int:
    """Do these runs converge as they should? Samples to the target of each against reference points for its data and batch.

    Exit code 1 if a run doesn't, or ended too early to tell; what to change stands beside it.
    """
    if rcp is not None:
        return export(list(runs), rcp, as_json)
    known = reference.ours() if given is None else read_reference(given)
    found, left = read_runs(list(runs))
    if not found:
        why = "; ".join(left[:3]) or "hold no record of training"
        raise RequestError(" ".join(runs), why, "forebay train toy --seeds 3 -o runs.jsonl, then forebay train check runs.jsonl")
    findings = [finding for group in grouped(found) for finding in reference.judge(group, of_task(known, group[0].task))]
    judged = [finding for finding in findings if finding["passes"] is not None]
    if not judged:
        raise RequestError(" ".join(runs), findings[0]["verdict"], findings[0]["change"])
    document = {"schema": SCHEMA, "reference": given or "ours", "runs": findings, "left_out": left}
    click.echo(json.dumps(document, indent=1) if as_json else text(document))
    return DONE if all(finding["passes"] for finding in judged) else CHECK_FAILED


def export(paths: list[str], target: str, as_json: bool) -> int:
    """Reference convergence points of runs over seeds, for MLCommons' checker. Raises RequestError where none can be made."""
    from forebay import pipes
    from forebay.bench import save
    from forebay.report import load
    from forebay.train import mllog

    flag = f"--rcp {target}"
    pipes.refuse_dash(target, flag, "a file")
    records = [e.record for e in load.load(paths).entries if isinstance(e.record.get("train"), dict)]
    ended = [r for r in records if not (r.get("result") or {}).get("interrupted")]
    whole_ = [r for r in ended if r["train"].get("quality_target") is not None]
    try:
        points, left = mllog.rcp(whole_)
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise RequestError(flag, f"a run doesn't hold what a point says ({error!r:.80})", "runs of this version") from None
    if not points:
        found = "; ".join(left[:3]) or "no run of training with a target"
        raise RequestError(flag, found, f"forebay train dlrm … --seeds {mllog.SEEDS_LEAST} -o runs.jsonl")
    try:
        save.place(Path(target), json.dumps(points, indent=1) + "\n")
    except FileExistsError:
        raise RequestError(flag, "is there already, and isn't overwritten", "another file") from None
    except OSError as error:
        raise save.unwritable(flag, error) from error
    document = {"schema": RCP_SCHEMA, "label": mllog.LABEL, "file": target, "points": sorted(points), "left_out": left}
    lines = [f"{target}: {name}" for name in document["points"]] + [f"left out: {why}" for why in left] + [mllog.LABEL]
    click.echo(json.dumps(document, indent=1) if as_json else "\n".join(lines))
    return DONE


def read_runs(paths: list[str]) -> tuple[list[reference.Run], list[str]]:
    """Runs of files and folders, and what was left out, with the reason. Raises RequestError where none holds a record."""
    from forebay.report import load

    loaded = load.load(paths)
    found, left = [], list(loaded.problems)
    for entry in loaded.entries:
        place = f"{entry.file}:{entry.line}" if entry.line else entry.file
        if not isinstance(entry.record.get("train"), dict):
            left.append(f"{place}: is no run of training")
            continue
        if (entry.record.get("result") or {}).get("interrupted"):
            left.append(f"{place}: was interrupted")
            continue
        try:
            found.append(reference.Run.from_record(entry.record))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            left.append(f"{place}: {error if isinstance(error, ValueError) else 'has a damaged part of training'}")
    return found, left


def read_reference(path: str) -> list[reference.Point]:
    """Points of a document, or of runs over seeds. Raises RequestError."""
    from forebay.plan.catalogue import read_text

    try:
        found = json.loads(read_text(path, "--reference"))
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict) and found.get("schema") == reference.SCHEMA:
        return reference.read(found, f"--reference {path}")
    runs, left = read_runs([path])
    points = reference.points(runs)
    if not any(p.is_usable for p in points):
        few = f"holds no {reference.SEEDS_LEAST} seeds of one training that all converged"
        raise RequestError(f"--reference {path}", "; ".join([few, *left[:2]]), "forebay train MODEL … --seeds 10 -o points.jsonl")
    return points


def grouped(runs: Sequence[reference.Run]) -> list[list[reference.Run]]:
    """Runs of one training together, in their order."""
    made: dict[tuple[Any, ...], list[reference.Run]] = {}
    for run in runs:
        made.setdefault((run.task, run.batch, run.learning_rate), []).append(run)
    return list(made.values())


def of_task(known: Sequence[reference.Point], task: reference.Task) -> list[reference.Point]:
    return [point for point in known if point.task == task]


def text(document: Record) -> str:
    """A row for each run, what to change, and how many pass."""
    rows = [("run", "batch", "learning rate", "samples to the target", "reference", "of so many seeds", "")]
    for run in document["runs"]:
        at = run["reference"]
        span = f"{whole(at['samples'])} ({whole(at['low'])} to {whole(at['high'])})" if at else "none"
        taken = whole(run["samples_to_target"]) if run["samples_to_target"] else f"not in {whole(run['samples'])}"
        named = (f"{run['model']}, seed {run['seed']}", whole(run["batch"]), reference.rate_text(run["learning_rate"]), taken)
        rows.append((*named, span, str(at["seeds"]) if at else "", run["verdict"] if at else "not judged"))
    lines = table(rows)
    for change in dict.fromkeys(_change(run) for run in document["runs"] if run["change"]):
        lines.append(change)
    lines += [f"left out: {why}" for why in document["left_out"]]
    passed = sum(run["passes"] is True for run in document["runs"])
    return "\n".join([*lines, "", f"{passed} of {len(document['runs'])} runs converge as the reference does"])


def _change(run: Record) -> str:
    where = f"{run['model']}, seed {run['seed']}"
    return f"{where}: {run['verdict']}\n  try: {run['change']}"
