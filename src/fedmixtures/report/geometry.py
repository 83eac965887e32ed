"""Where things stand on the page: mixtures and rows on planes, nodes and groups of the network."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from fedmixtures._ties import first_greatest, first_least, first_matching, in_order
from fedmixtures.data.node_data import NodeData
from fedmixtures.discrepancy import AbstractDiscrepancy
from fedmixtures.graph.network import Network
from fedmixtures.kernels.compiling import compilation_cache, jit_in_order
from fedmixtures.mixture.arithmetic import double
from fedmixtures.mixture.mixture import Mixture, matching_costs

FEWEST_ROWS = 10  # a node with fewer rows shows no density: a bump would all but show the row
FEWEST_TOGETHER = 5
"""Rows with fewer than this many, themselves included, in their window leave no trace."""
MEAN_UNIT, UNIT = 10_000, 32_767
"""What 16-bit numbers count: means in 1/10000 of the frame, the rest in 1/32767."""

THIN = 1e-6
"""Added to variances within clusters, in those of features, for exactly collinear columns."""
NOTHING = 1e-9
TOLD = 0.5
"""Correlation with a direction from which on a feature is named at it."""


@dataclass(frozen=True)
class Plane:
    """Two directions in feature space and the window of them that is shown."""

    name: str
    x_label: str
    y_label: str
    axes: np.ndarray  # directions (2, d); the second is zero for a single feature
    low: np.ndarray
    high: np.ndarray

    @property
    def span(self) -> np.ndarray:
        """Width and height of the window."""
        return self.high - self.low

    def placed(self, rows: np.ndarray) -> np.ndarray:
        """Rows (m, 2) in shares of the window; NaN where a feature that counts is missing."""
        used = self.axes.any(0)
        return (rows[:, used] @ self.axes[:, used].T - self.low) / self.span

    def project(self, theta: Mixture) -> tuple[np.ndarray, np.ndarray]:
        """Means (..., k, 2) and covariances (..., k, 2, 2) on the plane."""
        means = np.asarray(theta.means @ self.axes.T)
        return means, np.asarray(self.axes @ theta.covariances @ self.axes.T)


def choose_planes(theta: Mixture, features: Sequence[str], n_planes: int) -> list[Plane]:
    """The plane of two features, or that which separates clusters best and pairs of features.

    Directions and windows come from the fitted mixtures, not from rows.
    """
    d = theta.n_features
    if d == 1:
        return [_framed("one feature", features[0], "", np.array([[1.0], [0.0]]), theta)]
    eye = np.eye(d)
    if d == 2:
        return [_framed("both features", features[0], features[1], eye, theta)]
    directions = separating_directions(theta)
    across, up = (_made_of(direction, theta, features) for direction in directions)
    planes = [_framed("what sets clusters apart", across, up, directions, theta)]
    wide: list[int] = np.sort(in_order(-separation(theta), scale=1.0)[:4]).tolist()
    for i, j in itertools.islice(itertools.combinations(wide, 2), n_planes - 1):
        name = f"{features[i]} and {features[j]}"
        planes.append(_framed(name, features[i], features[j], eye[[i, j]], theta))
    return planes


def separating_directions(theta: Mixture) -> np.ndarray:
    r"""(2, d) discriminant directions: where clusters lie farthest apart for their width.

    The leading solutions of $B v = \lambda W v$ with the covariance B of the clusters' centres and
    W within clusters, all nodes together, features in units of their standard deviations: no unit
    of a feature plays a part. Where the centres lie on a line (two clusters), the second is the
    direction of most spread among those uncorrelated with the first within clusters.
    """
    from scipy.linalg import eigh, null_space

    mean, total = overall_moments(theta)
    weights = theta.weights / theta.weights.sum()
    share = weights.sum(0)
    inside = np.where(share > 0, share, 1.0)
    centres = np.einsum("nk,nkd->kd", weights, theta.means) / inside[:, None] - mean
    unit = 1 / np.sqrt(np.where(np.diag(total) > 0, np.diag(total), 1.0))
    between = np.einsum("k,ki,kj->ij", share, centres, centres) * np.outer(unit, unit)
    within = total * np.outer(unit, unit) - between + THIN * np.eye(len(unit))
    values, vectors = eigh(between, within)
    found = vectors[:, ::-1][:, :2].T
    values = values[::-1][:2]
    if values[0] <= NOTHING:  # one cluster: where rows spread most
        values, vectors = eigh(within)
        found = vectors[:, ::-1][:, :2].T
    elif values[1] <= NOTHING * values[0]:
        free = null_space(found[:1] @ within)
        _, vectors = eigh(free.T @ within @ free)
        second = free @ vectors[:, -1]
        found = np.stack([found[0], second / np.sqrt(second @ within @ second)])
    found = found * unit
    along = found @ total * unit
    return found * np.sign(along[np.arange(2), first_greatest(np.abs(along), scale=1.0)])[:, None]


def _made_of(direction: np.ndarray, theta: Mixture, features: Sequence[str]) -> str:
    """What there is more of along a direction, by the correlations of features with it."""
    _, total = overall_moments(theta)
    spread = np.sqrt(np.maximum(np.diag(total), 1e-300))
    along = direction @ total / (spread * np.sqrt(max(direction @ total @ direction, 1e-300)))
    order = in_order(-np.abs(along), scale=1.0)[:3]
    told = [j for j in order if abs(along[j]) >= TOLD] or order[:1]
    return ", ".join(f"{'more' if along[j] > 0 else 'less'} {features[j]}" for j in told)


def separation(theta: Mixture) -> np.ndarray:
    """Share of each feature's spread that lies between components: how well it tells them apart."""
    weights = theta.weights / theta.weights.sum()
    _, total = overall_moments(theta)
    within = np.einsum("nk,nkii->i", weights, theta.covariances)
    return 1 - within / np.maximum(np.diag(total), 1e-300)


