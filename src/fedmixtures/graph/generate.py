"""Graphs of the experiments: random, by blocks, by nearness of data, and a few plain ones.

Random graphs take a `seed` (an integer, or a numpy Generator to draw from) and unit weights.
Labels are `0 .. n-1` unless given.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from fedmixtures import _checks
from fedmixtures._ties import in_order, margin
from fedmixtures.graph.network import Network

Seed = int | np.random.Generator


def erdos_renyi_ring(
    n: int, probability: float, seed: Seed, labels: Iterable[Hashable] | None = None
) -> Network:
    """Every pair is joined with `probability`; a ring through all nodes keeps it connected.

    With the same seed, a larger `probability` only adds edges.
    """
    _checks.whole("n", n)
    _checks.share("probability", probability)
    source, target = _independent_pairs(np.zeros(n, int), probability, probability, seed)
    around = _ring_pairs(n)
    return _union(n, np.append(source, around[0]), np.append(target, around[1]), labels)


def stochastic_blocks(
    block_sizes: Sequence[int],
    p_in: float,
    p_out: float,
    seed: Seed,
    labels: Iterable[Hashable] | None = None,
) -> Network:
    """Pairs in one block are joined with `p_in`, pairs across blocks with `p_out`.

    A chain through each block keeps the block connected. Nodes are numbered block by block.
    With the same seed, a larger `p_out` only adds edges across blocks: a sweep over `p_out`
    compares nested graphs.
    """
    for size in block_sizes:
        _checks.whole("block_sizes", size)
    _checks.share("p_in", p_in)
    _checks.share("p_out", p_out)
    block = np.repeat(np.arange(len(block_sizes)), block_sizes)
    source, target = _independent_pairs(block, p_in, p_out, seed)
    link = np.flatnonzero(block[1:] == block[:-1])
    return _union(len(block), np.append(source, link), np.append(target, link + 1), labels)


def nearest_neighbours(
    points: ArrayLike, n_neighbours: int, labels: Iterable[Hashable] | None = None
) -> Network:
    """Join each node to its `n_neighbours` nearest, by Euclidean distance of one point per node.

    An edge stands when either end counts the other among its nearest, so degrees are at least
    `n_neighbours` and the graph need not be connected. Of neighbours at the same distance, as on a
    grid, those that stand first are taken.
    """
    points = np.asarray(points, dtype=np.float64)
    if points.ndim != 2 or not np.isfinite(points).all():
        raise ValueError(
            f"`points` has the shape {points.shape}; it must be (nodes, features) and finite. "
            "Give one row per node, for example the mean of its data."
        )
    if not 1 <= n_neighbours < len(points):
        raise ValueError(
            f"`n_neighbours` is {n_neighbours}, but there are {len(points)} nodes. "
            f"Choose between 1 and {len(points) - 1}."
        )
    nearest = _nearest_others(points, n_neighbours)
    return _union(len(points), np.repeat(np.arange(len(points)), n_neighbours), nearest, labels)


def connected_neighbours(
    points: ArrayLike, n_neighbours: int, labels: Iterable[Hashable] | None = None
) -> Network:
    """Join each point to its nearest neighbours, and parts by as few more edges as join all nodes.

    Each part is joined to the part with the nearest centre, by the node of either that is nearest
    to its own centre, until there is one part.
    """
    found = nearest_neighbours(points, n_neighbours, labels)
    points = np.asarray(points, dtype=np.float64)
    while (part := found.parts()).any():
        n = part.max() + 1
        rows = np.bincount(part)[:, None]
        centres = np.stack([np.bincount(part, of, n) for of in points.T], axis=1) / rows
        off = np.linalg.norm(points - centres[part], axis=1)
        order = in_order(off, scale=np.abs(points).max())
        middle = order[np.unique(part[order], return_index=True)[1]]
        source = np.append(found.source, middle)
        target = np.append(found.target, middle[_nearest_others(centres, 1)])
        found = _union(len(points), source, target, found.labels)
    return found


def sparse_random(
    n: int, average_degree: float, seed: Seed, labels: Iterable[Hashable] | None = None
) -> Network:
    """Draw uniformly from the graphs with `n` nodes and this average degree; made for large `n`.

    The number of edges is fixed, `n * average_degree / 2` rounded, and cost grows with the
    edges, not with the pairs. Some nodes may be isolated.
    """
    _checks.whole("n", n)
    if not 0 <= average_degree <= n - 1:
        raise ValueError(
            f"`average_degree` is {average_degree}, but each of {n} nodes has between 0 and "
            f"{n - 1} neighbours. Lower it or raise n."
        )
    n_edges = round(n * average_degree / 2)
    pair = np.random.default_rng(seed).choice(n * (n - 1) // 2, n_edges, replace=False)
    # Pairs (low, high) are numbered by high, then low. float64 roots are exact enough to 4e7 nodes.
    high = ((1 + np.sqrt(1 + 8 * pair)) / 2).astype(np.int64)
    return _union(n, pair - high * (high - 1) // 2, high, labels)


def ring(n: int, labels: Iterable[Hashable] | None = None) -> Network:
    """Each node is joined to the next, the last to the first."""
    _checks.whole("n", n)
    return _union(n, *_ring_pairs(n), labels)


def star(n: int, labels: Iterable[Hashable] | None = None) -> Network:
    """Join the first node to every other."""
    _checks.whole("n", n)
    return _union(n, np.zeros(n - 1, int), np.arange(1, n), labels)


def _nearest_others(points: np.ndarray, n: int) -> np.ndarray:
    """The `n` nearest other points of each point, one list after the other."""
    from scipy.spatial import KDTree

    tree = KDTree(points)
    farthest = tree.query(points, [n + 1])[0][:, 0]  # the point itself is one of them
    size = np.abs(points).max()
    within = tree.query_ball_point(points, farthest + 2 * margin(points.dtype) * size)
    found = []
    for i, candidates in enumerate(within):
        others = np.array(sorted(set(candidates) - {i}))
        distance = np.linalg.norm(points[others] - points[i], axis=1)
        found.append(others[in_order(distance, scale=size)[:n]])
    return np.concatenate(found)


def _independent_pairs(
    block: np.ndarray, p_in: float, p_out: float, seed: Seed
) -> tuple[np.ndarray, np.ndarray]:
    """Draw every pair once, row by row: memory grows with n, and draws do not depend on p."""
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(len(block) - 1):
        probability = np.where(block[i + 1 :] == block[i], p_in, p_out)
        rows.append(i + 1 + np.flatnonzero(rng.random(len(probability)) < probability))
    source = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    return source, np.concatenate([np.zeros(0, int), *rows])


def _ring_pairs(n: int) -> tuple[np.ndarray, np.ndarray]:
    # One node has no one to join, and two nodes have one edge, not two.
    source = np.arange(n if n > 2 else n - 1)
    return source, (source + 1) % n


def _union(
    n: int, source: np.ndarray, target: np.ndarray, labels: Iterable[Hashable] | None
) -> Network:
    """Network of unit weights where a pair may come more than once, in either direction."""
    labels = tuple(range(n)) if labels is None else tuple(labels)
    if len(labels) != n:
        raise ValueError(
            f"`labels` has {len(labels)} entries, but the graph has {n} nodes. "
            "Give one label per node."
        )
    low, high = np.minimum(source, target).astype(np.int64), np.maximum(source, target)
    low, high = np.divmod(np.unique(low * n + high), n)
    return Network(labels, low, high, np.ones(len(low)))
