"""Training over drives, measured against plan and paper: `python bench/drives.py --dir DIR [--gpu]`.

The preset `drive-scaling` of forebay sweep on both of its systems, scaled to the model's own peak: the toy on the host, or DLRMv2
on the first GPU (--gpu; its data are made in DIR, or found there). Results stay in DIR, and an unfinished sweep goes on there.
Exit: 0 if every bound holds, 1 if one does not.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from forebay.train import scaling
from side_by_side import arguments, publish, save, say, section

PROMISES = ("TRN-22",)
TITLE = "Training over drives"
SYSTEMS = ("d74h-7u", "d54u-3u")
ROWS, TABLE_ROWS = 4_194_304, 4_000_000
# Minutes against the plan, and the speed-up of all drives over one against the published cells, where both are known.
OFF = 0.15
COLUMNS = ("system", "drives", "supply, GiB/s", "samples/s", "of its peak", *("minutes", "planned", "published"))
HEAD = f"| {' | '.join((*COLUMNS, 'speed-up', 'planned', 'published'))} |"
HOLDS = {True: "holds", False: "**does not hold**"}
FOREBAY = [sys.executable, "-c", "import sys; from forebay.cli import main; sys.argv[0] = 'forebay'; main(sys.argv[1:])"]

Row = dict[str, Any]


def source(folder: Path, rows: int, table_rows: int) -> Path:
    """DLRM's data set, made unless it is there."""
    from forebay.train import data

    made = folder / f"train-dlrm-{rows}"
    if not (made / data.ABOUT).exists():
        say(f"writing {made}")
        data.generate(made, 0, rows, 65_536, table_rows)
    return made


def swept(folder: Path, system: str, words: list[str]) -> Row:
    """The document of one sweep. A failed point is told; the others stay."""
    kind = "dlrm" if words[:1] and not words[0].startswith("-") else "toy"
    command = ["sweep", "drive-scaling", *words, "--system", system, "--scale-to-peak", "--json"]
    done = subprocess.run(
        [*FOREBAY, *command, "-o", str(folder / f"drives-{kind}-{system}.jsonl")], stdout=subprocess.PIPE, text=True
    )
    if not done.stdout:
        raise SystemExit(f"forebay {' '.join(command)} ended with exit code {done.returncode}")
    found: Row = json.loads(done.stdout)
    return found


def table(found: list[Row]) -> list[str]:
    def two(value: float | None) -> str:
        return "–" if value is None else f"{value:.2f}"

    lines = [HEAD, "|" + "---|" * 11]
    for row in (row for document in found for row in document["rows"]):
        peak = "–" if row["of_peak"] is None else f"{row['of_peak']:.2f}"
        cells = [row["system"], f"{row['drives']} × {row['drive']}"]
        cells += [f"{row['supply_gib_s']:.4g}", f"{row['samples_per_s']:,.0f}", peak]
        cells += [two(row[f"{of}{what}"]) for what in ("minutes", "speed_up") for of in ("", "predicted_", "published_")]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def verdicts(found: list[Row]) -> list[str]:
    said = []
    for document in found:
        rows = document["rows"]
        for drive in dict.fromkeys(row["drive"] for row in rows):
            alike = [row for row in rows if row["drive"] == drive]
            worst = max(alike, key=lambda row: abs(row["minutes"] / row["predicted_minutes"] - 1))
            off = worst["minutes"] / worst["predicted_minutes"] - 1
            bound = f"{drive} on {document['system']}: minutes within {OFF:.0%} of the plan"
            said.append(f"- {bound}: {off:+.1%} at {worst['drives']}, {HOLDS[abs(off) <= OFF]}")
            for row in alike:
                if row["published_speed_up"] and row["drives"] > 1:
                    off = row["speed_up"] / row["published_speed_up"] - 1
                    bound = f"{drive} on {document['system']}: speed-up of {row['drives']} within {OFF:.0%} of the paper's"
                    said.append(f"- {bound}: {off:+.1%}, {HOLDS[abs(off) <= OFF]}")
        said += [f"- note: {document['unsteady']}"] if document["unsteady"] else []
        said += [f"- failed: {error['asked']}: {error['found']}, {HOLDS[False]}" for error in document["failed"]]
    return said


def main() -> int:
    parser = arguments(__doc__ or "", 0.0)
    parser.add_argument("--gpu", action="store_true", help="DLRMv2 on the first GPU")
    parser.add_argument("--batch-size", help="samples of a batch")
    parser.add_argument("--rows", type=int, default=ROWS, help="of DLRM's data set")
    parser.add_argument("--table-rows", type=int, default=TABLE_ROWS, help="to which its large tables are cut")
    options = parser.parse_args()
    words = [str(source(options.dir, options.rows, options.table_rows))] if options.gpu else []
    words += ["--rounds", str(options.rounds)]
    words += ["--seconds", str(options.seconds)] if options.seconds else []
    words += ["--batch-size", options.batch_size] if options.batch_size else []
    found = [swept(options.dir, system, words) for system in SYSTEMS]
    title = f"{TITLE}, {'on a GPU' if options.gpu else 'on the host'}"
    said = verdicts(found)
    enough = [f"- {scaling.sentence(row)}" for document in found for row in document["enough"]]
    text = section(title, options, "\n".join([*table(found), "", *enough, "", *said, ""]))
    save(options.json, title, options, found, text)
    publish(title, options, text)
    return 1 if any("does not hold" in line for line in said) else 0


if __name__ == "__main__":
    raise SystemExit(main())
