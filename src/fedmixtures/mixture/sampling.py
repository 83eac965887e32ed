"""Draw points from one mixture."""

from __future__ import annotations

import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Float, Int, Key

from fedmixtures._types import Array
from fedmixtures.mixture.arithmetic import normal, random_words, uniform
from fedmixtures.mixture.linear import cholesky
from fedmixtures.mixture.mixture import Mixture


def sample_labelled(
    mixture: Mixture, key: Key[Array, ""], n: int
) -> tuple[Float[Array, "n d"], Int[Array, " n"]]:
    """Draw `n` points and the component of each, with JAX's own generator."""
    key_component, key_noise = jr.split(key)
    dtype = jnp.result_type(mixture.means)
    uniforms = jr.uniform(key_component, (n,), dtype)
    noise = jr.normal(key_noise, (n, mixture.n_features), dtype)
    return points_of(mixture, uniforms, noise)


def sample(mixture: Mixture, key: Key[Array, ""], n: int) -> Float[Array, "n d"]:
    """Draw `n` points for a Monte-Carlo sum, with the generator that kernels can write out."""
    uniforms, noise = standard_draws(key, n, mixture.n_features, jnp.result_type(mixture.means))
    return points_of(mixture, uniforms, jnp.stack(noise, axis=-1))[0]


def points_of(
    mixture: Mixture, uniforms: Float[Array, " n"], noise: Float[Array, "n d"]
) -> tuple[Float[Array, "n d"], Int[Array, " n"]]:
    """Points and their components, by inversion of the cumulative weights.

    The last present component also takes what rounding leaves above the cumulative sum.
    """
    cumulative = jnp.cumsum(jnp.asarray(mixture.weights))
    component = (uniforms[:, None] * cumulative[-1] >= cumulative[None, :-1]).sum(-1)
    factor, means = cholesky(mixture.covariances), jnp.asarray(mixture.means)
    return means[component] + jnp.einsum("nij,nj->ni", factor[component], noise), component


def standard_draws(
    keys: Key[Array, "*batch"], n: int, d: int, dtype
) -> tuple[Float[Array, "*batch n"], list[Float[Array, "*batch n"]]]:
    """Uniform numbers in (0, 1), and standard normal ones for each of `d` features.

    Uniform numbers have 23 bits and are exact in any precision.
    """
    uniforms, *rest = [
        uniform(words).astype(dtype) for words in random_words(jr.key_data(keys), n, 1 + d)
    ]
    return uniforms, [normal(part) for part in rest]
