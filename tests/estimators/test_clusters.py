"""Clusters from components: how many, and the same at every node in all that is asked."""

import warnings
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

import fedmixtures as fm
from fedmixtures import FitWarning, NetworkGaussianMixture, select_components
from fedmixtures.data.node_data import NodeData
from fedmixtures.estimators import resolve, search
from fedmixtures.estimators.agreement import most_agreed
from fedmixtures.estimators.problem import Problem
from fedmixtures.estimators.resolve import check_clusters, numbers_of
from fedmixtures.graph.network import Network
from fedmixtures.methods.trust_then_pool.program import TrustThenPool


def _rows(seed, count=80):
    """Three nodes; a slightly bent population and two round ones, one of which the node c lacks."""
    rng = np.random.default_rng(seed)
    X, labels, nodes = [], [], []
    for i, node in enumerate("abc"):
        label = rng.choice([0, 1] if node == "c" else [0, 1, 2], size=count)
        z = rng.normal(size=(count, 2))
        bent = np.stack([z[:, 0], 0.3 * z[:, 0] ** 2 + z[:, 1]], axis=1)
        centre = np.array([[0.0, 0.0], [9.0, 0.0], [4.0, 9.0]])[label] + 0.2 * i
        X.append(centre + np.where(label[:, None] < 1, bent, z))
        labels.append(label)
        nodes += [node] * count
    return np.concatenate(X), np.array(nodes), np.concatenate(labels)


@pytest.fixture(scope="module")
def rows():
    return _rows(0)


@pytest.fixture(scope="module")
def model(rows):
    X, nodes, _ = rows
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one = NetworkGaussianMixture(5, n_clusters="auto", graph="full", random_state=0)
        return one.fit(X, nodes=nodes)


def test_bent_populations_are_one_cluster_each_at_all_nodes(model, rows):
    X, nodes, labels = rows
    assert (model.n_components_, model.n_clusters_) == (5, 3)
    assert adjusted_rand_score(labels, model.predict(X, nodes)) > 0.97


def test_memberships_are_sums_of_those_of_components(model, rows):
    X, nodes, _ = rows
    found = model.predict_proba(X, nodes)
    assert found.shape == (len(X), 3)
    np.testing.assert_allclose(found.sum(1), 1)
    at, place = nodes == "b", list(model.nodes_).index("b")
    own, cluster = model.node("b"), model.solution_.joined.cluster[place]
    parts = np.exp(
        np.log(own.weights_)
        + np.stack([_log_normal(X[at], own, k) for k in range(len(own.weights_))], axis=1)
    )
    summed = np.stack([parts[:, cluster == c].sum(1) for c in range(3)], axis=1)
    np.testing.assert_allclose(found[at], summed / summed.sum(1, keepdims=True), atol=1e-8)


def _log_normal(x, mixture, k):
    from scipy.stats import multivariate_normal

    return multivariate_normal.logpdf(x, mixture.means_[k], mixture.covariances_[k])


def test_the_atlas_is_of_clusters(model, rows):
    _, nodes, labels = rows
    atlas = model.atlas_
    assert atlas.n_clusters == 3
    assert atlas.shares.shape == (3, 3)
    np.testing.assert_allclose(atlas.shares.sum(1), 1)
    gone = int(np.argmin(atlas.shares[2]))
    assert atlas.nodes_of(gone) == ("a", "b")
    assert atlas.shares[0, gone] == pytest.approx((labels[nodes == "a"] == 2).mean(), abs=0.03)
    model.name_clusters(["one", "two", "three"])
    assert list(atlas.share_table().shape) == [3, 3]


def test_what_is_saved_is_loaded(model, rows, tmp_path):
    X, nodes, _ = rows
    again = fm.load(model.save(tmp_path / "model.safetensors"))
    assert again.n_clusters_ == 3
    np.testing.assert_array_equal(again.predict(X, nodes), model.predict(X, nodes))
    np.testing.assert_allclose(again.atlas_.shares, model.atlas_.shares)


def test_newcomers_have_the_clusters_of_the_network(model, rows, tmp_path):
    X, nodes, labels = _rows(5)
    model = fm.load(model.save(tmp_path / "model.safetensors"))
    before = model.predict(X, nodes)
    at = nodes == "a"
    with pytest.warns(FitWarning, match="not fitted on"):
        stranger = model.predict(X[at], ["z"] * at.sum())
    assert (stranger == before[at]).mean() > 0.97
    model.adapt(X[at], "z")
    assert (model.predict(X[at], ["z"] * at.sum()) == before[at]).mean() > 0.97
    assert model.atlas_.shares.shape == (4, 3)


def test_a_later_fit_keeps_the_numbers(model, rows):
    X, nodes, labels = _rows(7)
    again = NetworkGaussianMixture(5, n_clusters="auto", graph="full", random_state=3)
    again.fit(X, nodes=nodes, like=model)
    assert (again.predict(X, nodes) == model.predict(X, nodes)).mean() > 0.95


def test_parts_of_a_network_have_one_numbering(rows):
    X, nodes, labels = rows
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # c is in no edge
        graph = Network.from_edges([("a", "b")], ["a", "b", "c"])
        apart = NetworkGaussianMixture(3, n_clusters="auto", graph=graph, random_state=0)
        apart.fit(X, nodes=nodes)
    assert adjusted_rand_score(labels, apart.predict(X, nodes)) > 0.95


def test_a_given_number_of_components_is_one_of_clusters(rows):
    X, nodes, _ = rows
    plain = NetworkGaussianMixture(4, graph="full", random_state=0).fit(X, nodes=nodes)
    assert plain.n_clusters_ == 4
    assert plain.solution_.joined is None


