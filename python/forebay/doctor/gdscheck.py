"""A doctor's report in the format of NVIDIA's `gdscheck -p`, for people and scripts that know it.

The shape is kept (headings between bars, `name : Supported`); what stands in it is what was found here.
`Supported` means that a direct path was found ready, never that the library knows the name.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

Report = dict[str, Any]

# Line → the driver that signs up with nvidia-fs for it (/proc/driver/nvidia-fs/modules).
DRIVERS = {
    "NVMe": ("nvme",),
    "NVMeOF": ("nvme_rdma",),
    "SCSI": ("scsi_mod", "sd_mod"),
    "ScaleFlux CSD": ("sfxvdriver",),
    "NVMesh": ("nvmeib_common",),
    "DDN EXAScaler": ("lnet",),
    "IBM Spectrum Scale": ("mmfslinux", "gpfs"),
    "NFS": ("rpcrdma",),
    "BeeGFS": ("beegfs",),
    "WekaFS": ("wekafsio", "wekafs"),
}
_NAME_WIDTH = 19
_DETAIL_WIDTH = 22
_IOMMU = {"off": "Disabled", "passthrough": "Passthrough", "translating": "Enabled"}


def render(report: Report) -> str:
    """The whole text, ending in a newline."""
    return "\n".join(lines(report)) + "\n"


def lines(report: Report) -> Iterator[str]:
    yield f" GDS release version: {_release(report)}"
    yield f" nvidia_fs version:  {_nvidia_fs(report)}  libcufile version: {_api(report)}"
    yield f" Platform: {_platform()}"
    yield from _heading("ENVIRONMENT:")
    yield from _environment(report)
    yield from _heading("DRIVER CONFIGURATION:")
    yield from _drivers(report)
    yield from _heading("CUFILE CONFIGURATION:")
    yield from _configuration(report)
    yield from _heading("GPU INFO:")
    yield from _gpus(report)
    yield from _heading("PLATFORM INFO:")
    yield from _platform_info(report)


def _heading(text: str) -> Iterator[str]:
    bar = "=" * len(text)
    yield from (f" {bar}", f" {text}", f" {bar}")


def _check(report: Report, name: str) -> dict[str, Any]:
    found = [check for check in report["checks"] if check["id"] == name]
    return found[0] if found else {"state": "unknown", "found": "", "why": None, "next": None}


def _library(report: Report) -> dict[str, Any] | None:
    libraries = report["cufile"]["libraries"]
    return libraries[0] if libraries and report["cufile"]["refused"] is None else None


def _release(report: Report) -> str:
    library = _library(report)
    return (library["version"] or "not reported") if library else "not found"


def _api(report: Report) -> str:
    if _library(report) is None:
        return "not found"
    return report["cufile"]["api_version"] or "not reported"


def _nvidia_fs(report: Report) -> str:
    facts = report["gds"]["nvidia_fs"]
    return (facts["version"] or "not reported") if facts["loaded"] else "not loaded"


def _platform() -> str:
    import platform

    return platform.machine()


def _environment(report: Report) -> Iterator[str]:
    import os

    for name in sorted(os.environ):
        if name.startswith("CUFILE_"):
            yield f" {name} : {os.environ[name]}"


def _line(name: str, value: str) -> str:
    width = _DETAIL_WIDTH if name.startswith("--") else _NAME_WIDTH
    return f" {name:<{width}}: {value}"


def _drivers(report: Report) -> Iterator[str]:
    # Without a GPU and a library that loads, no driver makes a direct path.
    usable = bool(report["gpu"]["gpus"]) and _library(report) is not None
    signed_up = report["gds"]["nvidia_fs"]["drivers"]

    def supported(ready: bool) -> str:
        return "Supported" if usable and ready else "Unsupported"

    yield _line("NVMe P2PDMA", supported(_check(report, "gds.p2pdma")["state"] == "works"))
    for name, drivers in DRIVERS.items():
        yield _line(name, supported(any(driver in signed_up for driver in drivers)))
    yield from _rdma(report, usable)


def _rdma(report: Report, usable: bool) -> Iterator[str]:
    fabric = report["fabric"]
    library = _library(report)
    loadable = library is not None and any(
        (Path(library["path"]).parent / name).exists()
        for name in ("libcufile_rdma.so", "libcufile_rdma.so.1")
    )
    ports = [port["state"] == "ACTIVE" for device in fabric["rdma"] for port in device["ports"]]
    ready = usable and loadable and fabric["peer_memory"] and any(ports)
    yield _line("Userspace RDMA", "Supported" if ready else "Unsupported")
    yield _line("--Mellanox PeerDirect", "Enabled" if fabric["peer_memory"] else "Disabled")
    yield _line(
        "--rdma library", "Found (libcufile_rdma.so)" if loadable else "Not found (libcufile_rdma.so)"
    )
    yield _line("--rdma devices", " ".join(device["name"] for device in fabric["rdma"]) or "None")
    yield _line("--rdma_device_status", f"Up: {ports.count(True)} Down: {ports.count(False)}")


def _configuration(report: Report) -> Iterator[str]:
    config = report["cufile"]["config"]
    state = "read" if config["exists"] else "not present: cuFile uses its defaults"
    if config["refused"]:
        state = f"can't be read ({config['refused']}): cuFile uses its defaults"
    yield f" file : {config['path']} ({state})"
    settings = config["settings"]
    for key in ("allow_compat_mode", "use_pci_p2pdma"):
        if f"properties.{key}" not in settings:
            yield f" properties.{key} : {_value(config[key])} (default)"
    for key, value in settings.items():
        yield f" {key} : {_value(value)}"


def _value(value: Any) -> str:
    import json

    return value if isinstance(value, str) else json.dumps(value)


def _gpus(report: Report) -> Iterator[str]:
    if not report["gpu"]["gpus"]:
        yield " none found"
    direct = "ready for direct DMA" if _ready(report) else "not ready for direct DMA"
    iommu = _IOMMU[report["gds"]["iommu"]["mode"]]
    for gpu in report["gpu"]["gpus"]:
        bar = "not reported" if gpu["bar1_bytes"] is None else str(gpu["bar1_bytes"] >> 20)
        yield f" GPU index {gpu['index']} {gpu['name']} bar:1 bar size (MiB):{bar} {direct}, IOMMU State: {iommu}"


def _ready(report: Report) -> bool:
    return _check(report, "path.gds")["state"] == "works"


def _platform_info(report: Report) -> Iterator[str]:
    yield f" IOMMU: {_IOMMU[report['gds']['iommu']['mode']].lower()}"
    redirecting = report["gds"]["acs"]["redirecting"]
    unread = report["gds"]["acs"]["unreadable"]
    unknown = f", {unread} not readable" if unread else ""
    yield f" PCIe bridges with ACS redirection: {len(redirecting)}{unknown}"
    yield f" Nvidia Driver Info Status: {report['gpu']['driver'] or 'no driver'}"
    if _ready(report):
        yield " Platform verification succeeded"
        return
    gds = _check(report, "path.gds")
    yield f" Platform verification failed: {gds['found']}" + (f"; {gds['why']}" if gds["why"] else "")
    if gds["next"]:
        yield f" Try: {gds['next']}"
