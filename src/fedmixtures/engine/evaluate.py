"""Evaluate every row under its own node's mixture, over blocks of equal shape."""

from __future__ import annotations

import jax
import numpy as np

from fedmixtures._types import Array
from fedmixtures.data.node_data import NodeData
from fedmixtures.engine.layout.blocks import build_layout
from fedmixtures.engine.run.cache import compilation_cache
from fedmixtures.engine.run.rounds import over_blocks, scatter
from fedmixtures.graph.network import Network
from fedmixtures.kernels.compiling import jit_in_order
from fedmixtures.mixture.density import log_joint
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.precision import double


def log_joint_rows(theta: Mixture, data: NodeData) -> np.ndarray:
    """Log of weight times component density, (rows, k), in the order the rows came in.

    `theta` is a stack with one mixture per node of `data`.
    """
    nobody = np.zeros(0, dtype=int)
    alone = Network(data.labels, nobody, nobody, np.zeros(0))
    with double(), compilation_cache():
        layout = build_layout(data, alone)
        thetas = scatter(theta, layout, "float64")
        blocks = [
            np.asarray(_evaluate(mixtures, group.data.rows))
            for mixtures, group in zip(thetas, layout.groups, strict=True)
        ]
    result = np.empty((len(data.rows), theta.n_components))
    within = np.arange(len(data.rows)) - data.offsets[data.node_index]
    place = layout.position[data.node_index]
    first = 0
    for values in blocks:
        flat = values.reshape(-1, *values.shape[2:])
        here = np.flatnonzero((place >= first) & (place < first + len(flat)))
        result[data.source_index[here]] = flat[place[here] - first, within[here]]
        first += len(flat)
    return result


@jit_in_order
def _evaluate(theta: Mixture, rows: Array) -> jax.Array:
    return over_blocks(jax.vmap(log_joint), theta, rows)
