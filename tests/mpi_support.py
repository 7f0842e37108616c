"""Runs of several processes under mpirun: whether there is one, and two hosts that are none but for Linux."""

from __future__ import annotations

import importlib.util
import itertools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import processes
import pytest

MPIRUN = shutil.which("mpirun")
needs_mpi = pytest.mark.skipif(
    MPIRUN is None or importlib.util.find_spec("mpi4py") is None, reason="mpirun or mpi4py isn't installed"
)
# Open MPI starts as root only where both of these say so.
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def launcher(agent: Path, folder: Path) -> list[str]:
    """What stands before a command of which one process is to run on each of `two_hosts`, in `folder`."""
    network = "10.77.0.0/24"
    settings = {
        "plm_rsh_agent": str(agent),
        "oob_tcp_if_include": network,
        "btl": "tcp,self",
        "btl_tcp_if_include": network,
        "pml": "ob1",
    }
    begin = [str(agent), "10.77.0.1", str(MPIRUN), "--allow-run-as-root", "-n", "2", "--map-by", "node"]
    for key, value in settings.items():
        begin += ["--mca", key, value]
    return [*begin, "--host", "10.77.0.1,10.77.0.2", "-x", "PYTHONPATH", "--wdir", str(folder)]


def ip(*arguments: str) -> None:
    done = processes.run(["ip", *arguments])
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"


def new_namespace(names: Iterator[str]) -> str:
    """The first of these names that nobody has taken, as a network namespace."""
    for name in names:
        made = processes.run(["ip", "netns", "add", name])
        if made.returncode == 0:
            return name
        if "File exists" not in made.stderr:
            pytest.skip(f"can't make a network namespace: {made.stderr.strip()}")
    raise AssertionError("there is always another name")


@pytest.fixture
def two_hosts(tmp_path):
    """Two hosts as network namespaces joined by a veth pair, each with a name and an address of its own.

    Their names, and how a command of two ranks, one on each, is started.
    """
    free, names = (f"fb{os.getpid()}-{n}" for n in itertools.count()), []
    try:
        names += [new_namespace(free)]
        names += [new_namespace(free)]
        ends = [["veth0", "netns", name] for name in names]
        ip("link", "add", *ends[0], "type", "veth", "peer", "name", *ends[1])
        for number, name in enumerate(names, 1):
            ip("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", "veth0")
            for link in ("lo", "veth0"):
                ip("-n", name, "link", "set", link, "up")
        agent = tmp_path / "agent.sh"
        # What ssh would do: run a command on the named host.
        agent.write_text(
            "#!/bin/sh\n"
            f'host=$1; shift\n[ "$host" = 10.77.0.1 ] && ns={names[0]} || ns={names[1]}\n'
            'exec ip netns exec $ns unshare --uts sh -c "hostname $ns.test; $*"\n'
        )
        agent.chmod(0o755)
        yield names, launcher(agent, tmp_path)
    finally:
        for name in names:
            ip("netns", "del", name)
