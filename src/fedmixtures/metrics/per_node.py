"""Scores of every node, and their mean over nodes: likelihood, partition, centroids."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import numpy as np
from numpy.typing import ArrayLike

from fedmixtures.data.partition import rows_by_node


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


def node_centroid_errors(means: ArrayLike, true_means: ArrayLike) -> np.ndarray:
    """Centroid error of every node: means (nodes, k, d) against the truth (nodes, k*, d).

    A truth of shape (k*, d) is that of all nodes.
    """
    means = np.asarray(means, dtype=np.float64)
    true_means = np.asarray(true_means, dtype=np.float64)
    _check_shapes(means, true_means)
    true_means = np.broadcast_to(true_means, (len(means), *true_means.shape[-2:]))
    return np.array([_matched_distance(*pair) for pair in zip(means, true_means, strict=True)])


def centroid_error(means: ArrayLike, true_means: ArrayLike) -> float:
    """Mean Euclidean distance between estimated and true means after the best matching.

    One node (k, d), or all (nodes, k, d) with the mean over nodes: the paper's err. The matching
    has the least total distance. Where the number of components differs from the truth, as many
    as the smaller of the two are matched and the rest not counted, so that extra components can
    only lower the error; report the effective number of components beside it. NaN where a mean
    is not finite.
    """
    means = np.asarray(means, dtype=np.float64)
    return float(node_centroid_errors(means[None] if means.ndim == 2 else means, true_means).mean())


def _matched_distance(means: np.ndarray, true_means: np.ndarray) -> float:
    from scipy.optimize import linear_sum_assignment

    distance = np.linalg.norm(means[:, None] - true_means[None], axis=-1)
    if not np.isfinite(distance).all():
        return np.nan
    return float(distance[linear_sum_assignment(distance)].mean())


def _check_shapes(means: np.ndarray, true_means: np.ndarray) -> None:
    fits = (
        means.ndim == 3
        and true_means.ndim in (2, 3)
        and means.shape[-1] == true_means.shape[-1]
        and (true_means.ndim == 2 or len(true_means) == len(means))
    )
    if not fits:
        raise ValueError(
            f"`means` has the shape {means.shape} and `true_means` {true_means.shape}. Give "
            "(nodes, k, d) and (nodes, k*, d), the same features and nodes in both."
        )


def per_node(
    measure: Callable[..., float], nodes: ArrayLike, **columns: ArrayLike
) -> dict[Hashable, float]:
    """`measure` of every node's part of the columns, by node label, labels sorted."""
    nodes = np.asarray(nodes)
    arrays = {name: np.asarray(column) for name, column in columns.items()}
    for name, array in arrays.items():
        if array.ndim != 1 or nodes.ndim != 1 or len(array) != len(nodes):
            raise ValueError(
                f"`nodes` has the shape {nodes.shape} but `{name}` has {array.shape}. "
                "Give one entry of each per row."
            )
    return {
        label: float(measure(*(array[rows] for array in arrays.values())))
        for label, rows in rows_by_node(nodes).items()
    }


def unweighted_mean(values: dict[Hashable, float]) -> float:
    """Mean over nodes in which a node of ten rows counts as much as one of a thousand."""
    if not values:
        raise ValueError("`nodes` is empty. Give at least one row.")
    return float(np.mean(list(values.values())))
