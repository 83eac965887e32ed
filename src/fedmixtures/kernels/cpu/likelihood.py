"""Likelihood, its moments and its gradient with the rows on the last axis, the vector axis.

What `mixture.moments` defines. A block of S4 (128 nodes, 50 rows, k=5, d=2) takes 0.95 ms by the
definition, 0.43 ms by `rows_last` and 0.33 ms by `unrolled`; with 10 nodes, 110 rows and k=d=10 it
is 0.87 and 0.50 ms. A gradient by entries instead of products saves a tenth of both together.
"""

from __future__ import annotations

from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from fedmixtures._types import Array, PerNode, Rows, RowWeights
from fedmixtures.kernels import dispatch
from fedmixtures.mixture.arithmetic import fast_log
from fedmixtures.mixture.density import log_constants
from fedmixtures.mixture.linear import (
    Triangle,
    inverse_cholesky,
    inverse_cholesky_entries,
    lower_triangle,
    sum_of,
    symmetric,
)
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import Statistics, weight_gradient

MOST_SUMS = 72
"""Up to this many sums are taken in one loop over the rows; the loop's code grows with them."""
FEW_SUMS = 30
"""Up to this many the code is short enough to be worth it on tiles, which are small."""
ABSENT = -1e30
"""Log-weight of a component that is not there, as a number that can be multiplied."""


def n_sums(d: int) -> int:
    """Numbers that are summed up over rows for each component: mass, first and second moments."""
    return 1 + d + d * (d + 1) // 2


def unrolled(theta: Mixture, rows: Rows, row_weights: RowWeights) -> Statistics:
    """Few features: all written out, and every sum over rows taken in one loop over them.

    Rows stand on the last axis, which is the vector axis. Nothing of the size of rows times
    components is ever kept.
    """
    k, d = theta.n_components, theta.n_features
    inverse, log_determinant = inverse_cholesky_entries(lower_triangle(theta.covariances))
    constant = log_constants(theta, log_determinant)
    x = [rows[:, :, i] for i in range(d)]  # (nodes, m)
    of = lambda part, c: part[:, c, None]  # (nodes, 1)
    delta = [[x[i] - of(theta.means[:, :, i], c) for i in range(d)] for c in range(k)]
    log_joint = _log_joint(constant, inverse, delta, of)
    top = reduce(jnp.maximum, log_joint)
    # A compiler may round the largest in two ways, and far from all means (padding may be so) ulps
    # are large: of two such numbers the difference is held to be no more than 0, their sum 1.
    unnormalised = [jnp.exp(jnp.minimum(one - top, 0.0)) for one in log_joint]
    total = jnp.maximum(sum_of(unnormalised), 1.0)
    scale = row_weights / total
    terms = [row_weights * (top + fast_log(total))]
    for c in range(k):
        share = unnormalised[c] * scale
        first = [share * delta[c][i] for i in range(d)]
        second = [first[i] * delta[c][j] for i in range(d) for j in range(i + 1)]
        terms += [share, *first, *second]
    log_likelihood, *sums = dispatch.sum_together(terms, axis=1)
    moments = 1 + d + d * (d + 1) // 2
    parts = [jnp.stack(sums[i::moments], axis=-1) for i in range(moments)]  # (nodes, k)
    return of_sums(log_likelihood, parts, d)


def rows_last(theta: Mixture, rows: Rows, row_weights: RowWeights) -> Statistics:
    """A dozen features at most: as `unrolled`, but components stay an axis of the arrays."""
    d = theta.n_features
    delta, top, unnormalised, total = _joint_rows_last(theta, rows)
    share = unnormalised * (row_weights[:, None, :] / total)
    first = [share * delta[i] for i in range(d)]
    second = [first[i] * delta[j] for i in range(d) for j in range(i + 1)]
    parts = dispatch.sum_together([share, *first, *second], axis=2)
    log_likelihood = (row_weights * (top + fast_log(total))[:, 0]).sum(-1)
    return of_sums(log_likelihood, parts, d)


