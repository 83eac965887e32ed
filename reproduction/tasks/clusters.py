"""Clusters against known populations: agreement within nodes and across the whole network."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedmixtures import FitWarning, NetworkGaussianMixture
from fedmixtures.methods.registry import METHODS
from reproduction.tasks import populations
from reproduction.tasks.csv_tables import Split
from reproduction.tasks.fit import with_options

Numbers = dict[str, Any]
N_INIT = 10
"""Starts of scikit-learn's methods."""
RIDGE = 1e-3
LEAST_CLUSTERS, MOST_CLUSTERS = 2, 25


def compute(runs: Sequence[tuple[dict[str, Any], int]]) -> Iterator[Numbers]:
    """The numbers of each run, in their order."""
    return (one(settings, seed) for settings, seed in runs)


def one(settings: dict[str, Any], seed: int) -> Numbers:
    """Fit the training rows of one split with every number of clusters, and judge its test rows.

    A list for each metric, in the order of ``settings["numbers"]``; a number of None is found by
    the method itself. Numbers that a method cannot fit have no metrics.
    """
    rows = populations.rows(settings["data"], seed)
    lines = []
    for k in settings["numbers"]:
        begun = time.process_time()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of convergence, few rows
                found = METHODS_OF[settings["method"]](rows, k, settings["options"], seed)
        except (ValueError, ArithmeticError) as error:
            lines.append({**dict.fromkeys(METRICS), "message": str(error)})
            continue
        lines.append({**agreement(found, rows), "seconds": time.process_time() - begun})
    return {name: [line.get(name) for line in lines] for name in (*METRICS, "message")}


METRICS = ("across", "within", "nmi_across", "nmi_within", "f", "n_clusters", "seconds")


def agreement(found: np.ndarray, rows: Split) -> Numbers:
    """How well the clusters of the test rows agree with their populations.

    Adjusted Rand index and normalized mutual information of all rows together (*across*: one set
    of names), and as the mean over nodes (*within*); the F-measure of the best cluster for each
    population, weighted by its rows, as the mean over nodes; and how many clusters have rows.
    """
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    labels, nodes = rows.labels_test, rows.nodes_test
    assert labels is not None
    parts = [nodes == node for node in np.unique(nodes)]
    mean = lambda score: float(np.mean([score(labels[part], found[part]) for part in parts]))
    return {
        "across": float(adjusted_rand_score(labels, found)),
        "within": mean(adjusted_rand_score),
        "nmi_across": float(normalized_mutual_info_score(labels, found)),
        "nmi_within": mean(normalized_mutual_info_score),
        "f": mean(f_measure),
        "n_clusters": len(np.unique(found)),
    }


def f_measure(labels: np.ndarray, found: np.ndarray) -> float:
    """Mean over populations, by their rows, of the best F-measure that any cluster has."""
    one = np.unique(labels, return_inverse=True)[1]
    other = np.unique(found, return_inverse=True)[1]
    table = np.zeros((one.max() + 1, other.max() + 1))
    np.add.at(table, (one, other), 1)
    each = 2 * table / (table.sum(1, keepdims=True) + table.sum(0, keepdims=True))
    return float(table.sum(1) @ each.max(1) / table.sum())


def _network(rows: Split, k: int | None, options: dict[str, Any], seed: int) -> np.ndarray:
    """A method of the package on the complete graph.

    `told`: whether a number is one of clusters, to be joined of components, or of components. Parts
    taken out: ``"joining"`` (every component that was found is a cluster), ``"level"`` (as many
    components, of the level that counts most at each node, are the clusters), ``"names"`` (the same
    with numbers drawn at every node).
    """
    options = dict(options)
    told, out = options.pop("as", "components"), options.pop("without", "")
    method = with_options(METHODS[options.pop("method")](), options)
    how: dict[str, Any] = {"graph": None if options.get("engine") else "full", "random_state": seed}
    if k:
        how["n_clusters" if told == "clusters" else "n_components"] = k
    model = NetworkGaussianMixture(method=method, **how)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        model.fit(rows.X, nodes=rows.nodes)
        if out in ("level", "names"):
            found = model.n_components_
            most = max(found.values()) if isinstance(found, dict) else found
            model = NetworkGaussianMixture(most, method=method, graph="full", random_state=seed)
            model.fit(rows.X, nodes=rows.nodes)
    if out == "joining":
        apart = replace(model.solution_, joined=None)
        model.adopt(apart, model.network_, transform=model.transform_)
    labels = model.predict(rows.X_test, nodes=rows.nodes_test)
    if out == "names":
        for number, node in enumerate(np.unique(rows.nodes_test)):
            order = np.random.default_rng([seed, number]).permutation(model.n_clusters_)
            at = rows.nodes_test == node
            labels[at] = order[labels[at]]
    return labels


def _sklearn(kind: str, k: int | None, seed: int) -> Any:
    from sklearn.cluster import KMeans
    from sklearn.mixture import GaussianMixture

    if kind == "kmeans":
        return KMeans(k, n_init=N_INIT, random_state=seed)
    return GaussianMixture(k, n_init=N_INIT, reg_covar=RIDGE, random_state=seed)


def _pooled(rows: Split, k: int | None, options: dict[str, Any], seed: int) -> np.ndarray:
    """A method of scikit-learn on the rows of all nodes together.

    Without a number: the best BIC of a mixture, the best silhouette of k-means.
    """
    from sklearn.metrics import silhouette_score

    kind = options["kind"]
    if k:
        return _sklearn(kind, k, seed).fit(rows.X).predict(rows.X_test)
    several = [_sklearn(kind, k, seed).fit(rows.X) for k in range(LEAST_CLUSTERS, MOST_CLUSTERS)]
    if kind == "gmm":
        return min(several, key=lambda model: model.bic(rows.X)).predict(rows.X_test)
    drawn = {"sample_size": min(len(rows.X), 2000), "random_state": seed}
    silhouette = lambda model: silhouette_score(rows.X, model.labels_, **drawn)
    return max(several, key=silhouette).predict(rows.X_test)


def _by_node(rows: Split, k: int | None, options: dict[str, Any], seed: int) -> np.ndarray:
    """A method of scikit-learn at every node by itself; its names mean nothing elsewhere."""
    found = np.zeros(len(rows.X_test), dtype=np.int64)
    for number, node in enumerate(np.unique(rows.nodes)):
        model = _sklearn(options["kind"], k, seed).fit(rows.X[rows.nodes == node])
        at = rows.nodes_test == node
        found[at] = model.predict(rows.X_test[at]) + number * (k or 0)
    return found


METHODS_OF: dict[str, Callable[..., np.ndarray]] = {
    "network": _network,
    "pooled": _pooled,
    "by_node": _by_node,
}
