"""From clone to the first own measurement, by the commands that README gives, each timed; then `make demo` in a clone of its own.

The commands are read out of README's sections, so what is timed is what it says. They run in a scratch folder: a clone, a
build folder and a virtual environment of their own. Cargo's and pip's download caches are the user's; `--cold` starts with
empty ones. Processor time is that of all processes that a command started.

    python bench/first_measurement.py --dry-run
    python bench/first_measurement.py --scratch /mnt/data/scratch
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import kept
from side_by_side import machine_card

ROOT = Path(__file__).resolve().parent.parent
# Of these sections, each command of the first block.
SECTIONS = ("## Install", "## Your first measurement")
README_DATA = "/mnt/data"
LIMIT_S = 300.0
BUILD, BUILD_S, BUILD_CPU_S = "pip install .", 200.0, 360.0
DEMO, DEMO_S = "make demo", 270.0


@dataclass(frozen=True)
class Step:
    command: str
    seconds: float
    cpu_s: float


def commands(readme: str) -> list[str]:
    """What README says to type, without its remarks. ValueError where a section or its block is missing."""
    found = []
    for section in SECTIONS:
        _, heading, rest = readme.partition(f"\n{section}\n")
        block = re.search(r"^```\n(.*?)^```$", rest.partition("\n## ")[0], re.M | re.S)
        if not heading or block is None:
            raise ValueError(f"README has no block of commands below '{section}'")
        found += [line.partition("  #")[0].strip() for line in block[1].splitlines() if line.strip()]
    return found


def steps(url: str, scratch: Path, readme: str) -> list[str]:
    """All that is typed, in order; README's folder of data is one of ours."""
    data = scratch / "data"
    typed = [command.replace(README_DATA, shlex.quote(str(data))) for command in commands(readme)]
    return [f"git clone --quiet {shlex.quote(url)} {shlex.quote(str(scratch / 'clone'))}", *typed]


def environment(scratch: Path, cold: bool) -> dict[str, str]:
    """A virtual environment first in PATH, and no build folder but the clone's."""
    kept = {k: v for k, v in os.environ.items() if k not in ("CARGO_TARGET_DIR", "VIRTUAL_ENV", "PYTHONPATH", "MAKEFLAGS")}
    made = {**kept, "PATH": f"{scratch / 'venv/bin'}:{os.environ['PATH']}", "VIRTUAL_ENV": str(scratch / "venv")}
    if cold:
        made |= {"CARGO_HOME": str(scratch / "cargo"), "PIP_NO_CACHE_DIR": "1"}
    return made


def play(typed: list[str], scratch: Path, cold: bool) -> list[Step]:
    """Runs the commands in turn, those after the clone inside it. CalledProcessError for one that fails."""
    (scratch / "data").mkdir()
    subprocess.run([sys.executable, "-m", "venv", scratch / "venv"], check=True)
    found = [timed(command, scratch / "clone" if n else scratch, scratch, cold) for n, command in enumerate(typed)]
    shutil.rmtree(scratch / "clone" / "target", ignore_errors=True)
    return found


def timed(command: str, where: Path, scratch: Path, cold: bool) -> Step:
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, shell=True, check=True, cwd=where, env=environment(scratch, cold))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Step(command, time.monotonic() - began, cpu)


def table(found: list[Step], scratch: Path) -> str:
    lines = ["| step | s | CPU s |", "|---|---|---|"]
    rows = [(step.command.replace(str(scratch), "SCRATCH"), step.seconds, step.cpu_s) for step in found]
    lines += [f"| `{command}` | {seconds:.1f} | {cpu:.1f} |" for command, seconds, cpu in rows]
    return "\n".join(lines)


def bounds(found: list[Step], demo: Step) -> list[tuple[str, float, float]]:
    """(what, limit, figure) in seconds."""
    build = next(step for step in found if step.command == BUILD)
    return [
        ("from the clone to the first measurement", LIMIT_S, sum(step.seconds for step in found)),
        (f"`{BUILD}`", BUILD_S, build.seconds),
        (f"`{BUILD}`, processor time", BUILD_CPU_S, build.cpu_s),
        (f"`{DEMO}` to its report", DEMO_S, demo.seconds),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default=str(ROOT), help="what is cloned; this checkout by default")
    parser.add_argument("--scratch", type=Path, default=None, metavar="DIR", help="where the scratch folder is made and removed")
    parser.add_argument("--cold", action="store_true", help="empty caches of cargo and pip")
    parser.add_argument("--json", type=Path, help="write what was measured here, for bench/publish.py --keep")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be typed")
    asked = parser.parse_args()
    readme = (ROOT / "README.md").read_text()
    if asked.dry_run:
        print("\n".join([*steps(asked.url, Path("SCRATCH"), readme), f"{DEMO}  # in another clone"]))
        return 0
    if asked.scratch is not None and not asked.scratch.is_dir():
        parser.error(f"--scratch {asked.scratch}: there is no such folder; try: mkdir -p {asked.scratch}")
    scratch = Path(tempfile.mkdtemp(prefix="forebay-first-", dir=asked.scratch))
    try:
        found = play(steps(asked.url, scratch, readme), scratch, asked.cold)
        subprocess.run(["git", "clone", "--quiet", asked.url, scratch / "demo"], check=True)
        asked_head = ["git", "-C", scratch / "demo", "rev-parse", "--short=7", "HEAD"]
        commit = subprocess.run(asked_head, check=True, capture_output=True, text=True).stdout.strip()
        demo = timed(DEMO, scratch / "demo", scratch, asked.cold)
    except subprocess.CalledProcessError as error:
        print(f"{error.cmd}: ended with {error.returncode}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    judged = bounds(found, demo)
    holds = {True: "holds", False: "**does not hold**"}
    reported = [f"- {what} < {limit:g} s: {s:.1f} s, {holds[s < limit]}" for what, limit, s in judged]
    text = table([*found, demo], scratch) + "\n\n" + "\n".join(reported) + "\n"
    print(text)
    if asked.json:
        command = "python bench/first_measurement.py --scratch DIR" + " --cold" * asked.cold
        card, shown = machine_card(asked.scratch or ROOT), text.replace(shlex.quote(asked.url), "URL")
        measured = kept.document("From a clone to a first measurement", command, card, shown, None)
        # What was built is the clone's, whatever is installed here.
        measured["commit"] = commit
        asked.json.write_text(json.dumps(measured, indent=1) + "\n")
    return 0 if all(s < limit for _, limit, s in judged) else 1


if __name__ == "__main__":
    sys.exit(main())
