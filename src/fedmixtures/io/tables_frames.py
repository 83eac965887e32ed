"""Files as Arrow tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

KINDS = {
    ".csv": "csv",
    ".tsv": "csv",
    ".txt": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".feather": "feather",
    ".arrow": "feather",
    ".npz": "npz",
}


def read_frame(path: Path, delimiter: str | None = None, as_text: bool = False) -> Any:
    """One file as an Arrow table; `as_text` keeps every cell of a CSV as it is written."""
    import pyarrow as pa

    try:
        if KINDS.get(path.suffix.lower()) == "parquet":
            from pyarrow import parquet

            return parquet.read_table(path)
        if KINDS.get(path.suffix.lower()) == "feather":
            from pyarrow import feather

            return feather.read_table(path)
        return _read_csv(path, delimiter, as_text)
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
