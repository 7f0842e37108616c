"""What every test may rely on: the command as a user runs it, and a reason for each test that can't run here."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# marker → (may it run here, why not)
NEEDS: dict[str, tuple[Callable[[], bool], str]] = {
    "root": (lambda: os.geteuid() == 0, "needs root; try: sudo make test-root"),
    "gpu": (lambda: os.path.exists("/dev/nvidiactl"), "needs an NVIDIA GPU (/dev/nvidiactl is absent)"),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--wheel", type=Path, help="the wheel that the tests marked wheel install and run")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        for marker, (met, reason) in NEEDS.items():
            if item.get_closest_marker(marker) and not met():
                item.add_marker(pytest.mark.skip(reason=reason))
        if item.get_closest_marker("wheel") and not config.getoption("--wheel"):
            item.add_marker(pytest.mark.skip(reason="needs a wheel; try: make wheel"))


@pytest.fixture(scope="session")
def forebay() -> Callable[..., subprocess.CompletedProcess[str]]:
    """`forebay("bench", "nil:", "--json")` → what the command printed and its exit code. Never raises for one."""

    def run(
        *arguments: str | os.PathLike[str], timeout: float = 120, **kwargs: object
    ) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "forebay.cli", *map(os.fspath, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, **kwargs)  # type: ignore[call-overload]

    return run
