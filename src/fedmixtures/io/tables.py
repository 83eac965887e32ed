"""Tables of rows from files: CSV, Parquet, Feather, NPZ; one table, or one file per node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedmixtures import _checks
from fedmixtures.data.categories import Categories
from fedmixtures.data.node_data import NodeData
from fedmixtures.io.arrow import KINDS, check_delimiter, columns_of, numeric_column
from fedmixtures.io.category_columns import (
    categories_of,
    cells_of,
    check_forgotten_nodes,
    codes,
    marks,
    may_be_category,
)
from fedmixtures.io.no_features import ColumnKind, features_alone, look_at


@dataclass(frozen=True)
class Table:
    """Rows of all nodes as numbers, with what is needed to name any of them in a message."""

    rows: np.ndarray
    nodes: np.ndarray  # label of the node that holds each row
    features: tuple[str, ...]
    files: tuple[str, ...]
    origin: np.ndarray  # position in `files` of the file each row came from
    row_in_file: np.ndarray  # number of each row in its file, counted from 0 without the header
    left_out: tuple[tuple[str, str], ...] = ()  # columns that are no features, and why
    doubtful: tuple[str, ...] = ()  # features that may be identifiers
    categories: Categories | None = None  # features of which `rows` holds numbers of levels
    unknown: tuple[tuple[str, list[str]], ...] = ()  # categories, and values they should not have

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.rows)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of `by_node`: categories are one-hot."""
        return self.features if self.categories is None else self.categories.names(self.features)

    def as_given(self) -> dict[str, Any]:
        """Its features by name, categories as they were written."""
        found: dict[str, Any] = dict(zip(self.features, self.rows.T, strict=True))
        if self.categories is not None:
            for i, levels in zip(self.categories.positions, self.categories.levels, strict=True):
                written = [None if c != c else levels[int(c)] for c in self.rows[:, i].tolist()]
                found[self.features[i]] = written
        return found

    def by_node(self) -> NodeData:
        """Rows by node; categories as one-hot columns, which come last."""
        if self.categories is None:
            return NodeData.from_rows(self.rows, self.nodes)
        data = NodeData.from_rows(self.categories.encoded(self.rows), self.nodes)
        return replace(data, categories=self.categories.sizes)

    def where(self, row: int) -> str:
        """Name a row in a message."""
        name = Path(self.files[self.origin[row]]).name
        node = _checks.plain(self.nodes[row])
        return f"row {self.row_in_file[row]} of {name} (node {node!r})"


def read_table(
    sources: Sequence[str],
    nodes: str | None = None,
    features: Sequence[str] | None = None,
    delimiter: str | None = None,
    constant_ok: bool = False,
    drop: Sequence[str] = (),
    label: str | None = None,
    describe: Sequence[str] = (),
    recognise: bool = False,
    categorical: Sequence[str] | None = None,
    known: Mapping[str, Sequence[Any]] | None = None,
) -> Table:
    """Read all rows.

    Parameters
    ----------
    sources
        Files, folders or patterns. With `nodes`, all files are parts of one table; without, every
        file is one node, named like the file without its ending.
    nodes
        The column that names the node of each row.
    features
        Columns to use; by default all but the node column.
    delimiter
        Between the cells of a CSV; a comma, or a tab for ``.tsv``.
    constant_ok
        Whether a column may be the same in all rows: fine for prediction, not for a fit.
    drop, label, describe
        Columns that are no features, the one that holds what is known of rows, and those that tell
        what clusters are: all left out.
    recognise
        Whether to leave out what is no feature by its cells (`io/no_features.py`), unless
        `features` are chosen.
    categorical
        Columns that are categories; those of words and of booleans are so without being named.
        None: there are none, all features must be numbers.
    known
        The categories, with the values of each, where they are known: others are taken as missing.
    """
    files = find_files(sources)
    unwanted = _unwanted(drop, label, describe, nodes, features)
    recognise = recognise and features is None
    named = set(known) if known is not None else categorical
    how = nodes, features, delimiter, unwanted, recognise, None if named is None else set(named)
    parts, held, columns, seen, cells = zip(
        *(_read_file(file, *how) for file in files), strict=True
    )
    for file, names in zip(files, columns, strict=True):
        if names != columns[0]:
            raise ValueError(
                f"{file.name} has the columns {_checks.listed(names, 8)} but "
                f"{files[0].name} has {_checks.listed(columns[0], 8)}. Give files with the same "
                "columns in the same order, or choose columns with --features."
            )
    lengths = [len(part) for part in parts]
    if nodes is None:
        stems = [file.stem for file in files]
        if again := [stem for stem in dict.fromkeys(stems) if stems.count(stem) > 1]:
            raise ValueError(
                f"several files are named {_checks.listed(again)}, so their nodes would share a "
                "name. Rename them, or give one table and --nodes COLUMN."
            )
        labels = np.repeat(plain_labels(stems), lengths)
    else:
        labels = plain_labels(_joined(held))
    rows, names, doubtful = _joined(parts), columns[0], ()
    if recognise:
        rows, names, found, doubtful = features_alone(rows, names, seen, nodes is None, files[0])
        unwanted |= found
    categories, unknown = None, []
    if named is not None:
        if nodes is None and len(files) == 1 and known is None:
            check_forgotten_nodes(files[0], names, cells[0], set(named))
        categories = categories_of(files, names, cells, set(named) - {*unwanted}, known)
    if categories is not None:
        numbers, unknown = codes(names, cells, categories)
        for i, column in numbers.items():
            rows[:, i] = column
    table = Table(
        rows,
        labels,
        names,
        tuple(str(file) for file in files),
        np.repeat(np.arange(len(files), dtype=np.int32), lengths),
        _joined([np.arange(n, dtype=np.int32 if n < 2**31 else np.int64) for n in lengths]),
        tuple(unwanted.items()),
        doubtful,
        categories,
        tuple(unknown),
    )
    check_table(table, constant_ok)
    return table


