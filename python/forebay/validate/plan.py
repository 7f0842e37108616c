"""From steps to jobs on these sources; creating and removing Forebay's folders."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from forebay import run as engine
from forebay.bench.save import place as place_file
from forebay.errors import MachineError, RequestError
from forebay.paths import abilities
from forebay.units import GIB
from forebay.uri import parsed
from forebay.validate.needs import kind_of
from forebay.validate.steps import Run, Step

FOLDER = "forebay-validate"
MARK = ".forebay-validate"
FILES = 4
# Paths that find their number of workers by themselves.
FINDS_WORKERS = ("bounce", "mapped", "auto")
# Of the space that is free, what our files may fill; stripes, written files and gdsio's come beside the first.
FILL, SETS = 0.5, 4
FILE_BYTES_MAX, FILE_BYTES_MIN = 16 * GIB, 16 << 20


@dataclass(frozen=True)
class Options:
    """Options that must stay the same for a file to be continued."""

    sources: tuple[str, ...]
    gpus: tuple[int, ...] = (0,)
    seconds: float = 10.0
    file_bytes: int = GIB
    scale: float = 0.1

    def as_dict(self) -> dict[str, Any]:
        return json.loads(json.dumps(asdict(self)))


def place(source: str) -> str:
    """Returns the place where a job reads: our folder in a directory, else the source itself."""
    path = parsed(source).path
    return str(path / FOLDER) if path is not None and path.is_dir() else source


def job_of(step: Step, run: Run, options: Options) -> dict[str, Any]:
    """The fields of one run's job."""
    wanted = {**step.job, **run.job}
    first = options.sources[0]
    job: dict[str, Any] = {
        "sources": [place(first)],
        "op": "read",
        "io_bytes": 1 << 20,
        "workers": FILES,
        "depth": 8,
        "duration_s": options.seconds,
        "gpus": list(options.gpus[:1]),
        "label": f"validate {step.name}: {run.name}",
    }
    if kind_of(first) == "directory":
        job.update(create=True, files=FILES, file_bytes=options.file_bytes // FILES)
    job.update({k: v for k, v in wanted.items() if k not in ("stripe", "pairs")})
    if job.get("path") in FINDS_WORKERS and "workers" not in wanted:
        job.pop("workers")
    if job.get("passes"):
        job.pop("duration_s")
    if "path" in job and not abilities(job["path"]).reaches_gpu:
        job.pop("gpus")
    if "stripe" in wanted:
        _stripe(job, options, wanted["stripe"])
    if "pairs" in wanted:
        _pairs(job, options, wanted["pairs"])
    return job


def _stripe(job: dict[str, Any], options: Options, width: int) -> None:
    members = [
        f"{place(s)}/stripe.{n}" if kind_of(s) == "directory" else s
        for n, s in enumerate(options.sources[:width])
    ]
    job["sources"] = ["stripe:?chunk=512k" + "".join(f"&m={quote(m)}" for m in members)]
    job.pop("files", None)
    if "file_bytes" in job:
        job["file_bytes"] = options.file_bytes


def _pairs(job: dict[str, Any], options: Options, count: int) -> None:
    gpus = options.gpus if len(options.gpus) >= count else tuple(range(count))
    job["pairs"] = [f"{gpu}={place(s)}" for gpu, s in zip(gpus[:count], options.sources[:count], strict=True)]
    job.pop("sources")
    job.pop("gpus")


def fitting(sources: tuple[str, ...]) -> int:
    """Bytes of one set of files: what each directory has room for several times over."""
    room = [
        int(shutil.disk_usage(path).free * FILL / SETS)
        for path in (parsed(source).path for source in sources)
        if path is not None and path.is_dir()
    ]
    bytes_ = min([FILE_BYTES_MAX, *room]) // (FILES << 20) * (FILES << 20)
    if bytes_ < FILE_BYTES_MIN:
        raise MachineError(
            "validate", f"only {bytes_ >> 20} MiB could be used for files", "a directory with more space"
        )
    return bytes_


def check_sources(sources: tuple[str, ...]) -> None:
    """Raises RequestError for what isn't there, isn't a place for storage, or holds somebody else's folder."""
    for source in sources:
        kind = kind_of(source)
        if kind == "other":
            raise RequestError(
                f"source '{source}'",
                "is not a file, directory or block device here",
                "a directory on the drive, or /dev/nvme0n1",
            )
        engine.readable(source)
        folder = Path(place(source))
        if kind == "directory" and folder.exists() and not (folder / MARK).is_file():
            raise RequestError(
                f"source '{source}'",
                f"{folder} exists and wasn't created by forebay validate",
                "another directory",
            )
    if len(set(sources)) < len(sources):
        raise RequestError("SOURCE", "is named twice", "each drive once")


def make_folders(sources: tuple[str, ...]) -> None:
    for source in sources:
        if kind_of(source) != "directory":
            continue
        folder = Path(place(source))
        try:
            folder.mkdir(exist_ok=True)
            if not (folder / MARK).exists():
                place_file(folder / MARK, "Made by forebay validate, which removes it when it is done.\n")
        except OSError as error:
            raise MachineError(
                f"source '{source}'",
                f"{folder} can't be made: {error.strerror}",
                "a directory that you can write to",
            ) from error


def remove_folders(sources: tuple[str, ...]) -> list[str]:
    """Removes what we made; what is left, since somebody else put it there."""
    left = []
    for source in sources:
        folder = Path(place(source))
        if kind_of(source) != "directory" or not (folder / MARK).is_file():
            continue
        for path in _ours(folder):
            path.unlink(missing_ok=True)
        gdsio = folder / "gdsio"
        if gdsio.is_dir():
            for path in gdsio.glob("gdsio.*"):
                path.unlink(missing_ok=True)
            if not any(gdsio.iterdir()):
                gdsio.rmdir()
        if any(folder.iterdir()):
            left.append(str(folder))
        else:
            folder.rmdir()
    return left


def _ours(folder: Path) -> list[Path]:
    """The files that the engine's manifest lists, the manifest, and our mark."""
    manifest = folder / ".forebay.json"
    try:
        names = list(json.loads(manifest.read_text())["files"])
    except (OSError, ValueError, KeyError, TypeError):
        names = []
    listed = [folder / n for n in names if isinstance(n, str) and Path(n).name == n]
    return [*listed, manifest, folder / MARK]
