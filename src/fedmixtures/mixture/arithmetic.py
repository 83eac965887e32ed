"""Precision for the length of a block, and a logarithm as plain arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import jax
import jax.numpy as jnp
import numpy as np

# Integer type, bits of the mantissa, bits of sqrt(1/2), terms of the series.
_FORMS = {
    np.dtype("float64"): (np.int64, 52, 0x3FE6A09E667F3BCD, 9),
    np.dtype("float32"): (np.int32, 23, 0x3F3504F3, 4),
}


def double() -> AbstractContextManager:
    """Compute in float64 inside this block, whatever JAX is set to outside."""
    return jax.enable_x64(True)


@contextmanager
def precision(dtype: str) -> Iterator[None]:
    """Compute in `dtype`, ``"float64"`` or ``"float32"``, inside this block.

    Products of matrices too: a GPU would round the factors of those in float32 to ten bits, and
    covariances would not be symmetric.
    """
    with jax.enable_x64(dtype == "float64"), jax.default_matmul_precision("highest"):
        yield


def fast_log(x: jax.Array) -> jax.Array:
    r"""$\ln x$ of positive finite numbers (no subnormal ones), to two units in the last place.

    XLA on CPU calls the C library for each logarithm in float64; plain arithmetic vectorises and
    fuses anywhere. With $x = 2^e m$, $m \in [\sqrt{1/2}, \sqrt 2)$ and $s = (m-1)/(m+1)$:
    $\ln x = e \ln 2 + 2(s + s^3/3 + s^5/5 + \dots)$.
    """
    integer, mantissa, root, n_terms = _FORMS[x.dtype]
    bits = jax.lax.bitcast_convert_type(x, integer)
    exponent = jax.lax.shift_right_arithmetic(bits - integer(root), integer(mantissa))
    bits = bits - jax.lax.shift_left(exponent, integer(mantissa))
    m = jax.lax.bitcast_convert_type(bits, x.dtype)
    s = (m - 1) / (m + 1)
    square = s * s
    series = jnp.zeros_like(x)
    for i in range(n_terms, 0, -1):
        series = (series + 1 / (2 * i + 1)) * square
    return exponent.astype(x.dtype) * np.log(2.0).astype(x.dtype) + (2 * s + 2 * s * series)
