"""Columns of files that are categories: words, booleans, and those that are named."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedmixtures.data.categories import Categories, codes_of, is_categorical, levels_of
from fedmixtures.io.arrow import numeric_column

MISSING = {"NA", "N/A", "NaN", "nan", "NULL", "null", "None", "?"}
"""Texts of cells that are missing, beside empty ones, in columns of words."""


def may_be_category(column: Any, named: bool) -> bool:
    """Whether an Arrow column of a file is named, or holds words or booleans."""
    import pyarrow as pa

    kind = column.type
    if named or pa.types.is_boolean(kind) or pa.types.is_dictionary(kind):
        return True
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return False
    there = [cell for cell in cells_of(column) if cell is not None]
    return bool(there) and not any(map(_is_number, set(there)))


def cells_of(column: Any) -> list[Any]:
    """Its cells; None for what is missing."""
    cells = column.to_pylist()
    blank = lambda cell: isinstance(cell, str) and (not cell.strip() or cell in MISSING)
    return [None if blank(cell) else cell for cell in cells]


def marks(cells: Sequence[Any]) -> np.ndarray:
    """Numbers that differ where cells do, until their levels are known."""
    known = {cell: float(zlib.crc32(str(cell).encode())) for cell in set(cells) - {None}}
    return np.array([known.get(cell, np.nan) for cell in cells])


def check_forgotten_nodes(
    file: Path, names: Sequence[str], cells: Mapping[str, list], named: set[str]
) -> None:
    """A file that is one node has no words that nobody has named: they may be names of nodes."""
    for name in names:
        if name in cells and name not in named:
            first = next((cell for cell in cells[name] if cell is not None), None)
            raise ValueError(
                f"column {name!r} of {file.name} holds {first!r}, and no column names the node of "
                f"each row. If this one does, say so: --nodes {name}. If it is a category: "
                f"--categorical {name}"
            )


def categories_of(
    files: Sequence[Path],
    names: Sequence[str],
    cells: Sequence[Mapping[str, list]],
    named: set[str],
    known: Mapping[str, Sequence[Any]] | None,
) -> Categories | None:
    """The categorical columns of a table of several files, from the cells of each.

    With `known` levels those; what is text and no category is refused by its place.
    """
    levels = {}
    for i, name in enumerate(names):
        if not any(name in of for of in cells):
            continue
        if known is not None and name in known:
            levels[i] = tuple(known[name])
            continue
        for file, of in zip(files, cells, strict=True):
            if name not in of:
                raise ValueError(
                    f"column {name!r} holds numbers in {file.name} and words in other files. If it "
                    f"is a category, say so: --categorical {name}"
                )
        column = np.array([None, *(cell for of in cells for cell in of[name])], object)[1:]
        if name in named or is_categorical(column):
            levels[i] = levels_of(column, f"column {name!r}")
        else:
            _refuse(files, name, cells, len({*column.tolist()}))
    if missing := sorted(named - set(names)):
        raise ValueError(
            f"--categorical names {missing[0]!r}, which is none of the features {', '.join(names)}."
        )
    return Categories.of(len(names), levels)


def _refuse(files: Sequence[Path], name: str, cells: Sequence[Mapping[str, list]], n: int) -> None:
    """Text that is neither numbers nor a few words."""
    import pyarrow as pa

    for file, of in zip(files, cells, strict=True):
        try:
            numeric_column(pa.array(of[name]), name, file.name)
        except ValueError as error:
            raise ValueError(
                f"{error} It has {n} different texts, too many or too rare for a category."
            ) from None


def codes(
    names: Sequence[str], cells: Sequence[Mapping[str, list]], categories: Categories
) -> tuple[dict[int, np.ndarray], list[tuple[str, list[str]]]]:
    """Numbers of levels of each categorical column by its position; and values unknown to it."""
    found, unknown = {}, []
    for i, levels in zip(categories.positions, categories.levels, strict=True):
        column = [cell for of in cells for cell in of[names[i]]]
        found[i], new = codes_of(column, levels)
        if new:
            unknown.append((names[i], new))
    return found, unknown


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
