"""One file of rows as an Arrow table, and its columns as numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

KINDS = dict.fromkeys((".csv", ".tsv", ".txt"), "csv") | {".npz": "npz"}
KINDS |= dict.fromkeys((".parquet", ".pq"), "parquet")
KINDS |= dict.fromkeys((".feather", ".arrow"), "feather")


class ParquetColumns:
    """What `_read_file` needs of an Arrow table, read from a Parquet file column by column.

    No more than one column is held at a time.
    """

    def __init__(self, path: Path):
        from pyarrow import parquet

        self._path, self._file = path, parquet.ParquetFile(path)
        self.column_names: list[str] = list(self._file.schema_arrow.names)
        self.num_rows: int = self._file.metadata.num_rows

    def column(self, name: str) -> Any:
        """One column."""
        with _readable(self._path):
            return self._file.read(columns=[name]).column(name)


def columns_of(path: Path, delimiter: str | None = None) -> Any:
    """The columns of one file: an Arrow table, or what reads one of a Parquet file at a time."""
    if KINDS.get(path.suffix.lower()) != "parquet":
        return read_frame(path, delimiter)
    with _readable(path):
        return ParquetColumns(path)


def read_frame(path: Path, delimiter: str | None = None, as_text: bool = False) -> Any:
    """One file as an Arrow table; `as_text` keeps every cell of a CSV as it is written."""
    with _readable(path):
        if KINDS.get(path.suffix.lower()) == "parquet":
            from pyarrow import parquet

            return parquet.read_table(path)
        if KINDS.get(path.suffix.lower()) == "feather":
            from pyarrow import feather

            return feather.read_table(path)
        return _read_csv(path, delimiter, as_text)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowInvalid, OSError) as error:
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise ValueError(f"{path.name} could not be read: {reason}.") from None


def _read_csv(path: Path, delimiter: str | None, as_text: bool) -> Any:
    """Cells as Arrow reads them; where a late cell contradicts early ones, all as text."""
    import pyarrow as pa
    from pyarrow import csv

    sign = delimiter or ("\t" if path.suffix.lower() == ".tsv" else ",")
    parse = csv.ParseOptions(delimiter=sign)
    if not as_text:
        try:
            return csv.read_csv(path, parse_options=parse)
        except pa.ArrowInvalid as error:
            if "conversion error" not in str(error):
                raise
    with path.open(newline="", encoding="utf-8-sig") as file:
        import csv as plain_csv

        header = next(plain_csv.reader(file, delimiter=sign))
    texts = csv.ConvertOptions(column_types=dict.fromkeys(header, pa.string()))
    return csv.read_csv(path, parse_options=parse, convert_options=texts)


def check_delimiter(path: Path, columns: list[str], delimiter: str | None) -> None:
    """A header that came out as one long name was written with another delimiter."""
    if KINDS[path.suffix.lower()] != "csv" or len(columns) > 1:
        return
    for sign in ";\t|,":
        if sign in columns[0] and sign != delimiter:
            raise ValueError(
                f"{path.name} came out as the single column {columns[0]!r}: its cells seem to be "
                f"separated by {sign!r}. Say so: --delimiter {sign!r}"
            )


def numeric_column(column: Any, name: str, file: str) -> np.ndarray:
    """A column of an Arrow table as float64, empty cells as NaN; text is refused by its place."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_boolean(kind):
        column, kind = column.cast(pa.int8()), pa.int8()
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind):
        return np.asarray(
            column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), dtype=float
        )
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _numbers_in_text(column.to_pylist(), name, file)
    raise ValueError(
        f"column {name!r} of {file} holds {kind} values. Features must be numbers: convert it, "
        f"or leave it out with --drop {name}."
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
                f"be numbers: correct the cell, or leave the column out with --drop {name}."
            ) from None
    return values
