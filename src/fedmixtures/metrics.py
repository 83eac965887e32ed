"""How good a fit is: likelihood, partition and centroids by node, medians, gains of listening."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedmixtures._types import Label
from fedmixtures.data.node_data import NodeData, rows_by_node

CLEAR = 1.96  # a difference of fewer standard errors than this counts as no clear change


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


class Interval(NamedTuple):
    """A median and the interval around it."""

    median: float
    low: float
    high: float


def median_interval(
    values: ArrayLike, n_resamples: int = 9999, confidence: float = 0.95, seed: int = 0
) -> Interval:
    """Median over repetitions and its percentile-bootstrap interval.

    One value has itself as median and no interval (NaN), no value no median either. A NaN among
    the values (a run that failed) makes all three NaN: drop it knowingly or not at all. Infinite
    values are ranked as such, and a bound that falls between them is NaN.
    """
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 1:
        raise ValueError(f"`values` has the shape {values.shape}. Give one number per repetition.")
    if len(values) == 0 or np.isnan(values).any():
        return Interval(np.nan, np.nan, np.nan)
    if len(values) == 1:
        return Interval(float(values[0]), np.nan, np.nan)
    from scipy.stats import bootstrap

    with np.errstate(invalid="ignore"):  # inf - inf
        found = bootstrap(
            (values,),
            np.median,
            n_resamples=n_resamples,
            batch=max(1, 1_000_000 // len(values)),
            confidence_level=confidence,
            method="percentile",
            # The newer name, `rng`, is not in scipy before 1.15.
            random_state=np.random.default_rng(seed),  # pyright: ignore[reportCallIssue]
        ).confidence_interval
        return Interval(float(np.median(values)), float(found.low), float(found.high))


def paired_difference(
    a: ArrayLike, b: ArrayLike, n_resamples: int = 9999, confidence: float = 0.95, seed: int = 0
) -> Interval:
    """Median of a - b over repetitions, with its interval; a[i] and b[i] share a seed.

    What two methods have in common, the draw of the data, cancels: use this rather than two
    intervals side by side to say which is better.
    """
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if a.shape != b.shape:
        raise ValueError(
            f"`a` has the shape {a.shape} and `b` {b.shape}. "
            "Give the same repetitions of both, in the same order."
        )
    with np.errstate(invalid="ignore"):  # inf - inf: neither is better, NaN says so
        return median_interval(a - b, n_resamples, confidence, seed)


@dataclass(frozen=True)
class Scores:
    """Mean log-density of each node's held-out rows; NaN where there is none."""

    labels: tuple[Label, ...]
    n_held_out: np.ndarray  # held-out rows of each node
    local: np.ndarray  # own data only
    network: np.ndarray  # with neighbours
    pooled: np.ndarray  # one mixture of all rows, where that was allowed
    error: np.ndarray  # standard error of `network - local`, from the rows' own differences

    @classmethod
    def of(
        cls,
        labels: Sequence[Label],
        held: NodeData | None,
        network: np.ndarray | None = None,
        local: np.ndarray | None = None,
        pooled: np.ndarray | None = None,
    ) -> Scores:
        """From the log-density of every held-out row, as they came in, under the three models."""
        n, index, nothing = len(labels), np.zeros(0, int), np.full(len(labels), np.nan)
        if held is not None:
            position = {label: i for i, label in enumerate(labels)}
            index = np.empty(len(held.rows), int)
            index[held.source_index] = np.array([position[a] for a in held.labels])[held.node_index]
        counts = np.bincount(index, minlength=n)

        def mean(values: np.ndarray | None) -> np.ndarray:
            with np.errstate(invalid="ignore", divide="ignore"):
                return nothing if values is None else np.bincount(index, values, n) / counts

        error = nothing
        if network is not None and local is not None:
            difference = network - local
            variance = mean(np.square(difference - mean(difference)[index]))
            error = np.sqrt(np.where(counts > 1, variance / np.maximum(counts - 1, 1), np.nan))
        return cls(tuple(labels), counts, mean(local), mean(network), mean(pooled), error)

    @property
    def gain(self) -> np.ndarray:
        """What neighbours brought, in nats per held-out row."""
        return self.network - self.local

    @property
    def verdict(self) -> np.ndarray:
        """1 where a node clearly gained, -1 where it clearly lost, 0 otherwise."""
        with np.errstate(invalid="ignore"):
            clear = np.abs(self.gain) > CLEAR * self.error
        return np.where(clear, np.sign(self.gain), 0).astype(int)

    @property
    def known(self) -> bool:
        """Whether there is anything to compare."""
        return bool(np.isfinite(self.gain).any())

    def median_gain(self) -> Interval:
        """Median over nodes with its bootstrap interval."""
        return median_interval(self.gain[np.isfinite(self.gain)])

    def medians(self) -> dict[str, Interval]:
        """Median over nodes of each of the three, with intervals."""
        columns = {"local": self.local, "network": self.network, "pooled": self.pooled}
        return {name: median_interval(v[np.isfinite(v)]) for name, v in columns.items()}
