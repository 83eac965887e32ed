"""Mutual information against scikit-learn, and the effective number of components."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import normalized_mutual_info_score

from reproduction.tasks.measure import (
    effective_components,
    node_mutual_information,
    normalized_mutual_information,
)

SEEDS = st.integers(0, 2**32 - 1)


def labelled_rows(seed, n=120):
    rng = np.random.default_rng(seed)
    true = rng.integers(0, 4, n)
    predicted = np.where(rng.random(n) < 0.7, true, rng.integers(0, 4, n))
    return true, predicted, rng.choice(["h1", "h2", "h3"], n)


@settings(max_examples=15, deadline=None)
@given(SEEDS)
def test_is_sklearns_per_node_and_then_the_mean(seed):
    true, predicted, nodes = labelled_rows(seed)
    expected = {
        h: normalized_mutual_info_score(true[nodes == h], predicted[nodes == h])
        for h in ("h1", "h2", "h3")
    }
    assert node_mutual_information(true, predicted, nodes) == pytest.approx(expected)
    wanted = np.mean(list(expected.values()))
    assert normalized_mutual_information(true, predicted, nodes) == pytest.approx(wanted)
    pooled = normalized_mutual_info_score(true, predicted)
    assert normalized_mutual_information(true, predicted) == pytest.approx(pooled)


def test_components_may_be_named_differently_at_every_node():
    true, _, nodes = labelled_rows(0)
    predicted = true.copy()
    predicted[nodes == "h2"] = (true[nodes == "h2"] + 1) % 4
    assert normalized_mutual_information(true, predicted, nodes) == pytest.approx(1)
    assert normalized_mutual_information(true, predicted) < 0.9


def test_one_group_alone():
    assert normalized_mutual_information([1, 1, 1], [5, 5, 5]) == 1
    assert normalized_mutual_information([0, 1, 1], [5, 5, 5]) == 0


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=8))
def test_effective_components_lie_between_one_and_k(parts):
    weights = np.array(parts) / sum(parts)
    k_effective = effective_components(weights)
    assert 1 - 1e-12 <= k_effective <= len(parts) + 1e-12
    np.testing.assert_allclose(effective_components(np.append(weights, 0.0)), k_effective)


def test_effective_components_known_cases():
    weights = [[0.25, 0.25, 0.25, 0.25], [1, 0, 0, 0], [0.5, 0.5, 0, 0]]
    np.testing.assert_allclose(effective_components(weights), [4, 1, 2])
    np.testing.assert_allclose(effective_components([0.75, 0.25]), 4 / 3**0.75)
    np.testing.assert_array_equal(effective_components([[np.nan, 1], [0, 1]]), [np.nan, 1])


@pytest.mark.parametrize("weights", [[0.5, 0.6], [1.5, -0.5]])
def test_effective_components_needs_weights(weights):
    with pytest.raises(ValueError, match="`weights` must be non-negative and sum to 1 .* smallest"):
        effective_components(weights)
