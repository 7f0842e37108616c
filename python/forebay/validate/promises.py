"""Evidence of a validation file: the promises of SPECIFICATION.md that wait for hardware."""

from __future__ import annotations

from typing import Any

from forebay.validate.steps import BY_NAME, STEPS

# promise → its words, shortened; SPECIFICATION.md has them whole.
PROMISES = {
    "DOC-1": "doctor covers a GPU beside a drive, RDMA and meters",
    "BEN-7": "pinning to NUMA nodes",
    "REC-7": "power from the meters of a real server and GPU",
    "ENG-5": "buffers in hugetlb pages",
    "ENG-8": "bounce copies to a GPU",
    "GIO-1": "cuFile's interfaces by gdsio's -x",
    "GIO-2": "the label tells the path that ran",
    "GPU-3": "gds is direct, by cuFile's counters and the drive's",
    "GPU-4": "each of cuFile's interfaces reads the same bytes",
    "GPU-6": "a stripe under direct DMA, without md",
    "GPU-7": "bounce into a GPU",
    "GPU-8": "mapped without a CPU copy",
    "GPU-10": "auto is at least 0.95 of the best fixed path",
    "VER-1": "verified by a kernel on the GPU",
    "GPU-11": "writes from GPU memory, read back",
    "GPU-13": "several GPUs, each with its drive",
    "GPU-14": "the papers' tables",
    "GPU-15": "power of each path",
    "MSR-12": "every -x as fast as gdsio",
}
RECORD, BROKEN, OPEN = "record", "does not hold", "pending"


def judge(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Promise, verdict, step, evidence: one row for each promise that a step is evidence for, in the table's order."""
    steps = {s["name"]: s for s in document["steps"]}
    rows = []
    for step in STEPS:
        found = steps.get(step.name)
        for promise, proof in step.proofs.items():
            if found is None:
                verdict, words = OPEN, "the step wasn't run"
            elif found["state"] == "skipped":
                verdict, words = OPEN, f"skipped: {found.get('reason')}"
            else:
                verdict, words = _verdict(proof, found)
            if verdict == RECORD and "gpu" in step.needs and _stands_in(document):
                verdict, words = (
                    OPEN,
                    f"no NVIDIA driver showed this GPU: a stand-in is no evidence ({words})",
                )
            rows.append(
                {
                    "promise": promise,
                    "title": PROMISES[promise],
                    "verdict": verdict,
                    "step": step.name,
                    "evidence": words,
                }
            )
    return rows


def _stands_in(document: dict[str, Any]) -> bool:
    """A libcuda that was named in place of the driver's."""
    environment = document.get("environment")
    gpus = environment.get("gpus") if isinstance(environment, dict) else None
    return (
        any(not isinstance(g, dict) or g.get("driver") is None for g in gpus or [])
        if isinstance(gpus, list)
        else False
    )


def _verdict(proof: Any, found: dict[str, Any]) -> tuple[str, str]:
    try:
        holds, words = proof(found["runs"])
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        return OPEN, f"the file lacks the evidence ({type(error).__name__}: {error})"
    failed = [f"{r['name']}: {r.get('reason')}" for r in found["runs"] if r["state"] == "failed"]
    if failed:
        return BROKEN, "; ".join([*failed[:3], words])
    refused = [f"{r['name']} was refused: {r.get('reason')}" for r in found["runs"] if r.get("refused")]
    if refused and holds:
        return OPEN, "; ".join([*refused[:2], words])
    if found["state"] == "partial":
        return OPEN, f"interrupted; so far: {words}"
    return {True: RECORD, False: BROKEN, None: OPEN}[holds], words


def counts(rows: list[dict[str, Any]]) -> dict[str, int]:
    return {verdict: sum(r["verdict"] == verdict for r in rows) for verdict in (RECORD, BROKEN, OPEN)}


def known(name: str) -> bool:
    return name in BY_NAME
