"""Runs: the same numbers on every layout, in any order, from any start; keys and precision."""

import numpy as np
import pytest

import reference
from fedmixtures import KL, MMD, Euclidean, GTVMin, Mixture
from fedmixtures.data.node_data import NodeData
from fedmixtures.engine.layout import blocks
from fedmixtures.engine.solve import solve
from fedmixtures.graph.network import Network
from fedmixtures.kernels import dispatch
from helpers import WIDE, Problem, assert_close, flat, name_of, problem, stack

# Two numbers of rows and one of neighbours: apart, these nodes are no more than two shapes.
SMALL = {"seed": 5, "rows": (9, 10, 30, 10, 31), "k": 2}
RING = [(f"n{i:03d}", f"n{(i + 1) % 5:03d}", 0.5 + i / 5) for i in range(5)]
THREE = [Euclidean(), KL(n_samples=6), MMD((0.7, 3.0))]
over = pytest.mark.parametrize("D", THREE, ids=name_of)


def program(D, alpha=0.4, local_steps=2, rate=0.005):
    return GTVMin(D, alpha, local_steps, learning_rate=rate, feasible=WIDE)


def run(p: Problem, D, **options):
    return p.solve(program(D), **{"n_rounds": 4, "seed": 11, **options})


def pull_of(D):
    return reference.MMDPull(D.bandwidths) if isinstance(D, MMD) else reference.EuclideanPull()


# layouts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("D", THREE[1:], ids=name_of)
def test_a_block_for_every_node_gives_the_same_numbers(D):
    p = problem(**SMALL, edges=RING)
    assert_same(run(p, D, block_size=1), run(p, D))


@pytest.mark.parametrize("D", [THREE[0], THREE[2]], ids=name_of)
def test_many_groups_and_blocks_give_the_same_numbers(D, monkeypatch):
    p = problem(**SMALL, edges=RING)
    together = run(p, D)
    monkeypatch.setattr(blocks, "GROUP_OVERHEAD", 0.0)
    monkeypatch.setattr(dispatch, "BLOCK_NODES", 2)
    assert_same(run(p, D), together)


def assert_same(one, other):
    assert_close(one.theta, other.theta, 1e-10)
    np.testing.assert_allclose(one.history.objective, other.history.objective, rtol=1e-10)


def test_looking_at_a_run_does_not_change_it():
    p, D = problem(**SMALL, edges=RING), Euclidean()
    seen = []
    quiet, watched = run(p, D), run(p, D, report_every=3, on_round=seen.append)
    assert_close(watched.theta, quiet.theta, 1e-13)
    assert [record["round"] for record in seen] == [0, 1, 2, 3, 4]
    recorded = [record["objective"] for record in seen]
    np.testing.assert_allclose(recorded, quiet.history.objective, rtol=1e-13)


def test_ten_rows_next_to_three_thousand(monkeypatch):
    """Several groups against the plain loop."""
    D = MMD((0.7, 3.0))
    monkeypatch.setattr(blocks, "GROUP_OVERHEAD", 1000.0)
    p = problem(seed=8, rows=(10, 3000, 12, 700, 10), k=2)
    solution = p.solve(program(D), n_rounds=2)
    start = [p.theta.at(i).parts for i in range(5)]
    states, losses, _ = reference.algorithm1(
        start, p.rows(), p.neighbours(), pull_of(D), 0.4, 0.005, 2, 2, WIDE.bounds
    )
    assert_close(solution.theta, Mixture.stack([Mixture(*t) for t in states[-1]]), 1e-8)
    np.testing.assert_allclose(solution.history.fit, losses.sum(1), rtol=1e-9)


def test_more_nodes_than_a_block_holds():
    n = 300
    labels = [f"n{i:03d}" for i in range(n)]
    edges = [(labels[i], labels[(i + 1) % n], 0.5) for i in range(n)]
    edges += [(labels[0], labels[i]) for i in range(10, 40)]  # one node with many neighbours
    p = problem(seed=2, rows=(3,) * n, k=2, edges=edges)
    solution = p.solve(program(Euclidean(), local_steps=1, rate=0.005), n_rounds=2)
    start = [p.theta.at(i).parts for i in range(n)]
    pull = reference.EuclideanPull()
    states, *_ = reference.algorithm1(
        start, p.rows(), p.neighbours(), pull, 0.4, 0.005, 2, 1, WIDE.bounds
    )
    assert_close(solution.theta, Mixture.stack([Mixture(*t) for t in states[-1]]), 1e-8)


# order -------------------------------------------------------------------------------------------


@over
def test_order_of_rows_edges_and_nodes_does_not_matter(D):
    p = problem(**SMALL, edges=RING)
    rng = np.random.default_rng(0)
    shuffled = rng.permutation(len(p.X))
    edges = [(b, a, w) for a, b, w in reversed(p.edges)]
    other = Problem(p.X[shuffled], p.nodes[shuffled], edges, p.theta)
    assert_close(run(other, D).theta, run(p, D).theta, 1e-10)


