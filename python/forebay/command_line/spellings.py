"""Flags of fio, gdsio and elbencho: accepted if they mean the same as ours, otherwise answered with ours.

They are left out of --help and of the manual pages, which have one name for each thing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from forebay.errors import RequestError

# Our flag → other spellings of it.
SAME: dict[str, tuple[str, ...]] = {
    "io-size": ("--bs", "--blocksize", "--block", "-b"),
    "depth": ("--iodepth", "--qd"),
    "workers": ("--numjobs", "--threads", "-t"),
    "duration": ("--runtime", "--timelimit"),
    "op": ("--rw", "--readwrite"),
    "engine": ("--ioengine",),
    "file-size": ("--size", "--filesize", "-s"),
    "files": ("--nrfiles",),
    "start": ("--offset",),
    "align": ("--blockalign", "--ba"),
    "read-pct": ("--rwmixread", "--rwmixpct"),
    "warmup": ("--ramp_time", "--ramp-time"),
    "passes": ("--loops",),
    "seed": ("--randseed",),
    "distribution": ("--random_distribution",),
    "rate-iops": ("--rate_iops",),
    "cpus": ("--cpus_allowed",),
    "gpu": ("--gpuids",),
}

_LEAVE = "leave it out: "
# A flag of theirs that has no counterpart of the same meaning → what to type.
ANSWERS: dict[str, str] = {
    "--filename": "the file as SOURCE, without a flag: forebay bench FILE",
    "--directory": "the folder as SOURCE, without a flag: forebay bench DIR",
    "--name": "--label TEXT",
    "--output": "-o FILE for the record, --json for stdout",
    "--output-format": "--json; forebay export RUNS --csv for a table",
    "--minimal": "--json; forebay export RUNS --csv for a table",
    "--csvfile": "-o FILE.jsonl, then forebay export FILE.jsonl --csv",
    "--resfile": "-o FILE.jsonl, then forebay export FILE.jsonl --csv",
    "--jsonfile": "-o FILE.jsonl",
    "--status-interval": "--live, or --metrics 127.0.0.1:9400",
    "--time_based": _LEAVE + "--duration ends a run by the clock, --passes once the data was covered",
    "--group_reporting": _LEAVE + "one record has all workers, together and one by one",
    "--thread": _LEAVE + "workers are threads",
    "--norandommap": _LEAVE + "blocks may repeat unless --no-repeat is given",
    "--randrepeat": "--seed N",
    "--invalidate": "--cache drop, or --cache allow",
    "--fsync": "--sync each, if it is 1",
    "--fdatasync": "--sync each, if it is 1",
    "--end_fsync": "--sync end",
    "--bsrange": "--io-size MIN:MAX:STEP",
    "--bssplit": "--io-mix 4k=60,64k=40",
    "--thinktime": "--think SECONDS",
    "--rate_process": "--arrivals poisson",
    "--io_size": "--limit-bytes SIZE, of each worker",
    "--number_ios": "--limit-ios N, of each worker",
    "--offset_increment": "--clones --start-step SIZE",
    "--zonesize": "--skip SIZE --skip-every SIZE",
    "--zoneskip": "--skip SIZE --skip-every SIZE",
    "--verify_only": "--op read --verify-fio KIND",
    "--verify_pattern": "--verify-fio meta,pattern=HEX",
    "--do_verify": _LEAVE + "a write with --verify writes content, a read with --verify checks it",
    "--stonewall": "a job file with sections: --fio FILE",
    "--rwmixwrite": "--read-pct, with 100 minus that",
    "--numa_cpu_nodes": "--numa NODE",
    "--zones": "--numa NODE",
    "--read": "--op read",
    "--write": "--op write --create",
    "--rand": "--op randread, or --op randwrite",
    "--iterations": "--repeat N",
    "--hosts": "mpirun -n N forebay bench '/data/{host}'",
    "--mkdirs": "forebay files DIR --phases mkdir",
    "--stat": "forebay files DIR",
    "--delfiles": "forebay files DIR",
    "--deldirs": "forebay files DIR",
    **dict.fromkeys(
        ("--lat", "--latpercent", "--latpercent9s", "--lathisto"), _LEAVE + "every record has latencies and their percentiles"
    ),
    "--cpu": _LEAVE + "CPU is always measured; --cpus LIST places the workers",
    "--allelapsed": _LEAVE + "the record has each worker's result",
    "--infloop": _LEAVE + "data is covered again until --duration ends",
    "--nolive": _LEAVE + "only --live shows a live view",
    "--no0usecerr": _LEAVE + "short runs aren't refused",
    "--liveint": "--interval MS",
    **dict.fromkeys(("--livecsv", "--livejson"), "-o FILE, which holds the time series; --metrics 127.0.0.1:9400 meanwhile"),
    "--gds": "--path gds",
    "--mmap": "--engine map",
    "--dropcache": "--cache drop",
    "--cores": "--cpus LIST",
    "--limitread": "--rate GIB_S, of all workers together",
    "--limitwrite": "--rate GIB_S, of all workers together",
    "--randamount": "--limit-bytes SIZE, of each worker",
    "--norandalign": "--align SIZE",
    "--dirs": "forebay files DIR --directories N",
    "--configfile": "forebay sweep FILE.toml",
    "--hostsfile": "mpirun --hostfile FILE forebay bench '/data/{host}'",
    "--rwmixthr": "a job file with sections: --fio FILE",
    "-r": "--op read",
    "-i": "--io-size (gdsio's -i), or --repeat (elbencho's)",
    "-w": "--workers (gdsio's -w), or --op write (elbencho's)",
    "-d": "--gpu (gdsio's -d), or forebay files DIR (elbencho's)",
    "-n": "--numa (gdsio's -n), or forebay files --directories (elbencho's)",
    "-N": "--files",
    **{
        letter: f"{ours}; forebay gdsio takes all of gdsio's flags"
        for letter, ours in (
            ("-D", "the folder as SOURCE"), ("-f", "the file as SOURCE"), ("-x", "--path"), ("-I", "--op"), ("-T", "--duration"),
            ("-k", "--seed"), ("-V", "--verify"), ("-R", "nothing: buffers hold random data"), ("-F", "--refill"),
            ("-a", "--align"), ("-B", "--cufile-batch"), ("-M", "--read-pct"), ("-m", "--path"), ("-O", "--buffered"),
        )
    },
}  # fmt: skip

# Flags of ours without a value, which theirs have → what to type.
SWITCHES = {
    "--direct": "--direct (fio's 1), or --buffered (fio's 0)",
    "--verify": "--verify (Forebay's content), or --verify-fio crc32c (what fio wrote with that)",
}
# Values of theirs: our flag → theirs → ours, where both mean the same.
VALUES: dict[str, dict[str, str]] = {
    "--engine": {
        "io_uring": "uring", "posixaio": "pread", "mmap": "map",
        **dict.fromkeys(("psync", "sync", "pvsync", "pvsync2"), "inline"),
    },
}  # fmt: skip
# And where they don't: what to type.
VALUE_ANSWERS: dict[str, dict[str, str]] = {
    "--op": {
        "randrw": "--op randread --read-pct 50",
        "rw": "--op read --read-pct 50",
        "readwrite": "--op read --read-pct 50",
    },
    "--engine": {
        "libaio": "--engine uring, which keeps as many I/Os in flight",
        "null": "nil: as SOURCE",
        "libcufile": "--path gds",
    },
}


def value_of(flag: str, text: str) -> str:
    """`text` in our words. RequestError where it is somebody else's and means something that has another flag."""
    answer = VALUE_ANSWERS.get(flag, {}).get(text)
    if answer is not None:
        raise RequestError(f"{flag} {text}", "is fio's name", answer)
    return VALUES.get(flag, {}).get(text, text)


