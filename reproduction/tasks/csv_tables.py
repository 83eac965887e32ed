"""Tables of a folder as problems: one CSV file per table, its rows split within every node.

A file has the node in its first column and a label (for ARI and NMI, never for fitting) in its
second; an empty cell is missing. Which of the other columns are features, which want a logarithm or
have atoms, and how many components to fit is said by an entry of ``tables.toml`` beside the files,
or by `KNOWN`. Without an entry all numeric columns are features, and there are as many components
as labels.
"""

from __future__ import annotations

import csv
import hashlib
import os
import tomllib
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

VARIABLE = "FEDMIXTURES_TABLES"
FORMS_FILE = "tables.toml"
TRAINING_SHARE = 0.7
MOST_TEST_ROWS = 300
SPLIT_STREAM, ATOMS_STREAM = 11, 12
"""Keep these draws apart from others of the same seed."""
MOST_GUESSED_COMPONENTS = 8


@dataclass(frozen=True)
class TableForm:
    """How the columns of a table are read."""

    features: list[str]
    n_components: int
    few: int = 50
    """Training rows per node in the regime ``few``."""
    logarithm: list[str] = field(default_factory=list)
    clip: float = 0.1
    """What a logarithm is taken of is at least this."""
    counts: list[str] = field(default_factory=list)
    """Columns x of counts that are read as log(1 + |x| + U(0, 1))."""
    jitter: dict[str, float] = field(default_factory=dict)
    """Columns with atoms, and the resolution that these are spread over evenly."""


MARKERS = [f"m{i}" for i in range(8)]
KNOWN = {
    "penguins": TableForm(
        ["bill_length_mm", "bill_depth_mm", "flipper_length_mm", "body_mass_g"], 3, few=30
    ),
    "heart_disease": TableForm(
        ["age", "trestbps", "thalach", "oldpeak"], 3, jitter={"oldpeak": 0.1, "trestbps": 2.0}
    ),
    "beijing_air_daily": TableForm(
        ["PM2.5", "PM10", "SO2", "NO2", "CO", "O3", "TEMP", "PRES", "DEWP", "WSPM"],
        4,
        logarithm=["PM2.5", "PM10", "SO2", "NO2", "CO", "O3", "WSPM"],
    ),
    "cytof_multicenter": TableForm(
        [f"m{i}" for i in range(8)], 5, counts=[f"m{i}" for i in range(8)]
    ),
}
"""UCI 45, UCI 501 (daily means), palmerpenguins, and cells of KlugerLab/deepcytof."""


@dataclass(frozen=True, eq=False)
class Split:
    """Rows to fit and rows to judge by; both with the node of each, the latter with labels."""

    X: np.ndarray
    nodes: np.ndarray
    X_test: np.ndarray
    nodes_test: np.ndarray
    labels_test: np.ndarray | None


def folder() -> Path:
    """Where the tables are."""
    given = os.environ.get(VARIABLE)
    if not given:
        raise ValueError(
            f"No folder of tables is named. Give --tables FOLDER or set {VARIABLE} to a folder of "
            "CSV files with the node in the first column and a label in the second."
        )
    if not sorted(Path(given).glob("*.csv")):
        raise ValueError(f"`tables` is {given!r}, which holds no CSV file. Name another folder.")
    return Path(given)


def problems() -> dict[str, dict[str, Any]]:
    """The tables of the folder by name: what a cell has to know of each, and its node count."""
    written = folder() / FORMS_FILE
    entries = tomllib.loads(written.read_text("utf-8")) if written.exists() else {}
    found = {}
    for path in sorted(folder().glob("*.csv")):
        columns = _columns(path)
        form = _form(path.stem, entries.get(path.stem), columns)
        digest = hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()
        found[path.stem] = {
            "table": path.stem,
            "digest": digest,
            "form": asdict(form),
            "n_nodes": len(np.unique(columns[next(iter(columns))])),
        }
    return found


