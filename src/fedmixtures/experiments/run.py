"""Run experiments by name: compute what is missing, then write tables and figures."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType

from fedmixtures import _checks
from fedmixtures.experiments import environment, tables
from fedmixtures.experiments.cells import Cell
from fedmixtures.experiments.config import BEYOND, NAMES, Experiment, load
from fedmixtures.experiments.journal import Journal
from fedmixtures.experiments.pool import Progress, complete
from fedmixtures.experiments.published import place
from fedmixtures.experiments.results import Result

QUICK_SEEDS = 3
JOURNAL = "cells.jsonl"


def run(
    names: str | Sequence[str] = "all",
    seeds: int | None = None,
    jobs: int | None = None,
    quick: bool = False,
    output: str | Path | None = None,
    progress: Progress | None = None,
) -> list[Path]:
    """Run experiments and write their results below `output`; returns the folders.

    Parameters
    ----------
    names
        One name, several, or ``"all"`` (of the paper).
    seeds
        How many, beginning with 0; None takes the number of the configuration (20).
    jobs
        Worker processes of one thread each; None takes one per core, 0 computes in this process.
    quick
        A first look: three seeds, without what takes longest (``[quick]`` of a configuration).
    output
        Where results go; None is ``results``, and ``results/quick`` for a first look. What was
        computed is kept in ``cells.jsonl`` there, and not again.
    """
    experiments = [load(name) for name in _names(names)]
    if quick:
        experiments = [experiment.quickened() for experiment in experiments]
    if seeds is not None:
        _checks.whole("seeds", seeds)
    if jobs is not None:
        _checks.whole("jobs", jobs, minimum=0)
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
    plan = [(e, kind(e), range(1 if e.n_seeds == 1 else seeds or e.n_seeds)) for e in experiments]
    wanted = lambda cells: [(cell, seeds) for own, seeds in cells for cell in own]
    before = [(k.first(e), seeds) for e, k, seeds in plan]
    complete(wanted(before), journal, jobs, progress)
    after = [(k.then(e, seeds, journal), seeds) for e, k, seeds in plan]
    complete(wanted(after), journal, jobs, progress)
    return [write(k.make(e, seeds, journal), k, output) for e, k, seeds in plan]


def kind(experiment: Experiment) -> ModuleType:
    """The module that knows this kind of experiment."""
    return importlib.import_module(f"fedmixtures.experiments.kinds.{experiment.kind}")


def write(result: Result, module: ModuleType, output: Path) -> Path:
    """Tables, numbers and figure of one experiment into a folder of its name."""
    from fedmixtures.experiments import figures

    folder = output / result.experiment.name
    folder.mkdir(parents=True, exist_ok=True)
    made = environment.made(command(result))
    (folder / "result.json").write_text(tables.to_json(result, made), "utf-8")
    (folder / "cells.csv").write_text(tables.to_csv(result), "utf-8")
    fig = module.figure(result)
    if fig is not None:
        figures.save(fig, folder)
    picture = "\n\n![](figure.png)" if fig is not None else ""
    (folder / "table.md").write_text(page(result, module, made) + picture + "\n", "utf-8")
    return folder


def command(result: Result) -> str:
    """The command that gives this result."""
    own, n = result.experiment, len(result.seeds)
    how = "" if n == own.n_seeds else f" --seeds {n}"
    known = own.name in (*NAMES, *BEYOND)
    shortened = known and own == load(own.name).quickened()
    if shortened and (n == QUICK_SEEDS or (n == own.n_seeds and own != load(own.name))):
        how = " --quick"
    return f"fedmixtures experiment {own.name}{how}"


def page(result: Result, module: ModuleType, made: dict) -> str:
    """The Markdown page of one experiment."""
    parts = [f"## {result.experiment.title}"]
    if place(result.experiment.name):
        parts.append(f"Published numbers: {place(result.experiment.name)}.")
    if count := tables.counts(result):
        named = ", ".join(f"{number} {name}" for name, number in count.items())
        parts.append(f"Of {sum(count.values())} published cells: {named}.")
    parts += [module.markdown(result), environment.in_words(made, len(result.seeds))]
    return "\n\n".join(parts)


def _names(names: str | Iterable[str]) -> tuple[str, ...]:
    given = (names,) if isinstance(names, str) else tuple(names)
    if given == ("all",):
        return NAMES
    for name in given:
        _checks.one_of("name", name, (*NAMES, *BEYOND, "all"))
    return given


def cells_of(experiment: Experiment) -> list[Cell]:
    """What an experiment computes before any choice is made."""
    return kind(experiment).first(experiment)
