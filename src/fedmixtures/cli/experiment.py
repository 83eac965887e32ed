"""`fedmixtures experiment`: repeat the paper's experiments."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

from fedmixtures.cli.console import console, say


def experiment(
    *names: str,
    seeds: int | None = None,
    jobs: int | None = None,
    quick: bool = False,
    output: Path | None = None,
    tables: Path | None = None,
) -> None:
    """Repeat an experiment of the paper, with its published numbers beside ours.

    Parameters
    ----------
    names
        Any of table1, table2, fig-sbm, fig-rounds, table3, fig-digits, proposition1, alpha-grid,
        sensitivity; or all. Beyond the paper: trust-sbm, trust-robust, trust-digits,
        trust-ablation, trust-cost, trust-stress, real, relatives, covariances, gaps; with a GPU
        and --jobs 0 trust-cost-gpu.
    seeds
        How many seeds, beginning with 0; 20 unless given.
    jobs
        Worker processes of one thread each; one per core unless given.
    quick
        A first look in about two minutes: three seeds, without what takes longest.
    output
        Where tables, figures and numbers go: results unless given, results/quick for a first look.
        What was computed before is not computed again.
    tables
        A folder of CSV files for the experiments real and gaps: first column node, second label.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    if importlib.util.find_spec("reproduction") is None:
        raise ValueError(
            "The experiments are in the folder `reproduction` of the source distribution and the "
            "repository, not in the installed package. Unpack one of these, and there run "
            f"`python -m reproduction {' '.join(names) or 'all'}`."
        )
    known = importlib.import_module("reproduction.config").NAMES
    run = importlib.import_module("reproduction.run").run
    if not names:
        raise ValueError(f"`names` is empty. Choose from {', '.join(known)}, or all.")
    columns = (TextColumn("{task.description:<14}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as bar:
        task = bar.add_task("runs", total=None)

        def progress(what: str, done: int, total: int, seconds: float) -> None:
            del seconds
            bar.update(task, description=what, completed=done, total=total)

        folders = run(names, seeds, jobs, quick, output, tables, progress)
    for folder in folders:
        say(f"{folder}/table.md")
