"""A real drive for tests: `forebay snap` with one namespace on one socket, from its first line to its end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import processes

NQN = "nqn.2026-01.io.example:a"


@contextmanager
def drive(folder: Path, source: str | Path, *, writable: bool = False) -> Iterator[str]:
    """The URI of a drive that holds `source`, while the block lasts."""
    socket, file, said = folder / "drive.sock", folder / "snap.toml", folder / "snap.log"
    file.write_text(
        f'rpc = "off"\nthreads = 1\n[[subsystems]]\nnqn = "{NQN}"\n'
        f'[[subsystems.namespaces]]\nsource = "{source}"\nwritable = {str(writable).lower()}\n'
        f'[[subsystems.controllers]]\nname = "one"\nsocket = "{socket}"\nqueues = 4\n'
    )
    # Into a file: nobody reads a pipe while the test goes on.
    with said.open("w") as log, processes.running([*processes.FOREBAY, "snap", file], stdout=log, stderr=log) as gateway:

        def ready() -> bool:
            assert gateway.poll() is None, f"the gateway ended with {gateway.returncode}\n{said.read_text()}"
            return "ready: 1 controller" in said.read_text()

        processes.wait_until(ready, "a gateway that is ready")
        yield f"vfio-user:{socket}"
