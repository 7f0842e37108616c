"""Several hosts: what each rank is given, and real runs under mpirun with made-up engines and real processes."""

from __future__ import annotations

import copy
import json
import os
import signal
import socket
import sys
import threading
from pathlib import Path

import click
import processes
import pytest
from forebay import mpi
from forebay.bench import listen
from forebay.errors import MachineError, RequestError
from mpi_support import AS_ROOT, MPIRUN, needs_mpi, two_hosts  # noqa: F401  (two_hosts is a fixture)
from properties import parametrized

HERE = Path(__file__).parent

# By which a rank may be behind the others before any has begun.
LATE_S = 3

# `forebay` with an engine whose speed and faults depend on its rank; merging adds up what a record's reader needs.
DRIVER = f"""
import json, os, sys, time
sys.path.insert(0, {str(HERE)!r})
import fake_engine, forebay.run, forebay._core, forebay.cli
from forebay.errors import MachineError, RunError
rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", 0))
how = os.environ.get("HOW", "")

def note(what):
    "Leaves the time in a file, whole: those who wait for it read it at once."
    with open(f".{{what}}.{{rank}}", "w") as file:
        file.write(repr(time.time()))
    os.replace(file.name, f"{{what}}.{{rank}}")

def run(job, *, observer=None, command=None):
    note("began")
    def observe(progress):
        observer(progress)
        if not os.path.exists(f"running.{{rank}}"):
            note("running")
    if how == "breaks" and rank == 1:
        observe(fake_engine.progress(t_s=0.0))
        while not os.path.exists("running.0"):
            time.sleep(0.01)
        error = RunError("reading", "I/O error")
        error.record = fake_engine.record(bytes=111, ios=1)
        raise error
    record = fake_engine.slow_run(float(os.environ.get("SECONDS_LONG", 1)))(job, observer=observe)
    record["id"] = f"{{rank:016x}}"
    return record

def plan(job):
    if how == "refuses" and rank == 1:
        raise MachineError("/data", "there is no such directory", "mkdir /data")
    if how == "late" and rank == 1:
        time.sleep({LATE_S})
        note("ready")
    job = {{**fake_engine.RECORD["job"], "pages": "auto", "engine": "auto", "cache": "bypass", "repeat": 1}}
    sizes = {{"data_bytes": 0, "buffer_bytes": 0}}
    return {{"job": job, "path": "host", "targets": [], "files_to_make": [], "files_to_overwrite": [], **sizes}}

def merge(records):
    records = [json.loads(r) for r in records]
    whole = records[0]
    whole["id"] = "feedfeedfeedfeed"
    whole["result"]["throughput_gib_s"] = sum(r["result"]["throughput_gib_s"] for r in records)
    whole["result"]["bytes"] = sum(r["result"]["bytes"] for r in records)
    whole["result"]["interrupted"] = any(r["result"]["interrupted"] for r in records)
    return json.dumps(whole)

forebay.run.run, forebay.run.plan, forebay._core.merge = run, plan, merge
forebay.cli.main(sys.argv[1:])
"""


def flags(parameters):
    return [word for key, value in parameters.items() for word in ("--mca", key, value)]


def start(tmp_path, *arguments, ranks=2, how="", seconds=1.0, mca=None):
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    environment = {**os.environ, **AS_ROOT, "HOW": how, "SECONDS_LONG": str(seconds)}
    launcher = [MPIRUN, "--oversubscribe", "-n", ranks, *flags(mca or {})]
    return processes.start([*launcher, sys.executable, script, *arguments], cwd=tmp_path, env=environment)


def mpirun(tmp_path, *arguments, **options):
    done = processes.finish(start(tmp_path, *arguments, **options))
    return done.returncode, done.stdout, done.stderr


