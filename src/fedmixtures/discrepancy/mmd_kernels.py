r"""The sums behind the MMD gradient, over all pairs of own components and atoms of a block.

For a pair with $\Delta = \mu_c - \mu_a$, $S = \Sigma_c + \Sigma_a + \sigma^2 I$, $g$ of eq. (5) and
$v = S^{-1}\Delta$: $\partial g/\partial\mu_c = -g v$, $\partial g/\partial\Sigma_c = \frac12 g
(vv^\top - S^{-1})$.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Float

from fedmixtures._types import Array
from fedmixtures.mixture.linear import (
    UNROLLED,
    inverse_cholesky,
    inverse_cholesky_entries,
    lower_triangle,
    on_gpu,
    sum_of,
    sum_together,
    symmetric,
)
from fedmixtures.mixture.mixture import Mixture

Sums = tuple[
    Float[Array, "nodes k"],
    Float[Array, "nodes k"],
    Float[Array, "nodes k d"],
    Float[Array, "nodes k d d"],
]


def atom_sums(own: Mixture, atoms: Mixture, factors: Float[Array, "nodes s"], bandwidths) -> Sums:
    r"""Weighted sums over atoms of $g$ (own slot, other slots), $-gv$, $\frac12 g(vv^\top-S^{-1})$.

    `atoms` carries (nodes, slots, k, ...) with the node itself in slot 0; a slot's components weigh
    its factor times their mixture weight. The first two results are the sums of g over slot 0 and
    over all other slots.
    """
    if own.n_features > UNROLLED:
        return _by_factorisation(own, atoms, factors, bandwidths)
    if on_gpu():
        from fedmixtures.discrepancy.mmd_gpu import atom_sums_gpu

        return atom_sums_gpu(own, atoms, factors, bandwidths)
    return _unrolled(own, atoms, factors, bandwidths)


def _unrolled(own: Mixture, atoms: Mixture, factors, bandwidths) -> Sums:
    """Few features: entry by entry, bandwidths reduced in one loop, node axis last.

    The loop runs over the atoms' components; own components, slots and nodes are the vector.
    """
    d = own.n_features
    sigma = jnp.stack([jnp.asarray(s, own.means.dtype) for s in bandwidths])
    sigma = sigma.reshape(-1, 1, 1, 1)
    spread = lambda part: part.T[:, None, :]  # (k, 1, nodes)
    mu = [spread(own.means[:, :, i]) for i in range(d)]
    cov = [[spread(e) for e in row] for row in lower_triangle(own.covariances)]
    # atoms' components lead, to be scanned over: (k, 1, slots, nodes)
    lead = lambda part: jnp.transpose(part, (2, 1, 0))[:, None]
    scanned = (
        lead(atoms.weights * factors[:, :, None]),
        [lead(atoms.means[..., i]) for i in range(d)],
        [[lead(e) for e in row] for row in lower_triangle(atoms.covariances)],
    )

    def one_component(total, atom):
        weight, atom_mu, atom_cov = atom
        delta = [(mu[i] - atom_mu[i])[None] for i in range(d)]
        summed = [[(cov[i][j] + atom_cov[i][j])[None] for j in range(i + 1)] for i in range(d)]
        for i in range(d):
            summed[i][i] = summed[i][i] + sigma * sigma
        terms = pair_terms(delta, summed, sigma, d)
        weighted = [weight * term for term in sum_together(terms, axis=0)]
        return [a + b for a, b in zip(total, weighted, strict=True)], None

    shape = jnp.broadcast_shapes(mu[0].shape, scanned[0].shape[1:])
    start = [jnp.zeros(shape, own.means.dtype) for _ in range(1 + d + d * (d + 1) // 2)]
    total, _ = jax.lax.scan(one_component, start, scanned)  # each (k, slots, nodes)
    rest = [part.sum(1).T for part in total[1:]]
    triangle = iter(rest[d:])
    return (
        total[0][:, 0].T,
        total[0][:, 1:].sum(1).T,
        jnp.stack(rest[:d], axis=-1),
        symmetric([[next(triangle) for _ in range(i + 1)] for i in range(d)]),
    )


def pair_terms(delta, summed, sigma, d: int) -> list[jax.Array]:
    r"""$g$, then $-g v_i$, then $\frac12 g (v_i v_j - (S^{-1})_{ij})$ for $j \le i$."""
    inverse, log_determinant = inverse_cholesky_entries(summed)
    white = [sum_of(inverse[i][j] * delta[j] for j in range(i + 1)) for i in range(d)]
    v = [sum_of(inverse[i][j] * white[i] for i in range(j, d)) for j in range(d)]
    exponent = sum_of(w * w for w in white) + log_determinant
    g = jnp.exp(d * jnp.log(sigma) - 0.5 * exponent)
    precision = [
        [sum_of(inverse[p][i] * inverse[p][j] for p in range(i, d)) for j in range(i + 1)]
        for i in range(d)
    ]
    terms = [g, *(-(g * v[i]) for i in range(d))]
    half = 0.5 * g
    terms += [half * (v[i] * v[j] - precision[i][j]) for i in range(d) for j in range(i + 1)]
    return terms


def _by_factorisation(own: Mixture, atoms: Mixture, factors, bandwidths) -> Sums:
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
            precision = jnp.einsum("nce,ncepi,ncepj->ncij", g, inverse, inverse)
            new = (g.sum(-1), -jnp.einsum("nce,ncei->nci", g, v), 0.5 * (outer - precision))
            return jax.tree.map(jnp.add, total, new), None

        zero = (own.weights * 0, own.means * 0, own.covariances * 0)
        return jax.lax.scan(one_bandwidth, zero, sigmas)[0]

    slots = jax.tree.map(lambda part: jnp.moveaxis(part, 1, 0), (*atoms.parts, factors))
    own_g, own_mu, own_cov = one_slot(*jax.tree.map(lambda part: part[0], slots))

    def add_slot(total, slot):
        return jax.tree.map(jnp.add, total, one_slot(*slot)), None

    start = (jnp.zeros_like(own_g), own_mu, own_cov)
    others = jax.tree.map(lambda part: part[1:], slots)
    (other_g, d_means, d_covariances), _ = jax.lax.scan(add_slot, start, others)
    return own_g, other_g, d_means, d_covariances
