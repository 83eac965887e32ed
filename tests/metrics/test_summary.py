"""Bootstrap intervals of medians against the exact bootstrap distribution."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from fedmixtures.metrics import Interval, median_interval, paired_difference


@pytest.mark.parametrize("n", [9, 21])
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_interval_is_that_of_the_exact_bootstrap_distribution(n, confidence):
    """The median of n (odd) draws is at most the j-th value when most draws are: a binomial."""
    values = np.arange(1.0, n + 1)
    at_most = binom.sf((n - 1) // 2, n, values / n)
    tail = (1 - confidence) / 2
    # The check is of use only where no step of the distribution is near the tail probability.
    steps = np.concatenate([at_most, 1 - at_most])
    assert np.abs(steps - tail).min() > 4 * np.sqrt(tail / 20_000)
    low, high = values[np.searchsorted(at_most, [tail, 1 - tail])]
    shuffled = np.random.default_rng(0).permutation(values)
    found = median_interval(shuffled, n_resamples=20_000, confidence=confidence, seed=1)
    assert found == Interval((n + 1) / 2, low, high)


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=12),
    st.floats(-100, 100),
    st.floats(0.1, 10),
)
def test_moves_and_scales_with_the_values(values, shift, scale):
    values = np.array(values)
    plain = np.array(median_interval(values, n_resamples=200))
    assert values.min() <= plain[1] <= plain[0] + 1e-9
    assert plain[0] - 1e-9 <= plain[2] <= values.max()
    moved = median_interval(shift + scale * values, n_resamples=200)
    np.testing.assert_allclose(moved, shift + scale * plain, atol=1e-8)


def test_covers_the_true_median_about_as_often_as_promised():
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(300):
        _, low, high = median_interval(rng.standard_normal(41), n_resamples=300)
        hits += low <= 0 <= high
    # Four standard errors of a binomial, and the percentile interval's own undercoverage.
    assert 0.95 - 4 * np.sqrt(0.95 * 0.05 / 300) - 0.02 < hits / 300 <= 1


def test_same_seed_same_interval():
    values = np.random.default_rng(0).standard_normal(20)
    assert median_interval(values, seed=1) == median_interval(values, seed=1)
    ends = {median_interval(values, n_resamples=50, seed=s)[1:] for s in range(5)}
    assert len(ends) > 1


def test_few_values():
    np.testing.assert_array_equal(median_interval([]), [np.nan] * 3)
    np.testing.assert_array_equal(median_interval([2.5]), [2.5, np.nan, np.nan])
    np.testing.assert_array_equal(median_interval([2.5, 2.5]), [2.5] * 3)
    np.testing.assert_array_equal(paired_difference([3.0], [1.0]), [2.0, np.nan, np.nan])
    np.testing.assert_array_equal(paired_difference([], []), [np.nan] * 3)


def test_failed_runs_are_not_hidden():
    np.testing.assert_array_equal(median_interval([1.0, np.nan, 2.0]), [np.nan] * 3)
    found = median_interval([-np.inf, *range(1, 20)], n_resamples=500)
    assert found.median == 9.5
    assert np.isfinite(found).all()
    assert median_interval([-np.inf, -np.inf, 1.0], n_resamples=100).median == -np.inf
    assert np.isnan(paired_difference([np.inf, 1.0], [np.inf, 0.0]).median)


def test_pairing_removes_what_both_share():
    rng = np.random.default_rng(0)
    shared = 10 * rng.standard_normal(20)
    a, b = shared + 1 + 0.01 * rng.standard_normal(20), shared
    median, low, high = paired_difference(a, b)
    assert 0.98 < low <= median <= high < 1.02
    assert paired_difference(a, b) == median_interval(a - b)


def test_shapes_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match=r"`values` has the shape \(2, 2\). Give one number per"):
        median_interval(np.zeros((2, 2)))
    with pytest.raises(ValueError, match=r"`a` has the shape \(2,\) and `b` \(3,\). Give the same"):
        paired_difference(np.zeros(2), np.zeros(3))
