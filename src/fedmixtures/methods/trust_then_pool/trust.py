r"""Phase 2: whom to listen to, judged on the own rows alone.

With $c(x)$ the out-of-fold log-density of the own fit and $\theta_j$ what neighbour j sent, node i
listens if its rows do not speak against one of

- *substitute*: $D(x) = \ln p(x; \theta_j) - c(x)$, the neighbour's mixture explains my rows;
- *harmless*: $D(x) = \ln p(x; \theta_i^{(-f(x)) + j}) - c(x)$, a refit of my other folds together
  with the neighbour's summary does.

Not against means $\bar D + z\, se(D) > 0$. An edge is trusted if both ends listen.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from fedmixtures._types import Array, PerNode, PerSlot, Rows, RowWeights
from fedmixtures.kernels.block_em import expectation_maximisation
from fedmixtures.methods.trust_then_pool.local import out_of_fold
from fedmixtures.methods.trust_then_pool.scores import log_densities, mean_and_error
from fedmixtures.methods.trust_then_pool.settings import FEW_STEPS, MOST_MASS, FitSettings
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import sigma_points


class OwnRows(eqx.Module):
    """What a node judges others by."""

    rows: Rows
    counts: RowWeights
    fold: Int[Array, "nodes m"]
    fold_models: Mixture
    """Fits that have not seen a fold, folds in front."""
    alone: Float[Array, "nodes m"]
    """Their out-of-fold log-densities c(x)."""


def substitute(theta: Mixture, own: OwnRows) -> tuple[PerNode, PerNode]:
    """Mean and standard error of the gain if this mixture took the place of the own."""
    return mean_and_error(log_densities(theta, own.rows) - own.alone, own.counts)


def harmless(
    theta: Mixture, rows_of_neighbour: PerNode, own: OwnRows, settings: FitSettings
) -> tuple[PerNode, PerNode]:
    """Mean and standard error of the gain from fitting own rows and the summary together."""
    points, weights = sigma_points(theta)
    nodes, d = len(points), points.shape[-1]
    mass = jnp.minimum(rows_of_neighbour, MOST_MASS * own.counts.sum(-1))
    weights = weights.reshape(nodes, -1) * mass[:, None]
    pool = jnp.concatenate([own.rows, points.reshape(nodes, -1, d)], axis=1)

    def one(numbered):
        number, start = numbered
        others = jnp.where(own.fold != number, own.counts, 0.0)
        counts = jnp.concatenate([others, weights], axis=1)
        how = FEW_STEPS, 1e-7, settings.ridge, settings.prior
        return expectation_maximisation(start, pool, counts, *how).theta

    numbers = jnp.arange(len(own.fold_models.weights))
    models = jax.lax.map(one, (numbers, own.fold_models))
    return mean_and_error(out_of_fold(models, own.rows, own.fold) - own.alone, own.counts)


def gate(
    neighbours: Mixture,
    rows_of_neighbours: PerSlot,
    present: Bool[Array, "nodes s"],
    own: OwnRows,
    caution: float | Array,
    settings: FitSettings,
) -> Float[Array, "nodes s 4"]:
    """Gain and error of both tests for every slot; zero where a test is not held.

    The harmless test is the dear one: a node holds it for its first neighbour that is no
    substitute, its second, and so on to the last that any node of the block has.
    """
    in_front = lambda part: jnp.moveaxis(part, 1, 0)
    slots = jax.tree.map(in_front, neighbours)
    found = jax.lax.map(lambda theta: jnp.stack(substitute(theta, own), axis=-1), slots)
    first = jnp.moveaxis(found, 0, 1)
    left = present & ~(first[..., 0] + caution * first[..., 1] > 0)
    order, n_left = jnp.argsort(~left, axis=1, stable=True), left.sum(1)
    nodes = jnp.arange(len(left))

    def hold(turn, second):
        slot = order[:, turn]
        theta, rows = neighbours.at((nodes, slot)), rows_of_neighbours[nodes, slot]
        test = jnp.stack(harmless(theta, rows, own, settings), axis=-1)
        held = (turn < n_left)[:, None]
        return second.at[nodes, slot].set(jnp.where(held, test, second[nodes, slot]))

    second = jax.lax.fori_loop(0, n_left.max(), hold, jnp.zeros_like(first))
    return jnp.concatenate([first, second], axis=-1)
