"""What the tests of gdsio's front share: a record, a stand-in for the engine, fixtures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import whole_records
from forebay import cli
from forebay import run as engine
from forebay.gdsio import cufile, flags, machine
from forebay.gdsio.request import Request

GIB = 1 << 30
Capture = pytest.CaptureFixture[str]


def record(**changes: Any) -> dict[str, Any]:
    """The parts of a RunRecord that gdsio's front reads: the numbers of a published line."""
    made: dict[str, Any] = {
        "schema": "forebay.run/1",
        "job": {"workers": 8},
        "path": {
            "ran": "host",
            "reason": None,
            "engine": "uring",
            "destination": "host",
            "direct_bytes": 0,
            "staged_bytes": 818796544 * 1024,
            "mapped_bytes": 0,
        },
        "cache": {"policy": "bypass"},
        "result": {
            "seconds": 119.679102,
            "bytes": 818796544 * 1024,
            "ios": 799606,
            "iops": 6681.2,
            "interrupted": False,
            "latency_us": {
                "min": 90.0,
                "mean": 1197.370995,
                "p50": 1100.0,
                "p90": 1500.0,
                "p99": 2100.0,
                "p999": 3000.0,
                "max": 9000.0,
            },
            "cpu": {"cores_busy": 0.5, "cpu_s_per_gib": None},
            "errors": {"verify_failed": 0},
            "targets": [{"target": "gdsio.0", "bytes": 4096, "ios": 1}],
            "workers": [
                {"worker": 0, "bytes": 4096, "ios": 1, "latency_us_p50": 90.0, "latency_us_p99": 99.0}
            ],
        },
        "warnings": [],
    }
    for section, values in changes.items():
        made[section].update(values)
    return whole_records.whole(made)


class Engine:
    """Stands in for the engine: keeps the jobs, answers with one record."""

    def __init__(self) -> None:
        self.jobs: list[dict[str, Any]] = []
        self.answer: dict[str, Any] | Exception = record()

    def run(self, job: dict[str, Any], **_: Any) -> dict[str, Any]:
        self.jobs.append(job)
        if isinstance(self.answer, Exception):
            raise self.answer
        return {**self.answer, "job": {**self.answer["job"], **job}}


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Engine:
    stand_in = Engine()
    monkeypatch.setattr(engine, "run", stand_in.run)
    return stand_in


@pytest.fixture
def no_cufile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_LIBCUFILE", "")


@pytest.fixture
def with_cufile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine with libcufile and two GPUs, and no cufile.json of its own."""
    library = tmp_path / "libcufile.so.0"
    library.touch()
    monkeypatch.setenv("FOREBAY_LIBCUFILE", str(library))
    monkeypatch.setattr(machine, "gpus", lambda: (2, ""))
    monkeypatch.setattr(machine, "lacks_cufile", lambda: None)
    monkeypatch.setattr(cufile, "CONFIG", tmp_path / "none.json")
    for name in ("CUFILE_ENV_PATH_JSON", "CUFILE_FORCE_COMPAT_MODE", "CUFILE_ALLOW_COMPAT_MODE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "gpus", lambda: (0, "libcuda.so.1 was not found"))


def gdsio(capsys: Capture, *words: object) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `forebay gdsio …`, through the command line's own error handling."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["gdsio", *map(str, words)])
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return int(ended.value.code or 0), out, err


def written(directory: Path, count: int, size: int) -> Path:
    directory.mkdir(exist_ok=True)
    for n in range(count):
        with open(directory / f"gdsio.{n}", "wb") as file:
            file.truncate(size)
    return directory


def asked(*words: str) -> Request:
    """The request out of a command line of gdsio's."""
    import click

    @click.command()
    @flags.options
    def parse(**values: Any) -> Request:
        return flags.request(flags.take(values))

    return parse.main(list(words), standalone_mode=False)
