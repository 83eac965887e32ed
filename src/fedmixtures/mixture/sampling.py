"""Draw points from one mixture."""

from __future__ import annotations

import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Float, Int, Key

from fedmixtures._types import Array
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


def sample(mixture: Mixture, key: Key[Array, ""], n: int) -> Float[Array, "n d"]:
    """Draw `n` points."""
    return sample_labelled(mixture, key, n)[0]