@dataclass(frozen=True)
class _Priced(Problem):
    """What a fit with k components is worth, and its clusters, are known beforehand."""

    worth: dict = field(default_factory=dict)

    def solve(self, init=None, **how):
        k = self.n_components[0]
        levels = SimpleNamespace(evidence=np.array([[self.worth[k]]]))
        return SimpleNamespace(levels=levels, rows=np.array([100.0]), k=k)


@pytest.fixture
def found(monkeypatch):
    """Of 100 rows of one feature; `clusters` by number of components, else one cluster alone."""

    def search_among(worth, at_least=1, clusters=None):
        known = {} if clusters is None else clusters
        one = np.zeros(100, np.int64)
        monkeypatch.setattr(search, "clusters_of", lambda fit, _: known.get(fit.k, one))
        data = NodeData.from_rows(np.zeros((100, 1)), ["a"] * 100)
        network = Network.from_edges([], ["a"])
        priced = _Priced(data, network, TrustThenPool(), [1], worth=worth)
        return search.search_components(priced, numbers_of("auto", at_least=at_least), seed=0)

    return search_among


def test_components_are_added_until_two_numbers_in_a_row_bring_no_more(found):
    worth = {1: -3.0, 2: -2.0, 3: -1.9, 4: -1.9, 5: -1.9, 6: -1.9, 8: 0.0, 12: 0.0, 16: 0.0}
    assert found(worth).n_components == 3
    assert list(found(worth).curve) == [1, 2, 3, 4, 5]
    assert found(worth, 5).n_components == 8
    # a component of one feature has three numbers, each worth a quarter of a nat of 100 rows
    assert found({1: -3.0, 2: -2.994, 3: -2.99, 4: -2.98}).n_components == 1


def test_of_numbers_that_are_worth_as_much_the_most_stable_is_taken(found):
    line = np.arange(100)
    clusters = {1: 0 * line, 2: line // 50, 3: (line // 5) % 3, 4: line // 25, 5: line // 20}
    worth = {1: -3.0, 2: -2.0, 3: -1.98, 4: -1.99, 5: -2.0, 6: -2.0}
    assert found(worth).n_components == 3  # all are one cluster: the best
    told = found(worth, clusters=clusters)
    assert told.n_components == 4
    assert told.stability[5] > told.stability[4]  # of the last nobody knows how it goes on
    assert told.stability[4] > told.stability[3] > told.stability[1] == 0
    far = {**worth, 3: -1.9}
    assert found(far, clusters=clusters).n_components == 3


def test_with_no_number_at_all_both_are_found(rows, monkeypatch):
    X, nodes, labels = rows
    monkeypatch.setattr(resolve, "NUMBERS", (1, 3))
    said = []
    model = NetworkGaussianMixture(graph="full", random_state=0, on_round=said.append)
    model.fit(X, nodes=nodes)
    assert (model.n_components_, model.n_clusters_) == (3, 3)
    assert adjusted_rand_score(labels, model.predict(X, nodes)) > 0.97
    tried = model.search_
    assert list(tried.curve) == [1, 3]
    assert tried.at_edge
    assert tried.curve[3] - tried.curve[1] > 3 * tried.errors[1] > tried.errors[3] == 0
    scores = model.score_samples(X, nodes)
    assert tried.curve[3] == pytest.approx(scores.mean(), abs=0.3)  # in the units of the rows
    same = select_components(X, nodes, candidates=(1, 3), graph="full")
    assert same.curve == tried.curve
    monkeypatch.undo()
    model = NetworkGaussianMixture("2:3", graph="full", random_state=0).fit(X, nodes=nodes)
    assert list(model.search_.curve) == [2, 3]


@pytest.mark.parametrize("asked", ["3:2", "0:2", "2:", "few"])
def test_ranges_that_are_none_are_refused(asked):
    with pytest.raises(ValueError, match=f"`n_components` is '{asked}'. Give a"):
        numbers_of(asked)
    assert numbers_of("2:7") == [2, 3, 4, 5, 6, 7]
    assert numbers_of("auto", at_least=7)[:3] == [7, 8, 12]


def test_numbers_that_cannot_be_are_refused_or_told(rows):
    X, nodes, _ = rows
    for name in ("n_clusters", "n_components"):
        with pytest.raises(ValueError, match=f"`{name}` is 'many'"):
            NetworkGaussianMixture(graph="full", **{name: "many"}).fit(X, nodes=nodes)
    with pytest.warns(FitWarning, match="`n_clusters` is 3, but there are 2 components to join"):
        check_clusters(3, 2, TrustThenPool())
    with pytest.warns(FitWarning, match="Local takes every component for a cluster"):
        own = NetworkGaussianMixture(2, method="local", n_clusters=3).fit(X, nodes=nodes)
    assert own.n_clusters_ == 2


def test_of_several_fits_the_one_is_kept_that_agrees_most_with_the_others(rows):
    X, nodes, _ = rows
    line = np.arange(60)
    halves, thirds = line // 30, line // 20
    assert most_agreed([thirds, halves, line % 7, np.roll(halves, 1)]) == 1
    how = dict(n_clusters="auto", graph="full", random_state=0)
    one = NetworkGaussianMixture(3, **how).fit(X, nodes=nodes)
    several = NetworkGaussianMixture(3, n_init=3, **how).fit(X, nodes=nodes)
    assert adjusted_rand_score(one.predict(X, nodes), several.predict(X, nodes)) > 0.97
    with pytest.raises(ValueError, match="`n_init` is 2: a checkpoint is of one fit"):
        NetworkGaussianMixture(3, n_init=2, checkpoint="a", **how).fit(X, nodes=nodes)
    with pytest.raises(ValueError, match="`n_init` is 0"):
        NetworkGaussianMixture(3, n_init=0, **how).fit(X, nodes=nodes)
