"""`forebay demo`: all of it in about a minute, on real files that it makes and removes.

Each step is a command that the reader can type, shown before it runs; what is said afterwards comes out of the
document that the command prints with --json.
"""

from __future__ import annotations

import contextlib
import csv
import fcntl
import io
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import click

from forebay.bench.save import place
from forebay.errors import (
    BROKE,
    CHECK_FAILED,
    DONE,
    INTERRUPTED,
    CheckFailed,
    ForebayError,
    MachineError,
    RequestError,
    RunError,
)
from forebay.units import format_bytes, parse_bytes

MIB = 1 << 20
RESULTS = ("sweep.toml", "sweep.jsonl", "job.toml", "job")
# In a folder of data, as long as it is a demo's to remove.
MARK = ".forebay-demo"
FILES = 4
FILE_BYTES = 256 * MIB
FILE_BYTES_MIN = 16 * MIB
QUICK_BYTES, QUICK_S = 8 * MIB, 0.3
# The stripe's members, one file of their size together, and the sweep's files.
FILES_IN_ALL = 3 * FILES
SIZES = ("64k", "128k", "512k", "1m", "4m")
CHUNK = "512k"
# The paper's own method: size → workers with one request in flight each.
PAPER_WORKERS = {64: 32, 128: 32, 512: 24, 1024: 24, 4096: 24}
PAPER_DRIVE = "D7-PS1010"
MODEL = "model:d7-ps1010"


@click.command("demo", short_help="Show everything in a minute, on whatever hardware I have.")
@click.option(
    "--dir", "folder", default=".demo", metavar="DIR", help="Where to create the data files. Default: .demo"
)
@click.option("--out", metavar="DIR", help="Where records and report go. Default: .demo/DATE-TIME")
@click.option(
    "--seconds", metavar="S", type=click.FloatRange(0.05, 60), help="Measured time of each run. Default: 1."
)
@click.option(
    "--file-size", metavar="SIZE", help="Size of each data file. Default: 256m, less if space is short."
)
@click.option("--quick", is_flag=True, help="Only show that it works here: --seconds 0.3 --file-size 8m.")
@click.option("--keep", is_flag=True, help="Keep the data files.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(
    folder: str, out: str | None, seconds: float | None, file_size: str | None, quick: bool, keep: bool, as_json: bool
) -> int:
    """Show everything on this machine: what it can do, paths by block size, a stripe against one file, how many GPUs of
    a training job the disk can feed, a simulated drive next to a published table, and the report. Needs
    about 3 GiB of free disk space while it runs."""
    results = Path(out) if out else Path(".demo") / time.strftime("%Y%m%d-%H%M%S")
    size = parse_bytes(file_size, "--file-size") if file_size else QUICK_BYTES if quick else None
    tour = Tour(Path(folder), results, seconds or (QUICK_S if quick else 1.0), size, as_json)
    try:
        tour.run()
    finally:
        tour.remove(keep)
    if as_json:
        click.echo(json.dumps(tour.document(), indent=1))
    return tour.exit_code