def overall_moments(theta: Mixture) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of the average of all nodes' mixtures."""
    weights = theta.weights / theta.weights.sum()
    mean = np.einsum("nk,nkd->d", weights, theta.means)
    centred = theta.means - mean
    spread = np.einsum("nk,nki,nkj->ij", weights, centred, centred)
    return mean, spread + np.einsum("nk,nkij->ij", weights, theta.covariances)


def _framed(name: str, x_label: str, y_label: str, axes: np.ndarray, theta: Mixture) -> Plane:
    """A window that holds the components, but for the farthest per cent where there are many."""
    means = (theta.means @ axes.T)[theta.weights > 0.005]
    covariances = (axes @ theta.covariances @ axes.T)[theta.weights > 0.005]
    reach = 2.6 * np.sqrt(np.maximum(np.diagonal(covariances, axis1=-2, axis2=-1), 0))
    tail = 0.01 if len(means) > 200 else 0.0
    low = np.quantile(means - reach, tail, axis=0)
    high = np.quantile(means + reach, 1 - tail, axis=0)
    span = np.where(high > low, high - low, 1.0)
    return Plane(name, x_label, y_label, axes, low - 0.03 * span, low + 1.03 * span)


def pack_components(theta: Mixture, plane: Plane) -> np.ndarray:
    """Six 16-bit numbers per component: weight, mean, standard deviations, correlation."""
    means, covariances = plane.project(theta)
    deviation = np.sqrt(np.maximum(np.diagonal(covariances, axis1=-2, axis2=-1), 1e-300))
    correlation = covariances[..., 0, 1] / deviation.prod(-1)
    place, size = (means - plane.low) / plane.span, deviation / plane.span
    if not plane.axes[1].any():  # one feature: components one above the other, as flat ellipses
        k = theta.n_components
        place[..., 1], size[..., 1] = (np.arange(k) + 0.5) / k, 0.16 / k
        correlation = np.zeros_like(correlation)
    numbers = np.concatenate(
        [
            theta.weights[..., None] * UNIT,
            np.clip(place, -3, 3) * MEAN_UNIT,
            np.clip(size, 0, 1) * UNIT,
            np.clip(correlation, -1, 1)[..., None] * UNIT,
        ],
        axis=-1,
    )
    return np.rint(numbers).astype("<i2")


