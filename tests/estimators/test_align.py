"""One numbering of clusters for all nodes."""

import numpy as np
import pytest

from fedmixtures import (
    FeasibleSet,
    GTVMin,
    Mixture,
    Network,
    NetworkGaussianMixture,
    load,
    solve,
)
from fedmixtures.data.node_data import NodeData
from fedmixtures.engine.layout.blocks import without_edges
from fedmixtures.estimators import names
from helpers import QUICK_TRUST, mixture

LABELS = tuple("abcdefg")
GRAPHS = [
    pytest.param([(a, b) for a, b in zip(LABELS, LABELS[1:], strict=False)], id="path"),
    pytest.param([(a, b) for i, a in enumerate(LABELS) for b in LABELS[:i]], id="complete"),
    pytest.param([("a", "b"), ("c", "d"), ("d", "e")], id="parts-and-isolated"),
    pytest.param([], id="no-edges"),
]


def aligned_orders(theta, network):
    n = network.n_nodes
    return names.numbering(theta, network, np.full(n, 1 / n))


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
    assert len(set(map(tuple, places))) == 1


def test_absent_components_come_together():
    small, large = mixture(3, 2, 2, spread=6.0), mixture(3, 3, 2, spread=6.0)
    theta = Mixture.stack([large, small.relabel([1, 0]), large.relabel([2, 0, 1])])
    orders = aligned_orders(theta, Network.from_edges([(0, 1), (1, 2)], (0, 1, 2)))
    for i in range(3):
        present = theta.weights[i] > 0
        assert sorted(orders[i].tolist()) == [0, 1, 2]
        assert present[orders[i]].sum() == present.sum()


def test_bhattacharyya_against_an_integral():
    """exp(-B) is the integral of the root of the product of two densities."""
    from scipy.stats import norm

    one, other = (0.3, 0.5), (1.4, 1.1)
    x = np.linspace(-12, 12, 200_001)
    integral = np.sqrt(norm.pdf(x, *one) * norm.pdf(x, *other)).sum() * (x[1] - x[0])
    single = lambda mean, sd: Mixture([1.0], [[mean]], [[[sd**2]]])
    for alone in (False, True):  # of one feature, variances are all there is
        found = names.bhattacharyya(single(*one), single(*other), alone)[0, 0]
        assert np.exp(-found) == pytest.approx(integral, rel=1e-9)
    a, b = mixture(1, 2, 3), mixture(2, 2, 3)
    turn = np.random.default_rng(0).normal(size=(3, 3))
    moved = lambda m: Mixture(m.weights, m.means @ turn.T, turn @ m.covariances @ turn.T)
    np.testing.assert_allclose(
        names.bhattacharyya(moved(a), moved(b)), names.bhattacharyya(a, b), rtol=1e-8
    )


def test_profiles_have_the_moments_of_the_rows():
    """By drawing rows of all nodes' components of one number."""
    theta, share = shuffled(0.5), np.arange(1.0, 8) / 28
    found = names.profiles(theta, share)
    rng, rows = np.random.default_rng(0), []
    mass = share * theta.weights[:, 2]
    for i in rng.choice(7, 200_000, p=mass / mass.sum()):
        rows.append(i)
    counts = np.bincount(rows, minlength=7)
    drawn = np.concatenate(
        [
            rng.multivariate_normal(theta.means[i, 2], theta.covariances[i, 2], n)
            for i, n in enumerate(counts)
        ]
    )
    np.testing.assert_allclose(found.means[2], drawn.mean(0), atol=0.05)
    np.testing.assert_allclose(found.covariances[2], np.cov(drawn.T), rtol=0.03, atol=0.15)
    assert found.weights.sum() == pytest.approx(1.0)


def islands(seed=0, labels="abcdef"):
    """Three separated blobs, of which every node has two or three, in unlike numbers."""
    rng = np.random.default_rng(seed)
    centres = np.array([[0.0, 0.0], [8.0, 0.0], [0.0, 8.0]])
    X, nodes, truth = [], [], []
    for i, label in enumerate(labels):
        counts = np.roll([60, 25, 10], i) if i % 2 else [50, 40, 0]
        for c, n in enumerate(counts):
            X.append(centres[c] + rng.normal(size=(n, 2)))
            nodes += [label] * n
            truth += [c] * n
    return np.concatenate(X), np.array(nodes), np.array(truth)


