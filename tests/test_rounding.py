"""Symmetric problems, where candidates are equal: noise in the last bits must not choose.

Each problem is solved several times with its numbers off by a few units in the last place, as
another processor, another number of threads or another batch would leave them. What is chosen must
be the same every time.
"""

import itertools

import jax
import numpy as np
import pytest

from fedmixtures import KMeansStart, Local, Mixture, NetworkGaussianMixture
from fedmixtures.data.node_data import NodeData
from fedmixtures.estimators import selection
from fedmixtures.estimators.names import numbering
from fedmixtures.federation.node.gate import Gate, merge_nearest
from fedmixtures.graph import from_edges
from fedmixtures.graph.generate import nearest_neighbours
from fedmixtures.init import tightest_clustering
from fedmixtures.kernels.cpu.clustering import lloyd, plus_plus
from fedmixtures.mixture.arithmetic import double
from helpers import WIDE, draw, mixture

pytestmark = pytest.mark.rounding

TIMES = 12
GRID = np.array(list(itertools.product(range(4), range(4))), float) / 3
SQUARE = np.array([[1.0, 1.0], [-1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]])


def noisy(values: np.ndarray, seed: int) -> np.ndarray:
    noise = np.random.default_rng(seed).uniform(-1, 1, np.shape(values))
    return np.asarray(values) * (1 + 4 * np.finfo(float).eps * noise)


def scaled(rows: np.ndarray, seed: int) -> np.ndarray:
    """The same rows in another unit: all that is computed from them is rounded otherwise."""
    return rows * np.random.default_rng(seed).uniform(0.5, 1.0)


def found_always(choose) -> object:
    """What `choose` finds, which must be the same for every seed of the noise."""
    found = [np.asarray(choose(seed)).tolist() for seed in range(TIMES)]
    assert all(one == found[0] for one in found), found
    return found[0]


def test_rows_between_two_centres_and_restarts_of_equal_inertia():
    """Four corners in two clusters: two ways, equally tight."""
    program = jax.jit(plus_plus, static_argnums=3)
    keys = np.array([[3, restart] for restart in range(8)], np.uint32)
    again = lambda rows: np.broadcast_to(rows.T, (8, *rows.T.shape))

    def labels(seed):
        rows = noisy(GRID, seed)
        with double():
            centres = np.asarray(program(again(rows), np.ones((8, 16)), keys, 3))
            return jax.jit(lloyd)(again(rows), np.ones((8, 16)), noisy(centres, seed + 50)).labels

    found_always(labels)


@pytest.mark.parametrize("batched", [True, False])
def test_clusterings_that_are_equally_tight(batched):
    """Two squares about one centre can be halved in four ways."""

    def halves(seed):
        rows = scaled(np.concatenate([SQUARE, 3 * SQUARE]), seed)
        data = NodeData.from_rows(rows, np.zeros(8, int))
        start = KMeansStart(batched=batched, n_init=6)
        return np.round(
            start.mixtures(data, [2], seed=0, default_reg_covar=0.1).means / rows[0, 0], 6
        )

    found_always(halves)


def test_restarts_of_scikit_learn_that_are_equally_tight():
    """A square parted left from right or top from bottom, and a grid."""
    for rows in (SQUARE, GRID):
        labels = lambda seed, rows=rows: tightest_clustering(scaled(rows, seed), None, 2, 10, 1)
        found_always(labels)


@pytest.mark.parametrize("engine", ["sklearn", "jax"])
def test_fits_that_are_equally_likely(engine):
    rows = np.concatenate([SQUARE, SQUARE[::-1] * 1.5, 2 * SQUARE])

    def means(seed):
        unit = scaled(np.ones(1), seed)[0]
        data = NodeData.from_rows(rows * unit, np.zeros(len(rows), int))
        fits = Local(engine=engine, reg_covar=0.01 * unit**2).fit_nodes(data, [2], None, 3)
        return np.round(fits.mixtures[0].means / unit, 1)

    found_always(means)


@pytest.mark.parametrize("k", [3, 8, 12])
def test_matchings_of_equal_cost(k):
    """Written out, over tables of subsets, and by the Hungarian algorithm."""
    from fedmixtures.kernels.cpu.matching import best_matching, best_matchings

    cost = 1.0 + np.minimum(np.abs(np.subtract.outer(np.arange(k), np.arange(k)[::-1])), 1)
    one, many = jax.jit(best_matching), jax.jit(best_matchings)

    def match(seed):
        with double():
            noise = noisy(cost, seed)
            found = one(noise)
            np.testing.assert_array_equal(many(np.stack([noise] * 3, -1))[:, 1], found)
            return found

    assert sorted(found_always(match)) == list(range(k))


