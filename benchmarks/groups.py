"""How well the default method finds hidden groups of hundreds and thousands: density, purity.

Run ``python -m benchmarks.groups --lines 10000:10,100000:100 --name groups``. A line is
``NODES:GROUPS``; with ``:hubs`` degrees follow a power law up to about a thousand, with ``:uneven``
groups have 3 to 10,000 members. What is found is written as it is found.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import report
from fedmixtures import Mixture
from fedmixtures.data.node_data import NodeData
from fedmixtures.engine.solution import Solution
from fedmixtures.engine.solve import solve
from fedmixtures.graph import Network

K, D, ROWS, UNSEEN, JUDGED = 5, 2, 50, 200, 200
INSIDE, CHANCE = 8.0, 2.0
"""Average degree inside the groups, and of edges between any two nodes."""


def hidden_groups(n: int, n_groups: int, kind: str, rng: np.random.Generator) -> np.ndarray:
    """(nodes,) which group each belongs to; `n_groups` plays no part where they are uneven."""
    if kind != "uneven":
        return rng.integers(n_groups, size=n)
    sizes = np.exp(rng.uniform(np.log(3), np.log(min(10_000, n / 3)), size=n // 3))
    sizes = sizes.astype(int)
    return np.repeat(np.arange(len(sizes)), sizes)[:n]


def graph_of(group: np.ndarray, kind: str, rng: np.random.Generator) -> Network:
    """Edges inside groups and by chance; ends of hubs are drawn more often."""
    n = len(group)
    wish = np.minimum(rng.pareto(1.5, n) + 1, 450.0) if kind == "hubs" else np.ones(n)
    order = np.argsort(group, kind="stable")
    total = np.concatenate([[0.0], np.cumsum(wish[order])])
    size = np.bincount(group)
    begin = np.cumsum(size) - size
    first, last = total[begin], total[begin + size]
    draw = lambda u: order[np.clip(np.searchsorted(total, u, "right") - 1, 0, n - 1)]
    anyone = lambda m: draw(rng.random(m) * total[-1])
    inside, chance = (round(n * degree / 2) for degree in (INSIDE, CHANCE))
    one, stranger, other = anyone(inside), anyone(chance), anyone(chance)
    of = group[one]
    mate = draw(first[of] + rng.random(inside) * (last[of] - first[of]))
    ends = np.sort(np.stack([np.append(one, stranger), np.append(mate, other)]), axis=0)
    low, high = np.divmod(np.unique(ends[0] * n + ends[1]), n)
    real = low < high
    return Network(tuple(range(n)), low[real], high[real], np.ones(real.sum()))


def problem(n: int, n_groups: int, kind: str, seed: int = 0):
    """Rows, graph, groups, and the means of each group's components."""
    rng = np.random.default_rng(seed)
    group = hidden_groups(n, n_groups, kind, rng)
    network = graph_of(group, kind, rng)
    means = 5 * rng.standard_normal((group.max() + 1, K, D))
    rows = rng.standard_normal((n, ROWS, D))
    rows += means[group[:, None], rng.integers(K, size=(n, ROWS))]
    offsets, index = np.arange(n + 1) * ROWS, np.arange(n * ROWS)
    labels = tuple(range(n))
    data = NodeData(labels, rows.reshape(-1, D), np.ones(n * ROWS), offsets, index)
    return data, network, group, means


