"""One run over several hosts, launched by mpirun or srun: start together, merge at rank 0, stop together.

MPI carries the coordination (mpi4py, the extra `[mpi]`); no byte of the measured data goes through it. Every
rank runs the same job on its own sources. The rank that fails stops the others, and what all of them measured
until then is merged and kept.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from forebay.errors import ForebayError, MachineError, RequestError, RunError
from forebay.uri import parsed

Job = dict[str, Any]
Record = dict[str, Any]

INSTALL = "pip install 'forebay[mpi]'"
# Long enough for every rank to reach its clock after the lead named the time, short against any run.
START_LEAD_S = 0.1
# After a stop, how much longer than an I/O's own time-out a rank may take to hand in what it measured.
GRACE_S = 15.0
TAG_STOP, TAG_RESULT, TAG_CLOCK, TAG_HERE, TAG_GO = 71, 72, 73, 74, 75
# Between two looks for the others where ranks meet.
MEET_S = 0.0005
# Of a host's emulated accelerators, beside its own figures.
OF_TRAINING = (
    "accelerators", "au_pct", "samples_per_s", "throughput_mib_s", "samples", "read_bytes", "waited", "headroom"
)  # fmt: skip
LAUNCHERS = (
    ("OMPI_COMM_WORLD_SIZE", "mpirun (Open MPI)"),
    ("PMI_SIZE", "mpirun (MPICH, Intel MPI)"),
    ("MV2_COMM_WORLD_SIZE", "mpirun (MVAPICH)"),
    ("SLURM_STEP_NUM_TASKS", "srun"),
)


def launched(environment: Mapping[str, str] = os.environ) -> tuple[str, int] | None:
    """(launcher, ranks) where a launcher started more than one of us; None for a plain command.

    SLURM_NTASKS isn't asked: a batch script has it too, for a single process.
    """
    for variable, launcher in LAUNCHERS:
        size = environment.get(variable, "")
        if size.isdigit() and int(size) > 1:
            return launcher, int(size)
    return None


def refuse(verb: str, following: str) -> None:
    """RequestError where a launcher started several of a verb that runs once: each would call its number the whole."""
    found = launched()
    if found is not None:
        raise RequestError(f"forebay {verb}", f"{found[1]} processes of {found[0]} would each run alone", following)


def world(explicit: bool = False, host_sources: Sequence[str] = ()) -> World | None:
    """The ranks of this run; None where there is one process only and --mpi wasn't given.

    Raises MachineError where a launcher started several and mpi4py is missing: each would otherwise run alone
    and call its number the whole.
    """
    found = launched()
    if found is None and not explicit:
        if host_sources:
            raise RequestError(
                "--host-source", "only has an effect under mpirun or srun", "mpirun -n 2 forebay bench …"
            )
        return None
    asked = f"{found[1]} processes of {found[0]}" if found else "--mpi"
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise MachineError(asked, f"mpi4py can't be imported ({error})", INSTALL) from None
    except RuntimeError as error:  # mpi4py is there and finds no MPI library
        raise MachineError(asked, str(error).splitlines()[0], "install Open MPI or MPICH") from None
    communicator = MPI.COMM_WORLD
    if found is not None and communicator.size == 1:
        raise MachineError(
            asked,
            "mpi4py sees one rank: it was built for another MPI than the launcher's",
            "pip install --no-binary=mpi4py --force-reinstall mpi4py",
        )
    return World(communicator, parse_host_sources(host_sources))


def parse_host_sources(settings: Sequence[str]) -> dict[str, list[str]]:
    """`HOST=SOURCE` settings as sources by host; a host may be named several times."""
    sources: dict[str, list[str]] = {}
    for setting in settings:
        host, equals, source = setting.partition("=")
        if not equals or not host or not source:
            raise RequestError(
                f"--host-source {setting}", "is not HOST=SOURCE", "--host-source node1=/mnt/nvme0"
            )
        sources.setdefault(host, []).append(source)
    return sources


def job_of_rank(
    job: Job, rank: int, local: int, size: int, host: str, host_sources: Mapping[str, list[str]] | None = None
) -> Job:
    """`job` as one rank runs it: its own sources, file names and random offsets.

    `{rank}`, `{local}` (its number on its host) and `{host}` are replaced in sources; a host that has its own
    `host_sources` uses those. Files in a directory are named by rank unless the job names them. The seed is
    offset by rank, except with `verify`: there it determines the content, which any rank may read.
    """
    mine = dict(job)
    sources = (host_sources or {}).get(host) or (host_sources or {}).get(host.split(".")[0]) or job["sources"]
    names = {"{rank}": str(rank), "{local}": str(local), "{host}": host}
    mine["sources"] = [replace(source, names) for source in sources]
    if size > 1 and "file_name" not in job:
        mine["file_name"] = f"forebay.r{rank}.%d"
    if not job.get("verify"):
        mine["seed"] = int(job.get("seed", 7)) + rank
    return mine


def replace(text: str, names: Mapping[str, str]) -> str:
    for name, value in names.items():
        text = text.replace(name, value)
    return text


def check_targets(jobs: Sequence[tuple[str, Job]]) -> None:
    """Refuses two ranks of one host that would write the same source. `jobs`: (host, job) by rank."""
    writers: dict[tuple[str, str], int] = {}
    for rank, (host, job) in enumerate(jobs):
        for source in job["sources"] if writes(job) else ():
            if parsed(source).has_no_files:
                continue
            other = writers.setdefault((host, source), rank)
            if other != rank:
                raise RequestError(
                    f"writing {source} from ranks {other} and {rank} of {host}",
                    "they would overwrite each other",
                    "{rank} or {local} in SOURCE, as '/data/rank{rank}'",
                )


def _has_own_files(job: Job) -> bool:
    """Returns whether a run that made files left this rank's in one of its sources; else a read takes what is there."""
    from forebay import own_files

    first = str(job.get("file_name", "forebay.%d")).replace("%d", "0")
    return any((path / first).exists() for path in map(own_files.path_of, own_files.named(job)) if path is not None)


