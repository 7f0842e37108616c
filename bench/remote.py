"""Both ends of NVMe/TCP on one machine: our target and host, SPDK's, and TCP with nothing above it.

Every figure counts both ends: the bytes that the host got, and the CPU of the host and of its target.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from peers import installed, run
from side_by_side import Contender, Figure, Unavailable, spent_s

NQN = "nqn.2025-01.org.forebay:bench"
SPDK_NQN = "nqn.2016-06.io.spdk:bench"
SPDK_PORT = 44199
TICK = os.sysconf("SC_CLK_TCK")
READY_S = 30.0


def cpu_of(pid: int) -> float:
    """User and system seconds of a process that goes on."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


@contextlib.contextmanager
def ours(
    source: str,
    *flags: str,
    arguments: list[str] | None = None,
    cpu: int | None = None,
    program: str | None = None,
) -> Iterator[tuple[int, int]]:
    """`forebay serve SOURCE` on a free port of loopback: its process and port. `cpu`: the processor it stays on;
    `program`: another installation's `forebay`."""
    stays = [] if cpu is None else ["taskset", "-c", str(cpu)]
    command = [*stays, program or installed(), "serve", source, *(arguments or ["--nqn", NQN])]
    command += ["--listen", "127.0.0.1:0", *flags]
    with started(command) as target:
        yield target.pid, port_of(target, command)


@contextlib.contextmanager
def started(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A server from here on, whose lines can be read; at the end it is asked to go, and then made to."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def await_line(process: subprocess.Popen[str], command: list[str], pattern: str) -> re.Match[str]:
    """Of its lines, the first that `pattern` is found in. One that says no such line in time is killed."""
    said = []
    assert process.stdout is not None
    patience = threading.Timer(READY_S, process.kill)
    patience.start()
    try:
        for line in process.stdout:
            said.append(line)
            if found := re.search(pattern, line):
                return found
    finally:
        patience.cancel()
    raise Unavailable(f"{' '.join(command)} ended with {process.wait()}: {' '.join(said)[-400:]}")


def port_of(target: subprocess.Popen[str], command: list[str]) -> int:
    return int(await_line(target, command, r"listening on \S*?:(\d+)\b")[1])


def forebay(
    name: str,
    source: str,
    uri_flags: str,
    *flags: str,
    serve_flags: tuple[str, ...] = (),
    cpus: tuple[int, int] | None = None,
    program: str | None = None,
) -> Contender:
    """Our host reading from our target, which serves `source` and is started for each run.

    `uri_flags` is what stands behind the NQN, such as `?queues=4&hdgst=1&ddgst=1`. `cpus`: the processors that the
    target and the host's worker stay on; `program`: another installation's `forebay`, for both ends.
    """
    if cpus:
        flags = (*flags, "--cpus", str(cpus[1]))

    def measure(seconds: float) -> Figure:
        with ours(source, *serve_flags, cpu=cpus and cpus[0], program=program) as (pid, port):
            uri = f"nvme+tcp://127.0.0.1:{port}/{NQN}{uri_flags}"
            return host_run(name, uri, flags, seconds, pid, program)

    shown = ["forebay", "serve", source, *serve_flags, "&", "forebay", "bench", f"nvme+tcp://…{uri_flags}", *flags]
    return Contender(name, measure, shown)


def host_run(
    name: str, uri: str, flags: tuple[str, ...], seconds: float, target: int | None = None, program: str | None = None
) -> Figure:
    """One `forebay bench` of `uri`; the CPU of the target is added, where it is known by its process."""
    before = cpu_of(target) if target else 0.0
    base = [program or installed(), "bench", uri, "--path", "host", *flags, "--warmup", "0.5", "--duration", str(seconds)]
    ran = run([*base, "--json"], 60 + 3 * seconds)
    beside = cpu_of(target) - before if target else 0.0
    record = json.loads(ran.stdout)
    result, path = record["result"], record["path"]
    if not result["bytes"]:
        raise Unavailable(f"{name}: nothing was moved in {result['seconds']:.1f} s")
    if any(result["errors"].get(k) for k in ("failed", "timed_out", "retried", "short")):
        raise Unavailable(f"{name}: {result['errors']}")
    share = result["seconds"] / (result["seconds"] + 0.5)
    used_s = spent_s(result["cpu"])
    cpu_s = None if used_s is None else used_s + beside * share
    proof = {k: path.get(k) for k in ("ran", "engine", "engine_features", "staged_bytes", "slot_pages")}
    proof |= {"latency_us": result["latency_us"]}
    return Figure(result["seconds"], result["bytes"], result["ios"], cpu_s, ran.cpu_s + beside, proof)


# TCP by itself -------------------------------------------------------------------------------------


def tool(name: str) -> Path:
    """One of the C programs beside this file, compiled where it is missing or older than its source."""
    source = Path(__file__).with_name(f"{name}.c")
    program = Path(__file__).resolve().parent.parent / f"target/bench-tools/{name}"
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        if not shutil.which("gcc"):
            raise Unavailable(f"{name}: gcc isn't installed; try: apt install gcc libc6-dev")
        program.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["gcc", "-O2", "-pthread", "-o", program, source], check=True)
    return program


