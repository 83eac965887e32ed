r"""Phase 3: fit the own rows together with the summaries of trusted neighbours.

Node i maximises $\sum_x \ln p(x; \theta) + \sum_{j} m_j \hat E_{\theta_j} \ln p(\cdot; \theta)$,
less the prior's penalty, with sigma points for the expectation: the GTV-KL problem of node i with
frozen neighbours, $\alpha_{ij} = m_j/m_i$ and quadrature in place of sampling.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Bool, Float, Int

from fedmixtures._types import Array, NodeKeys, PerSlot, Rows, RowWeights
from fedmixtures.kernels.block_em import expectation_maximisation
from fedmixtures.methods.trust_then_pool.local import out_of_fold
from fedmixtures.methods.trust_then_pool.settings import FEW_STEPS, FIT_STEPS, FitSettings
from fedmixtures.methods.trust_then_pool.starts import best_fit, fresh_starts
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import sigma_points

Pool = tuple[Float[Array, "nodes p d"], Float[Array, "nodes p"]]
"""Points and their weights, the node's own rows first."""


def pool_of(
    rows: Rows, counts: RowWeights, summaries: Mixture, mass: PerSlot, trusted: Bool[Array, "n s"]
) -> Pool:
    """Own rows, and sigma points of every trusted neighbour that weigh as its rows do."""
    points, weights = sigma_points(summaries)
    nodes, d = len(rows), rows.shape[-1]
    weights = weights * jnp.where(trusted, mass, 0.0)[:, :, None, None]
    return (
        jnp.concatenate([rows, points.reshape(nodes, -1, d)], axis=1),
        jnp.concatenate([counts, weights.reshape(nodes, -1)], axis=1),
    )


def joint_refit(
    keys: NodeKeys,
    candidates: list[Mixture],
    present: Bool[Array, "nodes k"],
    pool: Pool,
    settings: FitSettings,
) -> Mixture:
    """The best of fresh starts on the pool and the given mixtures."""
    how = settings.ridge, settings.prior
    keys = jax.vmap(lambda key: jr.fold_in(key, 1))(keys)
    fresh = fresh_starts(keys, settings.n_starts, present, *pool, *how)
    starts = jax.tree.map(
        lambda a, *more: jnp.concatenate([a, jnp.stack(more)]), fresh, *candidates
    )
    return best_fit(starts, *pool, FIT_STEPS, *how)


def held_out_in_pool(
    theta: Mixture, pool: Pool, fold: Int[Array, "nodes m"], n_folds: int, settings: FitSettings
) -> Float[Array, "nodes m"]:
    """Log-density of each own row under a refit of the pool without the row's fold.

    What a mixture from elsewhere must match: it is the best the node could do by itself with its
    trusted neighbours' summaries.
    """
    points, weights = pool
    m = fold.shape[1]

    def one(number):
        own = jnp.where(fold != number, weights[:, :m], 0.0)
        counts = jnp.concatenate([own, weights[:, m:]], axis=1)
        how = FEW_STEPS, 1e-7, settings.ridge, settings.prior
        return expectation_maximisation(theta, points, counts, *how).theta

    return out_of_fold(jax.lax.map(one, jnp.arange(n_folds)), points[:, :m], fold)
