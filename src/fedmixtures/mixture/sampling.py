"""Draw points from one mixture."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Float, Int, Key

from fedmixtures._types import Array
from fedmixtures.mixture.linear import cholesky_entries, lower_triangle, sum_of
from fedmixtures.mixture.mixture import Mixture


def sample_labelled(
    mixture: Mixture, key: Key[Array, ""], n: int
) -> tuple[Float[Array, "n d"], Int[Array, " n"]]:
    """Draw `n` points and the component of each, by inversion of the cumulative weights."""
    key_component, key_noise = jr.split(key)
    dtype = jnp.result_type(mixture.means)
    factor = jnp.linalg.cholesky(mixture.covariances)
    # The last present component also takes what rounding leaves above the cumulative sum.
    cumulative = jnp.cumsum(jnp.asarray(mixture.weights))
    uniform = jr.uniform(key_component, (n,), dtype) * cumulative[-1]
    component = (uniform[:, None] >= cumulative[None, :-1]).sum(-1)
    noise = jr.normal(key_noise, (n, mixture.n_features), dtype)
    means = jnp.asarray(mixture.means)
    points = means[component] + jnp.einsum("nij,nj->ni", factor[component], noise)
    return points, component


def standard_draws(
    key: Key[Array, ""], n: int, d: int
) -> tuple[Float[Array, " n"], Float[Array, "n d"]]:
    """Uniform numbers in (0, 1) and standard normal ones, from a single call of the generator.

    In float32 whatever the precision of the program: random numbers cost more than what is done
    with them, and a Monte-Carlo sum cannot tell.
    """
    open_end = np.nextafter(np.float32(-1), np.float32(0))
    even = jr.uniform(key, (n, d + 1), jnp.float32, minval=open_end, maxval=1.0)
    return 0.5 * even[:, 0] + 0.5, np.float32(np.sqrt(2)) * jax.lax.erf_inv(even[:, 1:])


def sample(mixture: Mixture, key: Key[Array, ""], n: int) -> Float[Array, "n d"]:
    """Draw `n` points for a Monte-Carlo sum."""
    dtype = jnp.result_type(mixture.means)
    uniform, noise = (part.astype(dtype) for part in standard_draws(key, n, mixture.n_features))
    cumulative = jnp.cumsum(jnp.asarray(mixture.weights))
    component = (uniform[:, None] * cumulative[-1] >= cumulative[None, :-1]).sum(-1)
    factor = jnp.linalg.cholesky(mixture.covariances)
    means = jnp.asarray(mixture.means)
    return means[component] + jnp.einsum("nij,nj->ni", factor[component], noise)


def sample_slots(mixtures: Mixture, keys: Key[Array, "nodes s"], n: int) -> list[jax.Array]:
    """`sample` for every slot of a block: an array (nodes, slots, n) for each feature."""
    k, d = mixtures.n_components, mixtures.n_features
    dtype = jnp.result_type(mixtures.means)
    uniform, noise = jax.vmap(jax.vmap(lambda key: standard_draws(key, n, d)))(keys)
    z = [noise[..., i].astype(dtype) for i in range(d)]
    cumulative = jnp.cumsum(jnp.asarray(mixtures.weights), axis=-1)
    uniform = uniform.astype(dtype) * cumulative[..., -1:]
    factor = cholesky_entries(lower_triangle(jnp.asarray(mixtures.covariances)))
    of = lambda part, c: part[..., c, None]
    points = []
    for i in range(d):
        parts = [
            of(mixtures.means[..., i], c) + sum_of(of(factor[i][j], c) * z[j] for j in range(i + 1))
            for c in range(k)
        ]
        chosen = parts[0]
        for c in range(1, k):  # the last one whose share of (0, 1) has begun
            chosen = jnp.where(uniform >= of(cumulative, c - 1), parts[c], chosen)
        points.append(chosen)
    return points
