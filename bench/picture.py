"""README's picture: a report of runs, photographed in a headless Chromium.

`--measure DIR` makes the runs on files of its own in DIR, in about 8 minutes; with `--gpu`, cached files go into a GPU. RUNS are
records that are there: those of a GPU server without a browser, which `--keep` saved. A picture that its own page warns about,
or whose headline shows no difference, isn't taken, unless `--anyway`.

    python bench/picture.py --measure /mnt/data/scratch
    python bench/picture.py --measure /mnt/data/scratch --gpu --keep RUNS.jsonl
    python bench/picture.py RUNS.jsonl
"""

from __future__ import annotations

import argparse
import html
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs/images/report.png"
# What a screen shows of the page.
WIDTH, HEIGHT = 1120, 1620
SWEEP = """\
title = "{title}, {workers} workers"

[job]
op = "read"
workers = {workers}
depth = {depth}
duration = {seconds:g}
warmup = 1
repeat = {repeats}
file-size = "{file_mib}m"
cache = "{cache}"
create = true
files = {workers}

[matrix]
io-size = ["64k", "128k", "512k", "1m", "4m"]
path = {paths}
"""
DRIVE = {"title": "host and bounce", "workers": 2, "cache": "bypass", "paths": '["host", "bounce"]'}
GPU = {"title": "Cached files into the GPU", "workers": 4, "cache": "warm", "paths": '["bounce", "mapped"]'}


def forebay(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "forebay.cli", *arguments], check=True)


def objections(page: str) -> list[str]:
    """Why this page is no picture of what Forebay measures: its warnings, and a headline without a difference."""
    found = []
    if "no proof of a difference" in page:
        found.append("the headline's difference isn't proven")
    section = re.search(r"Before you rely on this</h2>(.*?)</section>", page, re.S)
    if section:
        words = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", section[1])).strip()
        found.append(f"the page warns: {html.unescape(words)}")
    return found


def photograph(page: Path, picture: Path) -> None:
    sys.path.append(str(ROOT / "tests"))
    from report_browser import Browser

    with Browser() as window:
        window.open(page, WIDTH)
        window.full_screenshot(picture, height_max=HEIGHT)


def measured(asked: argparse.Namespace, scratch: Path) -> list[Path]:
    """The records of a sweep in a folder of `asked.measure`."""
    recipe, runs = scratch / "picture.toml", scratch / "runs.jsonl"
    given = {"depth": asked.depth, "seconds": asked.seconds, "repeats": asked.repeats, "file_mib": asked.file_mib}
    recipe.write_text(SWEEP.format(**given, **(GPU if asked.gpu else DRIVE)))
    forebay("sweep", str(recipe), str(scratch), "-o", str(runs))
    if asked.keep:
        asked.keep.write_bytes(runs.read_bytes())
    return [runs]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="*", metavar="RUNS", help="records, instead of --measure")
    parser.add_argument("--measure", type=Path, metavar="DIR", help="make the runs in a folder made here, which is removed")
    parser.add_argument("--gpu", action="store_true", help="read cached files into a GPU, by bounce and mapped")
    parser.add_argument("--seconds", type=float, default=10, help="measured seconds of each run (10)")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each point (5)")
    parser.add_argument("--depth", type=int, default=16, help="I/Os in flight per worker (16)")
    parser.add_argument("--file-mib", type=int, default=1024, help="MiB of each worker's file (1024)")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="where the records go")
    parser.add_argument("--picture", type=Path, default=PICTURE, metavar="FILE", help="what is written (docs/images/report.png)")
    parser.add_argument("--anyway", action="store_true", help="whatever the page warns about")
    asked = parser.parse_args()
    if bool(asked.runs) == bool(asked.measure):
        parser.error("either RUNS, or --measure DIR")
    with tempfile.TemporaryDirectory(prefix="forebay-picture-", dir=asked.measure) as folder:
        page = Path(folder) / "report.html"
        try:
            runs = asked.runs or measured(asked, Path(folder))
            forebay("report", *map(str, runs), "-o", str(page))
        except subprocess.CalledProcessError as error:
            print(f"{' '.join(map(str, error.cmd))}: ended with {error.returncode}", file=sys.stderr)
            return 1
        against = objections(page.read_text())
        for why in against:
            print(why, file=sys.stderr)
        if against and not asked.anyway:
            print("no picture was taken; a quieter machine, longer runs, or --anyway", file=sys.stderr)
            return 1
        photograph(page, asked.picture)
    print(asked.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