def may_make(job: Job) -> bool:
    return writes(job) or bool(job.get("create"))


def writes(job: Job) -> bool:
    percent = job.get("read_pct")
    return job.get("op", "read") in ("write", "randwrite") if percent is None else percent < 100


class World:
    """All ranks of one run. Every method is called by all ranks, in the same order."""

    def __init__(self, communicator: Any, host_sources: Mapping[str, list[str]] | None = None) -> None:
        self.comm = communicator
        self.rank, self.size = communicator.rank, communicator.size
        self.leads = self.rank == 0
        self.host = socket.gethostname()
        self.host_sources = host_sources or {}
        self.stopped_by: str | None = None
        self.lost: list[int] = []
        self.gave_up = False  # waiting for others, which may be gone
        self._part: Path | None = None
        self._merged = False
        self._sends: list[Any] = []
        self._plan: Any = None
        self._started: float | None = None
        self._interrupt: Any = None
        self._clock_ahead_s = 0.0

    def run(self, job: Job, go: Callable[..., Record], observe: Any, interrupt: Any) -> Record:
        """Runs `job` on every rank and returns the merged record at rank 0, its own at the others.

        Raises on every rank: what any rank's plan refuses (RequestError, MachineError), before anything runs;
        RunError naming the rank that broke, its `.record` being what was measured.
        """
        self._started = None
        mine = self._agree_on_jobs(job)
        self._make_files(mine, go)
        return self.run_together(mine, go, interrupt, float(job.get("timeout_s") or 30.0))

    def run_together(
        self,
        job: Job,
        go: Callable[..., Record],
        interrupt: Any,
        timeout_s: float,
        finish: Callable[[], None] | None = None,
    ) -> Record:
        """`go(job)` on every rank from the same moment on; merged at rank 0. `finish` follows once this rank's part is kept."""
        self.stopped_by, self._started, self._interrupt = None, None, interrupt
        self._start_together()
        outcome = self._measure(job, go, interrupt)
        if finish is not None:
            finish()
        gathered = self._gather(outcome, timeout_s)
        if not self.lost and not self.gave_up:
            self._rest()
        return self._merge(gathered) if self.leads else self._result_of(outcome)

    def meet(self) -> None:
        """Returns when every rank has called it; KeyboardInterrupt when one has ended the run instead.

        By messages, since a rank that ends leaves a barrier of MPI's open for good.
        """
        if self.leads:
            waiting = set(range(1, self.size))
            while waiting:
                if self._hears(TAG_HERE):
                    waiting.discard(self.comm.recv(tag=TAG_HERE))
            self._sends += [self.comm.isend(None, dest=rank, tag=TAG_GO) for rank in range(1, self.size)]
        else:
            self._sends.append(self.comm.isend(self.rank, dest=0, tag=TAG_HERE))
            while not self._hears(TAG_GO):
                pass
            self.comm.recv(source=0, tag=TAG_GO)

    def _hears(self, tag: int) -> bool:
        """Returns whether a message is there, after a short nap if not."""
        self._heed_stops()
        if self.comm.iprobe(tag=tag):
            return True
        time.sleep(MEET_S)
        return False

    def watch(self, progress: dict[str, Any]) -> None:
        """For the observer: notes when measuring began, and ends the run when another rank has."""
        if self._started is None and progress.get("phase") in ("measure", "run"):
            self._started = time.monotonic() - (progress.get("t_s") or 0.0)
        self._heed_stops()

    def _heed_stops(self) -> None:
        """KeyboardInterrupt once another rank has ended the run, or this one was told to. Observer and barrier are
        called by different threads: only one of them gets the message, and both end."""
        if message := self.comm.improbe(tag=TAG_STOP):
            self.stopped_by = message.recv()
        if self.stopped_by is not None or (self._interrupt is not None and self._interrupt.requested):
            raise KeyboardInterrupt

    def agree(self, code: int) -> int:
        """The lead's exit code, on every rank: a launcher reports whichever it meets first."""
        if self.lost or self.gave_up:
            self.comm.Abort(code)
        self._drop_late_stops()
        code, merged = self.comm.bcast((code, self._merged), root=0)
        if merged and self._part is not None:  # the merged record is saved, and holds this rank's part
            self._part.unlink(missing_ok=True)
        return code

    def count_hosts(self) -> int:
        """Several ranks may be on one."""
        return len(set(self.comm.allgather(self.host)))

    def each(self, mine: Any) -> list[tuple[str, Any]]:
        """Every rank's, with its host."""
        return list(self.comm.allgather((self.host, mine)))

    def anywhere(self, mine: bool) -> bool:
        """Returns whether it holds on any rank."""
        return any(self.comm.allgather(mine))

    def _rest(self) -> None:
        """A barrier that sleeps: MPI's own spins, and would take cores from ranks that still measure."""
        request = self.comm.Ibarrier()
        while not request.Test():
            time.sleep(0.01)

    def _agree_on_jobs(self, job: Job) -> Job:
        """This rank's job, once every rank's plan has been found good."""
        from forebay import run as engine

        hosts = self.comm.allgather(self.host)
        local = hosts[: self.rank].count(self.host)
        mine = job_of_rank(job, self.rank, local, self.size, self.host, self.host_sources)
        if "file_name" not in job and not may_make(job) and not _has_own_files(mine):
            mine.pop("file_name", None)

        def plan() -> None:
            self._plan = engine.plan(mine)

        self.all_agree(plan)
        check_targets(self.comm.allgather((self.host, mine)))
        return mine

    def all_agree(self, check: Callable[[], Any]) -> None:
        """Calls `check` on every rank, and raises on all of them what it raises on any."""
        refusal = None
        try:
            check()
        except ForebayError as error:
            refusal = (type(error), error.asked, error.found, error.next)
        for rank, (host, found) in enumerate(self.comm.allgather((self.host, refusal))):
            if found is not None:
                kind, asked, why, following = found
                raise kind(f"{asked} (rank {rank} on {host})", why, following)

    def _make_files(self, job: Job, go: Callable[..., Record]) -> None:
        """Makes missing files before the common start, by a read of the least length.

        In rounds: a directory takes one maker at a time, so on a shared one the ranks that found it taken try
        again once the others are done. A round in which no rank got further ends it.
        """
        brief = {k: v for k, v in job.items() if k not in ("passes", "limit_bytes", "limit_ios", "until_ci_pct", "until_steady")}
        brief.update(duration_s=0.001, warmup_s=0.0, repeat=1)
        due = not writes(job) and bool(self._plan["files_to_make"])
        while True:
            tried, failure = due, None
            if due:
                try:
                    go(brief, None)
                    due = False
                except ForebayError as error:
                    failure = (type(error), error.asked, error.found, error.next)
            outcomes = self.comm.allgather((tried, failure))
            failures = [(rank, found) for rank, (_, found) in enumerate(outcomes) if found is not None]
            if not failures:
                return
            if len(failures) == sum(tried for tried, _ in outcomes):
                rank, found = failures[0]
                raise found[0](f"{found[1]} (rank {rank})", *found[2:])

    def _start_together(self) -> None:
        """A barrier, then a time on the lead's clock that every rank waits for on its own."""
        self._clock_ahead_s = self._measure_clock()
        self.comm.barrier()
        start = self.comm.bcast(time.monotonic() + START_LEAD_S if self.leads else None, root=0)
        delay = start + self._clock_ahead_s - time.monotonic()
        time.sleep(min(max(0.0, delay), 10 * START_LEAD_S))

    def _measure_clock(self, rounds: int = 8) -> float:
        """Seconds that this rank's clock is ahead of the lead's, by the exchange that took least.

        Of monotonic clocks, which count from another moment on each host but can't be set in the middle of a run.
        """
        ahead = 0.0
        for rank in range(1, self.size):
            if self.leads:
                for _ in range(rounds):
                    self.comm.recv(source=rank, tag=TAG_CLOCK)
                    self.comm.send(time.monotonic(), dest=rank, tag=TAG_CLOCK)
            elif rank == self.rank:
                ahead = min((self._exchange() for _ in range(rounds)), key=lambda e: e[0])[1]
            self.comm.barrier()
        return ahead

    def _exchange(self) -> tuple[float, float]:
        sent = time.monotonic()
        self.comm.send(None, dest=0, tag=TAG_CLOCK)
        theirs = self.comm.recv(source=0, tag=TAG_CLOCK)
        received = time.monotonic()
        return received - sent, (sent + received) / 2 - theirs

    def _measure(self, job: Job, go: Callable[..., Record], interrupt: Any) -> dict[str, Any]:
        """This rank's part as {host, rank, record, failure, interrupted, began}."""
        record, failure = None, None
        try:
            record = go(job)
        except ForebayError as error:
            record = getattr(error, "record", None)
            record = json.loads(record) if isinstance(record, str) else record
            failure = str(error)
        except KeyboardInterrupt:
            failure = "interrupted before anything was measured"
        broke = failure is not None or bool(interrupt.requested)
        if broke and self.stopped_by is None:
            self._stop_others(failure or "interrupted")
            if record is not None and interrupt.requested:
                self._keep_part(record)
        began = None if self._started is None else self._started - self._clock_ahead_s
        return {
            "host": self.host,
            "rank": self.rank,
            "record": record,
            "failure": failure if self.stopped_by is None else None,
            "interrupted": bool(interrupt.requested),
            "began": began,
        }

    def _stop_others(self, why: str) -> None:
        for rank in range(self.size):
            if rank != self.rank:
                reported = f"rank {self.rank} on {self.host}: {why}"
                self._sends.append(self.comm.isend(reported, dest=rank, tag=TAG_STOP))

    def _keep_part(self, record: Record) -> None:
        """A launcher that is ended kills its ranks soon: keep this one's part before trying to merge."""
        from forebay.bench import save

        self._part = save.rescue(record, suffix=f"-rank{self.rank}")

    def _gather(self, outcome: dict[str, Any], timeout_s: float) -> list[dict[str, Any]]:
        """Every rank's outcome at rank 0, waiting without end only while no rank has stopped."""
        if not self.leads:
            self._hand_in(outcome, timeout_s)
            return []
        gathered = [outcome]
        waiting = set(range(1, self.size))
        stopped = outcome["failure"] or outcome["interrupted"] or self.stopped_by
        deadline = time.monotonic() + timeout_s + GRACE_S if stopped else None
        while waiting and (deadline is None or time.monotonic() < deadline):
            if not self.comm.iprobe(tag=TAG_RESULT):
                time.sleep(0.01)
                continue
            found = json.loads(self.comm.recv(tag=TAG_RESULT))
            gathered.append(found)
            waiting.discard(found["rank"])
            if deadline is None and (found["failure"] or found["interrupted"]):
                deadline = time.monotonic() + timeout_s + GRACE_S
        self.lost = sorted(waiting)
        for rank in self.lost:
            lost = {"host": "?", "record": None, "interrupted": False, "began": None}
            gathered.append({**lost, "rank": rank, "failure": "did not answer after the run was stopped"})
        return sorted(gathered, key=lambda g: g["rank"])

    def _hand_in(self, outcome: dict[str, Any], timeout_s: float) -> None:
        request = self.comm.isend(json.dumps(outcome), dest=0, tag=TAG_RESULT)
        deadline = time.monotonic() + timeout_s + GRACE_S
        while not request.test()[0]:
            if outcome["interrupted"] and time.monotonic() > deadline:
                return
            time.sleep(0.01)

    def _merge(self, gathered: list[dict[str, Any]]) -> Record:
        """One record out of the ranks', with each one's own figures; RunError where a rank failed."""
        from forebay import _core

        records = [g["record"] for g in gathered if g["record"] is not None]
        failures = [f"rank {g['rank']} on {g['host']}: {g['failure']}" for g in gathered if g["failure"]]
        merged = json.loads(_core.merge([json.dumps(r) for r in records])) if records else None
        if merged is not None:
            merged["result"]["hosts"] = host_results(gathered)
            merged["warnings"] += warn(gathered)
            self._merged = True
        if failures:
            following = "run the job on the failing host alone to see the cause"
            error = RunError(f"a run on {self.size} ranks", "; ".join(failures), following)
            error.record = merged  # type: ignore[attr-defined]
            raise error
        if merged is None:
            raise KeyboardInterrupt
        return merged

    def _result_of(self, outcome: dict[str, Any]) -> Record:
        if outcome["record"] is None:
            raise RunError("this rank", outcome["failure"] or "measured nothing")
        return outcome["record"]

    def _drop_late_stops(self) -> None:
        for tag in (TAG_STOP, TAG_HERE, TAG_GO):
            while self.comm.iprobe(tag=tag):
                self.comm.recv(tag=tag)


