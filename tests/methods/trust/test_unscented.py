"""KL by sigma points, against a large sample and against its own derivative."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedmixtures import KL, UnscentedKL
from fedmixtures.discrepancy.base import AbstractDiscrepancy
from fedmixtures.mixture.precision import double
from helpers import mixture


def monte_carlo(own, neighbour, n=100_000):
    points, _ = neighbour.sample(n, 0)
    ratio = neighbour.log_density(points) - own.log_density(points)
    return ratio.mean(), ratio.std() / np.sqrt(n)


def test_between_single_gaussians_it_is_exact():
    own, neighbour = mixture(1, k=1), mixture(2, k=1)
    ratio = np.linalg.solve(own.covariances[0], neighbour.covariances[0])
    shift = own.means[0] - neighbour.means[0]
    mahalanobis = shift @ np.linalg.solve(own.covariances[0], shift)
    exact = 0.5 * (np.trace(ratio) - 2 - np.log(np.linalg.det(ratio)) + mahalanobis)
    np.testing.assert_allclose(UnscentedKL().between(own, neighbour), exact)


@pytest.mark.parametrize("d", [2, 5])
def test_its_error_is_below_that_of_fifty_drawn_points(d):
    """Measured over ten pairs of overlapping mixtures, in root mean square."""
    ours, drawn = [], []
    for seed in range(10):
        own, neighbour = mixture(seed, d=d, spread=3.0), mixture(100 + seed, d=d, spread=3.0)
        truth, error = monte_carlo(own, neighbour)
        assert error < 0.05 * max(truth, 1.0)
        ours.append(UnscentedKL().between(own, neighbour) - truth)
        drawn += [KL(50).between(own, neighbour, random_state=s) - truth for s in range(5)]
    rms = lambda values: np.sqrt(np.mean(np.square(values)))
    assert rms(ours) < rms(drawn)


def test_the_closed_form_is_the_derivative():
    with double():
        D = UnscentedKL()
        stack = lambda seeds: jax.tree.map(
            lambda *parts: jnp.stack([jnp.asarray(p) for p in parts]),
            *(mixture(seed, absent=1) for seed in seeds),
        )
        own, others = stack([1, 2]), [stack([3, 4]), stack([5, 6])]
        frozen = [jax.vmap(D.digest)(other) for other in others]
        frozen = jax.tree.map(lambda *parts: jnp.stack(parts, axis=1), *frozen)
        weight = jnp.asarray([[1.0, 0.3], [0.0, 2.0]])
        value, gradient = jax.jit(D.pull)(own, frozen, weight)
        derived_value, derived = jax.jit(partial(AbstractDiscrepancy.pull, D))(own, frozen, weight)
        np.testing.assert_allclose(value, derived_value, rtol=1e-10)
        np.testing.assert_allclose(gradient.means, derived.means, atol=1e-10)
        np.testing.assert_allclose(gradient.covariances, derived.covariances, atol=1e-10)
        present = np.asarray(own.weights) > 0
        np.testing.assert_allclose(
            np.asarray(gradient.weights)[present], np.asarray(derived.weights)[present], atol=1e-10
        )
