"""Both ends of NVMe/TCP at work: `forebay serve` under `forebay bench nvme+tcp://…`, in peace and in trouble."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import processes
import pytest
from properties import parametrized
from serve_support import NQN, PATIENCE_S, Target, document, eventually, parse_metrics, toml

MIB, BLOCK = 1 << 20, 4096
# A run waits for as long as a busy machine takes to start its target again.
PATIENT = "reconnect_delay=0.2&io_timeout=60&fast_io_fail_tmo=200"
# What a lost connection costs at most before the run gives up on it.
SOON = "reconnect_delay=0.1&ctrl_loss_tmo=2&fast_io_fail_tmo=2&kato=60"


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 16 MiB whose every byte can be verified as `forebay.0`."""
    return made(tmp_path_factory.mktemp("content"))


def made(folder: Path, *more: str) -> Path:
    folder.mkdir(exist_ok=True)
    flags = ["--create", "--file-size", "16m", "--passes", "1", "-q", *more]
    command = [sys.executable, "-m", "forebay.cli", "bench", str(folder), *flags]
    subprocess.run(command, check=True, timeout=PATIENCE_S)
    return folder / "forebay.0"


@pytest.fixture
def target(content: Path) -> Iterator[Target]:
    with Target(content, "--nqn", NQN, "--metrics", "0") as running:
        yield running


def bench(forebay, *arguments: str, **kwargs) -> dict:
    return document(forebay("bench", *arguments, "--json", "--quiet", **kwargs))


class Bench:
    """A run in the background, with its record at the end. Where it fails it also saves that, in a folder that goes with it."""

    def __init__(self, *arguments: str) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="forebay-run-", ignore_cleanup_errors=True)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "forebay.cli", "bench", *arguments, "--json", "--quiet"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder.name,
        )

    def end(self) -> tuple[int, dict, str]:
        try:
            out, err = self.process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            self.folder.cleanup()
        return self.process.returncode, json.loads(out) if out.strip() else {}, err


def reads(target: Target, nsid: int | None = None) -> float:
    """Reads that hosts have had answered so far, of one namespace or of all."""
    each = parse_metrics(target.metrics())["forebay_namespace_reads_total"]
    return sum(v for labels, v in each if nsid is None or labels["nsid"] == str(nsid))


def writes(target: Target) -> float:
    """Writes that hosts have had answered so far."""
    return sum(v for _, v in parse_metrics(target.metrics())["forebay_namespace_writes_total"])


# In peace -----------------------------------------------------------------------------------------


@pytest.mark.promise("SRV-11")
@parametrized(
    ("query", "arguments"),
    [
        ("", ["--io-size", "128k", "--depth", "8"]),
        ("queues=4", ["--io-size", "64k", "--depth", "16", "--workers", "2"]),
        ("hdgst=1&ddgst=1", ["--io-size", "1m", "--depth", "4"]),
        ("", ["--op", "randread", "--io-size", "4k", "--depth", "32"]),
        ("", ["--io-size", "4m", "--depth", "2"]),  # more than one command may carry
        ("", ["--io-size", "4k:68k:4k", "--depth", "8"]),
    ],
    kept=(2, 4),
)
def test_every_byte_that_is_read_is_the_files(forebay, target, query, arguments):
    uri = target.uri("&".join(filter(None, [query, "content=forebay.0"])))
    record = bench(forebay, uri, *arguments, "--passes", "1", "--verify")
    result = record["result"]
    assert result["verified_bytes"] == result["bytes"] >= 15 * MIB
    assert result["errors"]["verify_failed"] == result["errors"]["failed"] == 0
    assert record["path"]["engine"] == "nvme-tcp" and record["origin"] == "measured"
    (remote,) = record["path"]["fabric"]
    assert remote["header_digest"] == remote["data_digest"] == ("ddgst" in query)
    assert [(p["address"], p["reconnects"]) for p in remote["paths"]] == [(target.addresses[0], 0)]
    assert len(remote["queues"]) == (4 if "queues=4" in query else 1)
    assert sum(q["commands"] for q in remote["queues"]) >= result["ios"]


@pytest.mark.promise("SRV-10")
def test_both_ends_count_the_same(forebay, target):
    record = bench(forebay, target.uri(), "--io-size", "256k", "--passes", "2", "--depth", "4")
    ((labels, sent),) = parse_metrics(target.metrics())["forebay_namespace_read_bytes_total"]
    assert labels == {"subsystem": NQN, "nsid": "1"}
    assert sent >= record["result"]["bytes"] == 32 * MIB
    samples = parse_metrics(target.metrics())
    assert samples["forebay_namespace_errors_total"][0][1] == 0
    assert samples["forebay_namespace_read_latency_seconds_count"][0][1] == reads(target)
    assert target.end() == 0
    assert any("served    " in line and "MiB read" in line for line in target.out)


