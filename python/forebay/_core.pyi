"""The engine. JSON text in, JSON text out; see crates/model for the types."""

from collections.abc import Callable

__all__ = [
    "buckets",
    "check",
    "doctor",
    "emulate_check",
    "emulate_datagen",
    "emulate_run",
    "environment",
    "features",
    "files",
    "formats",
    "merge",
    "plan",
    "read_record",
    "run",
    "schema",
    "stop",
]

def run(job: str, command: list[str], observer: Callable[[str], None] | None = None) -> str:
    """Runs a JobSpec; returns its RunRecord. Raises forebay.errors.*. The GIL is released while it runs;
    `observer` gets a JSON Progress about four times a second, on the calling thread. An exception from the
    observer (KeyboardInterrupt too) stops the run; the record of what was measured is returned with
    result.interrupted true."""

def stop() -> None:
    """Asks the run in progress to end; safe in a signal handler."""

def plan(job: str) -> str:
    """What `run` would do: resolved targets, engine, path, files to be made. Touches nothing."""

def check(job: str) -> str:
    """The job with its defaults, or RequestError."""

def doctor(source: str | None, cufile_json: str | None = None) -> str:
    """The doctor's findings."""

def environment(paths: list[str]) -> str:
    """The environment part of a record."""

def files(spec: str, id: str, observer: Callable[[str], None] | None = None) -> str:
    """Runs a FilesSpec (many-file metadata phases) in DIR/forebay-files-ID; returns its FilesRecord. A
    KeyboardInterrupt ends the run and cleans up, a second one ends the cleaning too."""

def emulate_run(spec: str, command: list[str], observer: Callable[[str], None] | None = None) -> str:
    """Runs an EmulateSpec (JSON); returns its RunRecord with the part `training`. As `run`; the observer gets
    {phase, epoch, epochs, step, steps, t_s, au_pct, gib_s, waiting_ranks, cores_busy}."""

def emulate_check(spec: str) -> str:
    """The spec with its defaults filled in. Raises RequestError for what is wrong with it on any machine."""

def emulate_datagen(spec: str, observer: Callable[[str], None] | None = None) -> str:
    """Makes a DatagenSpec's data set; returns its DatagenRecord. `observer` gets a JSON Progress some ten times a second.
    What it raises ends the run and is raised again, with what stays as text in its attribute `kept`."""

def formats() -> str:
    """The formats of emulation's files: [{name, extension, what}]."""

def merge(records: list[str]) -> str:
    """One record out of those of several hosts that ran together."""

def read_record(text: str) -> str:
    """A record of this or an older schema, brought up to date."""

def buckets(histogram: str) -> list[tuple[int, int]]:
    """(ns, count) of each occupied bucket of a record's histogram."""

def schema() -> str:
    """The schema that this build writes."""

def features() -> str:
    """Version, commit, build features as JSON."""
