"""A KV cache and a vector index on data sheets alone, beside what was published: `python bench/kv_simulate.py --dir DIR`.

`forebay emulate kvcache --dir model:DRIVE` for each of the three options, as many trials as --rounds, and a query of dependent
reads by `forebay bench --pattern hops=…`, all in virtual time: what comes out is the same on every machine, but for what it
takes. Exit: 0 if every bound holds, 1 if one does not.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from peers import installed, run
from side_by_side import arguments, middle, publish, save, say, section

PROMISES = ("KVC-5", "BEN-54")
TITLE = "A KV cache and a vector index on data sheets"
DRIVE, SLOW = "d7-ps1010", "d5-p5336"
# Of all runs together, with the start of each.
SECONDS_MAX = 60.0
# The published index: 7 segments × a search list of 200 × 8 KiB a query; that 4 nodes are read at once is assumed.
QUERY = "hops=50,beam=4,node=8k,segments=7"
# figure: least, most, and what is published.
BOUNDS = {
    "option 1, as published, GiB/s": (0.95 * 14.53, 1.05 * 14.53, "14.53 within 5 %"),
    "option 1, until the last byte, GiB/s": (12.4, 13.5, "12.4 to 13.5"),
    "option 1, as published ÷ until the last byte": (1.07, 1.17, "1.07 to 1.17"),
    "option 3, as published, GiB/s": (0.95 * 14.29, 1.05 * 14.29, "14.29 within 5 %"),
    "a drive of 7.0 GB/s, option 1, as published ÷ until the last byte": (1.25, 1.35, "1.25 to 1.35"),
    "queries a second": (0.8 * 141.6, 1.2 * 141.6, "141.6 within 20 %"),
    "MB a query": (11.46 * 0.999, 11.46 * 1.001, "11.46"),
}
# Name of a row, option and drive.
CELLS = (
    ("option 1, D7-PS1010", 1, DRIVE), ("option 2, D7-PS1010", 2, DRIVE), ("option 3, D7-PS1010", 3, DRIVE),
    ("option 1, D5-P5336", 1, SLOW),
)  # fmt: skip
Row = dict[str, Any]
HOLDS = {True: "holds", False: "**does not hold**"}


def simulated(program: str, option: int, drive: str) -> Row:
    ran = run([program, "emulate", "kvcache", "--option", str(option), "--dir", f"model:{drive}", "--json", "-q"], 900)
    part = json.loads(ran.stdout)["kvcache"]
    rates = {name: part["read_gib_s"][name] for name in ("as_published", "window", "drained")}
    reported = {"requests": part["requests"]["served"], "stream_hash": part["stream_hash"], "limit": part["limit"]}
    return rates | reported | {"wall_s": ran.wall_s, "cpu_s": ran.cpu_s}


def queries(program: str) -> Row:
    ran = run([program, "bench", f"model:{DRIVE}", "--pattern", QUERY, "--duration", "5", "--json", "-q"], 900)
    found = json.loads(ran.stdout)["result"]["queries"]
    return {"per_s": found["per_s"], "bytes": found["bytes"], "p50_us": found["latency_us"]["p50"], "cpu_s": ran.cpu_s}


def figures(runs: dict[str, list[Row]], asked: Row) -> dict[str, float]:
    one, three, slow = (runs[name][0] for name in ("option 1, D7-PS1010", "option 3, D7-PS1010", "option 1, D5-P5336"))
    found = (
        one["as_published"], one["drained"], one["as_published"] / one["drained"], three["as_published"],
        slow["as_published"] / slow["drained"], asked["per_s"], asked["bytes"] / 1e6,
    )  # fmt: skip
    return dict(zip(BOUNDS, found, strict=True))


def table(runs: dict[str, list[Row]]) -> list[str]:
    lines = ["| simulated | as published, GiB/s | window | until the last byte | ÷ | requests | limit | s | CPU, s |"]
    lines += ["|---|" + "---|" * 8]
    for name, rows in runs.items():
        first = rows[0]
        rates = [f"{first[rate]:.2f}" for rate in ("as_published", "window", "drained")]
        cells = [name, *rates, f"{first['as_published'] / first['drained']:.3f}", f"{first['requests']:,}", first["limit"]]
        lines.append(f"| {' | '.join([*cells, *(middle([row[key] for row in rows], 1) for key in ('wall_s', 'cpu_s'))])} |")
    return lines


def verdicts(runs: dict[str, list[Row]], asked: Row, rounds: int) -> list[tuple[str, str, bool]]:
    """What must hold, what was found, and whether it does."""
    found = []
    for name, value in figures(runs, asked).items():
        least, most, published = BOUNDS[name]
        found.append((f"{name}: {published}", middle([value], 3), least <= value <= most))
    alike = all(len({row["stream_hash"] for row in rows}) == len({row["drained"] for row in rows}) == 1 for rows in runs.values())
    found.append((f"{rounds} trials of each are the same", "", alike))
    # The three options of one drive are what a submission has.
    whole = [row for name, rows in runs.items() if "PS1010" in name for row in rows]
    for key, what in (("wall_s", "s"), ("cpu_s", "CPU-seconds")):
        took = sum(row[key] for row in whole)
        found.append((f"3 options × {rounds} trials: {what} < {SECONDS_MAX:g}", middle([took], 1), took < SECONDS_MAX))
    return found


def main() -> int:
    options: argparse.Namespace = arguments(__doc__ or "", None, only=False).parse_args()
    program = installed()
    runs: dict[str, list[Row]] = {name: [] for name, _, _ in CELLS}
    for number in range(options.rounds):
        for name, option, drive in CELLS:
            runs[name].append(simulated(program, option, drive))
            say(f"trial {number + 1}/{options.rounds}, {name}: {runs[name][-1]['wall_s']:.1f} s")
    asked = queries(program)
    said = verdicts(runs, asked, options.rounds)
    lines = [f"- {what}: {value + ', ' if value else ''}{HOLDS[holds]}" for what, value, holds in said]
    query = f"`{QUERY}`: {asked['per_s']:.1f} queries/s of {asked['bytes'] / 1e6:.2f} MB, p50 {asked['p50_us'] / 1e3:.1f} ms."
    text = section(TITLE, options, "\n".join([*table(runs), "", query, "", *lines, ""]))
    save(options.json, TITLE, options, [{"runs": runs, "queries": asked, "bounds": said}], text)
    publish(TITLE, options, text)
    return 0 if all(holds for _, _, holds in said) else 1


if __name__ == "__main__":
    sys.exit(main())
