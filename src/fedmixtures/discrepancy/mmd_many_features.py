"""The sums behind the MMD gradient where features are too many to be written out one by one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Float

from fedmixtures._types import Array
from fedmixtures.mixture.linear import inverse_by_elimination, inverse_cholesky
from fedmixtures.mixture.mixture import Mixture

CACHED = 20_000
"""Numbers in the matrices that are eliminated together: they, what they become and what is summed
up stay in a core's cache, which is a third faster than with three times as many."""

Sums = tuple[
    Float[Array, "nodes k"],
    Float[Array, "nodes k"],
    Float[Array, "nodes k d"],
    Float[Array, "nodes k d d"],
]


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