def answer_to(flag: str) -> str | None:
    """Returns the flag to type instead of one of another tool; None for one that nobody has."""
    if flag in ANSWERS or not flag.startswith("--"):
        return ANSWERS.get(flag)
    if flag.startswith("--s3"):
        return "a file, a device, or a remote namespace: object stores are out of scope"
    # Needed by nobody whose flags are right, and `forebay --help` is to start at once.
    from forebay.fio import keys

    key = keys.ALIASES.get(flag[2:], flag[2:])
    becomes = keys.DONE.get(key)
    if becomes is not None:
        return becomes if becomes.startswith("--") else "a job file of fio's, which may have it: --fio FILE"
    why = keys.HOLDS.get(key) or keys.REPORTED.get(key) or keys.REFUSED.get(key)
    return _LEAVE + why if why else None


class Spelled(click.Option):
    """An option that the command line also understands by other names, which --help doesn't list.

    `reads`: what a flag and its text mean: two names that mean different things contradict each other. `words`: all that its
    value may be, where that is a short list.
    """

    def __init__(
        self,
        *args: Any,
        spellings: tuple[str, ...] = (),
        words: tuple[str, ...] = (),
        reads: Callable[[str, str], Any] | None = None,
        **attributes: Any,
    ) -> None:
        super().__init__(*args, **attributes)
        self.spellings = spellings
        self.words = words
        self.reads = reads

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        shown = self.opts
        typed: dict[str, str] = {}
        try:
            for name in (*shown, *self.spellings):
                self.opts = [name]
                super().add_to_parser(parser, ctx)
                if self.spellings and not self.multiple:
                    self._listen(parser, shown[0], name, typed)
        finally:
            self.opts = shown

    def _listen(self, parser: Any, shown: str, name: str, typed: dict[str, str]) -> None:
        """Notes in `typed` what comes by this name."""
        option = parser._long_opt.get(name) or parser._short_opt[name]
        process = option.process

        def noted(value: Any, state: Any) -> None:
            for other, text in typed.items():
                if other != name and not self._same(shown, text, value):
                    asked = f"{other} {text} {name} {value}"
                    raise RequestError(asked, "are two names of one flag, with different values", f"{shown} {text}")
            typed[name] = value
            process(value, state)

        option.process = noted

    def _same(self, shown: str, one: str, other: str) -> bool:
        if one == other or self.reads is None:
            return one == other
        try:
            return bool(self.reads(shown, one) == self.reads(shown, other))
        except RequestError:
            return False
