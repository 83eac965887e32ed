r"""What a mixture says of missing cells, given those of a row that are there.

With $\Sigma_c = LL^\top$, observed features O before missing M, $z = L_{OO}^{-1} (x - \mu_c)_O$
gives the density of what is there, $\mu_{c,M} + L_{MO} z$ is the expectation of what is not, and
$L_{MM}$ factorises the covariance that is left.
"""

from __future__ import annotations

import numpy as np

from fedmixtures._ties import first_greatest
from fedmixtures.mixture.mixture import Mixture


def conditional_means(mixture: Mixture, rows: np.ndarray) -> np.ndarray:
    """Rows with every missing cell (NaN) at its expectation given the row's other cells."""
    filled = rows.copy()
    for index, gone in _patterns(rows):
        joint, means, _ = _conditional(mixture, rows[index])
        share = np.exp(joint - np.logaddexp.reduce(joint, axis=1)[:, None])
        filled[np.ix_(index, gone)] = np.einsum("mk,mki->mi", share, means)
    return filled


def conditional_draws(
    mixture: Mixture, rows: np.ndarray, n_draws: int, rng: np.random.Generator
) -> np.ndarray:
    """(draws, rows, features): every missing cell drawn, those of a row together."""
    filled = np.repeat(rows[None], n_draws, axis=0)
    for index, gone in _patterns(rows):
        joint, means, factors = _conditional(mixture, rows[index])
        # The greatest of joint densities with Gumbel noise is a draw from the posterior.
        noise = rng.gumbel(size=(n_draws, *joint.shape))
        component = first_greatest(joint + noise)
        place = np.arange(len(index))[None]
        drawn = rng.standard_normal((n_draws, len(index), len(gone)))
        drawn = means[place, component] + np.einsum("smij,smj->smi", factors[component], drawn)
        filled[:, index[:, None], gone] = drawn
    return filled


def _patterns(rows: np.ndarray):
    """Rows that lack the same cells, and the features that they lack; whole rows are left out."""
    patterns, index = np.unique(np.isnan(rows), axis=0, return_inverse=True)
    for number, gone in enumerate(patterns):
        if gone.any():
            yield np.flatnonzero(index.reshape(-1) == number), np.flatnonzero(gone)


def _conditional(mixture: Mixture, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Log joint (m, k), expectations (m, k, missing) and factors (k, missing, missing)."""
    gone = np.isnan(rows[0])
    order = np.argsort(gone, kind="stable")
    o = int((~gone).sum())
    L = np.linalg.cholesky(mixture.covariances[:, order[:, None], order])
    delta = rows[None][..., ~gone] - mixture.means[:, None, ~gone]
    z = np.linalg.solve(L[:, :o, :o], np.swapaxes(delta, 1, 2))  # (k, observed, m)
    half_determinant = np.log(np.diagonal(L[:, :o, :o], axis1=1, axis2=2)).sum(-1)
    constant = np.log(mixture.weights) - half_determinant - 0.5 * o * np.log(2 * np.pi)
    joint = constant[:, None] - 0.5 * np.square(z).sum(1)
    means = np.asarray(mixture.means)[:, gone, None] + L[:, o:, :o] @ z
    return joint.T, np.moveaxis(means, 2, 0), L[:, o:, o:]