@pytest.mark.promise("BEN-33")
@needs_mpi
def test_two_ranks_make_one_record_with_both_in_it(tmp_path):
    code, out, err = mpirun(tmp_path, "bench", "/data/{rank}", "--json", "-o", "both.json")
    assert code == 0, err
    record = json.loads(out)
    assert record["result"]["throughput_gib_s"] == 4.0
    hosts = record["result"]["hosts"]
    assert [h["rank"] for h in hosts] == [0, 1] and all(h["throughput_gib_s"] == 2.0 for h in hosts)
    assert all(h["failure"] is None for h in hosts)
    assert json.loads((tmp_path / "both.json").read_text())["id"] == "feedfeedfeedfeed"
    assert err.count("GiB/s · 2,048 IOPS") >= 1 and err.count("machine   ") == 1, (
        "one summary, not one a rank"
    )


def noted(tmp_path, what):
    """When each rank left that note, by rank."""
    return {int(p.suffix[1:]): float(p.read_text()) for p in tmp_path.glob(f"{what}.*")}


def check_they_waited_for_the_late_one(tmp_path, hosts):
    ready, began = noted(tmp_path, "ready"), noted(tmp_path, "began")
    assert list(ready) == [1] and sorted(began) == list(range(len(hosts)))
    assert min(began.values()) >= ready[1], "a rank began before the last one was ready"
    after = [h["started_after_s"] for h in hosts]
    assert min(after) == 0.0 and max(after) < LATE_S, "the delay before the start is not one of the run's"


@pytest.mark.promise("BEN-33")
@needs_mpi
@pytest.mark.long
def test_ranks_begin_together_however_late_one_is(tmp_path):
    code, out, err = mpirun(tmp_path, "bench", "nil:", "--json", ranks=3, how="late")
    assert code == 0, err
    check_they_waited_for_the_late_one(tmp_path, json.loads(out)["result"]["hosts"])


@pytest.mark.promise("TRA-41")
@pytest.mark.parametrize("rank", [0, 1])
def test_each_rank_waits_for_the_agreed_time_by_its_own_clock(monkeypatch, rank):
    """The lead's clock says 100 when rank 1's, 7 s ahead, says 107; a start at T is at T + 7 there.

    Nothing but monotonic clocks is asked: a clock that is set during a run moves no start, and no rank's beginning.
    """
    clock, waits = 100.0 + 7 * rank, []

    class Clock:
        monotonic = staticmethod(lambda: clock)
        sleep = staticmethod(waits.append)

    class Communicator:
        size = 2
        reported = iter([93.5, 100.0, 93.5])  # what rank 1 hears from the lead, asking three times

        def __init__(self):
            self.rank = rank

        def barrier(self):
            pass

        def send(self, *_, **__):
            pass

        def recv(self, source=None, tag=None):
            nonlocal clock
            if self.rank == 0:
                return None
            reported = next(self.reported)
            clock += 0.0 if reported == 100.0 else 13.0  # a slow exchange tells nothing
            return reported + (clock - 107.0 if reported == 100.0 else 0.0)

        def bcast(self, value, root=0):
            return value if self.rank == 0 else clock - 7.0 + mpi.START_LEAD_S / 2

    monkeypatch.setattr(mpi, "time", Clock)
    world = mpi.World(Communicator())
    monkeypatch.setattr(world, "_measure_clock", lambda: mpi.World._measure_clock(world, rounds=3))
    world._start_together()
    assert waits == pytest.approx([mpi.START_LEAD_S / (1 + rank)])
    monkeypatch.setattr(world, "_heed_stops", lambda: None)
    world.watch({"phase": "run", "t_s": 2.0})
    assert world._started == pytest.approx(clock - 2.0)


class Ranks:
    """A communicator for ranks that are threads, as far as an agreement needs one."""

    def __init__(self, size):
        self.size, self.rank, self.parts = size, 0, {}
        self.all_here = threading.Barrier(size)

    def of(self, rank):
        mine = copy.copy(self)
        mine.rank = rank
        return mine

    def allgather(self, value):
        self.parts[self.rank] = value
        self.all_here.wait(processes.PATIENCE_S)
        gathered = [self.parts[rank] for rank in range(self.size)]
        self.all_here.wait(processes.PATIENCE_S)
        return gathered