@pytest.mark.promise("SRV-12")
def test_a_stripe_over_two_targets_reads_as_one_file(forebay, content, tmp_path):
    halves = [tmp_path / "a", tmp_path / "b"]
    data = content.read_bytes()
    for at, half in enumerate(halves):
        half.write_bytes(b"".join(data[i : i + 65536] for i in range(at * 65536, len(data), 131072)))
    with Target(halves[0], "--nqn", NQN) as one, Target(halves[1], "--nqn", NQN) as two:
        stripe = f"stripe:?chunk=64k&m={one.uri()}&m={two.uri()}"
        record = bench(forebay, stripe, "--io-size", "256k", "--depth", "4", "--passes", "1")
        assert record["result"]["bytes"] == 16 * MIB


def test_what_was_written_is_read_back(forebay, tmp_path):
    image = tmp_path / "image"
    image.write_bytes(bytes(16 * MIB))
    with Target(image, "--nqn", NQN, "--writable") as target:
        uri = target.uri()
        refused = forebay("bench", uri, "--op", "write", "--passes", "1")
        assert refused.returncode == 2 and "--overwrite-device" in refused.stderr
        for size in ("64k", "1m"):
            written = bench(
                forebay, uri, "--op", "write", "--io-size", size, "--passes", "1", "--verify", "--sync", "end",
                "--overwrite-device", uri,
            )  # fmt: skip
            assert written["result"]["write_bytes"] == 16 * MIB
            read = bench(forebay, uri, "--io-size", "128k", "--depth", "4", "--passes", "1", "--verify")
            assert read["result"]["verified_bytes"] == 16 * MIB
        assert target.end() == 0
    assert image.read_bytes() != bytes(16 * MIB)


def test_a_read_only_namespace_is_not_written_to(forebay, target, content):
    before = content.read_bytes()
    done = forebay("bench", target.uri(), "--op", "write", "--passes", "1", "--overwrite-device", target.uri())
    assert done.returncode == 2 and "write protected" in done.stderr
    assert content.read_bytes() == before


@pytest.mark.long
@pytest.mark.promise("SRV-12")
def test_gdsio_and_sweep_take_it_as_a_source(forebay, target, tmp_path):
    done = forebay("gdsio", "-f", target.uri(), "-s", "16M", "-I", "0", "-x", "1", "-d", "0", "-w", "2", "-i", "64k", "-T", "1")
    assert done.returncode == 0, done.stderr
    assert "IoType: READ" in done.stdout
    sweep = tmp_path / "s.toml"
    sweep.write_text('title = "s"\n[matrix]\nio-size = ["64k", "128k"]\n[job]\npasses = 1\n')
    done = forebay("sweep", sweep, target.uri(), "-o", tmp_path / "s.jsonl")
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "s.jsonl").read_text().splitlines()) == 3, "a head and two runs"


@pytest.mark.long
@pytest.mark.promise("SRV-12")
def test_the_summary_and_the_report_say_what_was_read_from_where(forebay, target, tmp_path):
    done = forebay("bench", target.uri(), "--passes", "1", "-o", tmp_path / "r.json", env={**os.environ, "COLUMNS": "200"})
    said = " ".join(done.stdout.split())
    assert f"remote {target.uri()} · Forebay" in said and "no digests" in said
    assert "through sockets" in said
    page = tmp_path / "report.html"
    made = forebay("report", tmp_path / "r.json", "-o", page)
    assert made.returncode == 0, made.stderr
    assert f"{target.uri()}, Forebay, 1 queue" in page.read_text()


@pytest.mark.promise("SRV-9")
def test_a_host_that_is_not_listed_runs_nothing(forebay, content):
    with Target(content, "--nqn", NQN, "--allow", "nqn.2026-01.io.example:friend") as target:
        done = forebay("bench", target.uri("hostnqn=nqn.2026-01.io.example:foe"), "--passes", "1")
        assert done.returncode == 2 and "Traceback" not in done.stderr
        assert f"{NQN} does not let the host nqn.2026-01.io.example:foe in" in done.stderr, done.stderr
        assert "try: forebay serve --allow nqn.2026-01.io.example:foe" in done.stderr and "hostnqn=NQN" in done.stderr
        friend = target.uri("hostnqn=nqn.2026-01.io.example:friend")
        assert bench(forebay, friend, "--passes", "1")["result"]["bytes"] == 16 * MIB


