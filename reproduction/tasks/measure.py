"""How good fitted mixtures are: the paper's metrics, seed by seed."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedmixtures._ties import first_greatest
from fedmixtures.data.node_data import NodeData, rows_by_node
from fedmixtures.data.scenarios import Scenario
from fedmixtures.engine.evaluate import log_joint_rows
from fedmixtures.mixture.mixture import Mixture
from reproduction.tasks.union import joined_rows

FINAL = ("ll", "ll_train", "err", "nmi", "k_eff")


@dataclass(frozen=True)
class Rows:
    """Rows of several scenarios with the component each came from, node after node."""

    data: NodeData
    components: np.ndarray

    @classmethod
    def of(cls, scenarios: Sequence[Scenario], part: str = "") -> Rows:
        """Training rows, or those of another `part` such as ``_validation``."""
        found, components = [], []
        for scenario in scenarios:
            nodes = getattr(scenario, f"nodes{part}")
            data = NodeData.from_rows(getattr(scenario, f"X{part}"), nodes)
            found.append(data)
            components.append(getattr(scenario, f"components{part}")[data.source_index])
        names = [str(i) for i in range(len(found))]
        return cls(joined_rows(found, names), np.concatenate(components))

    def per_node(self, theta: Mixture) -> tuple[np.ndarray, np.ndarray]:
        """Mean log-density and normalized mutual information of every node."""
        joint = log_joint_rows(theta, self.data)
        density = np.logaddexp.reduce(joint, axis=1)
        ll = np.add.reduceat(density, self.data.offsets[:-1]) / self.data.counts
        nodes = self.data.node_index
        nmi = node_mutual_information(self.components, first_greatest(joint, scale=1.0), nodes)
        return ll, np.array([nmi[node] for node in range(self.data.n_nodes)])

    def log_likelihood(self, theta: Mixture) -> np.ndarray:
        """Mean log-density of every node."""
        density = np.logaddexp.reduce(log_joint_rows(theta, self.data), axis=1)
        return np.add.reduceat(density, self.data.offsets[:-1]) / self.data.counts


def final_numbers(
    theta: Mixture, scenarios: Sequence[Scenario], has_likelihood: bool = True
) -> list[dict[str, float | None]]:
    """All metrics of each scenario; `theta` stacks the mixtures of all of them.

    Nodes count alike: every metric is the plain mean over nodes of each node's own.
    """
    ll, nmi = Rows.of(scenarios, "_validation").per_node(theta)
    values = {
        "ll": ll if has_likelihood else None,
        "ll_train": Rows.of(scenarios).log_likelihood(theta) if has_likelihood else None,
        "err": centroid_errors(theta.means, scenarios),
        "nmi": nmi,
        "k_eff": np.asarray(effective_components(theta.weights)) if has_likelihood else None,
    }
    return [
        {name: None if v is None else float(v[span].mean()) for name, v in values.items()}
        for span in spans(scenarios)
    ]


def round_numbers(theta: Mixture, scenarios: Sequence[Scenario]) -> list[dict[str, float]]:
    """What is followed over rounds: centroid error and effective number of components."""
    values = {
        "err": centroid_errors(theta.means, scenarios),
        "k_eff": np.asarray(effective_components(theta.weights)),
    }
    return [
        {name: float(v[span].mean()) for name, v in values.items() if v is not None}
        for span in spans(scenarios)
    ]


def centroid_errors(means: ArrayLike, scenarios: Sequence[Scenario]) -> np.ndarray | None:
    """Centroid error of every node against its own block's truth; None where there is none."""
    truths = [scenario.means for scenario in scenarios if scenario.means is not None]
    return node_centroid_errors(means, np.concatenate(truths)) if truths else None


def spans(scenarios: Sequence[Scenario]) -> list[slice]:
    """The nodes of each scenario in a stack of all."""
    ends = np.cumsum([scenario.n_nodes for scenario in scenarios]).tolist()
    return [slice(end - s.n_nodes, end) for end, s in zip(ends, scenarios, strict=True)]


def node_mutual_information(
    true: ArrayLike, predicted: ArrayLike, nodes: ArrayLike
) -> dict[Hashable, float]:
    """Normalized mutual information of every node's rows, by node label.

    1 where the two partitions agree up to names, 0 where one says nothing of the other. A node
    whose rows are one group in both counts as 1, in one of the two alone as 0.
    """
    from sklearn.metrics import normalized_mutual_info_score

    true, predicted = np.asarray(true), np.asarray(predicted)
    return {
        label: float(normalized_mutual_info_score(true[rows], predicted[rows]))
        for label, rows in rows_by_node(nodes).items()
    }


def normalized_mutual_information(
    true: ArrayLike, predicted: ArrayLike, nodes: ArrayLike | None = None
) -> float:
    """Mean over nodes of each node's normalized mutual information; without `nodes`, one node.

    Taken node by node, components need no common order across nodes.
    """
    if nodes is None:
        nodes = np.zeros(len(np.asarray(true)), dtype=int)
    return float(np.mean(list(node_mutual_information(true, predicted, nodes).values())))


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
