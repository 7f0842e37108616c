"""Proofs by a step's runs. Each proof is a function of the recorded data, so a file can be judged on any machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from forebay.paths import abilities

Run = dict[str, Any]
# (does it hold; None where it can't be told, the evidence in words)
Proof = tuple[bool | None, str]
# Of the bytes that were asked for, what a drive's counter may lack: a counter is read a little late or early.
DEVICE_SHARE_MIN = 0.98


def records(runs: list[Run]) -> list[tuple[str, dict[str, Any]]]:
    """(name, record) of the runs that finished."""
    return [(r["name"], r["record"]) for r in runs if r["state"] == "ran" and r.get("record")]


def _rate(record: dict[str, Any]) -> str:
    cpu = record["result"]["cpu"].get("cpu_s_per_gib")
    cost = f" at {cpu:.3f} CPU-s/GiB" if cpu is not None else ""
    return f"{record['result']['throughput_gib_s']:.2f} GiB/s{cost}"


def _clean(record: dict[str, Any]) -> str | None:
    """Why the run doesn't count, or None."""
    errors = record["result"]["errors"]
    bad = [
        f"{errors[k]} {k.replace('_', ' ')}"
        for k in ("failed", "timed_out", "verify_failed")
        if errors.get(k)
    ]
    return ", ".join(bad) or None


def _each(runs: list[Run], judge: Callable[[dict[str, Any]], Proof]) -> Proof:
    """All runs hold; the words say each."""
    done = records(runs)
    if not done:
        return None, "nothing was recorded"
    idle = [name for name, record in done if not record["result"]["bytes"]]
    if idle:
        return None, f"{idle[0]}: no byte was moved in its time; --seconds 30"
    verdicts = [(name, _clean(record), judge(record)) for name, record in done]
    words = "; ".join(f"{name}: {unclean or said}" for name, unclean, (_, said) in verdicts)
    if any(unclean or holds is False for _, unclean, (holds, _) in verdicts):
        return False, words
    return (None if any(holds is None for _, _, (holds, _) in verdicts) else True), words


def moved(runs: list[Run]) -> Proof:
    """Every run moved bytes without an error."""
    return _each(runs, lambda r: (True, _rate(r)))


def into_gpu(runs: list[Run]) -> Proof:
    """Bytes ended in GPU memory, by the path that was asked for."""

    def judge(r: dict[str, Any]) -> Proof:
        path = r["path"]
        said = f"{path['ran']} into {path['destination']}, {_rate(r)}"
        return path["destination"].startswith("gpu") and path["ran"].startswith(path["requested"]), said

    return _each(runs, judge)


def verified(runs: list[Run]) -> Proof:
    """Every byte was checked against what was written."""

    def judge(r: dict[str, Any]) -> Proof:
        result = r["result"]
        return result["verified_bytes"] >= result[
            "bytes"
        ], f"{result['verified_bytes']} of {result['bytes']} bytes verified"

    return _each([r for r in runs if r["name"].startswith("verify") or r["job"].get("verify")], judge)


def verified_on_gpu(runs: list[Run]) -> Proof:
    """The same, by a kernel on the device."""

    def judge(r: dict[str, Any]) -> Proof:
        result = r["result"]
        where = str(result.get("verified_on") or "nothing")
        said = f"{result['verified_bytes']} of {result['bytes']} bytes verified on {where}"
        # `gpu:0+host`: a part was the host's.
        ours = all(part.startswith("gpu") for part in where.split("+"))
        return result["verified_bytes"] >= result["bytes"] and ours, said

    return _each([r for r in runs if r["job"].get("verify")], judge)


def direct(runs: list[Run]) -> Proof:
    """cuFile's own counters, the drive's counters and the record agree that no byte went through host memory."""
    return _each(runs, _direct)


def _direct(r: dict[str, Any]) -> Proof:
    path, result, cufile = r["path"], r["result"], r.get("cufile") or {}
    if not abilities(path["ran"]).may_go_direct or path.get("compat_bytes"):
        return False, f"{path['ran']} ran, {path.get('compat_bytes', 0)} bytes in compatibility mode"
    if path["direct_bytes"] < result["bytes"]:
        return False, f"{path['direct_bytes']} of {result['bytes']} bytes direct"
    said = [f"{path['direct_bytes']} bytes direct, {_rate(r)}"]
    gpus = cufile.get("gpus")
    if gpus is None:
        return None, said[0] + ", but this libcufile has no counters per GPU (1.15 has)"
    calls = [g[side] for g in gpus for side in ("reads", "writes")]
    p2p, nvfs, posix, rerouted = (sum(c.get(k, 0) for c in calls) for k in ("p2p", "nvfs", "posix", "rerouted"))
    said.append(f"cuFile counted {p2p} P2PDMA, {nvfs} nvidia-fs, {posix} POSIX, {rerouted} rerouted")
    if posix or rerouted or not p2p + nvfs:
        return False, ", ".join(said)
    device = r["cache"].get("device_bytes")
    if device is None:
        return None, ", ".join([*said, "the drive's counters couldn't be read"])
    said.append(f"the drives moved {device} bytes")
    return device >= DEVICE_SHARE_MIN * result["bytes"], ", ".join(said)


def cold(runs: list[Run]) -> Proof:
    """Proves that what was asked for came from the drive, not from the page cache."""

    def judge(r: dict[str, Any]) -> Proof:
        device = r["cache"].get("device_bytes")
        if device is None:
            return None, f"{_rate(r)}, the drive's counters couldn't be read"
        return device >= DEVICE_SHARE_MIN * r["result"][
            "bytes"
        ], f"{_rate(r)}, the drives moved {device} of {r['result']['bytes']} bytes"

    return _each([r for r in runs if r["job"].get("cache") == "bypass"], judge)


