"""The bytes a second that one GPU gets: from the flag to its share of the drives, and a loader held back to it.

A drive's share is what `forebay plan` predicts that DLRM gets from it, calibrated on the published times of training, and
not its data sheet's rate; both are told. What is paced are real bytes, read by the loader: a simulated supply, never a drive.
"""

from __future__ import annotations

import math
import re
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from forebay.errors import RequestError
from forebay.units import GIB, parse_gib_s
from forebay.uri import Uri, is_made, parsed

if TYPE_CHECKING:
    from forebay.plan.catalogue import Drive

# How a supply that is paced is called, everywhere.
SIMULATED = "simulated supply"
LOADER = "the loader"
SCHEME = "model:"
NEXT = "--supply 1.5, in GiB/s, or --supply 'model:d7-ps1010?drives=4'"
# Half of a normal distribution's central 80 %.
P90 = 1.2816
DRIVES_MAX, GPUS_MAX = 1024, 4096


@dataclass(frozen=True)
class Supply:
    """A GPU's supply. `gib_s` None: whatever the loader delivers. The rest is of a supply of drives.

    sheet_gib_s   one GPU's share of the drives' sequential rate
    low, high     the prediction's 80 % interval, of one GPU's share
    scaled_by     the factor that `gib_s` alone was multiplied by: this model's peak over that of another's GPU. A sweep
                  holds `gib_s` to a few times the need besides: more makes no difference, and a loader may not bring it
    """

    gib_s: float | None
    text: str | None = None
    gpus: int = 1
    drive: str | None = None
    drives: int | None = None
    sheet_gib_s: float | None = None
    low: float | None = None
    high: float | None = None
    scaled_by: float | None = None

    def scaled(self, factor: float | None, most: float) -> Supply:
        """So many times as much, and at most `most`; what drives would bring stays beside it as it is."""
        return self if self.gib_s is None else replace(self, gib_s=min(most, self.gib_s * (factor or 1.0)), scaled_by=factor)

    def drives_for(self, gib_s: float, gpus: int) -> list[tuple[str, int, float]]:
        """As the function of that name, of drives whose share is scaled as this is."""
        factor = self.scaled_by or 1.0
        return [(name, count, share * factor) for name, count, share in drives_for(gib_s / factor, gpus)]

    @property
    def kind(self) -> str:
        return LOADER if self.gib_s is None else SIMULATED

    def document(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "asked": self.text,
            "asked_gib_s": self.gib_s,
            "scaled_by": self.scaled_by,
            "gpus": self.gpus,
            "drive": self.drive,
            "drives": self.drives,
            "sheet_gib_s": self.sheet_gib_s,
            "predicted_p10_gib_s": self.low,
            "predicted_p90_gib_s": self.high,
        }


def parse(text: str | None, gpus: int = 1) -> Supply:
    """`--supply` and `--gpus` as one GPU's share. Raises RequestError."""
    if not 1 <= gpus <= GPUS_MAX:
        raise RequestError(f"--gpus {gpus}", f"is not between 1 and {GPUS_MAX}", "--gpus 8")
    if text is None:
        if gpus != 1:
            raise RequestError(
                f"--gpus {gpus}", "divides a supply, and none is given", f"--supply 13.5 --gpus {gpus}"
            )
        return Supply(None)
    if is_made(text):
        return _of_drives(text, parsed(text), gpus)
    whole = parse_gib_s(text, "--supply")
    if not math.isfinite(whole) or whole <= 0:
        raise RequestError(f"--supply {text}", "is no rate above 0", NEXT)
    return Supply(whole / gpus, text, gpus)


def _of_drives(text: str, source: Uri, gpus: int) -> Supply:
    asked, name = f"--supply {text}", source.drive
    if name is None:
        raise RequestError(asked, "is neither a rate nor a drive", NEXT)
    others = "over" if source.parts else "time" if source.real_time else None
    for key in (*source.settings, *([others] if others else ())):
        if key != "drives":
            known = "drives is the only key of a supply: its bytes come from the data set, in real time"
            raise RequestError(
                asked, f"it has the key {key!r}; {known}", f"--supply '{SCHEME}{name}?drives=4'"
            )
    number = source.settings.get("drives", "1")
    if not number.isascii() or not number.isdigit() or not 1 <= int(number) <= DRIVES_MAX:
        raise RequestError(
            asked, f"drives={number} is not between 1 and {DRIVES_MAX}", f"--supply '{SCHEME}{name}?drives=4'"
        )
    drives = int(number)
    sheet = drive_of(name)
    share, spread = efficiency()
    each = sheet.read_gibps * drives / gpus
    low, high = (each * share * math.exp(sign * P90 * spread) for sign in (-1, 1))
    return Supply(each * share, text, gpus, sheet.name, drives, each, low, high)


def drive_of(name: str) -> Drive:
    """A drive of the catalogue by its name, or by that of `model:`, which has dashes for spaces. Raises RequestError."""
    from forebay.plan import catalogue

    slug = re.sub(r"[^a-z0-9]+", "-", name.lower())
    for drive in catalogue.drives().values():
        if re.sub(r"[^a-z0-9]+", "-", drive.name.lower()) == slug:
            return drive
    try:
        return catalogue.drive(name)
    except RequestError as error:
        known = ", ".join(drive.name for drive in catalogue.drives().values())
        raise RequestError(
            f"--supply {SCHEME}{name}", error.found, f"one of {known}; or a number of GiB/s"
        ) from None


@cache
def efficiency() -> tuple[float, float]:
    """The share of drives' sequential rate that reads of DLRM reach, and the spread of its logarithm: what plans are made of."""
    from forebay.plan.planner import published

    found = {p.name: p for p in published().training_time().posterior.parameters()}["efficiency"]
    return found.value, found.sd / found.value


def drives_for(gib_s: float, gpus: int) -> list[tuple[str, int, float]]:
    """(drive, how many of them supply each of the GPUs with so much, the share of that that they give), fewest first."""
    from forebay.plan import catalogue

    share, _ = efficiency()
    found = []
    for drive in catalogue.drives().values():
        each = drive.read_gibps * share
        count = max(1, math.ceil(gib_s * gpus / each - 1e-9))
        found.append((drive.name, count, count * each / gpus))
    return sorted(found, key=lambda row: (row[1], row[0]))


class Pace:
    """Arrival of batches from a supply of `bytes_per_s` that reads `ahead` batches and then waits for room.

    A batch is there when the one before it is there, and one of the places is free, and its own bytes have passed. The rest
    of an oversleep isn't lost: the next batch's time doesn't depend on when this one was fetched.
    """

    def __init__(
        self,
        bytes_per_s: float,
        ahead: int,
        now: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.bytes_per_s, self.ahead = bytes_per_s, max(1, ahead)
        self._now, self._sleep = now, sleep
        self._there: float | None = None
        self._taken: deque[float] = deque(maxlen=self.ahead)

    def hold(self, count: int) -> None:
        """Waits until a batch of so many bytes would be there, and takes it."""
        began = self._now() if self._there is None else self._there
        if len(self._taken) == self.ahead:
            began = max(began, self._taken[0])
        self._there = began + count / self.bytes_per_s
        left = self._there - self._now()
        if left > 0:
            self._sleep(left)
        self._taken.append(max(self._there, self._now()))

    def rest(self, seconds: float) -> None:
        """The supply stood still for so long, as the training did."""
        if self._there is not None:
            self._there += seconds
            self._taken = deque((t + seconds for t in self._taken), maxlen=self.ahead)


def bytes_per_s(gib_s: float) -> float:
    return gib_s * GIB
