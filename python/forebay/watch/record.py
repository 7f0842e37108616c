"""The record of a watch (schema forebay.watch/1): figures, each null with its reason where it can't be had, and the answer."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from forebay.watch import waits as kinds
from forebay.watch.files import File, Suffix, shown
from forebay.watch.machine import Pages, disk_of
from forebay.watch.waits import uncertainty
from forebay.watch.watching import Watch
from forebay.watch.workload import SAMPLES_MIN, Given, derive

SCHEMA = "forebay.watch/1"
YES, PARTLY, NO, UNKNOWN = "yes", "partly", "no", "can't be told here"
# Of the training's time, waiting for storage.
YES_SHARE, PARTLY_SHARE = 0.5, 0.1
# A device that is busy for so long has nothing left: who waits meanwhile waits for it.
SATURATED_PCT = 80
# A process that reads less a second than this doesn't wait for data.
READS_BYTES_S_MIN = 64 << 10
SUFFIXES_MAX, PATHS_MAX = 8, 10


@dataclass
class Figures:
    """The record in the making."""

    watch: Watch
    missing: dict[str, str] = field(default_factory=dict)

    def lack(self, name: str, reason: str) -> None:
        self.missing[name] = reason


def record_of(watch: Watch, given: Given, command: list[str], started: datetime, interrupted: bool) -> dict[str, Any]:
    figures = Figures(watch)
    moved = _moved(figures)
    disks = watch.disks.document((f.device for f in _data(watch)), watch.over - watch.began)
    waits = _waits(figures, _busy_with_ours(disks, watch))
    gpus = _gpus(figures)
    files = _files(figures)
    made: dict[str, Any] = {
        "schema": SCHEMA,
        "started": started.astimezone(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "command": command,
        "process": {
            "pid": watch.pid,
            "name": watch.tree.root.name,
            "processes": watch.tree.seen,
            "ended": watch.ended,
            "exit_code": None,
        },
        "seconds": watch.seconds,
        "skipped_seconds": max(0.0, watch.start.at - watch.began) if watch.start is not None else 0.0,
        "interrupted": interrupted,
        "moved": moved,
        "waits": waits,
        "files": files,
        "cache": _cache(figures, moved),
        "disks": disks,
        "pressure": watch.pressure.document(watch.over - watch.began),
        "gpus": gpus,
        "watching_cpu_s": watch.cpu_s,
    }
    for name, why in watch.pressure.refused.items():
        figures.lack(f"pressure.{name}", why)
    if not made["disks"]:
        figures.lack("disks", watch.disks.refused or "no file of data was seen, so it isn't known on which devices they lie")
    made["workload"], made["derived"], reason = derive(made, watch, given)
    if reason is not None:
        figures.lack("workload", reason)
    made["answer"] = answer(made)
    made["missing"] = figures.missing
    return made


def _moved(figures: Figures) -> dict[str, Any] | None:
    """Bytes and calls. read() by /proc/PID/io; devices: what the processes had block devices and NFS read."""
    watch, moved = figures.watch, figures.watch.moved()
    if moved is None:
        figures.lack("moved", watch.refused() or "the process had ended before it was looked at")
        return None
    seconds = watch.seconds
    if not watch.counts_delay:
        figures.lack("moved.block_delay_s", "the kernel doesn't count it: sysctl kernel.task_delayacct=1")
    return {
        "read_call_bytes": moved["rchar"],
        "read_call_bytes_s": moved["rchar"] / seconds,
        "read_calls": moved["syscr"],
        "bytes_per_call": watch.bytes_per_call(),
        "program_bytes": watch.program_bytes(),
        "device_bytes": moved["read_bytes"],
        "device_bytes_s": moved["read_bytes"] / seconds,
        "written_bytes": moved["write_bytes"],
        "major_faults": watch.major_faults(),
        "block_delay_s": watch.block_delay_s(),
    }


def _busy_with_ours(disks: list[dict[str, Any]], watch: Watch) -> float:
    """The share of time in which a device was busy with what these processes read; 1 where a device isn't known."""
    moved = watch.moved()
    if moved is None or not disks or any(d["name"] is None for d in disks):
        return 1.0
    all_s = sum(d["read_bytes_s"] for d in disks)
    ours = min(1.0, moved["read_bytes"] / watch.seconds / all_s) if all_s else 0.0
    return min(1.0, sum(d["busy_pct"] for d in disks) / 100) * ours


