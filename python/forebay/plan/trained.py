"""The demand that runs of training, or of inference, measured: bytes a second that one GPU takes at its own peak.

What a supply held a run back to says nothing of it; the peak does, which each run measures on batches in its memory. Runs of
one model and batch on one kind of GPU count together; of several the answer would be of none.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from forebay.errors import RequestError
from forebay.numbers import count, figure, significant, whole
from forebay.stats import mean_interval
from forebay.units import GIB

Record = dict[str, Any]
AGAIN = "forebay train dlrm … -o runs.jsonl"
RATE_MAX, BYTES_MAX = 1e12, 1e18


@dataclass(frozen=True)
class Demand:
    """Of one GPU. `low`, `high`: the 95 % interval over the runs, or of the one run; None where it has none."""

    model: str
    batch: int
    device: str
    sample_bytes: float
    samples_per_s: float
    low: float | None
    high: float | None
    runs: int
    gpus: int
    kind: str = "train"
    # What is loaded first, of whoever measured it: a graph's features; weights, and the rest of a start's seconds.
    load_bytes: float | None = None
    rest_s: float | None = None

    @property
    def gib_s(self) -> float:
        return self.samples_per_s * self.sample_bytes / GIB

    def words(self, gpus: int) -> str:
        """`8 × NVIDIA H100 training dlrm`."""
        return f"{gpus} × {self.device} training {self.model}"

    def document(self, gpus: int) -> Record:
        scale = self.sample_bytes / GIB
        ends = None if self.low is None or self.high is None else [self.low * scale, self.high * scale]
        return {
            "model": self.model, "batch": self.batch, "device": self.device, "runs": self.runs, "gpus": gpus,
            "samples_per_s": self.samples_per_s, "sample_bytes": self.sample_bytes, "gib_s": self.gib_s, "gib_s_ci95": ends,
            "total_gib_s": gpus * self.gib_s,
        }  # fmt: skip

    def rests(self, gpus: int, measured: str | None) -> list[str]:
        """Sentences on what rests on the runs, and what doesn't. `measured`: a drive that other runs of the file read."""
        spread = "" if self.low is None or self.high is None else f" ({whole(self.low)} to {whole(self.high)})"
        peak = f"{whole(self.samples_per_s)} samples/s{spread} × {significant(self.sample_bytes)} bytes"
        total = f"{gpus} × {figure(self.gib_s)} GiB/s"
        said = [f"the target, {total}: the peak that {count(self.runs, 'run')} of {self.model} measured, {peak}"]
        if self.device_is_cpu:
            said.append("which is a CPU's, and says nothing about a GPU")
        rest = "nothing else: what drives deliver is of data sheets and published runs"
        return [*said, f"what {measured} delivers" if measured else rest]

    def as_published(self, drive: str, gpus: int) -> str | None:
        """The number of such drives by the share of their rate that training got in published times."""
        from forebay.train import supply

        share, _ = supply.efficiency()
        count_ = next((n for name, n, _ in supply.drives_for(self.gib_s, gpus) if name == drive), None)
        if count_ is None:
            return None
        return f"training: got {share:.2f} of drives' rate in published times of DLRM; by that, {count_} × {drive}"

    @property
    def device_is_cpu(self) -> bool:
        return self.device.startswith("CPU")


