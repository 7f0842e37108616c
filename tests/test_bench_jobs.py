"""What a job's settings promise, held by the installed command over the real engine: one small job each."""

from __future__ import annotations

import json
import os
import re
import statistics
from pathlib import Path
from typing import Any

import processes
import pytest
from forebay import _core
from forebay.bench import summary
from forebay.export.columns import COLUMNS, rows
from forebay.report.load import Entry
from forebay.stats import mean_interval
from properties import parametrized


def bench(*arguments: Any, cwd: Path, code: int = 0) -> dict[str, Any]:
    """Runs `forebay bench … --json` and gives its record. Whatever ends with another code fails."""
    done = processes.run([*processes.FOREBAY, "bench", *arguments, "--json"], cwd=cwd)
    assert done.returncode == code, f"{done.returncode}: {done.stderr}"
    return json.loads(done.stdout)


# Buffered, so that every file system will do; 4 KiB, so that a pass has many I/Os.
SMALL = ("--cache", "allow", "--io-size", "4k", "--warmup", "0")


@pytest.mark.promise("BEN-2")
@parametrized("distribution", ["uniform", "zipf:1.1"], kept=(1,))
def test_the_same_seed_touches_the_same_blocks(tmp_path: Path, distribution: str) -> None:
    """As many writes as there are blocks, each drawn anew, leave holes in a sparse file: the footprint of the run."""

    def footprint(name: str, seed: int) -> set[int]:
        target = tmp_path / name
        with target.open("wb") as file:
            file.truncate(4 << 20)
        job = ("--op", "randwrite", "--distribution", distribution, "--seed", seed, "--passes", 1, "--depth", 1)
        record = bench(target, "--overwrite", target, *SMALL, *job, cwd=tmp_path)
        assert record["result"]["ios"] == 1024
        data = target.read_bytes()
        return {i for i in range(1024) if any(data[i * 4096 : (i + 1) * 4096])}

    first, again, other = footprint("a", 5), footprint("b", 5), footprint("c", 6)
    assert first == again and 100 < len(first) < 800
    assert len(first & other) < 0.9 * len(first)


@pytest.mark.long
@pytest.mark.promise("BEN-2")
def test_zipf_returns_to_its_hot_blocks_and_uniform_does_not(tmp_path: Path) -> None:
    def touched(distribution: str) -> int:
        target = tmp_path / distribution.replace(":", "")
        with target.open("wb") as file:
            file.truncate(16 << 20)
        job = ("--op", "randwrite", "--distribution", distribution, "--passes", 1)
        record = bench(target, "--overwrite", target, *SMALL, *job, cwd=tmp_path)
        assert record["result"]["ios"] == 4096
        data = target.read_bytes()
        return sum(any(data[i : i + 4096]) for i in range(0, len(data), 4096))

    # 4096 draws out of 4096: 63 % of the blocks where each is as likely as any other.
    assert 0.58 * 4096 < touched("uniform") < 0.68 * 4096
    assert touched("zipf:1.2") < 0.3 * 4096


@pytest.mark.promise("BEN-2")
def test_a_pass_without_repeats_touches_every_block_once(tmp_path: Path) -> None:
    target = tmp_path / "data"
    with target.open("wb") as file:
        file.truncate(16 << 20)
    job = ("--op", "randwrite", "--no-repeat", "--passes", 1, "--workers", 2)
    written = bench(target, "--overwrite", target, *SMALL, *job, cwd=tmp_path)["result"]
    assert (written["bytes"], written["ios"]) == (16 << 20, 4096)
    data = target.read_bytes()
    assert all(any(data[i : i + 4096]) for i in range(0, len(data), 4096)), "a block was left out"


@pytest.mark.promise("BEN-2", "BEN-9")
def test_reading_a_pass_without_repeats_verifies_every_byte_once(tmp_path: Path) -> None:
    job = ("--create", "--file-size", "16m", "--op", "randread", "--no-repeat", "--verify", "--passes", 1, "--workers", 2)
    result = bench(tmp_path, *SMALL, *job, cwd=tmp_path)["result"]
    assert (
        result["bytes"] == result["verified_bytes"] == result["read_bytes"] == 32 << 20
    )  # a file per worker
    assert result["errors"]["verify_failed"] == 0


