"""Choosing alpha and the number of components from nodes' own rows."""

import numpy as np
import pytest
import sklearn

from fedmixtures import Euclidean, GTVMin, NetworkGaussianMixture
from fedmixtures.data.node_data import NodeData
from fedmixtures.data.scenarios import homogeneous, shifted_blocks
from fedmixtures.data.splits import folds_of
from fedmixtures.estimators import selection
from fedmixtures.estimators.selection import select_alpha, select_components
from fedmixtures.graph.network import complete
from fedmixtures.metrics import node_means


def folds(nodes, n_folds, seed, k):
    data = NodeData.from_rows(np.zeros((len(nodes), 1)), nodes)
    return folds_of(data, n_folds, seed, [k] * data.n_nodes)


@pytest.fixture(scope="module")
def unequal():
    """Node a has one clear component, node b three."""
    rng = np.random.default_rng(0)
    a = rng.normal(0, 1, (150, 2))
    b = rng.normal(0, 1, (300, 2)) + 12 * np.repeat(np.eye(3)[:, :2], 100, axis=0)
    return np.concatenate([a, b]), np.array(["a"] * 150 + ["b"] * 300)


def test_each_node_gets_the_components_its_rows_support(unequal):
    found = select_components(*unequal, candidates=(1, 2, 3, 4), method="gtv-mmd")
    assert found.n_components == {"a": 1, "b": 3}


def test_bic_is_that_of_scikit_learn(unequal):
    X, nodes = unequal
    found = select_components(X, nodes, candidates=(3,), method="local")
    from sklearn.mixture import GaussianMixture

    own = X[nodes == "b"]
    model = GaussianMixture(3, n_init=5, random_state=0, reg_covar=1e-3).fit(own)
    assert found.bic[1, 0] == pytest.approx(model.bic(own), rel=1e-4)


def test_one_number_for_all_where_the_method_needs_it(unequal):
    found = select_components(*unequal, candidates=(1, 2, 3), method=GTVMin(Euclidean()))
    assert len(set(found.n_components.values())) == 1


def test_a_node_of_few_rows_is_not_asked_for_many_components(unequal):
    X, nodes = unequal
    X, nodes = np.concatenate([X, X[:4] + 1]), np.append(nodes, ["c"] * 4)
    found = select_components(X, nodes, candidates=(1, 3), method="gtv-mmd")
    assert found.n_components["c"] == 1
    assert np.isinf(found.bic[2, 1])


def test_alike_nodes_are_told_to_listen_and_strangers_not_to():
    alike = homogeneous(n_nodes=6, n_components=3, n_train=20, n_validation=1, seed=0)
    choice = select_alpha(
        alike.X,
        alike.nodes,
        graph=complete(alike.labels),
        n_components=3,
        method=GTVMin(Euclidean()),
        alphas=(0.0, 1.0),
        n_rounds=30,
    )
    assert choice.alpha == 1.0
    strangers = shifted_blocks(
        6, 1, n_components=2, n_train=40, n_validation=1, shift_scale=20.0, seed=1
    )
    choice = select_alpha(
        strangers.X,
        strangers.nodes,
        graph=complete(strangers.labels),
        n_components=2,
        method=GTVMin(Euclidean()),
        alphas=(0.0, 1.0),
        n_rounds=15,
    )
    assert choice.alpha == 0.0


def test_scores_are_those_of_fits_made_by_hand():
    s = homogeneous(n_nodes=3, n_components=2, n_train=30, n_validation=1, seed=4)
    choice = select_alpha(
        s.X, s.nodes, graph="full", n_components=2, alphas=(0.5,), n_folds=2, n_rounds=4
    )
    fold = folds(s.nodes, 2, 0, 2)
    values = np.empty(len(s.X))
    for out in (fold == 0, fold == 1):
        model = NetworkGaussianMixture(
            2, graph="full", method=GTVMin(alpha=0.5), n_rounds=4, random_state=0
        )
        model.fit(s.X[~out], nodes=s.nodes[~out])
        values[out] = model.score_samples(s.X[out], s.nodes[out])
    assert choice.scores[0] == pytest.approx(
        np.mean(list(node_means(values, s.nodes).values())), rel=1e-9
    )


def test_folds_are_even_within_nodes_and_leave_enough_rows():
    nodes = np.array(["a"] * 10 + ["b"] * 5 + ["c"] * 3)
    fold = folds(nodes, 3, 0, 3)
    assert sorted(np.bincount(fold[nodes == "a"])) == [3, 3, 4]
    assert (fold[nodes == "c"] == -1).all()  # three rows for three components: none to spare
    for f in range(3):
        assert min(((fold != f) & (nodes == n)).sum() for n in "abc") >= 3
    shuffled = np.random.default_rng(0).permutation(len(nodes))
    again = folds(nodes[shuffled], 3, 0, 3)
    assert sorted(again) == sorted(fold)


def test_a_method_without_alpha_is_refused():
    with pytest.raises(ValueError, match="has no alpha to choose"):
        select_alpha(np.zeros((4, 1)), [0, 0, 1, 1], graph=None, n_components=1, method="local")


def test_the_grid_of_alphas_grows_while_the_largest_is_best(monkeypatch):
    """Nodes that are the same: the more they listen, the better."""
    s = homogeneous(n_nodes=4, n_components=1, n_train=8, n_validation=1, seed=1)
    settings = {"graph": "full", "n_components": 1, "n_folds": 2, "n_rounds": 30}
    method = GTVMin(Euclidean(), learning_rate=0.002)
    monkeypatch.setattr(selection, "ALPHAS", (0.0, 0.03))
    monkeypatch.setattr(selection, "LARGER_ALPHAS", (0.3, 3.0))
    grown = select_alpha(s.X, s.nodes, method=method, **settings)
    assert grown.alphas == (0.0, 0.03, 0.3, 3.0)
    assert grown.at_edge == (grown.alpha == 3.0)
    fixed = select_alpha(s.X, s.nodes, method=method, alphas=(0.0, 0.03), **settings)
    assert fixed.alphas == (0.0, 0.03)
    assert fixed.at_edge


def test_folds_for_scikit_learn_keep_every_node_in_training(unequal):
    from sklearn.model_selection import cross_val_score

    from fedmixtures import NodeKFold

    X, nodes = unequal
    X, nodes = np.concatenate([X, X[:2]]), np.append(nodes, ["c"] * 2)
    cv = NodeKFold(3, min_train=2)
    parts = list(cv.split(X, groups=nodes))
    assert len(parts) == cv.get_n_splits() == 3
    tested = np.concatenate([test for _, test in parts])
    assert len(set(tested)) == len(tested) == 450  # the two rows of c are never spared
    for train, test in parts:
        assert set(nodes[train]) == {"a", "b", "c"}
        assert not set(train) & set(test)
        assert abs((nodes[test] == "a").mean() - 1 / 3) < 0.02
    with pytest.raises(ValueError, match="`groups` is missing. Give the node of each row"):
        next(cv.split(X))
    model = NetworkGaussianMixture(1, method="local", random_state=0)
    with sklearn.config_context(enable_metadata_routing=True):
        model.set_fit_request(nodes=True).set_score_request(nodes=True)
        scores = cross_val_score(model, X, nodes, cv=cv, params={"nodes": nodes})
    assert np.isfinite(scores).all()
