"""Emulated accelerators on several hosts: barriers, merging, hosts that are unequal, stop or die; under a real mpirun."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path

import processes
import pytest
from forebay.emulate import hosts
from forebay.errors import RequestError
from mpi_support import AS_ROOT, MPIRUN, needs_mpi, two_hosts  # noqa: F401  (two_hosts is a fixture)

HERE = Path(__file__).parent
# GiB/s that keep an H100 of 3D U-Net at 90 %.
NEEDED = 0.9 * 3029.92 / 1024
STEPS, SLOWER_S = 40, 0.02

# `forebay emulate run` over an engine that plays lockstep in real time: rank 1 computes longer than rank 0. When each came to its
# barriers and when it went on is in its record, by the clock that they share, so that a test sees who waited for whom. HOW says
# what befalls rank 1. A rank's file `under-way-RANK` comes with its tenth step.
DRIVER = f"""
import json, os, signal, sys, time
sys.path.insert(0, {str(HERE)!r})
import fake_engine, fake_storage, forebay._core, forebay.cli
from forebay.emulate import engine, hosts
from forebay.errors import RunError
rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", 0))
how, steps = os.environ.get("HOW", ""), int(os.environ.get("STEPS", {STEPS}))
storage = fake_storage.FakeStorage(float(os.environ.get("GIB_S", 100.0)))
played = 0

def run(spec, *, observer=None, command=None, barrier=None):
    global played
    played += 1
    done, came, ended, mine = 0, [], [], steps + (5 if how == "longer" and rank == 1 else 0)
    def part():
        record = storage.record({{**spec, "steps_max": done or 1}}, rank)
        record["result"]["interrupted"] = done < mine
        record["spec"], record["came"], record["ended"] = spec, came, ended
        return record
    try:
        for step in range(mine):
            observer({{"phase": "run", "t_s": 0.0, "step": step}})
            time.sleep({SLOWER_S} if rank == 1 else 0.001)
            if how == "breaks" and rank == 1 and step == 7:
                error = RunError("reading file 3", "its checksum is wrong")
                error.record = json.dumps(part())
                raise error
            if how == "killed" and rank == 1 and step == 7 or how == "killed later" and rank == 1 and played == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            came.append(time.monotonic())
            barrier(0, step)
            ended.append(time.monotonic())
            done += 1
            if done == 10:
                open(f"under-way-{{rank}}", "w").close()
    except KeyboardInterrupt:
        if not done:
            raise
    return part()

def merge(records):
    records = [json.loads(r) for r in records]
    whole = json.loads(json.dumps(records[0]))
    whole["id"] = "feedfeedfeedfeed"
    whole["training"]["accelerators"] = sum(r["training"]["accelerators"] for r in records)
    whole["result"]["interrupted"] = any(r["result"]["interrupted"] for r in records)
    whole["parts"] = [dict(spec=r["spec"], came=r["came"], ended=r["ended"]) for r in records]
    return json.dumps(whole)

engine.run, engine.check, forebay._core.merge = run, (lambda spec: spec), merge
hosts.files_read = lambda spec, ranks: 1000
forebay.cli.main(sys.argv[1:])
"""
RUN = ("emulate", "run", "--workload", "unet3d", "--accelerator", "h100", "--accelerators", "3", "--data")


SEARCH = ("emulate", "search", "--workload", "unet3d", "--accelerator", "h100", "--probe", "1", "--confirm", "2", "--data")


def start(tmp_path, *arguments, how="", ranks=2, launcher=()):
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    environment = {**os.environ, "HOW": how, **AS_ROOT}
    command = [*(launcher or (MPIRUN, "--oversubscribe", "-n", ranks)), sys.executable, script, *arguments]
    return processes.running(command, cwd=tmp_path, env=environment)


def mpirun(tmp_path, *arguments, **options):
    with start(tmp_path, *arguments, **options) as started:
        done = processes.finish(started)
    return done.returncode, done.stdout, done.stderr


# The barrier alone, of a real MPI: in a first round both ranks go to their end, in a second rank 1 stops before its fourth step.
BARRIER = """
import json, sys, time
from mpi4py import MPI
from forebay.emulate.hosts import StepBarrier
world, came, ended, reported = MPI.COMM_WORLD, [], [], []
rank = world.rank
barrier = StepBarrier(world, lambda: False)
for step in range(12):
    time.sleep(0.002 if step % 2 == rank else 0)
    came.append(time.monotonic())
    barrier(0, step)
    ended.append(time.monotonic())
