"""A server for tests of `forebay serve` that need no target: run as a program, it is the verb over this."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
COUNTS = {"reads": 0, "read_bytes": 0, "writes": 0, "write_bytes": 0, "flushes": 0, "others": 0, "errors": 0, "media_errors": 0}


def stats(seconds: float = 1.0, **counts: int) -> dict[str, Any]:
    """One snapshot of a server with one namespace and one connected host."""
    return {
        "seconds": seconds,
        "draining": False,
        "connections": 3,
        "connections_accepted": 4,
        "connections_refused": 0,
        "connections_broken": 0,
        "log_lines_dropped": 0,
        "controllers": [],
        "subsystems": [
            {
                "nqn": "nqn.2026-01.io.example:a",
                "namespaces": [
                    {
                        "nsid": 1,
                        "source": "/data/a",
                        "bytes": 1 << 30,
                        "block_bytes": 512,
                        "writable": False,
                        "counts": {**COUNTS, **counts},
                    }
                ],
                "hosts": [
                    {"nqn": "nqn.2026-01.io.example:h", "connections": 3, "counts": COUNTS},
                    {"nqn": "nqn.2026-01.io.example:gone", "connections": 0, "counts": COUNTS},
                ],
            }
        ],
    }


class FakeServer:
    """Behaves as FAKE_SERVER says: `drain=SECONDS` is how long a drain takes, `cut` that it cuts off, `failing` that a
    thread can't go on."""

    def __init__(self, asked: Any, log: str, warnings_only: bool = False) -> None:
        self.addresses, self.metrics_address = ["127.0.0.1:4420", "[::1]:4420"], None
        self.rdma_addresses: list[str] = []
        self.begun = time.monotonic()
        self.settings = dict(w.partition("=")[::2] for w in os.environ.get("FAKE_SERVER", "").split())

    def stats(self) -> dict[str, Any]:
        return stats(time.monotonic() - self.begun)

    def reload(self, asked: Any) -> dict[str, Any]:
        from forebay.errors import RequestError

        if "bad" in asked.text:
            raise RequestError("listen", "differs from what is being served", "a restart")
        return {"removed": [], "added": [{"subsystem": "nqn.x", "nsid": 2, "source": "/data/b"}], "ana": []}

    def failure(self) -> str | None:
        return "io_uring: refused\n  try: forebay doctor" if "failing" in self.settings else None

    def drain(self, seconds: float) -> bool:
        # As in the engine: no Python code runs meanwhile, so that a signal's handler doesn't either.
        takes = float(self.settings.get("drain", "0"))
        if takes:
            import ctypes

            ctypes.CDLL(None).usleep(int(min(takes, seconds) * 1e6))
        return "cut" not in self.settings

    def stop(self) -> None:
        print(json.dumps("stopped"), file=sys.stderr)


if __name__ == "__main__":
    import forebay.cli
    from forebay.serve import engine

    engine.Server = FakeServer  # type: ignore[misc, assignment]
    forebay.cli.main(["serve", *sys.argv[1:]])
