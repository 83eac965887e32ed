import jax
import jax.numpy as jnp
import pytest

from fedmixtures.mixture.arithmetic import double
from reproduction.kinds.costs import exponent
from reproduction.tasks import operations as counting


def operations(function, *arguments):
    return counting.count(jax.make_jaxpr(function)(*arguments).jaxpr)


def test_operations_by_hand():
    a = jnp.ones((3, 4))
    assert operations(lambda a: a + a, a) == 12
    assert operations(lambda a: a @ a.T, a) == 2 * 3 * 4 * 3
    assert operations(lambda a: a.sum(), a) == 12
    assert operations(lambda a: a.reshape(4, 3), a) == 0
    loop = lambda a: jax.lax.scan(lambda c, _: (c + a, None), a, length=5)[0]
    assert operations(loop, a) == 5 * 12


def test_a_loop_of_unknown_length_has_no_count():
    with pytest.raises(counting.DataDependent):
        operations(lambda x: jax.lax.while_loop(lambda c: c < 10, lambda c: c + 1, x), 0)


def test_mmd_grows_with_the_square_of_the_components():
    with double():
        counts = []
        for k in (8, 16, 32):
            pair = counting.mixture(k, 2, 0), counting.mixture(k, 2, 1), jax.random.key(0)
            counts.append(operations(counting.evaluation("mmd", 1), *pair))
    assert exponent((8, 16, 32), counts) == pytest.approx(2, abs=0.05)


def test_exponent_is_the_slope_of_the_upper_points():
    at = (1, 2, 4, 8, 16)
    assert exponent(at, [1, 1, 16, 64, 256]) == pytest.approx(2)
    assert exponent(at, [1, None, 16, 64, 256]) is None