reported.append(barrier.finish(True))
barrier = StepBarrier(world, lambda: False)
for step in range(3 if rank else 9):
    try:
        barrier(1, step)
    except KeyboardInterrupt:
        reported.append(step)
        break
reported += [barrier.stopped, barrier.finish(False)]
with open(f"rank-{rank}.json", "w") as file:
    json.dump([came, ended, reported], file)
MPI.Finalize()
"""


@pytest.mark.long
@pytest.mark.promise("TRA-31")
@needs_mpi
def test_two_ranks_end_each_step_together_and_stop_behind_the_same_one(tmp_path):
    command = [MPIRUN, "--oversubscribe", "-n", "2", sys.executable, "-c", BARRIER]
    done = processes.run(command, cwd=tmp_path, env={**os.environ, **AS_ROOT})
    # Where a machine is busy, Open MPI's launcher may learn of a rank's end before it learns that the rank finalized.
    files = [tmp_path / f"rank-{rank}.json" for rank in (0, 1)]
    assert all(file.exists() for file in files), done.stderr
    (came, ended, reported), (came_1, ended_1, reported_1) = (json.loads(file.read_text()) for file in files)
    assert [len(steps) for steps in (came, came_1, ended, ended_1)] == [12] * 4
    assert all(max(a, b) <= min(c, d) for a, b, c, d in zip(came, came_1, ended, ended_1, strict=True))
    # Whoever stops by itself isn't stopped by another.
    assert reported == [True, 3, True, True] and reported_1 == [True, False, True]


# The one run of several processes here that isn't `long`: two seconds. It compares who came when, and measures no time.
@pytest.mark.long
@pytest.mark.promise("TRA-31")
@needs_mpi
def test_hosts_are_one_run_whose_steps_end_together(tmp_path):
    code, out, err = mpirun(tmp_path, *RUN, "/data/{rank}", "--json", "--seed", "5")
    assert code == 0, err
    record = json.loads(out)
    specs = [p["spec"] for p in record["parts"]]
    assert [(s["first_rank"], s["accelerators"], s["ranks"]) for s in specs] == [(0, 3, 6), (3, 3, 6)]
    assert [s["data"] for s in specs] == [["/data/0"], ["/data/1"]] and {s["seed"] for s in specs} == {5}
    came, ended = ([part[key] for part in record["parts"]] for key in ("came", "ended"))
    assert [len(steps) for steps in (*came, *ended)] == [STEPS] * 4
    # Nobody went on before both had come, in every step.
    assert all(max(a, b) <= min(c, d) for a, b, c, d in zip(*came, *ended, strict=True))
    assert record["training"]["accelerators"] == 6 and record["training"]["hosts"] == 1, "both ranks ran on this host"
    reported = record["result"]["hosts"]
    assert [h["training"]["accelerators"] for h in reported] == [3, 3] and all(h["failure"] is None for h in reported)
    assert err.count("AU ") <= 1, "one summary, not one a rank"


@pytest.mark.promise("TRA-32")
@pytest.mark.long
@needs_mpi
def test_a_host_that_breaks_ends_the_run_behind_the_same_step_everywhere(tmp_path):
    code, out, err = mpirun(tmp_path, *RUN, "/data", how="breaks")
    assert code == 4 and out == "" or "AU" in out
    assert "rank 1 on " in err and "its checksum is wrong" in err and "Traceback" not in err
    saved = json.loads((tmp_path / "forebay-feedfeedfeedfeed.json").read_text())
    assert [len(p["ended"]) for p in saved["parts"]] == [7, 7]
    assert [h["failure"] is None for h in saved["result"]["hosts"]] == [True, False]


@pytest.mark.promise("TRA-32")
@pytest.mark.long
@needs_mpi
def test_a_process_that_is_killed_ends_the_run_and_the_others_keep_their_parts(tmp_path):
    code, _, err = mpirun(tmp_path, *RUN, "/data", how="killed", ranks=3)
    assert code != 0, err
    parts = [json.loads(p.read_text()) for p in tmp_path.glob("forebay-*.json")]
    assert parts, "a host that lived kept what it measured"
    assert all(p["result"]["interrupted"] and len(p["ended"]) == 7 for p in parts)


@pytest.mark.promise("TRA-32")
@pytest.mark.long
@needs_mpi
def test_hosts_with_other_numbers_of_steps_say_so_and_end(tmp_path):
    code, _, err = mpirun(tmp_path, *RUN, "/data", how="longer")
    assert code == 4, err
    assert "rank 1 on " in err and "another host has fewer steps" in err and "Traceback" not in err


@pytest.mark.promise("TRA-32")
@pytest.mark.long
@needs_mpi
def test_ctrl_c_ends_all_hosts_and_what_was_measured_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPS", "100000")
    with start(tmp_path, *RUN, "/data") as started:
        both = [tmp_path / f"under-way-{rank}" for rank in (0, 1)]
        processes.wait_until(lambda: all(file.exists() for file in both), "ten steps of both", started)
        started.send_signal(signal.SIGINT)
        processes.finish(started)
    kept = [json.loads(p.read_text()) for p in tmp_path.glob("forebay-*.json")]
    assert kept and all(k["result"]["interrupted"] for k in kept)
    ended = {len(p["ended"]) for k in kept for p in k.get("parts", [k])}
    assert max(ended) - min(ended) <= 1 and 10 <= max(ended) < 100000


@pytest.mark.long
@needs_mpi
def test_a_dry_run_is_shown_once(tmp_path):
    code, out, err = mpirun(tmp_path, *RUN, "/data", "--dry-run")
    assert code == 0 and out.count("demand ") == 1, err


@pytest.mark.promise("TRA-31")
@pytest.mark.root
@pytest.mark.long
@needs_mpi
def test_two_hosts_with_networks_of_their_own_are_one_run(tmp_path, two_hosts):  # noqa: F811
    names, launcher = two_hosts
    code, out, err = mpirun(tmp_path, *RUN, "/data/{host}", "--json", launcher=launcher)
    assert code == 0, err
    record = json.loads(out)
    assert [h["host"] for h in record["result"]["hosts"]] == [f"{n}.test" for n in names]
    assert record["training"]["hosts"] == 2 and record["training"]["accelerators"] == 6
    assert [p["spec"]["data"] for p in record["parts"]] == [[f"/data/{n}.test"] for n in names]
    assert [len(p["ended"]) for p in record["parts"]] == [STEPS, STEPS]


@pytest.fixture
def listed(tmp_path, monkeypatch):
    """A folder with as many names as a data set has files, for engines that read none; supply for 5.6 on each host."""
    train = tmp_path / "data" / "train"
    train.mkdir(parents=True)
    for number in range(1000):
        (train / f"img_{number:04d}.npz").touch()
    monkeypatch.setenv("GIB_S", str(5.6 * NEEDED))
    monkeypatch.setenv("STEPS", "4")
    return tmp_path / "data"


@pytest.mark.promise("TRA-17")
@pytest.mark.long
@needs_mpi
def test_a_search_on_several_hosts_finds_how_many_each_of_them_feeds(tmp_path, listed):
    words = (*SEARCH, str(listed), "--results", "found", "--json")
    code, out, err = mpirun(tmp_path, *words)
    assert code == 0, err
    document = json.loads(out)
    found = document["search"]
    # Both processes are on one host.
    assert (found["accelerators"], found["hosts"], found["confirmed"], found["finished"]) == (10, 1, True, True)
    assert document["training"]["accelerators"] == 10
    assert (found["limit"]["id"], found["limit"]["accelerators"]) == ("storage", 12)
    assert {p["accelerators"] for p in document["training"]["curve"]} == {r["accelerators"] for r in found["runs"]}
    assert all(r["accelerators"] % 2 == 0 for r in found["runs"])
    assert "10 × H100 of unet3d pass by v1.0, AU" in err and err.count("answer ") == 1
    code, out, err = mpirun(tmp_path, *words)
    assert code == 0 and json.loads(out)["search"]["found_before"] == len(found["runs"]), err
    code, _, err = mpirun(tmp_path, *words, ranks=3)
    assert code == 2 and "holds a search that differs in processes" in err and "Traceback" not in err


@pytest.mark.promise("TRA-17")
@pytest.mark.long
@needs_mpi
def test_a_search_over_unequal_hosts_or_without_data_ends_on_all(tmp_path, listed, monkeypatch):
    (tmp_path / "empty").mkdir()
    code, out, err = mpirun(tmp_path, *SEARCH, str(tmp_path / "empty"), "--results", "none")
    assert code == 2 and out == "" and "holds no .npz files" in err and "Traceback" not in err
    monkeypatch.setenv("STEPS", "9")
    code, _, err = mpirun(tmp_path, *SEARCH, str(listed), "--results", "longer", how="longer")
    assert code == 4 and "another host has fewer steps" in err and "Traceback" not in err


@pytest.mark.promise("TRA-17")
@pytest.mark.long
@needs_mpi
def test_a_search_keeps_what_was_measured_when_a_rank_is_killed_and_goes_on_from_there(tmp_path, listed):
    words = (*SEARCH, str(listed), "--results", "found", "--json")
    code, _, err = mpirun(tmp_path, *words, how="killed later")
    assert code != 0, err
    kept = [json.loads(line) for line in (tmp_path / "found/search.jsonl").read_text().splitlines()]
    before = [line for line in kept if line.get("key") and not line.get("partial")]
    assert len(before) == 2, "two runs had ended when the third lost a rank"
    code, out, err = mpirun(tmp_path, *words)
    found = json.loads(out)["search"]
    assert code == 0 and found["accelerators"] == 10 and found["found_before"] == 2, err


@pytest.mark.promise("TRA-17")
@pytest.mark.root
@pytest.mark.long
@needs_mpi
def test_two_hosts_with_networks_of_their_own_search_together(tmp_path, two_hosts, listed):  # noqa: F811
    _, launcher = two_hosts
    words = (*SEARCH, str(listed), "--results", "found", "--json")
    code, out, err = mpirun(tmp_path, *words, launcher=[*launcher, "-x", "GIB_S", "-x", "STEPS"])
    assert code == 0, err
    found = json.loads(out)
    assert (found["search"]["accelerators"], found["search"]["hosts"], found["training"]["hosts"]) == (10, 2, 2)


def test_a_matrix_of_cells_is_refused_under_a_launcher(monkeypatch, capsys):
    from forebay import cli

    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    with pytest.raises(SystemExit) as ended:
        cli.main(["emulate", "matrix", "solidigm-mlperf"])
    assert ended.value.code == 2
    assert "4 processes of mpirun (Open MPI) would each run alone" in capsys.readouterr().err


@pytest.mark.promise("TRA-33")
def test_the_mpijob_starts_a_command_that_exists_on_as_many_nodes_as_it_has():
    text = (HERE.parent / "deploy/emulate-mpijob.yaml").read_text()
    listed = re.search(r"args:\n((?: +- \S+\n)+)", text)
    words = [line.split("- ", 1)[1].strip('"') for line in listed[1].splitlines()]
    launcher, command = words[: words.index("forebay")], words[words.index("forebay") + 3 :]
    assert launcher[launcher.index("-n") + 1] == re.search(r"Worker:\n +replicas: (\d+)", text)[1]
    from forebay.emulate import run

    given = run.command.make_context("run", command).params
    assert given["workload"] == "unet3d" and given["accelerators"] == "2" and given["as_json"]
    image = (HERE.parent / "deploy/mpi.Containerfile").read_text()
    # The manifest's image is built there, from forebay's own.
    built = re.search(r"^#   podman build -f deploy/mpi.Containerfile -t (\S+) \.", image, re.M)
    assert set(re.findall(r"image: (\S+)", text)) == {built[1]} and "ARG FOREBAY=forebay\nFROM ${FOREBAY}\n" in image
    assert "/home/mpiuser/.sshd_config" in text and "> /home/mpiuser/.sshd_config" in image


def spec(**changes):
    return {"accelerators": 4, "data": ["/d/{host}.{local}"], "rules": "v1.0", "seed": 1, **changes}


def test_a_process_has_its_own_ranks_and_data():
    mine = hosts.spec_of_rank(spec(), rank=2, local=0, size=3, host="c")
    assert (mine["first_rank"], mine["ranks"], mine["data"]) == (8, 12, ["/d/c.0"])


@pytest.mark.promise("TRA-31")
def test_unequal_hosts_are_refused():
    hosts.check_alike(["a", "b"], [spec(), spec(data=["/other"])])
    hosts.check_alike(["a", "a", "b", "b"], [spec()] * 4)
    with pytest.raises(RequestError, match=r"hosts differ \(4 on a, 5 on b\)"):
        hosts.check_alike(["a", "b"], [spec(), spec(accelerators=5)])
    with pytest.raises(RequestError, match=r"8 on a, 4 on b"):
        hosts.check_alike(["a", "a", "b"], [spec()] * 3)
    with pytest.raises(RequestError, match="rules is 'v2.0' on rank 1, 'v1.0' on rank 0"):
        hosts.check_alike(["a", "b"], [spec(), spec(rules="v2.0")])


@pytest.fixture
def mpi_constants(monkeypatch):
    """MPI's names without MPI: importing it starts it, and any mpirun of a later test would find its traces and end."""
    names = type("MPI", (), {"INT": "int", "MAX": "max"})
    monkeypatch.setitem(sys.modules, "mpi4py", type("M", (), {"MPI": names}))


