"""The rules of MLPerf Inference v4.1 that a run follows: scenarios, latency bounds, counts, seeds, and LoadGen's settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from forebay.errors import MachineError, RequestError
from forebay.numbers import bytes_, whole

VERSION = "v4.1"
SCENARIOS = ("SingleStream", "MultiStream", "Server", "Offline")
# What the rules want of a run, and what --short leaves of it.
DURATION_S, SHORT_S = 600.0, 2.0
# Percentiles that a scenario is judged by, and samples of a query of MultiStream.
PERCENTILES = {"SingleStream": 0.90, "MultiStream": 0.99, "Server": 0.99, "Offline": None}
PER_QUERY = 8
# Queries at least: what LoadGen's early stopping needs to tell 90 % and 99 % with a confidence of 99 %.
QUERIES_MIN = {"SingleStream": 100, "MultiStream": 662, "Server": 662, "Offline": 1}
# The round's seeds: which samples are loaded, their order, and when queries arrive.
SEEDS = (3066443479025735752, 10688027786191513374, 14962580496156340209)
NS = 1_000_000_000
# Bytes of memory of a query that LoadGen makes beforehand, of Offline of a sample, measured; how many of them for each that is
# expected; and the share of free memory that they may take.
QUERY_BYTES = {"SingleStream": 340, "MultiStream": 680, "Server": 400, "Offline": 200}
MADE = {"SingleStream": 2.0, "MultiStream": 2.0, "Server": 1.0, "Offline": 1.1}
MEMORY_SHARE = 0.7


@dataclass(frozen=True)
class Rules:
    """A model's part of the rules.

    scenarios        those that the model has, over both divisions
    samples          what the library holds: the performance sample count
    made             how many datagen makes unless told, where so many would take much room
    offline_samples  of the one query of Offline at least
    server_ms        bound of Server's 99th percentile
    token_ms         bounds of Server's 99th percentiles of the first token, and of each one after it, in place of that
    equal            each sample is asked for as often as every other, as queries differ in length
    """

    scenarios: tuple[str, ...]
    samples: int
    offline_samples: int
    server_ms: float
    made: int | None = None
    token_ms: tuple[float, float] | None = None
    equal: bool = False

    def made_samples(self) -> int:
        return self.samples if self.made is None else self.made


MODELS = {
    # Not of the rules: counts that two cores can hold, a bound that a busy machine can keep.
    "toy": Rules(SCENARIOS, 2048, 1, 100.0),
    "resnet50": Rules(SCENARIOS, 1024, 24_576, 15.0),
    "bert": Rules(("SingleStream", "Server", "Offline"), 10_833, 10_833, 130.0),
    # 204,800 samples take 50 GB.
    "dlrm": Rules(("Server", "Offline"), 204_800, 24_576, 60.0, made=4096),
    "retinanet": Rules(SCENARIOS, 64, 24_576, 100.0),
    "unet3d": Rules(("SingleStream", "Offline"), 43, 43, 0.0, equal=True),
    "gptj": Rules(("SingleStream", "Server", "Offline"), 13_368, 13_368, 20_000.0, equal=True),
    # Bounds and counts of llama2-70b.
    "llama": Rules(("Server", "Offline"), 24_576, 24_576, 0.0, token_ms=(2000.0, 200.0), equal=True),
    "mixtral": Rules(("Server", "Offline"), 15_000, 15_000, 0.0, token_ms=(2000.0, 200.0), equal=True),
    "sdxl": Rules(("SingleStream", "Server", "Offline"), 5000, 5000, 20_000.0),
}


def refuse_unknown(model: str, scenario: str) -> None:
    """Raises RequestError for a scenario that the model hasn't got."""
    known = MODELS[model].scenarios
    if scenario not in known:
        found = f"{model} has no such scenario; the rules give it {', '.join(known)}"
        raise RequestError(f"--scenario {scenario}", found, f"--scenario {known[-1]}")


