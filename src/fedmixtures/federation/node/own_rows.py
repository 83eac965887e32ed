"""What a site adds to a sum of statistics, so that its own rows are safe whatever the others do.

The mixture under which everybody sums is made of totals, which a dishonest member can steer. So a
site looks at its own rows alone: to a component it adds only if enough of them stand behind it, and
to a mixture only if it is as wide as rows here could have made it.
"""

from __future__ import annotations

import numpy as np

from fedmixtures._ties import first_greatest
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import Statistics

NARROW = 10.0
"""Mean squared distance of own rows from a component, in its own widths and by feature, up to which
it may be the component of some rows like these; one is the component of these rows themselves."""


def protected(own: Statistics, theta: Mixture, count: float) -> Statistics:
    """Own statistics (1, mixtures, ...) without those of fewer than `count` rows.

    Rows of a component that has fewer go to the nearest that has enough. Where none has, and in a
    mixture that is too narrow for own rows, nothing is added.
    """
    mass, first, second = (np.array(part, np.float64) for part in (own.mass, own.first, own.second))
    weights, means, covariances = (np.asarray(part, np.float64) for part in theta.parts)
    for index in np.ndindex(mass.shape[:-1]):
        sums = mass[index], first[index], second[index]
        if too_narrow(*sums, covariances[index], count):
            for part in sums:
                part[...] = 0.0
        else:
            _moved(*sums, weights[index], means[index], covariances[index], count)
    made = Statistics.__new__(Statistics)
    parts = own.log_likelihood, mass, first, second
    for name, part in zip(("log_likelihood", "mass", "first", "second"), parts, strict=True):
        object.__setattr__(made, name, part)
    return made


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


def _moved(mass, first, second, weights, means, covariances, count: float) -> None:
    """Sums of small components added to those of the nearest ones; in place."""
    there = mass >= count
    inverse = np.linalg.inv(covariances)
    constant = np.log(np.maximum(weights, 1e-300)) - 0.5 * np.linalg.slogdet(covariances)[1]
    for c in np.flatnonzero(~there):
        if there.any() and mass[c] > 0:
            place = means[c] + first[c] / mass[c]
            off = place - means
            near = constant - 0.5 * np.einsum("ki,kij,kj->k", off, inverse, off)
            to = int(first_greatest(np.where(there, near, -np.inf)))
            shift = means[c] - means[to]
            cross = np.outer(first[c], shift)
            mass[to] += mass[c]
            first[to] += first[c] + mass[c] * shift
            second[to] += second[c] + cross + cross.T + mass[c] * np.outer(shift, shift)
        mass[c], first[c], second[c] = 0.0, 0.0, 0.0
