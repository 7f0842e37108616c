"""gdsio's line: its words and digits, the labels it may carry, and the ways that others read it."""

from __future__ import annotations

import re
import shutil
from typing import Any

import processes
import pytest
from forebay.errors import ForebayError
from forebay.gdsio import jobs, output
from forebay.gdsio.request import Group, Request
from forebay.gdsio.xfer import XFERS, label
from gdsio_support import (
    GIB,
    asked,
    record,
)


@pytest.mark.promise("GIO-1")
def test_the_line_is_the_published_one_byte_for_byte() -> None:
    request = asked(
        "-D",
        "/nvme23/gds_dir",
        "-d",
        "2",
        "-w",
        "8",
        "-s",
        "500M",
        "-i",
        "1M",
        "-x",
        "0",
        "-I",
        "0",
        "-T",
        "120",
    )
    proof = record(path={"ran": "gds", "destination": "gpu:2", "direct_bytes": 1, "staged_bytes": 0})
    assert output.line(request, proof, jobs.data_bytes(request)) == (
        "IoType: READ XferType: GPUD Threads: 8 DataSetSize: 818796544/4096000(KiB) IOSize: 1024(KiB) "
        "Throughput: 6.524658 GiB/sec, Avg_Latency: 1197.370995 usecs ops: 799606 total_time 119.679102 secs"
    )


def test_a_batch_says_its_depth_after_the_threads() -> None:
    request = asked("-x", "6", "-d", "0", "-s", "8K", "-i", "4K", "-D", "/mnt/gds/dir", "-I", "1", "-w", "10")
    proof = record(
        job={"workers": 1},
        path={"ran": "gds", "destination": "gpu:0", "staged_bytes": 0},
        result={"seconds": 0.00725, "bytes": 81920, "ios": 20, "latency_us": {"mean": 3476.65}},
    )
    assert output.line(request, proof, jobs.data_bytes(request)).startswith(
        "IoType: WRITE XferType: GPU_BATCH Threads: 1 IoDepth: 10 DataSetSize: 80/80(KiB) IOSize: 4(KiB) "
        "Throughput: 0.010523 GiB/sec, Avg_Latency: 3476.650000 usecs ops: 20 total_time 0.007250 secs"
    )


@pytest.mark.parametrize(
    ("given", "printed"),
    [
        ("64k", "64"),
        ("4096K", "4096"),
        ("1G", "1048576"),
        ("16M:32M:4M", "16384-32768-4096"),
        ("512", "0.5"),
        ("4k:16k", "4-16-4"),
    ],
)
def test_io_sizes_are_printed_in_kib(given: str, printed: str) -> None:
    assert output.io_sizes(asked("-f", "F", "-i", given).io_bytes) == printed


@pytest.mark.parametrize(("number", "word"), list(enumerate(["READ", "WRITE", "RANDREAD", "RANDWRITE"])))
def test_the_io_type_is_gdsios_word(number: int, word: str) -> None:
    request = asked("-f", "F", "-s", "1G", "-x", "1", "-I", str(number))
    assert output.line(request, record(), GIB).startswith(f"IoType: {word} XferType: CPUONLY ")


def test_the_data_set_is_s_with_f_and_w_times_s_with_d() -> None:
    assert jobs.data_bytes(asked("-f", "F", "-w", "4", "-s", "100G")) == 100 * GIB
    assert jobs.data_bytes(asked("-D", "D", "-w", "32", "-s", "512M")) == 16 * GIB


# How others read it: a field each of what people do with the line in public repositories, written anew.

LINE = output.line(
    Request((Group("/d", True, threads=8),), xfer_number=1, size_bytes=512000 * 1024),
    record(),
    4096000 * 1024,
)
BATCH = output.line(
    Request((Group("/d", True, threads=8),), xfer_number=6, batch=4, size_bytes=512000 * 1024),
    record(path={"ran": "gds-compat", "destination": "gpu:0"}),
    4096000 * 1024,
)
RANGE = output.line(
    Request(
        (Group("/d", True, threads=8),), xfer_number=1, size_bytes=512000 * 1024, io_bytes=(4096, 65536, 4096)
    ),
    record(),
    4096000 * 1024,
)


def whole_line_with_one_regex(line: str) -> tuple[str, ...]:
    match = re.fullmatch(
        r"IoType:\s+(\w+)\s+XferType:\s+(\w+)\s+Threads:\s+(\d+)\s+(?:IoDepth:\s*\d+\s+)?DataSetSize:\s+[\d/]+\(KiB\)\s+IOSize:\s+([\d-]+)\(KiB\)"
        r"\s+Throughput:\s+([\d.]+)\s+GiB/sec,\s+Avg_Latency:\s+([\d.]+)\s+usecs\s+ops:\s+(\d+)\s+total_time\s+([\d.]+)\s+secs",
        line,
    )
    assert match
    return match.group(5, 6, 7, 8)


def a_regex_for_each_field(line: str) -> tuple[str, ...]:
    patterns = (
        r"Throughput:\s+([0-9.]+)\s+GiB/sec",
        r"Avg_Latency:\s+([0-9.]+)\s+usecs",
        r"ops:\s+([0-9]+)",
        r"total_time\s+([0-9.]+)\s+secs",
    )
    return tuple(re.search(p, line)[1] for p in patterns)  # type: ignore[index]


