"""Phase 1, nothing is sent: a fit on the own rows, and how well such fits explain unseen rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Bool, Float, Int

from fedmixtures._types import Array, NodeKeys, Rows, RowWeights
from fedmixtures.methods.trust_then_pool.scores import log_densities
from fedmixtures.methods.trust_then_pool.settings import FIT_STEPS, FitSettings
from fedmixtures.methods.trust_then_pool.starts import best_of, fresh_starts, scored_fit
from fedmixtures.mixture.mixture import Mixture


def affordable(present: Bool[Array, "nodes k"], counts: RowWeights) -> Bool[Array, "nodes k"]:
    """At most one component for two rows: the first ones stay."""
    limit = jnp.maximum((counts > 0).sum(-1) // 2, 1)
    return present & (jnp.cumsum(present, axis=-1) <= limit[:, None])


def fold_of_rows(keys: NodeKeys, counts: RowWeights, n_folds: int) -> Int[Array, "nodes m"]:
    """Deal every node's rows into folds of nearly equal size; padding changes nothing."""
    m = counts.shape[1]

    def draw(key):
        return jax.vmap(lambda row: jr.uniform(jr.fold_in(key, row)))(jnp.arange(m))

    shuffled = jnp.where(counts > 0, jax.vmap(draw)(keys), 2.0)
    return (jnp.argsort(jnp.argsort(shuffled, axis=-1), axis=-1) % n_folds).astype(jnp.int32)


def local_fits(
    keys: NodeKeys,
    given: Mixture,
    rows: Rows,
    counts: RowWeights,
    fold: Int[Array, "nodes m"],
    n_folds: int,
    settings: FitSettings,
) -> tuple[Mixture, Mixture]:
    """The fit of all rows, and for every fold (leading axis) that of the rows of the others.

    Each is the best of some k-means++ starts. For all rows the given start takes part too; the fits
    of folds must not know it, since it has seen the rows they leave out.
    """
    how = settings.ridge, settings.prior
    others = lambda number: jnp.where(fold != number, counts, 0.0)  # no row is in the last fold

    def fresh(number):
        present = affordable(given.weights > 0, others(number))
        of_fold = jax.vmap(lambda key: jr.fold_in(key, number))(keys)
        return fresh_starts(of_fold, settings.n_starts, present, rows, others(number), *how)

    flat = lambda part: part.reshape(-1, *part.shape[2:])
    starts = jax.tree.map(flat, jax.lax.map(fresh, jnp.arange(n_folds + 1)))
    weights = jnp.where(affordable(given.weights > 0, counts), given.weights, 0.0)
    kept = Mixture(weights / weights.sum(-1, keepdims=True), given.means, given.covariances)
    starts = jax.tree.map(lambda a, b: jnp.concatenate([a, b[None]]), starts, kept)
    numbers = jnp.repeat(jnp.arange(n_folds + 1), settings.n_starts)
    numbers = jnp.concatenate([numbers, jnp.array([n_folds])])
    one = lambda task: scored_fit(task[1], rows, others(task[0]), FIT_STEPS, *how)
    fits = jax.lax.map(one, (numbers, starts))
    of_folds = n_folds * settings.n_starts
    by_fold = lambda part: part[:of_folds].reshape(n_folds, -1, *part.shape[1:])
    all_rows = jax.tree.map(lambda part: part[of_folds:], fits)
    return best_of(*all_rows), jax.vmap(best_of)(*jax.tree.map(by_fold, fits))


def out_of_fold(
    models: Mixture, rows: Rows, fold: Int[Array, "nodes m"]
) -> Float[Array, "nodes m"]:
    r"""$c(x) = \ln p(x; \theta^{(-f(x))})$: each row under the fit that has not seen its fold."""

    def one(total, numbered):
        number, theta = numbered
        return jnp.where(fold == number, log_densities(theta, rows), total), None

    numbers = jnp.arange(len(models.weights))
    return jax.lax.scan(one, jnp.zeros_like(rows[:, :, 0]), (numbers, models))[0]
