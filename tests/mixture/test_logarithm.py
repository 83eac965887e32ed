"""The logarithm in plain arithmetic against NumPy's."""

import jax.numpy as jnp
import numpy as np
import pytest

from fedmixtures.kernels.compiling import jit
from fedmixtures.mixture.arithmetic import fast_log
from fedmixtures.mixture.precision import precision


@pytest.mark.parametrize(("dtype", "top"), [("float64", 300), ("float32", 37)])
def test_agrees_with_numpy_to_a_few_units_in_the_last_place(dtype, top):
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
