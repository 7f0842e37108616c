"""Queries of dependent reads: each round waits for the one before, and queries are counted whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from forebay import run
from forebay.bench import summary
from forebay.errors import RequestError
from fuse_support import Device, serving

PATTERN = "hops=3,beam=2,node=8k,segments=4"


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Device]:
    with serving(tmp_path_factory.mktemp("queries") / "data", 4 << 20) as found:
        yield found


@pytest.mark.promise("BEN-54")
def test_a_round_begins_when_the_one_before_is_over_and_goes_to_every_segment(device: Device) -> None:
    device.begin(device.schedule)
    fields = {"sources": [str(device.path)], "dependent": PATTERN, "limit_ios": 120, "engine": "pread"}
    record = run.run(fields)
    trace = sorted(device.trace, key=lambda io: io.came_ns)
    rounds = [trace[at : at + 8] for at in range(0, 120, 8)]
    assert len(trace) == 120 and all(io.size == 8192 and io.offset % 8192 == 0 for io in trace)
    for each in rounds:
        assert sorted(io.offset // (1 << 20) for io in each) == [0, 0, 1, 1, 2, 2, 3, 3]
    found = record["result"]["queries"]
    assert found["count"] == 5 and found["bytes"] == 3 * 8 * 8192 and record["result"]["ios"] == 120
    assert found["latency_us"]["min"] >= record["result"]["batch"]["latency_us"]["min"] * 3
    assert "5 of " not in summary.text(record) and "/s of 0.20 MB each" in summary.text(record)


@pytest.mark.promise("BEN-54")
def test_a_drive_on_paper_answers_in_virtual_time() -> None:
    fields = {"sources": ["model:d7-ps1010"], "dependent": "hops=50,beam=4,node=8k,segments=7", "duration_s": 0.5}
    found = [run.run({**fields, "workers": workers})["result"]["queries"] for workers in (1, 4)]
    assert 113 < found[0]["per_s"] < 170 and found[0]["bytes"] == 11_468_800
    # The drive is far from its limit: four at a time take hardly longer.
    assert 3.5 < found[1]["per_s"] / found[0]["per_s"] < 4.2


@pytest.mark.promise("BEN-54")
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"dependent": "hops=0"}, "hops=0 is not a whole number"),
        ({"dependent": "hops=4,beam=5000"}, "4096 can be in flight"),
        ({"dependent": "hops=4", "op": "write"}, "reads with"),
        ({"dependent": "hops=4", "depth": 9}, "reads with"),
        ({"dependent": "hops=4", "rate_iops": 5.0}, "once all are there"),
        ({"dependent": "hops=4", "path": "auto"}, "once all are there"),
        ({"dependent": "hops=4,node=1m,segments=9"}, "8 nodes of"),
    ],
)
def test_what_cannot_be_asked_is_refused(tmp_path: Path, fields: dict, said: str) -> None:
    (tmp_path / "f").write_bytes(bytes(8 << 20))
    with pytest.raises(RequestError) as refused:
        run.plan({"sources": [str(tmp_path / "f")], "cache": "allow", **fields})
    assert said in str(refused.value)