@pytest.mark.promise("BEN-20")
@pytest.mark.parametrize("taken", [True, False])
def test_where_the_lead_cannot_open_the_port_of_metrics_all_ranks_end(taken, capfd):
    """And where it can, it alone listens, even if the others weren't given --metrics."""
    ranks, outcomes = Ranks(3), {}
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1] if taken else 0
        if taken:
            other.listen()

        def enter(rank):
            try:
                with listen.listening(None if rank == 2 else f"127.0.0.1:{port}", world=mpi.World(ranks.of(rank))) as endpoint:
                    outcomes[rank] = "listens" if endpoint is not None else "runs"
            except (MachineError, click.exceptions.Exit) as error:
                outcomes[rank] = error

        threads = [threading.Thread(target=enter, args=(rank,)) for rank in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(processes.PATIENCE_S)
    if not taken:
        assert outcomes == {0: "listens", 1: "runs", 2: "runs"} and capfd.readouterr().err.count("metrics   http://") == 1
        return
    assert isinstance(outcomes[0], MachineError) and "can't listen there" in str(outcomes[0])
    assert [type(outcomes[rank]) for rank in (1, 2)] == [click.exceptions.Exit] * 2, "the lead alone says it"
    assert [outcome.exit_code for outcome in outcomes.values()] == [3] * 3


TRAINING = ("--workload", "unet3d", "--accelerator", "h100", "--data", ".")


@pytest.mark.long
@pytest.mark.promise("BEN-20")
@needs_mpi
@parametrized(
    "words",
    [
        ("bench", "nil:"),
        ("emulate", "search", *TRAINING),
        pytest.param(("emulate", "run", *TRAINING), marks=pytest.mark.long),
        pytest.param(("emulate", "checkpoint", "--workload", "llama3-8b", "--dir", "made"), marks=pytest.mark.long),
    ],
    ids=lambda words: " ".join(words[:2]),
    kept=(0,),
)
def test_a_port_of_metrics_that_is_taken_ends_a_run_on_all_ranks_before_it_begins(words, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        # An engine that ran would go on for longer than anything is waited for here.
        code, out, err = mpirun(tmp_path, *words, "--metrics", str(port), seconds=10 * processes.PATIENCE_S)
    assert code == 3 and out == "", err
    assert err.count("can't listen there") == 1 and f"--metrics {port}" in err and "another port" in err
    assert [p.name for p in tmp_path.iterdir()] == ["driver.py"]


@pytest.mark.long
@pytest.mark.promise("BEN-33")
@needs_mpi
def test_a_rank_that_breaks_ends_the_run_and_what_was_measured_is_kept(tmp_path):
    # The other rank would go on for longer than anything is waited for here.
    code, out, err = mpirun(tmp_path, "bench", "nil:", how="breaks", seconds=10 * processes.PATIENCE_S)
    assert code == 4
    assert "rank 1 on " in err and "I/O error" in err and "Traceback" not in err
    saved = json.loads((tmp_path / "forebay-feedfeedfeedfeed.json").read_text())
    assert saved["result"]["bytes"] > 111, "both parts are in it"
    assert [h["failure"] is None for h in saved["result"]["hosts"]] == [True, False]


@pytest.mark.long
@pytest.mark.promise("BEN-33")
@needs_mpi
def test_a_plan_that_one_rank_refuses_runs_nowhere(tmp_path):
    code, out, err = mpirun(tmp_path, "bench", "/data", how="refuses", seconds=10 * processes.PATIENCE_S)
    assert code == 3
    assert err.count("there is no such directory") == 1 and "(rank 1 on " in err and out == ""
    assert noted(tmp_path, "began") == {}


@pytest.mark.long
@needs_mpi
def test_ctrl_c_at_mpirun_keeps_what_was_measured(tmp_path):
    # mpirun kills what hasn't ended a second after it was told to. A busy machine needs more to save a record.
    patient = {"odls_base_sigkill_timeout": "10"}
    started = start(tmp_path, "bench", "nil:", seconds=10 * processes.PATIENCE_S, mca=patient)
    try:
        processes.wait_until(lambda: len(noted(tmp_path, "running")) == 2, "both ranks measure", started)
        started.send_signal(signal.SIGINT)
    finally:
        processes.finish(started)
    kept = [json.loads(p.read_text()) for p in tmp_path.glob("forebay-*.json")]
    assert kept and all(k["result"]["interrupted"] and k["result"]["ios"] for k in kept)


@pytest.mark.long
@needs_mpi
def test_a_dry_run_is_printed_once(tmp_path):
    code, out, err = mpirun(tmp_path, "bench", "/data", "--dry-run")
    assert code == 0 and out.count("nothing was changed") == 1, err


@pytest.mark.long
@needs_mpi
def test_two_ranks_over_the_real_engine(tmp_path):
    launcher = [MPIRUN, "--allow-run-as-root", "--oversubscribe", "-n", "2", *processes.FOREBAY]
    job = ("--create", "--file-size", "4m", "--passes", "50", "--cache", "allow", "--json", "-q")
    done = processes.run([*launcher, "bench", tmp_path, *job], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    result = record["result"]
    # What both ranks saw of their one host's devices stands there once.
    if record["cache"]["device_bytes"] is not None:
        assert record["cache"]["device_bytes"] == sum(record["cache"]["devices"].values())
    assert sorted(p.name for p in tmp_path.glob("forebay.r*")) == ["forebay.r0.0", "forebay.r1.0"]
    assert result["bytes"] == sum(h["bytes"] for h in result["hosts"]) > 0
    assert result["ios"] == sum(h["ios"] for h in result["hosts"])
    assert len(result["hosts"]) == 2 and result["histogram"]
    # A later read takes the files that each rank made, and elsewhere what is there; it makes none.
    (tmp_path / "data" / "below").mkdir(parents=True)
    (tmp_path / "data" / "below" / "part").write_bytes(bytes(1 << 20))
    flags = [f for f in job if f not in ("--create", "--file-size", "4m")]
    for source, name in ((tmp_path, "forebay.r0.0"), (tmp_path / "data", "below/part")):
        done = processes.run([*launcher, "bench", source, *flags], cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert str(source / name) in {t["target"] for t in json.loads(done.stdout)["result"]["targets"]}
    assert [p.name for p in (tmp_path / "data").iterdir()] == ["below"]


@pytest.mark.long
@pytest.mark.promise("BEN-33")
@pytest.mark.root
@needs_mpi
def test_two_hosts_make_one_record(tmp_path, two_hosts):  # noqa: F811
    names, launcher = two_hosts
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    launcher += ["-x", "HOW"]
    environment = {**os.environ, "PYTHONPATH": os.environ.get("PYTHONPATH", ""), "HOW": "late"}
    job = ("bench", "/data/{host}", "--json", "-o", tmp_path / "run.json")
    done = processes.run([*launcher, sys.executable, script, *job], env=environment)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    hosts = record["result"]["hosts"]
    assert [h["host"] for h in hosts] == [f"{n}.test" for n in names]
    assert record["result"]["throughput_gib_s"] == 4.0
    check_they_waited_for_the_late_one(tmp_path, hosts)


def without_mpi4py(tmp_path):
    """A directory that hides mpi4py from an interpreter that has it."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "mpi4py.py").write_text("raise ImportError('no mpi4py here')\n")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(hidden), os.environ.get("PYTHONPATH", "")])}


@parametrized(
    ("variable", "flag"), [("OMPI_COMM_WORLD_SIZE", ()), ("PMI_SIZE", ()), (None, ("--mpi",))],
    kept=(0, 2),
)
def test_a_launcher_without_mpi4py_is_refused_with_what_to_install(tmp_path, variable, flag):
    environment = without_mpi4py(tmp_path) | ({variable: "2"} if variable else {})
    done = processes.run([*processes.FOREBAY, "bench", "nil:", *flag], env=environment)
    assert done.returncode == 3
    assert "pip install 'forebay[mpi]'" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.promise("BEN-33")
@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, None),
        ({"OMPI_COMM_WORLD_SIZE": "1"}, None),
        ({"OMPI_COMM_WORLD_SIZE": "4"}, ("mpirun (Open MPI)", 4)),
        ({"SLURM_NTASKS": "8"}, None),
        ({"SLURM_STEP_NUM_TASKS": "8"}, ("srun", 8)),
        ({"PMI_SIZE": "many"}, None),
    ],
)
def test_launchers_are_told_from_plain_commands(environment, found):
    assert mpi.launched(environment) == found


def test_each_rank_gets_its_own_sources_seed_and_file_names():
    job = {"sources": ["/nvme{local}/{host}.{rank}"], "seed": 100}
    mine = mpi.job_of_rank(job, rank=5, local=1, size=8, host="node2")
    assert (
        mine["sources"] == ["/nvme1/node2.5"] and mine["seed"] == 105 and mine["file_name"] == "forebay.r5.%d"
    )
    assert job["sources"] == ["/nvme{local}/{host}.{rank}"], "the job itself is left as it was"


def test_verified_content_keeps_one_seed():
    assert "seed" not in mpi.job_of_rank({"sources": ["/a"], "verify": True}, 3, 0, 4, "h")


def test_a_host_may_have_sources_of_its_own():
    given = mpi.parse_host_sources(["node1=/mnt/a", "node1=/mnt/b", "node2=nvme+tcp://h:4420/nqn?nsid=1"])
    assert mpi.job_of_rank({"sources": ["/x"]}, 0, 0, 2, "node1.cluster", given)["sources"] == [
        "/mnt/a",
        "/mnt/b",
    ]
    assert mpi.job_of_rank({"sources": ["/x"]}, 0, 0, 2, "node9", given)["sources"] == ["/x"]
    with pytest.raises(RequestError, match="is not HOST=SOURCE"):
        mpi.parse_host_sources(["node1"])


def test_two_ranks_of_a_host_may_not_write_one_source():
    job = {"sources": ["/data/t"], "op": "write"}
    with pytest.raises(RequestError, match="overwrite each other"):
        mpi.check_targets([("h", job), ("h", job)])
    mpi.check_targets([("h1", job), ("h2", job)])
    mpi.check_targets([("h", {**job, "op": "read"})] * 2)
    mpi.check_targets([("h", {**job, "sources": ["nil:"]})] * 2)


def test_ranks_that_did_not_overlap_are_warned_about():
    part = {"record": {"result": {"seconds": 2.0}}}
    far = mpi.warn([{**part, "began": 10.0}, {**part, "began": 11.0}])
    assert [w["id"] for w in far] == ["apart"] and "1.00 s" in far[0]["text"]
    assert mpi.warn([{**part, "began": 10.0}, {**part, "began": 10.05}]) == []
    short = {"record": {"result": {"seconds": 1.0}}, "began": 10.0}
    assert [w["id"] for w in mpi.warn([{**part, "began": 10.0}, short])] == ["uneven"]


def test_host_sources_without_a_launcher_are_refused(monkeypatch):
    for variable, _ in mpi.LAUNCHERS:
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(RequestError, match="only has an effect under mpirun or srun"):
        mpi.world(host_sources=["a=/b"])


def test_a_launcher_of_another_mpi_is_noticed(monkeypatch):
    class Module:
        COMM_WORLD = type("C", (), {"size": 1, "rank": 0})()

    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setitem(sys.modules, "mpi4py", type("M", (), {"MPI": Module}))
    with pytest.raises(MachineError, match="built for another MPI"):
        mpi.world()
