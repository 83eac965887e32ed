"""Compute what is missing: cells in batches, batches in worker processes of one thread each."""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

from reproduction.cells import Cell
from reproduction.journal import Journal, Numbers

Work = list[tuple[Cell, int]]
"""Cells and seeds that one process computes together."""
Computed = tuple[list[Numbers], float]
Progress = Callable[[str, int, int, float], Any]
"""Called with what was just finished, how many runs are done, how many there are, and the
processor time (seconds) of what was just finished."""

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # The size of XLA's thread pool. With more, jaxlib 0.10 may deadlock: batched LAPACK calls that
    # run on all threads of the pool each wait for a thread of it.
    "NPROC": "1",
    "JAX_PLATFORMS": "cpu",
}
PER_TASK, PER_UNION, PER_LARGE_UNION = 40, 160, 20
"""Runs in one task at most: computed one by one, in a union, in a union of large mixtures."""
ALONE = ("c-colme", "dfmr", "graphfed-em", "federico", "trust")
"""Methods that are no node programs: their runs make no union."""
SINGLE = {"held_out": 1, "between_sites": 1, "clusters": 2}
"""Tasks whose runs are long, and each its own."""
LARGE = 5
"""Mixtures of more components than this are large."""
MANY_NODES = 10_000
EXPENSIVE = {"gtv-mmd": 2, "gtv-kl": 3, "gtv-euclidean": 1}


def complete(
    wanted: Iterable[tuple[Cell, Sequence[int]]],
    journal: Journal,
    jobs: int = 1,
    progress: Progress | None = None,
) -> None:
    """Compute the seeds of the wanted cells that the journal does not have.

    With ``jobs=0`` in this very process, threads as they are.
    """
    missing = [(cell, seed) for cell, seeds in wanted for seed in journal.missing(cell, seeds)]
    batches = _batches(list(dict.fromkeys(missing)))
    total, done = sum(map(len, batches)), 0
    for work, (numbers, seconds) in _results(batches, jobs):
        for (cell, seed), own in zip(work, numbers, strict=True):
            journal.write(cell, seed, own)
        done += len(work)
        if progress is not None:
            progress(_title(work[0][0]), done, total, seconds)


def _results(batches: list[Work], jobs: int) -> Iterator[tuple[Work, Computed]]:
    if jobs == 0 or not batches:
        yield from ((work, compute(work)) for work in batches)
        return
    spawn = multiprocessing.get_context("spawn")
    with _environment(ONE_THREAD), ProcessPoolExecutor(min(jobs, len(batches)), spawn) as pool:
        running = {pool.submit(compute, work): work for work in batches}
        try:
            while running:
                finished, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    yield running.pop(future), future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def compute(work: Work) -> Computed:
    """The numbers of one batch, in this process, and its processor time."""
    from fedmixtures.kernels.compiling import compilation_cache

    begun = time.process_time()
    task = importlib.import_module(f"reproduction.tasks.{work[0][0].task}")
    with compilation_cache():
        numbers = list(task.compute([(cell.settings, seed) for cell, seed in work]))
    return numbers, time.process_time() - begun


def _batches(missing: Work) -> list[Work]:
    """Runs of one method together: as one union where it allows that. The longest first."""
    groups: dict[str, Work] = {}
    for cell, seed in missing:
        own = {name: v for name, v in cell.settings.items() if name not in ("data", "graph")}
        alone = cell.task in SINGLE or ("graph" in cell.settings and not cell.settings["graph"])
        apart = cell.settings["data"] if alone else _dimension(cell)
        text = json.dumps([cell.task, own, apart], sort_keys=True)
        groups.setdefault(text, []).append((cell, seed))
    ordered = sorted(groups.values(), key=_cost, reverse=True)
    return _first_of_each_program([work for group in ordered for work in _split(group)])


def _first_of_each_program(batches: list[Work]) -> list[Work]:
    """Batches that need a program of their own come before those that find it compiled."""
    first: dict[str, int] = {}
    for i, work in enumerate(batches):
        first.setdefault(_program(work), i)
    leading = set(first.values())
    return [batches[i] for i in sorted(range(len(batches)), key=lambda i: i not in leading)]


def _program(work: Work) -> str:
    """What is alike for runs of one compiled program, as far as that can be told from outside."""
    cell, settings = work[0][0], work[0][0].settings
    shapes = {k: v for k, v in settings.get("gtv", {}).items() if k.startswith("n_")}
    known = cell.task, settings.get("method"), settings.get("n_components"), shapes
    return json.dumps([*known, _dimension(cell), len(work), settings.get("discrepancy")])


def _dimension(cell: Cell) -> Any:
    """Unions are over problems of one shape."""
    data = cell.settings.get("data", {})
    return data.get("scenario"), data.get("n_features")


def _cost(work: Work) -> float:
    """A guess: networks of many nodes and the digits take longest, then whatever has most runs."""
    settings = work[0][0].settings
    if settings.get("n_nodes", 0) > MANY_NODES:
        return float(settings["n_nodes"])
    factor = EXPENSIVE.get(settings.get("method", ""), 0.1)
    return len(work) * factor * (10 if settings.get("n_components", 0) > LARGE else 1)


def _split(work: Work) -> list[Work]:
    """Tasks small enough to keep all processes busy to the end."""
    settings = work[0][0].settings
    size = SINGLE.get(work[0][0].task, PER_TASK)
    if settings.get("graph") and settings.get("method") not in ALONE and size == PER_TASK:
        size = PER_LARGE_UNION if settings["n_components"] > LARGE else PER_UNION
    return [work[i : i + size] for i in range(0, len(work), size)]


def _title(cell: Cell) -> str:
    return cell.settings.get("method", cell.task)


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Set for the length of a block; worker processes inherit it."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
