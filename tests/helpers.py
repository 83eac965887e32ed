"""What the tests share: small random mixtures, discrepancies and their properties, small networks.

A new discrepancy takes its place in `DISCREPANCIES`; every property test then runs over it.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap

import numpy as np

from fedmixtures import KL, MMD, Euclidean, GTVMin, Mixture, TrustThenPool
from fedmixtures.data.node_data import NodeData
from fedmixtures.discrepancy import UnscentedKL
from fedmixtures.engine.solve import solve
from fedmixtures.graph import from_edges
from fedmixtures.mixture.feasible import FeasibleSet

DISCREPANCIES = (
    Euclidean(),
    Euclidean(block_weights=(3.0, 0.5, 2.0)),
    KL(n_samples=7),
    MMD(),
    MMD(bandwidths=(0.7, 3.0)),
    UnscentedKL(),
)
SAMPLE_FREE = tuple(D for D in DISCREPANCIES if not D.random)
SYMMETRIC = tuple(D for D in DISCREPANCIES if D.symmetric)
NEVER_NEGATIVE = tuple(D for D in DISCREPANCIES if isinstance(D, (Euclidean, MMD)))
ANY_COUNTS = tuple(D for D in DISCREPANCIES if not D.needs_equal_components)

QUICK_TRUST = TrustThenPool(
    n_starts=1, n_folds=2, strengths=(1.0,), ridges=(1.0,), pool_steps=(1, 1, 1)
)
"""The default method with all its steps, each as short as can be."""

WIDE = FeasibleSet(min_weight=1e-3, max_mean_norm=1e6, min_variance=1e-6, max_variance=1e6)
"""A feasible set that small problems hardly touch."""


def name_of(discrepancy) -> str:
    """Name of a discrepancy in the list of tests, with its settings where they are not usual."""
    same = discrepancy == type(discrepancy)()
    values = ",".join(str(getattr(discrepancy, f.name)) for f in dataclasses.fields(discrepancy))
    return type(discrepancy).__name__ + ("" if same else f"({values})")


def mixture(
    seed: int,
    k: int = 3,
    d: int = 2,
    *,
    condition: float = 10.0,
    centre: float = 0.0,
    spread: float = 2.0,
    absent: int = 0,
) -> Mixture:
    """One random mixture; covariance eigenvalues from 1 down to 1 / `condition`."""
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.full(k, 5.0))
    means = centre + spread * rng.standard_normal((k, d))
    turns = np.linalg.qr(rng.standard_normal((k, d, d)))[0]
    eigenvalues = condition ** -np.linspace(0, 1, d) if d > 1 else np.array([0.7])
    scales = rng.uniform(0.5, 1.5, (k, 1)) * eigenvalues
    covariances = np.einsum("kij,kj,klj->kil", turns, scales, turns)
    covariances = 0.5 * (covariances + np.swapaxes(covariances, -1, -2))
    made = Mixture(weights, means, covariances)
    return made.padded(k + absent)


def stack(seed: int, n: int, k: int = 3, d: int = 2, **options) -> Mixture:
    """A stack of `n` random mixtures."""
    return Mixture.stack([mixture(1000 * seed + i, k, d, **options) for i in range(n)])


def draw(mixture: Mixture, n: int, seed: int = 0) -> np.ndarray:
    """Draw `n` rows with NumPy alone."""
    rng = np.random.default_rng(seed)
    components = rng.choice(mixture.n_components, n, p=mixture.weights)
    factors = np.linalg.cholesky(mixture.covariances)[components]
    noise = rng.standard_normal((n, mixture.n_features))
    return mixture.means[components] + np.einsum("nij,nj->ni", factors, noise)


def flat(mixture: Mixture) -> np.ndarray:
    """All parameters as one vector."""
    return np.concatenate([np.ravel(part) for part in mixture.parts])


def assert_close(actual: Mixture, expected: Mixture, tolerance: float) -> None:
    """Equal to an absolute `tolerance`, part by part."""
    for got, wanted in zip(actual.parts, expected.parts, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance)


def lines_of_code(one: type) -> int:
    """How many lines a class took to write, without docstrings and blank lines."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(one)))
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            node.body = node.body[1:] or [ast.Pass()]
    return len(ast.unparse(tree).replace("\n\n", "\n").splitlines())


@dataclasses.dataclass(frozen=True)
class Problem:
    """Rows, network and starting mixtures of a few nodes."""

    X: np.ndarray
    nodes: np.ndarray
    edges: list
    theta: Mixture
    """Stacked in the order of sorted labels."""

    @property
    def data(self) -> NodeData:
        return NodeData.from_rows(self.X, self.nodes)

    @property
    def labels(self) -> tuple:
        return self.data.labels

    @property
    def network(self):
        return from_edges(self.edges, self.labels)

    @property
    def start(self) -> dict:
        """Node label to starting mixture."""
        return {label: self.theta.at(i) for i, label in enumerate(self.labels)}

    def neighbours(self) -> list[dict[int, float]]:
        """For every node, position of each neighbour to weight of the edge."""
        position = {label: i for i, label in enumerate(self.labels)}
        found = [{} for _ in self.labels]
        for a, b, *weight in self.edges:
            i, j = position[a], position[b]
            found[i][j] = found[j][i] = weight[0] if weight else 1.0
        return found

    def rows(self) -> list[np.ndarray]:
        """Rows of every node, in the order of the labels."""
        return [self.X[self.nodes == label] for label in self.labels]

    def solve(self, program: GTVMin, on_round=None, on_chunk=None, **options):
        """Run the program on this problem; show every record, and the mixtures of every chunk."""

        def watch(progress):
            for record in progress.records if on_round else ():
                on_round(record)
            if on_chunk and not progress.final:
                on_chunk(progress.round, progress.theta)

        return solve(program, self.data, self.network, self.theta, watch=watch, **options)


def problem(
    seed: int = 0, rows=(17, 23, 9, 30, 12), k: int = 3, d: int = 2, *, edges=None, **options
) -> Problem:
    """A small problem: every node its own start, rows near it, a weighted ring with a chord.

    The last node is isolated: the ring goes through the others.
    """
    n = len(rows)
    labels = [f"n{i:03d}" for i in range(n)]
    rng = np.random.default_rng(seed)
    theta = stack(seed, n, k, d, **options)
    X = np.concatenate([draw(theta.at(i), m, seed + i) for i, m in enumerate(rows)])
    X = X + 0.3 * rng.standard_normal(X.shape)
    if edges is None:
        ring = [(labels[i], labels[(i + 1) % (n - 1)], 0.5 + i / n) for i in range(n - 1)]
        edges = ring[: 1 if n == 3 else None]
        if n > 4:
            edges = [*edges, (labels[0], labels[2], 2.0)]
    return Problem(X, np.repeat(labels, rows), edges, theta)
