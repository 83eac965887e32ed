"""The k-means start: what it computes, and what it does not depend on."""

import numpy as np
import pytest
from sklearn.cluster import KMeans

from fedmixtures import KMeansStart
from fedmixtures.data.node_data import NodeData
from fedmixtures.init import clustered_mixture, node_seed
from fedmixtures.kernels.cpu import kmeans
from helpers import assert_close, draw, mixture


def starts(X, nodes, k=3, weights=None, reg_covar=1e-3, seed=0, **options):
    data = NodeData.from_rows(X, nodes, weights)
    ks = [k] * data.n_nodes
    theta = KMeansStart(**options).mixtures(data, ks, seed=seed, default_reg_covar=reg_covar)
    return {label: theta.at(i) for i, label in enumerate(data.labels)}


@pytest.fixture
def rows():
    X = np.concatenate([draw(mixture(i, 3, 2), 40, i) for i in range(2)])
    return X, np.repeat(["a", "b"], 40)


def test_fractions_centres_and_covariances_of_the_clusters(rows):
    X, nodes = rows
    found = starts(X, nodes, reg_covar=0.01)["a"]
    mine = X[nodes == "a"]
    # whichever clustering was found, the mixture is its moments
    nearest = ((mine[:, None] - found.means[None]) ** 2).sum(-1).argmin(1)
    for c in range(3):
        members = mine[nearest == c]
        assert found.weights[c] == pytest.approx(len(members) / 40)
        np.testing.assert_allclose(found.means[c], members.mean(0), atol=1e-10)
        expected = np.cov(members.T, bias=True) + 0.01 * np.eye(2)
        np.testing.assert_allclose(found.covariances[c], expected, atol=1e-10)
    # and the clustering is as tight as scikit-learn's own
    inertia = sum(((mine[nearest == c] - found.means[c]) ** 2).sum() for c in range(3))
    assert inertia <= KMeans(3, n_init=10, random_state=0).fit(mine).inertia_ * 1.001


def test_order_of_rows_does_not_matter(rows):
    X, nodes = rows
    order = np.random.default_rng(0).permutation(len(X))
    plain, shuffled = starts(X, nodes), starts(X[order], nodes[order])
    for label in "ab":
        assert_close(shuffled[label], plain[label], 0.0)


def test_a_row_twice_is_a_row_of_weight_two(rows):
    X, nodes = rows
    times = np.arange(len(X)) % 3
    weighted = starts(X, nodes, weights=times.astype(float))
    repeated = starts(np.repeat(X, times, axis=0), np.repeat(nodes, times))
    for label in "ab":
        assert_close(repeated[label], weighted[label], 1e-13)


def test_a_node_starts_the_same_whatever_other_nodes_there_are(rows):
    X, nodes = rows
    together = starts(X, nodes)
    alone = starts(X[nodes == "b"], nodes[nodes == "b"])
    assert_close(alone["b"], together["b"], 0.0)


def test_seeds_depend_on_run_and_label_alone():
    seeds = {node_seed(run, label) for run in (0, 1) for label in ("a", "b", 1, "1")}
    assert len(seeds) == 8
    assert node_seed(3, "a") == node_seed(3, np.str_("a"))


def test_one_component_is_the_sample_mean_and_covariance(rows):
    X, nodes = rows
    found = starts(X, nodes, k=1, reg_covar=0.0)["a"]
    np.testing.assert_allclose(found.means[0], X[:40].mean(0))
    np.testing.assert_allclose(found.covariances[0], np.cov(X[:40].T, bias=True))


def test_as_many_components_as_distinct_rows(rows):
    X, _ = rows
    found = starts(X[:5], np.repeat("a", 5), k=5, reg_covar=0.1)["a"]
    np.testing.assert_allclose(found.weights, 0.2)
    np.testing.assert_allclose(found.covariances, np.broadcast_to(0.1 * np.eye(2), (5, 2, 2)))
    assert {tuple(m) for m in found.means.round(9)} == {tuple(x) for x in X[:5].round(9)}


def test_moments_far_from_the_origin(rows):
    X, _ = rows
    cluster = np.arange(80) % 2
    near = clustered_mixture(X, np.ones(80), cluster, 2, 0.0)
    far = clustered_mixture(X + 1e4, np.ones(80), cluster, 2, 0.0)
    np.testing.assert_allclose(far.covariances, near.covariances, atol=1e-9)


def test_own_ridge_goes_before_the_default(rows):
    X, nodes = rows
    small, large = starts(X, nodes, reg_covar=0.0), starts(X, nodes, reg_covar=5.0, **{})
    own = KMeansStart(reg_covar=0.25)
    data = NodeData.from_rows(X, nodes)
    given = own.mixtures(data, [3, 3], seed=0, default_reg_covar=5.0).at(0)
    eye = np.eye(2)[None]
    np.testing.assert_allclose(given.covariances - 0.25 * eye, small["a"].covariances, atol=1e-12)
    np.testing.assert_allclose(large["a"].covariances - 5 * eye, small["a"].covariances, atol=1e-12)


@pytest.mark.parametrize(("m", "d", "k"), [(6, 1, 5), (50, 2, 5), (300, 3, 2)])
@pytest.mark.parametrize("weighted", [False, True])
def test_few_rows_are_clustered_as_scikit_learn_clusters_them(m, d, k, weighted):
    for seed in range(5):
        rng = np.random.default_rng(seed)
        X = 50 + rng.normal(size=(m, d)) + 3 * rng.integers(0, k, (m, 1))
        weights = rng.integers(1, 4, m) if weighted else None
        stream = np.random.RandomState(seed)
        own_stream = np.random.RandomState(seed)
        for _ in range(3):
            found = kmeans.clustering(X, weights, k, own_stream)
            expected = KMeans(k, n_init=1, random_state=stream).fit(X, sample_weight=weights)
            np.testing.assert_array_equal(found.labels, expected.labels_)
            assert found.inertia == pytest.approx(expected.inertia_, rel=1e-6)


def test_a_cluster_that_lost_its_rows_gets_the_furthest_one(rows):
    X = rows[0] - rows[0].mean(0)
    centres = np.array([[0.0, 0.0], [1.0, 1.0], [90.0, 90.0], [99.0, 99.0]])
    found = kmeans.lloyd(X, np.ones(len(X)), centres)
    expected = KMeans(4, init=centres, n_init=1).fit(X)
    np.testing.assert_array_equal(found.labels, expected.labels_)
    assert len(set(found.labels)) == 4
