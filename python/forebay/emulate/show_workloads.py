"""`forebay emulate workloads`: what there is, and every constant of it."""

from __future__ import annotations

import json
from typing import Any

import click

from forebay.emulate.workloads import Checkpoint, Training, Workload, builtin, variants
from forebay.errors import DONE, RequestError
from forebay.numbers import bytes_
from forebay.table import table


@click.command("workloads", context_settings={"max_content_width": 110})
@click.argument("words", nargs=-1, metavar="[list | show NAME|FILE.toml]")
@click.option("--accelerator", metavar="NAME", help="Only the constants on this accelerator.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(words: tuple[str, ...], accelerator: str | None, as_json: bool) -> int:
    """Which workloads are there, and with which constants?

    Without arguments, or with list: all of them. With show: every constant of one, or of your own TOML file.
    """
    if not words or words == ("list",):
        found = [w for ws in builtin().values() for w in ws if fits(w, accelerator)]
        said = listing(found)
    elif words[0] == "show" and len(words) == 2:
        found = [w for w in variants(words[1]) if fits(w, accelerator)]
        said = "\n\n".join("\n".join(constants(w)) for w in found)
    else:
        raise RequestError(
            f"workloads {' '.join(words)}", "is neither list nor show NAME", "forebay emulate workloads show unet3d"
        )
    if not found:
        raise RequestError(f"--accelerator {accelerator}", "no workload has it", "forebay emulate workloads")
    if as_json:
        click.echo(json.dumps({"schema": "forebay.workloads/1", "workloads": [w.document() for w in found]}))
    else:
        click.echo(said)
    return DONE


def fits(workload: Workload, accelerator: str | None) -> bool:
    return accelerator is None or isinstance(workload, Training) and workload.accelerator == accelerator


def listing(found: list[Workload]) -> str:
    """A table of the training workloads, then one of the checkpoint workloads."""
    training = [w for w in found if isinstance(w, Training)]
    saving = [w for w in found if isinstance(w, Checkpoint)]
    lines: list[str] = []
    if training:
        head = ("training", "accelerator", "rules", "format", "batch", "compute", "samples/s", "MiB/s", "AU")
        lines += table([head, *map(_training_row, training)])
        lines += ["", "samples/s, MiB/s: of one accelerator that never waits. whatif: not part of any submission."]
    if saving:
        saved = ("checkpoint", "rules", "processes", "tensor x pipeline x data", "ZeRO", "size")
        lines += ["", *table([saved, *map(_checkpoint_row, saving)])]
    return "\n".join(lines).strip("\n")


def _training_row(w: Training) -> tuple[str, ...]:
    rules = ",".join(w.rules) + ("" if w.status == "closed" else f" ({w.status})")
    compute = f"{w.compute_s * 1e3:g} ms"
    rate = f"{w.samples_per_s:,.{1 if w.samples_per_s < 1000 else 0}f}"
    return (w.name, w.accelerator, rules, w.format, str(w.batch), compute, rate, f"{w.mib_s:,.1f}", f"{w.au_pct_min:g} %")


def _checkpoint_row(w: Checkpoint) -> tuple[str, ...]:
    split = f"{w.tensor} x {w.pipeline} x {w.data}"
    return (w.name, ",".join(w.rules), str(w.processes), split, str(w.zero_stage), bytes_(sum(w.written_bytes())))


def constants(workload: Workload) -> list[str]:
    """One line per constant, under a heading; absent ones left out; Parquet's columns counted."""
    document: dict[str, Any] = workload.document()
    columns = document.pop("columns", ())
    heading = " on ".join(str(document.pop(k)) for k in ("name", "accelerator") if k in document)
    rows = [(f"  {k}", _shown(v)) for k, v in document.items() if v not in (None, "")]
    width = max(len(k) for k, _ in rows)
    lines = [heading, *(f"{k.ljust(width)}  {v}" for k, v in rows)]
    if isinstance(workload, Training) and columns:
        read = [c for c in workload.columns if c.read]
        sizes = sum(c.sample_bytes for c in read), sum(c.sample_bytes for c in workload.columns)
        reported = f"{len(columns)}, {len(read)} of them read: {sizes[0]:,} of {sizes[1]:,} B of a sample"
        lines.append(f"{'  columns'.ljust(width)}  {reported}")
    return lines


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (tuple, list)):
        return ", ".join(map(str, value))
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.10g}" if isinstance(value, float) else str(value)
