"""The digits as the paper uses them."""

import numpy as np
import pytest

from fedmixtures.data import digits, digits_scenario


@pytest.fixture(scope="module")
def embedded():
    return digits()


def test_embedding_has_unit_overall_scale_and_uncorrelated_axes(embedded):
    X, classes = embedded
    assert X.shape == (1797, 10)
    assert sorted(set(classes.tolist())) == list(range(10))
    assert X.std() == pytest.approx(1)
    covariance = np.cov(X.T)
    np.testing.assert_allclose(covariance, np.diag(np.diag(covariance)), atol=1e-10)
    variances = np.diag(covariance)
    assert (np.diff(variances) < 0).all()  # one scale for all: not whitened
    # The first ten components of the 8 x 8 digits hold 74 % of the variance, the first 15 %.
    assert variances[0] / variances.sum() == pytest.approx(0.1489 / 0.7382, abs=0.002)


def test_scenario_splits_all_rows_and_keeps_rows_with_their_class(embedded):
    X, classes = embedded
    scenario = digits_scenario(seed=3)
    assert len(scenario.X) + len(scenario.X_validation) == 1797
    class_of = {tuple(x): c for x, c in zip(X, classes, strict=True)}
    for x, c in zip(scenario.X_validation[:50], scenario.components_validation, strict=False):
        assert class_of[tuple(x)] == c
    train, held_out = np.bincount(scenario.nodes), np.bincount(scenario.nodes_validation)
    assert (train + held_out).min() >= 20
    np.testing.assert_allclose(held_out, 0.4 * (train + held_out), atol=0.5 + 1e-9)
    assert scenario.labels == tuple(range(10))
    assert scenario.means is None
    assert scenario.blocks is None


def test_scenario_repeats_with_its_seed():
    first, again, other = (digits_scenario(seed=s) for s in (0, 0, 1))
    np.testing.assert_array_equal(first.X, again.X)
    np.testing.assert_array_equal(first.nodes, again.nodes)
    assert not np.array_equal(first.nodes[:100], other.nodes[:100])
