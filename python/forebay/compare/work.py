"""The records of one piece of work, as what judges them takes its samples."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from forebay.metrics import Metric


@dataclass
class Work:
    """All records of the same work: of one file, or of one side of a comparison."""

    key: str
    job: dict[str, Any]
    name: str
    records: list[dict[str, Any]] = field(default_factory=list)

    def samples(self, metric: Metric) -> list[float]:
        """One value per run; of a single run its repeats, where it has several."""
        if metric.part != "result":
            return [v for v in map(metric.of_record, self.records) if v is not None]
        results = [r["result"] for r in self.records]
        repeats = results[0].get("repeats")
        if len(results) == 1 and isinstance(repeats, list) and len(repeats) > 1:
            results = repeats
        found = (metric.value(r) for r in results)
        return [v for v in found if v is not None]

    def why_missing(self, metric: Metric) -> str:
        return metric.why_missing(self.records[-1])
