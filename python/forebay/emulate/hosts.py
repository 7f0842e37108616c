"""Emulated accelerators on several hosts: one process per host, all steps end together, one record for all.

`forebay.mpi` starts the hosts together, gathers and merges. Here is what emulation needs besides: ranks of accelerators, hosts
that must be alike, and the barrier after each step.

Each host posts one message per step to all others, and waits for theirs. A host that can't go on posts STOP in place of its next
step, so that all hosts end behind the same one, with what they measured; one that is through posts DONE. So no host waits for a
message that nobody sends, unless a process was killed outright.
"""

from __future__ import annotations

import json
import time
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from forebay.emulate import data, engine
from forebay.errors import ForebayError, RequestError, RunError
from forebay.mpi import GRACE_S, World, replace
from forebay.uri import parsed

Spec = dict[str, Any]
Record = dict[str, Any]

GO, DONE, STOP = 0, 1, 2
# Hosts end a step microseconds apart where all is well. A longer wait sleeps: readers need the processor.
SPIN_S = 100e-6
NAP_S = 20e-6
# After a signal, the launcher kills before long: no more is waited for other hosts.
PATIENCE_S = 0.3
# What must be the same on every host. The data may lie elsewhere on each.
ALIKE = ("workload", "rules", "level", "decode", "epochs", "steps_max", "prefetch", "read_threads", "on_error", "destination")


class StepBarrier:
    """Called by the engine at the local end of each step: returns once all hosts ended it.

    Raises KeyboardInterrupt where another host stopped or this one was told to; RunError where hosts have different
    numbers of steps.
    """

    def __init__(self, communicator: Any, interrupted: Callable[[], bool]) -> None:
        from mpi4py import MPI

        self._int, self._max = MPI.INT, MPI.MAX
        self._comm = communicator.Dup()
        self._interrupted = interrupted
        self._request: Any = None
        self._sent, self._seen = array("i", [0, 0]), array("i", [0, 0])
        self.stopped = False  # by another host
        self._over = False

    def __call__(self, epoch: int, step: int) -> None:
        self._post(GO)
        if not self._wait(PATIENCE_S):
            raise KeyboardInterrupt
        least, most = self._answer()
        if most == STOP:
            self.stopped = self._over = True
            raise KeyboardInterrupt
        if least != most:
            self._over = True
            where = f"step {step + 1} of epoch {epoch + 1}"
            raise RunError(where, "another host has fewer steps: its data set has fewer files", "the same files on every host")

    def finish(self, through: bool) -> bool:
        """Tells the others that this host went to its end, or that it stops. False: they didn't answer.

        Called by each host once, when its engine has ended.
        """
        deadline = time.monotonic() + GRACE_S
        if self._request is not None:  # left in the middle of a wait
            if not self._complete(deadline):
                return False
            self._over = self._answer()[1] == STOP
        if self._over:
            return True
        self._post(DONE if through else STOP)
        return self._complete(deadline)

    def _post(self, code: int) -> None:
        self._sent[0], self._sent[1] = code, -code
        self._request = self._comm.Iallreduce([self._sent, self._int], [self._seen, self._int], op=self._max)

    def _answer(self) -> tuple[int, int]:
        self._request = None
        return -self._seen[1], self._seen[0]

    def _wait(self, patience_s: float) -> bool:
        """Until all hosts posted. False: a signal came, and they still haven't."""
        begun, signalled = time.monotonic(), None
        while not self._request.Test():
            now = time.monotonic()
            if self._interrupted():
                signalled = signalled or now
                if now - signalled > patience_s:
                    return False
            if now - begun > SPIN_S:
                time.sleep(NAP_S)
        return True

    def _complete(self, deadline: float) -> bool:
        while not self._request.Test():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)
        return True


def spec_of_rank(spec: Spec, rank: int, local: int, size: int, host: str) -> Spec:
    """`spec` as one process runs it: its accelerators among all, and where its host has the data."""
    names = {"{rank}": str(rank), "{local}": str(local), "{host}": host}
    each = int(spec["accelerators"])
    data = [replace(folder, names) for folder in spec["data"]]
    return {**spec, "data": data, "first_rank": rank * each, "ranks": size * each}


