"""The job's fields as flags, settings and TOML keys: one table serves every verb.

A field is spelled the same everywhere: `--io-size 128k` on the command line, `io-size=128k` in
`compare --a`, `io-size = ["64k", "128k"]` in a sweep. The engine's own name (`io_bytes`) is understood too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from forebay import run
from forebay.errors import RequestError
from forebay.spellings import SAME, Spelled, value_of
from forebay.units import format_bytes, parse_bytes, parse_percent, parse_seconds


def _integer(text: Any, what: str, most: int = (1 << 32) - 1) -> int:
    try:
        value = int(str(text), 10 if re.fullmatch(r"[+-]?0[0-9_]+", str(text)) else 0)
    except ValueError:
        raise RequestError(f"{what} {text}", "is not a whole number", f"{what} 4") from None
    if not 0 <= value <= most:
        raise RequestError(f"{what} {text}", f"must be a whole number from 0 to {most}", f"{what} 4")
    return value


def _workers(text: Any, what: str) -> int | str:
    return "auto" if text == "auto" else _integer(text, what)


def _signed_bytes(text: Any, what: str) -> int:
    below = isinstance(text, str) and text.startswith("-")
    return -parse_bytes(text[1:], what) if below else parse_bytes(text, what)


def _whole(text: Any, what: str) -> int:
    return _integer(text, what, (1 << 63) - 1)


def _seed(text: Any, what: str) -> int:
    return _integer(text, what, (1 << 64) - 1)


def _share(text: Any, what: str) -> int:
    value = parse_percent(text, what)
    if not 0 <= value <= 100 or value != int(value):
        raise RequestError(f"{what} {text}", "must be a whole number from 0 to 100 per cent", f"{what} 70")
    return int(value)


def _number(text: Any, what: str) -> float:
    try:
        value = float(text)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not math.isfinite(value):
        raise RequestError(f"{what} {text}", "is not a number", f"{what} 1.5")
    return value


def _flag(text: Any, what: str) -> bool:
    if isinstance(text, bool):
        return text
    if str(text).lower() in ("1", "yes", "true", "on"):
        return True
    if str(text).lower() in ("0", "no", "false", "off"):
        return False
    raise RequestError(f"{what} {text}", "is neither yes nor no", f"{what} yes")


def _choice(*allowed: str) -> Callable[[Any, str], str]:
    def parse(text: Any, what: str) -> str:
        chosen = value_of(what, str(text))
        if chosen not in allowed:
            raise RequestError(f"{what} {text}", f"is none of {', '.join(allowed)}", f"{what} {allowed[0]}")
        return chosen

    parse.allowed = allowed  # type: ignore[attr-defined]
    return parse


def _text(text: Any, what: str) -> str:
    return str(text)


def _list(text: Any, what: str) -> list[str]:
    return [str(t) for t in text] if isinstance(text, (list, tuple)) else [t for t in str(text).split(",") if t]


def _one_or_more(text: Any, what: str) -> list[str]:
    """Words that may hold commas."""
    return [str(t) for t in text] if isinstance(text, (list, tuple)) else [str(text)]


def _integers(text: Any, what: str) -> list[int]:
    return [_integer(t, what) for t in _list(text, what)]


@dataclass(frozen=True)
class Field:
    """One field of the job: flag name, JobSpec key, parser, help.

    `tells`: runs that differ in it are different runs, which a report never takes for repeats of one.
    """

    flag: str
    key: str
    parse: Callable[[Any, str], Any]
    help: str
    metavar: str | None = None
    is_flag: bool = False
    multiple: bool = False
    tells: bool = True

    @property
    def values(self) -> tuple[str, ...]:
        """All that it may be, where that is a short list."""
        return paths() if self.parse is _path else getattr(self.parse, "allowed", ())

    @property
    def spellings(self) -> tuple[str, ...]:
        """What fio, gdsio and elbencho call it."""
        return SAME.get(self.flag, ())


# JobSpec::measured_s: where neither a duration nor passes were given.
DURATION_DEFAULT_S = 10.0
# JobSpec::ends_by_count: fields that end a run by what it moved, not by time.
COUNTED = frozenset(("passes", "limit_bytes", "limit_ios"))


def paths() -> tuple[str, ...]:
    """What `--path` takes: the engine's data paths, and `auto`."""
    return (*run.paths(), "auto")


