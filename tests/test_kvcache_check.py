"""`forebay emulate kvcache check`: three rates of anybody's results, what doesn't hold, and files that are damaged."""

from __future__ import annotations

import contextlib
import copy
import gzip
import json
import os
import random
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from forebay.emulate.kvcache import bounds, rank_files
from forebay.emulate.kvcache.check import Check
from forebay.emulate.kvcache.formula import aggregate
from forebay.emulate.kvcache.limits import Asked, names_in
from forebay.errors import RequestError
from forebay.units import GIB
from hypothesis import example, given
from hypothesis import strategies as st
from kvcache_support import STAMP, Typed, check, findings, put, rank_document, rank_of, trials  # noqa: F401
from properties import any_text, examples

BEGAN = datetime.strptime(STAMP, "%Y%m%d_%H%M%S").timestamp()


def reported(check: Typed, *arguments: Any) -> tuple[int, dict[str, Any]]:  # noqa: F811
    code, out, _ = check(*arguments, "--json")
    return code, json.loads(out)


@pytest.mark.promise("KVC-20")
@pytest.mark.parametrize(
    ("drive", "gib", "longest_s", "published", "drained", "faults"),
    [
        ("D7-PS1010", 4326.4, 321.1, 14.42, 13.47, {"late", "p95", "rating"}),
        ("D5-P5336", 2356.6, 375.9, 7.86, 6.27, {"late", "p95", "link", "rating"}),
    ],
)
def test_published_results_are_as_the_facts_have_them(
    tmp_path: Path, check: Typed, drive: str, gib: float, longest_s: float, published: float, drained: float, faults: set[str]  # noqa: F811
) -> None:
    trials(tmp_path, read_gib=gib, longest_s=longest_s)
    code, document = reported(check, tmp_path, "--drive", drive)
    read = rank_of(document)["read_gib_s"]
    assert code == 1 and set(findings(document)) == faults
    assert round(read["as_published"], 2) == round(read["stated"], 2) == published
    assert read["drained"][0] is None and round(read["drained"][1], 2) == drained
    assert read["window"] == [None, min(gib / 300, document["options"]["1"]["storage"]["link_gib_s"])]
    _, out, _ = check(tmp_path, "--drive", drive)
    assert f"as-published {published} GiB/s" in out and f"drained ≤ {drained}" in out and "MLPerf-style, unverified" in out
    assert f"too high by {7.0 if drive == 'D7-PS1010' else 25} % or more" in out


@pytest.mark.promise("KVC-21")
def test_a_result_that_holds_has_exit_code_0_and_its_means(tmp_path: Path, check: Typed) -> None:  # noqa: F811
    code, document = reported(check, trials(tmp_path), "--drive", "D7-PS1010", "--closed")
    assert (code, findings(document), document["files"], document["skipped"]) == (0, [], 3, [])
    aggregated = document["options"]["1"]["aggregated"]
    assert aggregated["aggregated_read_bandwidth_gbps"] == pytest.approx(4.0)
    assert aggregated["read_gib_s"]["as_published"] == pytest.approx(4.0) and aggregated["rank_count"] == 1
    assert "Nothing found" in check(tmp_path)[1]


