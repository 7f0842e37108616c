"""`forebay plan calibrate`: parameters out of a user's own runs: our records, gdsio's lines, fio's JSON.

The published measurements don't take part: the machine is another. The drive's data sheet and what is usual are the
priors. What the runs can't tell is said, and which measurement would tell most.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from forebay.doubts import contradictions
from forebay.errors import RequestError
from forebay.paths import GDS
from forebay.plan import catalogue, cores, cpu, flow
from forebay.plan.fit import gain_nats
from forebay.plan.frozen import replace
from forebay.plan.recommend import doubtful
from forebay.units import GIB
from forebay.uri import Uri, known

LINE = re.compile(
    r"XferType: (?P<type>\S+) Threads: (?P<threads>\d+) .*?IOSize: (?P<kib>[\d.]+)(?:-\S+)?\(KiB\) "
    r"Throughput: (?P<rate>[\d.]+) GiB/sec"
)
DIRECT = ("GPUD", "GPU_BATCH", "GPUD_BATCH", "GPU_DIRECT")
SIZES_KIB = (4.0, 16.0, 64.0, 128.0, 256.0, 1024.0, 4096.0)
WORKERS = (1, 4, 16, 32, 64)
POINTS_LEAST, POINTS_MAX = 2, 1000
# fio's engines that have one request in flight, whatever its iodepth says.
SYNCHRONOUS = ("sync", "psync", "vsync", "pvsync", "pvsync2", "mmap")
# Block devices that keep their data in memory.
MEMORY = re.compile(r"(?:.*:)?(?:ram|zram|nullb|pmem)\d")
# Below this share of what was read, delivered by the devices, memory took part, or nothing was stored there.
DELIVERED_LEAST = 0.95
DRIVE_RUNS = "runs of forebay bench on files with data in every block, on a drive: --cache bypass"
# An outlier still counts, as if its noise were this share; of all runs, so many may be outliers.
STRAY_NOISE, STRAYS_MOST = 1.0, 0.3
# Among so few runs a stray is looked for by leaving out so many in turn.
FEW, CANDIDATES = 50, 4


@dataclass(frozen=True)
class Found:
    """A run as a load, with where it was read; `host` where the record names one; `spent` where it has processor time.

    `simulated`: a model of a drive gave it, as `model:` does, and no drive. `doubt`: why it may not be what it seems.
    """

    measured: flow.Measured
    origin: str
    host: str | None = None
    spent: cores.Spent | None = None
    simulated: bool = False
    doubt: str = ""


def read(text: str, where: str, drive: str, drives: int | None) -> list[Found]:
    """Runs of a file: JSON lines of records, fio's JSON, or gdsio's lines. RequestError where there is none.

    `drives`: how many side by side they read; None: as many as a record's stripe has members, else one.
    """
    found = _fio(text, where, drive, drives)
    if not found:
        for number, line in enumerate(text.splitlines(), 1):
            found += _line(line, f"{where}, line {number}", drive, drives)
    if not found:
        raise RequestError(where, "holds no run", "records of forebay bench or sweep, gdsio's output lines, or fio's JSON")
    return found


def _line(line: str, where: str, drive: str, drives: int | None) -> list[Found]:
    line = line.strip()
    if line.startswith("{"):
        try:
            return of_record(json.loads(line), where, drive, drives)
        except (ValueError, RecursionError):
            return []
    match = LINE.search(line)
    if not match or not line.startswith(("IoType: READ", "IoType: RANDREAD")):
        return []
    path = GDS if match["type"] in DIRECT else "cpu"
    kib, threads, rate = (_float(match[name]) for name in ("kib", "threads", "rate"))
    if min(kib, threads, rate) <= 0:
        return []
    return [Found(flow.Measured(flow.Load(drive, kib, threads, path, drives=drives or 1), rate), where)]


def _float(text: str) -> float:
    """0 for digits with two points, as a cut line has them."""
    try:
        return float(text)
    except ValueError:
        return 0.0


def of_record(document: Any, where: str, drive: str, drives: int | None) -> list[Found]:
    """The run of a record, or of a sweep's point; none where it isn't a read, or its numbers can't be."""
    try:
        found = _of_record(document, where, drive, drives)
    except (TypeError, ValueError, AttributeError, OverflowError):
        return []
    try:
        flow.check([f.measured.load for f in found])
    except (TypeError, ValueError, AttributeError, OverflowError, RequestError):
        return []
    return [f for f in found if math.isfinite(f.measured.gibps) and f.measured.gibps > 0]


