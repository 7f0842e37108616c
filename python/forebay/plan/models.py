"""Models of `forebay train` and `forebay infer` as workloads of a plan: the bytes a second that a GPU takes, and who says so.

A training, and an inference that reads each sample inside its query (cold), take samples × bytes for as long as they run. What
loads before it computes (a graph's features, samples into memory, weights at a start) takes seconds that depend on the drives,
and nothing afterwards. Own runs say what a GPU takes, else the table here does. What drives deliver to it is the share of
their sequential rate that training got in published times, or what the user's own runs of them say.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from forebay.errors import RequestError
from forebay.plan.estimate import Z80, Estimate, bottleneck
from forebay.plan.frozen import replace
from forebay.units import GIB

if TYPE_CHECKING:
    from forebay.plan.planner import Planner
    from forebay.plan.system import System

GNN, INFER = "gnn", "infer-"
RAM, COLD, COLDSTART = MODES = ("ram", "cold", "coldstart")
H100 = "h100"
# GPUs of a host where nobody says how many.
GPUS = 8
# What the benchmark's graph has: nodes, and bytes of a node's features.
NODES, NODE_BYTES = 547_306_935, 2048
SUBMITTED = "published 8 × H100 submissions of MLPerf Training v4.1"
MEASURED = "measured on one H100 by forebay infer"


@dataclass(frozen=True)
class Model:
    """One H100's need: `mb_s` of samples of `sample_bytes`. Of inference besides: samples that lie in memory, bytes of weights,
    and the seconds of a start besides reading them."""

    name: str
    mb_s: float
    sample_bytes: float
    source: str
    samples: int = 0
    weights_bytes: float = 0.0
    rest_s: float = 0.0

    @property
    def samples_per_s(self) -> float:
        return self.mb_s * 1e6 / self.sample_bytes if self.sample_bytes else 0.0


def _inference(name: str, rate: float, sample_bytes: int, samples: int, weights: float, rest_s: float) -> Model:
    return Model(INFER + name, rate * sample_bytes / 1e6, sample_bytes, MEASURED, samples, weights, rest_s)


# Bytes of a sample are those of `forebay train` and `forebay infer`. Weights of dlrm: its tables cut to 200,000 rows.
TABLE = {
    model.name: model
    for model in (
        Model("bert", 4.0, 4_712, f"the most of {SUBMITTED}"),
        Model("lora", 1.0, 32_768, f"the most of {SUBMITTED}"),
        Model("diffusion", 56.0, 446_464, SUBMITTED),
        Model("ssd", 85.0, 307_520, SUBMITTED),
        Model("resnet", 598.0, 150_536, "one H100 in PyTorch, from its memory"),
        Model(GNN, 0.0, NODE_BYTES, ""),
        _inference("resnet50", 11_500, 150_528, 1_024, 102.4e6, 0.09),
        _inference("bert", 1_714, 4_608, 10_833, 1.336e9, 0.25),
        _inference("dlrm", 16_550, 246_240, 204_800, 0.9e9, 0.01),
    )
}


def known(workload: str) -> bool:
    return workload in TABLE


def infers(workload: str) -> bool:
    return workload.startswith(INFER) and known(workload)


def loads(workload: str, mode: str) -> bool:
    """Returns whether it is planned in seconds: what it loads first, and not what it takes while it runs."""
    return workload == GNN or infers(workload) and mode != COLD


@lru_cache(maxsize=256)
def need(workload: str, accelerator: str, sample_bytes: float | None, samples_per_s: float | None) -> Model:
    """The need of one GPU, with what the user says of it. RequestError for another GPU whose rate nobody says."""
    model = TABLE[workload]
    rate = samples_per_s or model.samples_per_s
    if workload != GNN and samples_per_s is None and accelerator != H100:
        said = f"runs {workload} at a rate that nobody published"
        raise RequestError(f"accelerator {accelerator}", said, "--samples-per-s RATE (of one GPU), --runs, or h100")
    size = sample_bytes or model.sample_bytes
    return replace(model, mb_s=rate * size / 1e6, sample_bytes=size)


def of_training(planner: Planner, system: System) -> bool:
    """Returns whether drives give it what training got: a model, or a job whose demand runs of training measured."""
    return known(system.workload) or planner.demand is not None and system.workload == "job"


def doubts(planner: Planner) -> list[str]:
    """Returns what to doubt of own runs of a training."""
    own = planner.demand
    return [f"the runs are of {own.device}, and say nothing about a GPU"] if own is not None and own.device_is_cpu else []


def fed(planner: Planner, system: System) -> tuple[float, float]:
    """GiB/s that these drives give to a model, and the standard deviation of its logarithm: of own runs where there are any."""
    from forebay.plan import catalogue

    own = planner.own_of(system.drive)
    if own is not None:
        found = own.delivers(system.drives, system.location == "remote", system.queues)
        return found.value, found.log_sd
    share, spread = efficiency()
    return catalogue.drive(system.drive, planner.more).read_gibps * system.drives * share, spread


def efficiency() -> tuple[float, float]:
    """The share of drives' sequential rate that reads of training reach, with the spread of its logarithm."""
    from forebay.train import supply

    return supply.efficiency()