def _waits(figures: Figures, busy: float) -> dict[str, Any] | None:
    """`busy`: of the devices. A thread in io_uring may wait for sockets or a time: never for storage while that is idle."""
    waits = figures.watch.waits
    shares = waits.shares(busy)
    if shares is None:
        figures.lack("waits", "the process had ended before a sample of its threads was taken")
        return None
    total, (readers, readers_wait) = sum(waits.calls.values()), waits.reading(busy)
    by_kind: dict[str, float] = {}
    for name, number in waits.calls.items():
        kind = kinds.MAPPED if name == "a page fault" else kinds.KIND.get(name, kinds.OTHER)
        by_kind[kind] = by_kind.get(kind, 0.0) + number / total
    return {
        "share": shares[kinds.STORAGE],
        "share_min": (waits.shares(0.0) or shares)[kinds.STORAGE],
        "uncertainty": uncertainty(shares[kinds.STORAGE], waits.samples),
        "samples": waits.samples,
        "main_thread": {way.replace(" ", "_"): share for way, share in shares.items()},
        "in_ring": waits.rings(),
        "reading_threads": readers,
        "reading_threads_wait": readers_wait,
        "in": dict(sorted(by_kind.items(), key=lambda one: -one[1])),
        "calls": {name: number / total for name, number in waits.calls.most_common(SUFFIXES_MAX)},
    }


def _gpus(figures: Figures) -> list[dict[str, Any]] | None:
    gpus = figures.watch.gpus
    found = gpus.document()
    if not found:
        figures.lack("gpus", gpus.refused or "no sample of their utilisation was taken")
        return None
    return found


def _data(watch: Watch) -> list[File]:
    suffix = watch.seen.main_suffix()
    return watch.seen.with_suffix(suffix) if suffix is not None else []


def _files(figures: Figures) -> dict[str, Any]:
    watch = figures.watch
    seen, suffix = watch.seen, watch.seen.main_suffix()
    ways = [watch.opens, watch.open]
    data = _data(watch)
    if suffix is None:
        by = "; ".join(w.refused or w.name for w in ways)
        figures.lack("files.data", f"no file of data was seen (by {by}): {seen.nothing()}")
    elif watch.opens.refused is not None:
        figures.lack("files.data.opens", f"counted by looking from time to time: {watch.opens.refused}")
    steps = watch.open.steps
    moved = steps["forward"] + steps["back"]
    pattern = None
    if moved >= 5:
        pattern = "sequential" if steps["forward"] >= 0.9 * moved else "random"
    elif suffix is not None:
        figures.lack("files.pattern", "too few files were seen at two positions: files are short, mapped, or read by pread")
    group = seen.suffixes[suffix] if suffix is not None else None
    return {
        "ways": [w.document() for w in ways],
        "every_open": watch.opens.refused is None and not watch.opens.lost,
        "data": None if group is None else _group(suffix or "", group, watch.reading_seconds, data),
        "by_suffix": {
            name: {"files": g.files, "opens": g.opens, "bytes": g.bytes}
            for name, g in sorted(seen.suffixes.items(), key=lambda one: -one[1].bytes)[:SUFFIXES_MAX]
            if g.files > 0
        },
        "written": sum(f.written for f in seen.files.values()),
        "of_programs": len(seen.programs),
        "overfull": seen.overfull,
        "pattern": pattern,
    }


def _group(suffix: str, group: Suffix, seconds: float, data: list[File]) -> dict[str, Any]:
    return {
        "suffix": suffix,
        "files": group.files,
        "opens": group.opens,
        "opens_s": group.opens / seconds,
        "bytes": group.bytes,
        "bytes_mean": group.mean,
        "bytes_stdev": group.deviation,
        "bytes_min": group.smallest,
        "bytes_max": group.largest,
        "mapped": sum(f.mapped for f in data),
        "directory": _directory(data),
        "paths": [shown(f.path) for f in data[:PATHS_MAX]],
    }


def _directory(data: list[File]) -> str | None:
    """The deepest folder that all of them lie in."""
    folders = {os.path.dirname(f.path) for f in data if f.path.startswith("/")}
    return shown(os.path.commonpath(folders)) if folders else None


