"""Whether more starts of the shared mixture (`leaders`) make clusters agree between seeds.

Run ``python -m benchmarks.starts --tables FOLDER --splits 1 --seeds 4``: for every problem, number
of leaders and split, fits from several seeds with nothing told. What agrees is the clusters of test
rows, by the adjusted Rand index of pairs of seeds; density is that of test rows, mean over nodes.
Fits are kept in a folder (``--keep``), so that a run that was stopped goes on.
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
from benchmarks.stability import FIRST

PROBLEMS = "penguins", "heart_disease", "blobs", "cytof_multicenter", "digits"


def fitted(problem: str, leaders: int, split: int, seed: int, keep: Path) -> Any:
    """Clusters and densities of the test rows, from the folder if they are there."""
    path = keep / f"{problem}-{leaders}-{split}-{seed}.npz"
    if not path.exists():
        from fedmixtures import NetworkGaussianMixture
        from fedmixtures.methods.trust_then_pool import pool
        from reproduction.tasks import populations

        rows = populations.rows({**populations.problems()[problem], "regime": "few"}, split)
        pool.C.leaders = leaders
        begun = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = NetworkGaussianMixture(graph="full", random_state=seed)
            model.fit(rows.X, nodes=rows.nodes)
        found = {"t": time.process_time() - begun, "nodes": rows.nodes_test}
        asked = rows.X_test, rows.nodes_test
        found |= {"s": model.score_samples(*asked), "p": model.predict(*asked)}
        keep.mkdir(parents=True, exist_ok=True)
        np.savez(path, **found, truth=rows.labels_test, c=model.n_clusters_)
    return np.load(path, allow_pickle=True)


def summary(fits: list[Any]) -> dict[str, Any]:
    """Agreement, density and cost of the fits of one problem and split."""
    from sklearn.metrics import adjusted_rand_score

    pairs = [adjusted_rand_score(a["p"], b["p"]) for a, b in combinations(fits, 2)]
    own = lambda fit: np.mean([fit["s"][fit["nodes"] == n].mean() for n in np.unique(fit["nodes"])])
    return {
        "seeds": float(np.mean(pairs)),
        "truth": float(np.mean([adjusted_rand_score(fit["truth"], fit["p"]) for fit in fits])),
        "density": float(np.median([own(fit) for fit in fits])),
        "clusters": [int(fit["c"]) for fit in fits],
        "cpu": float(np.median([float(fit["t"]) for fit in fits[1:]])),  # the first one compiles
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", help="folder of CSV files, as for `reproduction`")
    parser.add_argument("--problems", nargs="+", default=PROBLEMS)
    parser.add_argument("--leaders", nargs="+", type=int, default=[3, 10])
    parser.add_argument("--splits", type=int, default=1, help=f"from {FIRST} on")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--keep", type=Path, default=Path("starts"))
    parser.add_argument("--name", default="starts")
    given = parser.parse_args()
    from reproduction.tasks import csv_tables

    if given.tables:
        os.environ[csv_tables.VARIABLE] = given.tables
    found = []
    for problem in given.problems:
        for split in range(FIRST, FIRST + given.splits):
            for leaders in given.leaders:
                of = problem, leaders, split
                fits = [fitted(*of, seed, given.keep) for seed in range(given.seeds)]
                line = {"problem": problem, "split": split, "leaders": leaders, **summary(fits)}
                found.append(line)
                print(line, flush=True)
                report.write(given.name, found, None, "benchmarks.starts")


if __name__ == "__main__":
    main()
