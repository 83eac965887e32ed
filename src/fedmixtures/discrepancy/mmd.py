"""Eq. (5): squared maximum mean discrepancy in closed form, summed over bandwidths."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Float

from fedmixtures import _checks
from fedmixtures._types import Array, PerNode, PerSlot, Scalar
from fedmixtures.discrepancy.base import AbstractDiscrepancy
from fedmixtures.discrepancy.mmd_kernels import Sums, atom_sums
from fedmixtures.mixture.linear import inverse_cholesky, on_gpu
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.trial import passes


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

    def freeze_slots(self, own, neighbours, keys):
        """As given; on a GPU laid out once for the kernel that all local steps call."""
        if not on_gpu():
            return super().freeze_slots(own, neighbours, keys)
        from fedmixtures.discrepancy.mmd_gpu import MOST_FEATURES, GpuAtoms, trial

        d = own.n_features
        if d > MOST_FEATURES or not passes(trial, own.n_components, d, own.means.dtype):
            return super().freeze_slots(own, neighbours, keys)
        mixtures, constants = neighbours
        return GpuAtoms.of(mixtures), constants

    def weigh(self, frozen, weight):
        """On a GPU with what its kernel needs of the weights, once for all local steps."""
        neighbours, constants = frozen
        if isinstance(neighbours, Mixture) or constants.ndim == 1:
            return frozen
        return neighbours.weighed(weight), (weight * constants).sum(-1)

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

    def pull(self, own: Mixture, frozen, weight: PerSlot) -> tuple[PerNode, Mixture]:
        r"""Closed form: in the gradient all mixtures are weighted atoms in one sum.

        $\sum_j w_j (\langle p,p\rangle - 2\langle p,p_j\rangle)$ differentiates to twice a sum over
        atoms: own components weigh $\sum_j w_j\, \pi_c$, those of neighbour j $-w_j \pi_{jc}$.
        """
        neighbours, constants = frozen
        own_kernels, neighbour_kernels, d_means, d_covariances = self._sums(own, neighbours, weight)
        value = (own.weights * (own_kernels + 2 * neighbour_kernels)).sum(-1)
        scale = own.weights
        gradient = Mixture(
            jnp.where(own.weights > 0, 2 * (own_kernels + neighbour_kernels), 0.0),
            2 * scale[..., None] * d_means,
            2 * scale[..., None, None] * d_covariances,
        )
        if constants.ndim > 1:  # not summed by `weigh`
            constants = (weight * constants).sum(-1)
        return value + constants, gradient

    def _sums(self, own: Mixture, neighbours, weight: PerSlot) -> Sums:
        """Sums over all atoms, by the kernel that fits what `freeze_slots` has laid out."""
        if not isinstance(neighbours, Mixture):
            from fedmixtures.discrepancy.mmd_gpu import atom_sums_gpu

            return atom_sums_gpu(own, neighbours.weighed(weight), self.bandwidths)
        atoms = jax.tree.map(lambda a, b: jnp.concatenate([a[:, None], b], 1), own, neighbours)
        factors = jnp.concatenate([weight.sum(-1)[:, None], -weight], axis=1)
        return atom_sums(own, atoms, factors, self.bandwidths)


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
