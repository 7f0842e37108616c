"""Drives and systems by name, from data sheets: the package's catalogue, and the user's own in the same TOML form."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

from forebay import pipes
from forebay.errors import RequestError
from forebay.units import GIB

FILE_BYTES_MAX = 1 << 20
# Seconds to the first byte of a read on an idle drive, by kind; data sheets seldom say. Median and spread of log.
LATENCY_US = {"nvme-tlc": (75.0, 0.2), "nvme-qlc": (110.0, 0.2), "sata-tlc": (110.0, 0.2)}
KINDS = tuple(LATENCY_US)
# 4 KiB reads as a share of the sequential rate, where a sheet has no IOPS: those of the catalogue have 0.59 to 0.99.
USUAL_IOPS = 0.75
DRIVE_KEYS = {
    "name", "kind", "interface", "form_factor", "capacity_tb", "seq_read_mbps", "seq_write_mbps", "rand_read_4k_iops",
    "rand_write_4k_iops", "read_latency_us", "watts", "price", "endurance_pbw", "source",
}  # fmt: skip
NUMBERS = DRIVE_KEYS - {"name", "kind", "interface", "form_factor", "source"}
# No drive has a figure near this, and logarithms of larger ones overflow.
NUMBER_MAX = 1e12


@dataclass(frozen=True)
class Drive:
    """A drive's data sheet. MB/s are decimal, `endurance_pbw` the petabytes that may be written. None: the sheet doesn't say,
    or nobody gave it (watts, price, endurance)."""

    name: str
    kind: str
    seq_read_mbps: float
    source: str
    interface: str = ""
    form_factor: str = ""
    capacity_tb: float | None = None
    seq_write_mbps: float | None = None
    rand_read_4k_iops: float | None = None
    rand_write_4k_iops: float | None = None
    read_latency_us: float | None = None
    watts: float | None = None
    price: float | None = None
    endurance_pbw: float | None = None

    @property
    def read_gibps(self) -> float:
        return self.seq_read_mbps * 1e6 / GIB

    @property
    def iops(self) -> float:
        """Reads of 4 KiB a second, at most: the data sheet's, else what is usual beside the sequential rate."""
        return self.rand_read_4k_iops or USUAL_IOPS * self.seq_read_mbps * 1e6 / 4096

    def latency(self) -> tuple[float, float, str, str]:
        """Microseconds of an idle read, spread of its logarithm, source, and why."""
        if self.read_latency_us is not None:
            return self.read_latency_us, 0.1, "spec", f"data sheet: {self.source}"
        median, spread = LATENCY_US[self.kind]
        return median, spread, "prior", f"usual for {self.kind}"


def load_toml(text: str, where: str, shown_in: str = "docs/plan.md") -> dict[str, Any]:
    """Parsed TOML; a RequestError names the file, what is wrong with it, and the page that shows the form."""
    tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RequestError(where, f"is not TOML: {error}", f"{shown_in} shows the format") from None
    except RecursionError:
        raise RequestError(where, "is nested too deeply", f"{shown_in} shows the format") from None


def read_text(path: str, what: str) -> str:
    """A small text file of the user's; RequestError where it can't be read."""
    path = pipes.readable(path)
    pipes.refuse_to_read(path, f"{what} {path}")
    try:
        with open(path, "rb") as file:
            data = pipes.up_to(file, FILE_BYTES_MAX * 64)
    except (OSError, ValueError) as error:
        found = getattr(error, "strerror", None) or "can't be read"
        raise RequestError(f"{what} {path}", found, "a file that exists") from None
    if len(data) > FILE_BYTES_MAX * 64:
        raise RequestError(f"{what} {path}", "is larger than 64 MiB", "a smaller file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise RequestError(f"{what} {path}", "is not UTF-8 text", f"iconv -t UTF-8 {path}") from None


def packaged(name: str) -> str:
    """A file of the package's data for plans."""
    return resources.files("forebay").joinpath("data").joinpath("plan").joinpath(name).read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def drives() -> dict[str, Drive]:
    """The package's drives by lower-case name."""
    return {d.name.lower(): d for d in drives_of(load_toml(packaged("catalogue.toml"), "catalogue.toml"), "catalogue.toml")}


def drives_of(document: dict[str, Any], where: str) -> list[Drive]:
    """The [[drive]] tables of a catalogue, checked. RequestError names the file, the drive and the key."""
    tables = document.get("drive", [])
    if not isinstance(tables, list) or not all(isinstance(t, dict) for t in tables):
        raise RequestError(where, "'drive' is not a list of tables", "[[drive]] with name, kind and seq_read_mbps")
    return [_drive(table, f"{where}, drive {table.get('name', i + 1)}") for i, table in enumerate(tables)]


def _drive(table: dict[str, Any], where: str) -> Drive:
    unknown = sorted(set(table) - DRIVE_KEYS)
    if unknown:
        raise RequestError(where, f"has no key '{unknown[0]}'", "one of " + ", ".join(sorted(DRIVE_KEYS)))
    for key in ("name", "kind", "seq_read_mbps"):
        if key not in table:
            raise RequestError(where, f"lacks '{key}'", f'name = "D7", kind = "{KINDS[0]}", seq_read_mbps = 7000')
    for key in ("name", "interface", "form_factor", "source"):
        if not isinstance(table.get(key, "text"), str):
            raise RequestError(where, f"{key} = {str(table[key])[:60]} is not text", f'{key} = "…"')
    if table["kind"] not in KINDS:
        raise RequestError(where, f"kind '{table['kind']}' is not known", "one of " + ", ".join(KINDS))
    for key in NUMBERS & set(table):
        value = table[key]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < NUMBER_MAX:
            found = f"{key} = {str(value)[:60]} is not a number above 0"
            raise RequestError(where, found, f"{key} = 7000")
    made = Drive(**{"source": where, **table})
    _within_its_link(made, where)
    return made


LINK = re.compile(r"\bPCIe\s*([3-6])(?:\.0)?\s*x\s*(1|2|4|8|16)\b", re.IGNORECASE)
# GB/s of a lane in one direction, by generation.
LANE_GBPS = {3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}


def _within_its_link(drive: Drive, where: str) -> None:
    """RequestError where a sheet's rate is above what its own link carries: one of the two is wrong."""
    link = LINK.search(drive.interface)
    if link is None:
        return
    most = LANE_GBPS[int(link[1])] * int(link[2]) * 1000
    for key in ("seq_read_mbps", "seq_write_mbps"):
        rate = getattr(drive, key)
        if rate is not None and rate > most:
            said = f"is above its own {link[0]}: {most:.0f} MB/s"
            raise RequestError(f"{where}: {key} {rate:g}", said, "the data sheet's figures")


def drive(name: str, more: Iterable[Drive] = ()) -> Drive:
    """A drive by name, whatever its case. RequestError names those that are near."""
    found = {**drives(), **{d.name.lower(): d for d in more}}
    key = name.strip().lower()
    if key in found:
        return found[key]
    import difflib

    near = difflib.get_close_matches(key, found, n=1)
    known = ", ".join(d.name for d in found.values())
    raise RequestError(
        f"drive '{name}'",
        "is in no catalogue" + (f"; did you mean {found[near[0]].name}?" if near else ""),
        f"one of {known}; or its data sheet as [[drive]] in a TOML file and --catalogue FILE",
    )
