"""A cufile.json for this machine: the file in use, adjusted to the findings of a doctor's report.

What the file in force sets stays as it is (RDMA, mount tables, pools); only what decides between direct DMA
and the compatibility mode is set, each with the reason beside it.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forebay import pipes
from forebay.bench.save import place, unwritable
from forebay.errors import RequestError
from forebay.gdsio import cufile

Report = dict[str, Any]
# What P2PDMA lacks that this file itself puts right.
MENDED = {"p2pdma_json"}


@dataclass(frozen=True)
class Setting:
    """One key of the file: `properties.use_pci_p2pdma`, its value, and why."""

    key: str
    value: Any
    why: str


def settings(report: Report, allow_compat: bool | None) -> list[Setting]:
    """Returns the settings, in the file's order. `allow_compat` None keeps what is in force (cuFile's default is true)."""
    gds, config = report["verdicts"]["gds"], report["cufile"]["config"]
    in_the_way = [c for c in gds["both"] + gds["p2pdma"] if c["id"] not in MENDED | {"forced_compat"}]
    known = report["gds"]["p2pdma"]["in_kernel"] is True
    if in_the_way:
        why_p2pdma = f"not ready here: {in_the_way[0]['because']}"
    elif known:
        why_p2pdma = "the kernel, the driver and the GPU are ready for it"
    else:
        why_p2pdma = "the kernel configuration can't be read, so support is uncertain"
    allowed = bool(config["allow_compat_mode"]) if allow_compat is None else allow_compat
    if allow_compat is None:
        why_compat = "as configured before; --no-compat turns a silent fallback into an error"
    elif allowed:
        why_compat = "requested: cuFile may go through host memory where direct DMA can't run"
    else:
        why_compat = (
            "requested: where direct DMA can't run, cuFile fails instead of going through host memory"
        )
    return [
        Setting("properties.allow_compat_mode", allowed, why_compat),
        Setting("properties.force_compat_mode", False, "true would send every byte through host memory"),
        Setting("properties.use_pci_p2pdma", known and not in_the_way, why_p2pdma),
    ]


def base(report: Report) -> tuple[dict[str, Any], str]:
    """The file in force and what to say of it; empty where there is none or it can't be read."""
    config = report["cufile"]["config"]
    if config["refused"]:
        return {}, f"{config['path']} can't be read ({config['refused']}), so none of it is kept"
    if not config["exists"]:
        return {}, "no cufile.json was in use: all other settings are cuFile's defaults"
    return cufile.parse(Path(config["path"])), f"all other settings as in {config['path']}"


def render(report: Report, allow_compat: bool | None) -> str:
    """The file's text: JSON with // comments, as cuFile reads it."""
    content, origin = base(report)
    chosen = {s.key: s for s in settings(report, allow_compat)}
    for key, setting in chosen.items():
        section, name = key.split(".")
        if not isinstance(content.get(section), dict):
            content[section] = {}
        content[section][name] = setting.value
    lines = [f"// By forebay doctor; {origin}.", "// Use it: export CUFILE_ENV_PATH_JSON=THIS_FILE"]
    section = ""
    for line in json.dumps(content, indent=4, ensure_ascii=False).splitlines():
        indent = len(line) - len(line.lstrip())
        name = line.strip().split('"')[1] if line.strip().startswith('"') else ""
        section = name if indent == 4 else section
        found = chosen.get(f"{section}.{name}") if indent == 8 else None
        if found is not None:
            lines.append(f"{' ' * indent}// {found.why}")
        lines.append(line)
    return "\n".join(lines) + "\n"


def write(path: Path, text: str, overwrite: bool) -> None:
    """Makes the file whole or not at all. Raises RequestError where it is there and may not be written over."""
    pipes.refuse_dash(path, f"--write-cufile-json {path}", "a file name")
    if path.is_dir():
        raise RequestError(f"--write-cufile-json {path}", "is a directory", "a file name")
    try:
        place(path, text, (lambda _: True) if overwrite else None)
    except FileExistsError:
        raise RequestError(
            f"--write-cufile-json {path}", "already exists", "--overwrite, or another name"
        ) from None
    except OSError as error:
        raise unwritable(f"--write-cufile-json {path}", error) from error


def udev_commands(report: Report) -> list[str]:
    """Returns the commands that give libudev the answers that libcufile asks for; empty where it has them."""
    incomplete = [u for u in report["gds"]["udev"] if not (u["control"] and u["filesystem_type"])]
    if not incomplete:
        return []
    # Root needs none, and containers often lack it.
    sudo = "" if os.geteuid() == 0 else "sudo "
    commands = [f"{sudo}mkdir -p /run/udev/data", f"{sudo}touch /run/udev/control"]
    for udev in incomplete:
        entry = rf"E:ID_FS_TYPE={udev['filesystem']}\nE:ID_FS_USAGE=filesystem\nG:systemd\nV:1\n"
        commands.append(f"printf '{entry}' | {sudo}tee /run/udev/data/b{udev['device']}")
    return commands
