"""Precision for the length of a block; random numbers and a logarithm as plain arithmetic.

The generator is Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy
as 1, 2, 3" (2011). JAX's own generator runs in a loop on CPU, where it moves its numbers to and
from memory; and XLA on CPU calls the C library for each logarithm in float64. Plain arithmetic
vectorises and fuses anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import jax
import jax.numpy as jnp
import numpy as np

ROUNDS = 10
_MULTIPLIERS = np.uint32(0xD2511F53), np.uint32(0xCD9E8D57)
_STEPS = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)
_CENTRE = (
    *(2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087),
    *(-0.00125372503, -0.00417768164, 0.246640727, 1.50140941),
)
_TAIL = (
    *(-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773),
    *(-0.0076224613, 0.00943887047, 1.00167406, 2.83297682),
)
# Integer type, bits of the mantissa, bits of sqrt(1/2), terms of the series.
_FORMS = {
    np.dtype("float64"): (np.int64, 52, 0x3FE6A09E667F3BCD, 9),
    np.dtype("float32"): (np.int32, 23, 0x3F3504F3, 4),
}


def philox(counter: list[jax.Array], key: list[jax.Array]) -> list[jax.Array]:
    """Four random 32-bit words for each counter (four words) and key (two words)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        high0, low0 = _product(_MULTIPLIERS[0], c0)
        high1, low1 = _product(_MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + _STEPS[0], k1 + _STEPS[1]
    return [c0, c1, c2, c3]


def random_words(key_data: jax.Array, n: int, words: int) -> list[jax.Array]:
    """`words` arrays (..., n) of random 32-bit words for keys (..., 2)."""
    key = [key_data[..., None, 0], key_data[..., None, 1]]
    index = jnp.arange(n, dtype=jnp.uint32).reshape((1,) * (key_data.ndim - 1) + (n,))
    found = []
    for block in range(-(-words // 4)):
        zero = jnp.zeros_like(index)
        found += philox([index, zero + np.uint32(block), zero, zero], key)
    return found[:words]


def uniform(words: jax.Array) -> jax.Array:
    """Uniform numbers strictly between 0 and 1, in float32, with 23 random bits."""
    return ((words >> np.uint32(9)).astype(jnp.float32) + np.float32(0.5)) * np.float32(2**-23)


def normal(uniforms: jax.Array) -> jax.Array:
    r"""Standard normal numbers $\sqrt2\, \mathrm{erf}^{-1}(2u - 1)$, in the precision of $u$.

    Giles's two polynomials in $w = -\ln 4u(1-u)$ ("Approximating the erfinv function", 2010), good
    to about 3e-7: a Monte-Carlo sum cannot tell. In float64 arithmetic they come out the same to
    the last few bits however a program is laid out; in float32 they would not.
    """
    w = -fast_log(4 * uniforms * (1 - uniforms))
    centre = _polynomial(_CENTRE, w - 2.5)
    tail = _polynomial(_TAIL, jnp.sqrt(w) - 3)
    return np.sqrt(2.0).astype(uniforms.dtype) * (2 * uniforms - 1) * jnp.where(w < 5, centre, tail)


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


def _polynomial(coefficients: tuple[float, ...], w: jax.Array) -> jax.Array:
    """Horner's rule, highest power first."""
    total = jnp.full_like(w, coefficients[0])
    for coefficient in coefficients[1:]:
        total = total * w + coefficient
    return total


def _product(a: np.uint32, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """High and low half of a 64-bit product, from halves: 64-bit integers may be switched off."""
    half, mask = np.uint32(16), np.uint32(0xFFFF)
    a_high, a_low = a >> half, a & mask
    b_high, b_low = b >> half, b & mask
    low = a_low * b_low
    middle = a_high * b_low + (low >> half)
    cross = a_low * b_high + (middle & mask)
    return a_high * b_high + (middle >> half) + (cross >> half), a * b


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
