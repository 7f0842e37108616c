"""What a target and a gateway say of the fabric below them while they run: paths, queues, reconnects."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Callable
from typing import Any

import processes
import pytest
from serve_support import NQN, Target, document, eventually, parse_metrics, toml

# So that a target that is back is connected to within a test.
QUERY = "reconnect_delay=0.1&fast_io_fail_tmo=60&queues=2"
Samples = dict[str, list[tuple[dict[str, str], float]]]


def state(samples: Samples) -> dict[str, Any]:
    """Of the only path: the states that are 1, and the numbers."""

    def on(name: str) -> list[str]:
        return [labels["state"] for labels, value in samples[name] if value]

    def number(name: str) -> float:
        return samples[name][0][1]

    return {
        "state": on("forebay_source_path_state"),
        "ana": on("forebay_source_path_ana_state"),
        "reconnects": number("forebay_source_path_reconnects_total"),
        "queues": number("forebay_source_path_queues"),
    }


def up(reconnects: int, queues: int) -> dict[str, Any]:
    return {"state": ["live"], "ana": ["optimized"], "reconnects": reconnects, "queues": queues}


def interrupted(below: Target, look: Callable[[], dict[str, Any]], queues: int) -> None:
    """The target below is killed and started again: all of it shows."""
    eventually(lambda: look() == up(0, queues), "a path that is live")
    below.process.kill()
    below.process.wait()
    down = {"state": ["connecting"], "ana": [], "reconnects": 0, "queues": 0}
    eventually(lambda: look() == down, "a path that reconnects")
    with Target("nil:?size=1m", "--nqn", NQN, listen=(below.addresses[0],)):
        eventually(lambda: look() == up(1, queues), "a path that is live again")


@pytest.mark.promise("TGT-20")
def test_a_target_tells_of_the_target_below_it(forebay, tmp_path):
    with Target("nil:?size=1m", "--nqn", NQN) as below:
        file = toml(tmp_path / "serve.toml", [f'source = "{below.uri(QUERY)}"'], 'metrics = "0"\nthreads = 1')
        with Target(file) as above:
            samples = parse_metrics(above.metrics())
            assert state(samples) == up(0, 0), "nobody reads yet"
            labels = {"subsystem": NQN, "nsid": "1", "source": below.uri(), "path": below.addresses[0]}
            assert samples["forebay_source_path_queues"][0][0] == labels
            document(forebay("bench", above.uri(), "--passes", "1", "--io-size", "64k", "--json"))
            samples = parse_metrics(above.metrics())
            commands = samples["forebay_source_queue_commands_total"]
            assert all(labels.items() <= reported.items() for reported, _ in commands)
            assert sum(value for _, value in commands) >= 16
            assert sum(value for _, value in samples["forebay_source_queue_latency_seconds_count"]) >= 16
            interrupted(below, lambda: state(parse_metrics(above.metrics())), 2)


@pytest.mark.promise("SNP-12")
def test_a_gateway_tells_of_the_target_below_it(forebay, tmp_path):
    rpc, file, said = tmp_path / "rpc.sock", tmp_path / "snap.toml", tmp_path / "snap.log"
    with Target("nil:?size=1m", "--nqn", NQN) as below:
        file.write_text(
            f'rpc = "{rpc}"\nmetrics = "0"\nthreads = 1\n[[subsystems]]\nnqn = "{NQN}"\n'
            f'[[subsystems.namespaces]]\nsource = "{below.uri(QUERY)}"\n'
            f'[[subsystems.controllers]]\nname = "one"\nsocket = "{tmp_path}/one.sock"\n'
        )
        with said.open("w") as log, processes.running([*processes.FOREBAY, "snap", file], stdout=log, stderr=log):
            ready = eventually(lambda: re.search(r"^ready: .* · metrics on (\S+)$", said.read_text(), re.M), "it is ready")

            def metrics() -> Samples:
                with urllib.request.urlopen(ready[1], timeout=processes.PATIENCE_S) as answer:
                    return parse_metrics(answer.read().decode())

            document(forebay("bench", f"vfio-user:{tmp_path}/one.sock", "--passes", "1", "--io-size", "64k", "--json"))
            samples = metrics()
            assert samples["forebay_namespace_reads_total"][0] == ({"subsystem": NQN, "nsid": "1"}, 16)
            controller = {"subsystem": NQN, "controller": "one"}
            assert ({**controller, "state": "enabled"}, 0.0) in samples["forebay_controller_state"]
            assert (controller, 1.0) in samples["forebay_controller_connections_total"]
            interrupted(below, lambda: state(metrics()), 2)
            reported = document(forebay("snap", "rpc", "--socket", rpc, "snap_stats_get"))
            (source,) = reported["subsystems"][0]["namespaces"][0]["fabric"]
            assert source["uri"] == below.uri() and len(source["queues"]) > 0
            assert [path["reconnects"] for path in source["paths"]] == [1]
            assert any("connected again" in event["text"] for event in source["events"]), json.dumps(source)