def read(text: str, where: str, kind: str = "train") -> Demand | None:
    """The demand of a file's runs of training, or of inference (`kind` infer); None where it holds none. RequestError where
    there are several."""
    found: dict[tuple[str, int, str], list[Record]] = {}
    for record in _records(text):
        part = record.get(kind)
        if isinstance(part, dict) and _number(part.get("peak_samples_per_s")) and _number(part.get("demand_gib_s")):
            key = (str(part.get("model")), int(_number(part.get("batch")) or 0), _device(record, kind))
            found.setdefault(key, []).append(part)
    if not found:
        if any(isinstance(r.get(kind), dict) for r in _records(text)):
            what, again = ("training", AGAIN) if kind == "train" else ("inference", "those of --mode ram or cold beside them")
            raise RequestError(where, f"its runs of {what} measured no peak", again)
        return None
    if len(found) > 1:
        several = "; ".join(f"{model}, batches of {whole(batch)}, {device}" for model, batch, device in found)
        raise RequestError(where, f"its runs have several demands: {several}"[:600], "a file with those of one")
    [((model, batch, device), parts)] = found.items()
    # Of one GPU; a run's are of all its ranks.
    peaks = [_best(part) / (_number(part.get("ranks")) or 1.0) for part in parts]
    each = statistics.fmean(float(p["demand_gib_s"]) * GIB / float(p["peak_samples_per_s"]) for p in parts)
    low, high = _interval(parts, peaks)
    supplies = [part["supply"] for part in parts if isinstance(part.get("supply"), dict)]
    gpus = max([1, *(int(_number(supply.get("gpus")) or 1) for supply in supplies)])
    first = _loaded(text, model, kind)
    return Demand(model, batch, device, each, statistics.fmean(peaks), low, high, len(peaks), gpus, kind, *first)


def _loaded(text: str, model: str, kind: str) -> tuple[float | None, float | None]:
    """Bytes that its runs loaded first, and the seconds of a start besides reading them, of the last run that says so."""
    size = rest = None
    for record in _records(text):
        part = record.get(kind)
        if not isinstance(part, dict) or part.get("model") != model:
            continue
        graph, start = part.get("graph"), part.get("coldstart")
        if kind == "train" and isinstance(graph, dict):
            size = _number(graph.get("feature_bytes"), BYTES_MAX) or size
        if kind == "infer" and isinstance(start, dict):
            total, took = _number(start.get("total_s")), _number(start.get("read_s"))
            size = _number(part.get("weights_bytes"), BYTES_MAX) or size
            rest = max(0.0, total - took) if total and took else rest
    return size, rest


def has_others(text: str) -> bool:
    """Returns whether runs of drives are among them: records that trained nothing, or gdsio's lines."""
    from forebay.plan.calibrate import LINE

    return any("job" in r and "train" not in r and "infer" not in r for r in _records(text)) or LINE.search(text) is not None


def _interval(parts: list[Record], peaks: list[float]) -> tuple[float | None, float | None]:
    if len(peaks) > 1:
        found = mean_interval(peaks)
        return (None if found.low is None else max(0.0, found.low)), found.high
    of = "peak_samples_per_s" if _best(parts[0]) == parts[0]["peak_samples_per_s"] else "samples_per_s"
    ends = parts[0].get(f"{of}_ci95")
    if isinstance(ends, list) and len(ends) == 2 and all(isinstance(end, (int, float)) for end in ends):
        ranks = _number(parts[0].get("ranks")) or 1.0
        return float(ends[0]) / ranks, float(ends[1]) / ranks
    return None, None


def _best(part: Record) -> float:
    """The model's own peak, which is measured for a moment; a run that was faster has a higher one."""
    return max(float(part["peak_samples_per_s"]), _number(part.get("samples_per_s")) or 0.0)


def _number(value: Any, most: float = RATE_MAX) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) and 0 < value < most else None


def _device(record: Record, kind: str) -> str:
    found = record.get("environment")
    environment = found if isinstance(found, dict) else {}
    gpus = environment.get("gpus") or []
    device = str(record[kind].get("device") or "?")
    if device.startswith("cuda") and isinstance(gpus, list) and gpus and isinstance(gpus[0], dict):
        return str(gpus[0].get("name") or "GPU")
    return f"CPU ({environment.get('cpu') or '?'})" if device == "cpu" else device


def _records(text: str) -> Iterator[Record]:
    """Objects of lines, or of one document or list, as a run's -o and those of --seeds write them."""
    try:
        whole_ = json.loads(text)
        documents = whole_ if isinstance(whole_, list) else [whole_]
    except (ValueError, RecursionError):
        documents = []
        for line in text.splitlines():
            try:
                documents.append(json.loads(line))
            except (ValueError, RecursionError):
                continue
    for document in documents:
        if isinstance(document, dict):
            record = document.get("record", document)
            if isinstance(record, dict):
                yield record