def raw(name: str, *words: str, environment: dict[str, str] | None = None) -> Contender:
    """`tcp_raw`: a bare sender and receiver, or a ping-pong, each a process. `environment`: as `tcp_raw.c` says."""
    alike = [f"{name}={value}" for name, value in (environment or {}).items()]
    base = [*(["env", *alike] if alike else []), str(tool("tcp_raw")), *words]

    def measure(seconds: float) -> Figure:
        reported = json.loads(run([*base, str(seconds)], 60 + 3 * seconds).stdout)
        proof = {k: reported[k] for k in ("p50_us", "mean_us") if k in reported}
        return Figure(reported["seconds"], reported["bytes"], reported["ios"], reported["cpu_s"], None, proof)

    return Contender(name, measure, [*alike, "tcp_raw", *words, "SECONDS"])


def iperf3(name: str, block: int, connections: int) -> Contender:
    """iperf3 over loopback with writes and reads of `block` bytes."""
    program = shutil.which("iperf3")
    if program is None:
        raise Unavailable("iperf3 isn't installed; try: apt install iperf3")
    base = [program, "-c", "127.0.0.1", "-l", str(block), "-P", str(connections), "-C", "reno", "-O", "0.5", "-J"]

    def measure(seconds: float) -> Figure:
        port = ["-p", "44198"]
        server = subprocess.Popen([program, "-s", "-1", *port], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            time.sleep(0.3)
            reported = json.loads(run([*base, *port, "-t", str(round(seconds + 0.5))], 60 + 3 * seconds).stdout)["end"]
        finally:
            server.kill()
            server.wait()
        got, cpu = reported["sum_received"], reported["cpu_utilization_percent"]
        cpu_s = (cpu["host_total"] + cpu["remote_total"]) / 100 * got["seconds"]
        return Figure(got["seconds"], int(got["bytes"]), int(got["bytes"]) // block, cpu_s, None)

    return Contender(name, measure, ["iperf3", *base[1:], "-t", "SECONDS"])


# SPDK ----------------------------------------------------------------------------------------------


def spdk_root(what: str = "with nvmf_tgt and spdk_nvme_perf built") -> Path:
    root = Path(os.environ.get("SPDK", "/nonexistent"))
    if not (root / "build/bin/nvmf_tgt").exists():
        raise Unavailable(f"SPDK isn't here (SPDK names its folder, {what})")
    return root


def spdk_libraries(root: Path) -> str:
    """Where its libraries lie as built, the one of vfio-user in a folder of its own."""
    return f"{root / 'build/lib'}:{root / 'build/libvfio-user/build-release/lib'}"


@contextlib.contextmanager
def unpaced() -> Iterator[tuple[str, ...]]:
    """What stands before the commands of both of SPDK's ends, so that TCP doesn't pace them: a network namespace with reno.

    Ours ask for reno on loopback by themselves; SPDK's ends have what the system has, and with BBR half of their rate.
    """
    name = "net.ipv4.tcp_congestion_control"
    if Path("/proc/sys", *name.split(".")).read_text().strip() != "bbr":
        yield ()
        return
    if os.geteuid() or not shutil.which("ip"):
        raise Unavailable(f"{name} is bbr, and a namespace with reno for SPDK needs root and ip; or: sysctl -w {name}=reno")
    space = f"forebay-spdk-{os.getpid()}"
    inside = ("ip", "netns", "exec", space)
    try:
        for words in (("ip", "netns", "add", space), ("ip", "-n", space, "link", "set", "lo", "up")):
            subprocess.run(words, check=True, capture_output=True)
        subprocess.run([*inside, "sh", "-c", f"echo reno > /proc/sys/{name.replace('.', '/')}"], check=True)
        yield inside
    finally:
        subprocess.run(["ip", "netns", "delete", space], capture_output=True)


@contextlib.contextmanager
def spdk_started(root: Path, inside: tuple[str, ...] = ()) -> Iterator[tuple[int, Callable[..., None]]]:
    """nvmf_tgt, polling on processor 0, with nothing configured: its process, and what carries out an RPC of its own.

    `inside`: what stands before the command, and becomes it.
    """
    environment = {**os.environ, "LD_LIBRARY_PATH": spdk_libraries(root), "PYTHONPATH": str(root / "python")}
    socket = f"/tmp/forebay-bench-spdk-{os.getpid()}.sock"
    command = [*inside, str(root / "build/bin/nvmf_tgt"), "--no-huge", "-s", "1024", "-m", "0x1"]
    command += ["-r", socket, "--no-pci"]
    target = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def rpc(*words: str) -> None:
        asked = [sys.executable, str(root / "scripts/rpc.py"), "-s", socket, "-t", "20", *words]
        done = subprocess.run(asked, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise Unavailable(f"SPDK refused {words[0]}: {done.stderr.strip()[-300:]}")

    try:
        deadline = time.monotonic() + 20
        while not os.path.exists(socket) and target.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        yield target.pid, rpc
    finally:
        target.kill()
        target.wait()
        Path(socket).unlink(missing_ok=True)


@contextlib.contextmanager
def spdk_target(root: Path, inside: tuple[str, ...] = ()) -> Iterator[int]:
    """It, with a null device of 64 GiB as namespace 1 and a RAM one as namespace 2, over TCP."""
    with spdk_started(root, inside) as (pid, rpc):
        rpc("nvmf_create_transport", "-t", "TCP", "-q", "128", "-m", "127")
        rpc("bdev_null_create", "Null0", "65536", "512")
        rpc("bdev_malloc_create", "-b", "Malloc0", "512", "512")
        rpc("nvmf_create_subsystem", SPDK_NQN, "-a", "-s", "SPDK0", "-m", "8")
        rpc("nvmf_subsystem_add_ns", SPDK_NQN, "Null0")
        rpc("nvmf_subsystem_add_ns", SPDK_NQN, "Malloc0")
        rpc("nvmf_subsystem_add_listener", SPDK_NQN, "-t", "tcp", "-a", "127.0.0.1", "-s", str(SPDK_PORT))
        yield pid


def spdk(name: str, block: int, depth: int, queues: int = 1, digests: bool = False, namespace: int = 1) -> Contender:
    """spdk_nvme_perf against SPDK's target, each polling on a processor of its own. `depth` is that of all queues.

    Its namespace 2 is the RAM device. Both namespaces are there, and perf reads from the one that is asked for.
    """
    root = spdk_root()
    where = f"trtype:TCP adrfam:IPv4 traddr:127.0.0.1 trsvcid:{SPDK_PORT} subnqn:{SPDK_NQN} ns:{namespace}"
    base = ["--no-huge", "-s", "512", "-c", "0x2", "-q", str(depth), "-o", str(block), "-w", "read"]
    base += ["-P", str(queues), *(["-H", "-I"] if digests else []), "-r", where]
    environment = f"LD_LIBRARY_PATH={spdk_libraries(root)}"

    def measure(seconds: float) -> Figure:
        with unpaced() as inside, spdk_target(root, inside) as pid:
            before = cpu_of(pid)
            begin = time.monotonic()
            command = [*inside, "env", environment, str(root / "build/bin/spdk_nvme_perf"), *base]
            ran = run([*command, "-t", str(max(1, round(seconds)))], 60 + 3 * seconds)
            took = time.monotonic() - begin
            beside = cpu_of(pid) - before
        found = re.search(r"^Total\s*:\s*([\d.]+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)", ran.stdout, re.MULTILINE)
        if not found:
            raise Unavailable(f"{name}: spdk_nvme_perf printed no total: {ran.stdout[-300:]}")
        iops, whole = float(found[1]), max(1, round(seconds))
        # Both ends poll, so each second of the run costs two of a processor, idle or not.
        cpu_s = (ran.cpu_s + beside) * whole / took
        proof = {"mean_us": float(found[3]), "least_us": float(found[4])}
        return Figure(whole, int(iops * whole * block), int(iops * whole), cpu_s, ran.cpu_s + beside, proof)

    return Contender(name, measure, ["spdk_nvme_perf", *base, "-t", "SECONDS"])

