"""Makes docs/benchmarks.md from bench/results: `python bench/publish.py`, after `--keep FILE.json…` has added results to it.

FILE is what a command of this folder wrote with --json, or several of them behind each other. Commands with --publish do both.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kept

PAGE = Path(__file__).resolve().parent.parent / "docs/benchmarks.md"
METHOD = Path(__file__).resolve().parent / "method.txt"


@dataclass(frozen=True)
class Part:
    """What the page shows of a command's results: a row a cell with the fastest other, every row, or its tables as they are."""

    script: str
    others: str = ".*"  # the tools, by pattern, among which the fastest is the other
    only: str = ".*"  # the cells, by pattern
    ours: str | None = None  # the tool, by pattern, where a table has several of ours; None: the one without a ratio
    every: bool = False  # every tool has a row
    as_is: tuple[str, ...] | None = None  # the tables, by a column, that are shown as they are


@dataclass(frozen=True)
class Question:
    title: str
    asks: str
    parts: tuple[Part, ...]


QUESTIONS = (
    Question(
        "Direct reads",
        "How fast does a drive come in with O_DIRECT, and at what CPU time?",
        (Part("direct_read", only="(4k|64k|512k|1m|4m)"),),
    ),
    Question(
        "Cached reads",
        "And what the page cache holds?",
        (Part("cached_read", only="page cache 1m|tmpfs (64k|1m), 2", others="fio"),),
    ),
    Question(
        "Its own cost",
        "What does Forebay's own loop cost, and what do overlapped copies, stripes and merging a billion latencies?",
        (
            Part("loop"),
            Part("overlap", others="the read"),
            Part("stripe", only="1m"),
            Part("histogram_merge", as_is=()),
        ),
    ),
    Question(
        "Into the GPU",
        "How fast do cached files and the disk reach a GPU, beside KvikIO, cuFile and the link? Is `auto` the best path?",
        (
            Part("gpu_warm", others="bounce|mapped, later|KvikIO|PCIe", every=True),
            Part("gpu_random", only=".*cached", others="KvikIO"),
            Part("gpu_random", only=".*disk", others="fio"),
            Part("gpu_cold"),
            Part("gpu_two"),
            Part("gpu_cufile", only="(sync|batch|stream in)"),
            Part("gpu_verify"),
            Part("gpu_auto", only=".*(4 MiB|4 KiB at)"),
        ),
    ),
    Question(
        "Weights and small files into the GPU",
        "How long do a safetensors file and 100,000 small files take?",
        (
            Part("gpu_safetensors", others=".*safetensors"),
            Part("gpu_safetensors", others="PCIe"),
            Part("gpu_small_files", others="KvikIO"),
            Part("gpu_small_files", others="torch"),
        ),
    ),
    Question(
        "Rows into the GPU",
        "How many short rows a second, at what CPU time, beside PyTorch, KvikIO, NumPy and the link? What does `auto` do?",
        (
            Part("rows", only="(4096|912|128) bytes$", others="torch"),
            Part("rows", only="4096 bytes$", others="KvikIO"),
            Part("rows", only="4096 bytes$", others="kernel|16 threads"),
            Part("rows", only=".*(bounce|disk)$"),
            Part("rows", only="(128|912|4096|65536)$", as_is=("rows a call",)),
            Part("rows_host", only="8192 rows of 912", others=".*memmap"),
        ),
    ),
    Question(
        "Batches for training",
        "How fast does a loader hand out samples, on the host and into a GPU, beside PyTorch and others? Who waits for storage?",
        (
            Part("feed", only=".*samples, in order", others="torch"),
            Part("feed", only=".*samples, shuffled", others="(?!copies)"),
            Part("feed", only="912-byte samples, shuffled", others="copies"),
            Part("feed", only=".*into a GPU(?!.*(two cores|into the page))", others="torch"),
            Part("train", as_is=()),
            Part("train_ranks", only=".* a GPU$"),
            Part("train_models", as_is=("model",)),
            Part("gnn", as_is=("features",)),
            Part("infer", as_is=()),
            Part("drives", as_is=()),
        ),
    ),
    Question(
        "NVMe/TCP",
        "How fast is a namespace over loopback, beside TCP alone, and beside the same drive used locally?",
        (
            Part("remote_read", only="128k$|4k, depth 1$", others="tcp|iperf|SPDK", ours="forebay(?!, (spin|asleep))"),
            Part("remote_read", only="64k, queues|1024k, both", others="1 queue|no digests"),
            Part("remote_local", only="paced drive, 1024k|disk, 128k"),
            Part("remote_many", as_is=()),
            Part("open_uri"),
        ),
    ),
    Question(
        "The gateway",
        "What does an emulated drive cost, beside the target used directly, the drive used locally, and memcpy?",
        (
            Part("gateway_local", only="1m.*copy$|.*depth 1$", others="memcpy|eventfd"),
            Part("gateway_remote", only="4k, depth 1$|(direct|paced drive), 64k"),
            Part("gateway_queues", others="1 queue"),
            Part("gateway_guest", as_is=()),
            Part("forebay sweep solidigm-remote", only="local|NVMe|gateway", as_is=("128k",)),
        ),
    ),
    Question(
        "Emulated accelerators and checkpoints",
        "How many accelerators can two processors emulate, beside DLIO? How fast are checkpoints and a KV cache's entries moved?",
        (
            Part("emulate_dlio", only="resnet50|unet3d", others="plain reads \\+ checksums"),
            Part("emulate_dlio", as_is=("that is H100s",)),
            Part("emulate_many", as_is=()),
            Part("gpu_emulate", others="bounce"),
            Part("checkpoint", others="fio"),
            Part("kvcache", only="entries", others="fio"),
            Part("kvcache", only="entries", others="numpy"),
            Part("kv_blocks", as_is=()), Part("kv_simulate", as_is=()), Part("iolog", as_is=()),
        ),
    ),
    Question(
        "Plans and first figures",
        "How long does an answer take, and how long is it from a clone to a first figure?",
        (
            Part("plan", as_is=("work",)), Part("decide", as_is=()), Part("plan_simulate", as_is=()),
            Part("first_measurement", as_is=()),
        ),  # fmt: skip
    ),
)