@pytest.mark.promise("KVC-20")
def test_time_stamps_bound_the_last_end_from_above_where_they_are_plausible(tmp_path: Path, check: Typed) -> None:  # noqa: F811
    file = put(tmp_path, rank_document(4326.4, longest_s=321.1))
    for after_s, lowest in ((351.0, 4326.4 / 351), (310.0, None), (5_000.0, None), (-3_600.0, None)):
        os.utime(file, (BEGAN + after_s, BEGAN + after_s))
        rank = rank_of(reported(check, file, "--drive", "D7-PS1010")[1])
        assert rank["read_gib_s"]["drained"][0] == (None if lowest is None else pytest.approx(lowest)), after_s
    os.utime(file, (BEGAN + 351, BEGAN + 351))
    log = "{} - kv_cache.cache - INFO - Pre-generating 256 MB noise buffer...\nno stamp\n{} - m - INFO - Results saved to x/{}\n"
    for name, saved in (("kvcache_run_opt1_trial0.stdout.log", "elsewhere"), ("kvcache_x.stderr.log", f"rank_0/{file.name}")):
        lines = log.format("2026-05-23 12:01:30", "2026-05-23 12:07:18", saved)
        earlier = log.format("2026-05-23 11:40:00", "2026-05-23 11:46:00", "rank_0/kvcache_results_20260523_114000.json")
        (tmp_path / name).write_text(earlier + lines)
        rank = rank_of(reported(check, tmp_path, "--drive", "D7-PS1010")[1])
        low, high = rank["read_gib_s"]["drained"]
        assert (round(low, 2), round(high, 2)) == (12.40, 13.47) and "the log says" in rank["why"][1]
        # What the link carries after the window is at most what wasn't moved within it.
        link = 3.938e9 * 4 / GIB
        assert rank["read_gib_s"]["window"][0] == pytest.approx((4326.4 - 49 * link) / 300)
        (tmp_path / name).unlink()


@pytest.mark.promise("KVC-21")
@pytest.mark.parametrize(
    ("other", "faults"),
    [
        ({"tier_storage_read_bandwidth_gbps": 4.2}, ["divisor"]),
        ({"elapsed_time": 389.7}, ["divisor"]),
        ({"storage_io_latency_ms": {"p95": 300_500.0}}, ["p95"]),
        ({"storage_write_device_p50_ms": 0.05}, ["fsync"]),
        ({"read_gib": 6000.0}, ["link", "rating"]),
        ({"read_gib": 4200.0}, ["rating"]),
        ({"storage_entries": "12", "storage_write_device_p50_ms": "fast"}, ["number"]),
        ({"end_to_end_latencies": [301.0, 340.0]}, ["late"]),
    ],
    ids=["bandwidth", "elapsed", "p95", "fsync", "link", "rating", "number", "late"],
)
def test_what_does_not_hold_is_named(tmp_path: Path, check: Typed, other: dict[str, Any], faults: list[str]) -> None:  # noqa: F811
    code, document = reported(check, trials(tmp_path, **other), "--drive", "D7-PS1010")
    assert code == 1 and findings(document, fault=True) == faults * 3
    assert reported(check, tmp_path, "--drive", "D7-PS1010", "--drives", "9")[0] == (0 if faults[-1] == "rating" else 1)


@pytest.mark.promise("KVC-21")
def test_a_duration_that_was_asked_for_is_the_divisor(tmp_path: Path, check: Typed) -> None:  # noqa: F811
    trials(tmp_path, elapsed_time=60.0, longest_s=50.0)
    assert reported(check, tmp_path)[0] == 1 and "--duration 60 if not" in check(tmp_path)[1]
    code, document = reported(check, tmp_path, "--duration", "60")
    assert code == 0 and rank_of(document)["read_gib_s"]["as_published"] == pytest.approx(20.0)
    assert "closed" in findings(document, fault=False) and reported(check, tmp_path, "--duration", "60", "--closed")[0] == 1
    (tmp_path / "kvcache_x_metadata.json").write_text('{"duration": 60, "num_users": 17}')
    assert reported(check, tmp_path)[0] == 0 and "17 users, where closed has" in check(tmp_path)[1]


@pytest.mark.promise("KVC-21")
def test_deviations_from_closed_are_notes_unless_judged_as_closed(tmp_path: Path, check: Typed) -> None:  # noqa: F811
    classes = {"interactive": {"total_requests": 1445}, "responsive": {"total_requests": 184}, "batch": {"no_data": True}}
    odd: dict[str, Any] = {"seed": 7, "qos_metrics": classes, "tier_cpu_kv_bytes_written_gb": 2.0}
    put(tmp_path, rank_document(**odd))
    put(tmp_path, rank_document(storage_tokens_processed=1e9), option=3)
    code, document = reported(check, tmp_path)
    assert code == 0 and findings(document).count("closed") == 5 and "starved" in findings(document)
    out = check(tmp_path)[1]
    for words in ("seed 7 of rank 0", "client's memory, where option 1", "bytes a token, where llama3.1-70b", "1,445 of 1,629"):
        assert words in out
    assert reported(check, tmp_path, "--closed")[0] == 1


