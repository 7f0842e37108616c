"""`forebay doctor`: what this machine can do, what is in the way, and what to type."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import click

from forebay.errors import RequestError

Report = dict[str, Any]
Check = dict[str, Any]

# The report's areas, in its order, as headings.
AREAS = {
    "source": "SOURCE",
    "machine": "MACHINE",
    "memory": "MEMORY",
    "io_uring": "IO_URING",
    "filesystem": "FILE SYSTEM",
    "drives": "DRIVES",
    "raid": "RAID",
    "page_cache": "PAGE CACHE",
    "gpu": "GPU",
    "gds": "DIRECT STORAGE TO GPU",
    "fabric": "NETWORK",
    "power": "POWER METERS",
    "topology": "PCIE DISTANCE",
    "paths": "PATHS",
}
# state → (mark, style on a terminal)
MARKS = {
    "works": ("ok", "green"),
    "limited": ("limited", "yellow"),
    "missing": ("missing", "red"),
    "unknown": ("unknown", "magenta"),
    "not_applicable": ("-", "dim"),
}
_MARK_WIDTH = 9
_TITLE_WIDTH_MAX = 30
_NARROWEST = 24


@click.command(name="doctor", short_help="What can this machine do, and what is wrong?")
@click.argument("source", required=False)
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON document (schema forebay.doctor/1) on stdout."
)
@click.option("--gdscheck", is_flag=True, help="Print in the format of `gdscheck -p`.")
@click.option(
    "--cufile-json", metavar="PATH", help="The cufile.json to examine. Default: CUFILE_ENV_PATH_JSON, else /etc/cufile.json."
)
@click.option(
    "--write-cufile-json", "write_to", metavar="FILE", help="Write a cufile.json for this machine."
)
@click.option(
    "--allow-compat/--no-compat",
    "allow_compat",
    default=None,
    help="In that file: allow cuFile's compatibility mode or not. Default: as currently configured.",
)
@click.option("--overwrite", is_flag=True, help="Overwrite that file if it exists.")
@click.option("--fix-udev", is_flag=True, help="Print the commands that fix error 5027; change nothing.")
def command(
    source: str | None, as_json: bool, gdscheck: bool, cufile_json: str | None, **writing: Any
) -> int:
    """Examine this machine, and the storage that SOURCE names.

    SOURCE is a path, or a URI (file:, stripe:, nil:, model:, nvme+tcp:, nvme+rdma:, vfio-user:). In a directory that you
    may write to, an unnamed temporary file shows what direct I/O can do; nothing is left behind. Each line says
    what works, or why it doesn't and what to type.
    """
    if as_json and gdscheck:
        raise RequestError("--json with --gdscheck", "are two formats of one report", "one of them")
    asked = {True: "--allow-compat", False: "--no-compat"}.get(writing["allow_compat"])
    asked = asked or ("--overwrite" if writing["overwrite"] else None)
    if asked and writing["write_to"] is None:
        raise RequestError(asked, "says how to write a cufile.json", f"--write-cufile-json FILE {asked}")
    report = examine(source, cufile_json)
    if writing["write_to"] is not None:
        return _write_cufile_json(report, as_json, **writing)
    if writing["fix_udev"]:
        return _show_udev(report, as_json)
    if as_json:
        click.echo(json.dumps(report, indent=2))
    elif gdscheck:
        from forebay.doctor.gdscheck import render

        click.echo(render(report), nl=False)
    elif sys.stdout.isatty():
        show_on_terminal(report)
    else:
        click.echo("\n".join(plain_lines(report)))
    return 0


def _write_cufile_json(
    report: Report, as_json: bool, write_to: str, allow_compat: bool | None, overwrite: bool, fix_udev: bool
) -> int:
    from pathlib import Path

    from forebay.doctor import cufile_json

    path = Path(write_to)
    cufile_json.write(path, cufile_json.render(report, allow_compat), overwrite)
    use = f"export CUFILE_ENV_PATH_JSON={path.absolute()}"
    chosen = cufile_json.settings(report, allow_compat)
    if as_json:
        rows = [{"key": s.key, "value": s.value, "why": s.why} for s in chosen]
        click.echo(
            json.dumps({"schema": "forebay.cufile-json/1", "path": str(path), "settings": rows, "use": use})
        )
        return 0
    for setting in chosen:
        click.echo(f"{setting.key:<32}{json.dumps(setting.value):<7}{setting.why}")
    click.echo(f"\nWritten. For this shell and what it starts:\n  {use}")
    return 0


def _show_udev(report: Report, as_json: bool) -> int:
    from forebay.doctor import cufile_json

    commands = cufile_json.udev_commands(report)
    if as_json:
        click.echo(json.dumps({"schema": "forebay.udev/1", "commands": commands}))
        return 0
    for line in commands or ["# libudev already has what libcufile needs: nothing to do"]:
        click.echo(line)
    if commands:
        click.echo("# or start the container with: -v /run/udev:/run/udev:ro", err=True)
    return 0


def examine(source: str | None = None, cufile_json: str | None = None) -> Report:
    """The report as a dict of schema forebay.doctor/1. Raises RequestError where SOURCE isn't there."""
    from forebay import _core
    from forebay.doctor import cufile_answers
    from forebay.files import left as files_left

    report = json.loads(_core.doctor(source, cufile_json))
    cufile_answers.add(report, cufile_json)
    if source is not None and (left := files_left.check(source)) is not None:
        report["checks"].append(left)
    return report