@over
def test_labels_that_do_not_sort_keep_their_mixtures(D):
    """Such nodes stand in order of appearance; another order gives the same mixture per label."""
    p = problem(**SMALL, edges=RING)
    names = dict(zip(p.labels, ["x", 3, ("t", 1), 2.5, frozenset({1})], strict=True))
    edges = [(names[a], names[b], w) for a, b, w in p.edges]

    def fitted(order):
        X = np.concatenate([p.X[p.nodes == label] for label in order])
        nodes = np.empty(len(X), dtype=object)
        nodes[:] = [names[label] for label in order for _ in range((p.nodes == label).sum())]
        data = NodeData.from_rows(X, nodes)
        assert data.labels == tuple(names[label] for label in order)
        network = Network.from_edges(edges, data.labels)
        theta = Mixture.stack([p.start[label] for label in order])
        return solve(program(D), data, network, theta, n_rounds=4, seed=11)

    there, back = fitted(p.labels), fitted(p.labels[::-1])
    for label in names.values():
        assert_close(there.mixture(label), back.mixture(label), 1e-10)


@pytest.mark.parametrize("D", [Euclidean(), MMD((0.7, 3.0))], ids=name_of)
def test_order_of_components_changes_their_order_alone(D):
    p = problem(**SMALL, edges=RING)
    orders = [np.random.default_rng(i).permutation(2) for i in range(5)]
    theta = Mixture.stack([p.theta.at(i).relabel(order) for i, order in enumerate(orders)])
    plain, other = run(p, D), run(Problem(p.X, p.nodes, p.edges, theta), D)
    for i, order in enumerate(orders):
        assert_close(other.theta.at(i), plain.theta.at(i).relabel(order), 1e-10)


# unequal components ------------------------------------------------------------------------------


def test_unequal_numbers_of_components_agree_with_the_plain_loop():
    p = problem(**SMALL, edges=RING)
    counts = (2, 3, 4, 2, 3)
    mixtures = [stack(i, 1, k, 2).at(0) for i, k in enumerate(counts)]
    p = Problem(p.X, p.nodes, p.edges, Mixture.stack(mixtures))
    solution = run(p, MMD((0.7, 3.0)))
    states, *_ = reference.algorithm1(
        [m.parts for m in mixtures],
        p.rows(),
        p.neighbours(),
        reference.MMDPull((0.7, 3.0)),
        0.4,
        0.005,
        4,
        2,
        WIDE.bounds,
    )
    for label, expected in zip(p.labels, states[-1], strict=True):
        assert solution.mixture(label).n_components == len(expected[0])
        assert_close(solution.mixture(label), Mixture(*expected), 1e-8)


# keys --------------------------------------------------------------------------------------------


@over
def test_same_seed_same_bits(D):
    p = problem(**SMALL, edges=RING)
    first, second = run(p, D, seed=3), run(p, D, seed=3)
    np.testing.assert_array_equal(flat(first.theta), flat(second.theta))
    np.testing.assert_array_equal(first.history.objective, second.history.objective)


def test_another_seed_draws_other_points():
    p = problem(**SMALL, edges=RING)
    assert (
        np.abs(flat(run(p, KL(6), seed=3).theta) - flat(run(p, KL(6), seed=4).theta)).max() > 1e-4
    )
    np.testing.assert_array_equal(
        flat(run(p, MMD((0.7, 3.0)), seed=3).theta), flat(run(p, MMD((0.7, 3.0)), seed=4).theta)
    )


def test_fresh_points_every_round():
    """With nothing moving, the recorded pull still differs from round to round."""
    p = problem(**SMALL, edges=RING)
    still = program(KL(6), rate=1e-300)
    pulls = p.solve(still, n_rounds=4, seed=11).history.pull
    assert len(np.unique(pulls)) == 5


def test_a_node_elsewhere_does_not_change_what_others_draw():
    p = problem(**SMALL, edges=RING)
    X = np.concatenate([np.zeros((7, 2)) + np.arange(7)[:, None], p.X])
    nodes = np.concatenate([np.repeat("a-new-one", 7), p.nodes])  # sorts before all others
    theta = Mixture.stack([stack(3, 1, 2).at(0), *(p.theta.at(i) for i in range(5))])
    more = Problem(X, nodes, p.edges, theta)
    few, many = run(p, KL(6)), run(more, KL(6))
    for label in p.labels:
        assert_close(many.mixture(label), few.mixture(label), 1e-10)


# precision ---------------------------------------------------------------------------------------


def test_float32_near_1e4_stays_close():
    D = MMD((0.7, 3.0))
    p = problem(**SMALL, edges=RING, centre=1e4)
    double, single = run(p, D), run(p, D, dtype="float32")
    assert single.status == "completed"
    np.testing.assert_allclose(single.theta.weights, double.theta.weights, atol=1e-3)
    # float32 resolves 1e-3 at 1e4; nine steps round nine times
    np.testing.assert_allclose(single.theta.means, double.theta.means, atol=1e-2)
    np.testing.assert_allclose(single.theta.covariances, double.theta.covariances, atol=1e-2)
    np.testing.assert_allclose(single.history.objective, double.history.objective, rtol=1e-3)


def test_float32_draws_stay_finite_near_1e4():
    single = run(problem(**SMALL, edges=RING, centre=1e4), KL(6), dtype="float32")
    assert single.status == "completed"
    assert np.isfinite(flat(single.theta)).all()