def loadgen() -> Any:
    """MLCommons' LoadGen. Raises MachineError where it is missing."""
    try:
        import mlperf_loadgen
    except ImportError as error:
        found = f"MLCommons' load generator can't be imported ({error})"
        raise MachineError("infer", found, "pip install mlcommons-loadgen") from None
    return mlperf_loadgen


@dataclass(frozen=True)
class Load:
    """Load of one test: `rate` is Server's target, Offline's expectation, and queries a second otherwise."""

    scenario: str
    seconds: float
    rate: float
    server_ms: float
    offline_samples: int = 1
    accuracy: bool = False
    seeds: tuple[int, int, int] = SEEDS
    token_ms: tuple[float, float] | None = None
    equal: bool = False

    @property
    def bound_ms(self) -> float:
        """Within which Server has to answer, or to give the first token."""
        return self.token_ms[0] if self.token_ms else self.server_ms


def refuse_too_many(load: Load, free_bytes: int) -> None:
    """Raises MachineError where the queries, which LoadGen makes before its clock starts, don't fit into memory."""
    count = MADE[load.scenario] * load.rate * load.seconds
    wanted, allowed = count * QUERY_BYTES[load.scenario], MEMORY_SHARE * free_bytes
    if load.accuracy or wanted <= allowed:
        return
    what = "samples" if load.scenario == "Offline" else "queries"
    found = f"LoadGen makes {whole(count)} {what} before it starts, {bytes_(wanted)} of memory, and {bytes_(free_bytes)} are free"
    raise MachineError(f"a test of {load.seconds:g} s", found, f"--seconds {max(1, int(load.seconds * 0.9 * allowed / wanted))}")


def least_samples(load: Load) -> int:
    """Samples that a test asks at least, whatever its length and rate."""
    least = load.offline_samples if load.scenario == "Offline" else QUERIES_MIN[load.scenario]
    return least * (PER_QUERY if load.scenario == "MultiStream" else 1)


def settings(lg: Any, load: Load) -> Any:
    """LoadGen's settings of a test."""
    made = lg.TestSettings()
    made.scenario = getattr(lg.TestScenario, load.scenario)
    made.mode = lg.TestMode.AccuracyOnly if load.accuracy else lg.TestMode.PerformanceOnly
    made.min_duration_ms = max(1, int(load.seconds * 1000))
    made.min_query_count = load.offline_samples if load.scenario == "Offline" else QUERIES_MIN[load.scenario]
    made.qsl_rng_seed, made.sample_index_rng_seed, made.schedule_rng_seed = load.seeds
    made.sample_concatenate_permutation = load.equal
    if load.token_ms:
        made.use_token_latencies = True
        made.ttft_latency, made.tpot_latency = (int(bound * 1e6) for bound in load.token_ms)
    each = max(1, int(NS / load.rate))
    if load.scenario == "SingleStream":
        made.single_stream_expected_latency_ns = each
        made.single_stream_target_latency_percentile = PERCENTILES["SingleStream"]
    elif load.scenario == "MultiStream":
        made.multi_stream_expected_latency_ns = each
        made.multi_stream_target_latency_percentile = PERCENTILES["MultiStream"]
        made.multi_stream_samples_per_query = PER_QUERY
    elif load.scenario == "Server":
        made.server_target_qps = load.rate
        made.server_target_latency_ns = int(load.server_ms * 1e6)
        made.server_target_latency_percentile = PERCENTILES["Server"]
    else:
        made.offline_expected_qps = load.rate
    return made


def seeds_of(seed: int | None) -> tuple[int, int, int]:
    """The round's seeds; for a seed of one's own, seeds made of it."""
    if seed is None:
        return SEEDS
    import numpy as np

    a, b, c = (int(n) for n in np.random.default_rng([seed, 41]).integers(1, 1 << 63, 3))
    return a, b, c
