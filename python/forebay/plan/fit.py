"""Weighted least squares in log space with priors: what every module of the planner is calibrated by.

A module is a function of positive parameters and of rows. Parameters are fitted as logarithms, so none can turn
negative and "twice" and "half" are equally far. Each has a prior: a median and a spread, from a data sheet (`spec`)
or from experience with the class (`prior`). What a module can't explain is taken as a smooth deviation over its
rows (kriging), known near measured cells and forgotten far away, beside the noise of single measurements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray
    # (log parameters, rows) → one prediction per row, in the module's link (a logarithm, as a rule).
    Model = Callable[[Array, Any], Array]

# Laws that take rows of logarithms, and give a row of predictions for each: most of a small one's time is that of its calls.
_MANY: set[Model] = set()
# Predictions that are made at once.
MANY_MOST = 200_000
ITERATIONS_MAX = 100
STEP = 1e-5
# A step that lowers the sum of squares by a smaller share than this ends the search.
GAIN_LEAST, GAIN_NONE = 1e-5, 1e-6
# A parameter whose spread the measurements cut by less than this share wasn't found out by them.
LEARNED = 0.7
# Of a normal distribution, the interval that holds 80 %.
Z80 = 1.2815515655446004
# Covariances of less than this share of a parameter's variance are rounding.
ALONE = 1e-9
# Beyond so many standard deviations a measurement is called an outlier and weighs less.
OUTLIER_SD = 3.0
# A width's scale is believed to be 1 as firmly as if so many measurements had said so: a prior of unit information
# (Kass and Wasserman 1995). More would leave tables of four cells no say in it.
PSEUDO = 1.0


@dataclass(frozen=True)
class Prior:
    """Belief about a positive parameter before any measurement.

    `spread`: standard deviation of its logarithm (0.1: about 10 %). `source`: `spec` or `prior`; `why` says whence.
    """

    name: str
    median: float
    spread: float
    unit: str
    source: str
    why: str


@dataclass(frozen=True)
class Parameter:
    """A parameter after calibration. `sd` is in its own unit; `source` is `calibrated` where data moved its spread."""

    name: str
    value: float
    unit: str
    source: str
    sd: float
    why: str
    identified: bool

    def document(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "source": self.source,
            "sd": self.sd,
            "why": self.why,
        }


def many(model: Model) -> Model:
    """A law that takes rows of parameters too, as a decorator."""
    _MANY.add(model)
    return model


def each(model: Model, logs: Array, rows: Any, size: int = 0) -> Array:
    """Predictions by each row of parameters: in one call where the law can, unless `size` rows are very many."""
    import numpy as np

    if model in _MANY and len(logs) * size <= MANY_MOST:
        return model(logs, rows)
    return np.stack([model(log, rows) for log in logs])


def _none(rows: Any) -> Array:
    raise ValueError("a kernel needs its variance")


@dataclass(frozen=True)
class Data:
    """Measured rows: `rows` as the model takes them, `y` in its link, `sd` the noise of each (same link).

    `kernel(a, b)` is the covariance of the smooth deviation between rows, `variance(a)` that of each row with itself; None:
    there is none.
    """

    rows: Any
    y: Array
    sd: Array
    kernel: Callable[[Any, Any], Array] | None = None
    variance: Callable[[Any], Array] = _none


class Posterior:
    """Parameters as logarithms with their covariance, and what is needed to predict further rows."""

    def __init__(self, model: Model, priors: Sequence[Prior], data: Data | None, log: Array, cov: Array) -> None:
        self.model, self.priors, self.data, self.log, self.cov = model, list(priors), data, log, cov
        self._weights: Array | None = None
        self._left_out: Array | None = None
        self._steps: tuple[Array, Array] | None = None
        self._values: dict[str, float] | None = None

    def value(self, name: str) -> float:
        """The fitted parameter, in its unit. Raises KeyError where there is not one of that name."""
        if self._values is None:
            self._values = self.values()
        return self._values[name]

    def values(self) -> dict[str, float]:
        """Returns the fitted parameters by name."""
        return {prior.name: math.exp(float(at)) for prior, at in zip(self.priors, self.log, strict=True)}

    def parameters(self) -> list[Parameter]:
        found = []
        for i, prior in enumerate(self.priors):
            value, spread = math.exp(float(self.log[i])), math.sqrt(max(0.0, float(self.cov[i, i])))
            learned = spread < LEARNED * prior.spread
            source = "calibrated" if learned else prior.source
            found.append(Parameter(prior.name, value, prior.unit, source, value * spread, prior.why, learned))
        return found

    def jacobian(self, rows: Any) -> Array:
        return _jacobian(self.model, self.log, rows)

    def predict(self, rows: Any) -> tuple[Array, Array]:
        """Mean and standard deviation of what the rows are (without the noise of measuring them), in the link."""
        import numpy as np

        mean = self.model(self.log, rows)
        slope = self.jacobian(rows)
        spare = np.zeros(len(mean))
        if self.data is not None and self.data.kernel is not None:
            inverse, residual = self._smooth()
            cross = self.data.kernel(rows, self.data.rows) @ inverse
            mean = mean + cross @ residual
            slope = slope - cross @ self.jacobian(self.data.rows)
            spare = self.data.variance(rows) - np.einsum("ij,ij->i", cross, self.data.kernel(rows, self.data.rows))
        variance = np.einsum("ij,jk,ik->i", slope, self.cov, slope) + np.maximum(spare, 0.0)
        return mean, np.sqrt(np.maximum(variance, 0.0))

    def spreads(self, rows: Any) -> tuple[Array, Array, Array]:
        """Mean, and standard deviations below and above it (without the noise of measuring), in the link.

        Parameters are moved along the axes of their covariance, both ways, as far as an 80 % interval goes: where the law
        bends, one side is wider than the other, and a slope at the middle would show neither.
        """
        import numpy as np

        law = self.model(self.log, rows)
        mean, spare, cross = law, np.zeros(len(law)), None
        if self.data is not None and self.data.kernel is not None:
            inverse, residual = self._smooth()
            apart = self.data.kernel(rows, self.data.rows)
            cross = apart @ inverse
            mean = law + cross @ residual
            spare = np.maximum(self.data.variance(rows) - np.einsum("ij,ij->i", cross, apart), 0.0)
        below, above = spare.copy(), spare.copy()
        steps, of_known = self._ways()
        if hasattr(rows, "uses"):
            # Those of drives that nothing was asked or measured of change nothing.
            moving = steps[:, rows.uses(len(self.log))].any(axis=1) | (of_known != 0).any(axis=1)
            steps, of_known = steps[moving], of_known[moving]
        if len(steps):
            moved = each(self.model, self.log + steps, rows, len(law)) - law
            if cross is not None:
                moved = moved - of_known @ cross.T
            one, other = moved[0::2], moved[1::2]
            below += np.sum((np.minimum(np.minimum(one, other), 0.0) / Z80) ** 2, axis=0)
            above += np.sum((np.maximum(np.maximum(one, other), 0.0) / Z80) ** 2, axis=0)
        return mean, np.sqrt(below), np.sqrt(above)

    def _ways(self) -> tuple[Array, Array]:
        """Steps of the parameters, Z80 standard deviations one way and the other along each axis of their covariance in turn;
        and what each step changes of the measured rows."""
        import numpy as np

        if self._steps is None:
            axes = Z80 * _axes(self.cov)
            steps = np.stack([axes, -axes], axis=1).reshape(-1, len(self.log))
            if self.data is None or self.data.kernel is None:
                self._steps = steps, np.zeros((len(steps), 0))
            else:
                known = self.data.rows
                self._steps = steps, each(self.model, self.log + steps, known) - self.model(self.log, known)
        return self._steps

    def _smooth(self) -> tuple[Array, Array]:
        import numpy as np

        assert self.data is not None and self.data.kernel is not None
        if self._weights is None:
            total = self.data.kernel(self.data.rows, self.data.rows) + np.diag(self.data.sd**2)
            self._weights = np.linalg.inv(total)
        return self._weights, self.data.y - self.model(self.log, self.data.rows)

    def left_out(self) -> Array:
        """Per measurement: how far it is from what the others say of it, in standard deviations of that prediction.

        Leave-one-out in closed form (Sundararajan and Keerthi 2001), with the model taken as linear about the fit.
        """
        import numpy as np

        if self.data is None or len(self.data.y) == 0:
            return np.zeros(0)
        if self._left_out is not None:
            return self._left_out
        off, total = self.marginal()
        if self.data.kernel is not None:
            total = total + self.data.kernel(self.data.rows, self.data.rows)
        inverse = np.linalg.inv(total)
        self._left_out = (inverse @ off) / np.sqrt(np.diag(inverse))
        return self._left_out

    def marginal(self) -> tuple[Array, Array]:
        """Distances of measurements from what the priors say, and their covariance but for the smooth deviation, with
        the model taken as linear about the fit."""
        import numpy as np

        assert self.data is not None
        middle, spread = _start(self.priors)
        slope = self.jacobian(self.data.rows)[:, : len(middle)]
        total = (slope * spread**2) @ slope.T + np.diag(self.data.sd**2)
        return self.data.y - (self.model(self.log, self.data.rows) + slope @ (middle - self.log)), total

    def width(self, among: Sequence[bool] | Array | None = None, usual: float = 1.0) -> float:
        """By what to stretch standard deviations, so that they are what leaving measurements out (of `among`) shows.

        Few measurements can't tell, so it is drawn to `usual`, that of the wider family. Nothing that is predicted
        takes part: this is learnt from what calibrates alone.
        """
        import numpy as np

        far = self.left_out()
        if among is not None:
            far = far[np.asarray(among, dtype=bool)]
        return math.sqrt((PSEUDO * usual**2 + float(far @ far)) / (PSEUDO + len(far)))

    def cost(self) -> float:
        """Returns the quantity that the fit makes least: squares of what measurements and parameters are off by, each in its
        own spread."""
        import numpy as np

        middle, spread = _start(self.priors)
        total = float(np.sum(((self.log - middle) / spread) ** 2))
        if self.data is None or len(self.data.y) == 0:
            return total
        noise = np.diag(self.data.sd**2)
        if self.data.kernel is not None:
            noise = noise + self.data.kernel(self.data.rows, self.data.rows)
        off = self.data.y - self.model(self.log, self.data.rows)
        return total + float(off @ np.linalg.solve(noise, off))

    def outlier(self) -> int | None:
        """The measurement that is furthest off, if by more than OUTLIER_SD of what it is allowed; None: there is none.

        One at a time: a stray drags the fit, and those beside it look like strays too until it is gone.
        """
        import numpy as np

        if self.data is None:
            return None
        off = np.abs(self.data.y - self.model(self.log, self.data.rows))
        allowed = self.data.sd**2
        if self.data.kernel is not None:
            allowed = allowed + np.diag(self.data.kernel(self.data.rows, self.data.rows))
        far = off / np.sqrt(allowed)
        return int(np.argmax(far)) if far.max() > OUTLIER_SD else None


def _axes(cov: Array) -> Array:
    """Rows whose outer products add up to the covariance. A parameter that goes with no other has an axis of its own, so that
    drives that are known beside it change nothing."""
    import numpy as np

    alone = (np.abs(cov - np.diag(np.diag(cov))) <= ALONE * np.diag(cov)[:, None]).all(axis=1)
    found = np.diag(np.sqrt(np.diag(cov)))
    among = np.flatnonzero(~alone)
    if len(among):
        values, vectors = np.linalg.eigh(cov[np.ix_(among, among)])
        found[np.ix_(among, among)] = (vectors * np.sqrt(np.maximum(values, 0.0))).T
    return found


def prior_only(model: Model, priors: Sequence[Prior]) -> Posterior:
    """No measurement: the priors alone."""
    import numpy as np

    log, spread = _start(priors)
    return Posterior(model, priors, None, log, np.diag(spread**2))


def fit(model: Model, priors: Sequence[Prior], data: Data, start: Mapping[str, float] | None = None) -> Posterior:
    """The most probable parameters (Levenberg–Marquardt) and their covariance there (Laplace).

    `start`: where to begin looking, by name; else at the priors. From anywhere near, the same is found.
    """
    import numpy as np

    if len(data.y) == 0:
        return prior_only(model, priors)
    middle, spread = _start(priors)
    noise = np.diag(data.sd**2)
    if data.kernel is not None:
        noise = noise + data.kernel(data.rows, data.rows)
    whiten = np.linalg.inv(np.linalg.cholesky(noise))

    def miss(log: Array) -> Array:
        return np.concatenate([whiten @ (data.y - model(log, data.rows)), (middle - log) / spread])

    def slope(log: Array) -> Array:
        return np.vstack([-whiten @ _jacobian(model, log, data.rows), -np.diag(1 / spread)])

    begin = np.log([(start or {}).get(p.name, p.median) for p in priors])
    log, normal = _descend(miss, slope, begin)
    return Posterior(model, priors, data, log, np.linalg.inv(normal))


def _start(priors: Sequence[Prior]) -> tuple[Array, Array]:
    import numpy as np

    return np.log([p.median for p in priors]), np.array([p.spread for p in priors])


def _jacobian(model: Model, log: Array, rows: Any) -> Array:
    """Rows × parameters, by central differences: the models bend, and one-sided ones would lean."""
    import numpy as np

    steps = STEP * np.eye(len(log))
    up, down = np.split(each(model, np.concatenate([log + steps, log - steps]), rows), 2)
    return ((up - down) / (2 * STEP)).T


def _descend(miss: Callable[[Array], Array], slope: Callable[[Array], Array], log: Array) -> tuple[Array, Array]:
    """Returns the point of least Σ miss², and the normal matrix there."""
    import numpy as np

    damping, residual = 1e-2, miss(log)
    cost = float(residual @ residual)
    for turn in range(ITERATIONS_MAX):
        jacobian = slope(log)
        normal, gradient = jacobian.T @ jacobian, jacobian.T @ residual
        # Who begins at the bottom is done: what a whole step would gain is nothing.
        if turn == 0 and float(gradient @ np.linalg.solve(normal, gradient)) < GAIN_NONE * (1 + cost):
            return log, normal
        while damping < 1e12:
            step = -np.linalg.solve(normal + damping * np.diag(np.diag(normal)), gradient)
            tried = miss(log + step)
            if np.isfinite(tried).all() and float(tried @ tried) < cost:
                break
            damping *= 4
        else:
            break
        gain = cost - float(tried @ tried)
        log, residual, cost, damping = log + step, tried, cost - gain, max(damping / 5, 1e-9)
        if gain < GAIN_LEAST * (1 + cost):
            break
    jacobian = slope(log)
    return log, jacobian.T @ jacobian


def gain_nats(posterior: Posterior, rows: Any, noise: float) -> Array:
    """Returns the information of measuring each row once about all parameters (half the log of its variance over its noise)."""
    import numpy as np

    _, sd = posterior.predict(rows)
    return 0.5 * np.log1p((sd / noise) ** 2)


def likelihood(cov: Array, off: Array) -> float:
    """Logarithm of the density of being so far off, under a normal distribution of that covariance; but for a constant."""
    import numpy as np

    return -0.5 * float(off @ np.linalg.solve(cov, off) + np.linalg.slogdet(cov)[1])


def weighed(values: Sequence[float], logs: Sequence[float]) -> float:
    """The mean of values, each as likely as its logarithm says."""
    return math.fsum(w * v for w, v in zip(weights(logs), values, strict=True))


def weights(logs: Sequence[float]) -> list[float]:
    """Shares of one, out of logarithms of likelihoods."""
    shares = [math.exp(log - max(logs)) for log in logs]
    return [share / math.fsum(shares) for share in shares]
