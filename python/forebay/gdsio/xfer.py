"""gdsio's transfer types (`-x`): what each becomes here, and which label its line may carry.

gdsio prints the label of the flag. Forebay prints the label of what ran, out of the record: readers
take `XferType: GPUD` for proof of the direct path.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from forebay.errors import RunError
from forebay.paths import BOUNCE, GDS, GDS_COMPAT, GDS_MIXED


@dataclass(frozen=True)
class Xfer:
    """One transfer type. `label` is gdsio's own; `host_label` ours, for a copy that ended in host memory."""

    number: int
    name: str
    label: str
    host_label: str | None
    path: str
    depth: int
    page_cache: bool
    does: str

    @property
    def batches(self) -> bool:
        return self.number in (6, 7)

    @property
    def needs_cufile(self) -> bool:
        return self.path == GDS

    @property
    def needs_gpu(self) -> bool:
        return self.path != "host"


# The labels of 0, 1, 2, 5 and 6 were seen in published lines; those of 3, 4 and 7 follow gdsio's own names.
XFERS = (
    Xfer(
        0,
        "GPU_DIRECT",
        "GPUD",
        None,
        GDS,
        1,
        False,
        "storage to GPU through cuFile, one call at a time per thread",
    ),
    Xfer(1, "CPU_ONLY", "CPUONLY", None, "host", 1, False, "storage to host memory with O_DIRECT"),
    Xfer(
        2,
        "CPU_GPU",
        "CPU_GPU",
        "CPU_HOST",
        BOUNCE,
        1,
        False,
        "storage to host with O_DIRECT, then a copy to the GPU",
    ),
    Xfer(
        3,
        "CPU_ASYNC_GPU",
        "CPU_ASYNC_GPU",
        "CPU_ASYNC_HOST",
        BOUNCE,
        2,
        False,
        "the same with two buffers per thread: one is read while the other is copied",
    ),
    Xfer(
        4,
        "CPU_CACHED_GPU",
        "CPU_CACHED_GPU",
        "CPU_CACHED_HOST",
        BOUNCE,
        1,
        True,
        "storage to page cache to host, then a copy to the GPU",
    ),
    Xfer(
        5,
        "GPU_DIRECT_ASYNC",
        "GPUD_ASYNC",
        None,
        GDS,
        1,
        False,
        "storage to GPU through cuFile's stream calls",
    ),
    Xfer(6, "GPU_BATCH", "GPU_BATCH", None, GDS, 1, False, "storage to GPU through cuFile's batch calls"),
    Xfer(
        7,
        "GPU_BATCH_STREAM",
        "GPU_BATCH_STREAM",
        None,
        GDS,
        1,
        False,
        "storage to GPU through cuFile's stream calls, in groups",
    ),
)


def label(xfer: Xfer, record: dict[str, Any]) -> str:
    """The XferType that `record` (a RunRecord) proves.

    Direct types carry their plain label only where every byte went by DMA, else the label with `_COMPAT`.
    Copying types carry gdsio's label only where the copy ended in a GPU.
    Raises RunError where the path that ran is none that the type can stand for.
    """
    ran, destination = record["path"]["ran"], record["path"]["destination"]
    if xfer.path == GDS and ran in (GDS, GDS_COMPAT, GDS_MIXED):
        path = record["path"]
        direct = ran == GDS and not path["staged_bytes"] and not path.get("compat_bytes")
        return xfer.label if direct else f"{xfer.label}_COMPAT"
    if xfer.path == BOUNCE and ran == BOUNCE:
        return xfer.label if destination.startswith("gpu:") else str(xfer.host_label)
    if xfer.path == ran == "host":
        return xfer.label
    raise RunError(
        f"-x {xfer.number} ({xfer.name})",
        f"ran as '{ran}', which has no gdsio label",
        "--json to see the record",
    )
