"""How far two mixtures are: the D of eq. (2), and the paper's three, eqs. (3) to (5)."""

from __future__ import annotations

import abc
from typing import Any, ClassVar, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Float, Key

from fedmixtures import _checks
from fedmixtures._types import Array, PerNode, PerSlot, Scalar, SlotKeys
from fedmixtures.kernels import dispatch
from fedmixtures.kernels.cpu.matching import best_matching, component_distances
from fedmixtures.mixture.arithmetic import double
from fedmixtures.mixture.density import log_density
from fedmixtures.mixture.linear import inverse_cholesky
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import sigma_points
from fedmixtures.mixture.sampling import sample


@runtime_checkable
class Coupling(Protocol):
    """The neighbours of a block's nodes, frozen and weighed for all local steps of a round."""

    def pull(self, own: Mixture) -> tuple[PerNode, Mixture]:
        """Weighted sum of D over the slots of every node, and its gradient in `own`."""
        ...


class AbstractDiscrepancy(eqx.Module):
    """How far a node's mixture is from one neighbour's: the D of eq. (2).

    A new one needs `__call__` and mostly `freeze`, written for one pair; the rest follows by
    automatic differentiation. `couple` may be overridden by a closed form over a whole block, which
    must agree with the derived one (one parametrised test checks all of them).
    """

    symmetric: ClassVar[bool] = True
    """Whether D(p, q) = D(q, p): then the objective counts every edge once."""
    smooth: ClassVar[bool] = True  # whether D is one smooth function, as Proposition 1 assumes
    random: ClassVar[bool] = False  # whether a round's value depends on drawn points
    needs_equal_components: ClassVar[bool] = False

    def freeze(self, own: Mixture, neighbour: Any, key: Key[Array, ""]) -> Any:
        """What a node keeps of one neighbour's digest for a round (Alg. 1, line 3): all of it."""
        return neighbour

    @abc.abstractmethod
    def __call__(self, own: Mixture, frozen: Any) -> Scalar:
        """D, differentiable in `own` alone."""

    def digest(self, mixture: Mixture) -> Any:
        """What follows from a received mixture alone, worked out once for all who receive it."""
        return mixture

    def couple(self, own: Mixture, neighbours: Any, keys: SlotKeys, weight: PerSlot) -> Coupling:
        """`freeze` for every neighbour slot of every node of a block; `neighbours` are digests.

        Slots in use come first; an empty one has weight zero.
        """
        over_slots = jax.vmap(self.freeze, in_axes=(None, 0, 0))
        return DerivedCoupling(self, jax.vmap(over_slots)(own, neighbours, keys), weight)

    def between(self, own: Mixture, neighbour: Mixture, random_state: int | None = None) -> float:
        """The value of D(own, neighbour) for two mixtures, in float64.

        `random_state` seeds the drawn points of a Monte-Carlo discrepancy; None means 0.
        """
        for name, mixture in (("own", own), ("neighbour", neighbour)):
            if mixture.weights.ndim != 1:
                _checks.single_mixture(mixture.weights, f"between({name})")
        if own.n_features != neighbour.n_features:
            raise ValueError(
                f"`own` has {own.n_features} features and `neighbour` {neighbour.n_features}. "
                "Compare mixtures over the same features."
            )
        self.check_components([own.n_components, neighbour.n_components])
        with double():
            own, neighbour = jax.tree.map(jnp.asarray, (own.to_numpy(), neighbour.to_numpy()))
            key = jr.key(0 if random_state is None else random_state)
            return float(_between(self, own, neighbour, key))

    def check_components(self, counts: Any) -> None:
        """Refuse mixtures of different sizes where components are matched one to one."""
        counts = np.unique(np.asarray(counts))
        if self.needs_equal_components and len(counts) > 1:
            raise ValueError(
                f"{type(self).__name__} matches components one to one, but the numbers of "
                f"components differ: {_checks.listed(counts)}. Use one n_components for all nodes, "
                "or KL or MMD, which compare densities."
            )


class DerivedCoupling(eqx.Module):
    """The coupling of any discrepancy, by automatic differentiation."""

    discrepancy: AbstractDiscrepancy
    frozen: Any
    weight: PerSlot

    def pull(self, own: Mixture) -> tuple[PerNode, Mixture]:
        """Weighted sum of D over the slots of every node, and its gradient in `own`."""

        def one_node(own, frozen, weight) -> Scalar:
            return weight @ jax.vmap(self.discrepancy, in_axes=(None, 0))(own, frozen)

        return jax.vmap(jax.value_and_grad(one_node))(own, self.frozen, self.weight)


