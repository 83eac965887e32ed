"""`impute`: conditional means against a direct calculation, draws against the means."""

from dataclasses import replace

import numpy as np
import pytest

import fedmixtures as fm
from fedmixtures.engine.solution import Solution, Traffic
from fedmixtures.graph.network import Network
from fedmixtures.methods.base import Levels
from fedmixtures.mixture.density import conditional_draws, conditional_means
from helpers import mixture


@pytest.fixture(scope="module")
def incomplete():
    rng = np.random.default_rng(3)
    rows = 2 * rng.normal(size=(40, 4))
    rows[rng.random(rows.shape) < 0.4] = np.nan
    rows[0], rows[1] = np.nan, 1.0  # nothing is there, and everything is
    return mixture(5, k=3, d=4), rows


def direct(p, row):
    """Expectation of a row given what is there, from precision matrices."""
    o, u = ~np.isnan(row), np.isnan(row)
    density, means = [], []
    for w, mean, cov in zip(*p.parts, strict=True):
        inverse = np.linalg.inv(cov[np.ix_(o, o)])
        off = row[o] - mean[o]
        normal = np.sqrt(np.linalg.det(inverse / (2 * np.pi))) * np.exp(-0.5 * off @ inverse @ off)
        density.append(w * (normal if o.any() else 1.0))
        precision = np.linalg.inv(cov)  # conditional means without a look at cov_OO
        step = np.linalg.solve(precision[np.ix_(u, u)], precision[np.ix_(u, o)] @ off)
        means.append(mean[u] - step)
    filled = row.copy()
    filled[u] = np.array(density) @ np.array(means) / np.sum(density)
    return filled


def test_means_are_those_of_a_direct_calculation(incomplete):
    p, rows = incomplete
    found = conditional_means(p, rows)
    for row, filled in zip(rows, found, strict=True):
        np.testing.assert_allclose(filled, direct(p, row), rtol=1e-10, atol=1e-12)


def test_draws_have_the_mean_and_keep_what_is_there(incomplete):
    p, rows = incomplete
    n = 20_000
    drawn = conditional_draws(p, rows[:6], n, np.random.default_rng(0))
    there = ~np.isnan(rows[:6])
    assert (drawn[:, there] == rows[:6][there]).all()
    error = drawn.std(0) / np.sqrt(n)
    off = np.abs(drawn.mean(0) - conditional_means(p, rows[:6]))
    assert (off <= 5 * error + 1e-9).all()
    # The row without a cell is a draw from the mixture itself.
    covariance = np.cov(drawn[:, 0].T)
    spread = p.means - p.weights @ p.means
    expected = np.einsum("k,kij->ij", p.weights, p.covariances) + (p.weights * spread.T) @ spread
    np.testing.assert_allclose(covariance, expected, rtol=0.1, atol=0.1 * expected.max())


def test_the_estimator_imputes_under_the_weighed_density_of_the_rows_node():
    own, everyone = mixture(1, k=2, d=2), mixture(2, k=2, d=2)
    stacked = fm.Mixture.stack([fm.Mixture.stack([own, own]), fm.Mixture.stack([everyone] * 2)])
    weights = np.array([[1.0, 0.0], [0.25, 0.75]])
    nothing = np.zeros((2, 2))
    levels = Levels(("own", "everyone"), stacked, weights, nothing, np.zeros(2, int), nothing)
    solution = Solution.collected({"a": own, "b": own}, 0, Traffic(0, {}))
    solution = replace(solution, levels=levels)
    network = Network(("a", "b"), np.array([0]), np.array([1]), np.ones(1))
    model = fm.NetworkGaussianMixture(2).adopt(solution, network)
    X = np.array([[0.5, np.nan], [np.nan, 1.0], [0.5, np.nan], [1.0, 2.0]])
    found = model.impute(X, nodes=["b", "a", "a", "b"])
    joined = fm.Mixture(
        np.concatenate([0.25 * own.weights, 0.75 * everyone.weights]),
        np.concatenate([own.means, everyone.means]),
        np.concatenate([own.covariances, everyone.covariances]),
    )
    expected = [direct(joined, X[0]), direct(own, X[1]), direct(own, X[2]), X[3]]
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    drawn = model.impute(X, nodes=["b", "a", "a", "b"], n_draws=3, random_state=1)
    assert drawn.shape == (3, 4, 2)
    again = model.impute(X, nodes=["b", "a", "a", "b"], n_draws=3, random_state=1)
    np.testing.assert_array_equal(drawn, again)
    with pytest.raises(ValueError, match="`n_draws` is 0"):
        model.impute(X, nodes=["b", "a", "a", "b"], n_draws=0)
