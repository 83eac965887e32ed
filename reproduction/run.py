"""Run experiments by name: compute what is missing, then write tables and figures."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from reproduction.cells import Cell
from reproduction.config import NAMES, Experiment, check_name, load
from reproduction.journal import Journal
from reproduction.page import QUICK_SEEDS, write
from reproduction.tasks import csv_tables
from reproduction.workers import Progress, complete

JOURNAL = "cells.jsonl"


def run(
    names: str | Sequence[str] = "all",
    seeds: int | None = None,
    jobs: int | None = None,
    quick: bool = False,
    rows: Sequence[str] | None = None,
    output: str | Path | None = None,
    tables: str | Path | None = None,
    progress: Progress | None = None,
) -> list[Path]:
    """Run experiments and write their results below `output`; returns the folders.

    Parameters
    ----------
    names
        One name, several, or ``"all"`` (of the paper).
    seeds
        How many, beginning with the first of the configuration (0, unless some played a part in
        design); None takes the number of the configuration (20).
    jobs
        Worker processes of one thread each; None takes one per core, 0 computes in this process.
    quick
        A first look: three seeds, without what takes longest (``[quick]`` of a configuration).
    rows
        Names of rows, where not all are wanted.
    output
        Where results go; None is ``results``, and ``results/quick`` for a first look. What was
        computed is kept in ``cells.jsonl`` there, and not again.
    tables
        A folder of CSV files for the experiments ``real`` and ``gaps`` (see `tasks.csv_tables`);
        None takes that of the environment variable FEDMIXTURES_TABLES.
    """
    if tables is not None:
        os.environ[csv_tables.VARIABLE] = str(tables)  # worker processes inherit it
    experiments = [load(name) for name in _names(names)]
    if quick:
        experiments = [experiment.quickened() for experiment in experiments]
    if rows is not None:
        experiments = [_only(experiment, rows) for experiment in experiments]
    for name, value, least in (("seeds", seeds, 1), ("jobs", jobs, 0)):
        if value is not None and value < least:
            raise ValueError(f"`{name}` is {value}. Give a whole number of at least {least}.")
    return run_experiments(
        experiments,
        QUICK_SEEDS if quick and seeds is None else seeds,
        (os.cpu_count() or 1) if jobs is None else jobs,
        Path(output or ("results/quick" if quick else "results")),
        progress,
    )


def run_experiments(
    experiments: Sequence[Experiment],
    seeds: int | None,
    jobs: int,
    output: Path,
    progress: Progress | None = None,
) -> list[Path]:
    """As `run`, for experiments that need not be in the package."""
    journal = Journal(output / JOURNAL)
    plan = [(e, kind(e), seeds_of(e, seeds)) for e in experiments]
    wanted = lambda cells: [(cell, seeds) for own, seeds in cells for cell in own]
    before = [(k.first(e), seeds) for e, k, seeds in plan]
    complete(wanted(before), journal, jobs, progress)
    more = [(e, k, seeds) for e, k, seeds in plan if hasattr(k, "then")]
    after = [(k.then(e, seeds, journal), seeds) for e, k, seeds in more]
    complete(wanted(after), journal, jobs, progress)
    return [write(k.make(e, seeds, journal), k, output) for e, k, seeds in plan]


def seeds_of(experiment: Experiment, wanted: int | None) -> range:
    """The seeds of a run: as many as wanted, unless there is but one."""
    n = 1 if experiment.n_seeds == 1 else wanted or experiment.n_seeds
    return range(experiment.first_seed, experiment.first_seed + n)


def _only(experiment: Experiment, names: Sequence[str]) -> Experiment:
    """The experiment with some of its rows."""
    known = [row.name for row in experiment.rows]
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"`rows` names {unknown[0]!r}. {experiment.name} has {', '.join(known)}.")
    return replace(experiment, rows=[row for row in experiment.rows if row.name in names])


def kind(experiment: Experiment) -> ModuleType:
    """The module that knows this kind of experiment."""
    return importlib.import_module(f"reproduction.kinds.{experiment.kind}")


def _names(names: str | Iterable[str]) -> tuple[str, ...]:
    given = (names,) if isinstance(names, str) else tuple(names)
    if given == ("all",):
        return NAMES
    for name in given:
        check_name(name, "all")
    return given


def cells_of(experiment: Experiment) -> list[Cell]:
    """What an experiment computes before any choice is made."""
    return kind(experiment).first(experiment)