@pytest.mark.promise("KVC-20")
def test_the_drive_is_known_by_path_or_description_and_several_are_none(tmp_path: Path, check: Typed) -> None:  # noqa: F811
    trials(tmp_path / "acme" / "4x-d7ps1010", read_gib=6000.0)
    trials(tmp_path / "acme" / "other", read_gib=6000.0)
    (tmp_path / "acme" / "other.yaml").write_text("drives: D5-P5336\n")
    code, document = reported(check, tmp_path)
    drives = {name: option["storage"]["drive"] for name, option in document["options"].items()}
    assert code == 1 and drives == {"acme/4x-d7ps1010/1": "4 × D7-PS1010", "acme/other/1": "D5-P5336"}
    assert names_in("gen4-1x-D5-P5336 of 2024") == {"d5-p5336": 1} and names_in("D7-PS1010 3.84TB") == {"d7-ps1010": None}
    assert names_in("pcie5-2024-16 x d7_ps1010") == {"d7-ps1010": 16} and names_in("xD7-PS10100") == {}
    assert set(findings(document, fault=True)) == {"link", "rating"} and "--drives N if there are more" in check(tmp_path)[1]
    (tmp_path / "acme" / "other.yaml").write_text("drives: D5-P5336, D7-P5520\n")
    assert reported(check, tmp_path)[0] == 0


@pytest.mark.promise("KVC-22")
def test_a_summary_is_recalculated_from_the_rank_files(tmp_path: Path, check: Typed) -> None:  # noqa: F811
    for trial, rank in ((t, r) for t in range(3) for r in range(2)):
        put(tmp_path, rank_document(1000.0 + 7 * trial + rank, seed=42 + rank), trial=trial, rank=rank)
    ranks, trials_of = rank_files.slots(rank_files.survey(tmp_path))
    right = aggregate(trials_of[1], ranks)
    file = tmp_path / "summary.json"
    device = {"aggregated_device_read_p95_ms": 0.0, "aggregated_device_write_p95_ms": 400.0}
    file.write_text(json.dumps({"options": {"1": right | device}}))
    code, document = reported(check, tmp_path)
    assert code == 0 and document["options"]["1"]["aggregated"]["rank_count"] == 2
    assert document["options"]["1"]["trials"][0]["read_gib_s"]["as_published"] == pytest.approx(2001 / 300)
    for key in ("aggregated_read_bandwidth_gbps", "aggregated_p95_latency_ms", "rank_count"):
        file.write_text(json.dumps({"options": {"1": right | {key: right[key] * (1 + 3e-9)}, "2": {}}}))
        code, document = reported(check, tmp_path)
        assert code == 1 and findings(document, fault=True) == ["summary"]
    assert "option 2 has no rank file here" in check(tmp_path)[1]
    (tmp_path / "option_1" / "trial_2" / "rank_1" / f"kvcache_results_{STAMP}.json").unlink()
    assert set(findings(reported(check, tmp_path)[1], fault=True)) == {"summary", "missing"}


@pytest.mark.promise("KVC-22")
def test_a_summary_alone_shows_a_percentile_longer_than_the_run(tmp_path: Path, check: Typed) -> None:  # noqa: F811
    (tmp_path / "summary.json").write_text(json.dumps({"options": {"1": {"aggregated_p95_latency_ms": 389_700.0}}}))
    code, document = reported(check, tmp_path)
    assert code == 1 and findings(document, fault=True) == ["p95"] and document["options"] == {}