def mapped(runs: list[Run]) -> Proof:
    """All bytes went from the page cache to the GPU without a copy by a CPU, or the record says how many didn't."""

    def judge(r: dict[str, Any]) -> Proof:
        path = r["path"]
        said = f"{path['ran']}, {path['mapped_bytes']} of {r['result']['bytes']} bytes mapped, {_rate(r)}"
        return path["mapped_bytes"] > 0 and path["destination"].startswith("gpu"), said

    return _each(runs, judge)


def faster_together(runs: list[Run]) -> Proof:
    """More members give more: each wider run beats the one before."""
    done = records(runs)
    if len(done) < 2:
        return None, "one width alone: name more sources"
    rates = [(name, r["result"]["throughput_gib_s"]) for name, r in done]
    words = ", ".join(f"{name} {rate:.2f} GiB/s" for name, rate in rates)
    return all(b > a for (_, a), (_, b) in zip(rates, rates[1:], strict=False)), words


def direct_and_wider(runs: list[Run]) -> Proof:
    """Every width is direct, and each gives more than the one before."""
    holds, words = direct(runs)
    wider, rates = faster_together(runs)
    if holds is False or wider is False:
        return False, f"{rates}; {words}"
    return (True if holds and wider else None), f"{rates}; {words}"


def chosen_well(runs: list[Run]) -> Proof:
    """`auto` gives at least 0.95 of the best fixed path."""
    done = dict(records(runs))
    auto, fixed = done.pop("auto", None), {n: r["result"]["throughput_gib_s"] for n, r in done.items()}
    if auto is None or not fixed:
        return None, "auto, or every fixed path, is missing"
    best = max(fixed, key=lambda n: fixed[n])
    rate = auto["result"]["throughput_gib_s"]
    return rate >= 0.95 * fixed[
        best
    ], f"auto {rate:.2f} GiB/s ({auto['path']['ran']}), best fixed: {best} {fixed[best]:.2f} GiB/s"


def metered(runs: list[Run]) -> Proof:
    """Every run has watts from a named meter."""

    def judge(r: dict[str, Any]) -> Proof:
        power = r["result"]["power"]
        words = ", ".join(f"{p['source']} {p['scope']} {p['watts_mean']:.0f} W" for p in power)
        return bool(power), words or "no meter answered"

    return _each(runs, judge)


def server_metered(runs: list[Run]) -> Proof:
    """The same; and one of the meters is the server's or the processor's own, which a virtual machine lacks."""
    holds, words = metered(runs)
    sources = {p["source"] for _, r in records(runs) for p in r["result"]["power"]}
    own = any(s.startswith(("rapl", "ipmi", "redfish")) for s in sources)
    return (holds if own or not holds else None), words


def whole_table(runs: list[Run]) -> Proof:
    """Every cell of a paper's table was measured, by the path that the paper names."""
    lacking = [f"{r['name']}: {r.get('reason')}" for r in runs if r["state"] != "ran"]
    done = records(runs)
    amiss = [
        name
        for name, r in done
        if r["path"]["ran"].removesuffix("-compat") != r["path"]["requested"] or _clean(r)
    ]
    words = f"{len(done)} of {len(runs)} cells"
    changes = sorted({c for r in runs for c in r.get("changes", ())})
    if changes:
        words += f", scaled ({'; '.join(changes[:4])})"
    if amiss:
        return False, f"{words}; not as requested: {'; '.join(amiss[:4])}"
    compat = [name for name, r in done if r["path"]["ran"].endswith("-compat")]
    if compat:
        return None, f"{words}; {len(compat)} of gds ran in the compatibility mode"
    if lacking:
        return None, f"{words}; not run: {'; '.join(lacking[:4])}"
    return (True, words) if done else (None, "nothing was recorded")


def beats_gdsio(runs: list[Run]) -> Proof:
    """The same command gives at least gdsio's own rate, and a line that the same parser reads."""
    pairs = [
        (r["name"], r["gdsio_gib_s"], r["forebay_gib_s"])
        for r in runs
        if r["state"] == "ran" and "gdsio_gib_s" in r
    ]
    if not pairs:
        return None, "nothing was recorded"
    words = "; ".join(f"{name}: {ours:.2f} against {theirs:.2f} GiB/s" for name, theirs, ours in pairs)
    return all(ours >= theirs for _, theirs, ours in pairs), words


def gpu_beside_drive(runs: list[Run]) -> Proof:
    """The doctor described a GPU and an NVMe drive of one machine, and the way between them."""
    reports = [r["report"] for r in runs if r["state"] == "ran"]
    gpus = [g["name"] for r in reports[:1] for g in r["gpu"]["gpus"]]
    drives = [d["name"] for r in reports[:1] for d in r["drives"] if d["kind"] == "nvme"]
    if not gpus or not drives:
        return None, f"{len(gpus)} GPUs and {len(drives)} NVMe drives here"
    places = [f"GPU {d['gpu']} to {d['to']}: {d['relation']}" for d in reports[0]["topology"]]
    return True, f"{', '.join(gpus)}; {' '.join(drives)}; {'; '.join(places[:8])}"


def in_huge_pages(runs: list[Run]) -> Proof:
    """Slots lay in hugetlb pages, by the record."""
    return _each(
        runs, lambda r: (r["path"]["slot_pages"] == "hugetlb", f"buffers in {r['path']['slot_pages']} pages")
    )
