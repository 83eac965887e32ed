"""The problems: data, graph, starting mixtures and settings, as plain NumPy for every contender."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedmixtures.data.node_data import NodeData
from fedmixtures.graph.generate import erdos_renyi_ring, sparse_random, stochastic_blocks
from fedmixtures.graph.network import Network
from fedmixtures.mixture.arithmetic import double
from fedmixtures.mixture.feasible import FeasibleSet
from fedmixtures.mixture.mixture import Mixture

COUPLINGS = ("euclidean", "kl", "mmd")
ALPHA = {"euclidean": 1.0, "kl": 0.1, "mmd": 1.0}
BANDWIDTHS = (0.5, 1.0, 2.0, 4.0)
KL_SAMPLES = 50
BOUNDS = FeasibleSet(min_weight=1e-3, max_mean_norm=50.0, min_variance=0.05, max_variance=100.0)


@dataclass(frozen=True)
class Problem:
    """Everything a contender is given."""

    name: str
    rows: np.ndarray
    """(nodes, m, d): all nodes hold equally many rows, which spares the peers any masks."""
    network: Network
    theta: Mixture
    """Starting mixtures, stacked."""
    n_rounds: int
    n_local_steps: int = 5
    learning_rate: float = 0.02

    @property
    def n_nodes(self) -> int:
        return len(self.rows)

    def node_data(self) -> NodeData:
        n, m, d = self.rows.shape
        return NodeData.from_rows(self.rows.reshape(-1, d), np.repeat(np.arange(n), m))

    def directed(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Receiver, sender and weight of every directed edge."""
        g = self.network
        weight = np.concatenate([g.weight, g.weight])
        return np.r_[g.source, g.target], np.r_[g.target, g.source], weight

    def shortened(self, n_rounds: int) -> Problem:
        """The same problem over fewer rounds; all rounds cost the same."""
        return replace(self, n_rounds=min(n_rounds, self.n_rounds))


def problem(name: str, seed: int = 0) -> Problem:
    """S1 to S4 as the issue names them, or ``S4@n`` for its shape with another number of nodes."""
    if name.startswith("S4@"):
        return _sized(name, int(name[3:]), seed)
    made = {
        "S1": lambda: _made("S1", erdos_renyi_ring(10, 0.6, seed), 2, 2, 100, 40, seed=seed),
        "S2": lambda: _made(
            "S2", stochastic_blocks([5, 5, 5], 0.8, 0.1, seed), 5, 2, 50, 40, seed=seed
        ),
        "S3": lambda: _made(
            "S3", erdos_renyi_ring(10, 0.6, seed), 10, 10, 110, 25, learning_rate=0.01, seed=seed
        ),
        "S4": lambda: _sized("S4", 1000, seed),
    }
    if name not in made:
        raise ValueError(f"no problem {name!r}; there are {', '.join(made)} and S4@<nodes>")
    return made[name]()


def shaped(n: int, degree: int, k: int, d: int, n_rounds: int) -> Problem:
    """As S4, with another shape."""
    name = f"n={n}, degree={degree}, k={k}, d={d}"
    return _made(name, sparse_random(n, degree, 0), k, d, 50, n_rounds)


def _sized(name: str, n: int, seed: int) -> Problem:
    return _made(name, sparse_random(n, 10, seed), 5, 2, 50, 40, seed=seed)


def _made(name, network, k, d, m, n_rounds, learning_rate=0.02, seed=0) -> Problem:
    """Rows of one mixture per node, near a common one; starts a little off the truth."""
    rng = np.random.default_rng([seed, len(network.labels), k, d])
    n = len(network.labels)
    centres = rng.normal(scale=3.0, size=(1, k, d)) + rng.normal(scale=0.3, size=(n, k, d))
    labels = rng.integers(k, size=(n, m))
    rows = rng.normal(size=(n, m, d))
    rows += centres[np.arange(n)[:, None], labels]
    means = centres + rng.normal(scale=0.3, size=centres.shape)
    factor = np.eye(d) + 0.2 * np.tril(rng.normal(size=(n, k, d, d)))
    weights = rng.dirichlet(np.full(k, 20.0), size=n)
    theta = Mixture(weights, means, factor @ np.swapaxes(factor, -1, -2))
    with double():  # in pieces: the memory of a solve is not to be hidden behind that of its start
        pieces = [theta.at(slice(i, i + 5000)) for i in range(0, n, 5000)]
        projected = [BOUNDS.project(piece).to_numpy().parts for piece in pieces]
    start = Mixture(*map(np.concatenate, zip(*projected, strict=True)))
    return Problem(name, rows, network, start, n_rounds, learning_rate=learning_rate)