@pytest.mark.promise("KVC-23")
@pytest.mark.parametrize(
    ("content", "why"),
    [
        (json.dumps(rank_document())[:-40], "isn't JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("[]", "is no object"),
        ("{}", "has no 'summary': no request was completed"),
        ('{"summary": []}', "has no 'summary' with 'cache_stats'"),
        ('{"summary": {"cache_stats": {}}}', "has neither bytes nor bandwidth"),
        ('{"summary": {"cache_stats": {"tier_storage_kv_bytes_read_gb": NaN}}}', "tier_storage_kv_bytes_read_gb is NaN"),
        ('{"summary": {"cache_stats": {"tier_storage_kv_bytes_read_gb": 1' + "0" * 400 + "}}}", "is 1000"),
        ('{"summary": {"cache_stats": {"tier_storage_kv_bytes_read_gb": 1' + "0" * 5000 + "}}}", "isn't JSON"),
        ('{"summary": {"cache_stats": {"tier_storage_kv_bytes_read_gb": 1e999}}}', "is Infinity"),
        ('{"end_to_end_latencies": ["long"], "summary": {"cache_stats": {}}}', "isn't a list of seconds"),
    ],
    ids=["truncated", "deep", "list", "empty", "types", "no-keys", "nan", "huge", "digits", "infinite", "latencies"],
)
def test_a_damaged_file_is_named_and_skipped(tmp_path: Path, check: Typed, content: str, why: str) -> None:  # noqa: F811
    trials(tmp_path)
    damaged = put(tmp_path, content, trial=1)
    code, document = reported(check, tmp_path)
    assert code == 1 and document["files"] == 2 and "damaged" in findings(document, fault=True)
    assert document["skipped"][0]["file"] == str(damaged.relative_to(tmp_path)) and why in document["skipped"][0]["why"]
    code, out, err = check(damaged)
    assert code == 1 and why in out and not err


@pytest.mark.promise("KVC-23")
def test_files_are_read_packed_alone_and_of_any_name(tmp_path: Path, check: Typed) -> None:  # noqa: F811
    plain = put(tmp_path, rank_document())
    packed = plain.with_name(plain.name + ".gz")
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    assert rank_of(reported(check, packed)[1])["read_gib_s"]["as_published"] == pytest.approx(4.0)
    alone = tmp_path / "flat" / f"kvcache_results_{STAMP}.json"
    alone.parent.mkdir()
    alone.write_text(json.dumps(rank_document()))
    assert reported(check, alone.parent)[1]["options"]["unknown"]["trials"][0]["trial"] is None
    put(tmp_path, rank_document(), stamp="20270101_000000")
    assert "several" in findings(reported(check, tmp_path / "option_1")[1], fault=False)
    packed.write_bytes(packed.read_bytes()[:-30])
    assert "damaged" in findings(reported(check, tmp_path)[1])
    os.mkfifo(tmp_path / "kvcache_results_fifo.json")
    (tmp_path / "summary.json").write_bytes(b"\xff{")
    (tmp_path / "option_1" / "kvcache_results_\udcff\x1b[31m.json").write_text("{")
    document = reported(check, tmp_path)[1]
    assert findings(document).count("damaged") == 4
    code, out, _ = check(tmp_path)
    assert code == 1 and "\x1b" not in out and "kvcache_results_??[31m.json" in out


@pytest.mark.promise("KVC-23")
def test_too_much_is_refused_or_left_out(tmp_path: Path, check: Typed, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    trials(tmp_path)
    monkeypatch.setattr(rank_files, "FILE_BYTES_MAX", 100)
    assert findings(reported(check, tmp_path)[1]).count("damaged") == 3
    monkeypatch.undo()
    monkeypatch.setattr(rank_files, "ALL_BYTES_MAX", 2000)
    assert "comes after" in rank_files.survey(tmp_path).damaged[0].why
    monkeypatch.setattr(rank_files, "ENTRIES_MAX", 3)
    with pytest.raises(RequestError, match="holds more than 3 files"):
        rank_files.survey(tmp_path)
    monkeypatch.undo()
    put(tmp_path, rank_document(), trial=999, rank=9999)
    with pytest.raises(RequestError, match="ranks up to 9999"):
        rank_files.slots(rank_files.survey(tmp_path))


@pytest.mark.promise("KVC-23")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nowhere",), "there is no such folder"),
        (("empty",), "holds no kvcache_results_"),
        (("fifo",), "is a FIFO"),
        (("damaged",), "that can be read: summary.json isn't JSON"),
        (("empty", "--drive", "D7-PS1011"), "did you mean D7-PS1010?"),
        (("empty", "--link", "5"), "--link 5,4"),
        (("empty", "--link", "7,4"), "3 to 6"),
        (("empty", "--drives", "0"), "from 1 to"),
        (("empty", "--duration", "0"), "is no duration of a run"),
        (("empty", "--duration", "soon"), "is not a time"),
    ],
)
def test_a_wrong_request_has_exit_code_2(
    tmp_path: Path, check: Typed, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], says: str  # noqa: F811
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "summary.json").write_text("{")
    code, out, err = check(*arguments)
    assert code == 2 and says in err and "try:" in err and not out


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), any_text(max_size=3), st.just([]), st.just({}), st.just(10**400),
    st.sampled_from([5e-324, 1e-13, 1e308, -1.0, 1e18, [1], [-1.0], [5e-324], {"p95": "x"}]),
)  # fmt: skip


