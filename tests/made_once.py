"""What takes seconds to make and nobody changes: the first worker that wants it makes it, for all of them."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def of_all_workers(factory: pytest.TempPathFactory) -> Path:
    """The folder of this run's workers, for what they share."""
    own = factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


def made_once(path: Path, make: Callable[[Path], None]) -> Path:
    """The file at `path`, in the folder of all workers. `make` writes it aside first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            aside = path.with_suffix(".new")
            make(aside)
            aside.rename(path)
    return path
