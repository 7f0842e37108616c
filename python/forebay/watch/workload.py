"""A workload out of what was watched: the constants that `forebay emulate` and `forebay plan` read from a TOML file."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forebay.watch.watching import Watch

# How such a file begins: what else has its name isn't replaced.
HEAD = "# A workload, measured by forebay watch"
OURS = re.compile(rb"# A workload, measured by forebay watch")
# Suffix → format, where a file of it tells nothing that isn't known (Parquet's columns are none of what is seen).
FORMATS = {
    "npz": "npz", "tfrecord": "tfrecord", "tfrecords": "tfrecord", "jpg": "jpeg", "png": "png", "h5": "hdf5", "hdf5": "hdf5",
    "npy": "npy",
}  # fmt: skip
# Of the bytes of files that were opened, what must have been read for a file to have been read whole.
WHOLE_SHARE = 0.5
# And at most: reads of pipes, through which workers hand their samples on, are among what was read.
REREAD_MAX = 4.0
AU_PCT_MIN, PREFETCH = 90, 2
PAGE_BYTES = 4096
# A training whose files are mapped, and of which calls and devices read less, reads from memory.
MAPPED_BYTES_S_MIN = 1 << 20
SAMPLES_MIN = 20


@dataclass(frozen=True)
class Given:
    """Flags that say what can't be seen. `samples_per_s`: of the whole training."""

    batch: int | None = None
    samples_per_s: float | None = None
    sample_bytes: int | None = None
    accelerators: int | None = None


@dataclass
class Samples:
    """Samples as they were derived: `how` says from what."""

    per_s: float
    bytes: float
    stdev: float
    per_file: int
    how: str


def derive(made: dict[str, Any], watch: Watch, given: Given) -> tuple[dict[str, Any] | None, dict[str, Any] | None, str | None]:
    """(keys of the workload, how they were derived, None), or (None, None, the reason why there is none)."""
    moved, waits, data = made["moved"], made["waits"], made["files"]["data"]
    if data is None:
        return None, None, f"no file of data was seen: {watch.seen.nothing()}"
    if moved is None or waits is None:
        return None, None, "what it read, or its threads, couldn't be looked at"
    read = max(moved["read_call_bytes"], moved["device_bytes"])
    reported = given.samples_per_s is not None and given.sample_bytes is not None
    if data["mapped"] and not reported and read / made["seconds"] < MAPPED_BYTES_S_MIN:
        return None, None, "its data is mapped and in memory, where reads aren't counted: --samples-per-s with --sample-bytes"
    samples = _samples(read, made, given)
    if samples is None:
        return None, None, f"no data was read in the {made['seconds']:.1f} s that it was watched"
    gpus = [g for g in made["gpus"] or [] if g["ours"]]
    accelerators = given.accelerators or len(gpus) or watch.waits.consumers()
    batch = given.batch or 1
    waiting = waits["share"]
    # Never 0: of so many samples, none in which it computed still leaves half a sample's worth.
    computing = max(1 - waiting, 0.5 / max(1, waits["samples"]))
    step_s = batch * accelerators / samples.per_s
    workload = {
        "format": FORMATS.get(data["suffix"], "raw"),
        "loader": "pytorch",
        "record_bytes": max(1, round(samples.bytes)),
        "record_bytes_stdev": round(samples.stdev),
        "samples_per_file": samples.per_file,
        "files": data["files"],
        "batch": batch,
        "read_threads": min(4096, max(1, round(waits["reading_threads"] / accelerators))),
        "prefetch": PREFETCH,
        "epochs": 1,
        "au_pct_min": AU_PCT_MIN,
        "compute_s": float(f"{step_s * computing:.6g}"),
    }
    derived = {
        "samples_per_s": samples.per_s,
        "samples": samples.how,
        "batch": "given" if given.batch is not None else "not known: one sample a step",
        "accelerators": accelerators,
        "accelerators_by": "given"
        if given.accelerators
        else "GPUs it computes on"
        if gpus
        else "processes that read for themselves",
        "compute_is_at_most": computing > 1 - waiting,
        "step_s": step_s,
        "waiting_share": waiting,
        "wait_samples": waits["samples"],
    }
    return workload, derived, None


