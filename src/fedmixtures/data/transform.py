r"""Skewed columns in units in which mixtures of Gaussians describe them well.

Every column is taken as it is, by its logarithm, or by a power of the family of Yeo and Johnson
("A new family of power transformations to improve normality or symmetry", 2000), where $u$ is
the column's origin and $s$ its unit:
$z = (x - u) / s$, $t_\lambda(z) = ((1 + z)^\lambda - 1) / \lambda$ for $z \ge 0$ and
$-((1 - z)^{2 - \lambda} - 1) / (2 - \lambda)$ for $z < 0$, logarithms where an exponent is zero.
With $0 \le \lambda \le 2$ it maps all numbers to all numbers, so that whatever a mixture draws has
a value in the user's units. The logarithm goes on as a straight line below a small value, six
standard deviations down, so that a zero in new rows is unlikely instead of an error.

The choice is the one under which a mixture of one to three Gaussians of the column alone is the
better description: log-likelihood in the user's units (with the Jacobian), less half a logarithm of
the rows for every number that is fitted. More than one Gaussian, since a column of two clusters of
unequal size is skewed, too, and wants no transform. All of it comes from sums over rows
(`centre_sums`, `em_sums`), which nodes could add up without showing a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import numpy as np

from fedmixtures import _checks
from fedmixtures._ties import first_greatest
from fedmixtures.data.node_data import NodeData, label_hash
from fedmixtures.mixture.mixture import Mixture

GAIN, PER_ROW = 5.0, 0.015
"""What a transform must gain over none: in all, and for each row."""
CLOSE = 3.0
"""Nats in all by which another transform must beat the logarithm."""
MOST_COMPONENTS, STEPS, FLOOR = 3, 60, 1e-3
"""Of the mixtures that describe a column: Gaussians, EM steps, least share of the variance."""
FEWEST_ROWS = 30
"""Of which a choice is made."""
POINTS = 1000
"""Of a column that the choice looks at, evenly by rank."""
ATOM, FEWEST_EQUAL, SPREAD = 0.1, 10, 0.1
"""An atom is a value of so many rows, as a share and a number; its rows are spread over so many
standard deviations of the column for the fit."""
FEWEST_VALUES = 10
"""Columns of no more different values are taken as they are."""


@dataclass(frozen=True)
class Column:
    """How one column is taken: as it is, by its logarithm or by a power."""

    kind: str = "none"
    power: float = 1.0
    origin: float = 0.0
    unit: float = 1.0

    def apply(self, x: np.ndarray) -> np.ndarray:
        """Values in units of the fit; NaN stays NaN."""
        if self.kind == "none":
            return x
        if self.kind == "log":
            return np.log(np.maximum(x, self.unit)) + np.minimum(x / self.unit - 1, 0.0)
        z = (x - self.origin) / self.unit
        up = _branch(np.maximum(z, 0.0), self.power)
        return up - _branch(np.maximum(-z, 0.0), 2 - self.power)

    def invert(self, t: np.ndarray) -> np.ndarray:
        """Values in the user's units."""
        if self.kind == "none":
            return t
        if self.kind == "log":
            below = np.minimum(t - np.log(self.unit), 0.0)
            return np.exp(np.maximum(t, np.log(self.unit))) + self.unit * below
        up = _unbranch(np.maximum(t, 0.0), self.power)
        return self.origin + self.unit * (up - _unbranch(np.maximum(-t, 0.0), 2 - self.power))

    def log_slope(self, x: np.ndarray) -> np.ndarray:
        """Logarithm of the derivative of `apply`: what log-densities gain in the user's units."""
        if self.kind == "none":
            return np.zeros_like(x)
        if self.kind == "log":
            return -np.log(np.maximum(x, self.unit))
        z = (x - self.origin) / self.unit
        return np.sign(z) * (self.power - 1) * np.log1p(np.abs(z)) - np.log(self.unit)

    def __str__(self) -> str:
        if self.kind == "power":
            what = f"{self.origin:.4g}" if self.origin else "0"
            root = "log(1 + z)" if self.power == 0 else f"power {self.power:g}"
            return f"{root}, z from {what} in units of {self.unit:.4g}"
        return self.kind


AS_IT_IS = Column()


def _branch(z: np.ndarray, power: float) -> np.ndarray:
    return np.log1p(z) if power == 0 else ((1 + z) ** power - 1) / power


def _unbranch(t: np.ndarray, power: float) -> np.ndarray:
    return np.expm1(t) if power == 0 else (1 + power * t) ** (1 / power) - 1


