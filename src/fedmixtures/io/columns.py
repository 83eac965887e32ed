"""Columns of a table as numbers and as labels."""

from __future__ import annotations

from typing import Any

import numpy as np


def numeric_column(column: Any, name: str, file: str) -> np.ndarray:
    """A column of an Arrow table as float64, empty cells as NaN; text is refused by its place."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind):
        return np.asarray(column.cast(pa.float64()).to_numpy(zero_copy_only=False), dtype=float)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _numbers_in_text(column.to_pylist(), name, file)
    raise ValueError(
        f"column {name!r} of {file} holds {kind} values. Features must be numbers: convert it, "
        "or choose columns with --features."
    )


def _numbers_in_text(cells: list[str | None], name: str, file: str) -> np.ndarray:
    """Numbers where every cell is one: a CSV that Arrow could not read in one type."""
    values = np.empty(len(cells))
    for row, cell in enumerate(cells):
        try:
            values[row] = float(cell) if cell else np.nan
        except ValueError:
            raise ValueError(
                f"column {name!r} of {file} holds the text {cell!r} at row {row}. Features must "
                "be numbers: correct the cell, or choose columns with --features."
            ) from None
    return values


def plain_labels(labels: Any) -> np.ndarray:
    """Node labels as integers where all are written as such, else as text.

    ``"07"`` stays text: it would not come back as it was written.
    """
    array = np.asarray(labels)
    if np.issubdtype(array.dtype, np.integer):
        return array.astype(np.int64)
    distinct, index = np.unique(array.astype(str), return_inverse=True)
    if all(_is_integer(text) for text in distinct.tolist()):
        return distinct.astype(np.int64)[index]
    return distinct[index]


def _is_integer(text: str) -> bool:
    try:
        return str(int(text)) == text
    except ValueError:
        return False
