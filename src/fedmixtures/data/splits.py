"""Which rows a fit does not see: a share of every node's, or folds of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from fedmixtures.data.node_data import NodeData, label_hash


def holdout(nodes: ArrayLike, fraction: float, seed: int | np.random.Generator) -> np.ndarray:
    """Mark the rows to hold out: this fraction of every node's rows, rounded, at random.

    At least one row of every node is left for training; a node with few rows may have none
    held out.
    """
    array = np.asarray(nodes)
    return holdout_of(NodeData.from_rows(np.zeros((len(array), 0)), array), fraction, seed)


def holdout_of(
    data: NodeData,
    fraction: float,
    seed: int | np.random.Generator,
    keep: Sequence[int] | None = None,
) -> np.ndarray:
    """Which rows to hold out, (rows,) of bool, in the order they came in before they were grouped.

    `keep` (nodes,) is how many rows of each node are left at least; one unless given.
    """
    if not 0 <= fraction < 1:
        raise ValueError(f"`fraction` is {fraction}. Give a number from 0 to less than 1.")
    rng = np.random.default_rng(seed)
    held_out = np.zeros(len(data.rows), dtype=bool)
    for i, count in enumerate(data.counts.tolist()):
        rows = np.sort(data.source_index[data.offsets[i] : data.offsets[i + 1]])
        own = np.sort(rng.permutation(rows)[: min(round(fraction * count), count - 1)])
        spare = max(0, count - (1 if keep is None else max(1, keep[i])))
        held_out[own[:spare]] = True
    return held_out


def folds_of(data: NodeData, n_folds: int, seed: int, keep: Sequence[int]) -> np.ndarray:
    """Fold of every row, dealt within nodes; -1 (always kept) where a node has no row to spare.

    However the folds fall, at least `keep` (nodes,) rows of a node are left when one is taken out.
    """
    fold = np.full(len(data.rows), -1)
    for i, (label, count) in enumerate(zip(data.labels, data.counts, strict=True)):
        rows = data.source_index[data.offsets[i] : data.offsets[i + 1]]
        rng = np.random.default_rng([seed, label_hash(label)])
        if count - -(-count // n_folds) >= keep[i]:
            fold[rng.permutation(rows)] = np.arange(count) % n_folds
    return fold
