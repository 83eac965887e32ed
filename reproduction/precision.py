"""float32 against float64 on the trust experiments: ``python -m reproduction.precision``.

Every problem is fitted twice by the default method, and the held-out log-likelihoods of honest
nodes are compared.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fedmixtures.data.node_data import NodeData
from fedmixtures.estimators.scoring import log_densities
from fedmixtures.graph.network import complete
from fedmixtures.metrics import node_means
from reproduction.config import Problem, load
from reproduction.page import made, made_in_words
from reproduction.rendering import markdown_table
from reproduction.tasks import compared, fit
from reproduction.tasks.situation import situation
from reproduction.tasks.stresses import stressed

EXPERIMENTS = ("trust-sbm", "trust-robust", "trust-digits", "trust-stress")
WITHIN = 1e-3
"""How far apart the two may be."""


def main() -> int:
    """Fit, print and write the table."""
    parser = argparse.ArgumentParser(prog="python -m reproduction.precision", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    seeds = range(parser.parse_args().seeds)
    found: dict[str, dict[str, list[float]]] = {}
    for name in EXPERIMENTS:
        for problem in load(name).problems:
            if problem.data.get("dtype"):  # what it is about is done here to all of them
                continue
            changes = [_change(problem, seed) for seed in seeds]
            found.setdefault(name, {})[problem.name] = changes
            print(name, problem.name, " ".join(f"{change:+.1e}" for change in changes), flush=True)
    _write(found, seeds)
    return 0


def _change(problem: Problem, seed: int) -> float:
    """What float32 adds to the mean over honest nodes of held-out log-likelihood per row."""
    method, data, network, ks, (X, nodes), honest = _given(problem, seed)

    def score(dtype: str) -> float:
        how = {"n_components": ks, "seed": seed, "dtype": dtype}
        solution = fit.quiet_solve(method, data, network, **how)
        means = node_means(log_densities(solution, NodeData.from_rows(X, nodes)), nodes)
        return float(np.mean([mean for node, mean in means.items() if honest[node]]))

    return score("float32") - score("float64")


def _given(problem: Problem, seed: int) -> tuple[Any, ...]:
    """Method, rows, network, components, held-out rows and who is honest."""
    settings = {"method": "trust", "options": {}, "without_liars": False, "data": problem.data}
    method = compared.build(settings)
    if "stress" in problem.data:
        split = stressed(problem.data, seed)
        data = NodeData.from_rows(split.X, split.nodes)
        held, honest = (split.X_test, split.nodes_test), np.ones(data.n_nodes, bool)
        return method, data, complete(data.labels), problem.n_components, held, honest
    settings |= {"graph": problem.graph, "n_components": problem.n_components}
    one = situation(settings, seed)
    held = one.scenario.X_validation, one.scenario.nodes_validation
    return method, one.rows(), one.network, one.n_components, held, one.honest


def _write(found: dict[str, dict[str, list[float]]], seeds: range) -> None:
    folder = Path("results") / "trust-precision"
    folder.mkdir(parents=True, exist_ok=True)
    how = made(f"python -m reproduction.precision --seeds {len(seeds)}")
    (folder / "result.json").write_text(json.dumps({"made": how, "changes": found}, indent=1))
    lines = list(_lines(found))
    table = markdown_table(["Experiment", "Problems", "Largest change", "Beyond 1e-3"], lines)
    (folder / "table.md").write_text(f"{table}\n\n{made_in_words(how, seeds)}\n")
    print(table)


def _lines(found: dict[str, dict[str, list[float]]]) -> Iterator[list[str]]:
    """Of every experiment the largest change, and which seeds of which problems are beyond."""
    for name, problems in found.items():
        largest = max(abs(change) for changes in problems.values() for change in changes)
        beyond = [
            f"{problem}, seed {seed}: {change:+.1e}"
            for problem, changes in problems.items()
            for seed, change in enumerate(changes)
            if not abs(change) <= WITHIN
        ]
        yield [name, str(len(problems)), f"{largest:.1e}", "; ".join(beyond) or "none"]


if __name__ == "__main__":
    raise SystemExit(main())
