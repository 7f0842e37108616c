"""The search for the greatest number of accelerators that passes. Pure: runs are a function argument.

Utilisation falls as accelerators are added, but every run is noisy and long ones cost minutes. So short runs (probes)
bracket and close in, a probe near the threshold is decided by a full run, and the number found is then confirmed: so
many full runs pass with it, each of them, and a full run with one more doesn't.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

# Points of utilisation: nearer than this to the threshold, a probe decides nothing.
MARGIN = 1.0
# The turn of a full run that warms caches up before those that count, and counts for nothing.
WARM_UP = -1


@dataclass(frozen=True)
class Trial:
    """One run. `au_pct` None: the data set gave too few steps to tell."""

    accelerators: int
    full: bool
    turn: int
    au_pct: float | None
    passes: bool

    @property
    def warms_up(self) -> bool:
        return self.turn == WARM_UP


@dataclass
class Greatest:
    """`run(accelerators, full, turn)` plays one run; `needed_pct`: the threshold; `confirmations`: full runs that must
    pass, 0 for none; `most`: no number above is tried; `warm_up`: before those full runs comes one that doesn't count, and
    they follow it without any other between them. Every step of the search is a run that wasn't made before, of
    finitely many, so it ends.
    """

    run: Callable[[int, bool, int], Trial]
    needed_pct: float
    most: int
    confirmations: int = 5
    trials: list[Trial] = field(default_factory=list)
    warm_up: bool = False

    def search(self, start: int = 1) -> int:
        """Finds and confirms; returns the number, 0 where not even one accelerator passes."""
        first = max(1, min(start, self.most))
        while (following := self._following(first)) is not None:
            self.trials.append(self.run(*following))
        return self.number

    @property
    def first_failing(self) -> int | None:
        """The least number that fails; None where none does."""
        return min((n for n in self._numbers() if self._verdict(n) is False), default=None)

    @property
    def number(self) -> int:
        """The greatest that passes below the least that fails; 0 where there is none."""
        below = self.first_failing
        passing = (n for n in self._numbers() if self._verdict(n) and (below is None or n < below))
        return max(passing, default=0)

    @property
    def confirmed(self) -> bool:
        """Returns whether the answer rests on full runs: its own, and where one more could have been tried, that one's."""
        return self.confirmations > 0 and self._following(1) is None

    def too_few_steps(self, n: int) -> bool:
        """Returns whether only the size of the data set speaks against `n`."""
        mine = [t for t in self.trials if t.accelerators == n]
        return bool(mine) and all(t.au_pct is None for t in mine)

    def _following(self, first: int) -> tuple[int, bool, int] | None:
        """The run to make next: (accelerators, full, turn). None: the search is over."""
        undecided = next((n for n in self._numbers() if self._verdict(n) is None), None)
        if undecided is not None:
            return undecided, True, 0
        number, failing = self.number, self.first_failing
        if failing is None and number < self.most:
            return (first if not number else min(2 * number, self.most)), False, 0
        if failing is not None and failing - number > 1:
            return self._between(number, failing), False, 0
        return self._confirming(number, failing)

    def _confirming(self, number: int, failing: int | None) -> tuple[int, bool, int] | None:
        """The next full run that the answer lacks: each of its own, then one with one accelerator more."""
        if not self.confirmations:
            return None
        if number:
            made = {t.turn for t in self.trials if t.full and t.accelerators == number}
            # A full run that decided a probe was made before others, and warmed up by none.
            first = 1 if self.warm_up else 0
            lacking = [turn for turn in range(first, first + self.confirmations) if turn not in made]
            if lacking:
                return number, True, WARM_UP if self.warm_up and WARM_UP not in made else lacking[0]
        if failing is not None and not self._full(failing) and not self.too_few_steps(failing):
            return failing, True, 0
        return None

    def _between(self, low: int, high: int) -> int:
        """Returns the number whose run tells most: the one that the failing run's utilisation suggests, else the middle.

        Beyond saturation the same rate is shared, so utilisation times number stays as it is.
        """
        known = set(self._numbers())
        failed = [t.au_pct for t in self.trials if t.accelerators == high and t.au_pct is not None]
        if failed and self.needed_pct > 0:
            guess = int(high * failed[-1] / self.needed_pct)
            for n in (guess, guess + 1):
                if low < n < high and n not in known:
                    return n
        return (low + high) // 2

    def _verdict(self, n: int) -> bool | None:
        """Full runs decide, all of which must pass; else the probe. None: it takes a full run to tell."""
        full = self._full(n)
        if full:
            return all(t.passes for t in full)
        probe = next(t for t in self.trials if t.accelerators == n and not t.warms_up)
        if probe.au_pct is not None and abs(probe.au_pct - self.needed_pct) < MARGIN:
            return None
        return probe.passes

    def _numbers(self) -> list[int]:
        return sorted({t.accelerators for t in self.trials})

    def _full(self, n: int) -> list[Trial]:
        return [t for t in self.trials if t.full and t.accelerators == n and not t.warms_up]


def curve(trials: list[Trial]) -> list[dict[str, float | int | bool | None]]:
    """AU over the number of accelerators: of full runs where there are any, else of the probe; their mean."""
    points: list[dict[str, float | int | bool | None]] = []
    for n in sorted({t.accelerators for t in trials}):
        mine = [t for t in trials if t.accelerators == n]
        chosen = [t for t in mine if t.full and not t.warms_up] or mine
        values = [t.au_pct for t in chosen if t.au_pct is not None]
        mean = sum(values) / len(values) if values else None
        points.append({"accelerators": n, "au_pct": mean, "passes": all(t.passes for t in chosen)})
    return points
