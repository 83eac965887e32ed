"""What a site adds to a sum of statistics, so that its own rows are safe whatever the others do.

The mixture under which everybody sums is made of totals, which a dishonest member can steer. So a
site looks at its own rows alone: to a component it adds only if enough of them stand behind it, and
to a mixture only if it is as wide as rows here could have made it.
"""

from __future__ import annotations

import hashlib
import warnings

import numpy as np

from fedmixtures._ties import first_greatest
from fedmixtures.data.node_data import NodeData
from fedmixtures.engine.evaluate import log_joint_rows
from fedmixtures.federation.node.rounding import normal
from fedmixtures.init import KMeansStart
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import Statistics

NARROW = 10.0
"""Mean squared distance of own rows from a component, in its own widths and by feature, up to which
it may be the component of some rows like these; one is the component of these rows themselves."""
FEW = 8.0
"""Rows' worth by which the spread about a row is that of all."""
ROWS_ALIKE, MOST_CLUSTERS = 10, 8
"""Rows to a cluster by which rows are said to be alike."""


def protected(
    own: Statistics, theta: Mixture, count: float, together: np.ndarray | None = None
) -> Statistics:
    """Own statistics (1, mixtures, ...) without those of fewer than `count` rows.

    Rows of a component that has fewer are left out, and those of the nearest that has enough count
    for them. Where none has, and in a mixture that is too narrow for own rows, nothing is added.
    Where cells are missing, `together` (mixtures, components, pairs) are the rows that have both of
    two columns; it is changed alike.
    """
    if count == 0:
        return own
    if together is None:  # every row has all columns
        together = np.array(own.mass, np.float64)[0, ..., None]
    mass, first, second = (np.array(part, np.float64) for part in (own.mass, own.first, own.second))
    weights, means, covariances = (np.asarray(part, np.float64) for part in theta.parts)
    for index in np.ndindex(mass.shape[:-1]):
        sums = mass[index], first[index], second[index]
        behind = together[index[1:]]
        if too_narrow(*sums, covariances[index], count):
            for part in (*sums, behind):
                part[...] = 0.0
        else:
            _left_out(*sums, behind, weights[index], means[index], covariances[index], count)
    made = Statistics.__new__(Statistics)
    parts = own.log_likelihood, mass, first, second
    for name, part in zip(("log_likelihood", "mass", "first", "second"), parts, strict=True):
        object.__setattr__(made, name, part)
    return made


def blurred(rows: np.ndarray, fraction: float, secret: bytes) -> np.ndarray:
    """Rows moved by secret noise: `fraction` of the standard deviation of the rows like them.

    A number of a single row is no finer then than any number that leaves is of its standard error,
    whatever is asked about it. Equal rows are moved alike; empty cells stay empty.
    """
    if fraction == 0 or len(rows) < 2:
        return rows
    drawn = [
        normal(hashlib.sha256(secret + row.tobytes()).digest(), len(row))
        for row in np.ascontiguousarray(rows, np.float64)
    ]
    factor = np.linalg.cholesky(_spread(rows))
    return rows + fraction * np.einsum("mij,mj->mi", factor, np.stack(drawn))


def _spread(rows: np.ndarray) -> np.ndarray:
    """(rows, d, d) covariance of the rows like each one; of few such rows, as wide as the others'.

    By clusters that depend on the rows alone, and on no job.
    """
    node = np.zeros(len(rows), dtype=int)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a column without any value
        centre, scale = np.nanmean(rows, axis=0), np.nanstd(rows, axis=0)
    centre, scale = np.nan_to_num(centre), np.nan_to_num(scale)
    data = NodeData.from_rows((rows - centre) / np.where(scale > 0, scale, 1.0), node)
    k = int(np.clip(len(np.unique(rows, axis=0)) // ROWS_ALIKE, 1, MOST_CLUSTERS))
    theta = KMeansStart().mixtures(data, [k], 0, 1e-9)
    nearest = np.asarray(first_greatest(log_joint_rows(theta, data), 1))
    counts = np.bincount(nearest, minlength=k)[:, None, None]
    own, share = np.asarray(theta.covariances)[0], np.asarray(theta.weights)[0]
    average = np.einsum("k,kij->ij", share, own)
    mixed = (counts * own + FEW * average) / (counts + FEW)
    return (mixed * (scale[:, None] * scale) + 1e-300 * np.eye(len(scale)))[nearest]


def too_narrow(
    mass: np.ndarray, first: np.ndarray, second: np.ndarray, covariances: np.ndarray, count: float
) -> bool:
    """Whether own rows lie much farther from a component than its width."""
    del first
    enough = mass >= max(count, 1.0)
    if not enough.any():
        return False
    away = np.linalg.solve(covariances[enough], second[enough])
    mean = np.trace(away, axis1=-2, axis2=-1) / mass[enough] / second.shape[-1]
    return bool((mean > NARROW).any())


def _rest_on_few(mass: np.ndarray, behind: np.ndarray, count: float) -> np.ndarray:
    """Components with fewer than `count` rows, or fewer that have both of two columns, if any."""
    return (mass < count) | ((behind > 0) & (behind < count)).any(-1)


def _left_out(mass, first, second, behind, weights, means, covariances, count: float) -> None:
    """Sums without those of small components, as many rows' worth as before; in place.

    The nearest large component takes their mass over and keeps its mean and covariance: rows that
    do not belong to it would make it wider than it is.
    """
    small = _rest_on_few(mass, behind, count)
    if not small.all():
        inverse = np.linalg.inv(covariances)
        constant = np.log(np.maximum(weights, 1e-300)) - 0.5 * np.linalg.slogdet(covariances)[1]
        more = np.zeros_like(mass)
        for c in np.flatnonzero(small & (mass > 0)):
            off = means[c] + first[c] / mass[c] - means
            near = constant - 0.5 * np.einsum("ki,kij,kj->k", off, inverse, off)
            more[int(first_greatest(np.where(small, -np.inf, near)))] += mass[c]
        factor = 1.0 + more / np.where(small, 1.0, mass)
        for part in (mass, first, second, behind):
            part *= factor.reshape(-1, *(1,) * (part.ndim - 1))
    mass[small], first[small], second[small], behind[small] = 0.0, 0.0, 0.0, 0.0
