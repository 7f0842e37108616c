"""LoadGen's own logs, read: the verdict and its reasons, latencies, rates, and the answers of an accuracy test."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forebay.errors import RunError
from forebay.numbers import bytes_

if TYPE_CHECKING:
    import numpy

    Array = numpy.ndarray[Any, Any]

DETAIL, SUMMARY, ACCURACY = "mlperf_log_detail.txt", "mlperf_log_summary.txt", "mlperf_log_accuracy.json"
NAMES = (DETAIL, SUMMARY, ACCURACY, "mlperf_log_trace.json")
MARK = ":::MLLOG "
# A log of hours has megabytes; what is larger isn't LoadGen's.
BYTES_MAX, ACCURACY_BYTES_MAX = 256 << 20, 4 << 30
# The rate of each scenario, as the log calls it.
RATES = {
    "SingleStream": "result_qps_without_loadgen_overhead",
    "Server": "result_completed_samples_per_sec",
    "Offline": "result_samples_per_second",
}


@dataclass
class Log:
    """LoadGen's word on one test. `valid` None: it gave no verdict, as of an accuracy test."""

    valid: bool | None = None
    reasons: list[str] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    def number(self, key: str) -> float | None:
        value = self.values.get(key)
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    def latency_ms(self, scenario: str) -> dict[str, float] | None:
        """Minimum, mean, percentiles and maximum, of queries in MultiStream, else of samples; None where none was logged."""
        of = "per_query_" if scenario == "MultiStream" else ""
        wanted = {f"p{name}": f"result_{at}_percentile_{of}latency_ns" for name, at in
                  (("50", "50.00"), ("90", "90.00"), ("99", "99.00"), ("999", "99.90"))}  # fmt: skip
        for name in ("min", "mean", "max"):
            wanted[name] = f"result_{name}_{'query_' if of else ''}latency_ns"
        found = {name: self.number(key) for name, key in wanted.items()}
        if found["p50"] is None:
            return None
        return {name: value / 1e6 for name, value in found.items() if value is not None}

    def token_ms(self, first: bool) -> dict[str, float] | None:
        """Percentiles of the time to the first token, or to each one after it; None where none was logged."""
        what, of = ("first_token_", "latency_ns") if first else ("time_per_output_token_", "ns")
        found = {f"p{name}": self.number(f"result_{what}{at}_percentile_{of}") for name, at in
                 (("50", "50.00"), ("90", "90.00"), ("99", "99.00"), ("999", "99.90"))}  # fmt: skip
        return None if found["p50"] is None else {name: value / 1e6 for name, value in found.items() if value is not None}


def read(folder: Path) -> Log:
    """The detailed log of a test. Lines that aren't LoadGen's, or are cut off, are passed over. Raises RunError."""
    path = folder / DETAIL
    try:
        if path.stat().st_size > BYTES_MAX:
            raise RunError(f"LoadGen's log {path}", f"has more than {BYTES_MAX >> 20} MiB", "a shorter test")
        text = path.read_text(errors="replace")
    except OSError as error:
        raise RunError(f"LoadGen's log {path}", str(error.strerror), f"ls -l {folder}") from None
    return parse(text)


def cut_off(path: Path) -> RunError:
    """The error of a log that LoadGen didn't write to its end, as on a full disk: it tells nobody."""
    free = bytes_(shutil.disk_usage(path.parent).free)
    return RunError(f"LoadGen's log {path}", f"is cut off; {free} are free there", "TMPDIR=DIR, with room for it")


def parse(text: str) -> Log:
    """The same, of its text."""
    log = Log()
    for line in text.splitlines():
        if not line.startswith(MARK):
            continue
        try:
            said = json.loads(line[len(MARK) :])
        except (ValueError, RecursionError):
            continue
        if not isinstance(said, dict) or not isinstance(said.get("key"), str):
            continue
        key, value = said["key"], said.get("value")
        if key.startswith("error_"):
            log.errors.append(str(value))
        log.values[key] = value
    verdict = log.values.get("result_validity")
    if verdict in ("VALID", "INVALID"):
        log.valid = verdict == "VALID"
    if log.valid is False:
        log.reasons = reasons(log)
    return log


# What LoadGen checks, as its log calls it → what wasn't met, and the setting that changes it.
CHECKS = {
    "result_perf_constraints_met": ("too many answers were later than the bound", "a lower --target-qps"),
    "result_min_duration_met": ("it ended before its minimum duration", "a higher expected rate: leave --target-qps out"),
    "result_min_queries_met": ("it ended before its minimum number of queries", "a longer --seconds"),
    "early_stopping_met": ("too few queries for its percentile, at a confidence of 99 %", "a longer --seconds"),
}


def reasons(log: Log) -> list[str]:
    """Reasons of an INVALID test, each with the setting that changes it."""
    found = [f"{reported}: {change}" for key, (reported, change) in CHECKS.items() if log.values.get(key) is False]
    said = str(log.values.get("result_invalid_reason") or "").strip()
    if said:
        found.append(f"LoadGen: {' '.join(said.split())}")
    return found or ["LoadGen gives no reason"]


def answers(folder: Path, count: int, width: int) -> Array:
    """Answers of an accuracy test by sample: (count, width) float32. Raises RunError where one is missing, or there twice."""
    import numpy as np

    path = folder / ACCURACY
    try:
        if path.stat().st_size > ACCURACY_BYTES_MAX:
            raise RunError(f"LoadGen's log {path}", f"has more than {ACCURACY_BYTES_MAX >> 30} GiB", "fewer --samples")
        listed = json.loads(path.read_bytes())
        numbers = np.array([int(each["qsl_idx"]) for each in listed], np.int64)
        data = bytes.fromhex("".join(each["data"] for each in listed))
    except OSError as error:
        raise RunError(f"LoadGen's log {path}", str(error.strerror), f"ls -l {folder}") from None
    except json.JSONDecodeError:
        raise cut_off(path) from None
    except (ValueError, KeyError, TypeError, RecursionError, MemoryError) as error:
        raise RunError(f"LoadGen's log {path}", f"isn't a list of answers ({error!r:.80})", "another run") from None
    if numbers.size and (numbers.min() < 0 or numbers.max() >= count):
        raise RunError(f"LoadGen's log {path}", f"has an answer for a sample beyond {count}", "another run")
    times = np.bincount(numbers, minlength=count)
    wrong = np.flatnonzero(times != 1)
    if len(wrong):
        reported = f"sample {wrong[0]} was answered {times[wrong[0]]} times; {len(wrong)} of {count} weren't answered once"
        raise RunError("the accuracy test", reported, "another run")
    if len(data) != 4 * width * count:
        raise RunError("the accuracy test", f"{len(data)} bytes were answered, not {4 * width * count}", "another run")
    found = np.empty((count, width), np.float32)
    found[numbers] = np.frombuffer(data, np.float32).reshape(count, width)
    return found
