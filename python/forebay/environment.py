"""The environment card: what a number was measured on, in two or three lines of text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from forebay.units import GIB, format_bytes


def card(environment: dict[str, Any]) -> list[tuple[str, str]]:
    """(heading, line) pairs out of a record's `environment`: machine, storage where known, GPUs."""
    lines = [("machine", machine(environment))]
    drives = storage(environment)
    if drives:
        lines.append(("storage", drives))
    lines.append(("gpu", gpus(environment)))
    return lines


def machine(environment: dict[str, Any]) -> str:
    """`host7 · AMD EPYC 9124, 16 cores · 125 GiB · Ubuntu 24.04, Linux 6.18`."""
    cores = environment.get("cores")
    nodes = environment.get("numa_nodes") or 1
    processor = environment.get("cpu") or "unknown processor"
    if cores:
        processor += f", {cores} core{'' if cores == 1 else 's'}"
    if nodes > 1:
        processor += f" on {nodes} NUMA nodes"
    parts = [environment.get("host") or "unnamed host", processor]
    if environment.get("memory_bytes"):
        parts.append(f"{environment['memory_bytes'] / GIB:.0f} GiB")
    kernel = environment.get("kernel")
    if kernel and kernel[0].isdigit():
        kernel = f"Linux {kernel}"
    system = ", ".join(s for s in (environment.get("os"), kernel) if s)
    if system:
        parts.append(system)
    if environment.get("virtualization"):
        parts.append(f"in {environment['virtualization']}")
    return " · ".join(parts)


def storage(environment: dict[str, Any]) -> str | None:
    """`ext4 at /data on nvme0n1 · KIOXIA CD8, nvme, PCIe 4.0 x4`; None where nothing is known."""
    parts = []
    filesystem = environment.get("filesystem")
    if filesystem:
        where = f"{filesystem['kind']} at {filesystem['mount_point']}"
        if filesystem.get("device"):
            where += f" on {filesystem['device']}"
        parts.append(where)
    parts += [drive(d) for d in environment.get("drives") or []]
    return " · ".join(parts) or None


def drive(found: dict[str, Any]) -> str:
    """One drive: name, model, kind, and its PCIe link, also where that runs below what the drive can do."""
    words = [found.get("name") or "drive"]
    for value in (found.get("model"), found.get("kind")):
        if value:
            words.append(str(value))
    if found.get("pcie_gen") and found.get("pcie_width"):
        link = f"PCIe {found['pcie_gen']}.0 x{found['pcie_width']}"
        most = (found.get("pcie_gen_max") or 0, found.get("pcie_width_max") or 0)
        if most > (found["pcie_gen"], found["pcie_width"]):
            link += f" (can do {most[0]}.0 x{most[1]})"
        words.append(link)
    if found.get("size_bytes"):
        words.append(_capacity(found["size_bytes"]))
    return words[0] if len(words) == 1 else f"{words[0]} ({', '.join(words[1:])})"


def remote(found: dict[str, Any]) -> str:
    """`nvme+tcp://10.0.0.1/nqn.x · Linux, firmware 6.12 · 4 queues · commands up to 1m · digests: data`."""
    parts = [found["uri"]]
    others = [p["address"] for p in found.get("paths") or [] if p["address"] not in found["uri"]]
    if others:
        parts.append(f"also at {', '.join(others)}")
    firmware = f", firmware {found['firmware']}" if found.get("firmware") else ""
    parts.append((found.get("model") or "unnamed controller") + firmware)
    queues = len(found.get("queues") or [])
    parts.append(f"{queues} queue{'' if queues == 1 else 's'}")
    if found.get("transfer_bytes"):
        parts.append(f"commands up to {format_bytes(found['transfer_bytes'])}")
    digests = [word for word in ("header", "data") if found.get(f"{word}_digest")]
    parts.append(f"digests: {' and '.join(digests)}" if digests else "no digests")
    return " · ".join(parts)


