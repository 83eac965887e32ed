"""Where EM begins: k-means++ on weighted points, for all nodes of a block at once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Bool, Float, Key

from fedmixtures._types import Array, NodeKeys, Rows, RowWeights
from fedmixtures.kernels.block_em import expectation_maximisation
from fedmixtures.kernels.dispatch import sum_together
from fedmixtures.methods.trust_then_pool.scores import WRITTEN_OUT, log_densities, total_gain
from fedmixtures.mixture.em import EMPTY, ShapePrior, m_step
from fedmixtures.mixture.linear import UNROLLED, inverse_cholesky, sum_of, symmetric
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import Statistics

LLOYD_STEPS = 5
FAR = 1e30
"""Squared distance to a centre before there is one."""
Present = Bool[Array, "nodes k"]


def plus_plus(
    keys: NodeKeys, points: Rows, counts: RowWeights, n_components: int
) -> Float[Array, "nodes k d"]:
    """k-means++: each centre a point, drawn in proportion to its squared distance to the others.

    One uniform number per centre, turned over the cumulative weights: padding changes no draw.
    """

    def one_node(key: Key[Array, ""], x, w):
        def pick(nearest, uniform):
            pull = jnp.where((nearest * w).sum() > 0, nearest * w, w)
            cumulative = jnp.cumsum(pull)
            index = (cumulative <= uniform * cumulative[-1]).sum()
            centre = x[jnp.minimum(index, len(x) - 1)]
            return jnp.minimum(nearest, jnp.square(x - centre[None]).sum(-1)), centre

        draws = jr.uniform(key, (n_components,), x.dtype)
        return jax.lax.scan(pick, jnp.full(len(x), FAR, x.dtype), draws)[1]

    return jax.vmap(one_node)(keys, points, counts)


def hard_start(
    centres: Float[Array, "nodes k d"],
    present: Present,
    points: Rows,
    counts: RowWeights,
    ridge: float | Array,
    prior: ShapePrior | None,
) -> Mixture:
    """A few Lloyd steps from these centres, then the mixture of the clusters."""
    d = centres.shape[-1]
    number = jnp.arange(centres.shape[1])[None, :, None]

    def members(centres):
        squares = jnp.square(centres).sum(-1)[:, :, None] - 2 * _products(centres, points)
        nearest = jnp.where(present[:, :, None], squares, jnp.inf).argmin(1)
        return jnp.where(nearest[:, None, :] == number, counts[:, None, :], 0.0)

    def lloyd(_, centres):
        mass, first = _sums(members(centres), centres, points, only_means=True)
        moved = centres + first / jnp.maximum(mass, EMPTY)[..., None]
        return jnp.where((mass > EMPTY)[..., None], moved, centres)

    centres = jax.lax.fori_loop(0, LLOYD_STEPS, lloyd, centres)
    mass, first, second = _sums(members(centres), centres, points)
    nodes, k = centres.shape[:2]
    eye = jnp.broadcast_to(jnp.eye(d, dtype=points.dtype), (nodes, k, d, d))
    blank = Mixture(jnp.where(present, 1.0, 0.0).astype(points.dtype), centres, eye)
    s = Statistics(jnp.zeros(nodes, points.dtype), mass, first, second)
    return m_step(blank, s, ridge, prior)


def _products(centres: Float[Array, "nodes k d"], points: Rows) -> Float[Array, "nodes k m"]:
    """Every centre times every point."""
    d = centres.shape[-1]
    if d > WRITTEN_OUT:
        return jnp.einsum("nkd,nmd->nkm", centres, points)
    return sum_of(centres[:, :, i, None] * points[:, None, :, i] for i in range(d))


def _sums(
    share: Float[Array, "nodes k m"], centres, points: Rows, only_means: bool = False
) -> tuple[Array, ...]:
    """Mass, first and second moments of the points about the centres, each point by its share."""
    d = centres.shape[-1]
    if d > UNROLLED:
        delta = points[:, None] - centres[:, :, None]
        first = jnp.einsum("nkm,nkmi->nki", share, delta)
        if only_means:
            return share.sum(-1), first
        second = jnp.einsum("nkm,nkmi,nkmj->nkij", share, delta, delta)
        return share.sum(-1), first, second
    delta = [points[:, None, :, i] - centres[:, :, i, None] for i in range(d)]
    first = [share * delta[i] for i in range(d)]
    second = [first[i] * delta[j] for i in range(0 if only_means else d) for j in range(i + 1)]
    mass, *sums = sum_together([share, *first, *second], axis=2)
    first, triangle = jnp.stack(sums[:d], axis=-1), iter(sums[d:])
    if only_means:
        return mass, first
    return mass, first, symmetric([[next(triangle) for _ in range(i + 1)] for i in range(d)])


def penalised(
    theta: Mixture, log_likelihood: Float[Array, " nodes"], counts: RowWeights, strength
) -> Float[Array, " nodes"]:
    r"""What fits are compared by: likelihood, less the prior's penalty, less the price of size.

    $\ell - \nu \sum_c KL(N(0, S_0) \| N(0, \Sigma_c)) - \frac12 p \ln N$ with p parameters and N
    rows; minus infinity if not finite.
    """
    d = theta.n_features
    present = theta.weights > 0
    inverse, log_determinant = inverse_cholesky(theta.covariances)
    average = jnp.einsum("nk,nkij->nij", theta.weights, theta.covariances)
    _, average_log = inverse_cholesky(average)
    spread = jnp.einsum("nkpi,nkpj,nij->nk", inverse, inverse, average)
    divergence = 0.5 * (spread - d + log_determinant - average_log[:, None])
    penalty = strength * jnp.where(present, divergence, 0.0).sum(-1)
    parameters = present.sum(-1) * (1 + d + d * (d + 1) // 2) - 1
    price = 0.5 * parameters * jnp.log(jnp.maximum(counts.sum(-1), 1.0))
    score = log_likelihood - penalty - price
    return jnp.where(jnp.isfinite(score), score, -jnp.inf)


def scored_fit(
    start: Mixture,
    points: Rows,
    counts: RowWeights,
    n_steps: int,
    ridge: float | Array,
    prior: ShapePrior | None,
) -> tuple[Mixture, Float[Array, " nodes"]]:
    """EM from a start, and the `penalised` likelihood it reaches."""
    theta = expectation_maximisation(start, points, counts, n_steps, 1e-7, ridge, prior).theta
    likelihood = total_gain(log_densities(theta, points), counts)
    strength = 0.0 if prior is None else prior.strength
    return theta, penalised(theta, likelihood, counts, strength)


def best_of(thetas: Mixture, scores: Float[Array, "candidates nodes"]) -> Mixture:
    """Each node's best candidate (leading axis), the first of equals."""
    best = scores.argmax(0)
    return jax.tree.map(lambda part: part[best, jnp.arange(len(best))], thetas)


def best_fit(
    candidates: Mixture,
    points: Rows,
    counts: RowWeights,
    n_steps: int,
    ridge: float | Array,
    prior: ShapePrior | None,
) -> Mixture:
    """EM from each candidate (leading axis), one after another; the best by `penalised`."""
    one = lambda start: scored_fit(start, points, counts, n_steps, ridge, prior)
    return best_of(*jax.lax.map(one, candidates))


def fresh_starts(
    keys: NodeKeys,
    n_starts: int,
    present: Present,
    points: Rows,
    counts: RowWeights,
    ridge: float | Array,
    prior: ShapePrior | None,
) -> Mixture:
    """So many k-means++ starts, on a leading axis."""

    def one(number):
        of_start = jax.vmap(lambda key: jr.fold_in(key, number))(keys)
        centres = plus_plus(of_start, points, counts, present.shape[1])
        return hard_start(centres, present, points, counts, ridge, prior)

    return jax.lax.map(one, jnp.arange(n_starts))