def judged(solution: Solution, network: Network, group: np.ndarray, means: np.ndarray) -> dict:
    """What was found beside what is true."""
    assert solution.diagnostics is not None
    label, edges = solution.diagnostics.nodes["group"], solution.diagnostics.edges
    found = np.unique(label, return_inverse=True)[1]
    members = np.bincount(found)
    both, count = np.unique(found * (group.max() + 1) + group, return_counts=True)
    most = np.zeros(len(members), dtype=np.int64)
    np.maximum.at(most, both // (group.max() + 1), count)
    inside = group[network.source] == group[network.target]
    live, kept = edges["listens"].all(1), edges["trusted"].all(1)
    return {
        "groups_hidden": len(np.unique(group)),
        "groups_found": len(members),
        "largest": int(members.max()),
        "largest_hidden": int(np.bincount(group).max()),
        "purity": float(most.sum() / len(group)),
        "alone": float((members == 1).sum() / len(group)),
        "most_neighbours": int(network.degree.max()),
        "live_inside": float(live[inside].mean()),
        "live_across": float(live[~inside].mean()),
        "kept_inside": float(kept[inside].mean()),
        "kept_across": int(kept[~inside].sum()),
        "shortfall": shortfall(solution, group, means),
    }


def shortfall(solution: Solution, group: np.ndarray, means: np.ndarray) -> dict[str, float]:
    """Mean log-density of new rows of some nodes, minus that under the truth."""
    rng = np.random.default_rng(1)
    who = rng.choice(len(group), JUDGED, replace=False)
    truth = means[group[who]]
    rows = np.take_along_axis(truth, rng.integers(K, size=(JUDGED, UNSEEN))[..., None], 1)
    rows = rows + rng.standard_normal(rows.shape)
    known = _log_density(np.full((JUDGED, K), 1 / K), truth, np.eye(D), rows)
    levels = solution.levels
    assert levels is not None
    models: dict[str, Mixture] = {"clusters": solution.theta}
    for name, *parts in zip(levels.names, *levels.theta.parts, strict=True):
        models[name] = Mixture(*parts)
    by_model = {name: _density_of(theta, who, rows) for name, theta in models.items()}
    weights = np.log(np.maximum(levels.weights[who].T[..., None], 1e-300))
    by_level = np.stack([by_model[name] for name in levels.names])
    by_model["density"] = np.logaddexp.reduce(weights + by_level)
    return {name: float((of - known).mean()) for name, of in by_model.items()}


def _density_of(theta: Mixture, who: np.ndarray, rows: np.ndarray) -> np.ndarray:
    weights, means, covariances = (np.asarray(part)[who] for part in theta.parts)
    return _log_density(weights, means, covariances, rows)


def _log_density(weights, means, covariances, rows) -> np.ndarray:
    """(nodes, rows) under mixtures (nodes, k, ...)."""
    covariances = np.broadcast_to(covariances, (*means.shape, D)).astype(np.float64)
    off = rows[:, :, None] - means[:, None]
    inverse, volume = np.linalg.inv(covariances), np.linalg.slogdet(covariances)[1]
    square = np.einsum("nmki,nkij,nmkj->nmk", off, inverse, off)
    with np.errstate(divide="ignore"):
        each = np.log(weights)[:, None] - (square + volume[:, None] + D * np.log(2 * np.pi)) / 2
    return np.logaddexp.reduce(each, axis=-1)


def _fitted(data: NodeData, network: Network) -> tuple[float, Solution]:
    start = time.perf_counter()
    solution = solve("trust", data, network, n_components=K, dtype="float32")
    return time.perf_counter() - start, solution


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", default="10000:10,10000:100")
    parser.add_argument("--again", default="", help="lines that are fitted twice, for the time")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no line after so many")
    parser.add_argument("--name", default="groups", help="file name of the result, without .json")
    parser.add_argument("--folder", type=Path, help="where to write it, if not to the results")
    options = parser.parse_args()
    begun, again = time.perf_counter(), options.again.split(",")
    found: dict[str, Any] = {"device": report.gpu(), "lines": {}}
    for line in options.lines.split(","):
        if time.perf_counter() - begun > options.seconds:
            break
        n, n_groups, kind = (*line.split(":"), "")[:3]
        data, network, *truth = problem(int(n), int(n_groups), kind)
        fits = [_fitted(data, network) for _ in range(1 + (line in again))]
        seconds = [round(took, 2) for took, _ in fits]
        found["lines"][line] = {"seconds": seconds} | judged(fits[-1][1], network, *truth)
        del fits
        print(line, json.dumps(found["lines"][line]), flush=True)
        report.write(options.name, found, options.folder, "benchmarks.groups")


if __name__ == "__main__":
    main()