def _path(text: Any, what: str) -> str:
    return _choice(*paths())(text, what)


FIELDS: tuple[Field, ...] = (
    Field("path", "path", _path, "How bytes reach the destination: {paths} or auto.", "PATH"),
    Field("op", "op", _choice("read", "write", "randread", "randwrite"), "read, write, randread or randwrite.", "OP"),
    Field("read-pct", "read_pct", _share, "Percentage of reads in a mixed job.", "PCT"),
    Field("io-size", "io_bytes", _text, "Block size: bytes per I/O, e.g. 128k, or a range MIN:MAX[:STEP].", "SIZE"),
    Field("io-mix", "io_mix", _text, "Block sizes with their percentages, e.g. 4k=60,64k=40, or READS/WRITES. Instead of --io-size.", "MIX"),
    Field("file-size", "file_bytes", parse_bytes, "Size of each file that is created, and the most that is read of each. Default: as found, or 1g if created.", "SIZE"),
    Field("create", "create", _flag, "Create missing files, also for a read. A write always creates them.", is_flag=True, tells=False),
    Field("files", "files", _integer, "Number of files in a directory. Default: all that are found, or one per worker if created.", "N"),
    Field("file-name", "file_name", _text, "Name of file N in a directory; %d stands for N.", "NAME", tells=False),
    Field("start", "start_bytes", parse_bytes, "Offset of the first byte to use.", "SIZE"),
    Field("start-step", "start_step_bytes", parse_bytes, "With --clones, worker N starts N times SIZE after --start.", "SIZE"),
    Field("skip", "skip_bytes", _signed_bytes, "Bytes to skip after each sequential I/O; if negative, to go back from its end.", "SIZE"),
    Field("skip-every", "skip_every_bytes", parse_bytes, "Skip after this many bytes instead of after each I/O.", "SIZE"),
    Field("align", "align_bytes", parse_bytes, "Alignment of random offsets. Default: the I/O size.", "SIZE"),
    Field("workers", "workers", _workers, "Threads, each with its own queue; auto picks the fewest that reach full speed.", "N"),
    Field("clones", "clones", _flag, "Each worker covers all of the data instead of a part of it.", is_flag=True),
    Field("depth", "depth", _integer, "I/Os in flight per worker.", "N"),
    Field("batch", "batch", _integer, "I/Os per request, like the rows of a batch: they start together, and the request ends with the last. Without --depth two requests are in flight.", "N"),
    Field("duration", "duration_s", parse_seconds, "Length of the measurement. Default: 10, or as long as --passes or a limit takes.", "SECONDS"),
    Field("passes", "passes", _integer, "Stop after N passes over the data.", "N"),
    Field("limit-bytes", "limit_bytes", parse_bytes, "Stop once each worker has transferred SIZE bytes.", "SIZE"),
    Field("limit-ios", "limit_ios", _whole, "Stop once each worker has completed N I/Os.", "N"),
    Field("warmup", "warmup_s", parse_seconds, "Warm-up time before measuring. Default: a tenth of the duration, at most 2.", "SECONDS"),
    Field("distribution", "distribution", _text, "Distribution of random offsets: uniform, zipf:THETA, zoned:IOS/DATA,... (percentages), list:BLOCK,... or list+:BLOCK,...", "NAME"),
    Field("no-repeat", "no_repeat", _flag, "Random offsets that never repeat a block within a pass.", is_flag=True),
    Field("seed", "seed", _seed, "Seed for offsets and content.", "N", tells=False),
    Field("repeat", "repeat", _integer, "Run N times; the record holds each run and their spread.", "N", tells=False),
    Field("until-ci", "until_ci_pct", parse_percent, "Repeat until the 95 % confidence interval is within PCT of the mean.", "PCT", tells=False),
    Field("repeat-max", "repeat_max", _integer, "Most repeats for --until-ci.", "N", tells=False),
    Field("until-steady", "until_steady", _flag, "End each run once throughput is steady.", is_flag=True),
    Field("rate", "rate_gib_s", _number, "Open loop at this many GiB/s; latency counts from the schedule.", "GIB_S"),
    Field("rate-iops", "rate_iops", _number, "Open loop at this many I/Os per second.", "IOPS"),
    Field("arrivals", "arrivals", _choice("even", "poisson"), "Arrival process of an open loop: even (fixed intervals) or poisson.", "LAW"),
    Field("think", "think_s", parse_seconds, "Each worker pauses for this long, after its I/Os in flight have completed.", "SECONDS"),
    Field("think-ios", "think_ios", _integer, "I/Os between two pauses. Default: 1.", "N"),
    Field("cpus", "cpus", _text, "CPUs to pin workers to, in turn, e.g. 0-3,8.", "LIST"),
    Field("numa", "numa", _integer, "NUMA node for threads and memory.", "NODE"),
    Field("cache", "cache", _choice("auto", "bypass", "drop", "allow", "warm"), "Page cache: bypass (O_DIRECT), drop, allow, warm, or auto (depends on what is cached).", "POLICY"),
    Field("engine", "engine", _choice("auto", "uring", "pread", "inline", "map"), "I/O engine: auto, uring (io_uring), pread, inline or map (mmap).", "NAME"),
    Field("pages", "pages", _choice("auto", "hugetlb", "thp", "small"), "Page size of the buffers: auto, hugetlb, thp or small.", "KIND"),
    Field("sqpoll", "sqpoll", _flag, "Use io_uring with a kernel thread that polls for submissions.", is_flag=True),
    Field("iopoll", "iopoll", _flag, "Use io_uring and poll the device for completions.", is_flag=True),
    Field("sync", "sync", _choice("none", "end", "each"), "Durability of writes: none, end (fdatasync) or each (DSYNC).", "WHEN"),
    Field("verify", "verify", _flag, "Check every byte against seeded content.", is_flag=True),
    Field("refill", "refill", _flag, "New content for each write.", is_flag=True),
    Field("timeout", "timeout_s", parse_seconds, "Fail the run if an I/O takes longer than this.", "SECONDS", tells=False),
    Field("overwrite", "overwrite", _list, "Allow overwriting this file, which Forebay didn't create.", "FILE", multiple=True, tells=False),
    Field("overwrite-device", "overwrite_devices", _list, "Allow overwriting this block device.", "DEVICE", multiple=True, tells=False),
    Field("gpu", "gpus", _integers, "GPUs to feed, e.g. 0,1.", "LIST"),
    Field("pair", "pairs", _one_or_more, "A GPU and the source that feeds it, e.g. 0=/dev/nvme0n1; replaces SOURCE.", "GPU=SOURCE", multiple=True),
    Field("require-direct", "require_direct", _flag, "Treat anything but direct DMA as an error.", is_flag=True, tells=False),
    Field("require-model", "require_model", _flag, "Exit with 1 if a model in real time deviates by more than 5 % from its prediction.", is_flag=True, tells=False),
    Field("allow-compat", "allow_compat", _flag, "Allow cuFile's compatibility mode.", is_flag=True, tells=False),
    Field("pin-limit", "pin_limit_bytes", parse_bytes, "Most page cache that mapped keeps registered. Default: half of the free memory.", "SIZE"),
    Field("cufile", "cufile", _choice("sync", "stream", "batch", "batch-stream"), "cuFile's interface: sync, stream, batch or batch-stream.", "MODE"),
    Field("cufile-batch", "cufile_batch", _integer, "I/Os per cuFile batch. Default: half of --depth, so that two batches are in flight.", "N"),
    Field("cufile-unregistered", "cufile_unregistered", _flag, "Don't register buffers with cuFile.", is_flag=True),
    Field("power", "power", _list, "Power meter: rapl, nvml, ipmi or redfish:HOST.", "METER", multiple=True, tells=False),
    Field("interval", "interval_ms", _integer, "Milliseconds between points of the time series.", "MS", tells=False),
    Field("faults", "faults", _text, "Inject faults, e.g. seed=1,error=0.01,short=0.01,delay_us=100.", "SPEC"),
    Field("label", "label", _text, "Free text to store in the record.", "TEXT"),
)
BY_NAME = {name: f for f in FIELDS for name in {f.flag, f.flag.replace("-", "_"), f.key}}
BY_NAME |= {name[2:]: f for f in FIELDS for name in f.spellings if name.startswith("--")}


