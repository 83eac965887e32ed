"""Columns of files that describe clusters and are never fitted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedmixtures.io.arrow import KINDS, read_frame
from fedmixtures.io.category_columns import cells_of
from fedmixtures.io.tables import find_files


def read_described(
    sources: Sequence[str], names: Sequence[str], delimiter: str | None = None
) -> dict[str, list[Any]]:
    """Cells of columns that all files have, by name, in the order of `read_table`'s rows."""
    found: dict[str, list[Any]] = {name: [] for name in names}
    for file in find_files(sources) if names else ():
        if KINDS[file.suffix.lower()] == "npz":
            of = _arrays(file)
            cells = {name: of[name].tolist() for name in names}
        else:
            frame = read_frame(file, delimiter)
            cells = {name: cells_of(frame.column(name)) for name in names}
        for name in names:
            found[name] += cells[name]
    return found


def _arrays(path: Path) -> dict[str, np.ndarray]:
    """Columns of the array X by their names."""
    with np.load(path, allow_pickle=False) as file:
        X = file["X"]
        names = file["feature_names"] if "feature_names" in file.files else ()
    names = [str(n) for n in names] or [f"x{i}" for i in range(X.shape[1])]
    return dict(zip(names, X.T, strict=True))