def log_density_rows_last(theta: Mixture, rows: Rows) -> Float[Array, "nodes m"]:
    """Log-density of rows, for as many features."""
    _, top, _, total = _joint_rows_last(theta, rows)
    return (top + fast_log(total))[:, 0]


def _joint_rows_last(
    theta: Mixture, rows: Rows
) -> tuple[list[Array], jax.Array, jax.Array, jax.Array]:
    """Distances (nodes, k, m) from the means by feature; the joint density as exp(top) times it."""
    d = theta.n_features
    inverse, log_determinant = inverse_cholesky(theta.covariances)
    constant = log_constants(theta, log_determinant)[:, :, None]
    delta = [rows[:, None, :, i] - theta.means[:, :, i, None] for i in range(d)]
    white = [sum_of(inverse[:, :, i, j, None] * delta[j] for j in range(i + 1)) for i in range(d)]
    log_joint = constant - 0.5 * sum_of(w * w for w in white)
    top = log_joint.max(1, keepdims=True)
    unnormalised = jnp.exp(jnp.minimum(log_joint - top, 0.0))  # as in `unrolled`
    return delta, top, unnormalised, jnp.maximum(unnormalised.sum(1, keepdims=True), 1.0)


def products(rows: Float[Array, "*batch d"]) -> Float[Array, "*batch p"]:
    """One, the features and their products, in which a log-density is linear."""
    each = (rows[..., i : i + 1] * rows[..., : i + 1] for i in range(rows.shape[-1]))
    return jnp.concatenate([jnp.ones_like(rows[..., :1]), rows, *each], -1)


def by_products(
    theta: Mixture,
    rows: Rows,
    kept: Float[Array, "tiles m p"] | None,
    row_weights: RowWeights,
    owner: Array,
) -> Statistics:
    r"""Statistics of fits, each of several tiles (`owner`, sorted): two matrix products per tile.

    `kept` are the products of features; None makes them tile by tile, so that they stay in cache.
    Sums are taken about the origin and moved to the means: about $x^2\epsilon$ is lost, so rows
    must be centred and scaled, covariances bounded from below, and numbers of double precision.
    """
    n, d = len(theta.weights), theta.n_features
    i, j = np.tril_indices(d)
    inverse, log_determinant = inverse_cholesky(theta.covariances)
    precision = jnp.einsum("nkpi,nkpj->nkij", inverse, inverse)
    linear = jnp.einsum("nkij,nkj->nki", precision, theta.means)
    constant = log_constants(theta, log_determinant) - 0.5 * (linear * theta.means).sum(-1)
    quadratic = precision[..., i, j] * jnp.where(i == j, -0.5, -1.0)[None, None]
    constant = jnp.maximum(constant, ABSENT)[..., None]
    weights = jnp.concatenate([constant, linear, quadratic], -1)

    def one_tile(features, row_weights, owner):
        log_joint = jnp.einsum("kp,mp->km", weights[owner], features)
        top = log_joint.max(0)
        unnormalised = jnp.exp(log_joint - top[None])
        total = unnormalised.sum(0)
        share = unnormalised * (row_weights / total)[None]
        log_likelihood = (row_weights * (top + jnp.log(total))).sum()
        return log_likelihood, jnp.einsum("km,mp->kp", share, features)

    if kept is not None:
        log_likelihood, sums = jax.vmap(one_tile)(kept, row_weights, owner)
    else:
        made = lambda tile: one_tile(products(tile[0]), *tile[1:])
        log_likelihood, sums = jax.lax.map(made, (rows, row_weights, owner))
    add = lambda part: jax.ops.segment_sum(part, owner, n, indices_are_sorted=True)
    log_likelihood, sums = add(log_likelihood), add(sums)
    mass, first, mean = sums[..., 0], sums[..., 1 : 1 + d], theta.means
    place = np.zeros((d, d), int)
    place[i, j] = place[j, i] = np.arange(len(i))
    cross = first[..., :, None] * mean[..., None, :]
    around = mass[..., None, None] * mean[..., :, None] * mean[..., None, :]
    second = sums[..., 1 + d + place] - cross - jnp.swapaxes(cross, -1, -2) + around
    return Statistics(log_likelihood, mass, first - mass[..., None] * mean, second)


