"""What users give: the node column of a table, columns that are no numbers, or mislead."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from fedmixtures import _checks
from fedmixtures.data.node_data import NodeData
from fedmixtures.engine.solution import FitWarning
from fedmixtures.methods.base import Method
from fedmixtures.methods.registry import remedy_for_gaps

COLLINEAR = 1e-7  # share of a column's variance that others leave over where they determine it
ENOUGH = 30  # rows of a node of which a single value in a column is remarkable
FEW_VALUES = 10  # a column of at most so many values, each ten times on average, is told of


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


def rows_and_nodes(X: Any, nodes: Any) -> tuple[np.ndarray, np.ndarray]:
    """Numbers and labels of a table or an array, `nodes` as for `fit`."""
    import narwhals as nw

    given, labels = split_nodes(X, nodes)
    refuse_dates(given)
    frame = nw.from_native(given, eager_only=True, pass_through=True)
    try:
        rows = frame.to_numpy() if isinstance(frame, nw.DataFrame) else given
        return np.asarray(rows, dtype=np.float64), np.asarray(labels)
    except (ValueError, TypeError) as error:
        named = text_column(given)
        if not named:
            raise
        raise ValueError(named) from error


def without_node_column(X: Any, column: str | None, node: Any) -> Any:
    """A table of one node's rows without the column that names it, which must name that node."""
    import narwhals as nw

    frame = nw.from_native(X, eager_only=True, pass_through=True)
    if column is None or not isinstance(frame, nw.DataFrame) or column not in frame.columns:
        return X
    X, labels = split_nodes(X, column)
    for row, label in enumerate(labels.tolist()):
        if label != node:
            raise ValueError(
                f"`node` is {node!r}, but column {column!r} names {label!r} at row {row}. Give "
                "rows of one node alone."
            )
    return X


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


def refuse_dates(X: Any) -> None:
    """Columns of dates, times and durations are refused: some libraries take them as numbers."""
    import narwhals as nw

    frame = nw.from_native(X, eager_only=True, pass_through=True)
    if isinstance(frame, nw.DataFrame):
        for name, kind in frame.schema.items():
            if kind.is_temporal():
                raise ValueError(_no_number(name, f"{kind} values"))
    elif isinstance(X, np.ndarray) and X.dtype.kind in "Mm":
        raise ValueError(_no_number(0, f"{X.dtype} values"))


def _no_number(name: Any, what: str) -> str:
    return (
        f"column {name!r} of X holds {what}. Features must be numbers: make it one, such as days "
        "since a first day, or leave it out."
    )


def text_column(X: Any) -> str:
    """Name the first column that holds no numbers, with what it holds; empty if there is none."""
    import narwhals as nw

    frame = nw.from_native(X, eager_only=True, pass_through=True)
    if isinstance(frame, nw.DataFrame):
        columns = {name: frame[name].to_list() for name in frame.columns}
    elif isinstance(X, np.ndarray) and X.ndim == 2 and X.dtype.kind in "OUS":
        columns = dict(enumerate(X.T.tolist()))
    else:
        return ""
    for name, cells in columns.items():
        for row, cell in enumerate(cells):
            if isinstance(cell, (str, bytes)) and not _is_number(cell):
                return (
                    f"column {name!r} of X holds the text {cell!r} at row {row}. Features must be "
                    "numbers: encode the column or leave it out."
                )
            if hasattr(cell, "strftime"):
                return _no_number(name, f"the date {str(cell)!r} at row {row}")
    return ""


def _is_number(text: str | bytes) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def warn_of_columns(data: NodeData, columns: Any, method: Method) -> None:
    """Warn of columns that are constant, everywhere or at a node, or take few values."""
    for note in notes_on_columns(data, columns, method):
        warnings.warn(note, FitWarning, stacklevel=3)


