"""Licences and sources of what is built in."""

from __future__ import annotations

import json
import re

import processes
import pytest
from test_house import ROOT


def licence_ok(expression: str, allowed: set[str]) -> bool:
    """Whether an SPDX expression can be met: any side of an OR, every side of an AND."""
    text = expression.replace("/", " OR ").strip()
    depth, parts, operator = 0, [""], None
    for word in re.findall(r"\(|\)|[^\s()]+", text):
        depth += (word == "(") - (word == ")")
        if depth == 0 and word in ("AND", "OR"):
            assert operator in (None, word), f"mixed without brackets: {expression}"
            operator = word
            parts.append("")
        else:
            parts[-1] += f"{word} "
    parts = [p.strip() for p in parts]
    if operator is None:
        one = parts[0]
        return licence_ok(one[1:-1], allowed) if one.startswith("(") else one in allowed
    return (any if operator == "OR" else all)(licence_ok(p, allowed) for p in parts)


def test_licence_expressions_are_read_right() -> None:
    allowed = {"MIT", "Unicode-3.0"}
    assert licence_ok("MIT/Apache-2.0", allowed) and licence_ok(
        "(MIT OR Apache-2.0) AND Unicode-3.0", allowed
    )
    assert not licence_ok("(MIT OR Apache-2.0) AND BSL-1.0", allowed) and not licence_ok(
        "GPL-3.0-only", allowed
    )


@pytest.mark.promise("HSE-5")
def test_every_dependency_has_a_licence_that_we_allow() -> None:
    metadata = processes.run(["cargo", "metadata", "--format-version", "1", "--offline", "--locked"], cwd=ROOT)
    if metadata.returncode:
        pytest.skip(f"cargo metadata doesn't run here: {metadata.stderr.strip()[:200]}")
    allowed = set(re.findall(r'^    "([^"]+)",', (ROOT / "deny.toml").read_text(), re.MULTILINE))
    assert "Apache-2.0" in allowed
    packages = json.loads(metadata.stdout)["packages"]
    refused = [
        f"{p['name']} {p['version']}: {p['license']}"
        for p in packages
        if not licence_ok(p["license"] or "none", allowed)
    ]
    assert not refused, "\n".join(refused)
    assert not [p["name"] for p in packages if p["source"] and not p["source"].startswith("registry+")]


def test_cargo_deny_judges_advisories_too_and_make_check_asks_it() -> None:
    tables = re.findall(r"^\[(\w+)\]", (ROOT / "deny.toml").read_text(), re.MULTILINE)
    assert {"advisories", "bans", "licenses", "sources"} <= set(tables)
    makefile = (ROOT / "Makefile").read_text()
    check = makefile.partition("\ncheck: ")[2].partition("\n\n")[0]
    assert "clippy deny" in check and "'skipped: cargo deny (not installed)'" in makefile
