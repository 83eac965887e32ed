r"""Categorical columns: which there are, and how they stand among numbers.

A mixture with categories is, in every component, a Gaussian of the continuous columns times one
table of shares for each categorical column. Encoded, the continuous columns come first, then a
one-hot block for each categorical column; a missing category is a block of NaN. The mean of a
one-hot column is a share, so that sums, messages and averages need no other form; covariances are
of the continuous columns (`Mixture.is_mixed`).

For a fit a category counts a little for every other one of its column (`softened`): no table then
says that what a node has not seen is impossible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedmixtures import _checks
from fedmixtures.data.node_data import NodeData

MOST_LEVELS = 30
"""A column of words of more different ones is no category but an identifier or free text."""
SOFT = 0.005
"""The part of a row that counts for all categories of a column alike, in a fit."""


@dataclass(frozen=True)
class Categories:
    """The categorical columns of a table and their values; made by `found_in`."""

    n_columns: int
    """Of the table, without the node column."""
    positions: tuple[int, ...]
    levels: tuple[tuple[Any, ...], ...]
    """Values of each, sorted."""

    @classmethod
    def of(cls, n_columns: int, levels: Mapping[int, tuple[Any, ...]]) -> Categories | None:
        """From the levels of each categorical column, by its position; None if there is none."""
        places = sorted(levels)
        return cls(n_columns, tuple(places), tuple(levels[i] for i in places)) if places else None

    @property
    def sizes(self) -> tuple[int, ...]:
        """Columns of each one-hot block."""
        return tuple(map(len, self.levels))

    @property
    def continuous(self) -> tuple[int, ...]:
        """The other columns of the table."""
        return tuple(i for i in range(self.n_columns) if i not in self.positions)

    @property
    def blocks(self) -> list[slice]:
        """Where each one-hot block stands among the encoded columns."""
        ends = len(self.continuous) + np.cumsum((0, *self.sizes))
        return [slice(int(a), int(b)) for a, b in zip(ends[:-1], ends[1:], strict=True)]

    def names(self, features: Sequence[str]) -> tuple[str, ...]:
        """Of the encoded columns: ``"age"``, ``"sex=female"``."""
        found = [features[i] for i in self.continuous]
        for i, levels in zip(self.positions, self.levels, strict=True):
            found += [f"{features[i]}={level}" for level in levels]
        return tuple(found)

    def encoded(self, codes: np.ndarray) -> np.ndarray:
        """Encoded columns of a table of numbers in which categories are numbers of levels."""
        parts = [codes[:, list(self.continuous)]]
        for i, size in zip(self.positions, self.sizes, strict=True):
            code = codes[:, i]
            block = (code[:, None] == np.arange(size)).astype(np.float64)
            block[np.isnan(code)] = np.nan
            parts.append(block)
        return np.concatenate(parts, axis=1)

    def softened(self, data: NodeData) -> NodeData:
        """Rows as a fit sees them: a category counts a little for the others of its column."""
        rows = data.rows.copy()
        for block, size in zip(self.blocks, self.sizes, strict=True):
            rows[:, block] = (1 - SOFT) * rows[:, block] + SOFT / size
        return replace(data, rows=rows)

    def decoded(
        self, rows: np.ndarray, features: Sequence[str], rng: np.random.Generator | None = None
    ) -> dict[str, np.ndarray]:
        """Columns of the table, by name; of shares the greatest, or a draw."""
        columns: dict[int, np.ndarray] = {}
        for place, i in enumerate(self.continuous):
            columns[i] = rows[:, place]
        for i, levels, block in zip(self.positions, self.levels, self.blocks, strict=True):
            shares = rows[:, block]
            if rng is None:
                code = shares.argmax(1)
            else:
                total = np.cumsum(shares, axis=1)
                code = (rng.random((len(rows), 1)) * total[:, -1:] > total[:, :-1]).sum(1)
            columns[i] = np.array(levels, dtype=object)[code]
        return {features[i]: columns[i] for i in sorted(columns)}


def columns_of(X: Any) -> dict[Any, np.ndarray] | None:
    """Columns of a table or an array by name or number, as arrays; None for what is neither."""
    import narwhals as nw

    frame = nw.from_native(X, eager_only=True, pass_through=True)
    if isinstance(frame, nw.DataFrame):
        return dict(zip(frame.columns, map(_plain_array, frame.iter_columns()), strict=True))
    if isinstance(X, np.ndarray) and X.ndim == 2:
        return dict(enumerate(X.T))
    return None


def _plain_array(series: Any) -> np.ndarray:
    """A column as an array: of numbers and booleans as they are, else of objects."""
    kind = series.dtype
    if kind.is_numeric() or str(kind) == "Boolean":
        missing = series.is_null()
        if not missing.any():
            return series.to_numpy()
        if str(kind) != "Boolean":
            return series.to_numpy().astype(np.float64)
    values = np.empty(len(series), dtype=object)
    values[:] = series.to_list()
    return values


def found_in(X: Any, wanted: Any, able: bool) -> Categories | None:
    """The categorical columns: those `wanted`, and of others words and booleans if `able`."""
    columns = columns_of(X)
    wanted = [wanted] if isinstance(wanted, (str, int)) else list(wanted or ())
    if columns is None:
        if wanted:
            raise ValueError(f"`categorical` names columns, but X is a {type(X).__name__}.")
        return None
    if unknown := [name for name in wanted if name not in columns]:
        raise ValueError(
            f"`categorical` names {_checks.listed(unknown)}, but the columns are "
            f"{_checks.listed(columns, 12)}."
        )
    found = {}
    for i, (name, cells) in enumerate(columns.items()):
        if name in wanted or (able and is_categorical(cells)):
            found[i] = levels_of(cells, f"column {name!r} of X")
    return Categories.of(len(columns), found)


def _is_missing(cell: Any) -> bool:
    return cell is None or cell != cell or (isinstance(cell, str) and not cell.strip())


def is_categorical(cells: np.ndarray) -> bool:
    """Whether a column is of booleans or of words, few of them, none of which is a number."""
    if cells.dtype == bool:
        return True
    if cells.dtype.kind not in "OUS":
        return False
    there = [cell for cell in cells.tolist() if not _is_missing(cell)]
    if not there or not all(isinstance(cell, (str, bool, np.bool_)) for cell in there):
        return False
    known = set(there)
    few = len(known) <= MOST_LEVELS and 2 * len(known) <= len(cells)
    return few and not any(_is_number(cell) for cell in known if isinstance(cell, str))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def levels_of(cells: np.ndarray, column: str) -> tuple[Any, ...]:
    """Different values that are there, sorted where they can be; neither none nor too many."""
    known = {_checks.plain(cell) for cell in cells.tolist() if not _is_missing(cell)}
    if len(known) > MOST_LEVELS or not known:
        raise ValueError(
            f"{column} is to be categorical and has {len(known)} different values. Give one of 1 "
            f"to {MOST_LEVELS}: join rare ones, or leave it out."
        )
    try:
        return tuple(sorted(known))
    except TypeError:
        return tuple(sorted(known, key=repr))


def codes_of(cells: Sequence[Any], levels: Sequence[Any]) -> tuple[np.ndarray, list[Any]]:
    """The number of every cell among `levels`, NaN where it is missing; and unknown values."""
    code: Mapping[Any, int] = {level: number for number, level in enumerate(levels)}
    plain = [None if _is_missing(cell) else _checks.plain(cell) for cell in cells]
    found = np.array([np.nan if cell is None else code.get(cell, np.nan) for cell in plain])
    new = {cell for cell in plain if cell is not None and cell not in code}
    return found, sorted(map(str, new))


def with_codes(X: Any, categories: Categories) -> tuple[Any, list[tuple[Any, list[Any]]]]:
    """The table with numbers of levels in place of categories; and values that are unknown.

    What is unknown is taken as missing.
    """
    import narwhals as nw

    columns = columns_of(X)
    if columns is None or len(columns) != categories.n_columns:
        return X, []  # is refused where numbers are read
    names, unknown = list(columns), []
    for i, levels in zip(categories.positions, categories.levels, strict=True):
        columns[names[i]], new = codes_of(columns[names[i]].tolist(), levels)
        if new:
            unknown.append((names[i], new))
    frame = nw.from_native(X, eager_only=True, pass_through=True)
    if isinstance(frame, nw.DataFrame):
        kind = nw.get_native_namespace(frame)
        return nw.from_dict({str(n): of for n, of in columns.items()}, backend=kind).to_native(), (
            unknown
        )
    return np.stack([np.asarray(of, dtype=object) for of in columns.values()], axis=1), unknown
