"""Sweeps that start what they need: a target, a gateway before it, and the papers' tables of both."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_machine import typed
from forebay.sweep import fabric
from forebay.sweep.file import parse, presets
from properties import parametrized

# 16 GiB scaled to 32 MiB, 45 s to 0.2 s.
SMALL = ("--scale", "0.002", "--set", "duration=0.2")


def sweep(*words: Any, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "forebay.cli", "sweep", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout)


def services(folder: Path) -> list[str]:
    """Targets of a sweep in this folder that still run: other clones' tests have their own."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"forebay.cli" in words and fabric.NQN.encode() in words and str(folder).encode() in b" ".join(words):
                found.append(entry.name)
    return found


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()][1:]


@pytest.mark.promise("SWP-7")
@parametrized("sizes", [("1m",), ()], ids=["one size", "all sizes"], kept=(0,))
def test_local_and_remote_are_read_and_the_page_has_the_papers_cells(tmp_path: Path, capsys: Any, sizes: tuple[str, ...]) -> None:
    out = tmp_path / "r.jsonl"
    only = [word for size in sizes for word in ("--set", f"io_size={size}")]
    ran = sweep("solidigm-remote", tmp_path, *SMALL, *only, "-o", out)
    assert ran.returncode == 0, ran.stderr
    made = lines(out)
    assert len(made) == 2 * (len(sizes) or 5) and {m["record"]["job"]["label"] for m in made} == {"local", "remote"}
    for line in made:
        remote = line["record"]["job"]["label"] == "remote"
        assert line["record"]["job"]["source"].startswith("nvme+tcp://127.0.0.1:") == remote
        assert line["point"]["sources"] == ["{target}?queues=8" if remote else str(tmp_path / fabric.FILE)]
        # Eight queues: no more workers than that, and as many in flight.
        job = line["record"]["job"]
        assert not remote or job["workers"] <= 8
    assert not services(tmp_path)
    # Finished points are on whatever port they were: nothing runs again, and nothing is started.
    again = sweep("solidigm-remote", tmp_path, *SMALL, *only, "-o", out)
    assert again.returncode == 0 and " serves " not in again.stderr and len(lines(out)) == len(made)
    code, _, err = typed(capsys, "report", out, "-o", tmp_path / "p.html", "--no-charts")
    page = (tmp_path / "p.html").read_text()
    assert code == 0, err
    assert "published: D7-PS1010" in page and "13.41" in page and "remote ÷ local" in page and "loopback" in page


