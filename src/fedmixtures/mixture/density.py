"""Density of a mixture, also where cells are missing: what the fast kernels are tested against."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from fedmixtures._ties import first_greatest
from fedmixtures._types import Array, Scalar
from fedmixtures.mixture.linear import inverse_cholesky, swept
from fedmixtures.mixture.mixture import Mixture

SMALLEST_SHARE = 1e-9
"""Of a category, in a logarithm."""


def log_joint(
    mixture: Mixture, x: Float[Array, "*nodes m d"], factor: tuple[Array, Array] | None = None
) -> Float[Array, "*nodes m k"]:
    r"""$\ln \pi_c + \ln N(x; \mu_c, \Sigma_c)$ for every row and component.

    With categories also $\sum_j x_j \ln t_{cj}$ over one-hot columns x and shares t, which may be
    shares in rows, too. `factor` is `inverse_cholesky` of the covariances, where somebody has it.
    Kernels that write this out: `kernels.cpu.likelihood` and `kernels.gpu.likelihood`.
    """
    if mixture.is_mixed:
        g = mixture.n_continuous
        joint = log_joint(mixture.continuous, x[..., :g], factor)
        return joint + x[..., g:] @ jnp.swapaxes(log_tables(mixture), -1, -2)
    inverse, log_determinant = inverse_cholesky(mixture.covariances) if factor is None else factor
    difference = x[..., None, :, :] - mixture.means[..., :, None, :]
    white = jnp.einsum("...cij,...cmj->...cmi", inverse, difference)
    constant = log_constants(mixture, log_determinant)
    return jnp.swapaxes(constant[..., None] - 0.5 * jnp.square(white).sum(-1), -1, -2)


def log_tables(mixture: Mixture) -> Float[Array, "*nodes k c"]:
    """Logarithms of the shares of categories."""
    return jnp.log(jnp.maximum(mixture.tables, SMALLEST_SHARE))


class IncompleteRows(eqx.Module):
    """Rows with missing cells, in segments of one length whose rows lack the same cells."""

    x: Float[Array, "*nodes m d"]  # any number where a cell is missing
    observed: Bool[Array, "*nodes segments d"]  # which cells the rows of every segment have

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the rows."""
        return self.x.shape

    @property
    def by_segment(self) -> Float[Array, "*nodes segments length d"]:
        """The rows of every segment."""
        *nodes, segments, d = self.observed.shape
        return self.x.reshape(*nodes, segments, -1, d)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, nodes: Any) -> IncompleteRows:
        """Rows of some nodes."""
        return IncompleteRows(self.x[nodes], self.observed[nodes])


def log_joint_observed(mixture: Mixture, rows: IncompleteRows) -> Float[Array, "*nodes m k"]:
    r"""`log_joint` of the cells that were observed: the marginal of every row's own features."""
    joint = jnp.swapaxes(observed_terms(mixture, rows)[0], -1, -2)
    return joint.reshape(*rows.shape[:-1], joint.shape[-1])


def observed_terms(mixture: Mixture, rows: IncompleteRows) -> tuple[Array, Array, Array]:
    r"""By segment and component: the log joint of observed cells, $E[x - \mu]$, and $Cov[x]$.

    Expectations given the observed cells O of a row: $\delta_O$ and $\Sigma_{MO} \Sigma_{OO}^{-1}
    \delta_O$ for what is missing, whose covariance is $\Sigma_{MM} - \Sigma_{MO} \Sigma_{OO}^{-1}
    \Sigma_{OM}$. All rows have one shape, whatever their gaps.
    """
    x, observed = rows.by_segment, rows.observed[..., None, :]  # (..., segments, 1, d)
    if mixture.is_mixed:
        return _mixed_terms(mixture, rows)
    means = mixture.means[..., None, :, :]
    shape = *jnp.broadcast_shapes(observed.shape, means.shape), x.shape[-1]
    covariances = jnp.broadcast_to(mixture.covariances[..., None, :, :, :], shape)
    conditional, log_determinant = swept(covariances, jnp.broadcast_to(observed, shape[:-1]))
    delta = x[..., None, :, :] - means[..., None, :]  # (..., segments, k, length, d)
    delta = jnp.where(observed[..., None, :], delta, 0.0)
    solved = jnp.einsum("...ij,...mj->...mi", conditional, delta)
    cells = observed.sum(-1).astype(x.dtype)
    constant = log_determinant + cells * jnp.log(2 * jnp.pi)
    joint = _log_weights(mixture)[..., None, :, None] - 0.5 * (
        constant[..., None] - (delta * solved).sum(-1)
    )
    gone = (~observed).astype(x.dtype)
    left = conditional * gone[..., :, None] * gone[..., None, :]
    return joint, jnp.where(observed[..., None, :], delta, solved), left


