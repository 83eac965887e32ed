"""k-means of many nodes at once: k-means++ and Lloyd's iteration over a batch, in JAX.

Lloyd's iteration follows scikit-learn's step by step (tolerance, empty clusters, end), so that both
agree from the same initial centres. Only the draws of k-means++ differ. Rows stand last in every
array, where the processor's vectors are: (batch, features, rows).
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int, UInt32

from fedmixtures._ties import clearly_less, first_greatest, first_least
from fedmixtures._types import Array, RowWeights
from fedmixtures.kernels import dispatch
from fedmixtures.mixture.linear import sum_of
from fedmixtures.mixture.sampling import random_words, uniform

MAX_STEPS, TOLERANCE = 300, 1e-4
"""scikit-learn's defaults; the tolerance counts in mean variances of a feature."""

FeaturesFirst = Float[Array, "batch d m"]
Centres = Float[Array, "batch k d"]
Labels = Int[Array, "batch m"]


class Clustering(eqx.Module):
    """What k-means found for each entry of a batch."""

    labels: Labels
    centres: Centres
    inertia: Float[Array, " batch"]
    """Weighted sum of squared distances to the nearest centre."""


def lloyd(x: FeaturesFirst, weights: RowWeights, centres: Centres) -> Clustering:
    """Lloyd's iteration from given centres; entries that are done stand still. Padding weighs 0."""
    tolerance = TOLERANCE * mean_variance(x, weights)

    def step(carry):
        centres, labels, done, unchanged, t = carry
        new_labels, distance = nearest(x, centres)
        moved = _means(x, weights, new_labels, distance, centres)
        same = ((new_labels == labels) | (weights == 0)).all(-1)
        small = jnp.square(moved - centres).sum((-1, -2)) <= tolerance
        centres = jnp.where(done[:, None, None], centres, moved)
        labels = jnp.where(done[:, None], labels, new_labels)
        return centres, labels, done | same | small, unchanged | (same & ~done), t + 1

    unfinished = lambda carry: (carry[-1] < MAX_STEPS) & ~carry[2].all()
    no = jnp.zeros(len(x), bool)
    start = (centres, jnp.full(weights.shape, -1, jnp.int32), no, no, jnp.int32(0))
    centres, labels, _, unchanged, _ = jax.lax.while_loop(unfinished, step, start)
    # Where centres moved last, labels are those of the centres before: look once more.
    final, distance = nearest(x, centres)
    labels = jnp.where(unchanged[:, None], labels, final)
    return Clustering(labels, centres, (weights * distance).sum(-1))


def plus_plus(
    x: FeaturesFirst, weights: RowWeights, keys: UInt32[Array, "batch 2"], k: int
) -> Centres:
    """k-means++ with a few candidates per centre, of which the best is kept."""
    n_trials = 2 + int(np.log(k))
    words = random_words(jnp.asarray(keys), k, n_trials)
    draws = uniform(jnp.stack(words, -1)).astype(x.dtype)
    first = _row_at(x, _drawn(weights, draws[:, 0, :1])[:, 0])
    closest = _squared_distance(x, first)

    def add(closest, level):
        candidates = _drawn(weights * closest, level)
        points = [_row_at(x, candidates[:, trial]) for trial in range(n_trials)]
        after = [jnp.minimum(closest, _squared_distance(x, point)) for point in points]
        cost = jnp.stack([(weights * part).sum(-1) for part in after], axis=-1)
        best = first_least(cost)
        chosen, left = points[0], after[0]
        for trial in range(1, n_trials):
            here = (best == trial)[:, None]
            chosen, left = (
                jnp.where(here, points[trial], chosen),
                jnp.where(here, after[trial], left),
            )
        return left, chosen

    _, others = jax.lax.scan(add, closest, jnp.moveaxis(draws[:, 1:], 1, 0))
    return jnp.concatenate([first[:, None], jnp.moveaxis(others, 0, 1)], axis=1)


