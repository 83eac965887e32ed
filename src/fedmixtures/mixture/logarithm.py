"""A logarithm in plain arithmetic: XLA on CPU calls the C library for each one in float64."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

# Integer type, bits of the mantissa, bits of sqrt(1/2), terms of the series.
_FORMS = {
    np.dtype("float64"): (np.int64, 52, 0x3FE6A09E667F3BCD, 9),
    np.dtype("float32"): (np.int32, 23, 0x3F3504F3, 4),
}


def fast_log(x: jax.Array) -> jax.Array:
    r"""$\ln x$ of positive finite numbers (no subnormal ones), to two units in the last place.

    With $x = 2^e m$, $m \in [\sqrt{1/2}, \sqrt 2)$ and $s = (m-1)/(m+1)$:
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
