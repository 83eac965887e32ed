"""Eq. (5): squared maximum mean discrepancy in closed form, summed over bandwidths."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Float

from fedmixtures import _checks
from fedmixtures._types import Array, PerSlot, Scalar, SlotKeys
from fedmixtures.discrepancy.base import AbstractDiscrepancy, Coupling
from fedmixtures.kernels import dispatch
from fedmixtures.mixture.linear import inverse_cholesky
from fedmixtures.mixture.mixture import Mixture


class MMD(AbstractDiscrepancy):
    r"""$\sum_\sigma \langle p,p\rangle - 2\langle p,p'\rangle + \langle p',p'\rangle$, eq. (5).

    The kernel is the sum of Gaussian kernels over `bandwidths`, in the units of the features. It is
    bounded: a neighbour far away hardly pulls, which makes this coupling robust to wrong edges.
    """

    bandwidths: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)

    def __check_init__(self):
        if len(self.bandwidths) == 0:
            raise ValueError("`bandwidths` is empty. Give at least one positive number.")
        for bandwidth in self.bandwidths:
            if isinstance(bandwidth, (int, float)):
                _checks.positive("bandwidths", bandwidth)

    def digest(self, mixture):
        r"""The mixture and its own $\langle p', p'\rangle$."""
        return mixture, self.inner(mixture, mixture)

    def freeze(self, own, neighbour, key):
        """Nothing random and nothing to match: the digest itself."""
        del own, key
        return neighbour

    def __call__(self, own, frozen):
        """Squared MMD."""
        neighbour, constant = frozen
        return self.inner(own, own) - 2 * self.inner(own, neighbour) + constant

    def inner(self, p: Mixture, q: Mixture) -> Scalar:
        r"""$\langle p, q\rangle_k$: eq. (5) over component pairs and bandwidths."""
        difference = p.means[:, None, :] - q.means[None, :, :]
        sums = p.covariances[:, None] + q.covariances[None, :]
        kernels = sum(expected_kernel(difference, sums, sigma) for sigma in self.bandwidths)
        return jnp.einsum("c,e,ce->", p.weights, q.weights, kernels)

    def couple(self, own: Mixture, neighbours: Any, keys: SlotKeys, weight: PerSlot) -> Coupling:
        """The components of all neighbours as atoms of one sum."""
        del keys
        mixtures, constants = neighbours
        return dispatch.paired_atoms(own, mixtures, constants, weight, self.bandwidths)


def expected_kernel(
    difference: Float[Array, "*pairs d"], covariances: Float[Array, "*pairs d d"], sigma
) -> Float[Array, "*pairs"]:
    r"""Eq. (5): $\sigma^d |S|^{-1/2} \exp(-\frac12 \Delta^\top S^{-1} \Delta)$.

    `difference` is $\Delta = \mu - \mu'$ and `covariances` $\Sigma + \Sigma'$, to which
    $\sigma^2 I$ is added to give S.
    """
    d = difference.shape[-1]
    eye = jnp.eye(d, dtype=difference.dtype).reshape((1,) * (covariances.ndim - 2) + (d, d))
    inverse, log_determinant = inverse_cholesky(covariances + sigma**2 * eye)
    white = jnp.einsum("...ij,...j->...i", inverse, difference)
    return jnp.exp(d * jnp.log(sigma) - 0.5 * (log_determinant + jnp.square(white).sum(-1)))
