"""Missing cells in Trust-then-Pool: better than dropping or filling; columns are borrowed."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal

import fedmixtures as fm


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