def of_sums(log_likelihood: PerNode, sums: list[jax.Array], d: int) -> Statistics:
    """Statistics of mass, first moments and lower triangle of second ones, (nodes, k) each."""
    triangle = iter(sums[1 + d :])
    second = symmetric([[next(triangle) for _ in range(i + 1)] for i in range(d)])
    return Statistics(log_likelihood, sums[0], jnp.stack(sums[1 : 1 + d], axis=-1), second)


def log_density_slots(mixtures: Mixture, points: list[jax.Array]) -> jax.Array:
    """Log-density of points (slots, nodes, n), an array per feature, under each slot's mixture."""
    k, d = mixtures.n_components, mixtures.n_features
    of = lambda part, c: part[:, c, None]

    def one_slot(args):
        theta, x = args
        inverse, log_determinant = inverse_cholesky_entries(lower_triangle(theta.covariances))
        delta = [[x[i] - of(theta.means[..., i], c) for i in range(d)] for c in range(k)]
        log_joint = _log_joint(log_constants(theta, log_determinant), inverse, delta, of)
        top = reduce(jnp.maximum, log_joint)
        return top + fast_log(sum_of(jnp.exp(one - top) for one in log_joint))

    slots_first = jax.tree.map(lambda part: jnp.moveaxis(jnp.asarray(part), 1, 0), mixtures)
    return jax.lax.map(one_slot, (slots_first, points))


def _log_joint(constant, inverse, delta, of) -> list[jax.Array]:
    """Log of weight times density: an array for each component."""
    log_joint = []
    for c, from_mean in enumerate(delta):
        d = len(from_mean)
        white = [
            sum_of(of(inverse[i][j], c) * from_mean[j] for j in range(i + 1)) for i in range(d)
        ]
        log_joint.append(of(constant, c) - 0.5 * sum_of(w * w for w in white))
    return log_joint


def gradient_by_entries(theta: Mixture, s: Statistics) -> Mixture:
    """`moments.plain_gradient`, written out for few features."""
    d = theta.n_features
    inverse, _ = inverse_cholesky_entries(lower_triangle(theta.covariances))
    first = [s.first[..., i] for i in range(d)]
    second = [[s.second[..., i, j] for j in range(i + 1)] for i in range(d)]
    means, covariances = gradient_entries(inverse, s.mass, first, second)
    return Mixture(weight_gradient(theta, s), jnp.stack(means, axis=-1), symmetric(covariances))


def gradient_entries(
    factor: Triangle, mass: Array, first: list[Array], second: Triangle
) -> tuple[list[Array], Triangle]:
    """`moments.plain_gradient` for means and covariances (the lower triangle), over the batch.

    `factor` is the inverse Cholesky factor of the covariance, `first` and `second` are moments.
    """
    d = len(first)
    at = lambda i, j: second[max(i, j)][min(i, j)]
    white = [sum_of(factor[i][j] * first[j] for j in range(i + 1)) for i in range(d)]
    means = [-sum_of(factor[i][j] * white[i] for i in range(j, d)) for j in range(d)]
    half = [
        [sum_of(factor[i][a] * at(a, j) for a in range(i + 1)) for j in range(d)] for i in range(d)
    ]
    middle = [
        [sum_of(half[i][a] * factor[j][a] for a in range(j + 1)) for j in range(i + 1)]
        for i in range(d)
    ]
    for i in range(d):
        middle[i][i] = middle[i][i] - mass
    covariances = [
        [
            -0.5
            * sum_of(
                factor[p][i] * middle[max(p, q)][min(p, q)] * factor[q][j]
                for p in range(i, d)
                for q in range(j, d)
            )
            for j in range(i + 1)
        ]
        for i in range(d)
    ]
    return means, covariances
