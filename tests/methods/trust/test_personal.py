"""What a node keeps at the end."""

import jax
import jax.numpy as jnp
import numpy as np

from fedmixtures import Mixture
from fedmixtures.methods.trust_then_pool.personal import (
    log_bayes_factor,
    personal_weights,
    safeguarded,
)
from fedmixtures.mixture.precision import double

MEANS = np.array([[0.0, 0.0], [8.0, 0.0], [0.0, 8.0]])


def mixture(shift=0.0) -> Mixture:
    eye = np.broadcast_to(np.eye(2), (1, 3, 2, 2))
    return jax.tree.map(jnp.asarray, Mixture(np.full((1, 3), 1 / 3), MEANS[None] + shift, eye))


def rows_of(weights, m, seed=0):
    rng = np.random.default_rng(seed)
    return MEANS[rng.choice(3, size=(1, m), p=weights)] + rng.standard_normal((1, m, 2))


def test_a_node_falls_back_step_by_step():
    with double():
        rows = jnp.asarray(rows_of([1 / 3] * 3, 50))
        good, bad, worse = mixture(), mixture(1.5), mixture(4.0)
        density = lambda theta: jnp.asarray(theta.at(0).log_density(rows[0]))[None]
        for pooled, refit, expected in ((good, good, 0), (bad, good, 1), (worse, worse, 2)):
            choices = [(pooled, density(good)), (refit, density(good))]
            theta, which = safeguarded(choices, good, rows, jnp.ones((1, 50)), 5.0)
            assert np.asarray(which)[0] == expected
            if expected:
                np.testing.assert_array_equal(theta.means, good.means)


def test_a_pooled_mixture_that_is_not_finite_is_never_kept():
    with double():
        rows = jnp.asarray(rows_of([1 / 3] * 3, 50))
        broken = jax.tree.map(lambda part: part * jnp.nan, mixture())
        alternative = jnp.asarray(mixture().at(0).log_density(rows[0]))[None]
        theta, which = safeguarded([(broken, alternative)], mixture(), rows, jnp.ones((1, 50)), 5.0)
    assert np.asarray(which)[0] == 1
    assert np.isfinite(theta.means).all()


def test_weights_become_personal_on_evidence_only():
    with double():
        skewed = jnp.asarray(rows_of([0.9, 0.1, 0.0], 100))
        theta = personal_weights(mixture(), skewed, jnp.ones((1, 100)))
        even = jnp.asarray(rows_of([1 / 3] * 3, 100, seed=1))
        unchanged = personal_weights(mixture(), even, jnp.ones((1, 100)))
    weights = np.asarray(theta.weights)[0]
    assert weights[0] > 0.8
    assert 0 < weights[2] < 0.05
    np.testing.assert_allclose(np.asarray(theta.weights).sum(), 1.0)
    np.testing.assert_allclose(unchanged.weights, 1 / 3)


def test_the_bayes_factor_is_a_ratio_of_chances_drawn_by_monte_carlo():
    """Counts given weights from a Dirichlet distribution, averaged, over counts given the mean."""
    mass, mean, strength = np.array([7.0, 3.0, 0.0]), np.array([0.5, 0.3, 0.2]), 3.0
    drawn = np.random.default_rng(0).dirichlet(strength * mean, 400_000)
    chance = np.prod(drawn**mass, axis=1).mean() / np.prod(mean**mass)
    with double():
        found = log_bayes_factor(jnp.asarray(mass[None]), jnp.asarray(mean[None]), strength)
    np.testing.assert_allclose(np.asarray(found)[0], np.log(chance), atol=0.02)


def test_an_absent_component_plays_no_part():
    with double():
        three, two = (
            log_bayes_factor(jnp.asarray([mass]), jnp.asarray([mean]), 10.0)
            for mass, mean in (([6.0, 2.0, 0.0], [0.4, 0.6, 0.0]), ([6.0, 2.0], [0.4, 0.6]))
        )
    np.testing.assert_allclose(three, two)