class Tour:
    """The steps in order, what each showed, and what went wrong. A step that fails doesn't end the tour."""

    def __init__(
        self, folder: Path, results: Path, seconds: float, file_bytes: int | None = None, quiet: bool = False
    ) -> None:
        self.seconds, self.quiet = seconds, quiet
        self.began = time.monotonic()
        self.steps: list[dict[str, Any]] = []
        self.saved: list[Path] = []
        self.results = _make_folder(self._unused(results), "--out")
        parent = _make_folder(folder, "--dir")
        self.data, self._held = self._data_folder(parent)
        self.file_bytes = file_bytes or room_for(self.data)

    def _unused(self, results: Path) -> Path:
        """The folder, or where one of an earlier demo's files is there already, the first with a number behind its name."""
        numbered = (results, *(results.with_name(f"{results.name}-{number}") for number in range(2, 10_000)))
        free = next((f for f in numbered if not any(os.path.lexists(f / name) for name in RESULTS)), results)
        if free != results:
            self.say(f"the results of an earlier demo are in {results}/, so this one's go to {free}/")
        return free

    def _data_folder(self, parent: Path) -> tuple[Path, int]:
        """A folder of this demo's, held for as long as it lasts; those that killed ones left are removed first."""
        for left in parent.glob("data-*"):
            if (left / MARK).is_file() and not left.is_symlink():
                held = _hold(left)
                if held is not None:
                    shutil.rmtree(left, ignore_errors=True)
                    os.close(held)
                    self.say(f"removed {left}, which a demo that was killed had left")
        made = Path(tempfile.mkdtemp(prefix="data-", dir=parent))
        place(made / MARK, "The next demo removes this folder, once the one that made it is over.\n")
        held = _hold(made)
        return made, -1 if held is None else held

    def run(self) -> None:
        cache = self.cache_policy()
        steps: list[tuple[str, str, Callable[[], dict[str, Any]]]] = [
            ("doctor", "What this machine can do.", self.doctor),
            ("sweep", "Two paths at several block sizes, on newly created files.", lambda: self.sweep(cache)),
            ("stripe", "A stripe of four files against one file, interleaved.", lambda: self.stripe(cache)),
            ("emulate", "How many GPUs, each reading 128 MiB/s, this disk can feed.", lambda: self.emulate(cache)),
            ("model", "A drive modelled from its data sheet, next to a published measurement.", self.model),
            ("report", "All of it on one page.", self.report),
        ]
        for name, heading, work in steps:
            if self.step(name, heading, work) == INTERRUPTED:
                self.say(f"   interrupted; what was measured is in {self.results}/")
                break

    def step(self, name: str, heading: str, work: Callable[[], dict[str, Any]]) -> int:
        """Runs one step and returns its exit code; a failure is told, kept and doesn't stop the next."""
        self.say(f"\n{len(self.steps) + 1}. {heading}")
        begun = time.monotonic()
        entry: dict[str, Any] = {"step": name, "error": None}
        try:
            entry.update(work())
        except ForebayError as error:
            entry.update(error=str(error), exit_code=error.exit_code)
            self.say(f"   this step failed: {error}")
        entry["seconds"] = time.monotonic() - begun
        self.steps.append(entry)
        return entry.get("exit_code", DONE)

    def say(self, text: str) -> None:
        click.echo(text, err=self.quiet)

    def verb(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        """Runs a command as if it were typed: (exit code, its --json document)."""
        self.say("   $ forebay " + " ".join(shlex.quote(a) for a in arguments))
        code, out = run_verb([*arguments, "--json"])
        try:
            return code, json.loads(out)
        except json.JSONDecodeError:
            return code, {}

    # The steps ------------------------------------------------------------------------------------------

    def cache_policy(self) -> str:
        """`bypass`, or `drop` where this file system refuses direct I/O."""
        from forebay import run as engine

        job = {
            **self.job("bypass"),
            "sources": [str(self.data)],
            "workers": 1,
            "files": 1,
            "create": True,
            "duration_s": 0.05,
        }
        try:
            engine.run({**job, "file_bytes": MIB, "file_name": "probe.%d", "warmup_s": 0.0})
        except (MachineError, RequestError) as error:
            self.say(f"Direct I/O doesn't work here ({error.found}), so the page cache is dropped instead.")
            return "drop"
        return "bypass"

    def job(self, cache: str) -> dict[str, Any]:
        return {"op": "read", "cache": cache, "duration_s": self.seconds}

    def doctor(self) -> dict[str, Any]:
        _, found = self.verb("doctor", str(self.data))
        counts: dict[str, int] = {}
        for check in found["checks"]:
            counts[check["state"]] = counts.get(check["state"], 0) + 1
        reported = ", ".join(f"{n} {state}" for state, n in counts.items() if state != "not_applicable")
        self.say(f"   {reported}. Each line says what to type: forebay doctor {self.data.parent}")
        return {"checks": counts}

    def sweep(self, cache: str) -> dict[str, Any]:
        recipe = self.results / "sweep.toml"
        place(recipe, SWEEP.format(cache=cache, seconds=self.seconds, files=FILES, size=format_bytes(self.file_bytes)))
        output = self.results / "sweep.jsonl"
        code, found = self.verb("sweep", str(recipe), str(self.data), "-o", str(output))
        if output.exists():
            self.saved.append(output)
        by_name = {point["name"]: point for point in found.get("points", [])}
        rows = {size: [self.point(by_name, path, size) for path in ("host", "bounce")] for size in SIZES}
        for size, (host, bounce) in rows.items():
            self.say(f"   {size:>5}  host {_figures(host)}   bounce {_figures(bounce)}")
        measured = [host for host, _ in rows.values() if host and host.get("throughput")]
        best = max(measured, key=lambda p: p["throughput"], default=None)
        if best:
            self.say(f"   Fastest to host memory: {best['throughput']:.2f} GiB/s, {best['name']}.")
        return {"exit_code": code, "points": found.get("points", [])}

    def point(self, points: dict[str, dict[str, Any]], path: str, size: str) -> dict[str, Any] | None:
        return next(
            (p for name, p in points.items() if {f"path={path}", f"io-size={size}"} <= set(name.split())),
            None,
        )

    def stripe(self, cache: str) -> dict[str, Any]:
        members = "&".join(f"m={self.data / f'member.{i}'}" for i in range(FILES))
        output = self.results / "stripe.json"
        code, found = self.verb(
            "compare",
            "--a", f"source=stripe:?chunk={CHUNK}&{members} file-size={format_bytes(self.file_bytes)}",
            "--b", f"source={self.data / 'one'} file-size={format_bytes(FILES * self.file_bytes)}",
            "--create", "--io-size", "1m", "--depth", "16", "--cache", cache, "--duration", f"{self.seconds:g}",
            "--pairs-min", "4", "--pairs-max", "6", "--until-ci", "5%", "--max-time", f"{12 * self.seconds + 6:g}",
            "-o", str(output),
        )  # fmt: skip
        if output.exists():
            self.saved.append(output)
        self.say(f"   stripe {_medians(found.get('a'))}   one file {_medians(found.get('b'))}")
        verdict = (found.get("verdict") or {}).get("text") or "no verdict"
        self.say(f"   A is the stripe, B the file: {verdict}")
        # No verdict after so few pairs is an answer here, not a failure.
        code = DONE if code == CHECK_FAILED else code
        return {"exit_code": code, "verdict": found.get("verdict"), "ratios": found.get("ratios")}

    def emulate(self, cache: str) -> dict[str, Any]:
        """The files that are there already, by other names, as a data set of one sample per MiB."""
        recipe, folder = self.results / "job.toml", self.data / "job" / "train"
        place(recipe, JOB.format(samples=self.file_bytes // MIB))
        folder.mkdir(parents=True)
        for number, file in enumerate(sorted(self.data.glob("member.*"))):
            os.link(file, folder / f"{number}.raw")
        code, found = self.verb(
            "emulate", "search", "--workload", str(recipe), "--data", str(folder.parent), "--cache", cache,
            "--probe", f"{min(1.0, self.seconds):g}", "--epochs", "1", "--confirm", "1",
            "--results", str(self.results / "job"), "--quiet",
        )  # fmt: skip
        search = found.get("search") or {}
        output = self.results / "job" / "result.json"
        if output.exists():
            self.saved.append(output)
        if search:
            self.say(f"   {search['accelerators']}: {search['limit']['text']}.")
        # That not even one is kept busy is an answer here, too.
        return {"exit_code": DONE if code == CHECK_FAILED else code, "search": search}

    def model(self) -> dict[str, Any]:
        published = paper_table()
        rows, records, code = [], [], DONE
        for kib, workers in PAPER_WORKERS.items():
            size = format_bytes(kib << 10)
            arguments = (
                "bench",
                MODEL,
                "--io-size",
                size,
                "--workers",
                str(workers),
                "--depth",
                "1",
                "--duration",
                "1",
            )
            failed, record = self.verb(*arguments, "--quiet")
            code = code or failed
            if not record:
                raise RunError(
                    MODEL, f"{size} I/Os gave no record", f"forebay bench {MODEL} --io-size {size}"
                )
            records.append(record)
            simulated = record["result"]["throughput_gib_s"]
            rows.append({"io_size": size, "simulated_gib_s": simulated, **published.get(kib, {})})
        output = self.results / "model.jsonl"
        place(output, "".join(json.dumps(r) + "\n" for r in records))
        self.saved.append(output)
        self.say(f"   {'GiB/s':>6}{'simulated':>12}{'paper, GPU direct':>21}{'paper, through the CPU':>26}")
        for row in rows:
            gds, cpu = (_cell(row.get(path)) for path in ("gds", "cpu"))
            self.say(f"   {row['io_size']:>6}{row['simulated_gib_s']:>12.2f}{gds:>21}{cpu:>26}".rstrip())
        self.say(
            f"   {PAPER_DRIVE}: from its data sheet, nothing fitted to the paper. A blank cell is blank in the published data."
        )
        return {"exit_code": code, "table": rows}

    def report(self) -> dict[str, Any]:
        if not self.saved:
            raise CheckFailed("the report", "no step left a record to show", "")
        page = self.results / "report.html"
        arguments = ("report", *map(str, self.saved), "-o", str(page))
        try:
            code, found = self.verb(*arguments)
        except MachineError as error:
            self.say(f"   without charts: {error.found}")
            code, found = self.verb(*arguments, "--no-charts")
        return {"exit_code": code, "page": str(page), "headline": found.get("headline")}

    # The end --------------------------------------------------------------------------------------------

    @property
    def exit_code(self) -> int:
        return next((s["exit_code"] for s in self.steps if s.get("exit_code")), DONE if self.steps else BROKE)

    def document(self) -> dict[str, Any]:
        return {
            "schema": "forebay.demo/1",
            "seconds": time.monotonic() - self.began,
            "results": str(self.results),
            "report": self.page,
            "steps": self.steps,
        }

    @property
    def page(self) -> str | None:
        return next((s.get("page") for s in self.steps if s["step"] == "report"), None)

    def remove(self, keep: bool) -> None:
        """The data files, which lie in a directory of our own; then the last words."""
        if keep:
            (self.data / MARK).unlink(missing_ok=True)
            self.say(f"\nThe data files are kept in {self.data}.")
        else:
            shutil.rmtree(self.data, ignore_errors=True)
            if self.data.exists():
                self.say(f"\nNot removed: {self.data}")
        if self.steps:
            self.say("\nNext, on storage of yours:")
            for command in next_commands(roomiest(mounted()) or Path.cwd()):
                self.say(f"   $ {command}")
        if self.page:
            self.say(
                f"\nDone in {time.monotonic() - self.began:.0f} s. Records are in {self.results}/. The report:"
            )
            self.say(os.path.abspath(self.page))


SWEEP = """# What `forebay demo` ran: two paths by block size.
title = "reads by block size and path"

[job]
op = "read"
cache = "{cache}"
duration = {seconds}
workers = 2
depth = 8
create = true
files = {files}
file-size = "{size}"

[matrix]
io-size = ["64k", "128k", "512k", "1m", "4m"]
path = ["host", "bounce"]
"""


JOB = """# What `forebay demo` emulated: a training job whose accelerators take 128 MiB/s each.
title = "a job of 1 MiB samples"
format = "raw"
loader = "pytorch"
record_bytes = 1048576
samples_per_file = {samples}
files = 4
batch = 4
compute_s = 0.03125
read_threads = 4
prefetch = 2
epochs = 1
au_pct_min = 90

[[variant]]
accelerator = "gpu"
"""


def run_verb(arguments: Sequence[str]) -> tuple[int, str]:
    """A verb in this process: (exit code, what it printed on stdout). Raises ForebayError and click's errors."""
    from forebay.cli import forebay

    printed = io.StringIO()
    with _typed(arguments), contextlib.redirect_stdout(printed):
        try:
            code = forebay.main(args=list(arguments), prog_name="forebay", standalone_mode=False)
        except click.exceptions.Exit as done:
            code = done.exit_code
        except click.UsageError as error:
            raise RequestError(
                f"forebay {arguments[0]}", error.format_message(), "forebay demo --help"
            ) from error
    return code if isinstance(code, int) else DONE, printed.getvalue()


@contextlib.contextmanager
def _typed(arguments: Sequence[str]) -> Iterator[None]:
    """Records hold the command line: for a while it is that of the step, which the reader can repeat."""
    before = sys.argv
    sys.argv = [before[0], *arguments]
    try:
        yield
    finally:
        sys.argv = before


def paper_table(drive: str = PAPER_DRIVE) -> dict[int, dict[str, float]]:
    """I/O size in KiB → {`gds`, `cpu`: GiB/s} as published; a blank cell is absent."""
    data = (
        resources.files("forebay")
        .joinpath("data")
        .joinpath("published")
        .joinpath("solidigm_gds.csv")
        .read_text("utf-8")
    )
    table: dict[int, dict[str, float]] = {}
    for row in csv.DictReader(io.StringIO(data)):
        if row["drive"] == drive and row["throughput_gib_s"]:
            table.setdefault(int(row["io_size_kib"]), {})[row["path"]] = float(row["throughput_gib_s"])
    return table


SYSTEM = ("boot", "dev", "etc", "nix", "proc", "run", "snap", "sys", "usr", "var")


def mounted(table: Path = Path("/proc/self/mounts")) -> list[Path]:
    """Mount points of disks and network file systems, but for the root and what the system keeps for itself."""
    try:
        rows = [line.split() for line in table.read_text(errors="replace").splitlines()]
    except OSError:
        return []
    network = ("nfs", "nfs4", "lustre", "ceph", "beegfs", "gpfs", "wekafs", "cifs")
    found = []
    for device, where, kind, *_ in (row for row in rows if len(row) > 3):
        folder = Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), where))
        is_data = kind in network or (device.startswith("/dev/") and kind not in ("squashfs", "iso9660", "vfat"))
        # Containers have single files mounted, too.
        if is_data and folder.is_dir() and folder != Path("/") and folder.parts[1] not in SYSTEM:
            found.append(folder)
    return found


