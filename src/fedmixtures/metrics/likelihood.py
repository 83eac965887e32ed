"""Log-likelihood per node, and over nodes as the paper reports it."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
from numpy.typing import ArrayLike

from fedmixtures.metrics.rows import per_node, unweighted_mean


def node_means(log_density: ArrayLike, nodes: ArrayLike) -> dict[Hashable, float]:
    """Mean log-density of every node's rows under its own model, by node label.

    `log_density` holds ln p of each row under the model of the node that holds it.
    """
    return per_node(np.mean, nodes, log_density=log_density)


def mean_over_nodes(log_density: ArrayLike, nodes: ArrayLike) -> float:
    """Mean over nodes of each node's mean log-density: the paper's LL.

    Nodes count alike whatever their number of rows.
    """
    return unweighted_mean(node_means(log_density, nodes))
