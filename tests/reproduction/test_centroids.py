"""Centroid error against every permutation, and its edge cases."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reproduction.tasks.measure import centroid_error, node_centroid_errors

SEEDS = st.integers(0, 2**32 - 1)


def brute_force(means, true_means):
    small, large = sorted((means, true_means), key=len)
    return min(
        np.linalg.norm(small - large[list(chosen)], axis=1).mean()
        for chosen in permutations(range(len(large)), len(small))
    )


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 3), SEEDS)
def test_agrees_with_all_permutations(k, k_true, d, seed):
    rng = np.random.default_rng(seed)
    means, true_means = rng.standard_normal((k, d)), rng.standard_normal((k_true, d))
    assert centroid_error(means, true_means) == pytest.approx(brute_force(means, true_means))


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 6), SEEDS)
def test_order_of_components_does_not_matter_and_truth_has_no_error(k, seed):
    rng = np.random.default_rng(seed)
    means, true_means = rng.standard_normal((k, 2)), rng.standard_normal((k, 2))
    shuffled = centroid_error(rng.permutation(means), rng.permutation(true_means))
    assert shuffled == pytest.approx(centroid_error(means, true_means))
    assert centroid_error(rng.permutation(means), means) == 0


def test_a_known_case():
    truth = np.array([[0.0, 0.0], [10.0, 0.0]])
    assert centroid_error([[10.0, 3.0], [4.0, 0.0]], truth) == 3.5


def test_mean_over_nodes_is_the_papers_err():
    rng = np.random.default_rng(0)
    means, true_means = rng.standard_normal((4, 3, 2)), rng.standard_normal((4, 3, 2))
    per_node = [brute_force(m, t) for m, t in zip(means, true_means, strict=True)]
    np.testing.assert_allclose(node_centroid_errors(means, true_means), per_node)
    assert centroid_error(means, true_means) == pytest.approx(np.mean(per_node))
    shared = node_centroid_errors(means, true_means[0])
    np.testing.assert_allclose(shared, [brute_force(m, true_means[0]) for m in means])


def test_a_diverged_node_is_nan_and_the_others_are_not():
    means = np.zeros((2, 2, 2))
    means[1, 0, 0] = np.nan
    np.testing.assert_array_equal(node_centroid_errors(means, np.zeros((2, 2))), [0, np.nan])


@pytest.mark.parametrize(
    ("shape", "true_shape"), [((2, 3), (2, 2)), ((4, 2, 3), (3, 2, 3)), ((3,), (3,))]
)
def test_shapes_that_do_not_fit_are_named(shape, true_shape):
    with pytest.raises(ValueError, match="`means` has the shape .* Give \\(nodes, k, d\\)"):
        centroid_error(np.zeros(shape), np.zeros(true_shape))
