"""One numbering of components for all nodes."""

import numpy as np
import pytest

from fedmixtures import FeasibleSet, GTVMin, Mixture, Network
from fedmixtures.estimators.solutions import aligned_orders
from helpers import mixture

LABELS = tuple("abcdefg")
GRAPHS = [
    pytest.param([(a, b) for a, b in zip(LABELS, LABELS[1:], strict=False)], id="path"),
    pytest.param([(a, b) for i, a in enumerate(LABELS) for b in LABELS[:i]], id="complete"),
    pytest.param([("a", "b"), ("c", "d"), ("d", "e")], id="parts-and-isolated"),
    pytest.param([], id="no-edges"),
]


def shuffled(noise, seed=0):
    """Nodes that hold nearly the same mixture in different orders of components."""
    rng = np.random.default_rng(seed)
    p = mixture(3, 4, 2, spread=6.0)
    orders = [rng.permutation(4) for _ in LABELS]
    moved = [p.means + noise * rng.standard_normal(p.means.shape) for _ in LABELS]
    nodes = zip(orders, moved, strict=True)
    return Mixture.stack(
        [Mixture(p.weights, means, p.covariances).relabel(order) for order, means in nodes]
    )


@pytest.mark.parametrize("noise", [0.0, 0.05])
@pytest.mark.parametrize("edges", GRAPHS)
def test_alike_components_get_the_same_number(edges, noise):
    """With no noise the cost between neighbours is zero, which must not read as no edge."""
    theta = shuffled(noise)
    assert np.ptp(theta.means, axis=0).max() > 1.0  # numbered at random
    orders = aligned_orders(theta, Network.from_edges(edges, LABELS))
    means = np.stack([m[order] for m, order in zip(theta.means, orders, strict=True)])
    assert np.ptp(means, axis=0).max() <= 8 * noise
    assert orders[0].tolist() == [0, 1, 2, 3]  # the first node keeps its numbering
    assert [sorted(order) for order in orders.tolist()] == [[0, 1, 2, 3]] * len(LABELS)


def test_no_unit_of_a_feature_matters():
    """The first feature tells components apart, the second is noise in a small unit."""
    rng = np.random.default_rng(0)
    orders = [rng.permutation(3) for _ in LABELS]
    unit = np.array([1.0, 1e3])
    theta = Mixture.stack(
        [
            Mixture(
                np.full(3, 1 / 3),
                np.column_stack([[0.0, 5.0, 10.0], 0.1 * rng.normal(size=3)])[order] * unit,
                np.tile(np.diag(unit**2), (3, 1, 1)),
            )
            for order in orders
        ]
    )
    found = aligned_orders(theta, Network.from_edges([("a", b) for b in LABELS[1:]], LABELS))
    places = [order[own].tolist() for order, own in zip(orders, found, strict=True)]
    assert places == [orders[0].tolist()] * len(LABELS)


def test_absent_components_come_together():
    small, large = mixture(3, 2, 2, spread=6.0), mixture(3, 3, 2, spread=6.0)
    theta = Mixture.stack([large, small.relabel([1, 0]), large.relabel([2, 0, 1])])
    orders = aligned_orders(theta, Network.from_edges([(0, 1), (1, 2)], (0, 1, 2)))
    for i in range(3):
        present = theta.weights[i] > 0
        assert sorted(orders[i].tolist()) == [0, 1, 2]
        assert present[orders[i]].sum() == present.sum()


def test_estimator_changes_nothing_but_the_numbering(case, make):
    p = mixture(3, 2, 2, spread=6.0)
    start = {"a": p, "b": p.relabel([1, 0]), "c": p.relabel([1, 0])}
    model = make(init=start, n_rounds=0, method=GTVMin(feasible=FeasibleSet()))
    model.fit(case.X, nodes=case.nodes)
    before, labels = (
        model.score_samples(case.X, case.nodes),
        model.predict(case.X, case.nodes),
    )
    assert model.align_components() is model
    np.testing.assert_allclose(model.means_, np.broadcast_to(p.means, (3, 2, 2)), atol=1e-12)
    np.testing.assert_allclose(model.score_samples(case.X, case.nodes), before, rtol=1e-12)
    after = model.predict(case.X, case.nodes)
    np.testing.assert_array_equal(after[case.nodes == "a"], labels[case.nodes == "a"])
    np.testing.assert_array_equal(after[case.nodes == "b"], 1 - labels[case.nodes == "b"])
    np.testing.assert_array_equal(model.mixtures_["c"].means, model.means_[2])