def _form(name: str, entry: dict[str, Any] | None, columns: dict[str, np.ndarray]) -> TableForm:
    """The form of a table: as written beside it, as known, or guessed."""
    if entry is None and name in KNOWN:
        return KNOWN[name]
    entry = dict(entry or {})
    known = [f.name for f in fields(TableForm)]
    if unknown := [key for key in entry if key not in known]:
        raise ValueError(
            f"`{FORMS_FILE}` names {unknown[0]!r} for table {name!r}. Known are {', '.join(known)}."
        )
    label, *rest = list(columns)[1:]
    entry.setdefault("features", [c for c in rest if _numeric(columns[c]) is not None])
    labels = len(np.unique(columns[label]))
    entry.setdefault("n_components", labels if 2 <= labels <= MOST_GUESSED_COMPONENTS else 3)
    for column in entry["features"]:
        if column not in columns or _numeric(columns[column]) is None:
            raise ValueError(
                f"table {name!r} has no numeric column {column!r}. Name its features in "
                f"{FORMS_FILE}; the columns are {', '.join(rest)}."
            )
    return TableForm(**entry)


def split(data: dict[str, Any], seed: int) -> Split:
    """Training and test rows of one split, in units of the pooled standard deviations."""
    X, nodes, labels = _table(data["table"], data["digest"], repr(data["form"]), data["form"])
    few = data["form"]["few"] if data["regime"] == "few" else len(X)
    train, test = [], []
    for number, node in enumerate(np.unique(nodes)):
        rng = np.random.default_rng([SPLIT_STREAM, seed, number])
        own = rng.permutation(np.flatnonzero(nodes == node))
        cut = round(TRAINING_SHARE * len(own))
        train.append(own[: min(cut, few)])
        test.append(own[cut : cut + MOST_TEST_ROWS])
    i, j = np.concatenate(train), np.concatenate(test)
    return Split(X[i], nodes[i], X[j], nodes[j], None if labels is None else labels[j])


_Table = tuple[np.ndarray, np.ndarray, np.ndarray | None]
_read: dict[tuple[str, str, str], _Table] = {}


def _table(name: str, digest: str, form_text: str, form: dict[str, Any]) -> _Table:
    """Features, nodes and labels of the rows without a gap; read once per process."""
    key = name, digest, form_text
    if key not in _read:
        _read[key] = _features(_columns(folder() / f"{name}.csv"), TableForm(**form))
    return _read[key]


def _features(columns: dict[str, np.ndarray], form: TableForm) -> _Table:
    values = np.stack([_known_numbers(columns[name]) for name in form.features], axis=1)
    whole = np.isfinite(values).all(1)
    values = values[whole]
    rng = np.random.default_rng(ATOMS_STREAM)
    for column, name in enumerate(form.features):
        if name in form.jitter:
            values[:, column] += form.jitter[name] * rng.uniform(size=len(values))
        if name in form.counts:
            values[:, column] = np.log1p(np.abs(values[:, column]) + rng.uniform(size=len(values)))
        if name in form.logarithm:
            values[:, column] = np.log(np.maximum(values[:, column], form.clip))
    spread = values.std(0)
    standardised = (values - values.mean(0)) / np.where(spread > 0, spread, 1.0)
    node, label = list(columns)[:2]
    labels = columns[label][whole]
    return standardised, columns[node][whole], labels if (labels != "").all() else None


def _known_numbers(column: np.ndarray) -> np.ndarray:
    numbers = _numeric(column)
    assert numbers is not None  # checked when the form was made
    return numbers


def _numeric(column: np.ndarray) -> np.ndarray | None:
    """Numbers, with NaN for an empty cell; None where there is a word."""
    try:
        return np.where(column == "", "nan", column).astype(float)
    except ValueError:
        return None


@lru_cache(maxsize=4)
def _columns(path: Path) -> dict[str, np.ndarray]:
    with path.open(newline="", encoding="utf-8") as file:
        header, *lines = csv.reader(file)
    return {name: np.array([line[i] for line in lines]) for i, name in enumerate(header)}
