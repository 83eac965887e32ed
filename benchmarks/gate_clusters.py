"""What the gate between sites costs clusters: adjusted Rand index, beside the plain method.

Run ``python -m benchmarks.gate_clusters --tables FOLDER --splits 3``. The default job between sites
in one process, with the gate that site files have, and the same method on the same rows without:
clusters of test rows by the personal level, whose components are the same at all sites.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import numpy as np

from benchmarks import report

FIRST = 400


def one(table: str, split: int) -> dict[str, Any]:
    """Agreement with the truth over all rows, and the mean over sites, of both."""
    from fedmixtures.data.node_data import NodeData
    from fedmixtures.engine.solve import solve
    from fedmixtures.methods.trust_then_pool import TrustThenPool
    from reproduction.tasks import between_sites, csv_tables

    data = {**csv_tables.problems()[table], "regime": "few"}
    rows = csv_tables.split(data, split)
    settings = {"data": data, "n_components": data["form"]["n_components"]}
    problem = between_sites.problem_of(settings, split)
    names = list(problem.rows)
    labels = np.repeat(names, [len(x) for x in problem.rows.values()])
    own = NodeData.from_rows(np.concatenate(list(problem.rows.values())), labels)
    how = {"n_components": problem.n_components, "seed": split}
    alone = solve(TrustThenPool(), own, problem.network.aligned(own.labels), **how)
    sites = between_sites.deployed_levels(problem, split, {})
    truth = [rows.labels_test[rows.nodes_test == node] for node in np.unique(rows.nodes_test)]
    assert alone.levels is not None
    plain = {n: alone.levels.theta.at(np.s_[:, i]) for i, n in enumerate(own.labels)}
    behind = {n: levels.theta.at(np.s_[:, 0]) for n, levels in sites.items()}
    found: dict[str, Any] = {"table": table, "split": split}
    for form, levels in (("plain", plain), ("gate", behind)):
        at = alone.levels.names.index("personal")
        clusters = [_assigned(levels[n].at(at), x) for n, x in problem.test.items()]
        found |= _agreement(form, truth, clusters)
    return found


def _assigned(theta: Any, x: np.ndarray) -> np.ndarray:
    from fedmixtures.mixture.density import log_joint

    return np.asarray(log_joint(theta, x)).argmax(1)


def _agreement(form: str, truth: list[np.ndarray], found: list[np.ndarray]) -> dict[str, float]:
    from sklearn.metrics import adjusted_rand_score as index

    own = [index(*pair) for pair in zip(truth, found, strict=True)]
    across = index(np.concatenate(truth), np.concatenate(found))
    return {f"{form} across": float(across), f"{form} within": float(np.mean(own))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", help="folder of CSV files, as for `reproduction`")
    parser.add_argument("--problems", nargs="+", default=["penguins", "cytof_multicenter"])
    parser.add_argument("--splits", type=int, default=3, help=f"from {FIRST} on")
    parser.add_argument("--name", default="gate-clusters")
    given = parser.parse_args()
    from reproduction.tasks import csv_tables

    if given.tables:
        os.environ[csv_tables.VARIABLE] = given.tables
    found = []
    for table in given.problems:
        for split in range(FIRST, FIRST + given.splits):
            found.append(one(table, split))
            print(found[-1], flush=True)
            report.write(given.name, found, None, "benchmarks.gate_clusters")


if __name__ == "__main__":
    main()
