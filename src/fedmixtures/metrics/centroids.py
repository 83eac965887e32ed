"""Distance between estimated and true means, whatever the order of components."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


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
