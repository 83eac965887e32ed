"""Where nodes stand in the picture of the network."""

from __future__ import annotations

import numpy as np

from fedmixtures._ties import in_order
from fedmixtures.graph.network import Network

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
