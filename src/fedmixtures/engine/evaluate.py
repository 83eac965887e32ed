"""Evaluate every row under its own node's mixture, over blocks of equal shape."""

from __future__ import annotations

from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np

from fedmixtures._types import Array
from fedmixtures.data.node_data import NodeData, by_pattern
from fedmixtures.engine.layout.blocks import Layout, build_layout, without_edges
from fedmixtures.engine.run.runner import gather, over_blocks, scatter
from fedmixtures.kernels import dispatch
from fedmixtures.kernels.arrays import Segments
from fedmixtures.kernels.compiling import compilation_cache, jit_in_order
from fedmixtures.kernels.dispatch import log_joints
from fedmixtures.mixture.arithmetic import double
from fedmixtures.mixture.density import IncompleteRows
from fedmixtures.mixture.mixture import Mixture

ROWS_AT_ONCE = 1 << 20
"""Rows on a GPU, each of which has a copy of its mixture."""


class Evaluator:
    """Rows laid out once, to be evaluated under any number of mixtures: held-out rows, say."""

    def __init__(self, data: NodeData):
        self.data = data

    @cached_property
    def _laid_out(self) -> NodeData:
        return by_pattern(self.data)

    @cached_property
    def _layout(self) -> Layout:
        with double():
            return build_layout(self._laid_out, without_edges(self.data.labels))

    def log_joint(self, theta: Mixture) -> np.ndarray:
        """Log of weight times component density, (rows, k), in the order the rows came in.

        `theta` is a stack with one mixture per node of the rows. Missing cells play no part.
        """
        data, layout = self._laid_out, self._layout
        with double(), compilation_cache():
            thetas = scatter(theta, layout, "float64")
            blocks = [
                np.asarray(_evaluate(mixtures, group.data.rows))
                for mixtures, group in zip(thetas, layout.groups, strict=True)
            ]
        result = np.empty((len(self.data.rows), theta.n_components))
        within = np.arange(len(data.rows)) - data.offsets[data.node_index]
        place, real = layout.position[data.node_index], data.source_index >= 0
        first = 0
        for values in blocks:
            flat = values.reshape(-1, *values.shape[2:])
            here = np.flatnonzero((place >= first) & (place < first + len(flat)) & real)
            result[data.source_index[here]] = flat[place[here] - first, within[here]]
            first += len(flat)
        return result

    def node_losses(self, theta: Mixture) -> np.ndarray:
        """Eq. (1) of every node: minus the weighted mean log-density of its rows."""
        data = self.data
        with double(), compilation_cache():
            if dispatch.keeps_on_device() and not data.has_gaps:
                held = data.rows, data.row_weights, Segments(data.offsets[:-1], len(data.rows))
                return np.asarray(_losses_by_row(theta, *held))
            layout = self._layout
            thetas = scatter(theta, layout, "float64")
            held = [(group.data.rows, group.data.row_weights) for group in layout.groups]
            losses = [_losses(*two) for two in zip(thetas, held, strict=True)]
            return gather(tuple(losses), layout)


def log_joint_rows(theta: Mixture, data: NodeData) -> np.ndarray:
    """Log joint density of each row and component, (rows, k), without keeping an `Evaluator`."""
    return Evaluator(data).log_joint(theta)


@jit_in_order
def _losses(theta: Mixture, held: tuple[Array | IncompleteRows, Array]) -> jax.Array:
    def loss(theta, rows, weights):
        density = jax.nn.logsumexp(log_joints(theta, rows), axis=-1)
        return -jnp.where(weights > 0, weights * density, 0.0).sum(-1)

    return over_blocks(loss, theta, *held)


@jax.jit
def _losses_by_row(theta: Mixture, rows: Array, weights: Array, of_node: Segments) -> jax.Array:
    """Mean loss of every node, (nodes,), row by row: no table of blocks is filled on the host."""

    def one(given):
        row, node = given
        at = jax.tree.map(lambda part: part[None, node], theta)
        return jax.nn.logsumexp(log_joints(at, row[None, None]))

    density = jax.lax.map(one, (rows, of_node.number()), batch_size=ROWS_AT_ONCE)
    weighted = jnp.where(weights > 0, weights * density, 0.0)
    return -of_node.sums(weighted) / of_node.sums(weights)


@jit_in_order
def _evaluate(theta: Mixture, rows: Array | IncompleteRows) -> jax.Array:
    return over_blocks(log_joints, theta, rows)
