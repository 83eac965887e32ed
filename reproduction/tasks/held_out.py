"""Methods through the estimator, judged by rows that no node has seen."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedmixtures import FitWarning, NetworkGaussianMixture
from fedmixtures.engine.options import used
from fedmixtures.estimators.resolve import METHODS
from fedmixtures.estimators.selection import select_alpha
from reproduction.tasks.csv_tables import Split, split
from reproduction.tasks.fit import with_options
from reproduction.tasks.measure import normalized_mutual_information
from reproduction.tasks.stresses import stressed

Numbers = dict[str, Any]
NAMES = ("ll", "ll_trimmed", "ari", "nmi", "nodes", "seconds")
TRIMMED_SHARE = 0.05
"""The share of each node's rows, the lowest, that a trimmed score leaves out."""


def compute(runs: Sequence[tuple[dict[str, Any], int]]) -> Iterator[Numbers]:
    """The numbers of each run, in their order."""
    return (one(settings, seed) for settings, seed in runs)


def one(settings: dict[str, Any], seed: int) -> Numbers:
    """Fit the training rows of one split and score its test rows.

    A fit that raises or diverges is a result too: it has no numbers, but its message.
    """
    rows = stressed(settings["data"], seed) if "stress" in settings["data"] else None
    rows = rows or split(settings["data"], seed)
    rows, log_unit = _standardised(rows) if settings["standardised"] else (rows, 0.0)
    rows = replace(rows, X=rows.X.astype(settings["dtype"]))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)  # the status is kept with the numbers
            model = _model(settings, rows, seed)
            begun = time.process_time()
            model.fit(rows.X, nodes=rows.nodes)
    except (ValueError, ArithmeticError) as error:
        return _lost(str(error))
    seconds = time.process_time() - begun
    if model.status_ != "completed":
        return _lost(f"status {model.status_}")
    chosen = {"alpha": model.method.alpha} if "alphas" in settings["options"] else {}
    found = scores(model, rows, log_unit)
    return {**found, **chosen, "seconds": seconds, "status": "completed"}


def _model(settings: dict[str, Any], rows: Split, seed: int) -> NetworkGaussianMixture:
    """The estimator; ``alphas`` are values of alpha to choose from, by training rows alone."""
    options = dict(settings["options"])
    alphas, init = options.pop("alphas", None), options.pop("init", "kmeans")
    method = with_options(METHODS[settings["method"]](), options)
    shared = {
        "graph": settings["graph"] or None,
        "n_components": settings["n_components"],
        **used(method, n_rounds=settings["n_rounds"]),
        "init": init,
        "random_state": seed,
    }
    if alphas:
        found = select_alpha(rows.X, rows.nodes, method=method, alphas=alphas, **shared)
        method = replace(method, alpha=found.alpha)
    how = used(method, dtype=settings["dtype"])
    return NetworkGaussianMixture(**shared, method=method, transforms="none", **how)


def scores(model: Any, rows: Split, log_unit: float = 0.0) -> Numbers:
    """Plain means over nodes of each node's own score; `nodes` has every node's log-density."""
    from sklearn.metrics import adjusted_rand_score

    densities = np.asarray(model.score_samples(rows.X_test, nodes=rows.nodes_test)) - log_unit
    names = np.unique(rows.nodes_test)
    own = [np.sort(densities[rows.nodes_test == name]) for name in names]
    kept = [values[int(TRIMMED_SHARE * len(values)) :] for values in own]
    ll = [float(values.mean()) for values in own]
    ari = nmi = None
    if rows.labels_test is not None:
        found = model.predict(rows.X_test, nodes=rows.nodes_test)
        at = [rows.nodes_test == name for name in names]
        ari = float(np.mean([adjusted_rand_score(rows.labels_test[i], found[i]) for i in at]))
        nmi = normalized_mutual_information(rows.labels_test, found, rows.nodes_test)
    return {
        "ll": float(np.mean(ll)),
        "ll_trimmed": float(np.mean([values.mean() for values in kept])),
        "ari": ari,
        "nmi": nmi,
        "nodes": ll,
    }


def _standardised(rows: Split) -> tuple[Split, float]:
    """Rows in pooled units, and what the change of units adds to a log-density."""
    spread = rows.X.std(0)
    # A constant column has the rounding of its mean for a spread.
    spread = np.where(spread > 1e-12 * np.abs(rows.X).max(0), spread, 1.0)
    centre = rows.X.mean(0)
    units = lambda X: (X - centre) / spread
    scaled = replace(rows, X=units(rows.X), X_test=units(rows.X_test))
    return scaled, float(np.log(spread).sum())


def _lost(message: str) -> Numbers:
    return {**dict.fromkeys(NAMES), "status": "diverged", "message": message}