def centre_sums(x: np.ndarray) -> np.ndarray:
    """What a node tells of a column at first, to be added up.

    Rows, how many are negative and how many not positive, sums of values and of their squares, of
    logarithms and of theirs.
    """
    logs = np.log(np.where(x > 0, x, 1.0))
    counts = len(x), (x < 0).sum(), (x <= 0).sum()
    return np.array([*counts, x.sum(), (x**2).sum(), logs.sum(), (logs**2).sum()])


def logarithm(n: float, first: float, second: float) -> Column:
    """The logarithm of a column, from how many logarithms there are, their sum and of squares."""
    spread = np.sqrt(max(second / n - (first / n) ** 2, 0.0))
    return Column("log", 0.0, 0.0, float(np.exp(first / n - 6 * spread)))


def candidates(sums: np.ndarray) -> list[Column]:
    """What a column of these `centre_sums` may be taken by; the first is as it is."""
    n, negative, not_positive, first, second, *logs = sums
    mean = first / n
    spread = float(np.sqrt(max(second / n - mean**2, 0.0)))
    mean = float(mean)
    if not spread > 0:
        return [AS_IT_IS]
    found = [AS_IT_IS]
    if not not_positive:
        found.append(logarithm(n, *logs))
    if not negative:
        found += [Column("power", 0.0, 0.0, unit) for unit in (spread, spread / 10)]
        found += [Column("power", 0.5, 0.0, spread / 10)]
    return found + [Column("power", power, mean, spread) for power in (0.0, 0.5, 1.5, 2.0)]


def em_sums(t: np.ndarray, mixtures: np.ndarray) -> np.ndarray:
    """(..., k, 3) mass, sum, sum of squares by component, and (...) log-likelihood as one array.

    `t` (..., m) are values of a node in units of the fit, `mixtures` (..., 3, k) weights, means and
    variances. The last entry along k holds the log-likelihood in its first place.
    """
    weight, mean, variance = (mixtures[..., i, :, None] for i in range(3))
    off = t[..., None, :] - mean
    joint = np.log(weight) - 0.5 * (np.log(2 * np.pi * variance) + off**2 / variance)
    top = joint.max(-2, keepdims=True)
    share = np.exp(joint - top)
    total = share.sum(-2, keepdims=True)
    share /= total
    fit = (top + np.log(total))[..., 0, :].sum(-1)
    sums = np.stack([share.sum(-1), (share * t[..., None, :]).sum(-1)], -1)
    second = (share * t[..., None, :] ** 2).sum(-1)
    sums = np.concatenate([sums, second[..., None]], -1)
    last = np.zeros((*fit.shape, 1, 3))
    last[..., 0, 0] = fit
    return np.concatenate([sums, last], -2)


def worth(t: np.ndarray, k: int) -> np.ndarray:
    """(candidates,) log-likelihood of values (candidates, m) of unit variance by k Gaussians."""
    middle = np.linspace(-1.0, 1.0, 2 * k + 1)[1::2] * 1.8
    start = np.stack([np.full(k, 1 / k), middle, np.full(k, 1.0 / k**2)])
    mixtures = np.broadcast_to(start, (len(t), 3, k))
    fit = np.full(len(t), -np.inf)
    for _ in range(STEPS if k > 1 else 2):
        sums = em_sums(t, mixtures)
        sums, fit = sums[:, :-1], sums[:, -1, 0]
        mass = sums[..., 0] + 1e-9
        mean = sums[..., 1] / mass
        variance = np.maximum(sums[..., 2] / mass - mean**2, 0.0) + FLOOR
        weight = (mass + 1.0) / (mass + 1.0).sum(-1, keepdims=True)
        mixtures = np.stack([weight, mean, variance], 1)
    return fit


