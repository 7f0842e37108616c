"""What every test may rely on: the command as a user runs it, and a reason for each test that can't run here."""

from __future__ import annotations

import os
import signal
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import processes
import pytest
from hypothesis import HealthCheck, settings

# What Python itself starts with. A shell starts what it puts into the background with SIGINT ignored, and children
# inherit that: tests that send it would send it to the deaf.
SIGNALS = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}

# marker → (may it run here, why not)
NEEDS: dict[str, tuple[Callable[[], bool], str]] = {
    "root": (lambda: os.geteuid() == 0, "needs root; try: sudo make test-root"),
    "gpu": (lambda: os.path.exists("/dev/nvidiactl"), "needs an NVIDIA GPU (/dev/nvidiactl is absent)"),
}

# A machine that is busy with other work is slow, not wrong.
settings.register_profile(
    "forebay", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("forebay")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--wheel", type=Path, help="the wheel that the tests marked wheel install and run")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        for marker, (met, reason) in NEEDS.items():
            if item.get_closest_marker(marker) and not met():
                item.add_marker(pytest.mark.skip(reason=reason))
        if item.get_closest_marker("wheel") and not config.getoption("--wheel"):
            item.add_marker(pytest.mark.skip(reason="needs a wheel; try: make wheel"))


@pytest.fixture(autouse=True)
def signals_as_python_starts() -> Iterator[None]:
    """The command line takes them over, and ignores them at its end; a test, or a module's fixture before it, that
    calls it in this process would leave the processes of later tests deaf."""
    _give_signals_back()
    yield
    _give_signals_back()


def _give_signals_back() -> None:
    for number, handler in SIGNALS.items():
        signal.signal(number, handler)


_give_signals_back()


@pytest.fixture(scope="session", autouse=True)
def nothing_left_at_the_end() -> Iterator[None]:
    """As `nothing_left_behind`, for what fixtures of a whole module started."""
    mark = os.environ[processes.MARK] = uuid.uuid4().hex
    yield
    left = processes.leftovers(mark, None)
    assert not left, f"these tests left behind: {'; '.join(left)}"


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A test that leaves a process, a mount, a loop device or a network namespace fails, and what it left is ended."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv(processes.MARK, mark)
    yield
    folder = request.node.funcargs.get("tmp_path")
    left = processes.leftovers(mark, folder)
    assert not left, f"this test left behind: {'; '.join(left)}"


@pytest.fixture(scope="session")
def forebay() -> Callable[..., subprocess.CompletedProcess[str]]:
    """`forebay("bench", "nil:", "--json")` → what the command printed and its exit code. Never raises for one."""

    def run(
        *arguments: str | os.PathLike[str], timeout: float = processes.PATIENCE_S, **options: object
    ) -> subprocess.CompletedProcess[str]:
        return processes.run([*processes.FOREBAY, *arguments], within_s=timeout, **options)

    return run