Table = tuple[tuple[str, ...], list[str]]


def documents(text: str) -> Iterator[dict[str, Any]]:
    """One JSON document, or several behind each other."""
    text = text.strip()
    while text:
        found, end = json.JSONDecoder().raw_decode(text)
        yield found
        text = text[end:].lstrip()


def script_of(result: dict[str, Any]) -> str:
    found = re.search(r"bench/(\w+)\.py", result["command"])
    return found[1] if found else str(result["command"])


def shown(value: kept.Value) -> str:
    """With three digits of the median, and the range where rounds differ by them."""
    if not isinstance(value, list):
        return value or "–"
    median, least, greatest = (brief(number, value[0]) for number in value)
    return median if least == greatest == median else f"{median} ({least}–{greatest})"


def brief(number: float, beside: float) -> str:
    places = max(0, 2 - math.floor(math.log10(abs(beside)))) if beside else 1
    return f"{number:.{min(places, 3 if abs(beside) < 0.1 else 2)}f}"


def middle(value: kept.Value) -> str:
    return brief(value[0], value[0]) if isinstance(value, list) else shown(value)


def page(results: list[dict[str, Any]]) -> str:
    text = METHOD.read_text().rstrip() + "\n\n" + machines(results)
    for question in QUESTIONS:
        text += f"\n## {question.title}\n\n{question.asks}\n"
        used: dict[str, list[dict[str, Any]]] = {}
        tables: list[Table] = []
        for part in question.parts:
            used[part.script] = [result for result in results if script_of(result) == part.script]
            for result in used[part.script]:
                for table in as_they_are(part, result) if part.as_is is not None else compared(part, result):
                    put(tables, table)
        for head, rows in tables:
            text += f"\n| {' | '.join(head)} |\n|{'---|' * len(head)}\n" + "".join(f"{row}\n" for row in rows)
        text += "\n" + notes([result for found in used.values() for result in found])
    return text


def machines(results: list[dict[str, Any]]) -> str:
    """A line a kind of machine."""
    cards: dict[str, dict[str, Any]] = {}
    for result in results:
        cards.setdefault(kept.kind(result["machine"]), result["machine"])
    text = "| machine | what it is |\n|---|---|\n"
    for kind, card in sorted(cards.items()):
        parts = [card["cpu"], f"{card['cores']} cores", f"{card['memory_gib']} GiB", f"Linux {card['kernel'].split('-')[0]}"]
        text += f"| {kind} | {', '.join([*parts, card['gpu'] or 'no GPU'])} |\n"
    return text


def put(tables: list[Table], table: Table) -> None:
    """Adds rows to the table of the same columns, where there is one."""
    same = next((rows for head, rows in tables if head == table[0]), None)
    if same is not None:
        same.extend(table[1])
    elif table[1]:
        tables.append(table)