@pytest.mark.promise("BEN-3")
def test_reads_and_writes_mix_in_the_share_asked_for(tmp_path: Path) -> None:
    job = ("--file-size", "64m", "--op", "randread", "--read-pct", 70, "--passes", 1)
    result = bench(tmp_path, *SMALL, *job, cwd=tmp_path)["result"]
    assert result["read_bytes"] + result["write_bytes"] == result["bytes"] == 64 << 20
    # 16384 draws: four standard deviations are 1.4 %.
    assert abs(result["read_bytes"] / result["bytes"] - 0.70) < 0.015


@pytest.mark.long
def test_no_more_bytes_are_verified_than_were_moved(tmp_path: Path) -> None:
    """A warm-up is checked and counts for neither; so is what comes back after the end."""
    # On a machine that is busy, nothing may come back for longer than any short duration; an idle one moves 4 GiB a second.
    job = ("f", "--create", "--file-size", "4m", "--duration", 60, "--limit-bytes", "128m", "--warmup", 0.02, "--verify")
    result = bench(*job, cwd=tmp_path)["result"]
    assert 0 < result["verified_bytes"] <= result["bytes"] and not result["errors"]["verify_failed"]


@pytest.mark.promise("BEN-4")
def test_warm_up_is_in_the_series_and_in_no_figure(tmp_path: Path) -> None:
    job = ("nil:?size=1g", "--rate-iops", 2000, "--warmup", 1, "--duration", 1, "--interval", 100)
    result = bench(*job, cwd=tmp_path)["result"]
    warm = [p for p in result["series"] if p["warmup"]]
    measured = [p for p in result["series"] if not p["warmup"]]
    assert warm and measured
    assert max(p["t_s"] for p in warm) <= min(p["t_s"] for p in measured)
    assert sum(p["iops"] for p in warm) > 0, "the warm-up did nothing"
    # Two seconds ran, one counts: the I/Os of the points that aren't warm-up, to the last one.
    assert result["seconds"] == pytest.approx(1.0, abs=1e-6)
    begins = [0.0, *(p["t_s"] for p in result["series"])]
    counted = [p["iops"] * (p["t_s"] - t_s) for t_s, p in zip(begins, result["series"], strict=False) if not p["warmup"]]
    assert result["ios"] == round(sum(counted))


@pytest.mark.promise("BEN-5")
def test_repeats_are_as_many_as_asked_and_the_summary_is_theirs(tmp_path: Path) -> None:
    job = ("nil:", "--rate-iops", 1000, "--duration", 0.3, "--warmup", 0, "--repeat", 4)
    result = bench(*job, cwd=tmp_path)["result"]
    rates = [r["throughput_gib_s"] for r in result["repeats"]]
    assert len(rates) == 4 and {p["repeat"] for p in result["series"]} == {0, 1, 2, 3}
    assert result["summary"]["throughput_gib_s_median"] == pytest.approx(statistics.median(rates), rel=1e-3)
    assert result["ios"] == sum(r["ios"] for r in result["repeats"])


@pytest.mark.promise("BEN-5")
def test_until_ci_ends_when_the_interval_is_narrow_or_at_its_bound(tmp_path: Path) -> None:
    paced = ("nil:", "--rate-iops", 2000, "--duration", 0.3, "--warmup", 0)
    result = bench(*paced, "--until-ci", "20%", "--repeat-max", 20, cwd=tmp_path)["result"]
    rates = [r["throughput_gib_s"] for r in result["repeats"]]
    # However the rates turned out: the first three repeats or more of which the interval is narrow, or all. Whoever
    # looks after each repeat sees a narrow one by chance more often: 98 % each time, so that 95 % hold in the end.
    found = [mean_interval(rates[:n], 0.98) for n in range(3, len(rates) + 1)]
    assert [f.n for f in found if f.half_width_pct <= 20] in ([len(rates)], []), rates
    assert found[-1].half_width_pct <= 20 or len(rates) == 20, rates
    assert result["summary"]["throughput_gib_s_ci95"] == pytest.approx([found[-1].low, found[-1].high], rel=1e-3)
    bound = ("nil:", "--duration", 0.1, "--warmup", 0, "--until-ci", "0.0001%", "--repeat-max", 4)
    assert len(bench(*bound, cwd=tmp_path)["result"]["repeats"]) == 4