def check_alike(hosts: Sequence[str], specs: Sequence[Spec]) -> None:
    """Refuses processes that don't run the same thing, and hosts with unequal numbers of accelerators."""
    for rank, spec in enumerate(specs):
        if other := [k for k in ALIKE if spec.get(k) != specs[0].get(k)]:
            found = f"{other[0]} is {spec.get(other[0])!r} on rank {rank}, {specs[0].get(other[0])!r} on rank 0"
            raise RequestError("a run on several hosts", found, "the same command on every host")
    counts: dict[str, int] = {}
    for host, spec in zip(hosts, specs, strict=True):
        counts[host] = counts.get(host, 0) + int(spec["accelerators"])
    if len({int(s["accelerators"]) for s in specs}) > 1 or len(set(counts.values())) > 1:
        reported = ", ".join(f"{n} on {host}" for host, n in counts.items())
        raise RequestError(
            "--accelerators under mpirun", f"hosts differ ({reported}): the rules require the same number on each",
            "mpirun --map-by node"
        )


def files_read(spec: Spec, ranks: int) -> int | None:
    """Files of this process's data set that are read; None where only the engine can count them. Refuses what the engine
    would refuse once all hosts have begun."""
    engine.check(spec)
    sources = " ".join(spec["data"])
    named = [parsed(source) for source in spec["data"]]
    if ranks > 1 and any(source.drive is not None and not source.parts for source in named):
        reported = "a modelled drive in virtual time can't be shared by several processes"
        raise RequestError(f"--data {sources}", reported, "all accelerators in one process, without mpirun")
    missing = [source for source in spec["data"] if data.is_missing(source)]
    if missing:
        raise RequestError(f"--data {missing[0]}", "there is no such folder", "forebay emulate datagen, or another --data")
    format = spec["workload"]["format"]
    found = None if spec.get("glob") else data.files_of(spec["data"], format)
    if found == 0:
        raise RequestError(f"--data {sources}", f"holds no .{format} files", "forebay emulate datagen")
    return min(found, spec["workload"].get("files") or found) if found else None


def check_files(hosts: Sequence[str], counts: Sequence[int | None]) -> None:
    """Refuses data sets of different sizes, which come to different numbers of steps."""
    known = [(rank, count) for rank, count in enumerate(counts) if count is not None]
    for rank, count in known:
        first, wanted = known[0]
        if count != wanted:
            reported = f"{count:,} files on rank {rank} ({hosts[rank]}), {wanted:,} on rank {first} ({hosts[first]})"
            raise RequestError("--data on several hosts", reported, "the same files on every host, or --files")


def run(world: World, spec: Spec, observe: Callable[[dict[str, Any]], None], interrupt: Any) -> Record:
    """Runs `spec` on every host; the merged record at rank 0, its own part elsewhere.

    Raises, on every rank: RequestError or MachineError for what any rank refuses, before anything runs; RunError naming the
    rank that broke, its `.record` being what all measured until then. KeyboardInterrupt: nothing was measured.
    """
    lead = world.comm.bcast(spec, root=0)
    hosts = world.comm.allgather(world.host)
    # One seed for all: a closed run draws a new one, and every rank would draw its own.
    own = {**spec, "seed": lead["seed"]} if "seed" in lead else spec
    mine = spec_of_rank(own, world.rank, hosts[: world.rank].count(world.host), world.size, world.host)
    specs = world.comm.allgather(mine)
    check_alike(hosts, specs)
    counted: list[int | None] = []
    world.all_agree(lambda: counted.append(files_read(mine, world.size)))
    check_files(hosts, world.comm.allgather(counted[0]))
    barrier = StepBarrier(world.comm, lambda: bool(interrupt.requested))
    through = False

    def go(mine: Spec) -> Record:
        nonlocal through
        record = _play(world, mine, barrier, observe)
        through = not record["result"].get("interrupted")
        return record

    def finish() -> None:
        world.gave_up = not barrier.finish(through)

    try:
        record = world.run_together(mine, go, interrupt, GRACE_S, finish)
    except RunError as error:
        _count_hosts(getattr(error, "record", None), hosts)
        raise
    return _count_hosts(record, hosts) if world.leads else record


def _play(world: World, mine: Spec, barrier: StepBarrier, observe: Callable[[dict[str, Any]], None]) -> Record:
    """This host's part. Where another host stopped the run, what was measured until then is no failure of this one."""
    try:
        return engine.run(mine, observer=observe, barrier=barrier)
    except (ForebayError, KeyboardInterrupt) as error:
        if not barrier.stopped:
            raise
        world.stopped_by = world.stopped_by or "another host"
        part = getattr(error, "record", None)
        if part is None:
            raise KeyboardInterrupt from error
        record = json.loads(part) if isinstance(part, str) else part
        record["result"]["interrupted"] = True
        return record


def _count_hosts(record: Record | None, hosts: Sequence[str]) -> Record:
    """Several processes of one host are one host."""
    if record is not None and record.get("training"):
        record["training"]["hosts"] = len(set(hosts))
    return record or {}