@pytest.mark.long
@pytest.mark.promise("FLT-16")
def test_verify_refuses_a_namespace_that_was_written_without_it(forebay, tmp_path):
    blank = tmp_path / "n.img"
    blank.write_bytes(bytes(4 * MIB))
    write = ("--op", "write", "--io-size", "64k", "--passes", "1", "-q")
    with Target(blank, "--nqn", NQN, "--writable") as target:
        uri = target.uri()
        assert forebay("bench", uri, *write, "--overwrite-device", uri).returncode == 0
        refused = forebay("bench", uri, "--io-size", "64k", "--passes", "1", "--verify")
        assert refused.returncode == 2, refused.stderr
        assert f"--verify of {uri}: it was written without --verify" in refused.stderr.replace("'", "")
        assert "--op write --verify" in refused.stderr and "trust" not in refused.stderr
        assert forebay("bench", uri, *write, "--verify", "--overwrite-device", uri).returncode == 0
        assert bench(forebay, uri, "--passes", "1", "--verify")["result"]["verified_bytes"] == 4 * MIB


# In trouble ---------------------------------------------------------------------------------------


@pytest.mark.promise("SRV-11")
@pytest.mark.long
def test_a_target_killed_and_started_again_under_a_verifying_run_loses_nothing(content):
    with Target(content, "--nqn", NQN, "--metrics", "0") as first:
        address = first.addresses[0]
        query = f"content=forebay.0&queues=2&{PATIENT}"
        flags = ["--io-size", "64k", "--workers", "2", "--depth", "8", "--duration", "4", "--timeout", "200s", "--verify"]
        run = Bench(first.uri(query), *flags)
        eventually(lambda: reads(first) > 100, "the run reads")
        first.process.kill()
        first.process.wait()
        time.sleep(0.5)
        with Target(content, "--nqn", NQN, "--metrics", "0", listen=(address,)) as second:
            # What was under way at least, where the run's time is over by then.
            eventually(lambda: reads(second) > 0, "the run goes on")
            code, record, err = run.end()
    assert code == 0, err
    assert record["result"]["verified_bytes"] >= record["result"]["bytes"] > 0  # warm-up is verified, too
    (remote,) = record["path"]["fabric"]
    assert remote["paths"][0]["state"].startswith("live") and remote["paths"][0]["reconnects"] >= 1
    assert "reconnected" in [w["id"] for w in record["warnings"]]
    errors = record["result"]["errors"]
    assert errors["failed"] == errors["verify_failed"] == 0


@pytest.mark.long
@pytest.mark.promise("SRV-11")
def test_a_target_that_ends_for_good_fails_the_run_and_keeps_what_was_measured(target):
    run = Bench(target.uri(SOON), "--io-size", "64k", "--depth", "8", "--duration", "600", "--warmup", "0")
    processes.wait_until(lambda: reads(target) > 100, "the run reads", run.process)
    assert target.end() == 0, "commands in flight are finished, not cut off"
    code, record, err = run.end()
    assert code == 4, err
    assert record["result"]["bytes"] > 0 and NQN in err and "Traceback" not in err


@pytest.mark.promise("TGT-19")
def test_a_host_that_is_killed_leaves_nothing_behind(forebay, target):
    run = Bench(target.uri("queues=2"), "--io-size", "64k", "--workers", "2", "--depth", "8", "--duration", "600")
    eventually(lambda: reads(target) > 100, "the run reads")
    run.process.kill()
    run.process.communicate()
    eventually(lambda: parse_metrics(target.metrics())["forebay_connections"] == [({}, 0)], "it is forgotten")
    assert bench(forebay, target.uri("content=forebay.0"), "--passes", "1", "--verify")["result"]["errors"]["failed"] == 0


