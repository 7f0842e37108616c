"""The steps, as a table: what each runs, what it needs, and which promises of SPECIFICATION.md it is evidence for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from forebay.validate import proofs
from forebay.validate.proofs import Proof

Judge = Callable[[list[dict[str, Any]]], Proof]
FORMS = ("sync", "stream", "batch", "batch-stream")
WIDTHS = (1, 2, 4, 8)
SECTORS = {"io_bytes": 4096, "op": "randread", "depth": 32}


@dataclass(frozen=True)
class Run:
    """One run: its name within the step, the job's fields that differ from the step's, and what it needs besides."""

    name: str
    job: dict[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Step:
    """`kind` says who runs it: `jobs` the engine, from `runs`; `doctor`, `preset`, `gdsio` their own functions."""

    name: str
    title: str
    # promise → what of the runs proves it
    proofs: dict[str, Judge]
    needs: tuple[str, ...] = ("source",)
    runs: tuple[Run, ...] = ()
    job: dict[str, Any] = field(default_factory=dict)
    kind: str = "jobs"
    preset: str = ""


def _passes(**job: Any) -> dict[str, Any]:
    """Once over all data, verified."""
    return {"passes": 1, "verify": True, **job}


STEPS: tuple[Step, ...] = (
    Step(
        "doctor",
        "what the machine has, and what prevents direct DMA",
        {"DOC-1": proofs.gpu_beside_drive},
        needs=(),
        kind="doctor",
    ),
    Step(
        "files",
        "files of its own, written and verified",
        {},
        ("directory",),
        (Run("verify", _passes(path="host")),),
    ),
    Step(
        "host",
        "the drive's own rate, into host memory",
        {},
        ("source",),
        (
            Run("1m"),
            Run("128k", {"io_bytes": 128 << 10}),
            Run("4k random", SECTORS),
        ),
        {"path": "host", "cache": "bypass"},
    ),
    Step(
        "bounce",
        "through pinned host memory into the GPU",
        {"GPU-7": proofs.into_gpu, "ENG-8": proofs.into_gpu},
        ("source", "gpu"),
        (
            Run("cold 1m", {"cache": "bypass"}),
            Run("cold 4k random", {"cache": "bypass", **SECTORS}),
            Run("warm 1m", {"cache": "warm"}, ("directory",)),
            Run("verify", _passes(cache="bypass"), ("directory",)),
        ),
        {"path": "bounce"},
    ),
    Step(
        "mapped",
        "page cache into the GPU without a CPU copy",
        {"GPU-8": proofs.mapped},
        ("source", "mapped", "gpu"),
        (
            Run("first pass", {"passes": 1}),
            Run("later passes", {"passes": 4}),
            Run("verify", _passes(), ("directory",)),
        ),
        {"path": "mapped", "cache": "warm"},
    ),
    Step(
        "gds-direct",
        "drive into GPU, proven by cuFile's counters and the drive's",
        {"GPU-3": proofs.direct, "GIO-2": proofs.direct},
        ("source", "gpu", "direct"),
        (
            Run("1m"),
            Run("128k", {"io_bytes": 128 << 10}),
            Run("4k random", SECTORS),
            Run("unaligned", {"op": "randread", "io_bytes": 12288, "align_bytes": 4096}),
            Run("verify", _passes(), ("directory",)),
        ),
        {"path": "gds", "cufile": "sync", "require_direct": True, "cache": "bypass"},
    ),
    Step(
        "gds-forms",
        "each of cuFile's interfaces: its rate, and every byte verified",
        {"GPU-4": proofs.verified},
        ("source", "gpu", "cufile"),
        (
            *(Run(form, {"cufile": form}) for form in FORMS),
            *(Run(f"verify {form}", _passes(cufile=form), ("directory",)) for form in FORMS),
        ),
        {"path": "gds", "allow_compat": True, "cache": "bypass"},
    ),
    Step(
        "gds-stripe",
        "a stripe of drives under direct DMA, without md",
        {"GPU-6": proofs.direct_and_wider},
        ("source", "gpu", "direct"),
        tuple(
            Run(f"{width} wide", {"stripe": width}, (f"{word}-sources",) if word else ())
            for width, word in zip(WIDTHS, ("", "two", "four", "eight"), strict=True)
        ),
        {"path": "gds", "require_direct": True, "cache": "bypass", "io_bytes": 4 << 20, "workers": 8},
    ),
    Step(
        "verify",
        "content checked by a kernel on the GPU, by each path",
        {"VER-1": proofs.verified_on_gpu},
        ("directory", "gpu"),
        (
            Run("bounce", _passes(path="bounce", cache="bypass")),
            Run("mapped", _passes(path="mapped", cache="warm"), ("mapped",)),
            Run("gds", _passes(path="gds", allow_compat=True, cache="bypass"), ("cufile",)),
        ),
    ),
    Step(
        "writes",
        "written from GPU memory, read back and verified",
        {"GPU-11": proofs.into_gpu},
        ("directory", "gpu"),
        (
            Run("bounce", {"path": "bounce", "op": "write", "passes": 1, "verify": True}),
            Run("bounce read back", _passes(path="bounce")),
            Run(
                "gds",
                {"path": "gds", "op": "write", "passes": 1, "verify": True, "allow_compat": True},
                ("cufile",),
            ),
            Run("gds read back", _passes(path="gds", allow_compat=True), ("cufile",)),
        ),
        {"cache": "bypass", "file_name": "written.%d"},
    ),
    Step(
        "auto",
        "the path that is chosen, against each fixed one",
        {"GPU-10": proofs.chosen_well},
        ("source", "gpu"),
        (
            Run("bounce", {"path": "bounce"}),
            Run("gds", {"path": "gds", "allow_compat": True}, ("cufile",)),
            Run("auto", {"path": "auto", "allow_compat": True}),
        ),
        {"cache": "bypass"},
    ),
    Step(
        "pairs",
        "two GPUs, each with a drive of its own",
        {"GPU-13": proofs.into_gpu},
        ("source", "gpu", "two-gpus", "two-sources"),
        (Run("one pair", {"pairs": 1}), Run("two pairs", {"pairs": 2})),
        {"path": "bounce", "cache": "bypass", "workers": 8},
    ),
    Step(
        "numa",
        "threads and memory pinned to each of two NUMA nodes",
        {"BEN-7": proofs.moved},
        ("source", "two-nodes"),
        (Run("node 0", {"numa": 0}), Run("node 1", {"numa": 1})),
        {"path": "host", "cache": "bypass"},
    ),
    Step(
        "hugetlb",
        "buffers in a pool of huge pages",
        {"ENG-5": proofs.in_huge_pages},
        ("source", "huge-pages"),
        (Run("hugetlb", {"pages": "hugetlb"}),),
        {"path": "host", "cache": "bypass"},
    ),
    *(
        Step(
            f"paper-{name}",
            f"the published method {name}",
            {"GPU-14": proofs.whole_table},
            ("source", "gpu", "cufile"),
            kind="preset",
            preset=name,
        )
        for name in ("solidigm-gds", "micron-4k", "micron-io-size")
    ),
    Step(
        "paper-solidigm-power",
        "the published method solidigm-power, in alternating cycles",
        {"GPU-15": proofs.metered},
        ("source", "gpu", "cufile", "meter"),
        kind="preset",
        preset="solidigm-power",
    ),
    Step(
        "power",
        "watts of each path, from every meter that answers",
        {"REC-7": proofs.server_metered},
        ("source", "meter"),
        (
            Run("host", {"path": "host"}),
            Run("bounce", {"path": "bounce"}, ("gpu",)),
            Run("gds", {"path": "gds", "allow_compat": True}, ("gpu", "cufile")),
        ),
        {"cache": "bypass"},
    ),
    Step(
        "gdsio",
        "the same command by gdsio and by forebay gdsio, in turn",
        {"MSR-12": proofs.beats_gdsio, "GIO-1": proofs.beats_gdsio},
        ("directory", "gpu", "cufile", "gdsio"),
        tuple(Run(f"-x {x}") for x in range(8)),
        kind="gdsio",
    ),
)
BY_NAME = {step.name: step for step in STEPS}
