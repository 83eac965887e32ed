"""Expectation maximisation for the nodes of a block, all at once."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Int

from fedmixtures._types import Array, PerNode, Rows, RowWeights
from fedmixtures.kernels.dispatch import statistics
from fedmixtures.mixture.density import IncompleteRows
from fedmixtures.mixture.m_step import EMPTY, ShapePrior, m_step
from fedmixtures.mixture.mixture import Mixture


class BlockFit(eqx.Module):
    """Mixtures after EM, with what each node's run looked like."""

    theta: Mixture
    log_likelihood: PerNode
    """Weighted sum over rows, of `theta`."""
    n_steps: Int[Array, " nodes"]


def expectation_maximisation(
    theta: Mixture,
    rows: Rows | IncompleteRows,
    counts: RowWeights,
    n_steps: int = 100,
    tolerance: float | Array = 1e-3,
    reg_covar: float | Array = 1e-6,
    prior: ShapePrior | None = None,
    covariance_type: str = "full",
) -> BlockFit:
    """EM at every node until its mean log-likelihood changes by less than `tolerance`.

    Nodes that are done stand still while others go on, so that a node's result does not depend on
    its block. `counts` are row weights that are not normalised; padding has count zero.
    """
    total = jnp.maximum(counts.sum(-1), EMPTY)

    def improve(carry):
        theta, before, done, taken, t = carry
        s = statistics(theta, rows, counts)
        new = m_step(theta, s, reg_covar, prior, covariance_type)
        still = lambda old, fresh: jnp.where(done.reshape(-1, *(1,) * (fresh.ndim - 1)), old, fresh)
        mean = s.log_likelihood / total
        taken = jnp.where(done, taken, t + 1)
        theta = jax.tree.map(still, theta, new)
        done = done | (jnp.abs(mean - before) < tolerance)
        return theta, mean, done, taken, t + 1

    def unfinished(carry):
        *_, done, _, t = carry
        return (t < n_steps) & ~done.all()

    nodes = len(theta.weights)
    start = (
        theta,
        jnp.full(nodes, -jnp.inf, theta.means.dtype),
        jnp.zeros(nodes, bool),
        jnp.zeros(nodes, jnp.int32),
        jnp.int32(0),
    )
    theta, _, _, taken, _ = jax.lax.while_loop(unfinished, improve, start)
    return BlockFit(theta, statistics(theta, rows, counts).log_likelihood, taken)
