"""Missing cells in the other methods: fitted exactly, or refused before work begins."""

import numpy as np
import pytest

import fedmixtures as fm
from fedmixtures.data.node_data import NodeData
from fedmixtures.engine.solve import solve
from fedmixtures.methods.registry import METHODS


@pytest.mark.parametrize(
    "method",
    [fm.Local(prior=fm.ShapePrior(), engine="jax"), fm.GTVMin(), fm.FedEM(), fm.FedGEM()],
    ids=lambda method: type(method).__name__,
)
def test_gaps_cost_little_and_filling_them_costs_much(method, gaps):
    scenario, X = gaps

    def score(X):
        model = fm.NetworkGaussianMixture(2, graph="full", method=method, random_state=0)
        model.fit(X, nodes=scenario.nodes)
        return model.score(scenario.X_validation, nodes=scenario.nodes_validation)

    found = score(X)
    assert found > score(scenario.X) - 0.3
    assert found > score(np.where(np.isnan(X), np.nanmean(X, 0), X)) + 0.1


def test_local_em_raises_the_likelihood_of_what_is_there_to_a_fixed_point(gaps):
    """At the end the mean of a single Gaussian solves the likelihood equation row by row."""
    _, X = gaps
    local = fm.Local(n_init=1, engine="jax", tol=1e-12, max_iter=2000, reg_covar=0.0)
    model = fm.NetworkGaussianMixture(1, method=local).fit(X[:60])
    mean, spread = model.means_[0], model.covariances_[0]
    slope = np.zeros(2)
    for row in X[:60]:
        there = ~np.isnan(row)
        part = np.ix_(there, there)
        slope[there] += np.linalg.solve(spread[part], row[there] - mean[there])
    np.testing.assert_allclose(slope, 0.0, atol=1e-4)


def test_a_column_that_nobody_else_has_told_comes_from_the_network(gaps):
    """Local has nobody to borrow from: the start is all it has, and it stays a density."""
    scenario, _ = gaps
    X = scenario.X.copy()
    X[scenario.nodes == 1, 1] = np.nan
    model = fm.NetworkGaussianMixture(2, method="local", random_state=0).fit(
        X, nodes=scenario.nodes
    )
    own = scenario.nodes_validation == 1
    values = model.score_samples(scenario.X_validation[own], scenario.nodes_validation[own])
    assert np.isfinite(values).all()
    variance = np.einsum("k,kii->i", model.weights_[1], model.covariances_[1])
    assert variance[1] > 0.01 * np.nanvar(X[:, 1])


def test_methods_that_cannot_say_so_before_they_start_and_name_those_that_can(gaps):
    X = np.array([[0.0, 1], [np.nan, 2], [3, 4]])
    able = [name for name, make in METHODS.items() if make().supports_missing]
    assert {"trust", "local", "centralized", "gtv-mmd", "fedem"} <= set(able) < set(METHODS)
    model = fm.NetworkGaussianMixture(1, method="fedkmeans")
    with pytest.raises(ValueError, match="NaN at row 1, column 0.*centralized.*gtv-mmd.*trust"):
        model.fit(X)
    data = NodeData.from_rows(X)
    with pytest.raises(ValueError, match=r"cells are missing \(1 are NaN\), and FedKMeans cannot"):
        solve("fedkmeans", data, n_components=1)
    with pytest.raises(ValueError, match="infinity"):
        fm.NetworkGaussianMixture(1).fit(np.array([[0.0, np.inf], [1, 2], [3, 4]]))
    with pytest.raises(ValueError, match="column 1 of X has no value in any row"):
        solve("local", NodeData.from_rows(X * [1, np.nan]), n_components=1)
