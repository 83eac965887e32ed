"""The feasible set: projection as a property, bounds taken from rows, refusals."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmixtures import FeasibleSet, Mixture
from fedmixtures.mixture.arithmetic import double, precision
from helpers import assert_close, mixture, stack

SEEDS = st.integers(0, 2**32 - 1)


@eqx.filter_jit
def _project(feasible, parts):
    return feasible.project(Mixture(*parts), jnp.ones(parts[0].shape, bool))


def project(feasible, parts, dtype="float64"):
    """Through the jitted projection, all components present; bounds are data, not shapes."""
    with precision(dtype):
        arrays = tuple(jnp.asarray(part, dtype) for part in parts)
        bounds = jax.tree.map(lambda bound: jnp.asarray(bound, dtype), feasible)
        return _project(bounds, arrays).to_numpy()


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.sampled_from([1, 2, 3]), st.floats(-3, 4), st.floats(-4, 0))
def test_projection_twice_is_projection_once(seed, d, size, floor):
    rng = np.random.default_rng(seed)
    raw = rng.standard_normal((3, d, d)) * 10**size
    parts = (
        rng.normal(0.3, 1, 3),
        rng.standard_normal((3, d)) * 10**size,
        raw + np.swapaxes(raw, -1, -2),
    )
    feasible = FeasibleSet(rng.uniform(0.001, 0.33), 5.0, 10**floor, 10**floor * 100)
    once = project(feasible, parts)
    twice = project(feasible, once.parts)
    # eigenvalues come back with an error of eps times the largest
    for first, second in zip(once.parts, twice.parts, strict=True):
        np.testing.assert_allclose(second, first, rtol=1e-12, atol=1e-13)
    low, high = feasible.min_variance, feasible.max_variance
    spectrum = np.linalg.eigvalsh(once.covariances)
    assert spectrum.min() >= low - 1e-13 * high
    assert spectrum.max() <= high * (1 + 1e-12)
    np.testing.assert_array_equal(once.covariances, np.swapaxes(once.covariances, -1, -2))
    assert once.weights.sum() == pytest.approx(1.0, abs=1e-12)
    assert once.weights.min() >= feasible.min_weight * (1 - 1e-12)


@pytest.mark.parametrize("d", [1, 2, 3, 5])
def test_what_is_inside_stays_bit_for_bit(d):
    theta = stack(0, 3, 4, d)
    assert_close(project(FeasibleSet(1e-4, 1e3, 1e-3, 1e3), theta.parts), theta, 1e-15)
    inside = project(FeasibleSet(1e-4, 1e3, 1e-3, 1e3), theta.parts)
    np.testing.assert_array_equal(inside.means, theta.means)
    np.testing.assert_array_equal(inside.covariances, theta.covariances)


@pytest.mark.parametrize("d", [2, 3])
def test_rounding_off_symmetry_is_taken_out(d):
    """Gradients in float32 are symmetric to rounding only; what is returned is exactly."""
    theta = mixture(1, 3, d)
    tilted = theta.covariances + 1e-6 * np.triu(np.ones((d, d)), 1)
    for feasible in (FeasibleSet(1e-4, 1e3, 1e-3, 1e3), FeasibleSet(1e-4, 1e3, 0.5, 0.8)):
        for dtype in ("float64", "float32"):
            result = project(feasible, (theta.weights, theta.means, tilted), dtype).covariances
            np.testing.assert_array_equal(result, np.swapaxes(result, -1, -2))


def test_absent_components_stay_absent():
    theta = mixture(1, 3, 2, absent=2)
    with double():
        result = eqx.filter_jit(FeasibleSet(min_weight=0.3).project)(theta).to_numpy()
    assert result.weights[3:].tolist() == [0.0, 0.0]
    assert result.weights[:3].min() >= 0.3
    assert result.weights.sum() == pytest.approx(1.0)


def test_bounds_around_rows_leave_room():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 3)) * [1e-3, 1.0, 1e4] + [0.0, 50.0, -1e5]
    around = FeasibleSet.around(X, n_components=3)
    variances = X.var(axis=0)
    assert around.min_variance < variances.min() / 100
    assert around.max_variance > variances.max()
    assert around.max_mean_norm > np.linalg.norm(X, axis=1).max()
    assert around.min_weight == 0.01
    assert FeasibleSet.around(X, n_components=100).min_weight < 0.01


@pytest.mark.parametrize("X", [np.zeros((5, 2)), np.full((5, 2), 3.0)])
def test_bounds_around_constant_rows_are_usable(X):
    around = FeasibleSet.around(X, 1)
    assert 0 < around.min_variance <= around.max_variance
    assert around.max_mean_norm >= np.linalg.norm(X[0])


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ({"min_weight": 0}, "`min_weight` is 0. Give a positive number"),
        ({"max_mean_norm": -1.0}, r"`max_mean_norm` is -1.0"),
        ({"min_variance": float("nan")}, "`min_variance` is nan"),
        ({"max_variance": float("inf")}, "`max_variance` is inf"),
        ({"min_variance": 2.0, "max_variance": 1.0}, "1 is below `min_variance` 2. Swap them"),
    ],
)
def test_impossible_bounds_are_refused(bounds, message):
    with pytest.raises(ValueError, match=message):
        FeasibleSet(**bounds)


def test_weights_need_room_above_their_floors():
    message = r"`min_weight`=0.3 times n_components=4 exceeds 1. Lower min_weight to at most 0.25"
    with pytest.raises(ValueError, match=message):
        FeasibleSet(min_weight=0.3).check_components(4)
