"""What an ordinary mixture fit is given, what comes back, and which fits go together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedmixtures import _checks
from fedmixtures._types import Label
from fedmixtures.mixture.mixture import Mixture

BATCH_CELLS = 20_000_000
"""Rows times components of all fits in one device call, at most."""


@dataclass(frozen=True)
class Task:
    """One mixture to fit."""

    label: Label
    rows: np.ndarray
    counts: np.ndarray
    """Weight of each row."""
    n_components: int
    seed: int
    start: Mixture | None = None
    """Begin here, instead of k-means."""


@dataclass(frozen=True)
class Fits:
    """Fitted mixtures, and where EM was stopped before it had settled."""

    mixtures: list[Mixture]
    unsettled: list[Label]

    def message(self, max_iter: int) -> str:
        """A line for the user; empty if all is well."""
        if not self.unsettled:
            return ""
        return (
            f"EM had not settled after max_iter={max_iter} steps at "
            f"{_checks.listed(self.unsettled)}. "
            "Raise max_iter or tol if that matters."
        )


def batches_of(tasks: list[Task], n_init: int) -> list[list[int]]:
    """Tasks of alike size together, so that little is padded; a bounded number at a time."""
    by_size: dict[int, list[int]] = {}
    for i, task in enumerate(tasks):
        by_size.setdefault(max(len(task.rows) - 1, 1).bit_length(), []).append(i)
    batches = []
    for bits, members in sorted(by_size.items()):
        k = max(tasks[i].n_components for i in members)
        width = max(1, BATCH_CELLS // (n_init * k << bits))
        batches += [members[i : i + width] for i in range(0, len(members), width)]
    return batches


def in_order(task: Task) -> Task:
    """Rows in their own order, whatever order they came in: k-means draws by position."""
    order = np.lexsort(task.rows.T[::-1])
    rows, counts = task.rows[order], task.counts[order]
    return Task(task.label, rows, counts, task.n_components, task.seed, task.start)


def repeated(task: Task) -> np.ndarray:
    """Rows as often as they count."""
    times = np.rint(task.counts).astype(int)
    if not np.allclose(task.counts, times):
        raise ValueError(
            f"`sample_weight` has fractions at {_checks.plain(task.label)!r}, which scikit-learn's "
            "mixture cannot count. Use engine='jax'."
        )
    return np.repeat(task.rows, times, axis=0)
