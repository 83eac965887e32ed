r"""The sums behind the MMD gradient, over all pairs of own components and atoms of a block.

For a pair with $\Delta = \mu_c - \mu_a$, $S = \Sigma_c + \Sigma_a + \sigma^2 I$, $g$ of eq. (5) and
$v = S^{-1}\Delta$: $\partial g/\partial\mu_c = -g v$, $\partial g/\partial\Sigma_c = \frac12 g
(vv^\top - S^{-1})$.
"""

from __future__ import annotations

from functools import reduce

import jax
import jax.numpy as jnp
from jaxtyping import Float

from fedmixtures._types import Array
from fedmixtures.discrepancy.mmd_many_features import Sums, by_elimination, by_factorisation
from fedmixtures.mixture.linear import (
    UNROLLED,
    inverse_cholesky_entries,
    lower_triangle,
    on_gpu,
    sum_of,
    sum_together,
    symmetric,
)
from fedmixtures.mixture.mixture import Mixture

CHUNK, LANES = 32, 8
"""Atoms taken together, and what their number is rounded up to."""


def atom_sums(own: Mixture, atoms: Mixture, factors: Float[Array, "nodes s"], bandwidths) -> Sums:
    r"""Weighted sums over atoms of $g$ (own slot, other slots), $-gv$, $\frac12 g(vv^\top-S^{-1})$.

    `atoms` carries (nodes, slots, k, ...) with the node itself in slot 0; a slot's components weigh
    its factor times their mixture weight. The first two results are the sums of g over slot 0 and
    over all other slots.
    """
    if own.n_features > UNROLLED:
        many = by_factorisation if on_gpu() else by_elimination
        return many(own, atoms, factors, bandwidths)
    return _unrolled(own, atoms, factors, bandwidths)


def _unrolled(own: Mixture, atoms: Mixture, factors, bandwidths) -> Sums:
    """Few features: all written out, and every sum over atoms taken in one loop over them.

    Atoms stand on the last axis, which is the vector axis: own components first, then those of the
    neighbours. Slots in use come first, so the loop over chunks ends at the block's largest degree.
    """
    nodes, slots, k = atoms.weights.shape
    d, n_atoms = own.n_features, slots * k
    size = min(CHUNK, -(-n_atoms // LANES) * LANES)
    # With one chunk alone the compiler would take the work out of the loop and join it with the
    # putting together of its operands, which keeps it from vectors: a second one, never reached.
    n_chunks = max(2, -(-n_atoms // size))

    def chunked(field: Array) -> jax.Array:
        """(chunks, nodes, atoms): each chunk is one piece of memory."""
        padded = jnp.pad(field.reshape(nodes, -1), ((0, 0), (0, n_chunks * size - n_atoms)))
        return jnp.moveaxis(padded.reshape(nodes, n_chunks, size), 1, 0)

    weights = atoms.weights * factors[:, :, None]
    fields = [chunked(field) for field in _fields(atoms, weights)]
    in_use = jnp.where(factors != 0, jnp.arange(1, slots + 1)[None], 1).max()

    def add(i, total):
        is_own = i * size + jnp.arange(size) < k
        chunk = [field[i] for field in fields]
        return jax.tree.map(jnp.add, total, _chunk_sums(own, bandwidths, is_own, chunk))

    nothing = [jnp.zeros_like(own.weights)] * (2 + d + d * (d + 1) // 2)
    own_kernels, kernels, *total = jax.lax.fori_loop(0, (in_use * k - 1) // size + 1, add, nothing)
    triangle = iter(total[d:])
    return (
        own_kernels,
        kernels - own_kernels,
        jnp.stack(total[:d], axis=-1),
        symmetric([[next(triangle) for _ in range(i + 1)] for i in range(d)]),
    )


def _chunk_sums(own: Mixture, bandwidths, is_own, fields: list[jax.Array]) -> list[jax.Array]:
    """Sums over one chunk of atoms, (nodes, k) each; that of g over own atoms alone leads."""
    d = own.n_features
    weight, *atom = [field[:, None, :] for field in fields]
    mine = [field[:, :, None] for field in _fields(own, own.weights)[1:]]
    delta = [a - b for a, b in zip(mine[:d], atom[:d], strict=True)]
    entries = iter(a + b for a, b in zip(mine[d:], atom[d:], strict=True))
    summed = [[next(entries) for _ in range(i + 1)] for i in range(d)]

    def of_width(sigma):
        widened = [[*row[:-1], row[-1] + sigma * sigma] for row in summed]
        return pair_terms(delta, widened, sigma, d)

    added = lambda total, new: [a + b for a, b in zip(total, new, strict=True)]
    terms = reduce(added, map(of_width, bandwidths))
    weighted = [weight * term for term in terms]
    leading = jnp.where(is_own[None, None], weighted[0], 0.0)
    return sum_together([leading, *weighted], axis=2)


def _fields(mixture: Mixture, weights) -> list[Array]:
    """Weights, means and the lower triangle of the covariances: one array (..., k) each."""
    triangle = [entry for row in lower_triangle(mixture.covariances) for entry in row]
    return [weights, *(mixture.means[..., i] for i in range(mixture.n_features)), *triangle]


def pair_terms(delta, summed, sigma, d: int) -> list[jax.Array]:
    r"""$g$, then $-g v_i$, then $\frac12 g (v_i v_j - (S^{-1})_{ij})$ for $j \le i$."""
    g, v, precision = (_two_by_two if d == 2 else _by_entries)(delta, summed, sigma)
    terms = [g, *(-(g * v[i]) for i in range(d))]
    half = 0.5 * g
    terms += [half * (v[i] * v[j] - precision[i][j]) for i in range(d) for j in range(i + 1)]
    return terms


def _two_by_two(delta, summed, sigma):
    r"""$g$, $v$ and $S^{-1}$ with one division, and no difference of large numbers in $g$.

    With $S = (a, c; c, b)$, $D = |S|$ and $t = a\Delta_2 - c\Delta_1$:
    $\Delta^\top S^{-1} \Delta = (D\Delta_1^2 + t^2) / (aD)$.
    """
    (a,), (c, b) = summed
    x, y = delta
    determinant = a * b - c * c
    r = 1.0 / (a * determinant)
    inverse = a * r  # of the determinant
    t = a * y - c * x
    g = (sigma * sigma) * jnp.sqrt(inverse) * jnp.exp(-0.5 * (r * (determinant * (x * x) + t * t)))
    return g, [(b * x - c * y) * inverse, t * inverse], [[b * inverse], [-c * inverse, a * inverse]]


def _by_entries(delta, summed, sigma):
    """The same for any few features, from the inverse Cholesky factor."""
    d = len(delta)
    inverse, _ = inverse_cholesky_entries(summed)
    white = [sum_of(inverse[i][j] * delta[j] for j in range(i + 1)) for i in range(d)]
    v = [sum_of(inverse[i][j] * white[i] for i in range(j, d)) for j in range(d)]
    scale = sigma * inverse[0][0]
    for i in range(1, d):  # factor by factor: the determinant itself could overflow
        scale = scale * (sigma * inverse[i][i])
    g = scale * jnp.exp(-0.5 * sum_of(w * w for w in white))
    precision = [
        [sum_of(inverse[p][i] * inverse[p][j] for p in range(i, d)) for j in range(i + 1)]
        for i in range(d)
    ]
    return g, v, precision