def spots(document: Any, above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Each key of a document, by the keys above it."""
    if not isinstance(document, dict):
        return []
    return [spot for key, value in document.items() for spot in ((*above, key), *spots(value, (*above, key)))]


SPOTS = spots(rank_document())


def survives(content: bytes, summary: bytes = b"") -> dict[str, Any]:
    """The check's document of one rank's file, which is JSON by the standard."""
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name)
        put(tree, "").write_bytes(content)
        if summary:
            (tree / "summary.json").write_bytes(summary)
        document = Check(rank_files.survey(tree), Asked(link=(5, 4)), None, True).document()
    json.dumps(document, allow_nan=False)
    return document


@pytest.mark.promise("KVC-23")
@examples(40)
@given(st.lists(st.tuples(st.sampled_from(SPOTS), VALUES), min_size=1, max_size=4), st.booleans())
@example([(("summary", "cache_stats", "storage_write_device_p50_ms"), 1e-12)], False)
@example([(("summary", "cache_stats", "storage_tokens_processed"), 1e-12)], False)
@example([(("end_to_end_latencies",), [1e-12])], False)
def test_any_value_in_any_place_is_counted_named_or_skipped(changes: list[tuple[tuple[str, ...], Any]], remove: bool) -> None:
    document = rank_document()
    for spot, value in changes:
        with contextlib.suppress(KeyError, TypeError):
            at = document
            for key in spot[:-1]:
                at = at[key]
            if remove:
                del at[spot[-1]]
            else:
                at[spot[-1]] = copy.deepcopy(value)
    found = survives(json.dumps(document).encode(), json.dumps({"options": {"1": document.get("summary")}}).encode())
    assert found["files"] + len(found["skipped"]) == 1


@pytest.mark.promise("KVC-23")
@examples(40)
@given(st.randoms(use_true_random=False), st.integers(1, 6))
def test_any_bytes_are_counted_named_or_skipped(rng: random.Random, number: int) -> None:
    whole = json.dumps(rank_document()).encode()
    content = bytearray(whole)
    for _ in range(number):
        content[rng.randrange(len(content))] = rng.choice(b'0123456789-+.eE{}[]",:nul \xff\x00')
    cut = content[: rng.randrange(len(content) + 1)] if rng.random() < 0.3 else content
    assert survives(bytes(cut), bytes(content))["files"] in (0, 1)


@pytest.mark.promise("KVC-20")
@examples(40)
@given(
    gib=st.floats(1.0, 1e5),
    last_s=st.floats(1.0, 2000.0),
    slack_s=st.floats(0.0, 1500.0),
    link=st.sampled_from([None, 1.0, 14.0, 500.0]),
    duration=st.floats(1.0, 600.0),
)
def test_brackets_hold_what_was_generated(
    gib: float, last_s: float, slack_s: float, link: float | None, duration: float
) -> None:
    """A run whose bytes and last end are known, moved at one rate that no link of it was slower than."""
    rate = gib / last_s
    window = gib * min(duration, last_s) / last_s / duration
    known = None if link is None or link < rate else link
    end = bounds.End(last_s * 0.9, "", last_s + slack_s)
    found = bounds.bracketed(gib, None, duration, end, known)
    for (low, high), right in ((found.window, window), (found.drained, rate)):
        assert low is None or low <= right * (1 + 1e-9)
        assert high is None or high >= right * (1 - 1e-9)
