"""The test whether two nodes' statistics can come from one distribution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chi2

from fedmixtures import Mixture
from fedmixtures.methods.trust_then_pool.evidence import (
    answers,
    chi_square_tail,
    contradictions,
    p_value,
)
from fedmixtures.methods.trust_then_pool.moments import moments
from fedmixtures.mixture.precision import double

MEANS = np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0]])


def draw(n_nodes, m, rng, shift=0.0, scale=1.0):
    rows = MEANS[rng.integers(3, size=(n_nodes, m))]
    return rows + scale * rng.standard_normal((n_nodes, m, 2)) + shift


def mixture(n_nodes, means=MEANS) -> Mixture:
    eye = np.broadcast_to(np.eye(2), (n_nodes, 3, 2, 2))
    stack = Mixture(np.full((n_nodes, 3), 1 / 3), np.broadcast_to(means, (n_nodes, 3, 2)), eye)
    return jax.tree.map(jnp.asarray, stack)


def p_values(rows_a, rows_b, theta):
    a, b = (moments(theta, jnp.asarray(x), jnp.ones(x.shape[:2])) for x in (rows_a, rows_b))
    return np.asarray(p_value(a, b, theta.covariances))


def test_the_statistic_by_hand():
    rng = np.random.default_rng(0)
    apart = 10 * MEANS  # so far that every row has one component
    component = rng.integers(3, size=(2, 100))
    a, b = (apart[component[i]] + rng.standard_normal((100, 2)) for i in range(2))
    with double():
        found = p_values(a[None], b[None], mixture(1, apart))[0]
    means, spreads = 0.0, 0.0
    for c in range(3):
        x, y = a[component[0] == c], b[component[1] == c]
        h = len(x) * len(y) / (len(x) + len(y))
        means += h * ((x.mean(0) - y.mean(0)) ** 2).sum()
        spreads += 0.5 * h * ((np.cov(x.T, bias=True) - np.cov(y.T, bias=True)) ** 2).sum()
    np.testing.assert_allclose(found, min(chi2.sf(means, 6), chi2.sf(spreads, 9)), rtol=0.02)


@pytest.mark.parametrize("p", [0.5, 0.2, 1e-2, 1e-3])
def test_the_tail_of_chi_square_is_near_enough(p):
    degrees = np.array([2.0, 4.0, 10.0, 30.0, 150.0])
    with double():
        found = np.asarray(chi_square_tail(jnp.asarray(chi2.isf(p, degrees)), jnp.asarray(degrees)))
    np.testing.assert_allclose(found, p, rtol=0.17)


@pytest.mark.parametrize("means", [MEANS, MEANS + 0.7], ids=["fits", "does not fit"])
def test_alike_nodes_are_seldom_found_different_whatever_the_mixture(means):
    rng = np.random.default_rng(1)
    with double():
        p = p_values(draw(400, 60, rng), draw(400, 60, rng), mixture(400, means))
    assert (p < 1e-3).mean() <= 0.01
    assert (p < 0.05).mean() < 0.2  # the smaller of two tests, small samples


def test_a_shift_or_another_spread_is_found():
    rng = np.random.default_rng(2)
    with double():
        shifted = p_values(draw(50, 100, rng), draw(50, 100, rng, shift=0.8), mixture(50))
        spread = p_values(draw(50, 100, rng), draw(50, 100, rng, scale=1.8), mixture(50))
    assert (shifted < 1e-3).mean() > 0.8
    assert (spread < 1e-3).mean() > 0.8


def test_neighbours_vouch_for_each_other_and_never_for_themselves():
    rng = np.random.default_rng(3)
    own, alike = draw(1, 50, rng), [draw(1, 50, rng) for _ in range(4)]
    other = draw(1, 50, rng, shift=1.0)
    with double():
        theta = mixture(1)
        weigh = lambda x: moments(theta, jnp.asarray(x), jnp.ones((1, 50)))
        received = [weigh(x) for x in (*alike, other)]
        stack = jax.tree.map(lambda *parts: jnp.stack(parts, axis=1), *received)
        p = np.asarray(contradictions(weigh(own), stack, theta, jnp.ones((1, 5), bool)))[0]
        alone = np.asarray(contradictions(weigh(own), stack, theta, jnp.eye(5, dtype=bool)[4:]))[0]
    assert p[4] < 1e-3 < p[:4].min()
    assert p[4] < alone[4]
    assert (alone[:4] == 1).all()


def test_nodes_that_share_no_component_are_never_alike():
    """One of them fills two components, the other the third: no mean can be compared."""
    rng = np.random.default_rng(5)
    component = np.repeat([[0, 1], [2, 2]], 15, axis=1)
    a, b = (MEANS[own] + rng.standard_normal((30, 2)) for own in component)
    with double():
        apart, alike = (p_values(a[None], x[None], mixture(1))[0] for x in (b, a + 0.01))
    assert apart == 0
    assert alike > 0.5


def test_answers_are_own_statistics_under_each_neighbour():
    rng = np.random.default_rng(4)
    rows = draw(2, 30, rng)
    with double():
        slots = [mixture(2), mixture(2, MEANS + 1.0)]
        stacked = jax.tree.map(lambda *parts: jnp.stack(parts, axis=1), *slots)
        found = answers(stacked, jnp.asarray(rows), jnp.ones((2, 30)))
        expected = moments(slots[1], jnp.asarray(rows), jnp.ones((2, 30)))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a[:, 1], b)
    np.testing.assert_allclose(np.asarray(found.mass).sum(-1), 30.0)
    np.testing.assert_allclose(np.asarray(found.first).sum(2)[:, 0], rows.sum(1))
