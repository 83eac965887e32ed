"""Small matrix algebra against NumPy's LAPACK."""

import jax
import numpy as np
import pytest

from fedmixtures.mixture.arithmetic import double
from fedmixtures.mixture.linear import cholesky, inverse_cholesky, positive_definite


def matrices(d, batch=(3, 5)):
    factor = np.random.default_rng(d).normal(size=(*batch, d, d))
    return factor @ np.swapaxes(factor, -1, -2) + 0.1 * np.eye(d)


@pytest.mark.parametrize("d", [1, 2, 4, 5, 11])
def test_factors_and_their_inverses(d):
    a = matrices(d)
    with double():
        found = np.asarray(jax.jit(cholesky)(a))
        inverse, log_determinant = jax.jit(inverse_cholesky)(a)
    expected = np.linalg.cholesky(a)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    np.testing.assert_allclose(np.asarray(inverse), np.linalg.inv(expected), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(np.asarray(log_determinant), np.linalg.slogdet(a)[1], atol=1e-10)


@pytest.mark.parametrize("d", [2, 6])
def test_what_is_not_positive_definite_is_seen(d):
    good = matrices(d, (6,))
    bad = good.copy()
    bad[0] -= 2 * np.linalg.eigvalsh(bad[0])[0] * np.eye(d)  # the smallest eigenvalue changes sign
    bad[1] *= 0
    bad[2, 0, 0] = np.nan
    bad[3, -1, -1] = np.inf
    bad[4] *= -1
    with double():
        assert np.asarray(jax.jit(positive_definite)(good)).all()
        assert np.asarray(jax.jit(positive_definite)(bad)).tolist() == [False] * 5 + [True]