@pytest.mark.long
@pytest.mark.promise("BEN-5")
def test_until_steady_ends_before_its_time_and_says_when(tmp_path: Path) -> None:
    """Whatever the machine does meanwhile, the record's own series has to agree: SNIA's bounds, tightened to a quarter."""
    job = ("nil:", "--rate-iops", 2000, "--until-steady", "--duration", 60, "--warmup", 0, "--interval", 100)
    record = bench(*job, cwd=tmp_path)
    result = record["result"]
    points = [(p["t_s"], p["gib_s"]) for p in result["series"]]
    windows = [points[n - 10 : n] for n in range(10, len(points) + 1)]
    steady = next((window[-1][0] for window in windows if is_steady(window)), None)
    assert result["steady_after_s"] == steady
    if steady is None:
        assert result["seconds"] == pytest.approx(60) and "never became steady" in str(record["missing"])
    else:
        assert steady <= result["seconds"] + 0.1 and result["seconds"] < 60


def is_steady(points: list[tuple[float, float]]) -> bool:
    """Within 5 % of the mean, and a line through them that rises or falls by 2.5 % at most."""
    times, rates = zip(*points, strict=True)
    line = statistics.linear_regression(times, rates)
    mean = statistics.fmean(rates)
    return max(rates) - min(rates) <= 0.05 * mean and abs(line.slope) * (times[-1] - times[0]) <= 0.025 * mean


@pytest.mark.promise("BEN-6")
def test_beyond_capacity_an_open_loop_counts_latency_from_the_schedule(tmp_path: Path) -> None:
    """Each I/O takes up to 10 ms, 5 on the mean, and one is in flight: 200 a second can be served. At 50 a
    second few wait; at 400 every second I/O adds to the queue, and latency grows though no I/O takes longer.

    A slow machine adds to each I/O, and never takes anything off: only least latencies are held."""
    job = ("nil:", "--faults", "seed=1,delay_us=10000", "--depth", 1, "--warmup", 0, "--duration", 1)
    below = bench(*job, "--rate-iops", 50, cwd=tmp_path)["result"]["latency_us"]
    result = bench(*job, "--rate-iops", 400, cwd=tmp_path)["result"]
    beyond, ios = result["latency_us"], result["ios"]
    assert 2_000 < below["p50"] < beyond["p50"] and 0 < ios < 250
    # The n-th is due after 2.5 n ms, and the n before it take 5 n: it waits for 2.5 n ms at least, the median half of it.
    assert beyond["p50"] > 1_000 * ios and beyond["max"] > 2_000 * ios


@pytest.mark.promise("BEN-18")
def test_what_the_end_overtakes_is_in_the_latency_and_in_no_rate(tmp_path: Path) -> None:
    """Each I/O takes up to 0.4 s, and 0.1 s are measured: what is in flight at the end takes longer than the run."""
    job = ("nil:", "--faults", "seed=1,delay_us=400000", "--depth", 16, "--warmup", 0, "--duration", 0.1)
    result = bench(*job, cwd=tmp_path)["result"]
    counted = sum(n for _, n in _core.buckets(result["histogram"]))
    assert 0 < result["late"] <= 16 and counted == result["ios"] + result["late"]
    assert result["latency_us"]["max"] > 100_000 >= 1e6 * result["seconds"]
    assert result["bytes"] == result["ios"] * (1 << 20) and result["unfinished"] == {"count": 0, "oldest_s": 0.0}


@pytest.mark.promise("BEN-18")
def test_an_open_loop_accounts_for_every_io_that_was_due(tmp_path: Path) -> None:
    """100 are due in 0.1 s; each takes 50 ms on the mean, one at a time: most still wait when a second has gone by."""
    job = ("nil:", "--faults", "seed=1,delay_us=100000", "--depth", 1, "--warmup", 0, "--duration", 0.1)
    record = bench(*job, "--rate-iops", 1000, cwd=tmp_path)
    result, unfinished = record["result"], record["result"]["unfinished"]
    assert result["late"] > 0 and unfinished["count"] > 0
    assert result["ios"] + result["late"] + unfinished["count"] == 100
    assert sum(n for _, n in _core.buckets(result["histogram"])) == 100
    assert unfinished["oldest_s"] >= 1.0 and result["latency_us"]["max"] >= 0.99e6 * unfinished["oldest_s"]
    warning = next(w for w in record["warnings"] if w["id"] == "unfinished")
    assert f"{unfinished['count']} I/Os" in warning["text"] and "--rate" in warning["next"]


