"""Rows with missing cells: how well ways to treat them do, what they predict, what they cost."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from fedmixtures import FitWarning, NetworkGaussianMixture
from fedmixtures.methods.registry import METHODS
from reproduction.tasks import situation
from reproduction.tasks.csv_tables import Split, split
from reproduction.tasks.fit import with_options
from reproduction.tasks.held_out import scores

Numbers = dict[str, Any]
GAPS_STREAM, COST_STREAM = 13, 14
"""Keep these draws apart from others of the same seed."""
INCOMPLETE_ROWS = 0.75
"""Share of the rows with gaps where cost is measured."""
NOTHING = {"ll": None, "rmse": None, "seconds": None, "megabytes": None}


def compute(runs: Sequence[tuple[dict[str, Any], int]]) -> Iterator[Numbers]:
    """The numbers of each run, in their order."""
    what = {"held-out": held_out, "absent": absent, "cost": cost}
    for settings, seed in runs:
        yield {**NOTHING, "status": "completed", **what[settings["what"]](settings, seed)}


def held_out(settings: dict[str, Any], seed: int) -> Numbers:
    """Log-density of the observed cells of rows that no node has seen."""
    rows = _split(settings, seed)
    rng = np.random.default_rng([GAPS_STREAM, seed])
    test = with_gaps(rows.X_test, settings["share"], rng)
    X, nodes = treated(rows.X, rows.nodes, settings["share"], settings["way"], rng)
    begun = time.process_time()
    try:
        model = _fitted(settings, X, nodes, seed)
    except ValueError as error:
        return {"status": "diverged", "message": str(error)}
    seconds = time.process_time() - begun
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # nodes without a complete row are newcomers
        found = scores(model, replace(rows, X_test=test, labels_test=None))
    return {"ll": found["ll"], "seconds": seconds}


def with_gaps(X: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """Cells taken out at random; every row keeps one at least."""
    gone = rng.random(X.shape) < share
    gone[np.arange(len(X)), rng.integers(X.shape[1], size=len(X))] = False
    return np.where(gone, np.nan, X)


def treated(
    X: np.ndarray, nodes: np.ndarray, share: float, way: str, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Training rows with gaps and their nodes, as a way to treat gaps hands them to a fit."""
    incomplete = with_gaps(X, share, rng)
    if way == "whole":
        return X, nodes
    if way == "complete":
        kept = ~np.isnan(incomplete).any(1)
        return X[kept], nodes[kept]
    if way == "mean":
        centre = np.nanmean(incomplete, axis=0)
        for node in np.unique(nodes):
            own = incomplete[nodes == node]
            cells = (~np.isnan(own)).sum(0)
            mean = np.where(cells, np.nansum(own, 0) / np.maximum(cells, 1), centre)
            incomplete[nodes == node] = np.where(np.isnan(own), mean, own)
    return incomplete, nodes


def absent(settings: dict[str, Any], seed: int) -> Numbers:
    """How well the column that one node lacks is predicted for its test rows, from their others.

    The error of the expectation, and the log-density of the column given the others. To compare
    with, the mean and variance of the column over the other nodes.
    """
    rows = _split(settings, seed)
    column = settings["data"]["form"]["features"].index(settings["column"])
    own = rows.nodes_test == settings["node"]
    X = rows.X.copy()
    X[rows.nodes == settings["node"], column] = np.nan
    truth, asked = rows.X_test[own][:, column], rows.X_test[own].copy()
    asked[:, column] = np.nan
    if settings["method"] == "mean":
        mean, variance = np.nanmean(X[:, column]), np.nanvar(X[:, column])
        told = np.full(len(truth), mean)
        density = -0.5 * ((truth - mean) ** 2 / variance + np.log(2 * np.pi * variance))
    else:
        model, nodes = _fitted(settings, X, rows.nodes, seed), rows.nodes_test[own]
        told = model.impute(asked, nodes=nodes)[:, column]
        density = model.score_samples(rows.X_test[own], nodes) - model.score_samples(asked, nodes)
    error = float(np.sqrt(np.mean((told - truth) ** 2)))
    return {"rmse": error, "ll": float(np.mean(density))}


def cost(settings: dict[str, Any], seed: int) -> Numbers:
    """Processor seconds of a second fit and peak memory, in a process of its own."""
    with ProcessPoolExecutor(1, get_context("spawn")) as alone:
        return alone.submit(measured, settings, seed).result()


def measured(settings: dict[str, Any], seed: int) -> Numbers:
    """Of rows with so many patterns of gaps; none at all for zero."""
    size = settings["size"]
    rng = np.random.default_rng([COST_STREAM, seed])
    n, d = size["n_nodes"] * size["n_rows"], size["n_features"]
    centres = 3 * rng.standard_normal((size["n_components"], d))
    X = centres[rng.integers(len(centres), size=n)] + rng.standard_normal((n, d))
    if settings["patterns"]:
        masks = with_gaps(np.zeros((settings["patterns"], d)), settings["share"], rng)
        incomplete = rng.random(n) < INCOMPLETE_ROWS
        X[incomplete] += masks[rng.integers(len(masks), size=incomplete.sum())]
    nodes = np.arange(n) % size["n_nodes"]
    _fitted(settings, X, nodes, seed)  # compiles
    begun = time.process_time()
    _fitted(settings, X, nodes, seed)
    return {"seconds": time.process_time() - begun, "megabytes": _peak()}


def _peak() -> float:
    """Peak memory of this process in megabytes (Linux)."""
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def _split(settings: dict[str, Any], seed: int) -> Split:
    """Training and test rows: of a table, or of a scenario."""
    if "table" in settings["data"]:
        return split(settings["data"], seed)
    found = situation.situation(settings, seed).scenario
    return Split(found.X, found.nodes, found.X_validation, found.nodes_validation, None)


def _fitted(settings: dict[str, Any], X: np.ndarray, nodes: np.ndarray, seed: int) -> Any:
    graph = settings["graph"]
    if not isinstance(graph, str):
        network = situation.situation(settings, seed).network
        kept = set(np.unique(nodes).tolist())
        ends = zip(network.source.tolist(), network.target.tolist(), strict=True)
        graph = [edge for edge in ends if set(edge) <= kept] or None
    model = NetworkGaussianMixture(
        settings["n_components"],
        graph=graph,
        method=with_options(METHODS[settings["method"]](), settings["options"]),
        random_state=seed,
        transforms="none",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        return model.fit(X, nodes=nodes)
