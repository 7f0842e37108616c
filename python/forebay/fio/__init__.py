"""fio's job files: converts each section to a job; settings that would change the workload are refused by name.

`keys` says of every key what becomes of it, `file` reads the file, `values` what may be calculated, `settings` the values of a
section, `offsets` where its I/Os go, `data` in which files, `checks` how they are checked; `verb` is the command. Only the file
format and the meaning of the keys are shared with fio, out of its documentation. Sizes follow fio's default (`kb_base=1024`):
k and kb are 1024, kib is 1000.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from forebay.errors import RequestError
from forebay.fio import lists
from forebay.fio.checks import Checks
from forebay.fio.data import NOTHING
from forebay.fio.data import named_files as named_files
from forebay.fio.file import FILE_BYTES_MAX as FILE_BYTES_MAX
from forebay.fio.file import Section as Section
from forebay.fio.file import expanded, sections
from forebay.fio.job import CHECK as CHECK
from forebay.fio.job import FioJob as FioJob
from forebay.fio.job import among, resolved, running
from forebay.fio.keys import ALIASES, DONE, ELSEWHERE, HARMLESS, HOLDS, OF_WRITES, REFUSED, REPORTED
from forebay.units import GIB, parse_bytes


def jobs(path: str, lenient: bool = False) -> list[FioJob]:
    """The jobs of the fio job file at `path`, in order, each with the `[global]` settings above it.

    Raises RequestError naming the section and the key where a value is malformed, where no job can be made of it (an unknown
    ioengine, rw=trim …) and, unless `lenient`, where the job would be another one than fio's.
    """
    return of_sections(sections(path), path, lenient)


def of_sections(read: Iterable[Section], path: str, lenient: bool = False) -> list[FioJob]:
    """The jobs of sections that were read from `path`, or from a command line of that name."""
    shared: dict[str, str] = {}
    found: list[FioJob] = []
    for number, section in enumerate(read):
        settings = {
            ALIASES.get(key, key): expanded(section.name, key, value) for key, value in section.settings
        }
        if section.name == "global":
            shared.update(settings)
        else:
            reader = _Reader(section.name, {**shared, **settings}, found)
            found.append(among(replace(reader.job(), section=number), found))
            found += [replace(check, section=number) for check in reader.checks()]
    if not found:
        raise RequestError(
            path, "has no job section", "a fio job file with a section such as [read] below [global]"
        )
    found = resolved(found)
    if not lenient:
        _refuse(path, found)
    return found


NAMED = 5


def _refuse(path: str, found: list[FioJob]) -> None:
    """Refuses jobs that would be others than fio's: RequestError that names the first few obstacles."""
    named = [(job.name, *text.partition(": ")[::2]) for job in found for text in job.unsupported]
    if not named:
        return
    (section, setting, why), rest = named[0], named[1:]
    more = [f"[{name}] {other}" for name, other, _ in rest[: NAMED - 1]]
    if more:
        left = len(rest) - len(more)
        why += f"; nor {', '.join(more)}" + (f" and {left} more" if left else "")
    raise RequestError(f"{path} [{section}] {setting}", f"isn't supported: {why}", "--fio-lenient to run without")


OPS = {
    "read": ("read", False),
    "write": ("write", False),
    "randread": ("randread", False),
    "randwrite": ("randwrite", False),
    "rw": ("read", True),
    "readwrite": ("read", True),
    "randrw": ("randread", True),
}
# In a mixed job either direction's rate may be missed by so much.
RATES_OFF_MOST = 0.02
# Of fadvise_hint: what the kernel is told.
HINTS = {"1": "auto", "0": "none", "random": "random", "sequential": "sequential"}
SYNC_ENGINES = {
    "psync": "inline",
    "sync": "inline",
    "pvsync": "inline",
    "pvsync2": "inline",
    "vsync": "inline",
    "mmap": "map",
}
ASYNC_ENGINES = {"io_uring": "uring", "libaio": "uring", "posixaio": "pread"}
# Other names of fio's for an engine.
ENGINE_ALIASES = {"aio": "libaio", "linuxaio": "libaio"}
MEMORY = {"malloc": "small", "shm": "small", "mmap": "small", "shmhuge": "hugetlb", "mmaphuge": "hugetlb"}
THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def default_memory() -> str:
    """The pages of fio's buffers without `mem`, which is malloc's: huge only where the kernel gives all large memory such."""
    try:
        return "thp" if "[always]" in THP.read_text() else "small"
    except OSError:
        return "small"


