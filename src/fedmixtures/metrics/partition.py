"""How well components recover the true groups, and how many components are in use."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
from numpy.typing import ArrayLike

from fedmixtures.metrics.rows import per_node, unweighted_mean


def node_mutual_information(
    true: ArrayLike, predicted: ArrayLike, nodes: ArrayLike
) -> dict[Hashable, float]:
    """Normalized mutual information of every node's rows, by node label.

    1 where the two partitions agree up to names, 0 where one says nothing of the other. A node
    whose rows are one group in both counts as 1, in one of the two alone as 0.
    """
    from sklearn.metrics import normalized_mutual_info_score

    return per_node(normalized_mutual_info_score, nodes, true=true, predicted=predicted)


def normalized_mutual_information(
    true: ArrayLike, predicted: ArrayLike, nodes: ArrayLike | None = None
) -> float:
    """Mean over nodes of each node's normalized mutual information; without `nodes`, one node.

    Taken node by node, components need no common order across nodes.
    """
    if nodes is None:
        nodes = np.zeros(len(np.asarray(true)), dtype=int)
    return unweighted_mean(node_mutual_information(true, predicted, nodes))


def effective_components(weights: ArrayLike) -> np.ndarray | np.floating:
    r"""Effective number of components, $\exp(-\sum_c \pi_c \ln \pi_c)$, over the last axis.

    k for equal weights, 1 when one component holds everything; empty components count nothing.
    NaN where a weight is NaN.
    """
    weights = np.asarray(weights, dtype=np.float64)
    if (weights < 0).any() or (np.abs(weights.sum(-1) - 1) > 1e-5).any():
        raise ValueError(
            "`weights` must be non-negative and sum to 1 over the last axis; the smallest is "
            f"{weights.min():g} and the sums run from {weights.sum(-1).min():g} to "
            f"{weights.sum(-1).max():g}. Divide them by their sums."
        )
    logarithms = np.log(weights, out=np.zeros_like(weights), where=weights > 0)
    return np.exp(-(weights * logarithms).sum(-1))
