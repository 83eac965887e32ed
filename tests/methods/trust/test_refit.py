"""Summaries, pools and the joint refit."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from fedmixtures import Mixture, ShapePrior
from fedmixtures.kernels.block_em import expectation_maximisation
from fedmixtures.kernels.dispatch import statistics
from fedmixtures.methods.trust_then_pool.refit import held_out_in_pool, joint_refit, pool_of
from fedmixtures.methods.trust_then_pool.settings import FitSettings
from fedmixtures.mixture.moments import sigma_points
from fedmixtures.mixture.precision import double

MEANS = np.array([[0.0, 0.0], [8.0, 0.0], [0.0, 8.0]])


def random_mixture(shape=(), k=3, d=2, seed=0) -> Mixture:
    rng = np.random.default_rng(seed)
    roots = rng.standard_normal((*shape, k, d, d))
    weights = rng.dirichlet(np.ones(k), size=shape) if shape else rng.dirichlet(np.ones(k))
    covariances = roots @ np.swapaxes(roots, -1, -2) + 0.2 * np.eye(d)
    return Mixture(weights, 3 * rng.standard_normal((*shape, k, d)), covariances)


def test_sigma_points_have_the_moments_of_every_component():
    with double():
        for d in (1, 2, 5):
            theta = random_mixture(d=d, seed=d)
            points, weights = map(np.asarray, sigma_points(jax.tree.map(jnp.asarray, theta)))
            np.testing.assert_allclose(weights.sum(-1), theta.weights)
            share = weights / weights.sum(-1, keepdims=True)
            mean = np.einsum("kp,kpi->ki", share, points)
            centred = points - mean[:, None]
            np.testing.assert_allclose(mean, theta.means, atol=1e-12)
            covariance = np.einsum("kp,kpi,kpj->kij", share, centred, centred)
            np.testing.assert_allclose(covariance, theta.covariances, atol=1e-12)


def problem(seed=0, m=30):
    rng = np.random.default_rng(seed)
    rows = MEANS[rng.integers(3, size=(1, m))] + rng.standard_normal((1, m, 2))
    eye = np.broadcast_to(np.eye(2), (1, 2, 3, 2, 2))
    summaries = Mixture(np.full((1, 2, 3), 1 / 3), np.stack([MEANS, MEANS + 20.0])[None], eye)
    return jnp.asarray(rows), jnp.ones((1, m)), jax.tree.map(jnp.asarray, summaries)


def test_a_pool_counts_own_rows_and_trusted_neighbours_alone():
    with double():
        rows, counts, summaries = problem()
        mass = jnp.asarray([[70.0, 1000.0]])
        _, weights = pool_of(rows, counts, summaries, mass, jnp.asarray([[True, False]]))
        np.testing.assert_allclose(np.asarray(weights).sum(), 30 + 70)
        np.testing.assert_allclose(np.asarray(weights)[0, :30], 1.0)


def test_a_trusted_summary_improves_the_fit():
    with double():
        rows, counts, summaries = problem()
        settings, key = FitSettings(ShapePrior(), 1e-3, 3), jax.vmap(jr.key)(jnp.asarray([3]))
        errors = []
        present = jnp.ones((1, 3), bool)
        refit = jax.jit(lambda start, pool: joint_refit(key, [start], present, pool, settings))
        for trusted in (False, True):
            pool = pool_of(
                rows,
                counts,
                summaries,
                jnp.asarray([[300.0, 1.0]]),
                jnp.asarray([[trusted, False]]),
            )
            start = jax.tree.map(lambda part: part[:, 0], summaries)
            fitted = refit(start, pool)
            distance = np.linalg.norm(np.asarray(fitted.means)[0][:, None] - MEANS[None], axis=-1)
            errors.append(distance.min(0).mean())
    assert errors[1] < 0.5 * errors[0]


def test_without_prior_and_ridge_the_pooled_likelihood_never_falls():
    with double():
        rows, counts, summaries = problem(seed=4)
        pool = pool_of(rows, counts, summaries, jnp.asarray([[50.0, 20.0]]), jnp.ones((1, 2), bool))
        rough = np.random.default_rng(5).standard_normal((1, 3, 2))
        eye = np.broadcast_to(4 * np.eye(2), (1, 3, 2, 2))
        theta = jax.tree.map(jnp.asarray, Mixture([[0.2, 0.3, 0.5]], MEANS[None] + rough, eye))
        step = jax.jit(lambda theta: expectation_maximisation(theta, *pool, 1, 0.0, 0.0))
        values = [float(statistics(theta, *pool).log_likelihood[0])]
        for _ in range(12):
            fitted = step(theta)
            theta = fitted.theta
            values.append(float(fitted.log_likelihood[0]))
    assert (np.diff(values) > -1e-9).all()
    assert values[-1] - values[0] > 1


def test_a_row_is_held_out_of_its_own_refit():
    with double():
        rows, counts, summaries = problem()
        settings = FitSettings(ShapePrior(), 1e-3, 2)
        pool = pool_of(
            rows, counts, summaries, jnp.asarray([[50.0, 1.0]]), jnp.asarray([[True, False]])
        )
        theta = jax.tree.map(lambda part: part[:, 0], summaries)
        fold = jnp.asarray(np.arange(30)[None] % 5)
        held = np.asarray(held_out_in_pool(theta, pool, fold, 5, settings))[0]
        others = jnp.where(jnp.arange(30)[None] % 5 == 2, 0.0, 1.0)
        weights = jnp.concatenate([others, pool[1][:, 30:]], axis=1)
        by_hand = expectation_maximisation(
            theta, pool[0], weights, 5, 1e-7, 1e-3, settings.prior
        ).theta
        expected = by_hand.at(0).log_density(rows[0])
    np.testing.assert_allclose(held[2::5], expected[2::5], rtol=1e-9)
