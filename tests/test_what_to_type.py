"""Each command that an error may tell to type is one: its verbs and flags exist, wherever the text stands."""

from __future__ import annotations

import re
from pathlib import Path

import click
from forebay.cli import forebay
from forebay.errors import RequestError
from forebay.fio import command_line

ROOT = Path(__file__).resolve().parent.parent
# A command in a text: words of lower case, then flags with whatever stands between them.
COMMAND = re.compile(r"\bforebay((?: [a-z][a-z-]+)+)((?: [^\"`;,()]*)?)")
FLAG = re.compile(r"(?<![\w-])(--[a-z][a-z0-9-]*)")


def sources() -> list[Path]:
    found = [*(ROOT / "python" / "forebay").rglob("*.py"), *(ROOT / "crates").glob("*/src/**/*.rs")]
    return [path for path in found if "tests" not in path.parts and path.name != "tests.rs"]


def texts(path: Path) -> list[str]:
    """The literal texts of a source that hold a command, each on a line, as they are printed."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith(("//", "#", '"""'))]
    return re.findall(r'"((?:[^"\\\n]|\\.)*\bforebay [a-z](?:[^"\\\n]|\\.)*)"', "\n".join(lines))


def wrong(verbs: list[str], rest: str) -> str:
    """What of a command doesn't exist; empty where all does."""
    command: click.Command = forebay
    for verb in verbs:
        if not isinstance(command, click.Group):
            break
        found = command.get_command(click.Context(command), verb)
        if found is None:
            return f"no verb {verb}"
        command = found
    if command.name == "fio":  # its settings are fio's
        try:
            command_line.parse(rest.split())
        except RequestError as error:
            return str(error)
        return ""
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)} | {"--help", "--version"}
    # Behind "or" and the like another command may begin.
    flags = FLAG.findall(re.split(r" or | and |: |, | in which |forebay ", rest)[0])
    return next((f"no flag {flag}" for flag in flags if flag not in known and not isinstance(command, click.Group)), "")


def test_each_command_that_is_told_to_type_parses() -> None:
    odd, seen = [], 0
    for path in sources():
        for text in texts(path):
            for words, rest in COMMAND.findall(text):
                first, *more = words.split()
                if forebay.get_command(click.Context(forebay), first) is None:
                    continue  # "forebay process", "forebay wrote": a sentence
                seen += 1
                if why := wrong([first, *more], rest):
                    odd.append(f"{path.relative_to(ROOT)}: forebay{words}{rest}: {why}")
    assert seen > 100, seen
    assert not odd, "\n".join(odd)