def settle(job: dict[str, Any], name: str, value: Any) -> None:
    """Sets one field of `job` from its flag, setting or TOML spelling. Raises RequestError naming it."""
    if name in ("source", "sources"):
        job["sources"] = list(value) if isinstance(value, (list, tuple)) else [str(value)]
        return
    field = BY_NAME.get(name)
    if field is None:
        raise RequestError(f"field '{name}'", "is not a field of a job", f"one of {', '.join(f.flag for f in FIELDS)}")
    parsed = field.parse(value, f"--{field.flag}")
    if field.key != "io_bytes":
        job[field.key] = parsed
        return
    parts = [parse_bytes(p, "--io-size") for p in parsed.split(":")]
    if len(parts) > 3:
        raise RequestError(f"--io-size {parsed}", "has more than three parts", "--io-size MIN:MAX:STEP")
    for key, part in zip(("io_bytes", "io_bytes_max", "io_bytes_step"), parts, strict=False):
        job[key] = part


def parse_settings(text: str) -> dict[str, Any]:
    """`path=bounce depth=8` → job fields."""
    job: dict[str, Any] = {}
    for word in text.split():
        name, equals, value = word.partition("=")
        if not equals:
            raise RequestError(f"setting '{word}'", "has no value", "name=value, as path=bounce depth=8")
        settle(job, name.lstrip("-"), value)
    return job