def test_neighbours_on_a_grid():
    """Inner nodes have four neighbours at the same distance, of which two are wanted."""

    def edges(seed):
        network = nearest_neighbours(noisy(GRID + 5.0, seed), 2)
        return np.stack([network.source, network.target])

    found_always(edges)


def test_many_nodes_at_one_point_are_their_own_neighbours_first():
    points = np.repeat([[0.1, 0.7], [5.0, 5.0]], 4, axis=0)
    network = nearest_neighbours(points, 2)
    assert (network.source // 4 == network.target // 4).all()
    assert network.n_edges >= 8


def test_numbering_along_edges_that_are_equally_alike():
    """A ring of four nodes at the corners: any of its edges may be left out of the tree."""
    means = np.stack([np.stack([corner, -corner]) for corner in SQUARE[[0, 1, 3, 2]]])
    theta = lambda seed: Mixture(
        np.full((4, 2), 0.5), noisy(means, seed), np.broadcast_to(np.eye(2), (4, 2, 2, 2))
    )
    ring = from_edges([(0, 1), (1, 2), (2, 3), (3, 0)], range(4))
    found_always(lambda seed: numbering(theta(seed), ring, np.full(4, 0.25)))


def test_the_gate_counts_whole_rows():
    """Eleven rows of one component add up to a number next to eleven, above it or below."""
    counts = np.array([11.0, 0.5])
    found_always(lambda seed: Gate().too_small(noisy(counts, seed), 2))
    assert Gate().too_small(counts, 2).tolist() == [False, True]


def test_the_gate_merges_into_the_first_of_two_equally_near():
    means = np.array([[0.0, 0.0], [2.0, 0.0], [-2.0, 0.0]])

    def weights(seed):
        whole = Mixture(
            np.array([0.2, 0.4, 0.4]), noisy(means, seed) + 0.3, np.stack([np.eye(2)] * 3)
        )
        return np.round(merge_nearest(whole, 0, WIDE).weights, 6)

    assert found_always(weights) == [0.0, 0.6, 0.4]


def test_a_row_halfway_belongs_to_the_first_component():
    X = np.concatenate([SQUARE + [3, 0], SQUARE - [3, 0]]) * 1.1
    model = NetworkGaussianMixture(2, method="local", random_state=0).fit(X, nodes=np.zeros(8, int))
    halfway = np.stack([np.zeros(5), np.linspace(-2, 2, 5)], 1)
    found_always(lambda seed: model.predict(halfway + 1e-15 * (seed - 6), nodes=np.zeros(5, int)))


def test_the_smaller_alpha_of_equally_good_ones(monkeypatch):
    """Without edges alpha changes nothing."""
    rows = np.concatenate([draw(mixture(i), 12, i) for i in range(2)])
    seeds = itertools.count()
    plain = selection.log_densities
    monkeypatch.setattr(selection, "log_densities", lambda *args: noisy(plain(*args), next(seeds)))
    nodes = np.repeat(["a", "b"], 12)
    chosen = selection.select_alpha(
        rows,
        nodes,
        graph=[("a", "b", 1e-300)],
        n_components=1,
        alphas=(0.0, 0.1, 0.2, 0.3),
        n_folds=2,
        n_rounds=2,
    )
    assert chosen.alpha == 0.0


def test_groups_that_explain_a_node_equally_well():
    """IFCA with groups that hold the same mixture, its components in another order."""
    from fedmixtures.methods.compared.hub_em import _choose
    from fedmixtures.methods.programs import NodeRows

    one, rows = mixture(1, k=4), draw(mixture(1, k=4), 64)[None]
    orders = [np.roll(np.arange(4), shift) for shift in range(3)]
    groups = Mixture.stack([one.relabel(order) for order in orders])
    models = jax.tree.map(lambda part: np.asarray(part)[None, None], groups)

    def group(seed):
        with double():
            data = NodeRows(noisy(rows, seed), np.full((1, 64), 1 / 64), np.full(1, 64.0))
            return jax.jit(_choose)(models, data)[1]

    assert found_always(group) == [[0]]
