"""What every discrepancy is: two small methods for one pair, and their sum over a block."""

from __future__ import annotations

import abc
from typing import Any, ClassVar, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Key

from fedmixtures import _checks
from fedmixtures._types import Array, PerNode, PerSlot, Scalar, SlotKeys
from fedmixtures.mixture.arithmetic import double
from fedmixtures.mixture.mixture import Mixture


@runtime_checkable
class Coupling(Protocol):
    """The neighbours of a block's nodes, frozen and weighed for all local steps of a round."""

    def pull(self, own: Mixture) -> tuple[PerNode, Mixture]:
        """Weighted sum of D over the slots of every node, and its gradient in `own`."""
        ...


class AbstractDiscrepancy(eqx.Module):
    """How far a node's mixture is from one neighbour's: the D of eq. (2).

    A new one needs `freeze` and `__call__`, written for one pair; the rest follows by automatic
    differentiation. `couple` may be overridden by a closed form over a whole block, which must
    agree with the derived one (one parametrised test checks all of them).
    """

    symmetric: ClassVar[bool] = True
    """Whether D(p, q) = D(q, p): then the objective counts every edge once."""
    smooth: ClassVar[bool] = True  # whether D is one smooth function, as Proposition 1 assumes
    random: ClassVar[bool] = False  # whether a round's value depends on drawn points
    needs_equal_components: ClassVar[bool] = False

    @abc.abstractmethod
    def freeze(self, own: Mixture, neighbour: Any, key: Key[Array, ""]) -> Any:
        """What a node keeps of one neighbour's digest for one round (Alg. 1, line 3)."""

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