def job_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds every field of the job to a click command; its values arrive as `flags`-ready keyword arguments."""
    for f in reversed(FIELDS):
        name, text = f.flag.replace("-", "_"), f.help
        if "{paths}" in text:
            text = text.format(paths=", ".join(run.paths()))
        if f.is_flag:
            option = click.option(f"--{f.flag}", name, is_flag=True, default=None, help=text)
        else:
            option = click.option(
                f"--{f.flag}", name, default=None, multiple=f.multiple, metavar=f.metavar, help=text,
                cls=Spelled, spellings=f.spellings,
            )  # fmt: skip
        command = option(command)
    command = click.option("--direct/--buffered", "direct", default=None, help="--cache bypass, or --cache allow.")(command)
    return command


def job_from_flags(sources: tuple[str, ...] | list[str], values: dict[str, Any]) -> dict[str, Any]:
    """The job out of what click parsed; absent flags stay absent. Pops what it uses from `values`."""
    job: dict[str, Any] = {"sources": list(sources)}
    direct = values.pop("direct", None)
    if direct is not None:
        job["cache"] = "bypass" if direct else "allow"
    for f in FIELDS:
        value = values.pop(f.flag.replace("-", "_"), None)
        if value is not None and value != ():
            settle(job, f.flag, value)
    if direct is not None and job["cache"] != "auto" and (job["cache"] == "bypass") != direct:
        asked = f"{'--direct' if direct else '--buffered'} --cache {job['cache']}"
        raise RequestError(asked, "contradict each other", "one of them")
    return job


def spell(job: dict[str, Any]) -> list[str]:
    """The arguments that give `job` back: its sources, then a flag for each field that is set."""
    words = [str(s) for s in job.get("sources", ())]
    for f in FIELDS:
        value = job.get(f.key)
        if value is None or value is False or value == []:
            continue
        if f.is_flag:
            words.append(f"--{f.flag}")
        elif f.multiple:
            words += [word for v in value for word in (f"--{f.flag}", str(v))]
        else:
            words += [f"--{f.flag}", spelled(f, job)]
    return words


def spelled(field: Field, job: dict[str, Any]) -> str:
    """The value of one field of `job` as a user writes it: 65536 → `64k`."""
    value = job[field.key]
    if field.key == "io_bytes":
        sizes = [job.get(k) for k in ("io_bytes", "io_bytes_max", "io_bytes_step")]
        return ":".join(format_bytes(s) for s in sizes if s is not None)
    if field.key.endswith("_bytes"):
        return format_bytes(value)
    if isinstance(value, (list, tuple)):
        return ",".join(str(v) for v in value)
    return f"{value:.12g}" if isinstance(value, float) else str(value)
