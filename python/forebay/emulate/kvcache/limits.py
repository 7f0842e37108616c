"""Speeds that no result can exceed: the link of a drive, and its data sheet's rating."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forebay import flags
from forebay.emulate.kvcache import rank_files
from forebay.errors import RequestError
from forebay.plan import catalogue
from forebay.units import GIB

LANES = (1, 2, 4, 8, 16)
DRIVES_MAX = 100_000
# Any link: no drive, nor card, has a faster one.
ANY_LINK_GIB_S = catalogue.LANE_GBPS[max(catalogue.LANE_GBPS)] * max(LANES) * 1e9 / GIB
DESCRIPTION = re.compile(r".*(?:system|sut|readme).*", re.IGNORECASE | re.DOTALL)
DESCRIPTIONS_MAX = 50
DESCRIPTION_BYTES_MAX = 1 << 20
# What may stand between the letters of a drive's name: as people write it.
APART = "[^a-z0-9]*"


@dataclass(frozen=True)
class Limits:
    """Of all drives together, in GiB/s; None where nothing is known. `link`, `drive`: in words, as findings name them."""

    link_gib_s: float | None = None
    link: str = ""
    read_gib_s: float | None = None
    write_gib_s: float | None = None
    drive: str = ""
    # How the drive is known, where nobody typed it.
    taken: str = ""

    def document(self) -> dict[str, Any]:
        rates = {key: getattr(self, key) for key in ("link_gib_s", "read_gib_s", "write_gib_s")}
        return {"drive": self.drive or None, "link": self.link or None, **rates}


@dataclass(frozen=True)
class Asked:
    """Storage that was typed; None for what wasn't."""

    sheet: catalogue.Drive | None = None
    link: tuple[int, int] | None = None
    number: int | None = None


def asked(drive: str | None, link: str | None, drives: str | None) -> Asked:
    """RequestError for a drive that the catalogue lacks, and for what is no link and no number."""
    number = flags._integer(drives, "--drives") if drives is not None else None
    if number is not None and not 0 < number <= DRIVES_MAX:
        raise RequestError(f"--drives {drives}", f"is not a number from 1 to {DRIVES_MAX:,}", "--drives 1")
    return Asked(catalogue.drive(drive) if drive is not None else None, parse(link) if link is not None else None, number)


def parse(link: str) -> tuple[int, int]:
    """`5,4` → generation and lanes."""
    numbers = flags._integers(link, "--link")
    if len(numbers) != 2 or numbers[0] not in catalogue.LANE_GBPS or numbers[1] not in LANES:
        raise RequestError(f"--link {link}", "is not a PCIe generation (3 to 6) and 1, 2, 4, 8 or 16 lanes", "--link 5,4")
    return numbers[0], numbers[1]


def limits_of(asked: Asked, found: rank_files.Found, run: str) -> Limits:
    """The limits of what was typed, or else of the one drive of the catalogue that a run's path or description names."""
    sheet, number, taken = asked.sheet, asked.number, ""
    if sheet is None:
        sheet, stated, taken = named(found, run)
        number = number or stated
    count = number or 1
    times = f"{count} × " if count > 1 else ""
    link = asked.link
    if link is None and sheet is not None and (match := catalogue.LINK.search(sheet.interface)):
        link = int(match[1]), int(match[2])
    write = sheet.seq_write_mbps if sheet else None
    return Limits(
        link_gib_s=count * catalogue.LANE_GBPS[link[0]] * link[1] * 1e9 / GIB if link else None,
        link=f"{times}PCIe {link[0]}.0 x{link[1]}" if link else "",
        read_gib_s=count * sheet.read_gibps if sheet else None,
        write_gib_s=count * write * 1e6 / GIB if write else None,
        drive=times + sheet.name if sheet else "",
        taken="" if asked.number else taken,
    )


def named(found: rank_files.Found, run: str) -> tuple[catalogue.Drive | None, int | None, str]:
    """(drive, number of them, how that is known) by a run's path, else by its system's description; one of several is none."""
    paths = [*Path(found.tree).absolute().parts, *run.split("/")]
    for words, texts in (("its name is in the path", paths), ("the system's description names it", descriptions(found, run))):
        hits: dict[str, int | None] = {}
        for text in dict.fromkeys(texts):
            hits |= names_in(text)
        if len(hits) == 1:
            name, number = hits.popitem()
            return catalogue.drives()[name], number, words
        if hits:
            break
    return None, None, ""


def names_in(text: str) -> dict[str, int | None]:
    """Drives of the catalogue that a text names, and how many where it says so: `4x D7-PS1010`."""
    hits = {}
    for key, drive in catalogue.drives().items():
        # Whatever stands between its letters; digits before or behind are of other words.
        name = APART.join(re.findall("[a-z0-9]", drive.name.lower()))
        if match := re.search(rf"(?:(?<![0-9])([1-9][0-9]{{0,2}}){APART}x{APART})?{name}(?![0-9])", text.lower()):
            hits[key] = int(match[1]) if match[1] else None
    return hits


def descriptions(found: rank_files.Found, run: str) -> Iterable[str]:
    """Texts that describe a run's system: in a folder above it, or called as one of these."""
    parts, root = run.split("/"), Path(found.tree)
    seen = 0
    for path in found.others:
        folder = path.relative_to(root).parts[:-1]
        above = DESCRIPTION.fullmatch(path.name) and tuple(parts[: len(folder)]) == folder
        if (above or path.stem in parts) and seen < DESCRIPTIONS_MAX:
            seen += 1
            try:
                yield rank_files.read(path, DESCRIPTION_BYTES_MAX).decode("utf-8", "replace")
            except rank_files.Damaged as damage:
                found.skipped.append(("/".join((*folder, path.name)), str(damage)))
