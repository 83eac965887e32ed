"""Rows that are hard on a fit: another scale or offset, atoms, collinear columns, heavy tails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedmixtures.data.scenarios import Scenario, shifted_blocks
from reproduction.tasks.csv_tables import Split

PLAIN: dict[str, Any] = {
    "n_blocks": 3,
    "nodes_per_block": 4,
    "n_components": 3,
    "n_features": 4,
    "n_train": 60,
    "n_validation": 200,
}
"""Twelve nodes of three groups, sixty rows each."""
STREAM = 13
COLLINEAR_SD, OUTLIER_SHARE, OUTLIER_SD, DEGREES, REPEATS = 0.01, 0.05, 100.0, 1.5, 3
CONSTANT = 3.0


class _Rows(NamedTuple):
    """Rows of one half of a scenario, with what they were drawn from."""

    X: np.ndarray
    centres: np.ndarray
    """The mean of each row's component."""
    rng: np.random.Generator
    train: bool


def _outliers(rows: _Rows) -> np.ndarray:
    away = rows.rng.random(len(rows.X)) < OUTLIER_SHARE
    far = OUTLIER_SD * rows.rng.standard_normal(rows.X.shape)
    return np.where(away[:, None], far, rows.X)


def _heavy(rows: _Rows) -> np.ndarray:
    return rows.centres + rows.rng.standard_t(DEGREES, size=rows.X.shape)


def _collinear(rows: _Rows) -> np.ndarray:
    noise = COLLINEAR_SD * rows.rng.standard_normal((len(rows.X), 1))
    return np.hstack([rows.X, rows.X[:, :1] + noise])


STRESSES: dict[str, Callable[[_Rows], np.ndarray]] = {
    "none": lambda rows: rows.X,
    "x0.01": lambda rows: 0.01 * rows.X,
    "x0.03": lambda rows: 0.03 * rows.X,
    "collinear": _collinear,
    "outliers": _outliers,
    "t1.5": _heavy,
    "repeated": lambda rows: np.repeat(rows.X, REPEATS, axis=0) if rows.train else rows.X,
    "means-1e5": lambda rows: rows.X + 1e5,
    "float32": lambda rows: rows.X,
    "constant": lambda rows: np.hstack([rows.X, np.full((len(rows.X), 1), CONSTANT)]),
    "duplicate": lambda rows: np.hstack([rows.X, rows.X[:, :1]]),
    "x1e-6": lambda rows: 1e-6 * rows.X,
    "x1e6": lambda rows: 1e6 * rows.X,
    "+1e6": lambda rows: rows.X + 1e6,
}
"""What is done to training and test rows alike (repeated: training rows alone)."""
UNITS = {"x0.01": 0.01, "x0.03": 0.03, "x1e-6": 1e-6, "x1e6": 1e6, "means-1e5": 1.0, "+1e6": 1.0}
"""Stresses that change units alone, with the factor: the fit should not notice."""


def stressed(data: dict[str, Any], seed: int) -> Split:
    """Training and test rows of one seed under one stress."""
    found = shifted_blocks(**PLAIN, seed=seed)
    train, test = (
        STRESSES[data["stress"]](_half(found, part, seed)) for part in ("", "_validation")
    )
    times = len(train) // len(found.X)
    labels = found.components_validation
    return Split(train, np.repeat(found.nodes, times), test, found.nodes_validation, labels)


def _half(found: Scenario, part: str, seed: int) -> _Rows:
    nodes, components = getattr(found, f"nodes{part}"), getattr(found, f"components{part}")
    assert found.means is not None
    rng = np.random.default_rng([STREAM, seed, len(part)])
    return _Rows(getattr(found, f"X{part}"), found.means[nodes, components], rng, part == "")
