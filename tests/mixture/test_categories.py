"""Mixtures with categories against a likelihood written out in NumPy, with gaps and weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedmixtures.data.node_data import NodeData, by_pattern, padded
from fedmixtures.kernels.dispatch import log_joints, statistics
from fedmixtures.mixture.arithmetic import double
from fedmixtures.mixture.density import conditional_draws, conditional_means
from fedmixtures.mixture.m_step import ShapePrior, m_step, shape_penalty
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import sigma_points

SIZES = 3, 2
G = 2


def mixture(rng, k=3):
    """Two continuous features, then a category of three values and one of two."""
    factor = rng.standard_normal((k, G, G))
    tables = [rng.dirichlet(np.ones(size), size=k) for size in SIZES]
    means = np.concatenate([rng.standard_normal((k, G)), *tables], 1)
    covariances = factor @ np.swapaxes(factor, 1, 2) + 0.3 * np.eye(G)
    return Mixture(rng.dirichlet(np.full(k, 3.0)), means, covariances)


def table(rng, n=40, gaps=True):
    """Rows with one-hot columns; with gaps, cells and whole categories are missing."""
    codes = [np.eye(size)[rng.integers(size, size=n)] for size in SIZES]
    x = np.concatenate([rng.standard_normal((n, G)), *codes], 1)
    if gaps:
        x[rng.random(n) < 0.3, 0] = np.nan
        x[rng.random(n) < 0.2, 1] = np.nan
        x[rng.random(n) < 0.3, G : G + 3] = np.nan
        x[rng.random(n) < 0.2, G + 3 :] = np.nan
    return x


def direct(theta, row):
    """ln of weight times density of what a row has, component by component, by loops."""
    found = []
    for weight, mean, covariance in zip(*theta.parts, strict=True):
        there = np.flatnonzero(~np.isnan(row[:G]))
        value = np.log(weight)
        if len(there):
            off, block = row[there] - mean[there], covariance[np.ix_(there, there)]
            value -= 0.5 * (off @ np.linalg.inv(block) @ off)
            value -= 0.5 * np.log(np.linalg.det(2 * np.pi * block))
        for j in range(G, len(row)):
            if row[j] == 1:
                value += np.log(mean[j])
        found.append(value)
    return np.array(found)


def block(rng, gaps):
    x = table(rng, gaps=gaps)
    weights = rng.integers(1, 4, size=len(x)).astype(float)
    data = by_pattern(NodeData.from_rows(x, None, weights))
    rows, counts = padded(data, int(data.counts.max()))
    place = data.source_index
    return x, weights, rows, counts, place


@pytest.mark.parametrize("gaps", [False, True])
def test_densities_and_sums_are_those_of_the_likelihood(gaps):
    rng = np.random.default_rng(3)
    theta = mixture(rng)
    x, weights, rows, counts, place = block(rng, gaps)
    expected = np.stack([direct(theta, row) for row in x])
    stack = Mixture.stack([theta])
    with double():
        joint = np.asarray(log_joints(*_jax((stack, rows))))[0]
        s = jax.tree.map(np.asarray, statistics(*_jax((stack, rows, counts))))
    real = place >= 0
    np.testing.assert_allclose(joint[: len(place)][real], expected[place[real]], atol=1e-10)
    density = np.logaddexp.reduce(expected, axis=1)
    assert float(s.log_likelihood[0]) == pytest.approx(weights @ density, abs=1e-9)
    share = np.exp(expected - density[:, None]) * weights[:, None]
    np.testing.assert_allclose(s.mass[0], share.sum(0), atol=1e-9)
    for j in range(G, x.shape[1]):  # a missing category counts with the component's shares
        cell = np.where(np.isnan(x[:, [j]]), theta.means[:, j], x[:, [j]])
        total = s.first[0, :, j] + s.mass[0] * theta.means[:, j]
        np.testing.assert_allclose(total, (share * cell).sum(0), atol=1e-9)


def _jax(tree):
    return jax.tree.map(jnp.asarray, tree)


@pytest.mark.parametrize("gaps", [False, True])
def test_em_never_lowers_the_likelihood(gaps):
    rng = np.random.default_rng(4)
    theta = Mixture.stack([mixture(rng)])
    x, weights, rows, counts, _ = block(rng, gaps)
    values = []
    with double():
        for _ in range(15):
            s = statistics(*_jax((theta, rows, counts)))
            at = theta.to_numpy().at(0)
            direct_sum = sum(
                w * np.logaddexp.reduce(direct(at, row)) for w, row in zip(weights, x, strict=True)
            )
            assert float(s.log_likelihood[0]) == pytest.approx(direct_sum, abs=1e-9)
            values.append(direct_sum)
            theta = m_step(theta, s, 0.0).to_numpy()
    assert (np.diff(values) > -1e-9).all()
    assert values[-1] > values[0] + 1
    np.testing.assert_allclose(theta.tables[0, :, :3].sum(-1), 1, atol=1e-9)
    np.testing.assert_allclose(theta.tables[0, :, 3:].sum(-1), 1, atol=1e-9)


def test_with_a_prior_the_penalised_likelihood_never_falls():
    rng = np.random.default_rng(5)
    theta = Mixture.stack([mixture(rng)])
    _, _, rows, counts, _ = block(rng, True)
    nu, values = 4.0, []
    with double():
        for _ in range(12):
            s = statistics(*_jax((theta, rows, counts)))
            penalty = shape_penalty(_jax(theta), np.array([nu]))
            values.append(float(s.log_likelihood[0] - penalty[0]))
            theta = m_step(theta, s, 0.0, ShapePrior(nu, 0.0))
    # The average that all are drawn to moves along; that costs a little at most.
    assert (np.diff(values) > -0.05).all()
    assert values[-1] > values[0]


def test_points_of_a_release_have_its_moments_and_shares():
    theta = mixture(np.random.default_rng(6))
    with double():
        points, weights = (np.asarray(part) for part in sigma_points(_jax(theta)))
    assert points.shape == (3, 2 * G + 1, G + sum(SIZES))
    np.testing.assert_allclose(weights.sum(-1), theta.weights, atol=1e-12)
    np.testing.assert_allclose(points[:, :, G:], np.repeat(theta.tables[:, None], 5, 1))


def test_missing_cells_are_expected_and_drawn_with_their_shares():
    rng = np.random.default_rng(7)
    theta, row = mixture(rng), np.array([[0.3, np.nan, *[np.nan] * 3, 1.0, 0.0]])
    share = direct(theta, row[0])
    share = np.exp(share - np.logaddexp.reduce(share))
    filled = conditional_means(theta, row)
    np.testing.assert_allclose(filled[0, G : G + 3], share @ theta.means[:, G : G + 3], atol=1e-10)
    slope = theta.covariances[:, 1, 0] / theta.covariances[:, 0, 0]
    expected = share @ (theta.means[:, 1] + slope * (0.3 - theta.means[:, 0]))
    assert filled[0, 1] == pytest.approx(expected, abs=1e-10)
    draws = conditional_draws(theta, row, 2000, rng)
    assert draws[:, 0, 1].mean() == pytest.approx(expected, abs=0.15)
    np.testing.assert_allclose(draws[:, 0, G : G + 3].mean(0), filled[0, G : G + 3], atol=0.05)


def test_covariances_of_too_few_features_are_still_refused():
    with pytest.raises(ValueError, match="no shares of categories"):
        Mixture([1.0], [[0.0, 4.0]], [[[1.0]]])
