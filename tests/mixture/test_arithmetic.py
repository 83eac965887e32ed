"""Random numbers against published vectors and their laws; the logarithm against NumPy's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fedmixtures.kernels.compiling import jit
from fedmixtures.mixture.arithmetic import fast_log, precision
from fedmixtures.mixture.sampling import normal, philox, random_words, uniform

# Known answers of Random123 (kat_vectors, philox4x32 with 10 rounds): counter, key, result.
VECTORS = [
    ("00000000" * 4, "00000000" * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff" * 4, "ffffffff" * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        "243f6a8885a308d313198a2e03707344",
        "a4093822299f31d0",
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


def words(text):
    text = text.replace(" ", "")
    return [np.uint32(int(text[i : i + 8], 16)) for i in range(0, len(text), 8)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_published_vectors(dtype):
    """In either precision of the program: 64-bit integers may be switched off."""
    for counter, key, expected in VECTORS:
        with precision(dtype):
            arrays = (
                [jnp.asarray([w]) for w in words(counter)],
                [jnp.asarray([w]) for w in words(key)],
            )
            found = jax.jit(philox)(*arrays)
        assert [int(w[0]) for w in found] == [int(w) for w in words(expected)]


@pytest.fixture(scope="module")
def drawn():
    keys = jnp.asarray(np.random.default_rng(0).integers(0, 2**32, (200, 2)), jnp.uint32)
    return jax.jit(lambda keys: random_words(keys, 150, 5))(keys)


def test_uniform_numbers(drawn):
    for part in drawn:
        u = np.asarray(uniform(part)).ravel()
        assert u.min() > 0
        assert u.max() < 1
        assert stats.kstest(u, "uniform").pvalue > 1e-4


def test_normal_numbers(drawn):
    for part in drawn:
        z = np.asarray(normal(uniform(part))).ravel()
        assert np.isfinite(z).all()
        assert stats.kstest(z, "norm").pvalue > 1e-4
        assert abs(z.mean()) < 4 / np.sqrt(len(z))
        assert abs(z.var() - 1) < 4 * np.sqrt(2 / len(z))


def test_words_points_and_keys_do_not_go_together(drawn):
    z = np.stack([np.asarray(normal(uniform(part))) for part in drawn])  # words, keys, points
    correlations = np.corrcoef(z.reshape(5, -1))[np.triu_indices(5, 1)]
    assert np.abs(correlations).max() < 4.5 / np.sqrt(z[0].size)
    neighbours = (z[:, :, 1:] * z[:, :, :-1]).ravel()
    assert abs(neighbours.mean()) < 4.5 / np.sqrt(len(neighbours))
    across = (z[:, 1:] * z[:, :-1]).ravel()
    assert abs(across.mean()) < 4.5 / np.sqrt(len(across))


def test_the_extremes_of_a_word_are_finite():
    ends = jnp.asarray([0, 2**32 - 1], jnp.uint32)
    z = np.asarray(normal(uniform(ends)))
    assert z[0] == -z[1]
    assert 5 < z[1] < 6


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-6), ("float32", 4e-6)])
def test_normal_numbers_are_the_quantiles(dtype, tolerance):
    u = np.concatenate([np.geomspace(2**-24, 0.5, 5000), 1 - np.geomspace(2**-20, 0.5, 5000)])
    u = u.astype(dtype)
    with precision(dtype):
        found = np.asarray(jax.jit(normal)(jnp.asarray(u)))
    assert found.dtype == dtype
    expected = stats.norm.ppf(u.astype("float64"))
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("dtype", "top"), [("float64", 300), ("float32", 37)])
def test_the_logarithm_agrees_with_numpy_to_a_few_units_in_the_last_place(dtype, top):
    rng = np.random.default_rng(0)
    values = np.concatenate(
        [
            10 ** rng.uniform(-top, top, 4000),
            rng.uniform(1, 8, 4000),  # where the E-step uses it: one to the number of components
            np.nextafter([1.0, 1.0, 2.0, np.sqrt(0.5)], [0, 2, 3, 1]),
            [1.0, 2.0, 0.5, np.sqrt(2)],
        ]
    ).astype(dtype)
    with precision(dtype):
        found = np.asarray(jit(fast_log)(jnp.asarray(values)))
    exact = np.log(values.astype(np.longdouble))
    unit = np.spacing(np.abs(exact).astype(dtype).clip(np.finfo(dtype).tiny))
    # next to one the logarithm is small and its error is that of the argument's last place
    unit = np.maximum(unit, np.finfo(dtype).eps * np.abs(exact))
    assert (np.abs(found - exact) <= 3 * unit + 0.1 * np.finfo(dtype).eps * (exact != 0)).all()
    assert not found[values == 1.0].any()
