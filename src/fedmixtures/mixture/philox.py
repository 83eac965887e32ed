"""A counter-based random generator as plain arithmetic, which vectorises and fuses anywhere.

Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3"
(2011). JAX's own generator runs in a loop on CPU, where it moves its numbers to and from memory.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

ROUNDS = 10
_MULTIPLIERS = np.uint32(0xD2511F53), np.uint32(0xCD9E8D57)
_STEPS = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)


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
    """Even numbers strictly between 0 and 1, in float32, with 23 random bits."""
    return ((words >> np.uint32(9)).astype(jnp.float32) + np.float32(0.5)) * np.float32(2**-23)


def normal(words: jax.Array) -> jax.Array:
    """Standard normal numbers in float32."""
    return np.float32(np.sqrt(2)) * jax.lax.erf_inv(2 * uniform(words) - 1)


def _product(a: np.uint32, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """High and low half of a 64-bit product, from halves: 64-bit integers may be switched off."""
    half, mask = np.uint32(16), np.uint32(0xFFFF)
    a_high, a_low = a >> half, a & mask
    b_high, b_low = b >> half, b & mask
    low = a_low * b_low
    middle = a_high * b_low + (low >> half)
    cross = a_low * b_high + (middle & mask)
    return a_high * b_high + (middle >> half) + (cross >> half), a * b
