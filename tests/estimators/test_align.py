"""One numbering of components for all nodes."""

import numpy as np
import pytest

from fedmixtures import FeasibleSet, GTVMin, Mixture, NetworkGaussianMixture
from helpers import draw, mixture

LABELS = tuple("abcdefg")


def shuffled_network(edges, seed=0, **options):
    """Nodes that hold the same mixture in different orders of components, fitted not at all."""
    rng = np.random.default_rng(seed)
    p = mixture(3, 4, 2, spread=6.0)
    start = {}
    for label in LABELS:
        noise = 0.05 * rng.standard_normal(p.means.shape)
        moved = Mixture(p.weights, p.means + noise, p.covariances)
        start[label] = moved.relabel(rng.permutation(4))
    X = np.concatenate([draw(p, 30, i) for i in range(len(LABELS))])
    nodes = np.repeat(LABELS, 30)
    method = GTVMin(feasible=FeasibleSet())
    model = NetworkGaussianMixture(4, graph=edges, init=start, n_rounds=0, method=method, **options)
    return model.fit(X, nodes=nodes), X, nodes


GRAPHS = [
    pytest.param([(a, b) for a, b in zip(LABELS, LABELS[1:], strict=False)], id="path"),
    pytest.param([(a, b) for i, a in enumerate(LABELS) for b in LABELS[:i]], id="complete"),
    pytest.param([("a", "b"), ("c", "d"), ("d", "e")], id="parts-and-isolated"),
    pytest.param([], id="no-edges"),
]


@pytest.mark.parametrize("edges", GRAPHS)
def test_alike_components_get_the_same_number(edges):
    model, X, nodes = shuffled_network(edges)
    before = model.score_samples(X, nodes)
    assert np.ptp(model.means_, axis=0).max() > 1.0  # numbered at random
    assert model.align_components() is model
    # the same component everywhere, up to the noise of 0.05
    assert np.ptp(model.means_, axis=0).max() < 0.5
    np.testing.assert_allclose(np.ptp(model.weights_, axis=0), 0.0, atol=1e-12)
    # nothing but the numbering changed
    np.testing.assert_allclose(model.score_samples(X, nodes), before, rtol=1e-12)
    for i, label in enumerate(LABELS):
        np.testing.assert_array_equal(model.mixtures_[label].means, model.means_[i])


def test_first_node_keeps_its_numbering_and_a_second_call_changes_nothing():
    model, *_ = shuffled_network(GRAPHS[0].values[0])
    first = model.mixtures_["a"].means.copy()
    once = model.align_components().means_.copy()
    np.testing.assert_array_equal(model.mixtures_["a"].means, first)
    np.testing.assert_array_equal(model.align_components().means_, once)


def test_identical_nodes_in_shuffled_orders():
    """Zero cost between neighbours must not read as no edge."""
    p = mixture(3, 3, 2, spread=6.0)
    orders = {"a": [0, 1, 2], "b": [2, 0, 1], "c": [1, 0, 2]}
    start = {label: p.relabel(order) for label, order in orders.items()}
    X, nodes = draw(p, 60), np.repeat(list("abc"), 20)
    model = NetworkGaussianMixture(
        3, graph="full", init=start, n_rounds=0, method=GTVMin(feasible=FeasibleSet())
    ).fit(X, nodes=nodes)
    model.align_components()
    np.testing.assert_allclose(model.means_, np.broadcast_to(p.means, (3, 3, 2)), atol=1e-12)
