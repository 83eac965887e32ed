"""What is known of rows beside their features, by cluster: shares of categories, means of numbers.

Such columns are never fitted. Every row counts in each cluster by its membership. What fewer than
`SMALLEST` rows stand behind is not kept, so that it is in no file either.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmixtures import _checks
from fedmixtures._types import Label
from fedmixtures.data.node_data import NodeData
from fedmixtures.engine.solution import Solution
from fedmixtures.estimators.scoring import assigned, log_joints, probabilities

if TYPE_CHECKING:
    import pandas as pd

SMALLEST = 5
"""Rows, by their memberships, below which a share or a mean is hidden."""
HIDDEN = f"<{SMALLEST}"
MOST_LEVELS = 12
"""Values of a category that are told apart; the rarer ones are one more together."""
OTHERS = "(others)"
FEW_VALUES = 10
"""A column of at most so many different numbers is a category."""
MOST_NODES = 10_000
"""Up to which columns are described node by node."""


@dataclass(frozen=True)
class DescribedColumn:
    """A column that describes clusters."""

    name: str
    levels: tuple[str, ...] = ()
    """Values of a category; none for numbers."""

    @property
    def cells(self) -> tuple[str, ...]:
        """What is told of it: ``"sex=female"`` and the other values, or its name for a mean."""
        return tuple(f"{self.name}={level}" for level in self.levels) or (self.name,)


@dataclass(frozen=True, eq=False)
class Description:
    """Clusters by columns that were not fitted; arrays have a cell for each value, or number."""

    columns: tuple[DescribedColumn, ...]
    means: np.ndarray
    """(1 + nodes, k + 1, cells) share of the rows whose value is known, or mean of numbers; first
    of the whole network, last of all clusters together. NaN is hidden."""
    spreads: np.ndarray
    """Likewise, standard deviations of numbers; NaN for shares."""

    @property
    def cells(self) -> tuple[str, ...]:
        """Names of the cells."""
        return tuple(cell for column in self.columns for cell in column.cells)

    def table(self, names: Sequence[str], place: int = 0) -> pd.DataFrame:
        """A line for each cluster and for all rows; `place` 0 is the network, else a node."""
        import pandas as pd

        found: dict[str, Any] = {}
        is_number = [not column.levels for column in self.columns for _ in column.cells]
        for i, (cell, number) in enumerate(zip(self.cells, is_number, strict=True)):
            found[cell] = _shown(self.means[place, :, i])
            if number:
                found[f"{cell} (sd)"] = _shown(self.spreads[place, :, i])
        return pd.DataFrame(found, index=[*names, "all"]).rename_axis("cluster")


def _shown(values: np.ndarray) -> Any:
    """Numbers, with words where they are hidden."""
    gone = np.isnan(values)
    if not gone.any():
        return values
    return [HIDDEN if hidden else v for v, hidden in zip(values.tolist(), gone, strict=True)]


def described(
    columns: Mapping[str, Sequence[Any]], memberships: np.ndarray, data: NodeData
) -> Description:
    """Columns by cluster: `memberships` (rows, k) in the order of `data`, cells as they came in."""
    order = data.source_index
    weight = np.asarray(data.row_weights, dtype=np.float64)[:, None]
    inside = np.concatenate([memberships, memberships.sum(1, keepdims=True)], axis=1)
    starts = data.offsets[:-1] if data.n_nodes <= MOST_NODES else data.offsets[:0]
    of_all = np.zeros(1, dtype=np.int64)
    summed = lambda values: np.concatenate(
        [np.add.reduceat(values, at, axis=0) for at in (of_all, starts) if len(at)]
    )
    told, means, spreads = [], [], []
    for name, cells in columns.items():
        levels, values = _values([cells[i] for i in order])
        told.append(DescribedColumn(name, levels))
        there = inside * ~np.isnan(values)[:, None]
        total = summed(there * weight)
        if levels:
            for level in range(len(levels)):
                here = there * (values == level)[:, None]
                enough = summed(here) >= SMALLEST
                means.append(np.where(enough, summed(here * weight) / _positive(total), np.nan))
                spreads.append(np.full(total.shape, np.nan))
            continue
        enough = summed(there) >= SMALLEST
        known = values[~np.isnan(values)]
        middle = float(known.mean()) if len(known) else 0.0
        off = np.nan_to_num(values - middle)[:, None]
        mean, square = (summed(there * weight * off**p) / _positive(total) for p in (1, 2))
        means.append(np.where(enough, middle + mean, np.nan))
        spreads.append(np.where(enough, np.sqrt(np.maximum(square - mean**2, 0.0)), np.nan))
    return Description(tuple(told), np.stack(means, axis=-1), np.stack(spreads, axis=-1))


def of_solution(
    columns: Mapping[str, Sequence[Any]], solution: Solution, data: NodeData, soft: bool
) -> Description:
    """Columns by the clusters of a solution, of rows in units of the fit."""
    joint = log_joints(solution, replace(data, source_index=np.arange(len(data.rows))))
    return described(columns, memberships(joint, soft), data)


def memberships(joint: np.ndarray, soft: bool) -> np.ndarray:
    """(rows, k) of every row; of methods without densities that of one cluster."""
    return probabilities(joint) if soft else np.eye(joint.shape[1])[assigned(joint)]


def _positive(total: np.ndarray) -> np.ndarray:
    return np.where(total > 0, total, 1.0)


def _values(cells: Sequence[Any]) -> tuple[tuple[str, ...], np.ndarray]:
    """The levels of a category and the number of each row's; or no levels, and numbers."""
    numbers = _numbers(cells)
    if numbers is not None:
        found = np.unique(numbers[~np.isnan(numbers)])
        if len(found) > FEW_VALUES:
            return (), numbers
        place = np.searchsorted(found, numbers).astype(np.float64)
        return tuple(f"{v:g}" for v in found), np.where(np.isnan(numbers), np.nan, place)
    written = [None if _is_missing(cell) else str(cell) for cell in cells]
    words = [word for word in written if word is not None]
    found, counts = np.unique(words, return_counts=True)
    most = np.sort(np.lexsort((np.arange(len(found)), -counts))[:MOST_LEVELS])
    place = {str(found[i]): float(n) for n, i in enumerate(most)}
    levels = (*place, OTHERS) if len(found) > len(most) else tuple(place)
    return levels, np.array(
        [np.nan if word is None else place.get(word, float(len(place))) for word in written]
    )