class Requests:
    """A communicator whose reductions complete when the test says so."""

    def __init__(self, answers):
        self.answers, self.posted = list(answers), []

    def Dup(self):
        return self

    def Iallreduce(self, sent, seen, op):
        self.posted.append(sent[0][0])
        answers, into = self.answers, seen[0]

        class Request:
            def Test(self):
                if not answers or answers[0] is None:
                    return False
                least, most = answers.pop(0)
                into[0], into[1] = most, -least
                return True

        return Request()


def test_the_barrier_posts_one_message_a_step_and_one_at_the_end(mpi_constants):
    comm = Requests([(0, 0), (0, 0), (1, 1)])
    barrier = hosts.StepBarrier(comm, lambda: False)
    barrier(0, 0)
    barrier(0, 1)
    assert barrier.finish(through=True) and comm.posted == [hosts.GO, hosts.GO, hosts.DONE]


def test_a_host_that_another_stopped_posts_no_more(mpi_constants):
    comm = Requests([(0, 2)])
    barrier = hosts.StepBarrier(comm, lambda: False)
    with pytest.raises(KeyboardInterrupt):
        barrier(0, 0)
    assert barrier.stopped and barrier.finish(through=False) and comm.posted == [hosts.GO]


def test_a_signal_in_a_wait_is_heeded_and_the_others_are_told(mpi_constants, monkeypatch):
    monkeypatch.setattr(hosts, "PATIENCE_S", 0.01)
    comm = Requests([None])
    barrier = hosts.StepBarrier(comm, lambda: True)
    with pytest.raises(KeyboardInterrupt):
        barrier(0, 0)
    comm.answers[:] = [(0, 0), (2, 2)]
    assert barrier.finish(through=False) and comm.posted == [hosts.GO, hosts.STOP]
    monkeypatch.setattr(hosts, "GRACE_S", 0.01)
    alone = hosts.StepBarrier(Requests([None]), lambda: True)
    assert not alone.finish(through=False), "others that are gone are not waited for without end"
