"""One number per node from columns that have one entry per row."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import numpy as np
from numpy.typing import ArrayLike

from fedmixtures.data.partition import rows_by_node


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
