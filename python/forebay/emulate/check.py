"""`forebay emulate check`: do these results comply with the rules of MLPerf Storage?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from statistics import fmean, stdev
from typing import Any

import click

from forebay.emulate import judge, results
from forebay.emulate.judge import Verdict
from forebay.emulate.results import Damaged, Run
from forebay.emulate.workloads import RULES, check_rules
from forebay.errors import CHECK_FAILED, DONE

SCHEMA = "forebay.emulate-check/1"
LABEL = "MLPerf-style, unverified"
MARKS = {True: "ok ", False: "NO ", None: "?  "}
EXAMPLES = """\b
Examples:
  forebay emulate check results
  forebay emulate check dlio-results --rules v1.0 --open
  forebay emulate check results --json"""


@click.command("check", epilog=EXAMPLES, context_settings={"max_content_width": 110})
@click.argument("folder")
@click.option("--rules", metavar="SET", help="v1.0, v2.0, v3.0 or text. Default: the results' own.")
@click.option("--open", "division", flag_value="open", help="Apply the rules of the open division.")
@click.option(
    "--closed", "division", flag_value="closed", default="closed", help="Apply the rules of the closed division (default)."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(folder: str, rules: str | None, division: str, as_json: bool) -> int:
    """Do these results comply with the rules of MLPerf Storage? Exit code 1 means no.

    FOLDER holds records saved by `forebay emulate run --results`, a search (the runs that confirm its answer are judged), or
    results of DLIO or MLCommons' own tool.
    """
    check_rules(rules)
    found = results.survey(folder)
    runs, damaged = found.runs, found.damaged
    chosen = rules or (runs[0].edition if runs and runs[0].edition in RULES else "v1.0")
    verdicts = judge.judge(runs, damaged, chosen, division)
    document = report(folder, runs, damaged, chosen, division, verdicts) | {"passed_over": found.checkpoints}
    click.echo(json.dumps(document, indent=1) if as_json else "\n".join(lines(document)))
    return DONE if document["stands"] else CHECK_FAILED


def report(
    folder: str, runs: Sequence[Run], damaged: Sequence[Damaged], rules: str, division: str, verdicts: Sequence[Verdict]
) -> dict[str, Any]:
    """Schema forebay.emulate-check/1, less `passed_over`: the places of results of checkpoints. `stands`: no rule is broken;
    `untold`: rules of which the results say nothing."""
    return {
        "schema": SCHEMA,
        "label": LABEL,
        "folder": folder,
        "rules": rules,
        "division": division,
        "stands": not any(v.ok is False for v in verdicts),
        "untold": [v.id for v in verdicts if v.ok is None],
        "result": result(judge.counted(runs, rules)),
        "verdicts": [asdict(v) for v in verdicts],
        "runs": [asdict(r) for r in runs],
        "damaged": [asdict(d) for d in damaged],
    }


def result(runs: Sequence[Run]) -> dict[str, Any] | None:
    """The means that a submission would state of the runs that count, to two decimals as the rules want; None without runs."""
    rates = [r.samples_per_s for r in runs if r.samples_per_s is not None]
    utilisations = [r.au_pct for r in runs if r.au_pct is not None]
    if not rates or not utilisations:
        return None
    return {
        "workload": runs[0].workload,
        "accelerator": runs[0].accelerator,
        "accelerators": runs[0].accelerators,
        "au_pct": round(fmean(utilisations), 2),
        "samples_per_s": round(fmean(rates), 2),
        "samples_per_s_sd": round(stdev(rates), 2) if len(rates) > 1 else None,
    }


def lines(document: dict[str, Any]) -> list[str]:
    found = document["result"]
    reported = []
    if found:
        what = f"{found['workload']}, {found['accelerators']:,} × {str(found['accelerator']).upper()}"
        means = f"AU {found['au_pct']:.2f} %, {found['samples_per_s']:,.2f} samples/s"
        reported.append(f"{what}: {means}   ({document['label']})")
    for verdict in document["verdicts"]:
        runs = verdict["runs"]
        some = 0 < len(runs) < len(document["runs"]) and verdict["ok"] is not True
        about = f"   [{', '.join(runs[:4])}{', …' if len(runs) > 4 else ''}]" if some else ""
        reported.append(f"{MARKS[verdict['ok']]} {verdict['id']:<11}{verdict['why']}{about}")
    if passed := document["passed_over"]:
        reported.append(f"skipped, results of checkpoints: {', '.join(passed[:4])}{', …' if len(passed) > 4 else ''}")
    division, rules = document["division"], document["rules"]
    if not document["stands"]:
        reported.append(f"These results break rules of {rules}'s {division} division.")
    elif document["untold"]:
        reported.append(f"No rule of {rules}'s {division} division is broken; unknown: {', '.join(document['untold'])}.")
    else:
        reported.append(f"These results comply with every rule of {rules}'s {division} division that Forebay checks.")
    return reported
