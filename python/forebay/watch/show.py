"""The record of a watch as text."""

from __future__ import annotations

import shlex
import textwrap
from typing import Any

from forebay import numbers


def text(record: dict[str, Any]) -> str:
    answer, process = record["answer"], record["process"]
    share = f" ({_share(answer['share'])} of its time)" if _has_share(answer) else ""
    lines = [f"waiting for storage: {answer['waiting']}{share}"]
    lines += [f"  {one}" for why in answer["why"] for one in textwrap.wrap(why, 100, subsequent_indent="  ")]
    lines.append("")
    some = numbers.count(process["processes"], "process").replace("processs", "processes")
    skipped = record["skipped_seconds"]
    watched = f"{process['name']} ({process['pid']}), {some}, {record['seconds']:.1f} s"
    if skipped >= 0.05:
        watched += f", from its first file of data on ({skipped:.1f} s after it started)"
    rows = [("watched", watched + ("; it has ended" if process["ended"] else ""))]
    rows += [("read", _moved(record)), ("files", _files(record)), ("waits", _waits(record)), ("cache", _cache(record))]
    rows += [("device", _disk(disk)) for disk in record["disks"]]
    rows.append(("pressure", _pressure(record)))
    rows += [("gpu", _gpu(gpu)) for gpu in record["gpus"] or []] or [("gpu", f"not known: {record['missing']['gpus']}")]
    rows.append(("workload", _workload(record)))
    rows.append(("cost", f"watching took {record['watching_cpu_s']:.2f} s of processor time"))
    for label, line in rows:
        lines += textwrap.wrap(line, 100, initial_indent=f"{label:<10}", subsequent_indent=" " * 10, break_on_hyphens=False)
    return "\n".join([*lines, *next_steps(record)])


def _has_share(answer: dict[str, Any]) -> bool:
    return answer["share"] is not None


def _share(share: float) -> str:
    return numbers.percent(share)


def _moved(record: dict[str, Any]) -> str:
    moved = record["moved"]
    if moved is None:
        return f"not known: {record['missing']['moved']}"
    size = moved["bytes_per_call"]
    line = f"{numbers.bytes_(moved['read_call_bytes_s'])}/s by read calls" + (f" of {numbers.bytes_(size)}" if size else "")
    line += f" · {numbers.bytes_(moved['device_bytes_s'])}/s from devices"
    if moved["major_faults"]:
        line += f" · {moved['major_faults']:,} page faults that read"
    if moved["block_delay_s"] is not None:
        line += f" · threads waited {moved['block_delay_s']:.1f} s for block devices"
    return line


def _files(record: dict[str, Any]) -> str:
    files = record["files"]
    data = files["data"]
    if data is None:
        return record["missing"]["files.data"]
    least = "" if files["every_open"] else "at least "
    suffix = f".{data['suffix']} " if data["suffix"] else ""
    line = f"{least}{data['files']:,} {suffix}{'file' if data['files'] == 1 else 'files'} of {numbers.bytes_(data['bytes_mean'])}"
    if data["files"] > 1:
        line += f" ± {numbers.bytes_(data['bytes_stdev'])}"
    line += f", {least}{data['opens_s']:.3g} opened/s"
    if files["pattern"]:
        line += f", read {'front to back' if files['pattern'] == 'sequential' else 'at random'}"
    if data["directory"]:
        line += f", below {data['directory']}"
    notes = [w["reason"] or w["note"] for w in files["ways"] if w["reason"] or w["note"]]
    return line + (f" ({'; '.join(notes)})" if notes and not files["every_open"] else "")


def _waits(record: dict[str, Any]) -> str:
    waits = record["waits"]
    if waits is None:
        return f"not known: {record['missing']['waits']}"
    line = f"main thread {_share(waits['share'])} ± {_share(waits['uncertainty'])} in storage, {waits['samples']} samples"
    kinds = [f"{kind} {_share(share)}" for kind, share in waits["in"].items() if share >= 0.01]
    return line + (f" · in {', '.join(kinds)}" if kinds else "")


def _cache(record: dict[str, Any]) -> str:
    cache, missing = record["cache"], record["missing"]
    hit, resident = cache["hit_share"], cache["resident_share"]
    parts = [f"{_share(hit)} of the bytes read" if hit is not None else f"share of hits not known: {missing['cache.hit_share']}"]
    if resident is not None:
        parts.append(f"{_share(resident)} of {numbers.count(cache['resident_of_files'], 'file')} is in it now")
    return " · ".join(parts)


def _disk(disk: dict[str, Any]) -> str:
    if disk["name"] is None:
        return f"not known: {disk['reason']}"
    rate = f"{numbers.bytes_(disk['read_bytes_s'])}/s in {disk['reads_s']:,.0f} reads/s"
    line = f"{disk['name']} busy {disk['busy_pct']:.0f} % · {rate}"
    if disk["bytes_per_read"] is not None:
        line += f" of {numbers.bytes_(disk['bytes_per_read'])}, {disk['read_ms_mean']:.3g} ms each"
    return line + f" · {disk['in_flight_mean']:.2g} in flight"


def _pressure(record: dict[str, Any]) -> str:
    parts = []
    for name, words in (("machine", "of the machine"), ("group", "of its control group")):
        found = record["pressure"][name]
        if found:
            parts.append(f"{words}: some task waited {found.get('some_pct', 0):.0f} %, all {found.get('full_pct', 0):.0f} %")
    return (
        "I/O stalls " + "; ".join(parts)
        if parts
        else "not known: " + "; ".join(reason for name, reason in record["missing"].items() if name.startswith("pressure."))
    )


def _gpu(gpu: dict[str, Any]) -> str:
    mine = "" if gpu["ours"] else " · it isn't known whether the training uses it"
    return f"{gpu['index']} {gpu['name']} busy {gpu['busy_pct']:.0f} %, its memory {gpu['memory_pct']:.0f} %{mine}"


def _workload(record: dict[str, Any]) -> str:
    workload, derived = record["workload"], record["derived"]
    if workload is None:
        return f"none: {record['missing']['workload']}"
    most = "at most " if derived["compute_is_at_most"] else ""
    each = numbers.bytes_(workload["record_bytes"])
    return (
        f"{derived['samples_per_s']:.4g} samples/s of {each} ({derived['samples']}) · batch {workload['batch']} "
        f"({derived['batch']}) · a step computes {most}{numbers.seconds(workload['compute_s'])} on each of "
        f"{derived['accelerators']} ({derived['accelerators_by']})"
    )


def next_steps(record: dict[str, Any]) -> list[str]:
    """Commands to type next."""
    saved, waiting = record.get("saved"), record["answer"]["waiting"]
    if record["workload"] is None:
        return ["", "next: forebay watch PID --seconds 60, while it trains"]
    if saved is None:
        return [
            "",
            f"next: the same with -o job.toml, then forebay plan run --workload job.toml --drive D7-PS1010{_waits_hint(waiting)}",
        ]
    folder = record["files"]["data"]["directory"]
    lines = ["", f"next: forebay plan run --workload {shlex.quote(saved)} --drive D7-PS1010"]
    if folder:
        lines.append(
            f"      forebay bench {shlex.quote(folder)} --cache bypass        # how fast these files come without the page cache"
        )
    return lines


def _waits_hint(waiting: str) -> str:
    return "" if waiting in ("yes", "partly") else "   # what a faster accelerator would need"