@eqx.filter_jit
def _between(discrepancy: AbstractDiscrepancy, own: Mixture, neighbour: Mixture, key) -> Scalar:
    return discrepancy(own, discrepancy.freeze(own, discrepancy.digest(neighbour), key))


class Euclidean(AbstractDiscrepancy):
    r"""$\min_P \|\theta - P\theta'\|^2$ over permutations P of the components, eq. (3).

    `block_weights` weighs the squared differences of weights, means and covariances; all ones is
    the paper's distance. Pulls equally hard however far a neighbour is: best when all nodes are
    alike, misled by a single wrong edge.
    """

    smooth: ClassVar[bool] = False  # the matching may change from round to round
    needs_equal_components: ClassVar[bool] = True

    block_weights: tuple[float, float, float] = (1.0, 1.0, 1.0)

    def __check_init__(self):
        if len(self.block_weights) != 3:
            raise ValueError(
                f"`block_weights` is {self.block_weights!r}. Give three numbers: for weights, "
                "means and covariances."
            )
        for block in self.block_weights:
            if isinstance(block, (int, float)):
                _checks.positive("block_weights", block, allow_zero=True)

    def freeze(self, own, neighbour, key):
        """The neighbour with its components in the order of ours."""
        cost = component_distances(own, neighbour, self.block_weights)
        return neighbour.relabel(best_matching(cost))

    def __call__(self, own, frozen):
        """Eq. (3) at the frozen matching."""
        squares = [jnp.square(a - b).sum() for a, b in zip(own.parts, frozen.parts, strict=True)]
        return jnp.asarray(sum(w * s for w, s in zip(self.block_weights, squares, strict=True)))

    def couple(self, own: Mixture, neighbours: Any, keys: SlotKeys, weight: PerSlot) -> Coupling:
        """The matched neighbours averaged, once for all local steps of a round."""
        return dispatch.matched_mean(own, neighbours, weight, self.block_weights)


class KL(AbstractDiscrepancy):
    r"""$\widehat{KL}(p' \| p)$ on `n_samples` points drawn from the neighbour's $p'$, eq. (4).

    Every round draws fresh points for every (node, neighbour). The node so fits its own rows
    together with rows its neighbours imagine. Needs no matching and no equal numbers of components.
    """

    symmetric: ClassVar[bool] = False
    random: ClassVar[bool] = True

    n_samples: int = 50

    def __check_init__(self):
        _checks.whole("n_samples", self.n_samples)

    def freeze(self, own, neighbour, key):
        """Points drawn from the neighbour and their log-density there."""
        points = sample(neighbour, key, self.n_samples)
        return points, log_density(neighbour, points)

    def __call__(self, own, frozen):
        """Eq. (4) on the frozen points."""
        points, log_neighbour = frozen
        return (log_neighbour - log_density(own, points)).mean()

    def couple(self, own: Mixture, neighbours: Any, keys: SlotKeys, weight: PerSlot) -> Coupling:
        """Points of all neighbours, drawn once for all local steps of a round."""
        return dispatch.drawn_points(own, neighbours, keys, weight, self.n_samples)


class UnscentedKL(AbstractDiscrepancy):
    r"""$\widehat{KL}(p' \| p)$ on $2d+1$ sigma points per component of the neighbour's $p'$.

    Deterministic, and worked out once per message. The expectation of a quadratic is exact; that of
    a log-density of a mixture is not, and for mixtures that overlap the value can even be slightly
    negative. The gradient is that of fitting the neighbour's points.
    """

    symmetric: ClassVar[bool] = False

    def digest(self, mixture):
        """The neighbour's points, their weights, and their log-density there."""
        points, weights = sigma_points(mixture)
        points = points.reshape(-1, mixture.n_features)
        return points, weights.reshape(-1), log_density(mixture, points)

    def __call__(self, own, frozen):
        """Weighted mean of the log-density ratio."""
        points, weights, log_neighbour = frozen
        # Points of absent components weigh nothing, wherever they are.
        ratio = jnp.where(weights > 0, log_neighbour - log_density(own, points), 0.0)
        return weights @ ratio

    def couple(self, own: Mixture, neighbours: Any, keys: SlotKeys, weight: PerSlot) -> Coupling:
        """The neighbours' points as rows of the node."""
        points, weights, log_neighbour = neighbours
        constants = jnp.where(weights > 0, log_neighbour, 0.0)
        return dispatch.weighted_points(points, weights, constants, weight)


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