def _mixed_terms(mixture: Mixture, rows: IncompleteRows) -> tuple[Array, Array, Array]:
    """`observed_terms` with categories: a missing one is expected with the component's shares."""
    g = mixture.n_continuous
    x, observed = rows.by_segment[..., g:], rows.observed[..., g:]
    numbers = IncompleteRows(rows.x[..., :g], rows.observed[..., :g])
    joint, expected, left = observed_terms(mixture.continuous, numbers)
    logs = log_tables(mixture)[..., None, :, :]  # (..., 1, k, columns)
    there = jnp.where(observed[..., None, :], x, 0.0)
    joint = joint + jnp.einsum("...tmj,...tkj->...tkm", there, logs)
    tables = mixture.tables[..., None, :, None, :]
    off = jnp.where(observed[..., None, None, :], x[..., None, :, :] - tables, 0.0)
    off = jnp.broadcast_to(off, (*expected.shape[:-1], mixture.n_features - g))
    return joint, jnp.concatenate([expected, off], -1), left


def _log_weights(mixture: Mixture) -> Float[Array, "*nodes k"]:
    present = mixture.weights > 0
    return jnp.where(present, jnp.log(jnp.where(present, mixture.weights, 1.0)), -jnp.inf)


def log_constants(
    mixture: Mixture, log_determinant: Float[Array, "*nodes k"]
) -> Float[Array, "*nodes k"]:
    """Logarithm of weight times normalising constant; minus infinity where absent."""
    present = mixture.weights > 0
    log_weights = jnp.log(jnp.where(present, mixture.weights, 1.0))
    constant = log_weights - 0.5 * (log_determinant + mixture.n_features * jnp.log(2 * jnp.pi))
    return jnp.where(present, constant, -jnp.inf)


def log_density(mixture: Mixture, x: Float[Array, "m d"]) -> Float[Array, " m"]:
    r"""$\ln p(x)$ for every row."""
    return jax.nn.logsumexp(log_joint(mixture, x), axis=-1)


def responsibilities(mixture: Mixture, x: Float[Array, "m d"]) -> Float[Array, "m k"]:
    """Posterior probability of each component for every row."""
    return jax.nn.softmax(log_joint(mixture, x), axis=-1)


def local_loss(
    mixture: Mixture, rows: Float[Array, "m d"], row_weights: Float[Array, " m"]
) -> Scalar:
    r"""Eq. (1): $L = -\frac1m \sum_r \ln p(x_r)$, rows counted by `row_weights`.

    The weights are used as given; the caller makes them sum to one (or to zero for an empty node).
    """
    return -(row_weights @ log_density(mixture, rows))


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
    r"""Log joint (m, k), expectations (m, k, missing) and factors (k, missing, missing).

    With $\Sigma_c = LL^\top$, observed features O before missing M, $z = L_{OO}^{-1} (x - \mu_c)_O$
    gives the density of what is there, $\mu_{c,M} + L_{MO} z$ is the expectation of what is not,
    and $L_{MM}$ factorises the covariance that is left.
    """
    if mixture.is_mixed:
        return _conditional_mixed(mixture, rows)
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


def _conditional_mixed(
    mixture: Mixture, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`_conditional` with categories: a missing one is expected with the component's shares."""
    g, gone = mixture.n_continuous, np.isnan(rows[0])
    joint, means, factors = _conditional(mixture.continuous, rows[:, :g])
    there, lost = ~gone[g:], gone[g:]
    logs = np.log(np.maximum(mixture.tables, SMALLEST_SHARE))
    joint = joint + rows[:, g:][:, there] @ logs[:, there].T
    shares = np.broadcast_to(mixture.tables[:, lost], (*joint.shape, lost.sum()))
    o, c = factors.shape[-1], int(lost.sum())
    wide = np.zeros((len(factors), o + c, o + c))
    wide[:, :o, :o] = factors
    return joint, np.concatenate([means, shares], -1), wide