def densities(data: NodeData, plane: Plane, grid: int, blur: float = 1.0) -> np.ndarray:
    """Smoothed density of every node's rows on a grid, 0 to 255; zero where rows are too few.

    Counts per cell, blurred with `blur` times the width of Scott's rule for the node's rows. Cells
    with too few rows in the window around them, as wide as the blur, are emptied first: a lone row
    would be a bump that shows where it lies.
    """
    from scipy.ndimage import gaussian_filter, uniform_filter

    place = plane.placed(data.rows) * grid
    flat = not plane.axes[1].any()
    images = np.zeros((data.n_nodes, grid, grid), dtype=np.uint8)
    for i in range(data.n_nodes):
        own = place[data.offsets[i] : data.offsets[i + 1]]
        own = own[~np.isnan(own).any(1)]
        count = len(own)
        if count < FEWEST_ROWS:
            continue
        width = np.maximum(blur * own.std(0) * count ** (-1 / 6), 0.6)
        if flat:
            own = np.column_stack([own[:, 0], np.full(count, grid / 2)])
        image, _, _ = np.histogram2d(own[:, 1], own[:, 0], bins=grid, range=[[0, grid]] * 2)
        if flat:
            image[:] = image.sum(0)
        window = 2 * np.ceil(width[::-1]).astype(int) + 1
        window = (1 if flat else window[0], window[1])
        near = uniform_filter(image, window, mode="constant") * np.prod(window)
        image = np.where(np.rint(near) >= FEWEST_TOGETHER, image, 0.0)
        image = gaussian_filter(image, (0 if flat else width[1], width[0]), mode="constant")
        images[i] = np.rint(255 * image / max(image.max(), 1e-300))
    return images


def pack_rows(data: NodeData, plane: Plane) -> np.ndarray:
    """Places of all rows as pairs of 16-bit numbers; far outside where a cell is missing."""
    place = np.nan_to_num(plane.placed(data.rows), nan=3.0)
    if not plane.axes[1].any():
        place[:, 1] = 0.5
    return np.rint(np.clip(place, -3, 3) * MEAN_UNIT).astype("<i2")


def text(array: np.ndarray) -> str:
    """Bytes of an array as base64."""
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


def bytes_of(packed: str, dtype: str) -> np.ndarray:
    """The array a text was made from, flat."""
    return np.frombuffer(base64.b64decode(packed), dtype=dtype)


def matched_to_last(thetas: Sequence[Mixture]) -> list[Mixture]:
    """Reorder components, node by node, to follow those of the last entry back through time."""
    matched = [thetas[-1]]
    for theta in reversed(thetas[:-1]):
        costs = matching_costs(matched[-1], theta)
        matched.append(theta.relabel(np.stack([first_matching(cost) for cost in costs])))
    return matched[::-1]


MOST_PAIRS = 4096  # of mixtures compared at a time
PAIR_NUMBERS = 100_000_000  # fewer of them where they are large: numbers held for all of these
ROUNDING = 1e-12  # discrepancies of order one are no more exact than this


def edge_discrepancies(
    discrepancy: AbstractDiscrepancy, theta: Mixture, network: Network
) -> np.ndarray:
    """D of the two ends of every edge; the mean of both directions where D is not symmetric."""
    if not network.n_edges:
        return np.zeros(0)
    values = _directed(discrepancy, theta, network.source, network.target)
    if not discrepancy.symmetric:
        values = (values + _directed(discrepancy, theta, network.target, network.source)) / 2
    return np.maximum(values, 0.0)