def _unwanted(
    drop: Sequence[str], label: str | None, describe: Sequence[str], nodes: Any, features: Any
) -> dict[str, str]:
    """Columns that are left out because it was said so, and how it was said."""
    found = dict.fromkeys(drop, "--drop") | dict.fromkeys(describe, "--describe")
    found |= {} if label is None else {label: "the label"}
    for name, why in found.items():
        option = _option(why)
        if name == nodes:
            raise ValueError(
                f"{option} names {name!r}, which --nodes names too: it is no feature anyway. "
                "Name another column."
            )
        if features is not None and name in features:
            raise ValueError(
                f"{option} names {name!r}, which --features names too. Take it out of one of them."
            )
    return found


def _option(why: str) -> str:
    return "--label" if why == "the label" else why


def check_table(table: Table, constant_ok: bool = False) -> None:
    """Some rows, no infinity, no column without information; cells may be missing (NaN)."""
    if not table.n_rows:
        raise ValueError(f"{Path(table.files[0]).name} has no rows. Give a table with rows.")
    bad = np.isinf(table.rows)
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise ValueError(
            f"column {table.features[column]!r} holds infinity at {table.where(int(row))}; there "
            f"are {int(bad.sum())} such values in all. Drop or fill these rows first."
        )
    low, high = np.fmin.reduce(table.rows), np.fmax.reduce(table.rows)
    constant = np.flatnonzero(~(low < high))  # or empty
    if len(constant) and not constant_ok:
        name, value = table.features[constant[0]], low[constant[0]]
        others = [f for i, f in enumerate(table.features) if i not in constant]
        what = "empty" if np.isnan(value) else f"{value:g}"
        raise ValueError(
            f"column {name!r} is {what} in every row, so it cannot tell rows apart. "
            f"Leave it out: --features {','.join(others) or '...'}"
        )


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    """One below the other; one alone is not copied."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def find_files(sources: Sequence[str]) -> list[Path]:
    """Files that names, folders and patterns stand for, in sorted order."""
    found: list[Path] = []
    for source in sources:
        path = Path(source)
        if path.is_dir():
            inside = sorted(p for p in path.iterdir() if p.suffix.lower() in KINDS)
            if not inside:
                raise ValueError(
                    f"the folder {source!r} holds no table. Known endings: {', '.join(KINDS)}."
                )
            found += inside
        elif any(sign in source for sign in "*?["):
            matching = sorted(Path(path.anchor or ".").glob(str(path.relative_to(path.anchor))))
            if not matching:
                raise ValueError(f"no file matches {source!r}. Check the pattern.")
            found += matching
        elif not path.is_file():
            raise ValueError(f"there is no file {source!r}.{_similar(path)}")
        else:
            found.append(path)
    if not found:
        raise ValueError("no data given. Name a file, a folder or a pattern.")
    return found


_Part = tuple[np.ndarray, Any, tuple[str, ...], dict[str, ColumnKind], dict[str, list]]
"""Rows of a file, their nodes (None without a column of them), the names of the columns and, where
it matters, what each is; the cells of columns that may be categories."""


def _read_file(
    path: Path,
    nodes: str | None,
    features: Any,
    delimiter: str | None,
    unwanted: Mapping[str, str],
    recognise: bool,
    categorical: set[str] | None,
) -> _Part:
    kind = KINDS.get(path.suffix.lower())
    if kind is None:
        raise ValueError(f"{path.name} has an unknown ending. Known ones: {', '.join(KINDS)}.")
    if path.stat().st_size == 0:
        raise ValueError(f"{path.name} is empty. Give a table with a header line and rows.")
    if kind == "npz":
        return _read_npz(path, nodes, features, unwanted, categorical or set())
    frame = columns_of(path, delimiter)
    check_delimiter(path, frame.column_names, delimiter)
    if nodes is not None and nodes not in frame.column_names:
        raise ValueError(
            f"{path.name} has no column {nodes!r} to take the node from. Its columns are "
            f"{_checks.listed(frame.column_names, 12)}."
        )
    names = _chosen(path, [c for c in frame.column_names if c != nodes], features, nodes, unwanted)
    rows = np.full((frame.num_rows, len(names)), np.nan)
    seen = {name: look_at(frame.column(name)) for name in names} if recognise else {}
    cells: dict[str, list] = {}
    for i, name in enumerate(names):
        if recognise and not seen[name].is_number:
            continue
        if categorical is not None and may_be_category(frame.column(name), name in categorical):
            cells[name] = cells_of(frame.column(name))
            rows[:, i] = marks(cells[name])
            continue
        try:
            rows[:, i] = numeric_column(frame.column(name), name, path.name)
        except ValueError as error:
            hint = f" If it names the node of each row, say so: --nodes {name}"
            raise ValueError(f"{error}{hint if nodes is None else ''}") from None
    held = None if nodes is None else _node_column(frame.column(nodes), nodes, path)
    return rows, held, names, seen, cells


def _read_npz(
    path: Path, nodes: str | None, features: Any, unwanted: Mapping[str, str], categorical: set[str]
) -> _Part:
    """Arrays ``X`` and, for a table of many nodes, labels under the name of the node column."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except Exception as error:
        raise ValueError(f"{path.name} could not be read as NPZ: {error}.") from None
    if "X" not in arrays or arrays["X"].ndim != 2:
        raise ValueError(
            f"{path.name} needs an array 'X' of shape (rows, features); it holds "
            f"{_checks.listed(f'{n} {a.shape}' for n, a in arrays.items())}."
        )
    X = arrays["X"]
    if X.dtype.kind not in "biuf":
        raise ValueError(f"'X' of {path.name} holds {X.dtype} values. Features must be numbers.")
    if nodes is not None and nodes not in arrays:
        raise ValueError(
            f"{path.name} has no array {nodes!r} to take the node from. Its arrays are "
            f"{_checks.listed(arrays, 12)}."
        )
    all_names = [str(n) for n in arrays.get("feature_names", [f"x{i}" for i in range(X.shape[1])])]
    names = _chosen(path, all_names, features, nodes, unwanted)
    held = None if nodes is None else arrays[nodes]
    if held is not None and held.shape != X.shape[:1]:
        raise ValueError(f"{nodes!r} of {path.name} has shape {held.shape}, X has {len(X)} rows.")
    if held is not None:
        labels, place = np.unique(held, return_inverse=True)
        _every_row_has_a_node(labels.tolist(), place.reshape(-1), str(nodes), path)
    seen = dict.fromkeys(names, ColumnKind("number"))
    X = X[:, [all_names.index(n) for n in names]].astype(float)
    cells = {name: X[:, i].tolist() for i, name in enumerate(names) if name in categorical}
    return X, held, names, seen, cells


