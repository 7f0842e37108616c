"""Minutes to train DLRM-like models: evaluation time, plus epochs × samples at the slower of compute and storage.

Reads are fetched well ahead, so the two overlap almost fully: the smooth maximum is sharp. How many epochs a run needs
until it converges differs from run to run, by 5 % (MLPerf Training v4.1, ten runs each of 14 systems), and no storage
changes that. The compute rate belongs to a system of GPUs; a system without a measurement that its storage didn't
limit can't be told apart from one that is slower.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forebay.plan import catalogue
from forebay.plan.estimate import Estimate, bottleneck, from_sides
from forebay.plan.fit import Data, Posterior, Prior, fit, many
from forebay.plan.frozen import replace
from forebay.units import GIB

if TYPE_CHECKING:
    from forebay.plan.fit import Array

SAMPLES = 4_195_197_692
SAMPLE_BYTES = 912
# Of ten runs each of a dozen systems at a global batch of 55,296: epochs until it converged, and their spread.
EPOCHS, EPOCHS_SD = 0.755, 0.047
# Evaluations: one per 5 % of an epoch, each about 1.5 to 3.7 s by system; 15 of them.
EVALS_PER_EPOCH = 20
NOISE, NOISE_ROUNDED = 0.02, 0.03
# What bounds at less than all of its time hardly counts.
SHARP = 8
# Numbers of drives up to which an answer is compared with those of fewer.
DRIVES_MOST = 1024


@dataclass(frozen=True)
class Job:
    """A training run: its system by name, and the drives that feed it. `cap_gibps`: what lies between lets through.

    `own_gibps`: what the user's own runs say that the drives deliver, its logarithm unsure by `own_sd`; 0: the data sheet's.
    """

    system: str
    drive: str
    drives: float
    sample_bytes: float = SAMPLE_BYTES
    cap_gibps: float = math.inf
    cap_name: str = "link"
    cap_sd: float = 0.0
    own_gibps: float = 0.0
    own_sd: float = 0.0


def _up_to(job: Job) -> list[Job]:
    """The job, and the same on each whole number of drives below, as far as plans go; own runs scale with the drives."""
    most, own = min(math.ceil(job.drives) - 1, DRIVES_MOST), job.own_gibps / job.drives
    return [*(replace(job, drives=float(n), own_gibps=own * n) for n in range(1, most + 1)), job]


class Rows:
    def __init__(self, jobs: Sequence[Job], systems: Sequence[str], more: Sequence[catalogue.Drive] = ()) -> None:
        import numpy as np

        self.system = np.array([systems.index(j.system) for j in jobs], dtype=int)
        mbps = [catalogue.drive(j.drive, more).seq_read_mbps * j.drives for j in jobs]
        each = np.array([j.sample_bytes for j in jobs])
        self.feed = np.array(mbps) / each
        self.cap = np.array([j.cap_gibps for j in jobs]) * GIB / each / 1e6
        self.own = np.array([j.own_gibps for j in jobs]) * GIB / each / 1e6

    def fed(self, efficiency: Any) -> Any:
        """Million samples a second that the drives deliver."""
        import numpy as np

        return np.where(self.own > 0, self.own, efficiency * self.feed)


SHARED = (
    Prior("efficiency", 0.8, 0.15, "", "prior", "share of the drives' sequential rate that reads of a training job reach"),
    Prior("overlap", 16.0, 0.4, "", "prior", "p-norm of compute and storage time; reads are fetched far ahead"),
    Prior("epochs", EPOCHS, 0.01, "", "prior", "mean of MLPerf Training v4.1 runs at batch 55,296"),
)
# Known from the public results of the same model of machine: 15.05 million samples a second, 2.58 s per evaluation.
SYSTEMS = {"D74H-7U": (15.05, 0.02, 2.58, 0.05, "MLPerf Training v4.1, QCT D74H-7U: ten runs")}
# GPUs of a system, and samples of a step on all of them.
GPUS, GPUS_USUAL, GLOBAL_BATCH = {"D74H-7U": 8, "D54U-3U": 4}, 8, 55_296
# The model's sparse features are 26 vectors of 128 halves: exchanged among the GPUs, forward and back.
EXCHANGE_BYTES = 2 * 26 * 128 * 2


def from_sheets(gpus: int, memory_tb_s: float, link_gb_s: float) -> float:
    """Million samples a second of GPUs that nobody has measured: looking up by memory bandwidth, then exchanging.

    Looking up goes as the memory of all GPUs, against 8 × 3.35 TB/s of D74H-7U, whose links between GPUs hardly cost
    time. `link_gb_s`: what one GPU's link to the others carries each way; of each sample's vectors (GPUs − 1) ÷ GPUs
    leave their GPU, and nothing is taken to hide that.
    """
    lookup = SYSTEMS["D74H-7U"][0] * gpus * memory_tb_s / (8 * 3.35)
    exchange = link_gb_s * 1e3 * gpus / (EXCHANGE_BYTES * (gpus - 1) / gpus)
    return 1 / (1 / lookup + 1 / exchange)


# PCIe 5.0 × 16 carries 63 GB/s each way, of which transfers between devices reach about 50. The spread is what memory
# alone is off by elsewhere: four GPUs with links of their own do 12 % better, 1.43 times the bandwidth a fifth worse
# and 2.4 times a third worse.
SHEETS = {"D54U-3U": (from_sheets(4, 2.0, 50.0), 0.25, 4.5, 0.4, "4 × H100 PCIe, 2.0 TB/s of memory and PCIe 5.0: data sheets")}
UNKNOWN = (6.0, 0.8, 3.6, 0.4, "unknown GPUs")


def system_priors(name: str) -> list[Prior]:
    rate, rate_spread, seconds, seconds_spread, why = SYSTEMS.get(name, SHEETS.get(name, UNKNOWN))
    source = "spec" if name in SYSTEMS or name in SHEETS else "prior"
    return [
        Prior(f"compute[{name}]", rate, rate_spread, "million samples/s", source, why),
        Prior(f"evaluation[{name}]", seconds, seconds_spread, "s", source, why),
    ]


@many
def law(log: Array, rows: Rows) -> Array:
    """Log of minutes."""
    import numpy as np

    total, _, _ = _seconds(log, rows)
    return np.log(total / 60)


def _seconds(log: Array, rows: Rows) -> tuple[Array, Array, Array]:
    """Seconds in all, of compute alone and of storage alone."""
    import numpy as np

    value = np.exp(log)
    efficiency, overlap, epochs = np.moveaxis(value[..., : len(SHARED), None], -2, 0)
    of_systems = value[..., len(SHARED) :].reshape(*log.shape[:-1], -1, 2)[..., rows.system, :]
    rate, evaluation = np.moveaxis(of_systems, -1, 0)
    samples = epochs * SAMPLES / 1e6
    compute, storage = samples / rate, samples / np.minimum(rows.fed(efficiency), rows.cap)
    most = np.maximum(compute, storage)
    train = most * ((compute / most) ** overlap + (storage / most) ** overlap) ** (1 / overlap)
    return train + epochs * EVALS_PER_EPOCH * evaluation, compute, storage


class TrainingTime:
    """Calibrated by (job, minutes, whether the minutes are rounded)."""

    def __init__(
        self,
        measured: Sequence[tuple[Job, float, bool]],
        systems: Sequence[str] = (),
        more: Sequence[catalogue.Drive] = (),
    ) -> None:
        import numpy as np

        self.more = list(more)
        self.systems = list(dict.fromkeys([*(j.system for j, _, _ in measured), *systems]))
        self._measured = {j.system for j, _, _ in measured}
        priors = list(SHARED)
        for name in self.systems:
            priors += system_priors(name)
        rows = Rows([j for j, _, _ in measured], self.systems, more)
        # Nobody says of how many runs a published time is the mean: of one, for all that is known.
        noise = [math.hypot(NOISE, EPOCHS_SD, NOISE_ROUNDED if rounded else 0.0) for _, _, rounded in measured]
        y = np.log([minutes for _, minutes, _ in measured])
        self.posterior: Posterior = fit(law, priors, Data(rows, y, np.array(noise)))
        self.width = self.posterior.width()

    def minutes(self, system: str, samples_per_s: float) -> float:
        """To train at that rate, evaluations and all."""
        value = self.posterior.value
        epochs = value("epochs")
        return (epochs * SAMPLES / samples_per_s + epochs * EVALS_PER_EPOCH * value(f"evaluation[{system}]")) / 60

    def samples_per_s(self, system: str, minutes: float) -> float:
        """The rate that takes so long."""
        value = self.posterior.value
        epochs = value("epochs")
        return epochs * SAMPLES / (60 * minutes - epochs * EVALS_PER_EPOCH * value(f"evaluation[{system}]"))

    def predict(self, jobs: Sequence[Job]) -> list[Estimate]:
        """Minutes of each job, of one run: the spread of epochs is in the interval. Neither the time nor its ends are above
        those of fewer drives."""
        ways = [_up_to(job) for job in jobs]
        every = list(dict.fromkeys(fewer for way in ways for fewer in way))
        single = dict(zip(every, self._alone(every), strict=True))
        found = []
        for way in ways:
            value, low, high = (min(getattr(single[fewer], end) for fewer in way) for end in ("value", "p10", "p90"))
            found.append(replace(single[way[-1]], value=value, p10=low, p90=high))
        return found

    def _alone(self, jobs: Sequence[Job]) -> list[Estimate]:
        """As `predict`, each job by itself, whatever fewer drives would do."""
        rows = Rows(jobs, self.systems, self.more)
        mean, *sides = self.posterior.spreads(rows)
        total, compute, storage = _seconds(self.posterior.log, rows)
        capped = rows.cap < rows.fed(self.posterior.value("efficiency"))
        found = []
        for i, job in enumerate(jobs):
            most = max(float(compute[i]), float(storage[i]))
            of_supply = job.cap_sd if capped[i] else job.own_sd
            at_storage = of_supply * (float(storage[i]) / most) ** SHARP
            low, high = (math.hypot(self.width * math.hypot(float(sd[i]), NOISE, EPOCHS_SD), at_storage) for sd in sides)
            supplier = job.cap_name if capped[i] else "storage"
            stations = {"compute": float(compute[i]) / most, supplier: float(storage[i]) / most}
            known = job.system in self._measured or job.system in SYSTEMS
            note = "" if known else "no measurement of this system: its compute rate is a guess"
            found.append(
                from_sides(float(mean[i]), low, high, "min", bottleneck=bottleneck(stations), stations=stations, note=note)
            )
        return found
