"""`forebay snap` over a gateway that shows nothing, as a script: what the verb does with signals and streams."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import fake_server


def stats(seconds: float = 1.0, **counts: int) -> dict[str, Any]:
    """One snapshot of a gateway with one namespace, and one drive that a host uses."""
    served = fake_server.stats(seconds, **counts)
    return {
        "seconds": seconds,
        "threads": 2,
        "staged_bytes": 0,
        "log_lines_dropped": 0,
        "subsystems": served["subsystems"],
        "controllers": [
            {
                "name": "NVMeCtrl1",
                "subsystem": "nqn.2026-01.io.example:a",
                "state": "enabled",
                "place": "/run/forebay/a.sock",
                "namespaces": [1],
                "protocol_errors": 1,
            }
        ],
    }


class FakeGateway:
    """Behaves as FAKE_GATEWAY says: `cut` that a drain cuts off."""

    def __init__(
        self, asked: Any, log: str, warnings_only: bool = False, rpc: str | None = None, take_over: bool = False
    ) -> None:
        self.rpc_path = None if rpc == "off" else rpc or "/run/forebay/snap.sock"
        self.metrics_address = None
        self.begun = time.monotonic()

    def stats(self) -> dict[str, Any]:
        return stats(time.monotonic() - self.begun)

    def has_left(self) -> bool:
        return "left" in os.environ.get("FAKE_GATEWAY", "")

    def failure(self) -> str | None:
        return None

    def drain(self, seconds: float) -> bool:
        return "cut" not in os.environ.get("FAKE_GATEWAY", "")

    def stop(self) -> None:
        print(json.dumps("stopped"), file=sys.stderr)


if __name__ == "__main__":
    import forebay.cli
    from forebay.snap import engine

    engine.Gateway = FakeGateway  # type: ignore[misc, assignment]
    forebay.cli.main(["snap", *sys.argv[1:]])
