"""Draw points from one mixture."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Float, Int, Key

from fedmixtures._types import Array
from fedmixtures.mixture.linear import cholesky, cholesky_entries, lower_triangle, sum_of
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.philox import normal, random_words, uniform


def sample_labelled(
    mixture: Mixture, key: Key[Array, ""], n: int
) -> tuple[Float[Array, "n d"], Int[Array, " n"]]:
    """Draw `n` points and the component of each, by inversion of the cumulative weights."""
    key_component, key_noise = jr.split(key)
    dtype = jnp.result_type(mixture.means)
    factor = cholesky(mixture.covariances)
    # The last present component also takes what rounding leaves above the cumulative sum.
    cumulative = jnp.cumsum(jnp.asarray(mixture.weights))
    uniform = jr.uniform(key_component, (n,), dtype) * cumulative[-1]
    component = (uniform[:, None] >= cumulative[None, :-1]).sum(-1)
    noise = jr.normal(key_noise, (n, mixture.n_features), dtype)
    means = jnp.asarray(mixture.means)
    points = means[component] + jnp.einsum("nij,nj->ni", factor[component], noise)
    return points, component


def standard_draws(
    keys: Key[Array, "*batch"], n: int, d: int, dtype
) -> tuple[Float[Array, "*batch n"], list[Float[Array, "*batch n"]]]:
    """Uniform numbers in (0, 1), and standard normal ones for each of `d` features.

    Uniform numbers have 23 bits and are exact in any precision.
    """
    even, *rest = [
        uniform(words).astype(dtype) for words in random_words(jr.key_data(keys), n, 1 + d)
    ]
    return even, [normal(part) for part in rest]


def sample(mixture: Mixture, key: Key[Array, ""], n: int) -> Float[Array, "n d"]:
    """Draw `n` points for a Monte-Carlo sum."""
    dtype = jnp.result_type(mixture.means)
    even, noise = standard_draws(key, n, mixture.n_features, dtype)
    cumulative = jnp.cumsum(jnp.asarray(mixture.weights))
    component = (even[:, None] * cumulative[-1] >= cumulative[None, :-1]).sum(-1)
    noise = jnp.stack(noise, axis=-1)
    factor = cholesky(mixture.covariances)
    means = jnp.asarray(mixture.means)
    return means[component] + jnp.einsum("nij,nj->ni", factor[component], noise)


def sample_slots(mixtures: Mixture, keys: Key[Array, "nodes s"], n: int) -> list[jax.Array]:
    """`sample` for every slot of a block: an array (slots, nodes, n) for each feature.

    One slot after another, first all random numbers, then all points: loops keep what they made,
    where one long expression would be worked out anew for each of its uses.
    """
    k, d = mixtures.n_components, mixtures.n_features
    dtype = jnp.result_type(mixtures.means)
    slots_first = lambda part: jnp.moveaxis(jnp.asarray(part), 1, 0)
    draws = jax.lax.map(
        lambda bits: standard_draws(jr.wrap_key_data(bits), n, d, dtype),
        slots_first(jr.key_data(keys)),
    )
    of = lambda part, c: part[:, c, None]

    def one_slot(args):
        (weights, means, covariances), (even, noise) = args
        cumulative = jnp.cumsum(weights, axis=-1)
        level = even * cumulative[:, -1:]
        factor = cholesky_entries(lower_triangle(covariances))

        def point(i, c):
            shift = sum_of(of(factor[i][j], c) * noise[j] for j in range(i + 1))
            return of(means[..., i], c) + shift

        points = []
        for i in range(d):
            chosen = point(i, 0)
            for c in range(1, k):  # the last one whose share of (0, 1) has begun
                new = point(i, c)
                chosen = jnp.where(level >= of(cumulative, c - 1), new, chosen)
            points.append(chosen)
        return points

    return jax.lax.map(one_slot, (tuple(slots_first(part) for part in mixtures.parts), draws))