@pytest.mark.promise("BEN-8")
def test_several_sources_are_one_job(tmp_path: Path) -> None:
    names = [tmp_path / name for name in ("one", "two", "three")]
    for name in names:
        with name.open("wb") as file:
            file.truncate(4 << 20)
    record = bench(*names, *SMALL, "--workers", 3, "--passes", 1, cwd=tmp_path)
    targets = record["result"]["targets"]
    assert [Path(t["target"]).name for t in targets] == ["one", "two", "three"]
    assert [t["bytes"] for t in targets] == [4 << 20] * 3
    assert record["job"]["source"] == " ".join(map(str, names)) and record["job"]["data_bytes"] == 12 << 20


@pytest.mark.promise("BEN-7")
def test_cpus_pins_each_worker_in_turn(tmp_path: Path) -> None:
    cpus = sorted(os.sched_getaffinity(0))[:2]
    listed = ",".join(map(str, cpus))
    job = ("nil:", "--workers", 3, "--cpus", listed, "--duration", 0.2, "--rate-iops", 100)
    workers = bench(*job, cwd=tmp_path)["result"]["workers"]
    assert [w["cpu"] for w in workers] == [cpus[i % len(cpus)] for i in range(3)]


@pytest.mark.promise("BEN-9")
def test_a_misplaced_block_is_named_by_file_offset_and_seed(tmp_path: Path) -> None:
    target = tmp_path / "data"
    job = (target, *SMALL, "--passes", 1, "--verify", "--seed", 7)
    bench(*job, "--op", "write", "--file-size", "1m", cwd=tmp_path)
    with target.open("r+b") as file:
        file.seek(40960)
        block = file.read(4096)
        file.seek(81920)
        file.write(block)
    errors = bench(*job, cwd=tmp_path, code=1)["result"]["errors"]
    assert errors["verify_failed"] >= 1
    reported = " ".join(errors["examples"])
    assert "81920" in reported and "40960" in reported, reported


@pytest.mark.promise("FLT-16")
def test_verify_refuses_a_file_whose_content_it_cannot_know(tmp_path: Path) -> None:
    job = (tmp_path / "data", *SMALL, "--passes", 1)
    bench(*job, "--op", "write", "--file-size", "1m", cwd=tmp_path)
    refused = processes.run([*processes.FOREBAY, "bench", *job, "--verify"], cwd=tmp_path)
    assert refused.returncode == 2
    assert "without --verify" in refused.stderr and "--op write --verify" in refused.stderr
    bench(*job, "--op", "write", "--verify", cwd=tmp_path)
    assert bench(*job, "--verify", cwd=tmp_path)["result"]["verified_bytes"] == 1 << 20


@pytest.mark.promise("FLT-16")
def test_verify_reads_the_part_that_was_written_for_it(tmp_path: Path) -> None:
    job = (tmp_path / "data", *SMALL, "--passes", 1)
    bench(*job, "--op", "write", "--file-size", "1m", cwd=tmp_path)
    part = (*job, "--verify", "--start", "512k")
    bench(*part, "--op", "write", cwd=tmp_path)
    assert bench(*part, cwd=tmp_path)["result"]["errors"]["verify_failed"] == 0


@pytest.mark.promise("FLT-15")
@pytest.mark.parametrize("as_stripe", [True, False])
def test_one_file_under_two_names_is_not_written_to(tmp_path: Path, as_stripe: bool) -> None:
    job = (*SMALL, "--passes", 1, "--op", "write")
    bench(tmp_path / "a", *job, "--file-size", "1m", cwd=tmp_path)
    (tmp_path / "b").hardlink_to(tmp_path / "a")
    before = (tmp_path / "a").read_bytes()
    sources = ["stripe:?chunk=64k&m=a&m=b"] if as_stripe else ["a", "b"]
    named = ("--overwrite", "a", "--overwrite", "b")
    done = processes.run([*processes.FOREBAY, "bench", *sources, *job, *named], cwd=tmp_path)
    assert done.returncode == 2 and "write to b: it is the same as a" in done.stderr
    assert (tmp_path / "a").read_bytes() == before
    assert bench("a", "b", *SMALL, "--passes", 1, cwd=tmp_path)["result"]["bytes"] == 2 << 20


