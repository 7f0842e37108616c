"""Guests for tests: one for each kernel, shared by the tests that run on it, and started again after one that ended it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from vm import gateway, linux, rdma
from vm.guest import Guest, GuestGone, Machine
from vm.packages import EVERYDAY, Unavailable, kernel
from vm.serving import Serving, Subsystem

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever lies here is run by `make test-vm` alone: on two cores a guest takes half of the time of `make test`."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.vm)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "release" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("kernels")
        metafunc.parametrize("release", marker.args if marker else EVERYDAY, indirect=True, scope="session")


# Linux 6.12.95, a ublk daemon's ring that ends on a busy machine: seen once in many hundred ends.
KERNEL_FAULT = ("kernel BUG at mm/slub.c", "io_ring_exit_work")


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """A guest whose kernel freed a request of an ended ring twice has died of that, and nothing was tried."""
    try:
        return (yield)
    except GuestGone:
        guest = pyfuncitem.funcargs.get("guest")
        if isinstance(guest, Guest) and all(words in guest.log() for words in KERNEL_FAULT):
            pytest.xfail("the guest's kernel freed a request of an io_uring twice as the ring ended")
        raise


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that fail save what they measured where they were started."""
    monkeypatch.chdir(tmp_path)


class Host:
    """Starts the guest of one kernel when it is first wanted, and again when it has ended."""

    def __init__(self, name: str, machine: Callable[[], Machine] = Machine) -> None:
        self.name, self.machine = name, machine
        self.running: Guest | None = None

    def guest(self) -> Guest:
        if self.running and (self.running.gone or self.running.process.poll() is not None):
            self.close()
        if not self.running:
            try:
                self.running = Guest(kernel(self.name), self.machine())
            except Unavailable as e:
                pytest.skip(f"no guest with the {self.name} kernel: {e}")
        return self.running

    def close(self) -> None:
        if self.running:
            self.running.close()
        self.running = None


def ended(host: Host) -> Iterator[Host]:
    """The host, whose guest ends with the session."""
    yield host
    host.close()


@pytest.fixture(scope="session")
def release(request: pytest.FixtureRequest) -> Iterator[Host]:
    yield from ended(Host(request.param))


@pytest.fixture
def guest(release: Host) -> Iterator[Guest]:
    """A running guest in which nothing is connected or exported. A fault that its kernel reports fails the test."""
    yield from lent(release)


@pytest.fixture(scope="session")
def slotted() -> Iterator[Host]:
    yield from ended(Host(gateway.KERNEL, gateway.machine))


@pytest.fixture
def vmm(slotted: Host, snap: gateway.MakeGateway, serve: Callable[..., Serving]) -> Iterator[Guest]:
    """As `guest`, with empty slots for drives of the gateway, which go before gateways and their targets end."""
    yield from lent(slotted)


@pytest.fixture
def slots_empty(slotted: Host) -> Host:
    """Asked for before `vmm`: a guest in whose slots there never was a drive, since dead ones stay there."""
    if slotted.running and not slotted.running.gone and gateway.in_use(slotted.running):
        slotted.close()
    return slotted


@pytest.fixture(scope="session")
def carded() -> Iterator[Host]:
    yield from ended(Host(rdma.KERNEL, rdma.machine))


@pytest.fixture
def card(carded: Host) -> Iterator[rdma.Card]:
    """A guest with an RDMA device, in which our own commands run."""
    for running in lent(carded):
        yield rdma.Card(running)


def lent(host: Host) -> Iterator[Guest]:
    """The host's guest for one test, tidied after it."""
    running = host.guest()
    yield running
    if running.gone or running.process.poll() is not None:
        return
    try:
        linux.tidy(running)
        gateway.let_go(running)
    except AssertionError:
        host.close()
        raise
    faults = running.new_faults()
    assert not faults, f"the guest's kernel reports: {faults}\n{running.tail()}"
    # A test plugs six at most; the next one gets a guest with empty slots.
    if gateway.in_use(running) > gateway.SLOTS - 6:
        host.close()


@pytest.fixture
def target(guest: Guest) -> linux.Target:
    """The guest's own target, with nothing exported yet."""
    return linux.Target(guest)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Serving]]:
    """`serve(Subsystem([Namespace(file)]), threads=2)` → `forebay serve` with that configuration, until the test ends."""
    started: list[Serving] = []

    def start(*subsystems: Subsystem, **top: object) -> Serving:
        folder = tmp_path / f"serve{len(started)}"
        folder.mkdir()
        started.append(Serving(folder, list(subsystems), top))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.kill()


@pytest.fixture
def snap(tmp_path: Path) -> Iterator[gateway.MakeGateway]:
    """`snap(Drive([Namespace(file)]), threads=2)` → `forebay snap` with that configuration, until the test ends.
    `keep=True`: with a supervisor."""
    started: list[gateway.Gateway] = []

    def start(*drives: gateway.Drive, keep: bool = False, **top: object) -> gateway.Gateway:
        folder = tmp_path / f"snap{len(started)}"
        folder.mkdir()
        started.append(gateway.Gateway(folder, list(drives), top, keep))
        return started[-1]

    yield start
    for one in started:
        one.close()
