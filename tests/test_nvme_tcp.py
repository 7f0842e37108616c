"""`nvme+tcp:` as a source of jobs: what it brings, what it refuses, what the record says of it."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import processes
import pytest
from properties import parametrized
from serve_support import NQN, Target, document, eventually, parse_metrics, toml

SIZE = 8 << 20


@pytest.fixture
def made(forebay, tmp_path: Path) -> Path:
    """A file with seeded content."""
    flags = ("--create", "--file-size", "8m", "--workers", "1", "--passes", "1", "--cache", "allow")
    done = forebay("bench", tmp_path, *flags)
    assert done.returncode == 0, done.stderr
    return tmp_path / "forebay.0"


@pytest.mark.promise("RHO-1")
def test_what_is_read_is_what_the_file_holds_and_goes_through_sockets_alone(forebay, made):
    with Target(made, "--nqn", NQN) as target:
        for query in ("", "hdgst=1&ddgst=1&queues=5"):
            uri = target.uri(f"content=forebay.0&{query}")
            done = forebay(
                "bench", uri, "--verify", "--passes", "1", "--io-size", "192k", "--workers", "2", "--depth", "4", "--json"
            )
            record = document(done)
            result, path = record["result"], record["path"]
            assert result["verified_bytes"] == result["bytes"] == SIZE
            assert path["fabric_bytes"] == SIZE
            assert path["staged_bytes"] == path["direct_bytes"] == path["mapped_bytes"] == 0
            assert path["engine"] == "nvme-tcp"
            (fabric,) = path["fabric"]
            assert fabric["paths"][0]["state"] == "live, optimized" and fabric["paths"][0]["reconnects"] == 0
            assert sum(q["commands"] for q in fabric["queues"]) >= result["ios"]
            assert len(fabric["queues"]) == (5 if query else 2)
            assert all(0 < q["mean_us"] <= q["max_us"] for q in fabric["queues"])
            assert all(q["latencies"][-1][1] == q["commands"] for q in fabric["queues"])
        assert target.end() == 0


@pytest.mark.promise("RHO-1")
def test_other_content_is_found(forebay, made):
    with Target(made, "--nqn", NQN) as target:
        done = forebay("bench", target.uri(), "--verify", "--passes", "1", "--json")
        assert done.returncode != 0, "content under another name is other content"


@pytest.mark.long
def test_bounce_stripes_and_random_reads_work_over_it(forebay, made):
    with Target(made, "--nqn", NQN) as target:
        uri = target.uri("content=forebay.0")
        record = document(
            forebay("bench", uri, "--path", "bounce", "--verify", "--passes", "1", "--io-size", "64k", "--json")
        )
        assert record["path"]["staged_bytes"] == record["result"]["verified_bytes"] == SIZE
        member = target.uri()
        record = document(
            forebay("bench", f"stripe:?chunk=64k&m={member}&m=nil:%3Fsize=8m", "--passes", "1", "--io-size", "256k", "--json")
        )
        assert record["result"]["bytes"] == 2 * SIZE and record["path"]["engine"] == "nil+nvme-tcp"
        record = document(
            forebay("bench", uri, "--op", "randread", "--io-size", "4k", "--depth", "16", "--duration", "0.5", "--json")
        )
        assert record["result"]["errors"]["failed"] == 0 and record["result"]["ios"] > 0


@pytest.mark.promise("RHO-4")
def test_a_namespace_is_written_to_only_where_it_was_named(forebay, tmp_path):
    disk = tmp_path / "disk"
    disk.write_bytes(bytes(SIZE))
    with Target(disk, "--nqn", NQN, "--writable") as target:
        uri = target.uri()
        write = ("bench", uri, "--op", "write", "--verify", "--passes", "1", "--io-size", "128k", "--workers", "2")
        refused = forebay(*write)
        assert refused.returncode == 2 and f"--overwrite-device {uri}" in refused.stderr
        assert disk.read_bytes() == bytes(SIZE), "nothing was written"
        done = forebay(*write, "--overwrite-device", uri, "--json")
        assert document(done)["result"]["write_bytes"] == SIZE
        record = document(forebay("bench", uri, "--verify", "--passes", "1", "--json"))
        assert record["result"]["verified_bytes"] == SIZE
    with Target(disk, "--nqn", NQN) as target:
        uri = target.uri()
        refused = forebay("bench", uri, "--op", "write", "--passes", "1", "--overwrite-device", uri)
        assert refused.returncode == 2 and "write protected" in refused.stderr


@pytest.mark.promise("RHO-7")
@parametrized(
    ("flags", "said"),
    [
        (("--require-direct",), "socket"),
        (("--iopoll",), "socket"),
        (("--io-size", "1000"), "512"),
        (("--file-size", "9m"), "8388608"),
        (("--workers", "3", "--queue-count", "2"), "3 workers"),
    ],
    kept=(0, 3),
)
def test_what_cannot_be_is_refused_before_anything_is_read(forebay, made, flags, said):
    query = ""
    if "--queue-count" in flags:
        flags, query = flags[:2], "queues=2"
    with Target(made, "--nqn", NQN) as target:
        done = forebay("bench", target.uri(query), "--passes", "1", *flags)
        assert done.returncode == 2, (done.returncode, done.stderr)
        assert said in done.stderr and "try:" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.long
@pytest.mark.promise("RHO-18")
@pytest.mark.parametrize("flags", [(), ("--workers", "3")])
def test_as_many_queues_as_the_uri_says_are_divided_among_the_workers_that_run(forebay, made, flags):
    with Target(made, "--nqn", NQN) as target:
        record = document(forebay("bench", target.uri("queues=8"), "--passes", "1", "--io-size", "32k", "--json", *flags))
        (fabric,) = record["path"]["fabric"]
        assert record["job"]["workers"] == (3 if flags else 1)
        assert sorted(q["qid"] for q in fabric["queues"]) == list(range(1, 9))


@pytest.mark.promise("RHO-18")
def test_fewer_queues_than_asked_for_are_an_error_that_names_them(forebay, made, tmp_path):
    few = toml(tmp_path / "few.toml", [f'source = "{made}"'], head="queues = 5")
    with Target(few) as target:
        done = forebay("bench", target.uri("queues=8"), "--passes", "1")
        assert done.returncode == 3 and "it grants 5 I/O queues, 8 are needed" in done.stderr
        assert "queues=5 in the URI, at most 5 --workers" in done.stderr and "discover" not in done.stderr


@pytest.mark.long
@pytest.mark.promise("RHO-18")
def test_queues_that_the_target_does_not_connect_are_an_error_that_names_the_others(forebay, made, tmp_path):
    few = toml(tmp_path / "few.toml", [f'source = "{made}"'], head="connections = 4")
    with Target(few) as target:
        for flags, query in ((("--workers", "5"), ""), ((), "queues=5")):
            uri = target.uri("&".join(["reconnect_delay=0.1", *filter(None, [query])]))
            done = forebay("bench", uri, "--duration", "1", *flags)
            assert done.returncode == 3 and "3 of 5 I/O queues are connected" in done.stderr, done.stderr
            assert "queues=3 in the URI, at most 3 --workers" in done.stderr
        record = document(forebay("bench", target.uri("queues=3"), "--passes", "1", "--json"))
        assert record["result"]["bytes"] == SIZE


@pytest.mark.long
@pytest.mark.promise("RHO-18")
def test_a_queue_that_is_refused_after_a_reconnect_costs_the_others_nothing(made, tmp_path):
    file = toml(tmp_path / "serve.toml", [f'source = "{made}"'], head='metrics = "127.0.0.1:0"')
    with Target(file) as first:
        uri = first.uri("queues=2&reconnect_delay=0.1&ctrl_loss_tmo=-1&fast_io_fail_tmo=-1")
        flags = ["--duration", "600", "--io-size", "4k", "--depth", "4", "--timeout", "600s", "--json"]
        with processes.running([*processes.FOREBAY, "bench", uri, *flags], cwd=tmp_path) as run:
            eventually(lambda: count(first, "forebay_namespace_reads_total") > 10, "it reads")
            first.process.kill()
            first.process.wait()
            # At the same address, with room for one I/O queue.
            text = file.read_text().replace("127.0.0.1:0", first.addresses[0], 1)
            file.write_text("connections = 2\n" + text)
            with Target(file) as second:
                eventually(lambda: count(second, "forebay_connections_refused_total") > 12, "a queue is refused")
                before = count(second, "forebay_namespace_reads_total")
                eventually(lambda: count(second, "forebay_namespace_reads_total") > before, "the other one goes on")
                run.send_signal(signal.SIGINT)
                out, err = run.communicate(timeout=processes.PATIENCE_S)
        record = json.loads(out)
        (fabric,) = record["path"]["fabric"]
        assert fabric["paths"][0]["reconnects"] == 1 and fabric["paths"][0]["refused"] > 0, fabric["events"]
        assert any("isn't connected" in e["text"] for e in fabric["events"])
        assert "queues_refused" in {w["id"] for w in record["warnings"]}, err


def count(target: Target, name: str) -> float:
    return parse_metrics(target.metrics())[name][0][1]


@pytest.mark.promise("RHO-7")
def test_nobody_there_is_said_with_what_to_type(forebay):
    done = forebay("bench", f"nvme+tcp://127.0.0.1:1/{NQN}", "--passes", "1")
    assert done.returncode == 3 and "refused" in done.stderr and "forebay discover 127.0.0.1:1" in done.stderr


@pytest.mark.promise("RHO-3")
@pytest.mark.long
def test_a_target_that_is_killed_and_started_again_costs_time_and_is_told_of(made, tmp_path):
    with Target(made, "--nqn", NQN, "--metrics", "0") as first:
        uri = first.uri("content=forebay.0&reconnect_delay=0.2&io_timeout=60&fast_io_fail_tmo=200")
        flags = ["--verify", "--duration", "3", "--io-size", "64k", "--depth", "4", "--timeout", "200s", "--json"]
        with processes.running([*processes.FOREBAY, "bench", uri, *flags], cwd=tmp_path) as run:
            eventually(lambda: parse_metrics(first.metrics())["forebay_namespace_reads_total"][0][1] > 100, "it reads")
            first.process.kill()
            first.process.wait()
            with Target(made, "--nqn", NQN, listen=(first.addresses[0],)):
                record = document(processes.finish(run))
        result = record["result"]
        assert result["errors"]["failed"] == result["errors"]["verify_failed"] == 0
        assert result["verified_bytes"] >= result["read_bytes"] > 0
        (fabric,) = record["path"]["fabric"]
        assert fabric["paths"][0]["reconnects"] == 1
        assert any("connected again" in e["text"] for e in fabric["events"])
        assert "reconnected" in {w["id"] for w in record["warnings"]}