def _nearest_op(word: str) -> str:
    """Returns the operation to suggest for one that isn't known: what a trim changes is written."""
    if "trim" in word:
        return "randwrite" if word.startswith("rand") else "write"
    return next(iter(difflib.get_close_matches(word.lower(), OPS, 1)), "randread")


class _Reader(Checks):
    """Takes one section's settings apart; what nobody takes is without effect, or unsupported."""

    def job(self) -> FioJob:
        engine, threads = self.left.pop("ioengine", "psync"), self.number("numjobs", 1)
        engine = ENGINE_ALIASES.get(engine, engine)
        self.fields.update(workers=threads)
        lists.written(self, threads)
        if self.left.get("read_iolog"):
            lists.replayed(self, frozenset(DONE))
            self.engine(engine)
        else:
            self.pattern()
            self.engine(engine)
            self.data(engine, threads)
            self.zones()
            self.holes()
            self.time()
            self.pace(threads)
            self.pauses()
        delay = self.delay()
        self.cache()
        self.placement()
        if "read_iolog" not in self.fields:
            self.verify()
        self.sides(threads)
        ends = self.endings(threads)
        waits = self.waits()
        group = self.group(waits)
        for key, value in self.left.items():
            self.remaining(key, value)
        left, notes = tuple(self.unsupported), tuple(self.notes)
        return FioJob(self.name, self.fields, left, notes, waits, delay, group=group, ends=ends)

    def delay(self) -> float:
        text = self.left.get("startdelay", "0")
        if "-" not in text:
            return self.seconds("startdelay") or 0.0
        self.leave_out("startdelay", self.left.pop("startdelay"), "a fixed delay is supported, a range isn't")
        return 0.0

    def remaining(self, key: str, value: str) -> None:
        """A key that makes no field: without effect, asking for what is always the case here, or left out."""
        if key in REPORTED and value != "0":
            self.notes.append(f"{key}={value} has no effect: {REPORTED[key]}")
        elif key in REFUSED and value not in HARMLESS[key] and not (key in OF_WRITES and self.only_reads()):
            self.leave_out(key, value, REFUSED[key])
        elif not any(key in table for table in (DONE, HOLDS, REPORTED, REFUSED)):
            self.leave_out(key, value, "a key that Forebay doesn't know")

    def only_reads(self) -> bool:
        return not self.is_write() and "read_pct" not in self.fields

    def waits(self) -> bool:
        """Returns whether it starts once the sections above have ended."""
        waits, awaited = self.flag("stonewall", False), self.left.pop("wait_for", None)
        if awaited is None or waits:
            return waits
        still = [job.name for job in running(self.before)]
        if awaited not in [job.name for job in self.before]:
            self.leave_out("wait_for", awaited, "no section above has this name")
        elif awaited in still and len(still) > 1:
            self.leave_out("wait_for", awaited, "others run at the same time, and may outlast it")
        return still == [awaited]

    def group(self, waits: bool) -> int:
        """fio's number of the reporting group, which begins with `new_group` or `stonewall`."""
        begins = self.flag("new_group", False) or waits
        self.before_group = (self.before[-1].group if self.before else 0) + (begins and bool(self.before))
        return self.before_group

    # What moves.

    def pattern(self) -> None:
        text = self.left.pop("rw", "read")
        word, colon, modifier = text.partition(":")
        if word not in OPS:
            said = self.not_a(f"is not one of {', '.join(OPS)}", "rw", text, _nearest_op(word))
            raise self.wrong("rw", text, *said)
        op, mixed = OPS[word]
        self.fields["op"] = op
        reads = self.number("rwmixread", 50)
        writes = self.number("rwmixwrite", 100 - min(reads, 100))
        if max(reads, writes) > 100:
            raise self.wrong("rwmixread", str(max(reads, writes)), "is above 100", "rwmixread=70")
        if mixed:
            self.fields["read_pct"] = 100 - writes
        if colon:
            self.modifier(word, modifier)
        self.block_sizes(mixed)
        self.random()

    def engine(self, engine: str) -> None:
        depth = self.number("iodepth", 1)
        if engine in ASYNC_ENGINES:
            self.fields.update(engine=ASYNC_ENGINES[engine], depth=depth)
            if engine == "libaio":
                self.notes.append("ioengine=libaio runs through io_uring")
            elif engine == "posixaio":
                self.notes.append(
                    "ioengine=posixaio runs through a pool of threads that call pread and pwrite"
                )
            return
        if engine in NOTHING:
            self.fields["depth"] = depth
            return
        if engine == "libblkio" and self.left.get("libblkio_driver") == "io_uring":
            self.left.pop("libblkio_driver")
            self.left["filename"] = self.left.pop("libblkio_path", "").replace(":", "\\:")
            self.fields.update(engine="uring", depth=depth)
            return
        self.fields["depth"] = 1
        if depth > 1:
            self.notes.append(
                f"iodepth={depth} has no effect with ioengine={engine}: one I/O per job at a time, as in fio"
            )
        if engine in SYNC_ENGINES:
            self.fields["engine"] = SYNC_ENGINES[engine]
            if engine == "mmap" and not self.only_reads():
                raise self.wrong("ioengine", engine, "mappings are only read here, and the job writes", "ioengine=psync")
        elif engine == "libcufile":
            self.cufile()
        elif engine in ELSEWHERE:
            raise self.wrong("ioengine", engine, *ELSEWHERE[engine])
        else:
            known = (*ASYNC_ENGINES, *SYNC_ENGINES, "null", "libcufile")
            near = next(iter(difflib.get_close_matches(engine.lower(), known, 1)), "io_uring")
            raise self.wrong("ioengine", engine, *self.not_a(f"is not one of {', '.join(known)}", "ioengine", engine, near))

    def cufile(self) -> None:
        mode = self.left.pop("cuda_io", "cufile")
        if mode not in ("cufile", "posix"):
            raise self.wrong("cuda_io", mode, "is neither cufile nor posix", "cuda_io=cufile")
        self.fields["path"] = "gds" if mode == "cufile" else "bounce"
        gpus = self.left.pop("gpu_dev_ids", "")
        if gpus and not re.fullmatch(r"[0-9]{1,4}(:[0-9]{1,4})*", gpus):
            raise self.wrong("gpu_dev_ids", gpus, "is not a list of GPUs", "gpu_dev_ids=0:1")
        if gpus:
            self.fields["gpus"] = [int(g) for g in gpus.split(":")]

    # For how long, how fast.

    def time(self) -> None:
        runtime, time_based = self.seconds("runtime"), self.flag("time_based", False)
        loops = self.number("loops", 1)
        if time_based and not runtime:
            self.notes.append("time_based has no effect without runtime, as in fio")
            time_based = False
        if runtime:
            self.fields["duration_s"] = runtime
        if not time_based:
            self.fields["passes"] = max(loops, 1)
        self.limits(time_based, loops)
        self.holes_end(time_based, loops)
        self.more_than_once(1 if time_based else loops)
        self.fields["warmup_s"] = self.seconds("ramp_time") or 0.0

    def pace(self, threads: int) -> None:
        """fio's rates are per job, and of each direction; Forebay's are of all workers together."""
        for key, name, unit in (("rate", "rate_gib_s", 1 / GIB), ("rate_iops", "rate_iops", 1.0)):
            if key in self.left:
                value = self.rate(key, self.left.pop(key))
                if value:
                    self.fields[name] = value * threads * unit
        if {"rate_gib_s", "rate_iops"} & self.fields.keys():
            # What a thread of its own would be for: no completion holds up what is due.
            if self.left.get("io_submit_mode") == "offload":
                self.left.pop("io_submit_mode")
            process = self.left.pop("rate_process", "linear")
            if process == "poisson":
                self.fields["arrivals"] = "poisson"
            elif process != "linear":
                self.leave_out("rate_process", process, "I/Os start evenly spaced, or by a Poisson process")
            self.notes.append(
                "the rate is an open loop: I/Os start on schedule and latency counts from the schedule"
            )

    def rate(self, key: str, text: str) -> int:
        """`10m`, of reads and of writes each; `10m,5m`; `,5m`. 0 where nothing is paced."""
        parts = [p.strip() for p in text.split(",")]
        if len(parts) > 3:
            raise self.wrong(key, text, "has more than three parts", f"{key}=10m")
        reads, writes = (self.size(key, p) if p else 0 for p in (parts[0], parts[min(1, len(parts) - 1)]))
        if "read_pct" not in self.fields:
            return writes if self.fields["op"].endswith("write") else reads
        if not reads and not writes:
            return 0
        if not reads or not writes:
            self.leave_out(key, text, "sets a rate for only one of reads and writes")
            return 0
        # In fio a rate is kept by each direction, whatever the mix would be: here by its share of the I/Os, in whole percentages.
        each, other = self.mean_sizes() if key == "rate" else (1.0, 1.0)
        share = reads / each / (reads / each + writes / other)
        pct = round(100 * share)
        kept = pct * each / (pct * each + (100 - pct) * other) * (reads + writes)
        off = max(abs(kept / reads - 1), abs((reads + writes - kept) / writes - 1))
        if off > RATES_OFF_MOST or not 0 < pct < 100:
            missed = f"the next whole percentage misses a rate by {100 * off:.0f} %"
            why = f"reads would be {100 * share:.2f} % of the I/Os, and {missed}"
            self.leave_out(key, text, why)
            return 0
        if off > 1e-9:
            self.notes.append(f"{key}={text}: {pct} % of the I/Os are reads, so that either rate is kept to {100 * off:.1f} %")
        self.fields["read_pct"] = pct
        return reads + writes

    def mean_sizes(self) -> tuple[float, float]:
        """Mean bytes of a read and of a write."""
        if "io_mix" not in self.fields:
            return 1.0, 1.0
        sides = self.fields["io_mix"].split("/")
        means = []
        for side in (sides[0], sides[-1]):
            parts = [part.partition("=") for part in side.split(",")]
            shares = [float(share) for _, _, share in parts]
            means.append(sum(parse_bytes(size) * share for (size, _, _), share in zip(parts, shares, strict=True)) / sum(shares))
        return means[0], means[1]

    def cache(self) -> None:
        direct = self.flag("direct", False)
        if "buffered" in self.left:
            direct = not self.flag("buffered", True)
        invalidate = self.flag("invalidate", True)
        self.fields["cache"] = "bypass" if direct else "drop" if invalidate else "allow"
        if self.fields.get("engine") == "map" and direct:
            self.fields["cache"] = "drop" if invalidate else "allow"
            self.notes.append("direct=1 has no effect with ioengine=mmap")
        hint = self.left.pop("fadvise_hint", "1")
        if hint not in HINTS:
            raise self.wrong("fadvise_hint", hint, "is not one of 0, 1, random, sequential", "fadvise_hint=1")
        if HINTS[hint] != "auto":
            self.fields["hint"] = HINTS[hint]
        each, end = self.left.pop("sync", "0"), False
        if each not in ("0", "none", "1", "sync", "dsync"):
            raise self.wrong("sync", each, "is not one of none, sync, dsync", "sync=dsync")
        durable = each not in ("0", "none")
        for key in ("fsync", "fdatasync"):
            every = self.number(key, 0)
            durable |= every == 1
            if every > 1:
                self.leave_out(key, str(every), "writes are synced one by one, at the end, or never")
        for key in ("end_fsync", "fsync_on_close"):
            end |= self.flag(key, False)
        if durable or end:
            self.fields["sync"] = "each" if durable else "end"

    def placement(self) -> None:
        if "cpus_allowed" in self.left:
            cpus = self.left.pop("cpus_allowed")
            if not re.fullmatch(r"[0-9]{1,6}([-,:][0-9]{1,6})*", cpus):
                raise self.wrong("cpus_allowed", cpus, "is not a list of CPUs", "cpus_allowed=0-3,8")
            self.fields["cpus"] = cpus.replace(":", ",")
            policy = self.left.pop("cpus_allowed_policy", "")
            if policy not in ("", "split"):
                self.leave_out("cpus_allowed_policy", policy, "workers are pinned to the CPUs in turn, as with split")
            elif not policy and not cpus.isdigit():
                self.notes.append(
                    "each worker keeps to one of cpus_allowed, in turn; in fio each may use all of them "
                    "(cpus_allowed_policy=split says so)"
                )
        self.nodes()
        if "mem" in self.left:
            kind = self.left.pop("mem").split(":")[0]
            if kind not in MEMORY:
                raise self.wrong("mem", kind, f"is not one of {', '.join(MEMORY)}", "mem=mmaphuge")
            self.fields["pages"] = MEMORY[kind]
        elif "path" not in self.fields:
            self.fields["pages"] = default_memory()
        self.option("sqthread_poll", "sqpoll")
        self.option("hipri", "iopoll")
        self.option("refill_buffers", "refill")
        if self.flag("atomic", False) and (self.is_write() or "read_pct" in self.fields):
            self.fields["atomic"] = True

    def option(self, key: str, name: str) -> None:
        if self.flag(key, False):
            self.fields[name] = True