@pytest.mark.long
@pytest.mark.promise("TGT-19")
@pytest.mark.parametrize("seeds", [["8"], pytest.param(["8", "9", "10"], marks=pytest.mark.long)], ids=len)
def test_hosts_that_are_killed_while_they_write_leave_blocks_of_the_old_or_the_new_content(
    forebay, content, tmp_path, seeds
):
    image = tmp_path / "image"
    shutil.copy(content, image)
    file = toml(tmp_path / "serve.toml", [f'source = "{image}"\nwritable = true', f'source = "{content}"'], 'metrics = "0"')
    with Target(file) as target:
        uri = target.uri("nsid=1&content=forebay.0&queues=2")
        for seed in seeds:
            new, old = made(tmp_path / seed, "--seed", seed).read_bytes(), image.read_bytes()
            # Small writes carry their data in the command; for the others the target asks, and may have received half of it.
            job = ["--op", "randwrite", "--io-size", "4k:256k:4k", "--workers", "2", "--depth", "8", "--duration", "600"]
            before = writes(target)
            run = Bench(uri, *job, "--verify", "--seed", seed, "--overwrite-device", uri)
            processes.wait_until(lambda before=before: writes(target) > before + 20, "the run writes", run.process)
            run.process.kill()
            run.process.communicate()
            eventually(lambda: parse_metrics(target.metrics())["forebay_connections"] == [({}, 0)], "it is forgotten")
            left = image.read_bytes()
            blocks = [slice(at, at + BLOCK) for at in range(0, len(new), BLOCK)]
            assert all(old[b] != new[b] for b in blocks) and any(left[b] == new[b] for b in blocks)
            mixed = [b.start for b in blocks if left[b] not in (old[b], new[b])]
            assert not mixed, f"blocks that are neither old nor new, at bytes {mixed}"
        others = bench(forebay, target.uri("nsid=2&content=forebay.0"), "--passes", "1", "--verify")
        assert others["result"]["verified_bytes"] == 16 * MIB and others["result"]["errors"]["failed"] == 0
        flags = ["--verify", "--seed", seed, "--passes", "1", "--io-size", "128k"]
        bench(forebay, uri, "--op", "write", *flags, "--overwrite-device", uri)
        assert bench(forebay, uri, *flags)["result"]["verified_bytes"] == 16 * MIB
        assert target.end() == 0
    assert image.read_bytes() == new


@pytest.mark.promise("SRV-7")
@pytest.mark.long
def test_a_namespace_that_is_taken_away_fails_its_run_and_no_other(forebay, content, tmp_path):
    copy = tmp_path / "copy"
    shutil.copy(content, copy)
    file = toml(tmp_path / "serve.toml", [f'source = "{content}"', f'source = "{copy}"'], head='metrics = "0"')
    with Target(file) as target:
        # A worker gives up after 1000 failures. Where the host hears of it before an I/O does, the first wait for a path.
        flags = ["--io-size", "64k", "--depth", "4", "--duration", "600", "--warmup", "0"]
        gone = Bench(target.uri(f"nsid=2&{SOON}"), *flags)
        stays = Bench(target.uri(f"nsid=1&content=forebay.0&{PATIENT}"), "--io-size", "64k", "--duration", "4", "--verify")
        eventually(lambda: reads(target, 1) > 100 and reads(target, 2) > 100, "both read")
        toml(file, [f'source = "{content}"'], head='metrics = "0"')
        target.process.send_signal(signal.SIGHUP)
        target.wait_for("nsid 2 of .* removed")
        code, _, err = gone.end()
        assert code == 4 and "Traceback" not in err
        code, record, err = stays.end()
        assert code == 0, err
        assert record["result"]["verified_bytes"] >= record["result"]["bytes"] > 0


def test_an_error_of_the_source_reaches_the_host_as_an_error(forebay, content, tmp_path):
    file = toml(tmp_path / "serve.toml", [f'source = "{content}"\nfaults = "seed=1,error=0.05"'])
    with Target(file) as target:
        done = forebay("bench", target.uri(), "--io-size", "64k", "--passes", "2", "--json", "--quiet", cwd=tmp_path)
        assert done.returncode == 4, done.stderr
        errors = json.loads(done.stdout)["result"]["errors"]
        assert errors["failed"] > 0 and errors["verify_failed"] == 0


@pytest.mark.promise("SRV-11")
def test_the_backing_file_cut_off_is_an_error_and_never_wrong_bytes(content, tmp_path):
    copy = tmp_path / "copy"
    shutil.copy(content, copy)
    with Target(copy, "--nqn", NQN, "--metrics", "0") as target:
        uri = target.uri(f"content=forebay.0&{PATIENT}&kato=60")
        run = Bench(uri, "--io-size", "64k", "--duration", "600", "--verify", "--warmup", "0")
        processes.wait_until(lambda: reads(target) > 50, "the run reads", run.process)
        os.truncate(copy, 4 * MIB)
        code, record, err = run.end()
        assert code == 4, err
        assert record["result"]["errors"]["verify_failed"] == 0 and record["result"]["errors"]["failed"] > 0
        assert target.end() == 0
