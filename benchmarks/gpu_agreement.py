"""Do the GPU's float32 kernels give what a CPU gives in float64? By whole fits, and by nodes.

Run ``python -m benchmarks.gpu_agreement --name gpu-agreement``: 40 rounds of a small network, and
one round of a large one, of which some nodes are worked out again by themselves.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks import report
from benchmarks.gpu import FEASIBLE, problem
from fedmixtures import KL, MMD, Euclidean, GTVMin, Mixture
from fedmixtures.data.node_data import NodeData
from fedmixtures.engine.solve import solve
from fedmixtures.graph.network import Network
from fedmixtures.kernels.trial import outcomes

COUPLINGS = {"mmd": MMD(), "euclidean": Euclidean(), "kl": KL()}
SMALL, ROUNDS, LARGE, CHOSEN = 2_000, 40, 100_000, 500


def fits(data: NodeData, network: Network, start: Mixture, n_rounds: int, dtype: str) -> dict:
    """The mixtures that every coupling ends with."""
    found = {}
    for name, coupling in COUPLINGS.items():
        method = GTVMin(coupling, alpha=0.1, feasible=FEASIBLE)
        solution = solve(method, data, network, start, n_rounds=n_rounds, dtype=dtype)
        parts = zip(("weights", "means", "covariances"), solution.theta.parts, strict=True)
        found |= {f"{name}_{part}": values for part, values in parts}
    return found


def around(chosen: np.ndarray, data: NodeData, network: Network, start: Mixture):
    """These nodes first, then their neighbours, with the edges of these nodes alone."""
    touches = np.isin(network.source, chosen) | np.isin(network.target, chosen)
    source, target = network.source[touches], network.target[touches]
    others = np.setdiff1d(np.concatenate([source, target]), chosen)
    nodes = np.concatenate([chosen, others])
    place = np.empty(data.n_nodes, dtype=np.int64)
    place[nodes] = np.arange(len(nodes))
    labels = tuple(data.labels[i] for i in nodes)
    rows = np.concatenate([data.of(i)[0] for i in nodes])
    offsets = np.concatenate([[0], np.cumsum(data.counts[nodes])])
    part = NodeData(labels, rows, np.ones(len(rows)), offsets, np.arange(len(rows)))
    weight = network.weight[touches]
    return part, Network(labels, place[source], place[target], weight), start.at(nodes)


def both(dtype: str, alone: bool) -> dict[str, np.ndarray]:
    """Both comparisons on this machine's default device."""
    small = fits(*problem(SMALL), ROUNDS, dtype)
    data, network, start = problem(LARGE)
    chosen = np.random.default_rng(1).choice(LARGE, CHOSEN, replace=False)
    if alone:
        large = fits(*around(chosen, data, network, start), 1, dtype)
        large = {name: values[:CHOSEN] for name, values in large.items()}
    else:
        large = {name: v[chosen] for name, v in fits(data, network, start, 1, dtype).items()}
    named = lambda found, prefix: {f"{prefix}_{name}": v for name, v in found.items()}
    return named(small, "fit") | named(large, "round")


def main() -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reference", help="only work out the reference, into this file")
    parser.add_argument("--name", default="gpu-agreement", help="file name of the result")
    parser.add_argument("--folder", type=Path, help="where to write it, if not to the results")
    options = parser.parse_args()
    if options.reference:
        np.savez(options.reference, **both("float64", alone=True))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "reference.npz")
        command = [sys.executable, "-m", "benchmarks.gpu_agreement", "--reference", path]
        reference = subprocess.Popen(command, env=os.environ | {"JAX_PLATFORMS": "cpu"})
        found = both("float32", alone=False)
        if reference.wait() != 0:
            raise SystemExit("the reference failed")
        wanted = dict(np.load(path))
    result = report.gpu() | {"kernels": outcomes()}
    for name, values in found.items():
        difference = np.abs(values - wanted[name])
        result[name] = {
            "largest": float(difference.max()),
            "median": float(np.median(difference)),
            "range": float(np.abs(wanted[name]).max()),
        }
        print(name, json.dumps(result[name]), flush=True)
    report.write(options.name, result, options.folder, "benchmarks.gpu_agreement")


if __name__ == "__main__":
    main()