def gpus(environment: dict[str, Any]) -> str:
    """The GPUs, equal ones counted; `none`."""
    names: dict[str, int] = {}
    for gpu in environment.get("gpus") or []:
        name = gpu.get("name") or "GPU"
        if gpu.get("driver"):
            name += f" (driver {gpu['driver']})"
        names[name] = names.get(name, 0) + 1
    return ", ".join(n if count == 1 else f"{count} × {n}" for n, count in names.items()) or "none"


def _capacity(size: int) -> str:
    return f"{size / 2**40:.1f} TiB" if size >= 10 << 40 else f"{size / GIB:,.0f} GiB"


# What a run was measured on, as far as its figures depend on it: a word for it, and how it is read from a record.
FACTS: tuple[tuple[str, Callable[[dict[str, Any]], str]], ...] = (
    ("host", lambda r: _text(_environment(r), "host")),
    ("processor", lambda r: _text(_environment(r), "cpu")),
    ("cores", lambda r: _text(_environment(r), "cores")),
    ("memory", lambda r: _gib(_environment(r).get("memory_bytes"))),
    ("system", lambda r: _text(_environment(r), "os")),
    ("kernel", lambda r: _text(_environment(r), "kernel")),
    ("virtualization", lambda r: _text(_environment(r), "virtualization")),
    ("governor", lambda r: _text(_environment(r), "governor")),
    ("SMT", lambda r: _switch(_environment(r).get("smt"))),
    ("NUMA nodes", lambda r: _text(_environment(r), "numa_nodes")),
    ("GPU", lambda r: _each(r, "gpus", "name")),
    ("GPU driver", lambda r: _each(r, "gpus", "driver")),
    ("drive", lambda r: _each(r, "drives", "model")),
    ("drive's serial", lambda r: _each(r, "drives", "serial")),
    ("firmware", lambda r: _each(r, "drives", "firmware")),
    ("PCIe generation", lambda r: _each(r, "drives", "pcie_gen")),
    ("PCIe lanes", lambda r: _each(r, "drives", "pcie_width")),
    ("scheduler", lambda r: _each(r, "drives", "scheduler")),
    ("file system", lambda r: _text(_filesystem(r), "kind")),
    ("mount options", lambda r: ",".join(str(o) for o in _filesystem(r).get("options") or [])),
    ("build", lambda r: _build(r)),
)


def facts(record: dict[str, Any]) -> dict[str, str]:
    """Facts that are known of the environment of a run, by their words."""
    return {word: value for word, read in FACTS if (value := read(record))}


def differing(a: Sequence[dict[str, Any]], b: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Differences between the environments of two groups of records: {what, a, b}, with the values of each. What one of them
    doesn't say doesn't differ."""
    found = []
    for word, read in FACTS:
        values = [list(dict.fromkeys(v for record in group if (v := read(record)))) for group in (a, b)]
        if all(values) and set(values[0]) != set(values[1]):
            found.append({"what": word, "a": values[0], "b": values[1]})
    return found


def _environment(record: dict[str, Any]) -> dict[str, Any]:
    found = record.get("environment")
    return found if isinstance(found, dict) else {}


def _filesystem(record: dict[str, Any]) -> dict[str, Any]:
    found = _environment(record).get("filesystem")
    return found if isinstance(found, dict) else {}


def _text(table: dict[str, Any], key: str) -> str:
    value = table.get(key)
    return str(value) if isinstance(value, (str, int)) else ""


def _switch(value: Any) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else ""


def _gib(value: Any) -> str:
    return f"{value / GIB:.0f} GiB" if isinstance(value, (int, float)) else ""


def _each(record: dict[str, Any], key: str, of: str) -> str:
    """A property of each drive or GPU, equal ones once."""
    items = _environment(record).get(key)
    values = [_text(item, of) for item in items if isinstance(item, dict)] if isinstance(items, list) else []
    return ", ".join(dict.fromkeys(v for v in values if v))


def _build(record: dict[str, Any]) -> str:
    made = record.get("forebay")
    return " ".join(filter(None, (_text(made, "version"), _text(made, "commit")))) if isinstance(made, dict) else ""