def chosen(x: np.ndarray, atoms: Sequence[float] = ()) -> tuple[Column, float]:
    """The transform of a column (without NaN), and what it gains for each row beside `atoms`."""
    choices = candidates(centre_sums(x))
    x = x[~np.isin(x, atoms)]
    n = len(x)
    if len(choices) == 1 or n < FEWEST_ROWS:
        return AS_IT_IS, 0.0
    points = np.sort(x)
    if n > POINTS:
        points = points[((np.arange(POINTS) + 0.5) * n / POINTS).astype(int)]
    t = np.stack([choice.apply(points) for choice in choices])
    slope = np.stack([choice.log_slope(points) for choice in choices]).mean(-1)
    spread = np.maximum(t.std(1), np.finfo(np.float64).tiny)
    scaled = (t - t.mean(1, keepdims=True)) / spread[:, None]
    each = [
        worth(scaled, k) / len(points) - 0.5 * (3 * k - 1) * np.log(n) / n
        for k in range(1, MOST_COMPONENTS + 1)
    ]
    value = np.max(each, 0) + slope - np.log(spread)
    gain = value - value[0]
    best = int(first_greatest(gain, scale=1.0))
    if choices[1].kind == "log" and gain[1] > gain[best] - CLOSE / n:
        best = 1  # what everybody reads
    enough = gain[best] > max(PER_ROW, GAIN / n)
    return (choices[best], float(gain[best])) if enough else (AS_IT_IS, 0.0)


def atoms_of(x: np.ndarray) -> tuple[float, ...] | None:
    """Values that many rows of a column have; None where it has few values altogether."""
    values, counts = np.unique(x, return_counts=True)
    if len(values) <= FEWEST_VALUES:
        return None
    return tuple(values[(counts >= FEWEST_EQUAL) & (counts >= ATOM * len(x))].tolist())


@dataclass(frozen=True)
class Transform:
    """How every column is taken; made by `choose`, kept with the model."""

    columns: tuple[Column, ...]
    atoms: tuple[tuple[float, ...], ...]
    """Of every column, in the user's units: values that many rows have."""
    gains: tuple[float, ...]
    """Of every column: what its transform gained for each row, in nats, beside none."""

    @property
    def is_identity(self) -> bool:
        """Whether all columns are taken as they are."""
        return all(column.kind == "none" for column in self.columns)

    @classmethod
    def none(cls, n_features: int) -> Transform:
        """All columns as they are."""
        return cls((AS_IT_IS,) * n_features, ((),) * n_features, (0.0,) * n_features)

    def apply(self, rows: np.ndarray) -> np.ndarray:
        """Rows in units of the fit."""
        return self._each(rows, lambda column, x: column.apply(x))

    def invert(self, rows: np.ndarray) -> np.ndarray:
        """Rows in the user's units."""
        return self._each(rows, lambda column, x: column.invert(x))

    def _each(self, rows: np.ndarray, change: Any) -> np.ndarray:
        if self.is_identity:
            return rows
        parts = [change(column, rows[..., i]) for i, column in enumerate(self.columns)]
        return np.stack(parts, axis=-1)

    def log_slopes(self, rows: np.ndarray) -> np.ndarray:
        """What log-densities of rows (m, d) gain in the user's units, by cells that are there."""
        total = np.zeros(len(rows))
        for i, column in enumerate(self.columns):
            if column.kind != "none":
                total += np.nan_to_num(column.log_slope(rows[:, i]))
        return total

    def volume(self, data: NodeData) -> np.ndarray:
        """(nodes,) what mean log-densities of own rows lose in the user's units."""
        slopes = data.row_weights * self.log_slopes(data.rows)
        return -np.add.reduceat(slopes, data.offsets[:-1]) / data.total_weights()

    def users(self, theta: Mixture) -> Mixture:
        """Mixtures as they are shown: medians, half the width of the middle 68 %, correlations.

        Of columns as they are, that is means and standard deviations.
        """
        return self._changed(theta, self.invert)

    def of_users(self, theta: Mixture) -> Mixture:
        """The other way: mixtures in units of the fit whose `users` have these medians."""
        return self._changed(theta, self.apply)

    def _changed(self, theta: Mixture, change: Callable[[np.ndarray], np.ndarray]) -> Mixture:
        if self.is_identity:
            return theta
        g, means, covariances = theta.n_continuous, np.asarray(theta.means), theta.covariances
        covariances = np.asarray(covariances)
        spread = np.sqrt(np.diagonal(covariances, axis1=-2, axis2=-1))
        step = np.zeros_like(means)
        step[..., :g] = spread
        wide = ((change(means + step) - change(means - step)) / 2)[..., :g]
        return Mixture(theta.weights, change(means), _scaled(covariances, wide / spread))

    def names(self, features: Sequence[str]) -> tuple[str, ...]:
        """Names of the columns in units of the fit: ``"log crp"``."""
        word = lambda column: {"none": "", "log": "log "}.get(column.kind, "transformed ")
        pairs = zip(self.columns, features, strict=True)
        return tuple(f"{word(column)}{name}" for column, name in pairs)

    def told(self, features: Sequence[str]) -> list[str]:
        """Lines on what was changed and what was noticed, for people."""
        changed = [
            f"{name}: {column}"
            for name, column in zip(features, self.columns, strict=True)
            if column.kind != "none"
        ]
        lines = [f"skewed columns are fitted transformed: {'; '.join(changed)}"] if changed else []
        heaps = [
            f"{name} ({_checks.listed([float(f'{v:.4g}') for v in values], 4)})"
            for name, values in zip(features, self.atoms, strict=True)
            if values
        ]
        if heaps:
            lines.append(
                f"many equal values in {', '.join(heaps)}: spread a little for the fit, so that no "
                "cluster closes in on one of them"
            )
        return lines