def load_bytes(planner: Planner, system: System) -> float:
    """Bytes that are read before anything is computed: of a graph once, of an inference by each GPU."""
    own = planner.demand.load_bytes if planner.demand else None
    if system.workload == GNN:
        return system.dataset * GIB if system.dataset else own or float(NODES * NODE_BYTES)
    model = system.need
    each = (own or model.weights_bytes) if system.mode == COLDSTART else model.samples * model.sample_bytes
    return each * gpus(system)


def rest_s(planner: Planner, system: System) -> float:
    """Seconds of a start besides reading the weights; 0 of what merely loads."""
    if system.workload == GNN or system.mode != COLDSTART:
        return 0.0
    own = planner.demand.rest_s if planner.demand else None
    return system.need.rest_s if own is None else own


def gpus(system: System) -> int:
    """GPUs that were asked for, or as many as published hosts have."""
    return system.accelerators or GPUS * system.hosts


def of_gpus(planner: Planner, system: System, count: int | None = None) -> str:
    """`8 H100s`; `8 × NVIDIA H200` where own runs say what a GPU takes: it is theirs."""
    number, own = count or gpus(system), planner.demand
    if own is not None and own.samples_per_s == system.samples_per_s:
        return f"{number} × {own.device}"
    return f"{number} {system.accelerator.upper()}{'s' if number != 1 else ''}"


def answers(system: System, count: float, share: Estimate) -> Estimate:
    """Samples a second of so many GPUs that each read what they answer: at that share of their rate, in per cent."""
    rate = system.need.samples_per_s * count / 100
    return Estimate(share.value * rate, share.p10 * rate, share.p90 * rate, "samples/s", share.bottleneck, share.stations)


def document(planner: Planner, system: System) -> dict[str, Any]:
    """Demand of one GPU, and who says so."""
    model = system.need
    loaded = load_bytes(planner, system) if system.loads else None
    return {
        "mb_s": model.mb_s if not system.loads else None, "samples_per_s": model.samples_per_s or None,
        "sample_bytes": model.sample_bytes, "load_bytes": loaded, "source": source(planner, system),
    }  # fmt: skip


def source(planner: Planner, system: System) -> str:
    """Source of what a GPU takes, or of what is loaded."""
    own, given = planner.demand, system.given
    loaded = system.loads and (system.workload == GNN or system.mode == COLDSTART)
    if own is not None and (own.load_bytes if loaded else own.samples_per_s == system.samples_per_s):
        return f"as {own.runs} run{'s' if own.runs > 1 else ''} of yours measured"
    if system.workload == GNN:
        return "" if system.dataset else "the benchmark's graph, 547 million nodes of 2 KiB"
    return "as you say" if given & {"samples_per_s", "sample_bytes"} else system.need.source


def seconds(planner: Planner, system: System) -> dict[str, Estimate]:
    """Seconds of the load, or of a start; and the rate of what then runs from memory."""
    from forebay.plan import limits

    size, rest = load_bytes(planner, system) / GIB, rest_s(planner, system)
    drives, unsure = fed(planner, system)
    cap, name, cap_sd = limits.way(planner, system)
    least = min(drives, cap)
    # Each end is that of whatever is slower there: more drives don't lengthen it by being less sure.
    soonest, latest = (
        size / min(drives * math.exp(sign * Z80 * unsure), cap * math.exp(sign * Z80 * cap_sd)) + rest for sign in (1, -1)
    )
    stations = {"storage": least / drives, name: least / cap}
    key = "start_s" if system.mode == COLDSTART and system.workload != GNN else "load_s"
    found = {key: Estimate(size / least + rest, soonest, latest, "s", bottleneck(stations), stations)}
    if system.workload != GNN and system.mode == RAM:
        rate = system.need.samples_per_s * gpus(system)
        found["samples_per_s"] = Estimate(rate, rate, rate, "samples/s", "compute", {"compute": 1.0})
    return found


def asked_of(found: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """Settings with what runs of training or inference measured, where no flag says otherwise. RequestError for another model."""
    own = found.model if found.kind == "train" else INFER + found.model
    workload = settings.get("workload")
    if workload is None:
        settings = {**settings, "workload": own if known(own) else "job"}
    elif workload == own == "dlrm":
        said, next_ = "is planned in minutes on a published system's GPUs", "no --workload: what a GPU of yours took"
        raise RequestError("--runs with --workload dlrm", said, next_)
    elif workload not in (own, "job"):
        said = f"the runs {'train' if found.kind == 'train' else 'answer with'} {found.model}"
        next_ = f"--workload {own}" if known(own) else "no --workload"
        raise RequestError(f"--runs with --workload {workload}", said, f"{next_}, or runs of forebay bench")
    if settings["workload"] == GNN or settings.get("mode") == COLDSTART:
        return settings
    return {"samples_per_s": found.samples_per_s, "sample_bytes": found.sample_bytes, **settings}