@pytest.mark.parametrize("method", ["trust", "gtv-mmd", "local", "fedem"])
def test_numbers_mean_the_same_at_every_node(method):
    from sklearn.metrics import adjusted_rand_score

    X, nodes, truth = islands()
    full = {label: int(len(set(truth[nodes == label]))) for label in set(nodes)}
    k = full if method in ("gtv-mmd", "local") else 3
    model = NetworkGaussianMixture(k, graph="full", method=method, random_state=0)
    model.fit(X, nodes=nodes)
    assert adjusted_rand_score(truth, model.predict(X, nodes)) > 0.97
    share = model.predict_proba(X, nodes).mean(0)
    assert (np.diff(share) <= 1e-3).all()  # the largest first


def test_the_order_of_nodes_plays_no_part():
    X, nodes, _ = islands()
    found = []
    for order in (np.arange(len(X)), np.random.default_rng(1).permutation(len(X))):
        model = NetworkGaussianMixture(3, graph="full", random_state=0)
        labels = model.fit_predict(X[order], nodes=nodes[order])
        found.append(labels[np.argsort(order)])
    assert (found[0] == found[1]).all()


def test_a_later_fit_keeps_the_numbers(tmp_path):
    """Also where sizes have changed, from a file, and for one cluster more."""
    X, nodes, truth = islands()
    quick = {"graph": "full", "method": QUICK_TRUST}
    first = NetworkGaussianMixture(3, **quick, random_state=0).fit(X, nodes=nodes)
    number = [np.bincount(first.predict(X, nodes)[truth == c]).argmax() for c in range(3)]
    largest = np.flatnonzero(truth == number.index(0))[60:]
    keep = np.setdiff1d(np.arange(len(X)), largest)  # the largest is the smallest now
    first.save(tmp_path / "first.safetensors")
    like = load(tmp_path / "first.safetensors")
    for k in (3, 4):
        later = NetworkGaussianMixture(k, **quick, random_state=1)
        later.fit(X[keep], nodes=nodes[keep], like=like)
        again = later.predict(X[keep], nodes[keep])
        agree = again == np.array(number)[truth[keep]]
        assert agree.mean() > (0.98 if k == 3 else 0.6)
    fewer = NetworkGaussianMixture(2, **quick, random_state=1)
    fewer.fit(X[truth != 0], nodes=nodes[truth != 0], like=like)
    again = fewer.predict(X[truth != 0], nodes[truth != 0])
    assert (again == np.array(number)[truth[truth != 0]]).mean() > 0.98  # one is absent


def test_new_nodes_have_the_same_numbers():
    X, nodes, truth = islands()
    old = nodes != "f"
    model = NetworkGaussianMixture(3, graph="full", random_state=0).fit(X[old], nodes=nodes[old])
    number = np.array(
        [np.bincount(model.predict(X[old], nodes[old])[truth[old] == c]).argmax() for c in range(3)]
    )
    with pytest.warns(UserWarning, match="not fitted on"):
        stranger = model.predict(X[~old], nodes[~old])
    assert (stranger == number[truth[~old]]).mean() > 0.95
    model.adapt(X[~old], node="f")
    assert (model.predict(X[~old], nodes[~old]) == number[truth[~old]]).mean() > 0.95


def test_estimator_changes_nothing_but_the_numbering(case, make):
    p = mixture(3, 2, 2, spread=6.0)
    start = {"a": p, "b": p.relabel([1, 0]), "c": p.relabel([1, 0])}
    data = NodeData.from_rows(case.X, case.nodes)
    solution = solve(GTVMin(feasible=FeasibleSet()), data, init=start, n_components=2, n_rounds=0)
    model = make().adopt(solution, without_edges(data.labels))
    before, labels = (
        model.score_samples(case.X, case.nodes),
        model.predict(case.X, case.nodes),
    )
    assert model.align_components() is model
    order = np.argsort(-p.weights)
    expected = np.broadcast_to(p.means[order], (3, 2, 2))
    np.testing.assert_allclose(model.means_, expected, atol=1e-12)
    np.testing.assert_allclose(model.score_samples(case.X, case.nodes), before, rtol=1e-12)
    after = model.predict(case.X, case.nodes)
    moved = {
        label: (order if label == "a" else 1 - order)[after[case.nodes == label]] for label in "ab"
    }
    for label, expected in moved.items():
        np.testing.assert_array_equal(labels[case.nodes == label], expected)
    np.testing.assert_array_equal(model.mixtures_["c"].means, model.means_[2])
