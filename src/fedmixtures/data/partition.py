"""Rows over nodes: the Dirichlet split of labelled data, and the hold-out of every node."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
from numpy.typing import ArrayLike

MAX_DRAWS = 10_000


def dirichlet_split(
    classes: ArrayLike,
    n_nodes: int,
    concentration: float,
    seed: int | np.random.Generator,
    min_rows: int = 20,
) -> np.ndarray:
    """Node (0 .. n_nodes-1) of every row, with the mix of classes differing between nodes.

    The rows of each class, in random order, are divided over the nodes in proportions drawn from
    a symmetric Dirichlet: a `concentration` of 0.5 gives strong skew, 100 nearly equal mixes.
    The proportions are drawn again until every node has at least `min_rows` rows.
    """
    classes = np.asarray(classes)
    _check_split(classes, n_nodes, concentration, min_rows)
    rng = np.random.default_rng(seed)
    _, class_of_row, sizes = np.unique(classes, return_inverse=True, return_counts=True)
    for _ in range(MAX_DRAWS):
        proportions = rng.dirichlet(np.full(n_nodes, concentration), size=len(sizes))
        # Shares are rounded at their ends, so that those of a class always sum to its size.
        ends = np.rint(np.cumsum(proportions, axis=1) * sizes[:, None]).astype(np.int64)
        ends[:, -1] = sizes
        counts = np.diff(ends, axis=1, prepend=0)
        if counts.sum(axis=0).min() >= min_rows:
            return _deal(class_of_row, counts, rng)
    raise ValueError(
        f"no split gave all {n_nodes} nodes at least {min_rows} rows in {MAX_DRAWS} draws with "
        f"`concentration`={concentration:g} and {len(classes)} rows. "
        "Raise concentration, or lower n_nodes or min_rows."
    )


def holdout(nodes: ArrayLike, fraction: float, seed: int | np.random.Generator) -> np.ndarray:
    """Mark the rows to hold out: this fraction of every node's rows, rounded, at random.

    At least one row of every node is left for training; a node with few rows may have none
    held out.
    """
    if not 0 <= fraction < 1:
        raise ValueError(f"`fraction` is {fraction}. Give a number from 0 to less than 1.")
    rng = np.random.default_rng(seed)
    held_out = np.zeros(len(np.asarray(nodes)), dtype=bool)
    for rows in rows_by_node(nodes).values():
        size = min(round(fraction * len(rows)), len(rows) - 1)
        held_out[rng.permutation(rows)[:size]] = True
    return held_out


def rows_by_node(nodes: ArrayLike) -> dict[Hashable, np.ndarray]:
    """Positions of every node's rows, by node label, labels sorted."""
    nodes = np.asarray(nodes)
    if nodes.ndim != 1:
        raise ValueError(f"`nodes` has the shape {nodes.shape}. Give one node label per row.")
    try:
        labels, node_of_row = np.unique(nodes, return_inverse=True)
    except TypeError as error:
        raise ValueError(
            f"`nodes` mixes labels that cannot be sorted ({error}). "
            "Use strings for all nodes, or integers for all."
        ) from None
    order = np.argsort(node_of_row, kind="stable")
    starts = np.cumsum(np.bincount(node_of_row))[:-1]
    return dict(zip(labels.tolist(), np.split(order, starts)[: len(labels)], strict=True))


def _deal(class_of_row: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    node_of_row = np.empty(len(class_of_row), dtype=np.int64)
    for number, shares in enumerate(counts):
        rows = rng.permutation(np.flatnonzero(class_of_row == number))
        node_of_row[rows] = np.repeat(np.arange(len(shares)), shares)
    return node_of_row


def _check_split(classes: np.ndarray, n_nodes: int, concentration: float, min_rows: int) -> None:
    if classes.ndim != 1:
        raise ValueError(f"`classes` has the shape {classes.shape}. Give one class per row.")
    if n_nodes < 1:
        raise ValueError(f"`n_nodes` is {n_nodes}. Give at least 1.")
    if not 0 < concentration < np.inf:
        raise ValueError(f"`concentration` is {concentration}. Give a positive finite number.")
    if n_nodes * min_rows > len(classes):
        raise ValueError(
            f"{len(classes)} rows cannot give {n_nodes} nodes `min_rows`={min_rows} rows each. "
            "Lower n_nodes or min_rows."
        )
