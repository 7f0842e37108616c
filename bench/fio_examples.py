"""fio's own example job files, one by one: which run with the same meaning as in fio, and what prevents the others.

They come from a checkout of fio (its folder `examples`) and are only read. The installed fio says which of them it knows.
With `--beside` those that both know are made small and run by both: as many bytes, as many I/Os (bench/fio_beside.py), at the
same places (bench/fio_traces.py)? It is the Forebay that is installed; nothing is run otherwise. `--write` puts the table into
docs/fio.md.

    python bench/fio_examples.py --examples ../fio/examples --beside
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Where Forebay isn't installed its source will do, but to run anything.
sys.path.append(str(ROOT / "python"))

from fio_beside import beside  # noqa: E402
from forebay import fio  # noqa: E402
from forebay.errors import RequestError  # noqa: E402

PAGE = ROOT / "docs/fio.md"
HEADING = "## fio's own examples"
# What the examples want from the environment.
ENVIRONMENT = {
    "FIO_DIR": "/data", "GPU_DEV_IDS": "0", "FIO_BS": "4k", "FIO_RW": "randread", "FIO_IODEPTH": "32", "POOL": "p", "CONT": "c",
    "S3_KEY": "k", "S3_ID": "i", "SSE_KEY": "s", "STORAGE_CLASS": "STANDARD", "SWIFT_id": "w", "uri": "nbd://localhost",
}  # fmt: skip
FIO_S = 30


@dataclass(frozen=True)
class Example:
    """`refused`: the setting that stands in the way and why; None where the jobs mean what fio means. `parsed`: by the
    installed fio; None where there is none. `beside`: what came of running it beside fio, `offsets`: of tracing both; empty where
    nothing was run."""

    name: str
    jobs: int
    refused: tuple[str, str] | None
    parsed: bool | None
    beside: str = ""
    offsets: str = ""


def examples(folder: Path, program: str | None, run: bool) -> Iterator[Example]:
    for path in sorted(folder.glob("*.fio")):
        parsed = None if program is None else knows(program, path)
        try:
            jobs = len(fio.jobs(str(path)))
            yield Example(path.name, jobs, None, parsed, *(both(path, program) if run and parsed and program else ()))
        except RequestError as error:
            setting = error.asked.replace(str(path), "").strip(" :")
            yield Example(path.name, 0, (setting, error.found.removeprefix("isn't supported: ").split("; nor ")[0]), parsed)


def both(path: Path, program: str) -> tuple[str, str]:
    """What is said of bytes and I/Os, and of offsets."""
    # It needs a device of our own, and pytest.
    from fio_traces import traced

    return beside(path, program), traced(path, program)


def knows(program: str, path: Path) -> bool:
    """Whether this fio takes the file, without running it. It drops a job that it can't read, and may end with 0 all the same."""
    done = subprocess.run([program, "--parse-only", path.name], cwd=path.parent, capture_output=True, text=True, timeout=FIO_S)
    said = done.stdout + done.stderr
    return done.returncode == 0 and not re.search(r"dropped|Bad option|failed|not (found|loadable)|error", said)


def version_of(program: str) -> str | None:
    try:
        return subprocess.run([program, "--version"], capture_output=True, text=True, timeout=FIO_S).stdout.strip() or None
    except OSError:
        return None


def commit_of(folder: Path) -> str:
    """Which fio the examples are of, as git says; empty outside of a checkout."""
    command = ["git", "-C", str(folder), "log", "-1", "--format=%h, %cs", "--", "."]
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""


def page(found: list[Example], version: str | None, commit: str) -> str:
    runs = [e for e in found if e.refused is None]
    ran = any(e.beside for e in found)
    accepted = f"{sum(bool(e.parsed) for e in found)} of the {len(found)}"
    known = f" The installed {version} accepts {accepted}." if version else ""
    of = f" (commit {commit})" if commit else ""
    lines = [
        HEADING, "",
        f"`{again(found)}`, {datetime.date.today()}: of the {len(found)} job files in fio's folder `examples`{of},",
        f"{len(runs)} run with the same meaning as in fio; the other {len(found) - len(runs)} are refused, naming the first "
        f"unsupported setting.{known}",
        f"{compared(found)}", "", *(explained(found, version or "fio")),
        f"| example | known to {version or 'fio'} | here |" + f" offsets beside {version} |" * ran,
        "|---|---|---|" + "---|" * ran,
    ]  # fmt: skip
    for e in found:
        parsed = {None: "–", True: "yes", False: "no"}[e.parsed]
        said = "; ".join([f"{e.jobs} job{'s' * (e.jobs != 1)}", *([e.beside] if e.beside else [])])
        if e.refused is not None:
            said = f"refused: `{e.refused[0]}` {e.refused[1]}"
        lines.append(f"| {e.name} | {parsed} | {said.replace('|', chr(92) + '|')} |" + f" {e.offsets or '–'} |" * ran)
    return "\n".join(lines) + "\n"


def again(found: list[Example]) -> str:
    """The command that makes the same table."""
    return "python bench/fio_examples.py --examples DIR" + " --beside" * any(e.beside for e in found)


def explained(found: list[Example], version: str) -> list[str]:
    """What the column of offsets says; empty where nothing was traced."""
    traced = [e.offsets for e in found if e.offsets and not e.offsets.startswith("not traced")]
    if not traced:
        return []
    same = sum(not said.startswith("[") for said in traced)
    return [
        f"{len(traced)} were traced over files of a device that notes each I/O's file, direction, offset, length and thread:",
        "each section alone, without times and rates, in fio with its engine and depth, here one I/O at a time.",
        f"In {same} of them the I/Os go where {version}'s go, job by job:",
        "",
        "- `same sequence`: the same ones in the same order; of a mix, reads and writes each;",
        "- `each block once`, `each byte once`: the same ones, each once, in an order that is drawn; of lengths that are drawn,",
        "  each as often, but for chance;",
        "- `drawn alike`: as many, in the same range, with the same alignment; offsets and lengths as often, but for chance.",
        "",
    ]


def compared(found: list[Example]) -> str:
    ran = [e.beside for e in found if e.beside and not e.beside.startswith("not run")]
    if not ran:
        return "Nothing was run."
    same = sum(said.startswith("same") for said in ran)
    drawn = "in the same number of I/Os unless sizes are random"
    return f"{len(ran)} were scaled down and run by both: {same} of them moved the same bytes, {drawn}."


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=Path, required=True, metavar="DIR", help="fio's folder of examples")
    parser.add_argument("--commit", default=None, help="which fio they are of, where git can't say")
    parser.add_argument("--beside", action="store_true", help="run those that both know, made small")
    parser.add_argument("--write", action="store_true", help="put the table into docs/fio.md")
    asked = parser.parse_args()
    if not any(asked.examples.glob("*.fio")):
        print(f"{asked.examples}: has no .fio file; try: git clone the fio project, and its folder examples", file=sys.stderr)
        return 2
    os.environ.update(ENVIRONMENT)
    program = os.environ.get("FIO", "fio")
    version = version_of(program)
    commit = asked.commit if asked.commit is not None else commit_of(asked.examples)
    made = page(list(examples(asked.examples, program if version else None, asked.beside)), version, commit)
    print(made, end="")
    if asked.write:
        text = PAGE.read_text()
        PAGE.write_text(text[: text.index(HEADING)] + made if HEADING in text else text.rstrip("\n") + "\n\n" + made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