def as_they_are(part: Part, result: dict[str, Any]) -> Iterator[Table]:
    where = kept.kind(result["machine"])
    for table in result["tables"]:
        if set(part.as_is or ()) & set(table["columns"]):
            chosen = [row for row in table["rows"] if re.match(part.only, str(row[0]))]
            rows = [f"| {' | '.join([where, *(shown(value) for value in row)])} |" for row in chosen]
            yield ("machine", *table["columns"]), rows


def compared(part: Part, result: dict[str, Any]) -> Iterator[Table]:
    """Of tables whose rows are work, tool, rate, CPU, …, Forebay ÷ it."""
    where = kept.kind(result["machine"])
    for table in result["tables"]:
        columns = table["columns"]
        if columns[:2] != ["work", "tool"]:
            continue
        cells: dict[str, list[list[Any]]] = {}
        for row in table["rows"]:
            if re.match(part.only, row[0]):
                cells.setdefault(row[0], []).append(in_millions(row, columns[2]))
        units = ("GiB/s", "ms/GiB") if columns[2] == "GiB/s" else ("M/s", "ns each")
        if part.every:
            rows = [row for cell in cells.values() for row in cell if re.match(part.others, row[1])]
            lines = [f"| {where} | {row[0]} | {row[1]} | {' | '.join(pace(row, units))} |" for row in rows]
            yield ("machine", "work", "way", "rate", "CPU"), lines
        else:
            head = ("machine", "work", "Forebay", "its CPU", "fastest other", "its rate", "its CPU", "Forebay ÷ it")
            yield head, [f"| {where} | {work} | {' | '.join(beside(part, rows, units))} |" for work, rows in cells.items()]


def pace(row: list[Any], units: tuple[str, str]) -> list[str]:
    return [f"{middle(value)} {unit}" if value else "–" for value, unit in zip(row[2:4], units, strict=True)]


def in_millions(row: list[Any], unit: str) -> list[Any]:
    scale = 1e-3 if unit.startswith("thousand") else 1
    return [*row[:2], [number * scale for number in row[2]], *row[3:]]


def beside(part: Part, rows: list[list[Any]], units: tuple[str, str]) -> list[str]:
    named = [r for r in rows if part.ours and re.match(part.ours, r[1])]
    ours = (named or [r for r in rows if r[-1] is None] or rows)[0]
    others = [r for r in rows if r is not ours and re.match(part.others, r[1]) and not r[1].startswith("forebay")]
    if not others:
        return [*pace(ours, units), "–", "–", "–", "–"]
    best = max(others, key=lambda r: r[2][0])
    return [*pace(ours, units), best[1], *pace(best, units), shown(best[-1])]


# As a bound says it, where it isn't one of the table's columns.
INTERVAL = re.compile(r", 95 % interval ([\d.]+) to ([\d.]+)")


def notes(results: list[dict[str, Any]]) -> str:
    """Where each row comes from: those of which every bound holds, those that have none, and what doesn't hold."""
    found: dict[str, list[str]] = {"All bounds hold": [], "Without bounds": []}
    text = ""
    for result in results:
        bounds, missed = result["bounds"], missed_of(result)
        command = result["command"].removeprefix("python bench/").replace(" --dir DIR", "")
        about = f"`{command}`, {kept.kind(result['machine'])}, {result['date']}"
        if missed:
            text += f"- {about}: {len(bounds) - len(missed)} of {len(bounds)} hold, **not** {'; '.join(missed)}.\n"
        else:
            found["All bounds hold" if bounds else "Without bounds"].append(about)
    return "".join(f"- {title}: {'; '.join(those)}.\n" for title, those in found.items() if those) + text


def missed_of(result: dict[str, Any]) -> list[str]:
    """Bounds that don't hold, each with the median alone: how far it ranges is in the data, where it decides in the tables."""
    missed = [bound for bound in result["bounds"] if not bound["holds"]]
    texts = [b["bound"] + (f": {missing(b)}" if b["value"] else "") for b in missed]
    return [INTERVAL.sub(r" (\1–\2)", text) for text in texts]


def missing(bound: dict[str, Any]) -> str:
    """The median of what doesn't hold, with the range where that is bounded, and as many digits as tell it from 1."""
    value: kept.Value = bound["value"]
    if isinstance(value, list) and 0 < abs(value[0] - 1) < 0.005 and " within " not in bound["bound"]:
        return f"{value[0]:.3f}"
    return shown(value) if " within " in bound["bound"] else shown(value).partition(" (")[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", nargs="+", type=Path, default=[], metavar="FILE", help="what --json wrote")
    for file in parser.parse_args().keep:
        for found in documents(file.read_text()):
            print(kept.keep(found).name)
    remake()


def remake() -> None:
    PAGE.write_text(page(kept.load()))


if __name__ == "__main__":
    main()