def _cache(figures: Figures, moved: dict[str, Any] | None) -> dict[str, Any]:
    hit = None
    if moved is None or moved["read_call_bytes"] < 1 << 20:
        figures.lack("cache.hit_share", "less than 1 MiB was read by calls")
    elif moved["device_bytes"] > moved["read_call_bytes"]:
        figures.lack(
            "cache.hit_share", "devices moved more than read calls got: mapped files, io_uring, or more read ahead than used"
        )
    else:
        hit = 1 - moved["device_bytes"] / moved["read_call_bytes"]
    pages = Pages()
    # A file of a server that hangs isn't opened.
    paths = [f.path for f in _data(figures.watch) if f.path.startswith("/") and disk_of(f.device) is not None]
    step = max(1, len(paths) // pages.FILES_MAX)
    found = pages.share(paths[::step][: pages.FILES_MAX])
    if found is None:
        figures.lack("cache.resident_share", pages.refused or "no file of data was seen, on a file system of a block device")
    return {
        "hit_share": hit,
        "resident_share": found[0] if found is not None else None,
        "resident_of_files": found[1] if found is not None else 0,
    }


def answer(made: dict[str, Any]) -> dict[str, Any]:
    """The verdict on waiting for storage: the word, a sentence, and what it rests on."""
    waits, moved = made["waits"], made["moved"]
    read_s = max(moved["read_call_bytes_s"], moved["device_bytes_s"]) if moved is not None else 0.0
    if waits is None or waits["samples"] < SAMPLES_MIN:
        samples = 0 if waits is None else waits["samples"]
        return {"waiting": UNKNOWN, "share": None, "why": [f"{samples} samples of its threads say nothing; watch it for longer"]}
    share, why = waits["share"], []
    busy = _busiest(made["gpus"])
    if busy is not None and share > 1 - busy:
        why.append(f"the GPU was busy {busy:.0%} of the time, so that it can't have waited for longer than the rest")
        share = 1 - busy
    word, least = _word(share), waits["share_min"]
    if _word(least) != word and max((d["busy_pct"] for d in made["disks"] if d["name"]), default=0.0) < SATURATED_PCT:
        why.append(f"between {least:.0%} and {share:.0%} of the time: the rest it waits in io_uring, for whatever it may be")
        word = UNKNOWN
    if word == NO and read_s < READS_BYTES_S_MIN:
        why.append(f"it read {read_s / 1024:.3g} KiB/s in all")
    why += _because(made, share, word)
    return {"waiting": word, "share": None if word == UNKNOWN else share, "why": why}


def _word(share: float) -> str:
    return YES if share >= YES_SHARE else PARTLY if share >= PARTLY_SHARE else NO


def _busiest(gpus: list[dict[str, Any]] | None) -> float | None:
    """The share of time in which the GPUs are busy that the processes compute on; None where that isn't known."""
    ours = [g for g in gpus or [] if g["ours"]]
    return sum(g["busy_pct"] for g in ours) / len(ours) / 100 if ours else None


def _because(made: dict[str, Any], share: float, word: str) -> list[str]:
    waits, why = made["waits"], []
    main = waits["main_thread"]
    parts = {
        "computing": main["computes"], "waiting for its own threads or workers, which computed": main["its_threads"],
        "asleep by a timer": main["a_timer"], "in the GPU's driver": main["the_gpu"], "waiting for something else": main["else"],
        "stopped": main["stopped"],
    }  # fmt: skip
    words = ", ".join(f"{name} {part:.0%}" for name, part in parts.items() if part >= 0.01)
    most = "at most " if waits["share_min"] < waits["share"] - 0.005 else ""
    why.append(f"its main thread waited for storage {most}{waits['share']:.0%} of the time" + (f"; {words}" if words else ""))
    readers = waits["reading_threads_wait"]
    if readers is not None:
        why.append(f"the threads that read ({waits['reading_threads']}) were in I/O wait {readers:.0%} of the time")
    if word == NO and readers is not None and readers > 0.8 and share < PARTLY_SHARE:
        why.append("they have little time left: a slower storage, or a faster accelerator, would be waited for")
    if (gpus := made["gpus"]) is not None:
        why += [f"GPU {g['index']} ({g['name']}) was busy {g['busy_pct']:.0f} %" for g in gpus[:8]]
    why += [f"{d['name']} was busy {d['busy_pct']:.0f} % of the time" for d in made["disks"] if d["name"]]
    if (hit := made["cache"]["hit_share"]) is not None:
        why.append(f"{hit:.0%} of what it read came from the page cache")
    if waits["in_ring"] and word != UNKNOWN:
        why.append("it reads by io_uring, where a wait may be for anything: as much is counted as its devices were busy")
    if (kind := next(iter(waits["in"]), None)) is not None and waits["in"][kind] >= 0.5 and share >= PARTLY_SHARE:
        why.append(f"{waits['in'][kind]:.0%} of the waits were in {kind}")
    return why
