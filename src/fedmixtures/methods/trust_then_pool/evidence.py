r"""Phase 4: who contradicts the rows of the others.

Node i works out the statistics of its rows under the mixture of each neighbour, $S_i(\theta_j)$,
and sends them to j. Under one and the same mixture, statistics of nodes that draw from one
distribution have one expectation, whether the mixture fits or not. Node j compares each answer with
the sum of its own and those of the neighbours that look like it (the answer itself left out).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtr
from jaxtyping import Bool, Float

from fedmixtures._types import Array, PerSlot, Rows, RowWeights
from fedmixtures.methods.trust_then_pool.moments import Moments, centred, like, moments
from fedmixtures.methods.trust_then_pool.settings import CLEAN
from fedmixtures.mixture.linear import inverse_cholesky
from fedmixtures.mixture.mixture import Mixture

MEANS_FROM, COVARIANCES_FROM = 2.0, 10.0
"""Rows a component needs at both ends to take part in the test."""


def answers(neighbours: Mixture, rows: Rows, counts: RowWeights) -> Moments:
    """Statistics of the own rows under every neighbour's mixture, slot by slot."""
    slots = jax.tree.map(lambda part: jnp.moveaxis(part, 1, 0), neighbours)
    found = jax.lax.map(lambda theta: moments(theta, rows, counts), slots)
    return jax.tree.map(lambda part: jnp.moveaxis(part, 0, 1), found)


def p_value(a: Moments, b: Moments, covariances: Float[Array, "*n k d d"]) -> Float[Array, "*n"]:
    r"""How surprising it would be to see such different statistics from one distribution.

    With $h_c = N_a N_b/(N_a + N_b)$ and $\Sigma_c$ of the mixture both were taken under,
    $\sum_c h_c \Delta_c^\top \Sigma_c^{-1} \Delta_c$ of the component means is about chi-square
    with d degrees of freedom per component, and $\sum_c \frac{h_c}2 \mathrm{tr}(\Sigma_c^{-1}
    E_c)^2$ of the covariances with d(d+1)/2. The smaller of the two tail probabilities, and zero
    where no component has rows at both ends: such nodes share nothing.
    """
    (n_a, mean_a, cov_a), (n_b, mean_b, cov_b) = centred(a), centred(b)
    d = mean_a.shape[-1]
    h = n_a * n_b / (n_a + n_b)
    inverse, _ = inverse_cholesky(covariances)
    white = jnp.einsum("...ij,...j->...i", inverse, mean_a - mean_b)
    apart = jnp.einsum("...ia,...ab,...jb->...ij", inverse, cov_a - cov_b, inverse)
    least = jnp.minimum(n_a, n_b)
    smallest = [jnp.where((least > MEANS_FROM).any(-1), 1.0, 0.0)]
    for term, freedom, enough in (
        (jnp.square(white).sum(-1), d, MEANS_FROM),
        (0.5 * jnp.square(apart).sum((-1, -2)), d * (d + 1) / 2, COVARIANCES_FROM),
    ):
        used = least > enough
        statistic = jnp.where(used, h * term, 0.0).sum(-1)
        degrees = freedom * used.sum(-1).astype(statistic.dtype)
        smallest.append(jnp.where(degrees > 0, chi_square_tail(statistic, degrees), 1.0))
    return jnp.stack(smallest).min(0)


def chi_square_tail(
    statistic: Float[Array, "*n"], degrees: Float[Array, "*n"]
) -> Float[Array, "*n"]:
    r"""Probability of a larger chi-square value, by the cube root of Wilson and Hilferty.

    $(\chi^2/\nu)^{1/3}$ is nearly normal with mean $1 - 2/(9\nu)$ and variance $2/(9\nu)$. Within a
    sixth at 1e-3 from two degrees on, and a fraction of the code of the incomplete gamma function.
    """
    nu = jnp.maximum(degrees, 1.0)
    variance = 2.0 / (9.0 * nu)
    root = jnp.cbrt(statistic / nu)
    return ndtr((1.0 - variance - root) / jnp.sqrt(variance))


def contradictions(
    own: Moments, received: Moments, theta: Mixture, trusted: Bool[Array, "nodes s"]
) -> PerSlot:
    """p-value of every trusted neighbour's answer against all who look like the node itself."""
    slots = trusted.shape[1]
    spread = lambda part: jnp.broadcast_to(part[:, None], (len(part), slots, *part.shape[1:]))
    mine, covariances = jax.tree.map(spread, own), spread(theta.covariances)
    alike = trusted & (p_value(mine, received, covariances) >= CLEAN)
    vouched = jax.tree.map(lambda part: jnp.where(like(alike, part), part, 0.0), received)
    together = jax.tree.map(lambda a, b: a + b.sum(1, keepdims=True) - b, mine, vouched)
    return jnp.where(trusted, p_value(together, received, covariances), 1.0)
