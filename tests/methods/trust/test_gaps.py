"""Missing cells: exact against a direct likelihood, and better than dropping or filling."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal

import fedmixtures as fm
from fedmixtures.data import shifted_blocks
from fedmixtures.mixture.density import log_joint_observed
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import observed_statistics, plain_statistics
from fedmixtures.mixture.precision import double


@pytest.fixture
def problem():
    rng = np.random.default_rng(0)
    n, m, k, d = 2, 7, 3, 4
    a = rng.normal(size=(n, k, d, d))
    covariances = a @ np.swapaxes(a, -1, -2) + np.eye(d)
    weights = rng.dirichlet(np.ones(k), n)
    theta = Mixture(weights, rng.normal(size=(n, k, d)), covariances)
    rows = rng.normal(size=(n, m, d))
    observed = rng.random((n, m, d)) > 0.4
    observed[0, 0], observed[0, 1] = False, True  # a row without any cell, and a whole one
    return theta, rows, observed, rng.random((n, m))


def test_the_density_is_the_marginal_of_what_is_there(problem):
    theta, rows, observed, _ = problem
    with double():
        found = np.asarray(log_joint_observed(theta, np.where(observed, rows, 0.0), observed))
    for node, row, c in np.ndindex(2, 7, 3):
        there = observed[node, row]
        one = theta.at(node)
        expected = np.log(one.weights[c])
        if there.any():
            part = np.ix_(there, there)
            normal = multivariate_normal(one.means[c][there], one.covariances[c][part])
            expected += normal.logpdf(rows[node, row][there])
        assert found[node, row, c] == pytest.approx(expected, rel=1e-10)


def test_the_e_step_takes_conditional_expectations(problem):
    theta, rows, observed, weights = problem
    with double():
        found = observed_statistics(theta, np.where(observed, rows, 0.0), observed, weights)
        joint = np.asarray(log_joint_observed(theta, np.where(observed, rows, 0.0), observed))
    share = np.exp(joint - np.logaddexp.reduce(joint, axis=-1)[..., None]) * weights[..., None]
    first, second = np.zeros((2, 3, 4)), np.zeros((2, 3, 4, 4))
    for node, row, c in np.ndindex(2, 7, 3):
        mean, spread = theta.means[node, c], theta.covariances[node, c]
        o, u = observed[node, row], ~observed[node, row]
        expected, left = np.zeros(4), np.zeros((4, 4))
        expected[o] = rows[node, row][o] - mean[o]
        gain = spread[np.ix_(u, o)] @ np.linalg.inv(spread[np.ix_(o, o)])
        expected[u] = gain @ expected[o]
        left[np.ix_(u, u)] = spread[np.ix_(u, u)] - gain @ spread[np.ix_(o, u)]
        first[node, c] += share[node, row, c] * expected
        second[node, c] += share[node, row, c] * (np.outer(expected, expected) + left)
    np.testing.assert_allclose(found.first, first, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.second, second, rtol=1e-9, atol=1e-12)


def test_without_gaps_it_is_the_ordinary_e_step(problem):
    theta, rows, observed, weights = problem
    with double():
        found = observed_statistics(theta, rows, np.ones_like(observed), weights)
        expected = plain_statistics(theta, rows, weights)
    for name in ("log_likelihood", "mass", "first", "second"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-9)


@pytest.fixture(scope="module")
def gaps():
    scenario = shifted_blocks(n_blocks=2, nodes_per_block=3, n_components=2, n_train=60, seed=5)
    missing = np.random.default_rng(0).random(scenario.X.shape) < 0.3
    missing[missing.all(1), 0] = False
    return scenario, np.where(missing, np.nan, scenario.X)


def fitted(X, nodes, **more):
    method = fm.TrustThenPool(n_starts=2, pool_steps=(1, 3, 4))
    return fm.NetworkGaussianMixture(2, graph="full", method=method, random_state=0, **more).fit(
        X, nodes=nodes
    )


def test_gaps_cost_little_and_filling_them_costs_much(gaps):
    scenario, X = gaps
    held_out = {"X": scenario.X_validation, "nodes": scenario.nodes_validation}
    score = fitted(X, scenario.nodes).score(**held_out)
    assert score > fitted(scenario.X, scenario.nodes).score(**held_out) - 0.2
    filled = np.where(np.isnan(X), np.nanmean(X, 0), X)
    assert score > fitted(filled, scenario.nodes).score(**held_out) + 0.3


def test_rows_with_gaps_are_scored_and_assigned_by_what_is_there(gaps):
    scenario, X = gaps
    model = fitted(X, scenario.nodes)
    row, label = np.array([[scenario.X[0, 0], np.nan]]), scenario.nodes[:1]
    mixture = model.node(int(label[0]), level="density")
    one = [
        w * multivariate_normal(m[0], c[0, 0]).pdf(row[0, 0])
        for w, m, c in zip(mixture.weights_, mixture.means_, mixture.covariances_, strict=True)
    ]
    assert model.score_samples(row, nodes=label)[0] == pytest.approx(np.log(sum(one)))
    assert model.predict(row, nodes=label).shape == (1,)


def test_a_column_that_one_node_lacks_is_borrowed(gaps):
    scenario, _ = gaps
    X = scenario.X.copy()
    X[scenario.nodes == 1, 1] = np.nan
    model = fitted(X, scenario.nodes)
    own = scenario.nodes_validation == 1
    score = model.score_samples(scenario.X_validation[own], nodes=scenario.nodes_validation[own])
    average = multivariate_normal(np.nanmean(X, 0), np.diag(np.nanvar(X, 0)))
    assert score.mean() > average.logpdf(scenario.X_validation[own]).mean() + 0.3


def test_methods_without_it_say_so_before_they_start():
    X = np.array([[0.0, 1], [np.nan, 2], [3, 4]])
    model = fm.NetworkGaussianMixture(1, method="gtv-mmd")
    with pytest.raises(ValueError, match="NaN at row 1, column 0.*method='trust'"):
        model.fit(X)
    with pytest.raises(ValueError, match="infinity"):
        fm.NetworkGaussianMixture(1).fit(np.array([[0.0, np.inf], [1, 2], [3, 4]]))
