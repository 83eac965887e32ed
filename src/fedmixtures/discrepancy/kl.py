"""Eq. (4): Monte-Carlo Kullback-Leibler divergence from the neighbour to the own mixture."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from fedmixtures import _checks
from fedmixtures._types import PerNode, PerSlot, SlotKeys
from fedmixtures.discrepancy.base import AbstractDiscrepancy
from fedmixtures.mixture.density import log_density
from fedmixtures.mixture.linear import UNROLLED, on_gpu
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.sampling import sample, sample_slots
from fedmixtures.mixture.statistics import (
    Statistics,
    log_density_slots,
    nll_and_gradient,
    nll_gradient,
    statistics,
)
from fedmixtures.mixture.trial import passes

CHUNK_SLOTS = 4
"""Slots whose points are taken together where there are many."""


class KL(AbstractDiscrepancy):
    r"""$\widehat{KL}(p' \| p)$ on `n_samples` points drawn from the neighbour's $p'$, eq. (4).

    Every round draws fresh points for every (node, neighbour). The node so fits its own rows
    together with rows its neighbours imagine. Needs no matching and no equal numbers of components.
    """

    symmetric: ClassVar[bool] = False
    random: ClassVar[bool] = True

    n_samples: int = 50

    def __check_init__(self):
        _checks.whole("n_samples", self.n_samples)

    def freeze(self, own, neighbour, key):
        """Points drawn from the neighbour and their log-density there."""
        del own
        points = sample(neighbour, key, self.n_samples)
        return points, log_density(neighbour, points)

    def __call__(self, own, frozen):
        """Eq. (4) on the frozen points."""
        points, log_neighbour = frozen
        return (log_neighbour - log_density(own, points)).mean()

    def freeze_slots(self, own: Mixture, neighbours: Mixture, keys: SlotKeys) -> Any:
        """`freeze` for a whole block, written out where features are few."""
        if neighbours.n_features > UNROLLED:
            return super().freeze_slots(own, neighbours, keys)
        if on_gpu():
            from fedmixtures.discrepancy.kl_gpu import Undrawn, trial

            if passes(trial, own.n_components, own.n_features, own.means.dtype):
                return Undrawn(neighbours, keys)  # drawn when `weigh` knows which slots count
        return self.drawn(neighbours, keys)

    def drawn(self, neighbours: Mixture, keys: SlotKeys) -> tuple[jax.Array, jax.Array]:
        """Points (nodes, slots, n, d) drawn from every neighbour, and their log-density there."""
        points = sample_slots(neighbours, keys, self.n_samples)
        nodes_first = lambda part: jnp.moveaxis(part, 0, 1)
        log_neighbour = nodes_first(log_density_slots(neighbours, points))
        return nodes_first(jnp.stack(points, axis=-1)), log_neighbour

    def weigh(self, frozen: Any, weight: PerSlot) -> Any:
        """On a GPU the points drawn once for all local steps, where they are to be read."""
        if isinstance(frozen, tuple):
            return frozen
        from fedmixtures.discrepancy.kl_gpu import Undrawn, drawn_gpu

        return drawn_gpu(frozen, weight, self.n_samples) if isinstance(frozen, Undrawn) else frozen

    def pull(self, own: Mixture, frozen, weight: PerSlot) -> tuple[PerNode, Mixture]:
        """Closed form: the local loss on the drawn rows, each slot's rows weighing its weight."""
        if not isinstance(frozen, tuple):
            from fedmixtures.mixture.statistics_gpu import nll_gpu

            drawn = self.weigh(frozen, weight)
            nll, gradient = nll_gpu(own, drawn.rows)
            return nll + drawn.constant, gradient
        points, log_neighbour = frozen
        nodes, slots, n, d = points.shape
        row_weights = jnp.broadcast_to(weight[:, :, None] / n, (nodes, slots, n))
        constant = (row_weights * log_neighbour).sum((-1, -2))
        rows, row_weights = points.reshape(nodes, -1, d), row_weights.reshape(nodes, -1)
        together = CHUNK_SLOTS if slots > 2 * CHUNK_SLOTS and not on_gpu() else slots
        if together == slots:
            nll, gradient = nll_and_gradient(own, rows, row_weights)
        else:
            in_use = jnp.where(weight != 0, jnp.arange(1, slots + 1)[None], 0).max()
            n_chunks = (in_use + together - 1) // together
            nll, gradient = nll_gradient(
                own, _chunked_statistics(own, rows, row_weights, together * n, n_chunks)
            )
        return nll + constant, gradient


def _chunked_statistics(own: Mixture, rows, row_weights, size: int, n_chunks) -> Statistics:
    """Statistics of the first `n_chunks` chunks of rows: what lies behind them weighs nothing."""
    nodes, m, d = rows.shape
    most = -(-m // size)
    padding = most * size - m
    rows = jnp.pad(rows, ((0, 0), (0, padding), (0, 0))).reshape(nodes, most, size, d)
    row_weights = jnp.pad(row_weights, ((0, 0), (0, padding))).reshape(nodes, most, size)
    # Chunks lead and features stand apart, so that each is one piece of memory.
    features = [jnp.moveaxis(rows[..., i], 1, 0) for i in range(d)]
    row_weights = jnp.moveaxis(row_weights, 1, 0)

    def chunk(i) -> Statistics:
        return statistics(own, jnp.stack([x[i] for x in features], axis=-1), row_weights[i])

    add = lambda i, total: jax.tree.map(jnp.add, total, chunk(i))
    blank = jax.tree.map(lambda part: jnp.zeros(part.shape, part.dtype), jax.eval_shape(chunk, 0))
    return jax.lax.fori_loop(0, n_chunks, add, blank)
