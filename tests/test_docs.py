"""The documents name what the code's tables hold: each source, path, flag, field, drive and verb."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path

import click
import pytest
import record_tables
from forebay import _core
from forebay.cli import VERBS
from forebay.flags import fields
from forebay.validate.steps import STEPS

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "crates/model/src"
SERVES = ROOT / "crates/serve/src"
RECORDS = (ROOT / "docs/records.md").read_text() + (ROOT / "docs/records-training.md").read_text()
SOURCES = (ROOT / "docs/sources.md").read_text()


def structs(file: Path) -> dict[str, list[str]]:
    found = re.findall(r"^pub struct (\w+) \{\n(.*?)\n\}", file.read_text(), re.S | re.M)
    field = re.compile(r'^\s+(?:#\[serde\(rename = "(\w+)"\)\]\s+)?pub (\w+):', re.M)
    return {name: [renamed or own for renamed, own in field.findall(body)] for name, body in found}


SERVE = (ROOT / "docs/serve.md").read_text()
SNAP = (ROOT / "docs/snap.md").read_text()
PARTS = {part["name"]: part["fields"] for part in json.loads(_core.record_parts())}


def rows(heading: str) -> list[list[str]]:
    """Cells of the table rows under `## heading`, without the table's head."""
    section = re.search(rf"^## {heading}\b.*?\n(.*?)(?=^## |\Z)", RECORDS, re.S | re.M)
    assert section, f"docs/records.md has no section {heading}"
    return [
        [c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in section[1].splitlines()
        if line.startswith("| `")
    ]


@pytest.mark.parametrize("page", record_tables.PAGES)
def test_tables_of_fields_are_those_that_are_generated(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    assert record_tables.PAGES[page](text) == text, "python tests/record_tables.py writes them anew"


@pytest.mark.promise("BEN-1", "REC-5")
@pytest.mark.parametrize("part", PARTS)
def test_records_has_each_part_with_units_and_meanings(part: str) -> None:
    # Fields without a unit lie flat beside the others.
    named = [field["name"] for field in PARTS[part] if field["unit"]]
    table = rows(part)
    assert [row[0].strip("`") for row in table] == named
    assert all(cell for row in table for cell in row), "a field without unit or meaning"


@pytest.mark.promise("BEN-1", "REC-5")
def test_records_has_each_setting_of_a_job() -> None:
    assert [row[0].strip("`") for row in rows("JobSpec")] == list(json.loads(_core.check('{"sources": ["nil:"]}')))


def fields_of(page: str, struct: str) -> list[str]:
    """Those that the tables below `### struct` name."""
    section = re.search(rf"^### {struct}\n(.*?)(?=^##|\Z)", page, re.S | re.M)
    assert section, f"no section {struct}"
    lines = [line for line in section[1].splitlines() if line.startswith("| `")]
    return [f for line in lines for f in re.findall(r"`(\w+)`", line.split("|")[1])]


@pytest.mark.parametrize(("struct", "fields"), structs(SERVES / "target/config.rs").items())
def test_serve_has_each_field_of_its_configuration(struct: str, fields: list[str]) -> None:
    assert fields_of(SERVE, struct) == fields


@pytest.mark.parametrize(("struct", "fields"), structs(SERVES / "gateway/config.rs").items())
def test_snap_has_each_field_of_its_configuration(struct: str, fields: list[str]) -> None:
    assert fields_of(SNAP, struct) == fields


def test_snap_has_each_verb_and_says_which_are_snaps_own() -> None:
    text = (SERVES / "gateway/rpc/verbs.rs").read_text()
    table = re.findall(r'Verb \{\s+name: "(\w+)",\s+snap: (true|false)', text)
    assert len(table) > 15
    for verb, ours in table:
        line = next((x for x in SNAP.splitlines() if x.startswith("|") and f"`{verb}`" in x.split("|")[1]), "")
        assert line, f"docs/snap.md has no row {verb}"
        assert (line.split("|")[2].strip() == "no") == (ours == "false"), line


@pytest.mark.parametrize(
    ("page", "files", "least"),
    [(SERVE, ["target/metrics.rs", "target/metrics/fabric.rs"], 20), (SNAP + SERVE, ["gateway/metrics.rs"], 12)],
    ids=["serve", "snap"],
)
def test_each_metric_is_described(page: str, files: list[str], least: int) -> None:
    text = "".join((SERVES / file).read_text().split("#[cfg(test)]")[0] for file in files)
    parts = [*re.findall(r'"forebay_(\w+)"', text), *re.findall(r'\("(\w+)", (?:"\w+", )?\|c\| c\.', text)]
    assert len(parts) >= least
    missing = [p for p in parts if p not in page and p.partition("_")[2] not in page]
    assert not missing


def test_records_has_each_flag_beside_its_field() -> None:
    flags = {row[0].strip("`"): row[1].strip("`") for row in rows("JobSpec")}
    assert {f.key: f"--{f.flag}" for f in fields()}.items() <= flags.items()


def test_records_names_the_schema_that_is_written() -> None:
    text = (MODEL / "record.rs").read_text()
    written = re.search(r'pub const SCHEMA: &str = "(.*?)"', text)
    assert written and f"schema `{written[1]}`" in RECORDS
    older = re.findall(r'"(forebay\.run/\d+)" =>', (MODEL / "reading.rs").read_text())
    assert older and all(f"`{schema}`" in RECORDS for schema in older)


def test_sources_has_each_scheme_and_says_which_wait() -> None:
    text = (ROOT / "crates/storage/src/source/mod.rs").read_text()
    table = re.findall(r'scheme: "(.*?)".*?available: (Ok|Err)', text, re.S)
    assert len(table) >= 4
    for scheme, available in table:
        line = next((x for x in SOURCES.splitlines() if x.startswith(f"| `{scheme}:` |")), "")
        assert line, f"docs/sources.md has no row {scheme}:"
        assert ("not in this version" in line) == (available == "Err"), line


def test_sources_has_each_path_and_what_it_serves() -> None:
    table = json.loads(_core.tables())["paths"]
    assert len(table) >= 4
    for path in table:
        line = next((x for x in SOURCES.splitlines() if x.startswith(f"| `{path['name']}` |")), "")
        assert f"| {', '.join(path['schemes'])} |" in line, f"docs/sources.md: {path}"


@pytest.mark.promise("ENG-9")
def test_sources_has_each_drive_with_its_figures() -> None:
    text = (MODEL / "device/presets.rs").read_text()
    sheets = re.findall(
        r'name: "(.*?)",.*?read_mb_s: (\S+),.*?write_mb_s: (\S+),.*?read_iops: (\S+),.*?write_iops: (\S+),',
        text,
        re.S,
    )
    ideals = re.findall(r'ideal\("(.*?)", (\S+)\)', text)
    assert len(sheets) >= 5 and len(ideals) >= 3
    expected = {
        name: [float(m[1]) if (m := re.match(r"(?:Some\()?([\d.e]+)\)?$", v)) else None for v in values]
        for name, *values in sheets
    }
    for name, giga in ideals:
        # Four lanes; 128b/130b; 512-byte payloads in packets of 536.
        rate = float(giga) * 1e3 / 8 * 4 * 128 / 130 * 512 / 536
        expected[name] = [rate, rate, rate * 1e6 / 512, rate * 1e6 / 512]
    for name, values in expected.items():
        line = next((x for x in SOURCES.splitlines() if x.startswith(f"| `{name}` |")), "")
        shown = [c.strip() for c in line.split("|")[2:6]]
        assert shown == ["not known" if v is None else f"{v:.0f}" for v in values], name


def test_sources_has_each_key_of_a_model() -> None:
    keys = re.search(r"pub const KEYS.*?= \[(.*?)\];", (MODEL / "device.rs").read_text(), re.S)
    assert keys
    for key in [*re.findall(r'"(\w+)"', keys[1]), "time", "over"]:
        assert re.search(rf"^\| .*`{key}`", SOURCES, re.M), f"docs/sources.md doesn't say what {key} is"


def test_the_first_page_leads_to_every_document() -> None:
    readme = (ROOT / "README.md").read_text()
    missing = [p.name for p in (ROOT / "docs").glob("*.md") if f"](docs/{p.name})" not in readme]
    assert not missing


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_is_in_a_document(verb: str) -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    assert any(f"forebay {verb}" in p.read_text() for p in pages), f"no document says what {verb} does"


def commands() -> list[tuple[str, str]]:
    """(page, command) of each `forebay …` line in a code block."""
    found = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for block in re.findall(r"^```\w*\n(.*?)^```", page.read_text(), re.S | re.M):
            lines = block.replace("\\\n", " ").splitlines()
            for line in (x.split("  #")[0].strip() for x in lines if x.startswith("forebay ")):
                # What stands behind `--` of a comparison is a command of its own.
                whole, dashes, behind = line.partition(" -- ") if line.startswith("forebay compare ") else (line, "", "")
                found += [(page.name, whole)] + [(page.name, f"forebay {behind}")] * bool(dashes)
    return found


@pytest.mark.parametrize(("page", "command"), commands())
def test_each_command_in_a_document_has_flags_that_exist(page: str, command: str) -> None:
    verb = command.split()[1]
    assert verb in VERBS or verb.startswith("-"), f"{page}: no verb {verb}"
    if verb == "fio":
        from forebay import fio
        from forebay.fio import command_line

        line = command_line.parse(command.split()[2:])
        fio.of_sections(line.sections, page) if line.has_jobs else None
        return
    if verb not in VERBS or verb == "gdsio":  # gdsio has its own reader, and its own test of its page
        return
    if command.startswith("forebay snap rpc "):
        from forebay import _core

        rpc, *words = command.removeprefix("forebay snap rpc ").split()
        flags = dict(_core.snap_rpcs())[rpc]
        assert {w.partition("=")[0] for w in words if w.startswith("-")} <= set(flags), f"{page}: {command}"
        return
    module, attribute = VERBS[verb][0].split(":")
    asked = getattr(importlib.import_module(module), attribute)
    for name in command.split()[2:]:  # the verbs of a group have the flags
        if not isinstance(asked, click.Group):
            break
        found = asked.get_command(click.Context(asked), name)
        if found is None:
            assert asked.invoke_without_command and name.startswith("-"), f"{page}: forebay {verb} has no {name}"
            break
        asked = found
    parameters = asked.params
    options = {o for p in parameters for o in (*p.opts, *p.secondary_opts)}
    options |= {"--help"}
    used = re.findall(r"(?<=\s)(--?[a-z][\w-]*)", command)
    assert set(used) <= options, f"{page}: {command}: {set(used) - options}"


def test_the_walk_of_a_sample_names_functions_that_are_there() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    walk = re.search(r"^## One sample of latency.*?\n(.*?)(?=^## )", text, re.S | re.M)
    assert walk
    hops = re.findall(r"^(\d+)\. `(\S+?)::(\w+)`", walk[1], re.M)
    assert [int(number) for number, _, _ in hops] == list(range(1, 11))
    gone = [
        f"{file}::{function}"
        for _, file, function in hops
        if not re.search(rf"\b(fn|def) {function}\b", (ROOT / file).read_text())
    ]
    assert not gone


def test_promises_that_no_step_proves_but_that_can_be_tried_by_hand_have_their_commands() -> None:
    page = (ROOT / "docs/validate.md").read_text()
    section = re.search(r"^## Steps by hand\n(.*?)(?=^## )", page, re.S | re.M)
    assert section
    by_hand = dict(re.findall(r"^\| ([A-Z]+-\d+) \|(.*)$", section[1], re.MULTILINE))
    specification = (ROOT / "SPECIFICATION.md").read_text()
    promises = dict(re.findall(r"^\| ([A-Z]+-\d+) \|(.*)$", specification, re.MULTILINE))
    assert set(by_hand) == {p for p, row in promises.items() if "docs/validate.md#steps-by-hand" in row}
    for promise, row in by_hand.items():
        _, commands, holds = row.strip(" |").split(" | ")
        assert "pending:" in promises[promise] and "`forebay " in commands and holds, promise
        assert not any(promise in step.proofs for step in STEPS), promise


def test_building_counts_the_targets_that_there_are() -> None:
    targets = list((ROOT / "fuzz/fuzz_targets").glob("nvme_*.rs"))
    said = re.findall(r"NVMe crate's (\d+) targets", (ROOT / "docs/building.md").read_text())
    assert said == [str(len(targets))]


def blocks_of_python(info: str) -> list[str]:
    """Blocks of docs/python.md behind exactly that word."""
    text = (ROOT / "docs/python.md").read_text()
    return re.findall(rf"^```{info}\n(.*?)^```", text, re.S | re.M)


@pytest.mark.promise("PYT-27")
def test_the_page_of_python_runs_as_printed_without_a_gpu_and_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its order, in one folder; each block as a program of its own."""
    text = (ROOT / "docs/python.md").read_text()
    every = re.findall(r"^```.*$", text, re.M)[::2]
    assert set(every) == {"```python", "```python torch", "```python torch_geometric"}, "a block of another kind"
    section = text.index("## With PyTorch, on a GPU")
    assert "```python torch" not in text[:section] and "```python\n" not in text[section:]
    for module in ("torch", "cupy", "torch_geometric"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.chdir(tmp_path)
    blocks = blocks_of_python("python")
    assert len(blocks) >= 8
    for block in blocks:
        exec(compile(block, "docs/python.md", "exec"), {"__name__": "__main__"})


@pytest.mark.promise("PYT-27")
@pytest.mark.parametrize("needs", ["torch", "torch_geometric"])
def test_the_page_of_pytorch_runs_where_it_is_installed(needs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = blocks_of_python(f"python {needs}")
    assert blocks and all(compile(block, "docs/python.md", "exec") for block in blocks)
    pytest.importorskip(needs)
    if not pytest.importorskip("torch").cuda.is_available():
        pytest.skip("no GPU that PyTorch can use")
    monkeypatch.chdir(tmp_path)
    for block in [blocks_of_python("python")[0], *blocks]:
        exec(compile(block, "docs/python.md", "exec"), {"__name__": "__main__"})
