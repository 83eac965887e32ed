r"""The sums behind the MMD gradient, over all pairs of own components and atoms of a block.

For a pair with $\Delta = \mu_c - \mu_a$, $S = \Sigma_c + \Sigma_a + \sigma^2 I$, $g$ of eq. (5) and
$v = S^{-1}\Delta$: $\partial g/\partial\mu_c = -g v$, $\partial g/\partial\Sigma_c = \frac12 g
(vv^\top - S^{-1})$.

A form for each case, in ms for blocks of 1,280 edges between mixtures of 5 components, with 4
bandwidths and 2 features, on one CPU core: written out 0.9 (1.0 without the closed form of two by
two matrices), by elimination 7.7, by factorisation 27, by automatic differentiation of eq. (5) 26.
With 10 components, 10 features and 100 edges: by elimination 19, by factorisation 70. On a GPU
(H200, float64) with 12 features, 5 components and 10,000 edges: by factorisation 33, by elimination
790.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Float

from fedmixtures._types import Array, PerNode, PerSlot
from fedmixtures.kernels import dispatch
from fedmixtures.mixture.linear import (
    UNROLLED,
    inverse_by_elimination,
    inverse_cholesky,
    inverse_cholesky_entries,
    lower_triangle,
    sum_of,
    symmetric,
)
from fedmixtures.mixture.mixture import Mixture

CHUNK, LANES = 32, 8
"""Atoms taken together, and what their number is rounded up to."""
CACHED = 20_000
"""Numbers in the matrices that are eliminated together: they, what they become and what is summed
up stay in a core's cache, which is a third faster than with three times as many."""

Sums = tuple[
    Float[Array, "nodes k"],
    Float[Array, "nodes k"],
    Float[Array, "nodes k d"],
    Float[Array, "nodes k d d"],
]


class Atoms(eqx.Module):
    """The neighbours of every node, as the components that pull it by eq. (5)."""

    neighbours: Mixture
    weight: PerSlot
    constant: PerNode
    """Weighted sum of the neighbours' inner products with themselves."""
    bandwidths: tuple[Any, ...]

    def pull(self, own: Mixture) -> tuple[PerNode, Mixture]:
        """Closed form: sums over all atoms."""
        value, gradient = pull_of_sums(own, self.sums(own))
        return value + self.constant, gradient

    def sums(self, own: Mixture) -> Sums:
        r"""In the gradient all mixtures are weighted atoms in one sum.

        $\sum_j w_j (\langle p,p\rangle - 2\langle p,p_j\rangle)$ differentiates to twice a sum over
        atoms: own components weigh $\sum_j w_j\, \pi_c$, those of neighbour j $-w_j \pi_{jc}$.
        """
        joined = lambda a, b: jnp.concatenate([a[:, None], b], 1)
        atoms = jax.tree.map(joined, own, self.neighbours)
        factors = jnp.concatenate([self.weight.sum(-1)[:, None], -self.weight], axis=1)
        return atom_sums(own, atoms, factors, self.bandwidths)


def pull_of_sums(own: Mixture, sums: Sums) -> tuple[PerNode, Mixture]:
    """Value (but for the neighbours' constant) and gradient from the sums over atoms."""
    own_kernels, neighbour_kernels, d_means, d_covariances = sums
    value = (own.weights * (own_kernels + 2 * neighbour_kernels)).sum(-1)
    gradient = Mixture(
        jnp.where(own.weights > 0, 2 * (own_kernels + neighbour_kernels), 0.0),
        2 * own.weights[..., None] * d_means,
        2 * own.weights[..., None, None] * d_covariances,
    )
    return value, gradient


def atom_sums(own: Mixture, atoms: Mixture, factors: Float[Array, "nodes s"], bandwidths) -> Sums:
    r"""Weighted sums over atoms of $g$ (own slot, other slots), $-gv$, $\frac12 g(vv^\top-S^{-1})$.

    `atoms` carries (nodes, slots, k, ...) with the node itself in slot 0; a slot's components weigh
    its factor times their mixture weight. The first two results are the sums of g over slot 0 and
    over all other slots.
    """
    if own.n_features > UNROLLED:
        return dispatch.pair_sums_of_many_features(own, atoms, factors, bandwidths)
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
    return dispatch.sum_together([leading, *weighted], axis=2)


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
    """The pair sums of any few features, from the inverse Cholesky factor."""
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