def _samples(read: int, made: dict[str, Any], given: Given) -> Samples | None:
    data, moved, seconds = made["files"]["data"], made["moved"], made["seconds"]
    size, per_s = data["bytes_mean"], read / seconds
    if given.samples_per_s is not None and given.sample_bytes is not None:
        each = float(given.sample_bytes)
        return Samples(given.samples_per_s, each, 0.0, max(1, round(size / each)), "rate and size were given")
    if read <= 0 and not data["opens"]:
        return None
    if given.samples_per_s is not None:
        each = max(1.0, per_s / given.samples_per_s)
        return Samples(given.samples_per_s, each, 0.0, max(1, round(size / each)), "the rate that was given, and the bytes read")
    if given.sample_bytes is not None:
        each = float(given.sample_bytes)
        return Samples(
            max(per_s / each, 1e-9), each, 0.0, max(1, round(size / each)), "the size that was given, and the bytes read"
        )
    opened = data["opens"] * size
    whole = WHOLE_SHARE * opened <= read <= REREAD_MAX * opened + moved["program_bytes"] or read < PAGE_BYTES
    whole = whole or data["mapped"] > 0 or made["waits"]["in_ring"]  # of which nobody counts what comes from memory
    # A file that each thread opens once, and keeps, holds more than a sample.
    if data["opens"] > 2 * made["waits"]["reading_threads"] and made["files"]["every_open"] and whole:
        return Samples(data["opens_s"], size, data["bytes_stdev"], 1, "each file that was opened is one sample")
    if data["files"] >= 2 and not made["files"]["every_open"] and per_s > 0:
        return Samples(per_s / size, size, data["bytes_stdev"], 1, "each file is one sample; their rate by the bytes read")
    if per_s <= 0:
        return None
    each = min(float(moved["bytes_per_call"] or PAGE_BYTES), size)
    if moved["device_bytes"] > moved["read_call_bytes"]:
        each = min(size, max(float(PAGE_BYTES), *(d.get("bytes_per_read") or 0.0 for d in made["disks"])))
    how = "files hold many samples of unknown size: each read is taken for one (--sample-bytes or --samples-per-s says)"
    return Samples(per_s / max(each, 1.0), max(each, 1.0), 0.0, max(1, round(size / max(each, 1.0))), how)


def toml(made: dict[str, Any]) -> str:
    """The file's text. Its comments say what is assumed."""
    workload, derived = made["workload"], made["derived"]
    name, seconds = made["process"]["name"], made["seconds"]
    title = _one_line(f"{name}, watched for {seconds:.0f} s on {made['started'][:10]}")
    comments = {
        "record_bytes": _one_line(derived["samples"]),
        "batch": None if derived["batch"] == "given" else "not known, --batch-size says: a step is one sample here",
        "files": f"seen in {seconds:.0f} s; the data set may have more",
        "read_threads": f"of each of {derived['accelerators']} ({derived['accelerators_by']})",
        "prefetch": "not seen: PyTorch's default",
        "au_pct_min": "the share of its rate that a training must keep; MLPerf's",
        "compute_s": ("at most: it hardly computed. " if derived["compute_is_at_most"] else "")
        + f"a step took {derived['step_s']:.3g} s, {derived['waiting_share']:.0%} of it waiting for storage"
        + (f"; of {derived['wait_samples']} samples only" if derived["wait_samples"] < SAMPLES_MIN else ""),
    }
    lines = [f"{HEAD} ({made['started']}): forebay emulate run --workload FILE, forebay plan run --workload FILE"]
    lines.append(f"title = {json.dumps(title, ensure_ascii=False)}")
    for key, value in workload.items():
        comment = comments.get(key)
        lines.append(f"{key} = {json.dumps(value)}" + (f"  # {comment}" if comment else ""))
    return "\n".join(lines) + "\n"


def _one_line(text: str) -> str:
    plain = text.encode("utf-8", "backslashreplace").decode()
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in plain)[:200]
