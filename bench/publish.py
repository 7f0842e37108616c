"""Puts the tables of saved measurements into docs/benchmarks.md: `python bench/publish.py FILE.json…`.

For figures of another machine: each command saves its table with everything it measured (--json).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from side_by_side import put


def documents(text: str) -> Iterator[dict[str, Any]]:
    """One JSON document, or several behind each other."""
    text = text.strip()
    while text:
        found, end = json.JSONDecoder().raw_decode(text)
        yield found
        text = text[end:].lstrip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="what --json wrote")
    for file in parser.parse_args().files:
        for saved in documents(file.read_text()):
            put(saved["study"], saved["section"])


if __name__ == "__main__":
    main()
