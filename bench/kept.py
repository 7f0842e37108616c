"""Results that are kept: one JSON file a command and kind of machine in bench/results, from which publish.py makes the page.

A figure is `[median, least, greatest]` over the rounds; what isn't one stays as the command printed it, None where it said
nothing. `commit` is that of the code that was measured.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

SCHEMA = "forebay.bench/1"
FOLDER = Path(__file__).resolve().parent / "results"

Value = list[float] | str | None

SPREAD = re.compile(r"(-?[\d.]+) \((-?[\d.]+)–(-?[\d.]+)\)")
VERDICT = re.compile(r"- (?P<bound>.*?)(?:: (?P<value>[^:]*?),?)?(?:: | )(?P<holds>holds|\*\*does not hold\*\*)\.?")
LEFT_OUT = re.compile(r"- (.*: left out: .*|.*: not measured \(.*\))")


def document(study: str, command: str, machine: dict[str, Any], text: str, seconds: float | None) -> dict[str, Any]:
    """What a command printed as Markdown, taken apart into tables, bounds, and what was left out."""
    lines = text.splitlines()
    left_out = [found[1] for line in lines if (found := LEFT_OUT.fullmatch(line))]
    verdicts = [found for line in lines if (found := VERDICT.fullmatch(line))]
    bounds = [{"bound": v["bound"], "value": value(v["value"] or ""), "holds": v["holds"] == "holds"} for v in verdicts]
    about = {"machine": {k: v for k, v in machine.items() if k != "date"}, "date": machine["date"], "commit": commit()}
    found = {"tables": tables(lines), "bounds": bounds, "left_out": left_out}
    return {"schema": SCHEMA, "study": study, "command": command, "seconds": seconds, **about, **found}


def tables(lines: list[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for before, line in zip(["", *lines], lines, strict=False):
        if not line.startswith("|"):
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not before.startswith("|"):
            found.append({"columns": cells, "rows": []})
        elif not re.fullmatch(r"[|: -]+", line):
            found[-1]["rows"].append([value(cell) for cell in cells])
    return found


def value(cell: str) -> Value:
    spread = SPREAD.fullmatch(cell)
    return [float(number) for number in spread.groups()] if spread else None if cell in ("", "–") else cell


def commit() -> str | None:
    """Commit of the installed build, which is what was measured; machines with a GPU may have neither git nor the checkout."""
    try:
        from forebay import _core
    except ImportError:
        return None
    known: str | None = json.loads(_core.features()).get("commit")
    return known[:7] if known else None


def kind(machine: dict[str, Any]) -> str:
    """What machines of a kind have in common, for people: `2 × H200`, `AMD, 2 cores`."""
    card = re.match(r"(?:(\d+) × )?NVIDIA (\w+)", machine.get("gpu") or "")
    if card:
        made = f"{card[1]} × {card[2]}" if card[1] else card[2]
    else:
        made = f"{(machine.get('cpu') or 'unknown').split('(')[0].split()[0]}, {machine['cores']} cores"
    return f"{made}, {machine['remark']}" if machine.get("remark") else made


def name(found: dict[str, Any]) -> str:
    """The file that a result is kept in: a newer one of the same command and kind of machine replaces it."""
    script, _, flags = found["command"].partition(".py")
    only = re.search(r"--only ('[^']*'|\"[^\"]*\"|\S+)", flags)
    scenarios = re.search(r"--scenarios (\S+)", flags)
    chosen = [found[1] for found in (only, scenarios) if found] + ["before"] * ("--before" in flags)
    parts_asked = re.search(r"--parts (\S+)", flags)
    chosen += [part for part in parts_asked[1].split(",") if part != "in_memory"] if parts_asked else []
    caches = re.search(r"--caches (\S+)", flags)
    chosen += caches[1].split(",") if caches else []
    parts = [script.rsplit("/", 1)[-1], kind(found["machine"]), *chosen]
    return "-".join(re.sub(r"[^a-z0-9]+", "-", part.lower()).strip("-") for part in parts if part) + ".json"


def keep(found: dict[str, Any]) -> Path:
    """Without what each single run gave, which --json has."""
    path = FOLDER / name(found)
    path.write_text(compact({k: v for k, v in found.items() if k != "cells"}))
    return path


def load() -> list[dict[str, Any]]:
    found = [(file, json.loads(file.read_text())) for file in sorted(FOLDER.glob("*.json"))]
    strange = [file.name for file, one in found if one.get("schema") != SCHEMA or file.name != name(one)]
    if strange:
        raise ValueError(f"not {SCHEMA} under its own name: {', '.join(strange)}; try: bench/publish.py --keep FILE.json")
    return [one for _, one in found]


def compact(found: dict[str, Any]) -> str:
    """JSON with a row a line."""
    head = {k: v for k, v in found.items() if k not in ("tables", "bounds")}
    lines = json.dumps(head, ensure_ascii=False, indent=1)[:-2]
    for table in found["tables"]:
        table["rows"] = [json.dumps(row, ensure_ascii=False) for row in table["rows"]]
    made = ",\n".join(
        f'  {{"columns": {json.dumps(t["columns"], ensure_ascii=False)},\n   "rows": [\n    ' + ",\n    ".join(t["rows"]) + "]}"
        for t in found["tables"]
    )
    bounds = ",\n  ".join(json.dumps(bound, ensure_ascii=False) for bound in found["bounds"])
    return f'{lines},\n "tables": [\n{made}],\n "bounds": [\n  {bounds}]\n}}\n'