@pytest.mark.long
@pytest.mark.promise("SWP-7")
def test_queues_of_an_emulated_drive_are_swept(tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "q.jsonl"
    ran = sweep("solidigm-snap-queues", tmp_path, *SMALL, "--set", "io_size=128k", "-o", out)
    assert ran.returncode == 0, ran.stderr
    made = lines(out)
    queues = {m["record"]["job"]["label"]: m["record"]["job"] for m in made}
    assert set(queues) == {"1 queue", "7 queues", "15 queues", "23 queues", "31 queues"}
    # Its 0.2 s may be over before an I/O is, where others take the processors.
    assert any(m["record"]["result"]["bytes"] > 0 for m in made)
    assert queues["1 queue"]["workers"] == 1 and not services(tmp_path)
    # As many on the fabric as the drive has: each has its own gateway's socket.
    places = {label: Path(job["source"].split("?")[0]).stem for label, job in queues.items()}
    assert places == {label: "drive" + label.split()[0] for label in queues}
    assert "with 1, 7, 15, 23, 31 queues on the fabric" in ran.stderr
    code, _, err = typed(capsys, "report", out, "-o", tmp_path / "p.html", "--no-charts")
    assert code == 0, err
    assert "GiB/s by queues" in (tmp_path / "p.html").read_text()


@pytest.mark.long
@pytest.mark.promise("SWP-7")
def test_a_target_that_runs_elsewhere_is_read_and_left_alone(tmp_path: Path) -> None:
    from serve_support import NQN, Target

    served = tmp_path / "served"
    served.write_bytes(os.urandom(32 << 20))
    with Target(str(served), "--nqn", NQN) as target:
        place = f"tcp://{target.addresses[0]}/{NQN}"
        out = tmp_path / "r.jsonl"
        asked = f"tcp://{target.addresses[0]}"
        ran = sweep("solidigm-remote", tmp_path, *SMALL, "--set", "io_size=1m", "--fabric", asked, "-o", out)
        assert ran.returncode == 0, ran.stderr
        assert {m["record"]["job"]["source"].split("?")[0] for m in lines(out) if m["record"]["job"]["label"] == "remote"} == {
            "nvme+" + place
        }
        assert target.process.poll() is None


@pytest.mark.promise("SWP-7")
def test_what_a_target_elsewhere_offers_is_asked_where_no_subsystem_is_named(tmp_path: Path) -> None:
    from serve_support import NQN, Target, toml

    other = f'[[subsystems]]\nnqn = "{NQN}-2"\nallow_any_host = true'
    file = toml(tmp_path / "serve.toml", [f'source = "nil:?size=1m"\n{other}', 'source = "nil:?size=1m"'])
    with Target(file) as target:
        place = f"tcp://{target.addresses[0]}"
        with pytest.raises(fabric.RequestError) as several:
            fabric.offered(place)
        assert "offers 2 subsystems" in several.value.found
        assert several.value.next == f"--fabric {place}/{NQN} or --fabric {place}/{NQN}-2"
        assert fabric.offered(f"nvme+{place}/{NQN}-2") == f"nvme+{place}/{NQN}-2", "one that is named isn't asked for"
    with Target("nil:?size=1m", "--nqn", NQN, "--allow", f"{NQN}-somebody") as target:
        with pytest.raises(fabric.RequestError) as none:
            fabric.offered(f"tcp://{target.addresses[0]}")
        assert "offers no subsystem over TCP to this host, nqn." in none.value.found and "--allow NQN" in none.value.next


@pytest.mark.long
@pytest.mark.promise("SWP-7")
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and iproute2")
def test_the_target_may_live_in_a_network_namespace(tmp_path: Path) -> None:
    probe = f"forebay-probe-{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", probe], capture_output=True).returncode:
        pytest.skip("this kernel makes no network namespaces")
    subprocess.run(["ip", "netns", "del", probe], check=True)
    out = tmp_path / "r.jsonl"
    ran = sweep("solidigm-remote", tmp_path, *SMALL, "--set", "io_size=1m", "--netns", "-o", out)
    assert ran.returncode == 0, ran.stderr
    # The namespace's number is in its address, 198.18.x.y: other clones' tests have others.
    sources = [m["record"]["job"]["source"] for m in lines(out)]
    (network,) = {s.split("//")[1].rpartition(".")[0] + "." for s in sources if s.startswith("nvme+tcp://198.18.")}
    assert network not in subprocess.run(["ip", "route"], capture_output=True, text=True).stdout