def roomiest(folders: Sequence[Path]) -> Path | None:
    """The one with the most free space, of those that can be written."""
    room = {}
    for folder in folders:
        with contextlib.suppress(OSError):
            if os.access(folder, os.W_OK | os.X_OK):
                room[folder] = shutil.disk_usage(folder).free
    return max(room, key=room.__getitem__, default=None)


def next_commands(folder: Path) -> list[str]:
    """Commands to type for figures of that folder: each works as it stands."""
    free = shutil.disk_usage(folder).free
    size = next((size for size in (8 << 30, 1 << 30, 256 << 20) if 4 * size <= free), 64 << 20)
    data = shlex.quote(str(folder / "forebay.data"))
    return [
        f"forebay doctor {shlex.quote(str(folder))}",
        f"forebay bench {data} --create --file-size {format_bytes(size)} -o runs.jsonl",
        "forebay report runs.jsonl -o report.html",
    ]


def room_for(folder: Path) -> int:
    """Bytes of each data file: a quarter of the free space at most. MachineError where that is too little."""
    free = shutil.disk_usage(folder).free
    size = min(FILE_BYTES, free // 4 // FILES_IN_ALL // MIB * MIB)
    if size < FILE_BYTES_MIN:
        needed = FILE_BYTES_MIN * FILES_IN_ALL * 4 // MIB
        raise MachineError(
            f"--dir {folder.parent}", f"only {free // MIB} MiB are free, {needed} are needed", "another --dir"
        )
    return size


def _hold(folder: Path) -> int | None:
    """A descriptor that keeps others from it; None where another demo has it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _make_folder(folder: Path, flag: str) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RequestError(
            f"{flag} {folder}", f"can't be made ({error.strerror})", "another directory"
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise RequestError(f"{flag} {folder}", "can't be written", "another directory")
    return folder


def _figures(point: dict[str, Any] | None) -> str:
    if not point or point.get("throughput") is None:
        return "not measured".ljust(34)
    cpu = "–" if point.get("cpu") is None else f"{point['cpu']:.3f}"
    return f"{point['throughput']:6.2f} GiB/s {cpu:>7} CPU-s/GiB"


def _medians(side: dict[str, Any] | None) -> str:
    return _figures((side or {}).get("medians"))


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