def _of_record(document: Any, where: str, drive: str, drives: int | None) -> list[Found]:
    record = document.get("record", document) if isinstance(document, dict) else {}
    if record.get("train") or record.get("infer"):
        # What a model took, or was held back to, is no rate of a drive.
        return []
    job, result = record.get("job") or {}, record.get("result") or {}
    rate, size = result.get("throughput_gib_s"), job.get("io_bytes")
    if not rate or not size or job.get("op", "read") not in ("read", "randread"):
        return []
    path = GDS if (record.get("path") or {}).get("ran") == GDS else "cpu"
    remote = any(source.is_by_socket for source in _sources(job))
    queues = min(float(job.get("queues") or flow.QUEUES_MAX), flow.QUEUES_MAX) if remote else None
    load = flow.Load(
        drive, size / 1024, float(job.get("workers") or 1), path, remote, drives or _members(result),
        float(job.get("depth") or 1), queues,
    )  # fmt: skip
    spent = _spent(result, cpu.Work(path, load.io_kib, float(rate)))
    if odd := contradictions(record):
        found = f"the record contradicts itself: {'; '.join(odd[:3])}"
        raise RequestError(where, found, "the record as it was written, or another run")
    simulated = record.get("origin", "measured") != "measured"
    if why := _of_no_drive(record, job, result):
        raise RequestError(where, f"the record is of no drive: {why}", DRIVE_RUNS)
    return [Found(flow.Measured(load, float(rate)), where, _host(record), spent, simulated)]


def _of_no_drive(record: dict[str, Any], job: dict[str, Any], result: dict[str, Any]) -> str:
    """Why what a record reports isn't what a drive delivered; empty where nothing says so."""
    cache, source = record.get("cache") or {}, str(job.get("source") or "")
    sources = _sources(job)
    if any(leaf.is_idle for one in sources for leaf in one.leaves()):
        return f"{source} completes at once, without storage"
    if cache.get("policy") == "memory":
        return f"{source} lives in memory"
    named = sorted(name for name in cache.get("devices") or {} if MEMORY.match(name))
    if named:
        return f"{source} lies on {named[0]}, which keeps its data in memory"
    # Their data come from a drive or a model of one, and no block device of this host lies below.
    if "device_bytes" not in cache or any(one.connects or one.drive is not None for one in sources):
        return ""
    device, asked = cache["device_bytes"], float(result.get("bytes") or 0)
    if device is None:
        said = (record.get("missing") or {}).get("cache.device_bytes", "its bytes weren't counted at a device")
        return f"{source}: {said}"
    if float(device) >= DELIVERED_LEAST * asked:
        return ""
    return f"the devices delivered {100 * float(device) / asked:.0f} % of what was read from {source}"


def _sources(job: dict[str, Any]) -> list[Uri]:
    """The job's sources, as far as their texts are those of sources."""
    named = job.get("sources") or str(job.get("source") or "").split()
    return [source for source in map(known, named if isinstance(named, list) else ()) if source is not None]


def _members(result: dict[str, Any]) -> int:
    """Returns the number of members of the widest stripe that was read; 1 for any other source."""
    return max((int(target.get("members") or 1) for target in result.get("targets") or ()), default=1)


def _host(record: dict[str, Any]) -> str | None:
    host = (record.get("environment") or {}).get("host")
    return host if isinstance(host, str) else None


def _spent(result: dict[str, Any], work: cpu.Work) -> cores.Spent | None:
    """Cores of this process in user mode and in the kernel; None where the record has no processor time."""
    used, seconds = result.get("cpu") or {}, result.get("seconds")
    user, system = used.get("user_s"), used.get("system_s")
    if not seconds or user is None or system is None:
        return None
    return cores.Spent(work, float(user) / seconds, float(system) / seconds)


def cores_of(runs: Sequence[Found]) -> cores.Cores:
    """Processor cost by path, out of the runs that have it."""
    return cores.Cores([r.spent for r in runs if r.spent])


def _fio(text: str, where: str, drive: str, drives: int | None) -> list[Found]:
    if '"fio version"' not in text:
        return []
    try:
        document = json.loads(text[text.index("{") :])
    except (ValueError, RecursionError):
        raise RequestError(where, "is truncated JSON of fio", "fio --output-format=json --output=FILE") from None
    if not isinstance(document, dict) or not isinstance(document.get("jobs"), list):
        raise RequestError(where, "is fio's JSON without 'jobs'", "fio --output-format=json --output=FILE")
    found = []
    for at, clones in _clones(document, where):
        try:
            run = _fio_job(document, clones, drive, drives)
        except (TypeError, ValueError, AttributeError, OverflowError) as error:
            raise RequestError(at, f"is not as fio writes it: {error}", "fio --output-format=json --output=FILE") from None
        except RequestError as error:
            raise RequestError(f"{at}: {error.asked}", error.found, error.next) from None
        if run is not None:
            host = document.get("hostname")
            doubt = "; ".join(t for t in (run.doubt, _together(document["jobs"], clones[0])) if t)
            found.append(replace(run, origin=at, host=host if isinstance(host, str) else None, doubt=doubt))
    return found


