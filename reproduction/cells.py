"""A cell is one method on one problem: what it computes, and the key its numbers are kept under."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from importlib import metadata
from importlib.resources import files
from typing import Any

from reproduction.config import Experiment, Problem, Row

SHOWING = ("cli", "report", "federation", "io")
"""The parts of the package that no number depends on."""
DISTRIBUTIONS = ("jax", "jaxlib", "numpy", "scipy", "scikit-learn")


@dataclass(frozen=True)
class Cell:
    """One method on one problem, as plain values; every seed of it is computed on its own."""

    task: str
    """The module of `reproduction.tasks` that computes it."""
    values: str
    """All settings as canonical JSON."""

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The settings as a dictionary."""
        return json.loads(self.values)

    def key(self, seed: int) -> str:
        """Changes with any setting, with the code and with the seed."""
        text = f"{code_version()} {self.task} {self.values} {seed}"
        return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def cell(task: str, **settings: Any) -> Cell:
    """A cell with these settings."""
    return Cell(task, json.dumps(settings, sort_keys=True, separators=(",", ":")))


def fit_cell(
    experiment: Experiment,
    row: Row,
    problem: Problem,
    chosen: dict[str, Any] | None = None,
    record: str = "final",
) -> Cell:
    """The cell of a row on a problem; `chosen` holds what tuning has found."""
    options = {**row.options, **row.on.get(problem.name, {}), **(chosen or {})}
    gtv = {**asdict(experiment.gtv), **row.gtv} if row.method.startswith(("gtv", "start")) else {}
    if row.method == "start":  # nothing but the bounds it is moved into
        gtv = {name: value for name, value in gtv.items() if name.startswith(("min", "max"))}
    return cell(
        "fit",
        data=problem.data,
        graph=problem.graph if _uses_graph(row) else {},
        n_components=problem.n_components,
        start={**asdict(experiment.start), **row.start},
        method=row.method,
        options=options,
        gtv=gtv,
        n_rounds=experiment.n_rounds if row.method not in ONE_SHOT else 0,
        record=record,
    )


ONE_SHOT = ("start", "local", "centralized", "fedgengmm")
HUBS = ("fedem", "fedgrem", "ifca", "fedgem")


def _uses_graph(row: Row) -> bool:
    """Where no graph enters, a sweep over graphs is one cell."""
    return row.method not in ONE_SHOT + HUBS and not row.options.get("server", False)


@cache
def code_version() -> str:
    """A digest of the code and the libraries that numbers depend on."""
    digest = hashlib.blake2b(digest_size=8)
    tasks = files("reproduction").joinpath("tasks")
    for path in [*_sources(files("fedmixtures"), SHOWING), *_sources(tasks)]:
        digest.update(path.name.encode() + path.read_bytes())
    for name in DISTRIBUTIONS:
        digest.update(f"{name} {metadata.version(name)}".encode())
    return digest.hexdigest()


@cache
def sources_digest(part: str) -> str:
    """A digest of a part of the package that `code_version` leaves out."""
    digest = hashlib.blake2b(digest_size=8)
    for path in _sources(files("fedmixtures").joinpath(part)):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def _sources(folder: Any, without: Sequence[str] = ()) -> list[Any]:
    """All modules of a folder, in the order of their names."""
    found = []
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        if path.is_dir() and path.name not in ("__pycache__", *without):
            found += _sources(path)
        elif path.name.endswith(".py"):
            found.append(path)
    return found
