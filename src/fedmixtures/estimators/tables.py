"""Rows and labels from arrays or tables (pandas, polars, pyarrow)."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedmixtures import _checks


def split_nodes(X: Any, nodes: Any) -> tuple[Any, Any]:
    """Take the node column out of a table when `nodes` is its name; else leave both alone."""
    if not isinstance(nodes, str):
        return X, None if nodes is None else _labels(nodes)
    import narwhals as nw

    try:
        frame = nw.from_native(X, eager_only=True)
    except TypeError:
        raise ValueError(
            f"`nodes` is the column name {nodes!r}, but X is a {type(X).__name__} without column "
            "names. Give a table, or one label per row."
        ) from None
    if nodes not in frame.columns:
        raise ValueError(
            f"`nodes` is {nodes!r}, but the table has no such column. "
            f"Its columns are {_checks.listed(frame.columns, 12)}."
        )
    return frame.drop(nodes).to_native(), frame[nodes].to_numpy()


def _labels(nodes: Any) -> np.ndarray:
    """Labels of any sequence or column as an array; tuples stay single labels."""
    import narwhals as nw

    series = nw.from_native(nodes, series_only=True, pass_through=True)
    if isinstance(series, nw.Series):
        return series.to_numpy()
    if not isinstance(nodes, np.ndarray):
        nodes = list(nodes)
        # NumPy would spread tuples over a second axis and turn 1 next to 'a' into '1'.
        words = sum(isinstance(label, str) for label in nodes)
        if 0 < words < len(nodes) or any(isinstance(label, tuple) for label in nodes):
            array = np.empty(len(nodes), dtype=object)
            array[:] = nodes
            return array
    return np.asarray(nodes)


def check_finite(X: np.ndarray, nodes: Any, columns: Any) -> None:
    """NaN and infinity are refused with their row, node and column."""
    bad = ~np.isfinite(X)
    if not bad.any():
        return
    row, column = np.argwhere(bad)[0]
    name = repr(_checks.plain(columns[column])) if columns is not None else column
    at = "" if nodes is None else f", node {_checks.plain(np.asarray(nodes)[row])!r}"
    what = "NaN" if np.isnan(X[row, column]) else "infinity (inf)"
    raise ValueError(
        f"X contains {what} at row {row}, column {name}{at} ({int(bad.sum())} such values in all). "
        "Drop or fill these rows first."
    )