def lazy_regex_over_a_whole_log(line: str) -> tuple[str, ...]:
    log = f"some banner\nforebay: a note\n{line}\n"
    match = re.search(
        r"XferType:\s+(\S+).*?Throughput:\s+([\d.]+).*?Avg_Latency:\s+([\d.]+).*?ops:\s+(\d+).*?total_time\s+([\d.]+)\s+secs",
        log,
        re.S,
    )
    assert match
    return match.group(2, 3, 4, 5)


def words_by_position(line: str) -> tuple[str, ...]:
    """As awk's $12, $15, $18 and $20, after `sed` took IoDepth out."""
    words = re.sub(r"IoDepth: [0-9]* ", "", line).split()
    return words[11], words[14], words[17], words[19]


def words_after_their_names(line: str) -> tuple[str, ...]:
    words = line.split()
    return tuple(
        words[words.index(name) + 1] for name in ("Throughput:", "Avg_Latency:", "ops:", "total_time")
    )


def shell_with_awk_and_sed(line: str) -> tuple[str, ...]:
    script = """tail -n 1 | sed 's/IoDepth: [0-9]* //g' | awk '{print $12, $15, $18, $20}'"""
    return tuple(processes.run(["sh", "-c", script], said=f"a note\n{line}\n").stdout.split())


def grep_then_awk(line: str) -> tuple[str, ...]:
    def field(pattern: str, column: int) -> str:
        script = f"""grep -oE '{pattern}' | awk '{{print ${column}}}'"""
        return processes.run(["sh", "-c", script], said=line + "\n").stdout.strip()

    return (
        field("Throughput: [0-9.]+ GiB/sec", 2),
        field("Avg_Latency: [0-9.]+", 2),
        field("ops: [0-9]+", 2),
        field("total_time [0-9.]+", 2),
    )


def split_at_the_comma(line: str) -> tuple[str, ...]:
    before, after = line.split(", ")
    latency = re.split(r"[: ]+", after)
    return before.rsplit(" ", 2)[1], latency[1], latency[4], latency[6]


@pytest.mark.promise("GIO-1")
@pytest.mark.parametrize("line", [LINE, BATCH, RANGE], ids=["plain", "batch", "range"])
@pytest.mark.parametrize(
    "parser",
    [
        whole_line_with_one_regex,
        a_regex_for_each_field,
        lazy_regex_over_a_whole_log,
        words_by_position,
        words_after_their_names,
        shell_with_awk_and_sed,
        grep_then_awk,
        split_at_the_comma,
    ],
)
def test_parsers_of_the_published_kinds_read_our_line(parser: Any, line: str) -> None:
    if parser in (shell_with_awk_and_sed, grep_then_awk) and not shutil.which("awk"):
        pytest.skip("awk is not installed")
    assert parser(line) == ("6.524658", "1197.370995", "799606", "119.679102")


# Labels


@pytest.mark.promise("GIO-2")
@pytest.mark.parametrize(
    ("number", "path", "expected"),
    [
        (0, {"ran": "gds", "staged_bytes": 0}, "GPUD"),
        (0, {"ran": "gds", "staged_bytes": 4096}, "GPUD_COMPAT"),
        (0, {"ran": "gds-compat"}, "GPUD_COMPAT"),
        (0, {"ran": "gds-mixed"}, "GPUD_COMPAT"),
        (0, {"ran": "gds", "staged_bytes": 0, "compat_bytes": 1}, "GPUD_COMPAT"),
        (1, {"ran": "host"}, "CPUONLY"),
        (2, {"ran": "bounce", "destination": "gpu:1"}, "CPU_GPU"),
        (2, {"ran": "bounce", "destination": "host"}, "CPU_HOST"),
        (3, {"ran": "bounce", "destination": "gpu:0"}, "CPU_ASYNC_GPU"),
        (3, {"ran": "bounce", "destination": "host"}, "CPU_ASYNC_HOST"),
        (4, {"ran": "bounce", "destination": "gpu:0"}, "CPU_CACHED_GPU"),
        (4, {"ran": "bounce", "destination": "host"}, "CPU_CACHED_HOST"),
        (5, {"ran": "gds", "staged_bytes": 0}, "GPUD_ASYNC"),
        (5, {"ran": "gds-compat"}, "GPUD_ASYNC_COMPAT"),
        (6, {"ran": "gds", "staged_bytes": 0}, "GPU_BATCH"),
        (6, {"ran": "gds-compat"}, "GPU_BATCH_COMPAT"),
        (7, {"ran": "gds", "staged_bytes": 0}, "GPU_BATCH_STREAM"),
        (7, {"ran": "gds-compat"}, "GPU_BATCH_STREAM_COMPAT"),
    ],
)
def test_the_label_is_what_the_record_proves(number: int, path: dict[str, Any], expected: str) -> None:
    assert label(XFERS[number], record(path=path)) == expected


@pytest.mark.promise("GIO-2")
@pytest.mark.parametrize("number", range(8))
def test_no_label_covers_a_path_that_is_not_the_types(number: int) -> None:
    with pytest.raises(ForebayError, match="no gdsio label"):
        label(XFERS[number], record(path={"ran": "mapped"}))


@pytest.mark.parametrize("number", [2, 3, 4])
def test_no_label_of_a_host_copy_matches_a_search_for_the_gpu_label(number: int) -> None:
    assert XFERS[number].label not in str(XFERS[number].host_label)