def _clones(document: dict[str, Any], where: str) -> list[tuple[str, list[Any]]]:
    """(where, its entries) of each job. Without group_reporting fio has an entry for each of its `numjobs` clones."""
    found: dict[str, list[tuple[str, Any]]] = {}
    for i, job in enumerate(document["jobs"], 1):
        whole = isinstance(job, dict) and isinstance(job.get("job options"), dict)
        same = [job.get(k) for k in ("jobname", "groupid", "job options")] if whole else i
        found.setdefault(json.dumps(same), []).append((f"{where}, job {i}", job))
    shared = document.get("global options")
    usual = shared.get("numjobs") if isinstance(shared, dict) else None
    made = []
    for entries in found.values():
        if len(entries) > 1 and str(len(entries)) == str(entries[0][1]["job options"].get("numjobs", usual)):
            made.append((entries[0][0], [job for _, job in entries]))
        else:
            made += [(at, [job]) for at, job in entries]
    return made


def _together(jobs: Sequence[Any], one: Any) -> str:
    """Describes the jobs that fio ran beside this one: those of its group of another name, which no stonewall parts from it."""
    if not isinstance(one, dict) or "groupid" not in one:
        return ""
    others = [j for j in jobs if isinstance(j, dict) and j.get("groupid") == one["groupid"]]
    names = sorted({str(j.get("jobname")) for j in others} - {str(one.get("jobname"))})
    return f"ran beside job {', '.join(names[:3])}, so it had only part of the drive: separate them by stonewall" if names else ""


def _fio_job(document: dict[str, Any], clones: Sequence[Any], drive: str, drives: int | None) -> Found | None:
    """The rate and the cores of all clones together. None where they write, read nothing or don't say their block size."""
    from forebay.units import parse_bytes

    options = {**(document.get("global options") or {}), **(clones[0].get("job options") or {})}
    rate, written = (sum(_number(j.get(way), "bw_bytes") for j in clones) for way in ("read", "write"))
    size, engine = options.get("bs"), str(options.get("ioengine") or "")
    if not size or written or not (math.isfinite(rate) and rate > 0):
        return None
    workers, depth = float(options.get("numjobs", 1)), float(options.get("iodepth", 1))
    if engine in SYNCHRONOUS:
        depth = 1.0
    path = GDS if engine == "libcufile" and options.get("cuda_io", "cufile") == "cufile" else "cpu"
    load = flow.Load(drive, parse_bytes(size, "bs") / 1024, workers, path, drives=drives or 1, depth=depth)
    flow.check([load])
    # Without group_reporting each clone has an entry of its own; with it, one has the mean of all.
    threads = workers if len(clones) == 1 else 1.0
    user, system = (sum(_number(j, name) for j in clones) * threads / 100 for name in ("usr_cpu", "sys_cpu"))
    work = cpu.Work(path, load.io_kib, rate / GIB)
    reported = all("usr_cpu" in j and "sys_cpu" in j for j in clones) and 0 < user + system < math.inf
    doubt = "" if path == GDS or _is_on(options.get("direct")) else "without direct=1 the data may have come from memory"
    spent = cores.Spent(work, user, system) if reported else None
    return Found(flow.Measured(load, work.gibps), "", spent=spent, doubt=doubt)


def _number(table: Any, key: str) -> float:
    """A number of 0 or more; 0 where there is none. ValueError where it is something else."""
    value = float((table or {}).get(key) or 0)
    if value < 0:
        raise ValueError(f"{key} {value:g}")
    return value


def _is_on(value: Any) -> bool:
    return str(value) not in ("None", "0", "")


