"""Cut a network into parts of about equal work with few edges between them."""

from __future__ import annotations

import numpy as np

from fedmixtures.graph.network import Network

SWEEPS = 30
"""Rounds of exchanging nodes between parts, at most; most networks need fewer than ten."""


def cut_into_parts(network: Network, work: np.ndarray, n_parts: int) -> np.ndarray:
    """The part of each node, 0 to `n_parts` - 1; `work` is what each node costs.

    Neighbours stand close together in the Cuthill-McKee order, which is cut into stretches of equal
    work. Then pairs of nodes change places while that leaves fewer edges between the parts
    (balanced label propagation, Ugander and Backstrom 2013).
    """
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    if n_parts == 1:
        return np.zeros(network.n_nodes, dtype=np.int64)
    adjacency = network.adjacency()
    adjacency.data[:] = 1.0  # what is sent over an edge does not depend on its weight
    order = reverse_cuthill_mckee(adjacency, symmetric_mode=True)
    middle = np.cumsum(work[order]) - work[order] / 2
    part = np.empty(network.n_nodes, dtype=np.int64)
    part[order] = np.minimum(middle * n_parts / work.sum(), n_parts - 1).astype(np.int64)
    fewest = n_cut_edges(network, part)
    for _ in range(SWEEPS):
        changed = _exchanged(adjacency, part, n_parts)
        left = n_cut_edges(network, changed)
        if left >= fewest:
            break
        part, fewest = changed, left
    return part


def n_cut_edges(network: Network, part: np.ndarray) -> int:
    """Edges whose two ends are in different parts."""
    return int((part[network.source] != part[network.target]).sum())


def _exchanged(adjacency, part: np.ndarray, n_parts: int) -> np.ndarray:
    """Parts after those who gain most by it have changed places, as many one way as the other.

    Neighbours who move at once can spoil each other's gain, so only the better half moves.
    """
    n = len(part)
    inside = np.zeros((n, n_parts))
    inside[np.arange(n), part] = 1.0
    neighbours = adjacency @ inside
    gain = neighbours - neighbours[np.arange(n), part][:, None]
    gain[np.arange(n), part] = -np.inf
    wish = gain.argmax(1)
    best = gain[np.arange(n), wish]
    changed = part.copy()
    for a in range(n_parts):
        for b in range(a):
            away = np.flatnonzero((part == a) & (wish == b))
            back = np.flatnonzero((part == b) & (wish == a))
            away, back = (side[np.argsort(-best[side], kind="stable")] for side in (away, back))
            pairs = min(len(away), len(back))
            worth = best[away[:pairs]] + best[back[:pairs]] > 0
            pairs = -(-int(worth.sum()) // 2)
            changed[away[:pairs]], changed[back[:pairs]] = b, a
    return changed