def by_area(report: Report) -> Iterator[tuple[str, list[Check]]]:
    """(heading, checks) of each area that has any, in the order of AREAS."""
    for area, heading in AREAS.items():
        checks = [check for check in report["checks"] if check["area"] == area]
        if checks:
            yield heading, checks


def details(check: Check) -> list[tuple[str, str]]:
    """(label, text) of the lines below a check; none where nothing applies."""
    if check["state"] == "not_applicable":
        return []
    return [(label, check[key]) for label, key in (("why", "why"), ("type", "next")) if check[key]]


def _title_width(report: Report) -> int:
    longest = max((len(check["title"]) for check in report["checks"]), default=0)
    return min(longest, _TITLE_WIDTH_MAX) + 2


def plain_lines(report: Report) -> Iterator[str]:
    """The report without colours or wrapping, for files and pipes."""
    title_width = _title_width(report)
    indent = " " * (2 + _MARK_WIDTH + title_width)
    for heading, checks in by_area(report):
        yield heading
        for check in checks:
            mark = MARKS[check["state"]][0]
            yield f"  {mark:<{_MARK_WIDTH}}{check['title']:<{title_width}}{check['found']}"
            for label, text in details(check):
                yield f"{indent}{label}: {text}"
        yield ""
    yield report["verdict"]


def show_on_terminal(report: Report) -> None:
    """The same in colour, wrapped to the terminal; commands keep to one line, so that they can be copied."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    title_width = _title_width(report)
    indent = 2 + _MARK_WIDTH + title_width
    room = max(console.width - indent - 1, _NARROWEST)
    for heading, checks in by_area(report):
        console.print(Text(heading, style="bold"))
        for check in checks:
            mark, style = MARKS[check["state"]]
            first, *rest = textwrap.wrap(check["found"], room, break_on_hyphens=False) or [""]
            line = Text("  ").append(f"{mark:<{_MARK_WIDTH}}", style=style)
            line.append(f"{check['title']:<{title_width}}").append(first)
            lines = [line, *(Text(" " * indent + text) for text in rest)]
            for label, text in details(check):
                lines.extend(_detail(label, text, indent, room))
            for line in lines:
                console.print(line, soft_wrap=True)
        console.print()
    console.print(Text(report["verdict"], style="bold"))


def _detail(label: str, text: str, indent: int, room: int) -> Iterator[Any]:
    from rich.text import Text

    if label == "type":
        yield Text(" " * indent + "type: ", style="dim").append(text, style="not dim cyan")
        return
    for line in textwrap.wrap(text, room, break_on_hyphens=False):
        yield Text(" " * indent + line, style="dim")
