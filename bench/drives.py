"""Training over drives, measured against plan and paper: `python bench/drives.py --dir DIR [--gpu [--models M,…]]`.

The preset `drive-scaling` of forebay sweep on both of its systems, scaled to the model's own peak: the toy on the host, or on the
first GPU (--gpu) DLRMv2, or the models named, of which plan and paper say that they gain nothing unless a drive's share is below
their need. Data are made in DIR, or found there. Results stay in DIR, and an unfinished sweep goes on there.
Exit: 0 if every bound holds, 1 if one does not.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from forebay.train import scaling
from side_by_side import arguments, only_with_gpu, publish, save, say, section

PROMISES = ("TRN-22",)
TITLE = "Training over drives"
SYSTEMS = ("d74h-7u", "d54u-3u")
ROWS, TABLE_ROWS = 4_194_304, 4_000_000
# Minutes against the plan, and the speed-up of all drives over one against the published cells, where both are known.
OFF = 0.15
# Of other models: off their own peak where a drive's share is beyond their need, and off the lesser of both elsewhere.
PEAK_OFF, SHARE_OFF = 0.02, 0.05
# The peak varies by so much from one point to the next: a supply that carries as much of it is no limit.
PEAK_SHARE = 0.97
COLUMNS = ("system", "drives", "supply, GiB/s", "samples/s", "of its peak", *("minutes", "planned", "published"))
HEAD = f"| {' | '.join((*COLUMNS, 'speed-up', 'planned', 'published'))} |"
MODEL_HEAD = "| model | drives | supply, GiB/s | samples/s | of its peak | speed-up | planned |"
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


def source_of(folder: Path, model: str) -> Path:
    """Another model's data set, made unless it is there."""
    made = folder / f"train-{model}"
    if not (made / "dataset.json").exists():
        say(f"writing {made}")
        subprocess.run([*FOREBAY, "train", "datagen", model, "--dir", str(made), "-q"], check=True, stdout=sys.stderr)
    return made


def swept(folder: Path, system: str, words: list[str], kind: str) -> Row:
    """The document of one sweep. A failed point is told; the others stay."""
    command = ["sweep", "drive-scaling", *words, "--system", system, "--scale-to-peak", "--json"]
    output = folder / f"drives-{kind}-{system}.jsonl"
    # Ctrl-C ends the sweep, which tells of what it has.
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        done = subprocess.run([*FOREBAY, *command, "-o", str(output)], stdout=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, before)
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


def model_table(found: list[Row]) -> list[str]:
    lines = [MODEL_HEAD, "|" + "---|" * 7]
    for row in (row for document in found for row in document["rows"]):
        cells = [row["model"], f"{row['drives']} × {row['drive']} in {row['system']}", f"{row['supply_gib_s']:.4g}"]
        cells += [f"{row['samples_per_s']:,.1f}", "–" if row["of_peak"] is None else f"{row['of_peak']:.3f}"]
        cells += [f"{row['speed_up']:.2f}", f"{row['predicted_speed_up']:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def model_verdicts(found: list[Row]) -> list[str]:
    """Of each model and kind of drive the point that is furthest off its own peak, or off the lesser of peak and share."""
    said = []
    for document in found:
        rows = [row for row in document["rows"] if row["of_peak"] is not None]
        for model, drive in dict.fromkeys((row["model"], row["drive"]) for row in rows):
            alike = [row for row in rows if (row["model"], row["drive"]) == (model, drive)]
            off = {row["drives"]: row["of_peak"] / min(1.0, bound_of_peak(row)) - 1 for row in alike}
            count = max(off, key=lambda each: abs(off[each]))
            waits = [row["drives"] for row in alike if bound_of_peak(row) < 1]
            most = SHARE_OFF if waits else PEAK_OFF
            named = f"the lesser of its peak and the share (it waits with {', '.join(map(str, waits))})" if waits else "its peak"
            holds = HOLDS[abs(off[count]) <= most]
            bound = f"{model}, {drive} in {document['system']}: within {most:.0%} of {named}"
            said.append(f"- {bound}: {off[count]:+.1%} at {count}, {holds}")
        said += [f"- note: {document['unsteady']}"] if document["unsteady"] else []
        said += [f"- failed: {error['asked']}: {error['found']}, {HOLDS[False]}" for error in document["failed"]]
        said += ["- note: interrupted; the same command continues"] if document["interrupted"] else []
    return said


def bound_of_peak(row: Row) -> float:
    """The most of the point's own peak that its supply carries."""
    most: float = 1 / row["predicted_time"] / row["peaks"][0]
    return most if most < PEAK_SHARE else 1.0


def main() -> int:
    parser = arguments(__doc__ or "", 0.0, only=False)
    parser.add_argument("--gpu", action="store_true", help="DLRMv2 on the first GPU")
    parser.add_argument("--models", help="with --gpu: others than DLRMv2, resnet,diffusion,ssd,bert,lora")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="default: both")
    parser.add_argument("--batch-size", help="samples of a batch")
    parser.add_argument("--rows", type=int, default=ROWS, help="of DLRM's data set")
    parser.add_argument("--table-rows", type=int, default=TABLE_ROWS, help="to which its large tables are cut")
    options = parser.parse_args()
    only_with_gpu(parser, options, "models", "rows", "table_rows")
    models = options.models.split(",") if options.models else []
    words = [str(source_of(options.dir, model)) for model in models]
    words += [str(source(options.dir, options.rows, options.table_rows))] if options.gpu and not models else []
    words += ["--rounds", str(options.rounds)]
    words += ["--seconds", str(options.seconds)] if options.seconds else []
    words += ["--batch-size", options.batch_size] if options.batch_size else []
    kind = "-".join(models) or ("dlrm" if options.gpu else "toy")
    found: list[Row] = []
    for system in options.systems.split(","):
        if not found or not found[-1]["interrupted"]:
            found.append(swept(options.dir, system, words, kind))
    title = f"{TITLE}, {'on a GPU' if options.gpu else 'on the host'}{', other models' if models else ''}"
    said = model_verdicts(found) if models else verdicts(found)
    enough = [f"- {scaling.sentence(row)}" for document in found for row in document["enough"]] if not models else []
    lines = model_table(found) if models else table(found)
    text = section(title, options, "\n".join([*lines, "", *enough, "", *said, ""]))
    save(options.json, title, options, found, text)
    publish(title, options, text)
    return 1 if any("does not hold" in line for line in said) else 0


if __name__ == "__main__":
    raise SystemExit(main())
