"""The environment card: what machine, what drives, what file system, once per machine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from forebay import numbers
from forebay.report.runs import Run, finite

# What changes from run to run without the machine being another.
PASSING = ("temperature_c", "free_bytes")


@dataclass
class Card:
    title: str
    facts: list[tuple[str, str]]
    runs: int


def cards(runs: list[Run]) -> list[Card]:
    """One per distinct environment, in order of appearance."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(
            json.dumps([_lasting(run.at("environment")), run.at("forebay")], sort_keys=True), []
        ).append(run)
    return [_card(members) for members in groups.values()]


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _lasting(v) for k, v in value.items() if k not in PASSING}
    return [_lasting(v) for v in value] if isinstance(value, list) else value


def _card(runs: list[Run]) -> Card:
    run = runs[0]
    facts = [
        (
            "Processor",
            _joined(
                run.text("environment.cpu"),
                _counted(run, "cores", "logical core"),
                _counted(run, "numa_nodes", "NUMA node"),
            ),
        ),
        ("Memory", _size(run, "environment.memory_bytes")),
        ("System", _joined(run.text("environment.os"), run.text("environment.kernel"))),
        (
            "Virtualization",
            run.text("environment.virtualization") or _why(run, "environment.virtualization", "none seen"),
        ),
    ]
    smt = run.at("environment.smt")
    clock = _joined(
        f"governor {run.text('environment.governor')}" if run.text("environment.governor") else "",
        f"SMT {'on' if smt else 'off'}" if isinstance(smt, bool) else "",
    )
    facts += [("Frequency and threads", clock)] if clock else []
    gpus = run.items("environment.gpus")
    facts += [("GPU", _gpu(gpu)) for gpu in gpus] or [("GPU", _why(run, "environment.gpus", "none"))]
    drives = run.items("environment.drives")
    facts += [("Drive", _drive(drive)) for drive in drives] or [
        ("Drive", _why(run, "environment.drives", "none seen behind the sources"))
    ]
    facts += [("Remote", _remote(found)) for found in _remotes(runs)]
    facts.append(
        (
            "File system",
            _filesystem(run.at("environment.filesystem")) or _why(run, "environment.filesystem", "none"),
        )
    )
    features = run.at("forebay.features")
    features = [f for f in features if isinstance(f, str)] if isinstance(features, list) else []
    commit = run.text("forebay.commit")
    facts.append(
        (
            "Forebay",
            _joined(
                run.text("forebay.version"), f"commit {commit[:12]}" if commit else "", " ".join(features)
            ),
        )
    )
    facts.append(("Runs", _span(runs)))
    return Card(
        run.text("environment.host") or "unnamed host",
        [(name, value or numbers.DASH) for name, value in facts],
        len(runs),
    )


def _why(run: Run, path: str, otherwise: str) -> str:
    reason = run.reason(path)
    return otherwise if reason == "the record gives no reason" else f"{numbers.DASH} ({reason})"


def _joined(*parts: str) -> str:
    return ", ".join(p for p in parts if p)


def _counted(run: Run, name: str, noun: str) -> str:
    value = run.number(f"environment.{name}")
    return f"{value:,.0f} {noun}{'s' if value != 1 else ''}" if value else ""


def _size(run: Run, path: str) -> str:
    value = run.number(path)
    return numbers.bytes_(value) if value else ""


def _word(part: dict[str, Any], key: str) -> str:
    value = part.get(key)
    return value if isinstance(value, str) else ""


def _bytes(part: dict[str, Any], key: str, form: str = "{}") -> str:
    value = finite(part.get(key))
    return form.format(numbers.bytes_(value)) if value else ""


def _gpu(gpu: dict[str, Any]) -> str:
    driver = _word(gpu, "driver")
    return _joined(
        _word(gpu, "name"),
        _bytes(gpu, "memory_bytes"),
        _word(gpu, "pci"),
        f"driver {driver}" if driver else "",
    )


def _drive(drive: dict[str, Any]) -> str:
    generation, width = finite(drive.get("pcie_gen")), finite(drive.get("pcie_width"))
    link = f"PCIe {generation:.0f} × {width:.0f}" if generation and width else ""
    scheduler, firmware = _word(drive, "scheduler"), _word(drive, "firmware")
    return _joined(
        _word(drive, "name"),
        _word(drive, "model"),
        _word(drive, "kind"),
        _bytes(drive, "size_bytes"),
        link,
        f"firmware {firmware}" if firmware else "",
        f"scheduler {scheduler}" if scheduler else "",
        _bytes(drive, "max_transfer_bytes", "transfers up to {}"),
    )


def _remotes(runs: list[Run]) -> list[dict[str, Any]]:
    """Each namespace of another machine once, whichever run used it."""
    found: dict[str, dict[str, Any]] = {}
    for run in runs:
        for remote in run.items("path.fabric"):
            found.setdefault(_remote(remote), remote)
    return list(found.values())


def _remote(remote: dict[str, Any]) -> str:
    queues = remote.get("queues")
    count = len(queues) if isinstance(queues, list) else 0
    digests = [word for word in ("header", "data") if remote.get(f"{word}_digest") is True]
    return _joined(
        _word(remote, "uri"),
        _word(remote, "model"),
        f"{count} queue{'s' if count != 1 else ''}" if count else "",
        _bytes(remote, "transfer_bytes", "commands up to {}"),
        f"digests: {' and '.join(digests)}" if digests else "no digests",
    )


def _filesystem(found: Any) -> str:
    if not isinstance(found, dict):
        return ""
    options = found.get("options")
    options = ",".join(o for o in options if isinstance(o, str)) if isinstance(options, list) else ""
    align = finite(found.get("direct_offset_align"))
    where = f"{_word(found, 'device')} on {_word(found, 'mount_point')}"
    return _joined(
        _word(found, "kind"), where, options, f"O_DIRECT alignment {numbers.size(align)}" if align else ""
    )


def _span(runs: list[Run]) -> str:
    times = sorted(t for run in runs if (t := run.text("started")))
    counted = f"{len(runs)} run{'s' if len(runs) != 1 else ''}"
    if not times:
        return counted
    first, last = (t[:16].replace("T", " ") for t in (times[0], times[-1]))
    return f"{counted}, {first} UTC" if first == last else f"{counted}, {first} to {last} UTC"
