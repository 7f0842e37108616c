"""What every test may rely on: the command as a user runs it, and a reason for each test that can't run here."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import preloaded
import processes
import properties
import pytest
from hypothesis import HealthCheck, settings
from made_once import of_all_workers

ROOT = Path(__file__).resolve().parent.parent
# What Python itself starts with. A shell starts what it puts into the background with SIGINT ignored, nohup with SIGHUP,
# and children inherit that: tests that send it would send it to the deaf.
SIGNALS = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}

# Before anything imports NumPy: beside other workers, threads of linear algebra wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# marker → (may it run here, why not)
NEEDS: dict[str, tuple[Callable[[], bool], str]] = {
    "root": (lambda: os.geteuid() == 0, "needs root; try: sudo make test-root"),
    "ml": (lambda: importlib.util.find_spec("torch") is not None, "needs PyTorch; try: make test-ml"),
    "gpu": (lambda: os.path.exists("/dev/nvidiactl"), "needs an NVIDIA GPU (/dev/nvidiactl is absent)"),
}

# What collecting makes stays until the end: a third of its time would go into looking for garbage among it.
gc.disable()

# What is printed is judged as most terminals show it; tests of the locale C name it themselves.
for _name in ("LC_ALL", "LC_CTYPE", "LANG"):
    if os.environ.get(_name) in ("C", "POSIX"):
        os.environ[_name] = "C.UTF-8"

# A machine that is busy with other work is slow, not wrong.
settings.register_profile(
    "forebay", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow], max_examples=properties.share(100)
)
settings.load_profile("forebay")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--wheel", type=Path, help="the wheel that the tests marked wheel install and run")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.pluginmanager.hasplugin("terminalreporter"):
        writer = config.get_terminal_writer()
        writer.fullwidth = writer.fullwidth  # pytest's own lines stay as long as they are
    # Where a line of a summary is wrapped depends on the digits of what was measured. Tests of wrapping set this themselves.
    os.environ["COLUMNS"] = "2000"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object | None:
    """All tests of guests share one guest, and are one worker's. Others go to whoever is free, as `--dist` says."""
    if config.option.markexpr != "vm":
        return None
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "guest" if "tests/vm/" in nodeid else super()._split_scope(nodeid)

    return ByFile(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Workers share the rewriting of assertions, most of what collecting takes: each keeps its part for the others.

    Without this all come to each file at the same time, and all of them rewrite it.
    """
    worker, workers = (os.environ.get(f"PYTEST_XDIST_WORKER{name}", "") for name in ("", "_COUNT"))
    here = Path(__file__).parent
    if not worker or [Path(argument).resolve() for argument in session.config.args] != [here.resolve()]:
        return
    files = sorted(here.glob("test_*.py"))
    first = int(worker.removeprefix("gw")) * len(files) // int(workers)
    kept, sys.dont_write_bytecode = sys.dont_write_bytecode, False
    for file in files[first:] + files[:first]:
        # What is wrong with it is said when it is collected.
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(file.stem)
    sys.dont_write_bytecode = kept


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # One worker starts a browser, for all that need one.
    items.sort(key=lambda item: "window" not in getattr(item, "fixturenames", ()))
    for item in items:
        for marker, (met, reason) in NEEDS.items():
            if item.get_closest_marker(marker) and not met():
                item.add_marker(pytest.mark.skip(reason=reason))
        if item.get_closest_marker("wheel") and not config.getoption("--wheel"):
            item.add_marker(pytest.mark.skip(reason="needs a wheel; try: make wheel"))


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


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
    """As `nothing_left_behind`, for what fixtures of a whole module started, and for records of runs that failed."""
    mark = os.environ[processes.MARK] = os.environ[processes.SESSION] = uuid.uuid4().hex
    before = processes.rescued()
    yield
    preloaded.end()
    left = processes.leftovers(mark, None) + sorted(processes.rescued() - before)
    assert not left, f"these tests left behind: {'; '.join(left)}"


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A test that leaves a process, a mount, a loop device or a network namespace fails, and what it left is ended."""
    mark, newest = uuid.uuid4().hex, processes.newest()
    monkeypatch.setenv(processes.MARK, mark)
    yield
    folder = request.node.funcargs.get("tmp_path")
    left = processes.leftovers(mark, folder, newest)
    assert not left, f"this test left behind: {'; '.join(left)}"


@pytest.fixture(autouse=True)
def no_mpi_in_this_process() -> Iterator[None]:
    """Importing MPI starts it and leaves variables in the environment: each mpirun after that ends and says nothing."""
    before = "mpi4py.MPI" in sys.modules
    yield
    assert before or "mpi4py.MPI" not in sys.modules, "this test started MPI; give it a stand-in, or a process"


@pytest.fixture(scope="session")
def forebay() -> Callable[..., subprocess.CompletedProcess[str]]:
    """`forebay("bench", "nil:", "--json")` → what the command printed and its exit code. Never raises for one."""

    def run(
        *arguments: str | os.PathLike[str], timeout: float = processes.PATIENCE_S, **options: object
    ) -> subprocess.CompletedProcess[str]:
        return processes.run([*processes.FOREBAY, *arguments], within_s=timeout, **options)

    return run


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A report with every chart of runs (`report_support.Whole`)."""
    import report_support

    return report_support.drawn_whole(of_all_workers(tmp_path_factory) / "whole-report")


@pytest.fixture(scope="session")
def window() -> Iterator[Any]:
    """A browser with one page (`report_browser.Browser`)."""
    import report_browser

    with report_browser.Browser() as one:
        yield one


@pytest.fixture(scope="session")
def rdma_stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stand-in for libibverbs and librdmacm, compiled."""
    compiler = shutil.which("cc") or pytest.skip("no cc; apt install gcc")
    library = tmp_path_factory.mktemp("rdma") / "libstub.so"
    source = Path(__file__).parent / "rdma_stubs" / "rdma.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    return library


@pytest.fixture(scope="session")
def forebayd() -> str:
    """The program: FOREBAYD, or built by cargo. Skips where there is neither."""
    if "FOREBAYD" in os.environ:
        return os.environ["FOREBAYD"]
    if shutil.which("cargo") is None:
        pytest.skip("no cargo to build forebayd with, and FOREBAYD names none")
    # The same packages as `make test` builds: another choice has other features, and the engine is built again.
    build = "cargo build --quiet --workspace --bins".split()
    built = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return str(Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug/forebayd")