def _directed(discrepancy: Any, theta: Mixture, source: np.ndarray, target: np.ndarray):
    found = []
    with double(), compilation_cache():
        stacked = jax.tree.map(jnp.asarray, theta.to_numpy())
        of_pair = 25 * (theta.n_components * theta.n_features) ** 2
        most = int(np.clip(PAIR_NUMBERS // of_pair, 1, MOST_PAIRS))
        # One shape for many numbers of edges: a compilation costs more than a few pairs.
        padded = min(most, 1 << (len(source) - 1).bit_length())
        for first in range(0, len(source), most):
            ends = [np.resize(end[first : first + most], padded) for end in (source, target)]
            values = _pairs(discrepancy, stacked, *(jnp.asarray(end) for end in ends))
            found.append(np.asarray(values)[: len(source) - first][:most])
    return np.concatenate(found)


@jit_in_order
def _pairs(discrepancy: AbstractDiscrepancy, theta: Mixture, source, target):
    def one(a, b):
        own, other = theta.at(a), theta.at(b)
        return discrepancy(own, discrepancy.freeze(own, discrepancy.digest(other), jr.key(0)))

    return jax.vmap(one)(source, target)


def groups_by_gap(discrepancies: np.ndarray, network: Network) -> tuple[np.ndarray, float | None]:
    """Groups of nodes joined by alike edges, numbered by size, and the bound that was used.

    The bound separates small from large discrepancies where their logarithms fall into two clear
    bunches (Otsu's split, centres at least three within-bunch deviations apart); otherwise all
    edges join and groups are the connected parts of the graph.
    """
    told = np.maximum(discrepancies, ROUNDING)  # below that, differences are rounding
    bound = two_bunches(np.log(told))
    bound = None if bound is None else float(np.exp(bound))
    joins = np.ones(network.n_edges, bool) if bound is None else discrepancies <= bound
    return numbered(network.parts(joins)), bound


def numbered(part: np.ndarray) -> np.ndarray:
    """Renumber groups by size, the largest 0."""
    rank = np.argsort(np.argsort(-np.bincount(part), kind="stable"), kind="stable")
    return rank[part]


def two_bunches(values: np.ndarray) -> float | None:
    """The bound between two clear bunches of numbers; None if there are no two."""
    values = np.sort(values)
    n = len(values)
    if n < 4:
        return None
    counts = np.arange(1, n)
    sums, squares = np.cumsum(values), np.cumsum(values**2)
    left, right = sums[:-1] / counts, (sums[-1] - sums[:-1]) / (n - counts)
    within = squares[-1] - counts * left**2 - (n - counts) * right**2
    best = int(first_least(within, scale=squares[-1]))
    spread = np.sqrt(max(within[best], 0.0) / n)
    if right[best] - left[best] < 3 * spread + 1e-9:
        return None
    return float((values[best] + values[best + 1]) / 2)


MANY = 600
"""Above this number of nodes springs get fewer steps: the picture is to come in a second or two."""


def positions(network: Network, closeness: np.ndarray) -> np.ndarray:
    """Places (nodes, 2) in the unit square: alike neighbours stand near each other."""
    n = network.n_nodes
    if n == 1:
        return np.array([[0.5, 0.5]])
    if network.n_edges == 0:
        side = int(np.ceil(np.sqrt(n)))
        return np.stack([np.arange(n) % side, np.arange(n) // side], 1) / max(side - 1, 1)
    place = _springs(network, closeness)
    # Ranks spread crowded pictures; halfway is enough to part what lies on a heap.
    low, high = np.quantile(place, [0.01, 0.99], axis=0)
    place = np.clip((place - low) / np.where(high > low, high - low, 1), -0.02, 1.02)
    ranks = np.argsort(np.stack([in_order(x) for x in place.T], 1), axis=0) / (n - 1)
    return np.clip((place + ranks) / 2, 0, 1)


def _springs(network: Network, closeness: np.ndarray, seed: int = 0) -> np.ndarray:
    """Fruchterman and Reingold's springs in plain arrays, cooling down linearly."""
    n = network.n_nodes
    rng = np.random.default_rng(seed)
    place = rng.random((n, 2))
    steps = 120 if n <= MANY else max(12, 40_000_000 // n**2)
    length = 1 / np.sqrt(n)
    a, b = network.source, network.target
    for step in range(steps):
        push = np.zeros_like(place)
        for rows in np.array_split(np.arange(n), max(1, n * n // 2_000_000)):
            gap = place[rows, None, :] - place[None, :, :]
            square = np.maximum(np.square(gap).sum(-1), 1e-6)
            push[rows] = np.einsum("ijk,ij->ik", gap, length**2 / square)
        segment = place[a] - place[b]
        pull = segment * (np.linalg.norm(segment, axis=1) / length * closeness)[:, None]
        for axis in (0, 1):
            push[:, axis] -= np.bincount(a, pull[:, axis], n)
            push[:, axis] += np.bincount(b, pull[:, axis], n)
        reach = np.linalg.norm(push, axis=1, keepdims=True)
        cool = 0.1 * (1 - step / steps)
        place += push / np.maximum(reach, 1e-12) * np.minimum(reach, cool)
    return place