@pytest.mark.promise("SWP-7")
@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None, reason="needs root and iproute2"
)
def test_a_link_is_shaped_where_the_kernel_can_and_else_says_how() -> None:
    def names() -> str:
        return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout

    space = fabric.Namespace(fabric.Link(netns=True, delay="20ms", rate="1gbit"))
    try:
        with space:
            reported = subprocess.run([*space.prefix, "tc", "qdisc", "show"], capture_output=True, text=True, check=True).stdout
            assert "netem" in reported and "delay 20" in reported and "rate 1Gbit" in reported, reported
    except fabric.MachineError as error:
        # No namespaces here, or no netem: the command that was refused, and why.
        assert error.asked.startswith("ip ") and error.next, error
        if "netem" in error.asked:
            assert "delay 20ms rate 1gbit" in error.asked and error.next == "modprobe sch_netem"
    assert space.name not in names(), "it goes with the sweep, and where it can't be made"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["solidigm-remote"], "needs exactly one; none is given"),
        (["solidigm-remote", "a", "b"], "2 are given"),
        (["solidigm-remote", "nil:"], "a file or a device"),
        (["solidigm-remote", "missing.dat"], "a folder, in which a file is created"),
        (["solidigm-gds", "a", "--netns"], "starts no target"),
        (["solidigm-remote", "a", "--fabric", "host"], "is not tcp://HOST[:PORT][/NQN]"),
        (["solidigm-remote", "a", "--fabric", "tcp://h:1/nqn.x:y", "--netns"], "only one of them"),
        (["solidigm-remote", "a", "--link-delay", "30us"], "--link-delay with --netns"),
        (["solidigm-remote", "a", "--netns", "--link-delay", "soon"], "is not a value that tc accepts"),
        (["solidigm-remote", "a", "--netns", "--link-rate", "25"], "--link-rate 25gbit"),
    ],
)
def test_a_wrong_request_is_refused_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = typed(capsys, "sweep", *words)
    assert code == 2 and said in err, err
    assert not list(tmp_path.iterdir())


def test_a_service_that_is_not_ready_says_why(tmp_path: Path) -> None:
    with pytest.raises(fabric.RunError, match="wasn't ready.*no such|wasn't ready.*isn't|wasn't ready.*neither"):
        with fabric.Service([], ["serve", str(tmp_path / "missing"), "--nqn", fabric.NQN], r"listening on"):
            pass


def test_a_sweep_names_what_it_needs_rightly() -> None:
    for needs, said in (('["taget"]', "taget"), ('["gateway"]', "no target")):
        with pytest.raises(fabric.RequestError) as refused:
            parse(f"needs = {needs}\n[job]\nop = 'read'\n", "mine", "mine.toml")
        assert said in str(refused.value)
    assert {"solidigm-remote", "solidigm-snap-queues"} <= set(presets())


@pytest.mark.promise("SWP-7")
@pytest.mark.parametrize(("queues", "workers", "depth", "then"), [
    (1, 32, 1, (1, 32)), (7, 32, 1, (4, 8)), (7, 24, 1, (6, 4)), (31, 24, 1, (24, 1)), (8, 16, 2, (8, 4)), (15, 17, 1, (1, 17)),
])  # fmt: skip
def test_as_many_in_flight_by_as_many_workers_as_have_queues(
    queues: int, workers: int, depth: int, then: tuple[int, int]
) -> None:
    for drive in ("{gateway}", "{gateway:7}", "{target}"):
        job = {"sources": [f"{drive}?queues={queues}"], "workers": workers, "depth": depth}
        fitted, changes = fabric.fit(job, ())
        assert (fitted["workers"], fitted["depth"]) == then and bool(changes) == (then != (workers, depth))


@pytest.mark.promise("SWP-7")
def test_drives_are_told_apart_by_their_queues_on_the_fabric(monkeypatch: pytest.MonkeyPatch) -> None:
    found = fabric.drives(["{gateway}?queues=3", "{gateway:31}", "stripe:?m={gateway:7}&m={gateway}", "{target}", "/x"])
    assert found == {"{gateway}": 4, "{gateway:31}": 31, "{gateway:7}": 7}
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64))
    assert [fabric.threads_of(n) for n in (1, 7, 15)] == [1, 7, 8]
    put = fabric.named({"sources": ["{gateway:7}?queues=2"], "file_bytes": 1}, {"{gateway:7}": "vfio-user:/s"})
    assert put == {"sources": ["vfio-user:/s?queues=2"]}
    for wrong in ("{gateway:0}", "{gateway:x}", "{gateway:}"):
        with pytest.raises(fabric.RequestError, match="names no gateway"):
            fabric.stand_in({"sources": [wrong]})