def notes_on_columns(
    data: NodeData, columns: Any, method: Method, categorical: str = "`categorical`"
) -> list[str]:
    """What a density in these columns would be misleading about, in words.

    A column of one value at a small node is nothing to a method whose nodes weigh what all have
    found. `categorical` is where categories are named.
    """
    data = data.continuous
    names = range(data.n_features) if columns is None else columns
    name = lambda c: repr(_checks.plain(names[c]))
    low = np.fmin.reduceat(data.rows, data.offsets[:-1])
    high = np.fmax.reduceat(data.rows, data.offsets[:-1])
    least = np.fmin.reduce(low)
    everywhere = least == np.fmax.reduce(high)
    at_node = (low == high) & (data.counts > 1)[:, None] & ~everywhere
    if method.has_levels:
        at_node &= (data.counts > ENOUGH)[:, None]
    found = [f"column {name(c)} is {least[c]:g} in every row" for c in np.flatnonzero(everywhere)]
    found += [
        f"column {name(c)} has a single value at node "
        + _checks.listed(data.labels[i] for i in np.flatnonzero(at_node[:, c]))
        for c in np.flatnonzero(at_node.any(0))
    ]
    notes = []
    if found and len(data.rows) > 1:
        more = f" (and {len(found) - 5} more such columns)" if len(found) > 5 else ""
        notes.append(
            f"{'; '.join(found[:5])}{more}: it cannot tell rows apart there, and densities are as "
            "high as the smallest variance allows. Leave such columns out, or raise `reg_covar`."
        )
    for group in collinear(data.rows):
        named = _checks.listed(_checks.plain(names[c]) for c in group).replace("'", "")
        notes.append(
            f"{named} determine each other up to rounding: a density in them is as high as the "
            "smallest variance allows and tells nothing more. Leave one of them out."
        )
    few = {c: n for c in np.flatnonzero(~everywhere) if (n := _few_values(data.rows[:, c]))}
    if few:
        listed = _checks.listed((f"{_checks.plain(names[c])} ({n})" for c, n in few.items()), 6)
        notes.append(
            f"few values in {listed.replace(chr(39), '')}: a Gaussian density of such a column "
            "grows as components close in on single values. If these are categories, name them in "
            f"{categorical}; compare fits of the same columns only."
        )
    return notes


def collinear(rows: np.ndarray) -> list[list[int]]:
    """Groups of columns each of which has one that is a linear function of the others."""
    whole = rows[~np.isnan(rows).any(1)]
    varies = np.flatnonzero(np.ptp(whole, axis=0) > 0) if len(whole) else np.zeros(0, int)
    if len(whole) <= 2 * len(varies) or len(varies) < 2:
        return []
    x = whole[:, varies]
    left = (x - x.mean(0)) / x.std(0)
    kept: list[int] = []
    found = []
    for i in range(len(varies)):
        if not kept:
            kept.append(i)
            continue
        part = np.linalg.lstsq(left[:, kept], left[:, i], rcond=None)[0]
        if np.square(left[:, i] - left[:, kept] @ part).mean() > COLLINEAR:
            kept.append(i)
        else:
            these = [kept[j] for j in np.flatnonzero(np.abs(part) > 1e-3)]
            found.append([int(varies[j]) for j in (*these, i)])
    return found


def _few_values(column: np.ndarray) -> int:
    """How many values a column takes where they are few, each many times over; else zero."""
    there = column[~np.isnan(column)]
    if len(there) < 2 * FEW_VALUES:
        return 0
    some = np.unique(there[:: max(1, len(there) // 1000)])  # enough to tell most columns apart
    if len(some) > FEW_VALUES:
        return 0
    n = len(np.unique(there))
    return n if n <= FEW_VALUES and len(there) >= 10 * n else 0


def check_finite(X: np.ndarray, nodes: Any, columns: Any, gaps: bool = False) -> None:
    """Infinity, and NaN unless there may be `gaps`, are refused with row, node and column."""
    bad = np.isinf(X) if gaps else ~np.isfinite(X)
    if not bad.any():
        return
    row, column = np.argwhere(bad)[0]
    name = repr(_checks.plain(columns[column])) if columns is not None else column
    at = "" if nodes is None else f", node {_checks.plain(np.asarray(nodes)[row])!r}"
    what = "NaN" if np.isnan(X[row, column]) else "infinity (inf)"
    raise ValueError(
        f"X contains {what} at row {row}, column {name}{at} ({int(bad.sum())} such values in all). "
        "Drop or fill these rows first" + (f", or {remedy_for_gaps()}." if what == "NaN" else ".")
    )
