"""Columns of a file that are no features: identifiers, dates, and what is the same in every row."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedmixtures import _checks

UNLIKELY = -5.0
"""Logarithm of the chance that whole numbers spread evenly over their range all differ."""
ENOUGH_TO_ASK = 20  # rows from which on different whole numbers in all of them are remarked on
DATE = re.compile(r"\d{1,4}[./-]\d{1,2}[./-]\d{1,4}([ T]\d.*)?")
WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
NAMES_OF_IDENTIFIERS = re.compile(
    "ids?|uid|uuid|guid|pid|mrn|key|index|idx|nr|no|number|encounter|participant"
    "|(row|record|case|patient|subject|person|user)(id)?"
)


@dataclass(frozen=True)
class ColumnKind:
    """What a column of one file is: number, whole, date, identifier or constant (of text)."""

    kind: str
    value: str = ""  # of a constant, or of the first row
    rows: int = 0  # of whole numbers that all differ
    log_chance: float = 0.0  # of their all being different by accident

    @property
    def is_number(self) -> bool:
        """Whether it can be read as numbers."""
        return self.kind in ("number", "whole")


def look_at(column: Any) -> ColumnKind:
    """What an Arrow column of a file is; text that is none of these passes as number."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        return ColumnKind("date")
    if pa.types.is_integer(kind):
        return _look_at_integers(column)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _look_at_text([cell for cell in column.to_pylist() if cell])
    return ColumnKind("number")


def _look_at_integers(column: Any) -> ColumnKind:
    from pyarrow import compute

    n = len(column) - column.null_count
    if n < 2 or compute.count_distinct(column, mode="only_valid").as_py() < n:
        return ColumnKind("whole")
    ends = compute.min_max(column).as_py()
    spread = ends["max"] - ends["min"] + 1
    return ColumnKind("whole", rows=n, log_chance=float(np.log1p(-np.arange(n) / spread).sum()))


def _look_at_text(cells: list[str]) -> ColumnKind:
    if not cells or 2 * sum(map(_is_number, cells[:1000])) >= len(cells[:1000]):
        return ColumnKind("number")  # a cell that is none among numbers is a mistake to be told of
    if all(map(DATE.fullmatch, cells)):
        return ColumnKind("date", cells[0])
    distinct = len(set(cells))
    if distinct == 1:
        return ColumnKind("constant", cells[0])
    return ColumnKind("identifier" if distinct == len(cells) else "number", cells[0])


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def features_alone(
    rows: np.ndarray, names: tuple[str, ...], seen: Any, file_is_node: bool, file: Path
) -> tuple[np.ndarray, tuple[str, ...], dict[str, str], tuple[str, ...]]:
    """Rows and names without columns that are no features, these with the reason, doubtful ones."""
    found = {}
    for i, name in enumerate(names if len(rows) > 1 else ()):
        each = [one[name] for one in seen]
        if why := why_none(name, each, file_is_node, rows[:, i]):
            found[name] = why
        elif not all(one.is_number for one in each):
            texts = _checks.listed(
                dict.fromkeys(o.value or o.kind for o in each if not o.is_number)
            )
            raise ValueError(
                f"column {name!r} holds {texts} in some files and other cells in others. "
                f"Features must be numbers: correct the cells, or leave it out with --drop {name}"
            )
    kept = [i for i, name in enumerate(names) if name not in found]
    if not kept:
        told = "; ".join(f"{name} ({why})" for name, why in list(found.items())[:8])
        raise ValueError(
            f"{file.name} has no column that is a feature: {told}. Name those to use all the same "
            "with --features."
        )
    kept_names = tuple(names[i] for i in kept)
    doubtful = tuple(n for n in kept_names if may_be_identifier([one[n] for one in seen]))
    return rows[:, kept] if found else rows, kept_names, found, doubtful


def why_none(name: str, seen: Sequence[ColumnKind], file_is_node: bool, values: np.ndarray) -> str:
    """Why a column is no feature, seen in every file; empty where it is one."""
    kinds = {one.kind for one in seen}
    there = values[~np.isnan(values)]
    if len(there) and not kinds <= {"number", "whole"}:
        return ""  # numbers in some files: a mistake in the others, not to be passed over
    if "date" in kinds:
        return "dates"
    if "identifier" in kinds:
        return "an identifier: different text in every row"
    if "constant" in kinds:
        texts = {one.value for one in seen if one.kind == "constant"}
        if len(texts) == 1:
            return f"{texts.pop()!r} in every row"
        return "the same in every row of a file" if file_is_node else ""
    if _all_differ(seen) and (_is_named_so(name) or sum(one.log_chance for one in seen) < UNLIKELY):
        return "an identifier: a different whole number in every row"
    if not len(there):
        return "empty in every row"
    return "" if there.min() < there.max() else f"{there[0]:g} in every row"


def may_be_identifier(seen: Sequence[ColumnKind]) -> bool:
    """Whole numbers that all differ, as those of measurements over a wide range may."""
    return _all_differ(seen) and sum(one.rows for one in seen) >= ENOUGH_TO_ASK


def _all_differ(seen: Sequence[ColumnKind]) -> bool:
    return all(one.kind == "whole" and one.rows for one in seen)


def _is_named_so(name: str) -> bool:
    """By its last word, as in patient_id, or as in id_patient: number_of_steps is not."""
    words = [word.lower() for word in WORDS.findall(name)] or [""]
    return bool(NAMES_OF_IDENTIFIERS.fullmatch(words[-1])) or words[0] == "id"