def host_results(gathered: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """An entry for each rank: host, figures, when it began measuring (seconds after the first), failure."""
    first = min((g["began"] for g in gathered if g["began"] is not None), default=None)
    entries = []
    for found in gathered:
        entry: dict[str, Any] = {"host": found["host"], "rank": found["rank"]}
        if found["record"] is not None:
            keys = ("seconds", "bytes", "ios", "throughput_gib_s", "iops", "latency_us", "cpu", "errors")
            entry["id"] = found["record"].get("id")
            entry["source"] = found["record"]["job"].get("source")
            entry.update({k: found["record"]["result"].get(k) for k in keys})
            if training := found["record"].get("training"):
                entry["training"] = {k: training.get(k) for k in OF_TRAINING}
        began = found["began"]
        entry["started_after_s"] = None if began is None or first is None else began - first
        entry["failure"] = found["failure"]
        entries.append(entry)
    return entries


def warn(gathered: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """Ranks that didn't measure over the same seconds don't add up to a total."""
    began = [g["began"] for g in gathered if g["began"] is not None]
    spans = [g["record"]["result"]["seconds"] for g in gathered if g["record"] is not None]
    warnings = []
    apart = max(began) - min(began) if len(began) > 1 else 0.0
    if spans and apart > 0.05 * min(spans) and apart > 0.25:
        text = f"ranks began measuring up to {apart:.2f} s apart, so their rates overlap only in part"
        warnings.append({"id": "apart", "text": text, "next": "a longer --duration, or --warmup 5"})
    if len(spans) > 1 and min(spans) < 0.9 * max(spans):
        text = f"the fastest rank measured for {min(spans):.2f} s, the slowest for {max(spans):.2f} s"
        warnings.append({"id": "uneven", "text": text, "next": "--duration in place of --passes"})
    return warnings
