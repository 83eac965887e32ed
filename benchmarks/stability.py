"""How stable clusters are: between fits of two halves of the rows, and between seeds.

Run ``python -m benchmarks.stability --tables FOLDER --splits 1 --seeds 5 --name stability``. What
agrees is the clusters of test rows that no fit has seen: the adjusted Rand index of all rows, with
nothing told. Beside it GaussianMixture of pooled rows, ten starts each, with as many clusters as
our first fit has found, and with the true number.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import report

FIRST = 300
N_INIT, RIDGE = 10, 1e-3


def halves(nodes: np.ndarray, seed: int) -> list[np.ndarray]:
    """Positions of two halves of the rows of every node."""
    rng = np.random.default_rng([22, seed])
    parts = [rng.permutation(np.flatnonzero(nodes == node)) for node in np.unique(nodes)]
    return [
        np.sort(np.concatenate([part[: len(part) // 2] for part in parts])),
        np.sort(np.concatenate([part[len(part) // 2 :] for part in parts])),
    ]


def ours(X, nodes, rows, seed: int) -> np.ndarray:
    """Clusters of the test rows, nothing told."""
    from fedmixtures import NetworkGaussianMixture

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = NetworkGaussianMixture(graph="full", random_state=seed).fit(X, nodes=nodes)
    return model.predict(rows.X_test, nodes=rows.nodes_test)


def pooled(X, k: int, rows, seed: int) -> np.ndarray:
    """Clusters of the test rows by one mixture of all rows."""
    from sklearn.mixture import GaussianMixture

    model = GaussianMixture(k, n_init=N_INIT, reg_covar=RIDGE, random_state=seed)
    return model.fit(X).predict(rows.X_test)


def one(data: dict[str, Any], split: int, n_seeds: int) -> dict[str, Any]:
    """Agreements of one split of one problem."""
    from sklearn.metrics import adjusted_rand_score

    from reproduction.tasks import populations

    rows = populations.rows(data, split)
    two = halves(rows.nodes, split)
    mean = lambda found: float(np.mean([adjusted_rand_score(*pair) for pair in found]))
    half = [ours(rows.X[part], rows.nodes[part], rows, split) for part in two]
    whole = [ours(rows.X, rows.nodes, rows, seed) for seed in range(n_seeds)]
    found = {"clusters": len(np.unique(whole[0]))}
    found["halves"], found["seeds"] = mean([half]), mean(combinations(whole, 2))
    for name, k in (("as many", found["clusters"]), ("true", data["n_clusters"])):
        own = [pooled(rows.X[part], k, rows, split) for part in two]
        more = [pooled(rows.X, k, rows, seed) for seed in range(n_seeds)]
        found[f"mixture, {name}, halves"] = mean([own])
        found[f"mixture, {name}, seeds"] = mean(combinations(more, 2))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", help="folder of CSV files, as for `reproduction`")
    parser.add_argument("--regimes", nargs="+", default=["few"])
    parser.add_argument("--splits", type=int, default=1, help=f"from {FIRST} on")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--name", default="stability")
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    from reproduction.tasks import csv_tables, populations

    if given.tables:
        os.environ[csv_tables.VARIABLE] = given.tables
    found = []
    for name, data in populations.problems().items():
        for regime in given.regimes:
            for split in range(FIRST, FIRST + given.splits):
                begun = time.process_time()
                line = one({**data, "regime": regime}, split, given.seeds)
                seconds = time.process_time() - begun
                found.append(
                    {"problem": f"{name} {regime}", "split": split, **line, "cpu": seconds}
                )
                print(found[-1], flush=True)
                report.write(given.name, found, given.folder, "benchmarks.stability")


if __name__ == "__main__":
    main()
