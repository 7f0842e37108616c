"""A merge as large as twelve hours of I/O: 1e9 latencies counted by 64 workers, merged into one record.

The latencies are drawn so that their exact percentiles are known: each worker counts a million values of a
log-normal distribution of its own, with multiplicities. The merge runs in a process of its own, as `mpirun forebay
bench` does it at rank 0; its memory is the most that process ever held, interpreter included.
"""

from __future__ import annotations

import base64
import json
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from peers import forebay, run
from side_by_side import arguments, middle, publish, save, say, section

PROMISES = ("MSR-7",)

WORKERS, SAMPLES, VALUES = 64, 10**9, 200_000
HIGHEST_NS = 24 * 3600 * 10**9
PERCENTILES = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p999": 99.9}
SECONDS_MAX, MIB_MAX, ERROR_MAX = 1.0, 64, 1e-3


def drawn(seed: int) -> tuple[Any, Any]:
    """(values in ns ascending, counts of each by worker): shapes (VALUES,) and (WORKERS, VALUES)."""
    import numpy as np

    random = np.random.default_rng(seed)
    values = np.unique(
        np.exp(random.normal(np.log(80e3), 1.2, VALUES)).astype(np.int64).clip(200, HIGHEST_NS // 2)
    )
    counts = np.empty((WORKERS, len(values)), np.int64)
    for worker in range(WORKERS):
        weights = np.exp(-((np.log(values) - np.log(60e3 + 1e3 * worker)) ** 2) / 4)
        counts[worker] = random.multinomial(SAMPLES // WORKERS, weights / weights.sum())
    return values, counts


def encoded(values: Any, counts: Any) -> str:
    """HdrHistogram's V2 encoding (1 ns to 24 h, 3 digits), base64: written here from the format's description, so
    that the engine reads what it did not write."""
    import numpy as np

    bucket = np.maximum(0, np.floor(np.log2(values)).astype(np.int64) - 10)
    index = ((bucket + 1) << 10) + (values >> bucket) - 1024
    slots = np.zeros(index.max() + 1, np.int64)
    np.add.at(slots, index, counts)
    payload = bytearray()
    zeros = 0
    for count in slots.tolist():
        if count == 0:
            zeros += 1
            continue
        if zeros:
            payload += varint(zigzag(-zeros))
            zeros = 0
        payload += varint(zigzag(count))
    header = struct.pack(">IIIIQQd", 0x1C849313, len(payload), 0, 3, 1, HIGHEST_NS, 1.0)
    return base64.b64encode(header + payload).decode()


def zigzag(number: int) -> int:
    return (number << 1) ^ (number >> 63)


def varint(number: int) -> bytes:
    """Seven bits a byte, least first; numbers here stay far below the ninth byte's special case."""
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def exact_ns(values: Any, total: Any, percentile: float) -> int:
    """The value of the sample at that rank, of all samples in order."""
    import numpy as np

    rank = max(1, int(np.ceil(percentile / 100 * int(total.sum()))))
    return int(values[int(np.searchsorted(np.cumsum(total), rank))])


def merged(file: str) -> None:
    """The child: reads records, one a line, merges them, tells what that took."""
    from forebay import _core

    before_mib = most_memory_mib()
    with open(file) as lines:
        texts = list(lines)
    text_mib = most_memory_mib() - before_mib
    begin = time.perf_counter()
    record = json.loads(_core.merge(texts))
    seconds = time.perf_counter() - begin
    peak_mib = most_memory_mib()
    memory = {"before_mib": before_mib, "text_mib": text_mib, "peak_mib": peak_mib}
    reported = {"seconds": seconds, **memory, "latency_us": record["result"]["latency_us"]}
    print(json.dumps(reported | {"ios": record["result"]["ios"]}))


def most_memory_mib() -> float:
    """The most that this process ever held. (ru_maxrss would count what its parent held when it was started.)"""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) / 1024


def records(values: Any, counts: Any) -> list[str]:
    """One record a worker, made of a real one of this build."""
    command = forebay("nil:").command
    program = str(Path(sys.executable).with_name(command[0]))
    ran = run([program, *[c.replace("SECONDS", "0.1") for c in command[1:]]], 60)
    record = json.loads(ran.stdout)
    texts = []
    for worker in range(WORKERS):
        ios = int(counts[worker].sum())
        record["result"] |= {"histogram": encoded(values, counts[worker]), "ios": ios, "bytes": ios * 4096}
        record["environment"]["host"] = f"host{worker}"
        texts.append(json.dumps(record))
    return texts


def main() -> int:
    options = arguments(__doc__ or "", None, only=False).parse_args()
    say(f"drawing {SAMPLES:.0e} samples for {WORKERS} workers")
    values, counts = drawn(seed=7)
    exact = {name: exact_ns(values, counts.sum(axis=0), p) / 1e3 for name, p in PERCENTILES.items()}
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.write("\n".join(records(values, counts)))
        file.flush()
        runs = []
        for number in range(options.rounds):
            done = subprocess.run(
                [sys.executable, __file__, "--merge", file.name], capture_output=True, text=True
            )
            if done.returncode:
                say(done.stderr.strip()[-600:])
                return 4
            runs.append(json.loads(done.stdout))
            say(
                f"round {number + 1}/{options.rounds}: {runs[-1]['seconds']:.3f} s, {runs[-1]['peak_mib']:.0f} MiB"
            )
    wrong = {n: abs(runs[0]["latency_us"][n] / exact[n] - 1) for n in PERCENTILES}
    seconds, peak = [r["seconds"] for r in runs], [r["peak_mib"] for r in runs]
    all_there = runs[0]["ios"] == int(counts.sum())
    holds = {
        f"under {SECONDS_MAX:g} s": statistics.median(seconds) < SECONDS_MAX,
        f"under {MIB_MAX} MiB": max(peak) < MIB_MAX,
        "right to three digits": max(wrong.values()) <= ERROR_MAX and all_there,
    }
    rows = [
        f"| {n} | {exact[n]:.3f} | {runs[0]['latency_us'][n]:.3f} | {wrong[n]:.2e} |" for n in PERCENTILES
    ]
    text = (
        f"{int(counts.sum()):,} latencies of {WORKERS} workers merge in {middle(seconds, 3)} s; the process held at most "
        f"{max(peak):.0f} MiB, interpreter and {WORKERS} records of text included.\n\n"
        "| percentile | exact, µs | merged, µs | off by |\n|---|---|---|---|\n"
        + "\n".join(rows)
        + "\n\n"
        + "\n".join(f"- {what}: {'holds' if ok else '**does not hold**'}" for what, ok in holds.items())
        + "\n"
    )
    text = section("Histogram merge", options, text)
    found = [{"runs": runs, "exact_us": exact, "off_by": wrong, "bounds": holds}]
    save(options.json, "Histogram merge", options, found, text)
    publish("Histogram merge", options, text)
    return 0 if all(holds.values()) else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--merge"]:
        merged(sys.argv[2])
    else:
        sys.exit(main())