def _chosen(
    path: Path, columns: list[str], features: Any, nodes: str | None, unwanted: Mapping[str, str]
) -> tuple[str, ...]:
    for name, why in unwanted.items():
        if name not in columns:
            raise ValueError(
                f"{_option(why)} names {name!r}, which {path.name} does not have. "
                f"Its columns are {_checks.listed(columns, 12)}."
            )
    if features is None:
        left = tuple(name for name in columns if name not in unwanted)
        if not left:
            beside = _checks.listed([n for n in (nodes, *unwanted) if n is not None])
            raise ValueError(f"{path.name} has no feature column beside {beside}.")
        return left
    missing = [name for name in features if name not in columns]
    if missing:
        raise ValueError(
            f"--features names {_checks.listed(missing)}, which {path.name} does not have. "
            f"Its columns are {_checks.listed(columns, 12)}."
        )
    return tuple(features)


def _node_column(column: Any, name: str, path: Path) -> np.ndarray:
    coded = column.combine_chunks().dictionary_encode()  # far fewer labels than rows
    labels = coded.dictionary.to_pylist()
    place = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    _every_row_has_a_node(labels, place, name, path)
    return np.array(labels)[place]


def _every_row_has_a_node(labels: list, place: np.ndarray, name: str, path: Path) -> None:
    """Labels are text that is not blank, or a number; `place` of each row in them, -1 for none."""
    blank = [i for i, label in enumerate(labels) if not str(label).strip() or label != label]
    if len(empty := np.flatnonzero((place < 0) | np.isin(place, blank))):
        many = f"; {len(empty):,} rows have none" if len(empty) > 1 else ""
        raise ValueError(
            f"column {name!r} of {path.name} names no node at row {empty[0]}{many}. "
            "Give every row a node or drop it."
        )


def _similar(path: Path) -> str:
    import difflib

    if not path.parent.is_dir():
        return f" There is no folder {str(path.parent)!r} either."
    close = difflib.get_close_matches(path.name, [p.name for p in path.parent.iterdir()], n=1)
    return f" Did you mean {str(path.parent / close[0])!r}?" if close else " Check the name."


def plain_labels(labels: Any) -> np.ndarray:
    """Node labels as integers where all are written as such, else as text.

    ``"07"`` stays text: it would not come back as it was written.
    """
    array = np.asarray(labels)
    if np.issubdtype(array.dtype, np.integer):
        return array.astype(np.int64)
    distinct, index = np.unique(array.astype(str), return_inverse=True)
    try:
        numbers = distinct.astype(np.int64)
    except (ValueError, OverflowError):
        return distinct[index]
    return (numbers if (numbers.astype(str) == distinct).all() else distinct)[index]
