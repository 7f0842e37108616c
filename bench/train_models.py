"""The other models of MLPerf Training at a supply of bytes: `python bench/train_models.py --dir DIR [--small]`.

Each of `bert`, `lora`, `diffusion`, `ssd` and `resnet` by `forebay train`, in random order in each round: fed as fast as the
loader goes, at one NVMe drive's share on eight GPUs, and at one SATA drive's on four. Rates are told over the model's own peak,
measured in the same run. A share that the loader can't bring in such batches is held to four times the need, as sweeps over
drives have it: more makes no difference. Exit: 0 if every bound holds, 1 if one does not.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import statistics
import sys
from typing import Any

from forebay.cli import main as command
from forebay.sweep.models import NEEDS_MAX
from side_by_side import GIB, arguments, middle, publish, save, say, section

PROMISES = ("TRN-46",)
TITLE = "Models of MLPerf Training at a drive's share"
MODELS = ("resnet", "diffusion", "ssd", "bert", "lora")
# Name → flags of `forebay train`.
SUPPLIES = {
    "the loader": (),
    "1 × D7-PS1010, 8 GPUs": ("--supply", "model:d7-ps1010", "--gpus", "8"),
    "1 × D3-S4520, 4 GPUs": ("--supply", "model:d3-s4520", "--gpus", "4"),
}
LOADER, NVME, SATA = SUPPLIES
# Of the own peak: fed, and at an NVMe drive's share; of the lesser of peak and supply, at a SATA drive's.
FED, OFF_NVME, OFF_SATA = 0.97, 0.02, 0.05
KEPT = (
    "batch", "peak_samples_per_s", "samples_per_s", "supply_gib_s", "input_wait_pct", "gpu_idle_pct", "batch_hash", "compiled"
)  # fmt: skip
# Supply → what its column tells, and of which key.
SUPPLY_WORDS = {
    LOADER: ("of the peak", "of_peak"),
    NVME: ("of the peak", "of_peak"),
    SATA: ("of the lesser of peak and supply", "of_lesser"),
}
SHARES = tuple(f"{supply}: {what}" for supply, (what, _) in SUPPLY_WORDS.items())
COLUMNS = ("model", "batch", "peak, samples/s", "needs, MB/s", *SHARES, "waits, %")
# Exit code of a supply that the loader can't bring.
REFUSED = 3
Row = dict[str, Any]


def ran(*words: object) -> tuple[int, str]:
    """Exit code and stdout of a command of ours, in this process."""
    typed, out = sys.argv, io.StringIO()
    sys.argv = ["forebay", *map(str, words)]
    try:
        with contextlib.redirect_stdout(out):
            command(sys.argv[1:])
    except SystemExit as ended:
        return int(ended.code or 0), out.getvalue()
    finally:
        sys.argv = typed
    return 0, out.getvalue()


def measured(options: Any, model: str, supply: str) -> Row | None:
    """A run of a model at a supply; None where it is refused."""
    folder = options.dir / f"{model}{'-small' * options.small}"
    if not (folder / "dataset.json").exists():
        code, _ = ran("train", "datagen", model, "--dir", folder, "-q", *["--small"] * options.small)
        if code:
            return None
    times = ("--seconds", options.seconds, "--peak-seconds", options.seconds / 2, "--cache", "warm")
    more = ("--compile",) if options.compile else ()
    words = ("train", model, "--dir", folder, *times, *more, "--json", "-q")
    code, text = ran(*words, *SUPPLIES[supply])
    held = False
    if code == REFUSED and supply != LOADER and (fed := measured(options, model, LOADER)):
        # Under a drive's share by far, which the loader didn't bring.
        code, text = ran(*words, "--supply", f"{NEEDS_MAX * fed['need_mb_s'] * 1e6 / GIB:.9f}")
        held = True
    if not text:
        say(f"left out: exit code {code}")
        return None
    record = json.loads(text)
    part = record["train"]
    need = part["peak_samples_per_s"] * part["data"]["row_bytes"]
    lesser = min(1.0, part["supply_gib_s"] * GIB / need) if part["supply_gib_s"] else 1.0
    of_peak = part["samples_per_s"] / part["peak_samples_per_s"]
    derived = {"need_mb_s": need / 1e6, "of_peak": of_peak, "of_lesser": of_peak / lesser}
    return {"model": model, "supply": supply, "held": held, **{key: part[key] for key in KEPT}, **derived}


def table(rows: list[Row]) -> list[str]:
    """A line for each model; `waits` is at the SATA drive's share."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for model in MODELS:
        own = [row for row in rows if row["model"] == model]
        if own:
            at = {supply: [row for row in own if row["supply"] == supply] for supply in SUPPLIES}
            cells = [middle([row[key] for row in own], 1) for key in ("peak_samples_per_s", "need_mb_s")]
            keys = {supply: key for supply, (_, key) in SUPPLY_WORDS.items()}
            cells += [middle([row[key] for row in at[supply]], 3) if at[supply] else "–" for supply, key in keys.items()]
            cells.append(middle([row["input_wait_pct"] for row in at[SATA]], 1) if at[SATA] else "–")
            lines.append(f"| {model} | {own[0]['batch']} | {' | '.join(cells)} |")
    return lines


def verdicts(rows: list[Row]) -> list[str]:
    """The bounds, each with its median over the rounds."""
    bounds = (
        (LOADER, "of_peak", f"≥ {FED} of the peak", lambda share: share >= FED),
        (NVME, "of_peak", f"1 ± {OFF_NVME} of the peak", lambda share: abs(share - 1) <= OFF_NVME),
        (SATA, "of_lesser", f"1 ± {OFF_SATA} of the lesser of peak and supply", lambda share: abs(share - 1) <= OFF_SATA),
    )
    said = []
    for model in MODELS:
        for supply, key, what, holds in bounds:
            runs = [row for row in rows if (row["model"], row["supply"]) == (model, supply)]
            if runs:
                share = statistics.median(row[key] for row in runs)
                held = f", held to {NEEDS_MAX:g} times the need" if any(row["held"] for row in runs) else ""
                said.append(f"- {model}, {supply}{held}: {what}: {share:.3f}, {'holds' if holds(share) else '**does not hold**'}")
    return said


def main() -> int:
    parser = arguments(__doc__ or "", 15.0)
    parser.add_argument("--small", action="store_true", help="narrow forms, which a CPU can train")
    parser.add_argument("--compile", action="store_true", help="kernels by torch.compile")
    options = parser.parse_args()
    every = [(model, supply) for model in MODELS for supply in SUPPLIES]
    cells = [cell for cell in every if not options.only or options.only in ", ".join(cell)]
    rows: list[Row] = []
    draw = random.Random(0)
    try:
        for number in range(options.rounds):
            for model, supply in draw.sample(cells, len(cells)):
                say(f"round {number + 1}/{options.rounds}, {model}: {supply}")
                if row := measured(options, model, supply):
                    rows.append({"round": number, **row})
    finally:
        said = verdicts(rows)
        text = section(TITLE, options, "\n".join([*table(rows), "", *said, ""]))
        save(options.json, TITLE, options, rows, text)
    publish(TITLE, options, text)
    return 1 if any("does not hold" in line for line in said) else 0


if __name__ == "__main__":
    raise SystemExit(main())