def nearest(x: FeaturesFirst, centres: Centres) -> tuple[Labels, RowWeights]:
    """The nearest centre of every row, the first of equals, and its squared distance."""
    least = _squared_distance(x, centres[:, 0])
    labels = jnp.zeros(least.shape, jnp.int32)
    for c in range(1, centres.shape[1]):
        distance = _squared_distance(x, centres[:, c])
        labels = jnp.where(clearly_less(distance, least), jnp.int32(c), labels)
        least = jnp.minimum(distance, least)
    return labels, least


def _squared_distance(x: FeaturesFirst, point: Float[Array, "batch d"]) -> RowWeights:
    return sum_of(jnp.square(x[:, i] - point[:, i, None]) for i in range(x.shape[1]))


def _means(x, weights, labels, distance, centres) -> Centres:
    """New centres; an empty cluster takes the row that is farthest from its centre."""
    k, d = centres.shape[1:]
    ours = [labels == c for c in range(k)]
    terms = [jnp.where(here, weights, 0.0) for here in ours]
    terms += [jnp.where(here, weights * x[:, i], 0.0) for i in range(d) for here in ours]
    total = jnp.stack(dispatch.sum_together(terms, axis=1), axis=-1).reshape(len(x), 1 + d, k)

    def filled(_):
        member = _with_farthest(jnp.stack(terms[:k], axis=1), weights, distance)
        sums = [(member * x[:, None, i]).sum(-1) for i in range(d)]
        return jnp.stack([member.sum(-1), *sums], axis=1)

    total = jax.lax.cond((total[:, 0] == 0).any(), filled, lambda total: total, total)
    mass, sums = total[:, 0, :, None], jnp.swapaxes(total[:, 1:], 1, 2)
    return jnp.where(mass > 0, sums / jnp.where(mass > 0, mass, 1.0), centres)


def _with_farthest(
    member: Float[Array, "batch k m"], weights: RowWeights, distance: RowWeights
) -> Float[Array, "batch k m"]:
    """Empty clusters in turn take the farthest row that is left away from where it was."""
    rows = jnp.arange(weights.shape[1])[None]
    empty: Bool[Array, "batch k"] = member.sum(-1) == 0

    def fill(c, carry):
        member, far = carry
        here = jax.lax.dynamic_index_in_dim(empty, c, 1)
        taken = here & (rows == first_greatest(far)[:, None])
        into = (jnp.arange(member.shape[1]) == c)[None, :, None] & taken[:, None]
        member = jnp.where(into, weights[:, None], jnp.where(taken[:, None], 0.0, member))
        return member, jnp.where(taken, -1.0, far)

    start = (member, jnp.where(weights > 0, distance, -1.0))
    return jax.lax.fori_loop(0, member.shape[1], fill, start)[0]


def mean_variance(x: FeaturesFirst, weights: RowWeights) -> Float[Array, " batch"]:
    """Variance of a feature over the rows there are (counted once each), averaged over features."""
    there = (weights > 0).astype(x.dtype)[:, None]
    n = there.sum(-1, keepdims=True)
    mean = (there * x).sum(-1, keepdims=True) / n
    return ((there * jnp.square(x - mean)).sum(-1) / n[:, 0]).mean(-1)


def _drawn(chances: RowWeights, level: Float[Array, "batch t"]) -> Int[Array, "batch t"]:
    """The first row at which the cumulative sum passes each level, a fraction of the total."""
    cumulative = jnp.cumsum(chances, axis=-1)
    goal = level * cumulative[:, -1:]
    past = [(cumulative <= goal[:, t, None]).sum(-1) for t in range(level.shape[1])]
    # Rounding must not lead past the last row that has a chance at all.
    last = chances.shape[1] - 1 - jnp.argmax(chances[:, ::-1] > 0, axis=-1)
    return jnp.minimum(jnp.stack(past, axis=-1), last[:, None])


def _row_at(x: FeaturesFirst, index: Int[Array, " batch"]) -> Float[Array, "batch d"]:
    return jnp.take_along_axis(x, index[:, None, None], axis=2)[:, :, 0]