@pytest.mark.promise("REC-1")
def test_each_null_of_a_record_has_its_reason(tmp_path: Path) -> None:
    """Null means `couldn't be measured`, so that somebody must be told why; settings left out are no measurement."""
    record = bench("nil:", "--duration", 0.3, "--rate-iops", 1000, cwd=tmp_path)
    unexplained = [
        path
        for part in ("result", "cache")
        for path in nulls(record[part], part)
        if not explained(path, record["missing"]) and path != "result.workers[].cpu"  # null: not pinned
    ]
    assert not unexplained, unexplained
    assert all(reason for reason in record["missing"].values())


def nulls(value: Any, path: str) -> list[str]:
    if value is None:
        return [path]
    if isinstance(value, dict):
        return [n for k, v in value.items() for n in nulls(v, f"{path}.{k}")]
    if isinstance(value, list):
        return [n for v in value for n in nulls(v, f"{path}[]")]
    return []


def explained(path: str, missing: dict[str, str]) -> bool:
    """Entries of a list share the reason of the same field of the whole run, or of their list."""

    def plain(text: str) -> str:
        return re.sub(r"\[\d*\]", "[]", text)

    last = path.rsplit(".", 1)[-1]
    return any(plain(m) == path or plain(m).rsplit(".", 1)[-1] == last for m in missing)


@pytest.mark.promise("BEN-50", "BEN-51")
def test_whole_files_are_read_once_a_pass_in_random_order(tmp_path: Path) -> None:
    """Each file has a size of its own, and one worker reads them one by one: the log of its I/Os tells which it was."""
    sizes = [1 + 3000 * n for n in range(12)]
    for n, size in enumerate(sizes):
        file = tmp_path / "data" / f"{n % 3}" / f"{n}.{'JPG' if n % 2 else 'jpg'}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes(size))
    (tmp_path / "data/labels.txt").write_text("not read")

    def read(log: str, *arguments: Any) -> tuple[list[int], dict[str, Any]]:
        glob = ("--glob", "*.jpg", "--glob", "**/*.JPG")
        record = bench("data", *glob, *SMALL, "--depth", 1, "--passes", 3, "--io-log", log, *arguments, cwd=tmp_path)
        files: list[int] = []
        for line in (tmp_path / f"{log}.1.log").read_text().splitlines():
            size, offset = (int(word) for word in line.replace(",", " ").split()[-2:])
            files = files if offset else [*files, 0]
            assert offset == files[-1], "a piece that doesn't begin where the last one ended"
            files[-1] += size
        return files, record

    def passes(files: list[int]) -> list[list[int]]:
        return [files[n : n + len(sizes)] for n in range(0, len(files), len(sizes))]

    first, record = read("first", "--order", "random")
    again, _ = read("again", "--whole-files", "--order", "random")
    other, _ = read("other", "--order", "random", "--seed", 8)
    by_name, _ = read("name", "--whole-files")
    assert [sorted(one) for one in passes(first)] == [sizes] * 3 and again == first
    assert len({tuple(one) for one in (*passes(first), *passes(other), *passes(by_name))}) == 7
    counted = record["result"]["files"]
    assert (counted["found"], counted["read"], counted["whole"]) == (12, 12, 36.0) and counted["files_per_s"] > 0
    [row] = rows([Entry(record, "a.json")])
    cells = dict(zip((c.name for c in COLUMNS), row, strict=True))
    assert (cells["files_read"], cells["files_per_s"]) == (12, counted["files_per_s"])
    reported = summary.text(record, 200)
    assert "read of whole files in random order by 4k from data '*.jpg' '**/*.JPG'" in reported
    assert "files     12 of 12 read · " in reported and "(36 read from beginning to end)" in reported


@pytest.mark.promise("BEN-50", "BEN-51")
def test_files_that_are_not_there_or_not_whole_are_refused(tmp_path: Path) -> None:
    for name in ("a.JPG", "b.JPG", "labels.txt", "README"):
        (tmp_path / name).write_text("data")
    for arguments, said in (
        ((".", "--glob", "*.jpg"), "2 .JPG, 1 .txt, 1 without an extension\n  try: --glob '*.JPG'"),
        ((".", "--whole-files", "--workers", "5"), "there are 4 for 5 workers\n  try: --workers 4"),
        ((".", "--order", "random", "--op", "randread"), "try: --op read --whole-files --order random"),
        (("model:d7-ps1010", "--whole-files"), "neither a file nor a directory"),
        (("README", "--glob", "*"), "it is one file"),
    ):
        done = processes.run([*processes.FOREBAY, "bench", *arguments], cwd=tmp_path)
        assert done.returncode == 2 and said in done.stderr, done.stderr
