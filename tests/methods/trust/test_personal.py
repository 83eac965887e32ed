"""What a node keeps at the end."""

import jax
import jax.numpy as jnp
import numpy as np

from fedmixtures import Mixture
from fedmixtures.methods.trust_then_pool.personal import personal_weights, safeguarded
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
        theta = personal_weights(mixture(), skewed, jnp.ones((1, 100)), 5.0)
        even = jnp.asarray(rows_of([1 / 3] * 3, 100, seed=1))
        unchanged = personal_weights(mixture(), even, jnp.ones((1, 100)), 5.0)
    weights = np.asarray(theta.weights)[0]
    assert weights[0] > 0.8
    assert 0 < weights[2] < 0.05
    np.testing.assert_allclose(np.asarray(theta.weights).sum(), 1.0)
    np.testing.assert_allclose(unchanged.weights, 1 / 3)


def test_leaving_a_row_out_by_hand():
    """The gain that decides is the leave-one-out gain of the counts, for hard components."""
    rows = rows_of([0.6, 0.4, 0.0], 12, seed=3)
    component = np.linalg.norm(rows[0][:, None] - MEANS[None], axis=-1).argmin(1)
    mass = np.bincount(component, minlength=3)
    gains = [
        sum(np.log((mass[c] - 1 + a / 3) / (11 + a) * 3) for c in component)
        for a in (1.0, 3.0, 10.0, 30.0, 100.0)
    ]
    with double():
        for odds, personal in ((max(gains) - 0.05, True), (max(gains) + 0.05, False)):
            theta = personal_weights(mixture(), jnp.asarray(rows), jnp.ones((1, 12)), odds)
            assert (abs(np.asarray(theta.weights)[0, 2] - 1 / 3) > 1e-6) == personal
