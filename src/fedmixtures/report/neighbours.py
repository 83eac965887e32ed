"""The network at the end: how far apart neighbours are, who belongs together, where nodes stand."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from fedmixtures._ties import first_least, in_order
from fedmixtures.discrepancy.base import AbstractDiscrepancy
from fedmixtures.graph.network import Network
from fedmixtures.kernels.compiling import compilation_cache, jit_in_order
from fedmixtures.mixture.arithmetic import double
from fedmixtures.mixture.mixture import Mixture

CHUNK = 4096
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
        for first in range(0, len(source), CHUNK):
            ends = [
                np.resize(end[first : first + CHUNK], _padded(len(source)))
                for end in (source, target)
            ]
            values = _pairs(discrepancy, stacked, *(jnp.asarray(end) for end in ends))
            found.append(np.asarray(values)[: len(source) - first][:CHUNK])
    return np.concatenate(found)


def _padded(n: int) -> int:
    """One shape for many numbers of edges: a compilation costs more than a few pairs."""
    return min(CHUNK, 1 << (n - 1).bit_length())


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
    """The same groups, the largest numbered 0."""
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
        stretch = place[a] - place[b]
        pull = stretch * (np.linalg.norm(stretch, axis=1) / length * closeness)[:, None]
        for axis in (0, 1):
            push[:, axis] -= np.bincount(a, pull[:, axis], n)
            push[:, axis] += np.bincount(b, pull[:, axis], n)
        reach = np.linalg.norm(push, axis=1, keepdims=True)
        cool = 0.1 * (1 - step / steps)
        place += push / np.maximum(reach, 1e-12) * np.minimum(reach, cool)
    return place
