"""Mixtures and rows on a plane: principal axes or pairs of features, packed for the page."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedmixtures._ties import first_greatest, first_matching, in_order
from fedmixtures.data.node_data import NodeData
from fedmixtures.mixture.mixture import Mixture

FEWEST_ROWS = 10  # a node with fewer rows shows no density: a bump would all but show the row
FEWEST_TOGETHER = 5
"""Rows with fewer than this many, themselves included, in their window leave no trace."""
MEAN_UNIT, UNIT = 10_000, 32_767
"""What 16-bit numbers count: means in 1/10000 of the frame, the rest in 1/32767."""


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
    """The plane of two features, or the principal plane of the mixtures and pairs of features.

    Directions and windows come from the fitted mixtures, not from rows.
    """
    d = theta.n_features
    if d == 1:
        return [_framed("one feature", features[0], "", np.array([[1.0], [0.0]]), theta)]
    eye = np.eye(d)
    if d == 2:
        return [_framed("both features", features[0], features[1], eye, theta)]
    mean, total = overall_moments(theta)
    values, vectors = np.linalg.eigh(total)
    principal = vectors[:, ::-1][:, :2].T
    principal *= np.sign(principal[np.arange(2), first_greatest(np.abs(principal))])[:, None]
    share = values[::-1][:2] / values.sum()
    labels = [f"principal axis {i + 1} ({share[i]:.0%} of the spread)" for i in (0, 1)]
    planes = [_framed("principal axes", labels[0], labels[1], principal, theta)]
    wide: list[int] = np.sort(in_order(-separation(theta), scale=1.0)[:4]).tolist()
    for i, j in itertools.islice(itertools.combinations(wide, 2), n_planes - 1):
        name = f"{features[i]} and {features[j]}"
        planes.append(_framed(name, features[i], features[j], eye[[i, j]], theta))
    return planes


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


def densities(data: NodeData, plane: Plane, grid: int) -> np.ndarray:
    """Smoothed density of every node's rows on a grid, 0 to 255; zero where rows are too few.

    Counts per cell, blurred with the width of Scott's rule for the node's number of rows. Cells
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
        width = np.maximum(own.std(0) * count ** (-1 / 6), 0.6)
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
        matched.append(_matched(theta, matched[-1]))
    return matched[::-1]


def _matched(theta: Mixture, to: Mixture) -> Mixture:
    gap = np.square(to.means[:, :, None] - theta.means[:, None, :]).sum(-1)
    gap += np.square(to.covariances[:, :, None] - theta.covariances[:, None, :]).sum((-2, -1))
    absent = (to.weights[:, :, None] > 0) != (theta.weights[:, None, :] > 0)
    cost = gap + np.where(absent, 1e6 * (1 + gap.max()), 0.0)
    orders = np.stack([first_matching(one) for one in cost])
    take = lambda part: np.take_along_axis(
        part, orders.reshape(*orders.shape, *(1,) * (part.ndim - 2)), 1
    )
    return Mixture(*(take(part) for part in theta.parts))