def _scaled(covariances: np.ndarray, factor: np.ndarray) -> np.ndarray:
    return covariances * factor[..., :, None] * factor[..., None, :]


class TransformedMixture(Mixture):
    """A mixture of transformed columns that is asked, and answers, in the user's units.

    Its means and covariances are as `Transform.users` shows them; densities and draws are exact.
    """

    inner: Mixture
    transform: Transform = eqx.field(static=True)

    def __init__(self, inner: Mixture, transform: Transform):
        super().__init__(*transform.users(inner).parts)
        self.inner, self.transform = inner, transform

    def log_density(self, x: Any) -> np.ndarray:
        """Natural logarithm of the density at each row of `x`."""
        rows = _checks.rows(x, self.n_features)
        inside = self.inner.log_density(self.transform.apply(rows))
        return inside + self.transform.log_slopes(rows)

    def responsibilities(self, x: Any) -> np.ndarray:
        """Probability of each component given each row of `x`."""
        rows = _checks.rows(x, self.n_features)
        return self.inner.responsibilities(self.transform.apply(rows))

    def sample(self, n: int, random_state: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Draw `n` rows; returns the rows and the component each came from."""
        rows, components = self.inner.sample(n, random_state)
        return self.transform.invert(rows), components


def choose(data: NodeData, wanted: Mapping[int, str] | None = None, auto: bool = True) -> Transform:
    """The transform of a table: of each column as `wanted` says, else the one that gains most."""
    wanted = wanted or {}
    columns, atoms, gains = [], [], []
    for i in range(data.n_features):
        x = data.rows[:, i]
        x = x[~np.isnan(x)]
        heaps, kind = atoms_of(x), wanted.get(i, "auto" if auto else "none")
        column, gain = AS_IT_IS, 0.0
        if i >= data.n_continuous:
            heaps, kind = None, "none"  # of a category
        if kind == "log":
            _, _, not_positive, _, _, *logs = centre_sums(x)
            if not_positive:
                raise ValueError(
                    f"`transforms` is 'log' for column {i}, which is {x.min():g} in a row. Take "
                    "'auto' or 'none'."
                )
            column = logarithm(len(x), *logs)
        elif kind == "auto" and heaps is not None:
            column, gain = chosen(x, heaps)
        columns.append(column)
        atoms.append(heaps or ())
        gains.append(gain)
    return Transform(tuple(columns), tuple(atoms), tuple(gains))


def to_fit(data: NodeData, transform: Transform, seed: int) -> NodeData:
    """Rows in units of the fit, those of atoms spread by a share of the column's deviation."""
    rows = transform.apply(data.rows)
    if not any(transform.atoms):
        return replace(data, rows=rows)
    rows, ordered = rows.copy(), data.in_order().source_index
    place = np.empty(len(rows), dtype=np.int64)
    place[data.source_index] = np.arange(len(rows))
    order = place[ordered]  # the same rows in the same order, however they came
    for i, values in enumerate(transform.atoms):
        if not values:
            continue
        width = SPREAD * float(np.nanstd(rows[:, i]))
        for node, label in enumerate(data.labels):
            own = order[data.offsets[node] : data.offsets[node + 1]]
            heap = own[np.isin(data.rows[own, i], values)]
            rng = np.random.default_rng([seed, label_hash(label), i])
            rows[heap, i] += width * (rng.random(len(heap)) - 0.5)
    return replace(data, rows=rows)


def in_units_of_fit(init: Any, transform: Transform) -> Any:
    """A start, with its mixtures, if it is made of any, in units of the fit."""
    if isinstance(init, Mapping) and not transform.is_identity:
        taken = lambda one: transform.of_users(one) if isinstance(one, Mixture) else one
        return {label: taken(one) for label, one in init.items()}
    return init