def calibrate(runs: Sequence[Found], drive: catalogue.Drive, more: Sequence[catalogue.Drive]) -> tuple[flow.Flow, dict[str, Any]]:
    """The calibrated throughput and what is said of it. RequestError for one point, or several machines."""
    hosts = sorted({r.host for r in runs if r.host})
    if len(hosts) > 1:
        raise RequestError("the runs", f"are of different machines: {', '.join(hosts)}", "the runs of one machine")
    loads = {r.measured.load for r in runs}
    if len(runs) > POINTS_MAX:
        raise RequestError("the runs", f"are {len(runs)}", f"at most {POINTS_MAX}, for instance one sweep")
    if len(loads) < POINTS_LEAST:
        raise RequestError("the runs", "all have the same settings, so latency can't be told apart", "two or more block sizes")
    kept = [r.measured for r in runs]
    strays: list[int] = []
    fitted = flow.Flow(kept, more, sheet=flow.SHEET_OF_OWN)
    while (furthest := fitted.posterior.outlier()) is not None and len(strays) < len(runs) * STRAYS_MOST:
        if furthest in strays:
            break
        fitted, stray = _without_stray(fitted, kept, more, furthest, strays)
        strays.append(stray)
        kept[stray] = _stray(kept[stray])
    return fitted, _document(runs, fitted, strays, drive)


def _stray(run: flow.Measured) -> flow.Measured:
    return flow.Measured(run.load, run.gibps, STRAY_NOISE)


def _without_stray(
    fitted: flow.Flow, kept: list[flow.Measured], more: Sequence[catalogue.Drive], furthest: int, strays: Sequence[int]
) -> tuple[flow.Flow, int]:
    """The fit that one run less makes best, and which run that is.

    Of few runs a stray bends the law to itself, and the run furthest from the law is a good one. So each of those that
    stand out is tried.
    """
    tried = {furthest}
    if len(kept) <= FEW:
        far = abs(fitted.posterior.left_out())
        tried |= {int(i) for i in far.argsort()[-CANDIDATES:] if int(i) not in strays}
    without = {i: [_stray(m) if i == n else m for n, m in enumerate(kept)] for i in sorted(tried)}
    fits = {i: flow.Flow(runs, more, sheet=flow.SHEET_OF_OWN) for i, runs in without.items()}
    best = min(fits, key=lambda i: fits[i].posterior.cost())
    return fits[best], best


def _document(runs: Sequence[Found], fitted: flow.Flow, strays: Sequence[int], drive: catalogue.Drive) -> dict[str, Any]:
    remote = any(r.measured.load.remote for r in runs)
    spent = cores_of(runs)
    parameters = [p for p in fitted.posterior.parameters() if remote or not p.name.startswith(("fabric", "queue"))]
    parameters += [p for p in spent.posterior.parameters() if p.name.partition("[")[2][:-1] in spent.measured]
    many = len(strays) > 1 and len(strays) >= len(runs) * STRAYS_MOST
    doubts = [f"{len(strays)} of {len(runs)} runs don't fit the rest: are they of one machine and one drive?"] if many else []
    played = sum(r.simulated for r in runs)
    if played:
        doubts.append(f"{played} of {len(runs)} runs are simulated: they calibrate with a modelled drive, not a real one")
    doubts += _of_origins(runs)
    doubts += [
        f"{r.origin}: {text}" for r in runs for text in doubtful(drive, r.measured.load.drives, r.measured.gibps)
    ]
    return {
        "drive": drive.name,
        "runs": len(runs),
        "parameters": [{**p.document(), "identified": p.identified} for p in parameters],
        "not_identified": [p.name for p in parameters if not p.identified],
        "next_measurement": next_measurement(runs, fitted),
        "outliers": [f"{runs[i].origin}: {runs[i].measured.gibps:.2f} GiB/s" for i in strays],
        "warnings": doubts,
    }


def _of_origins(runs: Sequence[Found]) -> list[str]:
    """Returns the objections of each run's own file, once for all of which it says the same."""
    by_text: dict[str, list[str]] = {}
    for run in runs:
        if run.doubt:
            by_text.setdefault(run.doubt, []).append(run.origin)
    return [f"{o[0]}{f' and {len(o) - 1} more' if len(o) > 1 else ''}: {text}" for text, o in by_text.items()]


def next_measurement(runs: Sequence[Found], fitted: flow.Flow) -> dict[str, Any]:
    """Returns the block size and number of workers whose outcome is least known: measuring it tells most."""
    first = runs[0].measured.load
    loads = [
        flow.Load(first.drive, kib, float(workers), first.path, first.remote, first.drives, first.depth)
        for kib in SIZES_KIB
        for workers in WORKERS
    ]
    gains = gain_nats(fitted.posterior, fitted.rows(loads), flow.NOISE)
    best = max(range(len(loads)), key=lambda i: float(gains[i]))
    spread = math.sqrt(math.expm1(2 * float(gains[best]))) * flow.NOISE
    return {"io_size_kib": loads[best].io_kib, "workers": loads[best].workers, "unsure_pct": 100 * spread}
