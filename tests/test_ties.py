"""Choices between numbers that are equal up to rounding: the first, whatever the last bits say."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedmixtures._ties import (
    clearly_less,
    first_greatest,
    first_least,
    first_matching,
    in_order,
    margin,
)
from fedmixtures.mixture.arithmetic import double

pytestmark = pytest.mark.rounding


def noise(shape, seed):
    return 1 + 1e-15 * np.random.default_rng(seed).uniform(-1, 1, shape)


@pytest.mark.parametrize("module", [np, jnp])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_first_of_equals_is_taken_whatever_the_last_bits(module, dtype):
    with double():
        for seed in range(20):
            rng = np.random.default_rng(seed)
            values = np.array([3.0, 1.5, 2.0, 1.5, 1.5], dtype)
            values *= 1 + 4 * np.finfo(dtype).eps * rng.uniform(-1, 1, 5).astype(dtype)
            values = module.asarray(values.astype(dtype))
            assert int(first_least(values)) == 1
            assert int(first_greatest(-values)) == 1
            assert int(first_least(-values)) == 0


def test_a_real_difference_decides():
    values = np.array([1.0, 1.0 - 1e-6, 2.0])
    assert first_least(values) == 1
    assert clearly_less(values[1], values[0])
    assert not clearly_less(1.0 - 1e-13, 1.0)
    assert not clearly_less(np.float32(1) - np.float32(1e-6), np.float32(1))
    assert margin(np.float32) > 100 * np.finfo(np.float32).eps


def test_along_any_axis_and_in_a_compiled_program():
    values = np.random.default_rng(0).normal(size=(4, 5, 3))
    for axis in (0, 1, -1):
        np.testing.assert_array_equal(first_least(values, axis), values.argmin(axis))
        with double():
            found = jax.jit(first_greatest, static_argnums=1)(values, axis)
        np.testing.assert_array_equal(found, values.argmax(axis))


def test_one_margin_for_all_precisions_where_it_is_given():
    for dtype in ("float64", "float32"):
        values = np.array([1.0, 1.0 - 1e-6, 1.0 - 1e-5], dtype)
        assert first_least(values[:2], within=3e-6) == 0
        assert first_least(values, within=3e-6) == 2


def test_infinite_numbers_are_numbers():
    assert first_least(np.array([np.inf, 1.0, np.inf])) == 1
    assert first_least(np.array([np.inf, np.inf])) == 0
    assert first_least(np.array([1.0, -np.inf, -np.inf])) == 1
    assert first_greatest(np.array([-np.inf, -np.inf, -3.0])) == 2


def test_scale_is_for_sums_that_cancel():
    """A log-likelihood near zero is a sum of terms that are not."""
    values = np.array([1e-14, -1e-14, 1.0])
    assert first_least(values) == 1
    assert first_least(values, scale=1.0) == 0
    two = np.array([[1e-14, -1e-14], [1e-14, -1e-14]])
    assert first_least(two, scale=np.array([1.0, 1e-6])).tolist() == [0, 1]


def test_order_keeps_equals_as_they_stand():
    plain = np.array([2.0, 1.0, 2.0, 0.0, 1.0, 2.0])
    wanted = np.argsort(plain, kind="stable")
    for seed in range(20):
        np.testing.assert_array_equal(in_order(plain * noise(6, seed)), wanted)
    assert in_order(np.zeros(0)).tolist() == []
    assert in_order(np.array([1e-17, 0.0]), scale=1.0).tolist() == [0, 1]


@pytest.mark.parametrize("k", [2, 3, 5])
def test_matchings_are_the_best_and_ties_keep_the_order(k):
    rng = np.random.default_rng(k)
    cost = rng.uniform(size=(k, k))
    totals = {p: cost[range(k), p].sum() for p in itertools.permutations(range(k))}
    assert tuple(first_matching(cost)) == min(totals, key=totals.__getitem__)
    # rows and columns that are equal: each pairing costs the same
    assert first_matching(np.ones((k, k)) * noise((k, k), 1)).tolist() == list(range(k))
    corners = np.abs(np.subtract.outer(np.arange(k), np.arange(k)[::-1]))  # a line, turned about
    found = {tuple(first_matching(np.maximum(corners, 1) * noise((k, k), s))) for s in range(20)}
    assert len(found) == 1