def by_elimination(own: Mixture, atoms: Mixture, factors, bandwidths) -> Sums:
    """Many features on a CPU: as many nodes at a time as leave their matrices in the cache.

    Neighbouring nodes of a block have alike numbers of neighbours: little is padded.
    """
    nodes, _, k = atoms.weights.shape
    n_chunks = -(-nodes // max(1, CACHED // (k * own.n_features) ** 2))
    if n_chunks == 1:
        return _all_pairs(own, atoms, factors, bandwidths)
    size = -(-nodes // n_chunks)
    padding = n_chunks * size - nodes  # copies of the last node: all matrices stay invertible
    whole = lambda part: jnp.pad(part, [(0, padding), *[(0, 0)] * (part.ndim - 1)], mode="edge")
    split = lambda part: whole(part).reshape(n_chunks, size, *part.shape[1:])
    chunks = jax.tree.map(split, (own, atoms, factors))
    sums = jax.lax.map(lambda chunk: _all_pairs(*chunk, bandwidths=bandwidths), chunks)
    return jax.tree.map(lambda part: part.reshape(-1, *part.shape[2:])[:nodes], sums)


def _all_pairs(own: Mixture, atoms: Mixture, factors, bandwidths) -> Sums:
    """One slot and bandwidth at a time, all pairs on the last axis.

    Memory never holds more than the pairs of one slot. Slots in use come first, and the loop ends
    there.
    """
    nodes, slots, k = atoms.weights.shape
    d, n_own = own.n_features, nodes * k
    sigmas = jnp.stack([jnp.asarray(s, own.means.dtype) for s in bandwidths])
    last = lambda part: jnp.moveaxis(part.reshape(n_own, *part.shape[2:]), 0, -1)
    means, covariances = last(own.means)[:, None], last(own.covariances)[:, :, None]
    # (slots, ..., atoms, nodes): an own component stands beside every atom of its node
    spread = lambda part: jnp.repeat(jnp.moveaxis(part, (0, 2), (-1, -2)), k, axis=-1)
    weights = spread(atoms.weights * factors[:, :, None])
    atom_means, atom_covariances = spread(atoms.means), spread(atoms.covariances)
    flat = lambda part: part.reshape(*part.shape[:-2], k * n_own)

    def add(i, carry):
        delta = flat(means - atom_means[i])
        summed = flat(covariances + atom_covariances[i])
        weight = flat(weights[i])
        terms = lambda total, sigma: (_added(total, sigma, delta, summed, weight), None)
        total = jax.lax.scan(terms, carry[1], sigmas)[0]
        return jnp.where(i == 0, total[0], carry[0]), total

    in_use = jnp.where(factors != 0, jnp.arange(1, slots + 1)[None], 0).max()
    # Sums of every pair first, over atoms at the end: a sum over an inner axis is no vector loop.
    shapes = ((k * n_own,), (d, k * n_own), (d, d, k * n_own))
    zero = tuple(jnp.zeros(shape, own.means.dtype) for shape in shapes)
    pairs = jax.lax.fori_loop(0, jnp.maximum(in_use, 1), add, (zero[0], zero))
    over_atoms = lambda part: part.reshape(*part.shape[:-1], k, n_own).sum(-2)
    own_kernels, (kernels, d_means, d_covariances) = jax.tree.map(over_atoms, pairs)
    first = lambda part: jnp.moveaxis(part, -1, 0).reshape(nodes, k, *part.shape[:-1])
    return (
        first(own_kernels),
        first(kernels - own_kernels),
        first(-d_means),
        first(0.5 * d_covariances),
    )


def _added(total: tuple, sigma, delta, summed, weight) -> tuple:
    r"""To every pair's sums its weighted $g$, $g v$ and $g (vv^\top - S^{-1})$ of one bandwidth."""
    eye = jnp.eye(len(delta), dtype=delta.dtype)[:, :, None]
    inverse, scale = inverse_by_elimination(summed + sigma**2 * eye, sigma)
    v = (inverse * delta[:, None]).sum(0)  # inverses are symmetric
    g = scale * jnp.exp(-0.5 * (v * delta).sum(0)) * weight
    new = (g, g[None] * v, g[None, None] * (v[:, None] * v[None] - inverse))
    return jax.tree.map(jnp.add, total, new)


def by_factorisation(own: Mixture, atoms: Mixture, factors, bandwidths) -> Sums:
    """Many features: one slot at a time, so that memory never holds all pairs of a block."""
    d = own.n_features
    eye = jnp.eye(d, dtype=own.means.dtype).reshape(1, 1, 1, d, d)
    sigmas = jnp.stack([jnp.asarray(s, own.means.dtype) for s in bandwidths])

    def one_slot(weights, means, covariances, factor):
        delta = own.means[:, :, None, :] - means[:, None, :, :]  # (nodes, k, k', d)
        summed = own.covariances[:, :, None] + covariances[:, None]
        weight = weights * factor[:, None]

        def one_bandwidth(total, sigma):
            inverse, log_determinant = inverse_cholesky(summed + sigma**2 * eye)
            white = jnp.einsum("nceij,ncej->ncei", inverse, delta)
            exponent = log_determinant + jnp.square(white).sum(-1)
            g = jnp.exp(d * jnp.log(sigma) - 0.5 * exponent) * weight[:, None, :]
            v = jnp.einsum("nceij,ncei->ncej", inverse, white)
            outer = jnp.einsum("nce,ncei,ncej->ncij", g, v, v)
            precision = jnp.einsum("ncepi,ncepj->ncij", g[..., None, None] * inverse, inverse)
            new = (g.sum(-1), -jnp.einsum("nce,ncei->nci", g, v), 0.5 * (outer - precision))
            return jax.tree.map(jnp.add, total, new), None

        zero = (own.weights * 0, own.means * 0, own.covariances * 0)
        return jax.lax.scan(one_bandwidth, zero, sigmas)[0]

    slots = jax.tree.map(lambda part: jnp.moveaxis(part, 1, 0), (*atoms.parts, factors))
    own_g, own_mu, own_cov = one_slot(*jax.tree.map(lambda part: part[0], slots))

    def add_slot(i, total):
        return jax.tree.map(jnp.add, total, one_slot(*jax.tree.map(lambda part: part[i], slots)))

    # Slots in use come first, so the loop ends at the block's largest degree.
    in_use = jnp.where(factors != 0, jnp.arange(1, factors.shape[1] + 1)[None], 0).max()
    start = (jnp.zeros_like(own_g), own_mu, own_cov)
    other_g, d_means, d_covariances = jax.lax.fori_loop(1, in_use, add_slot, start)
    return own_g, other_g, d_means, d_covariances