def _numbers(cells: Sequence[Any]) -> np.ndarray | None:
    """The cells as numbers, what is missing and infinity as NaN; None where they are words."""
    if any(isinstance(cell, (bool, np.bool_)) for cell in cells):
        return None
    try:
        numbers = np.array([np.nan if _is_missing(cell) else float(cell) for cell in cells])
    except (ValueError, TypeError):
        return None
    return np.where(np.isfinite(numbers), numbers, np.nan)


def _is_missing(cell: Any) -> bool:
    return cell is None or cell != cell or (isinstance(cell, str) and not cell.strip())


def take_described(X: Any, nodes: Any, describe: Any) -> tuple[Any, dict[str, list[Any]]]:
    """The table without the columns that describe, and their cells by name."""
    import narwhals as nw

    if describe is None:
        return X, {}
    frame = nw.from_native(X, eager_only=True, pass_through=True)
    given = nw.from_native(describe, eager_only=True, allow_series=True, pass_through=True)
    own = frame.columns if isinstance(frame, nw.DataFrame) else []
    if isinstance(given, nw.Series):
        given = given.to_frame()
    if isinstance(given, nw.DataFrame):
        cells = {str(name): given[name].to_list() for name in given.columns}
    elif isinstance(describe, Mapping):
        cells = {str(name): list(column) for name, column in describe.items()}
    else:
        if not isinstance(frame, nw.DataFrame):
            raise ValueError(
                f"`describe` names columns, but X is a {type(X).__name__} without column names. "
                "Give a table of these columns, with a row for each row of X."
            )
        names = _names(describe, own, nodes)
        left = frame.drop(names)
        if not set(left.columns) - {nodes if isinstance(nodes, str) else None}:
            raise ValueError("`describe` names all columns: none is left to fit.")
        return left.to_native(), {name: frame[name].to_list() for name in names}
    _check_beside(cells, own, nodes, len(X))
    return X, cells


def _names(describe: Any, own: Sequence[str], nodes: Any) -> list[str]:
    """The columns that are named, each once."""
    if isinstance(describe, str):
        describe = [describe]
    if not isinstance(describe, Iterable):
        raise ValueError(f"`describe` is {describe!r}. Name columns, or give a table of them.")
    names = list(dict.fromkeys(describe))
    if unknown := [name for name in names if name not in own]:
        raise ValueError(
            f"`describe` names {_checks.listed(unknown)}, but the columns are "
            f"{_checks.listed(own, 12)}."
        )
    if isinstance(nodes, str) and nodes in names:
        raise ValueError(
            f"`describe` names {nodes!r}, the column of nodes. `atlas_.share_table()` says which "
            "clusters each node has; leave it out."
        )
    return names


def _check_beside(
    cells: Mapping[str, Sequence[Any]], own: Sequence[str], nodes: Any, rows: int
) -> None:
    """A table beside X has its rows, and none of its columns."""
    if not cells:
        raise ValueError("`describe` is a table without columns.")
    for name, column in cells.items():
        if len(column) != rows:
            raise ValueError(
                f"column {name!r} of `describe` has {len(column)} rows, but X has {rows}. Give a "
                "row for each row of X."
            )
        if name in own:
            what = "the column of nodes" if name == nodes else "a feature"
            raise ValueError(
                f"`describe` holds {name!r}, which is {what} in X, too. Leave it out of one of "
                "them."
            )


def without_described(X: Any, known: Description | None, features: Iterable[str]) -> Any:
    """A table of new rows without the columns that described the fit."""
    import narwhals as nw

    if known is None:
        return X
    frame = nw.from_native(X, eager_only=True, pass_through=True)
    if not isinstance(frame, nw.DataFrame):
        return X
    names = [
        c.name for c in known.columns if c.name in frame.columns and c.name not in set(features)
    ]
    return frame.drop(names).to_native() if names else X


def places(labels: Sequence[Label], known: Description, node: Label | None) -> int:
    """Where a node stands in the arrays; 0 for the whole network."""
    if node is None:
        return 0
    described_nodes = labels[: len(known.means) - 1]
    if _checks.plain(node) not in described_nodes:
        raise ValueError(
            f"there is no description of node {_checks.plain(node)!r}. There is one of "
            f"{_checks.listed(described_nodes, 12) or 'the whole network alone'}."
        )
    return 1 + described_nodes.index(_checks.plain(node))
