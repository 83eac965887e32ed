"""Eq. (3): squared Euclidean distance of parameters after the best matching of components."""

from __future__ import annotations

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Float

from fedmixtures import _checks
from fedmixtures._types import Array, PerNode, PerSlot, SlotKeys
from fedmixtures.discrepancy.base import AbstractDiscrepancy
from fedmixtures.discrepancy.matching import WRITTEN_OUT, best_matching, best_matchings
from fedmixtures.mixture.linear import UNROLLED, on_gpu
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.trial import passes


class Centre(eqx.Module):
    r"""Weighted mean $\bar\theta = \theta_0 + \delta$ of the matched neighbours of every node."""

    origin: Mixture
    r"""$\theta_0$, some mixture nearby: means may be far from zero."""
    offset: Mixture
    total: PerNode
    """Sum of the weights."""
    scatter: PerNode
    r"""$\sum_j w_j \|P_j\theta_j - \bar\theta\|^2$, blocks weighed."""


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
        del key  # nothing random here
        return neighbour.relabel(best_matching(self.pairwise(own, neighbour)))

    def freeze_slots(self, own: Mixture, neighbours: Mixture, keys: SlotKeys) -> Any:
        """`freeze` for a whole block: all costs, then all matchings, with the pairs last."""
        if own.n_features > UNROLLED:
            return super().freeze_slots(own, neighbours, keys)
        if on_gpu() and own.n_components <= WRITTEN_OUT:
            from fedmixtures.discrepancy.euclidean_gpu import Unmatched, trial

            if passes(trial, own.n_components, own.n_features, own.means.dtype):
                return Unmatched(own, neighbours)  # matched when `weigh` knows the weights
        return self.matched(own, neighbours)

    def matched(self, own: Mixture, neighbours: Mixture) -> Mixture:
        """The neighbours of every slot with their components in the order of the node's own."""
        nodes, slots, k = neighbours.weights.shape
        cost = 0.0
        mine, theirs = self._fields(own), self._fields(neighbours)
        for (scale, a), (_, b) in zip(mine, theirs, strict=True):
            a, b = jnp.moveaxis(a, 0, -1), jnp.moveaxis(b, (0, 1), (-1, -2))  # slots, then nodes
            cost = cost + scale * jnp.square(a[:, None, None, :] - b[None])
        pairs_last = jnp.reshape(cost, (k, k, slots * nodes))
        match = best_matchings(pairs_last).reshape(k, slots, nodes)
        order = jnp.transpose(match, (2, 1, 0))
        pick = lambda part: jnp.take_along_axis(
            part, order.reshape(*order.shape, *(1,) * (part.ndim - 3)), axis=2
        )
        return Mixture(*(pick(jnp.asarray(part)) for part in neighbours.parts))

    def weigh(self, frozen: Any, weight: PerSlot) -> Any:
        """The neighbours averaged, once for all local steps of a round."""
        if isinstance(frozen, Centre):
            return frozen
        if not isinstance(frozen, Mixture):
            from fedmixtures.discrepancy.euclidean_gpu import centre_gpu

            return centre_gpu(frozen, weight, self.block_weights)
        total = weight.sum(-1)
        share = weight / jnp.where(total > 0, total, 1.0)[:, None]
        like = lambda values, part: values.reshape(*values.shape, *[1] * (part.ndim - 2))
        origin = jax.tree.map(lambda part: jnp.asarray(part)[:, 0], frozen)
        scatter, offset = jnp.zeros_like(total), []
        for block, theirs, first in zip(
            self.block_weights, frozen.parts, origin.parts, strict=True
        ):
            theirs = theirs - first[:, None]
            offset.append((like(share, theirs) * theirs).sum(1))
            squares = jnp.square(theirs - offset[-1][:, None])
            scatter += block * (weight * squares.reshape(*weight.shape, -1).sum(-1)).sum(-1)
        return Centre(origin, Mixture(*offset), total, scatter)

    def _fields(self, mixture: Mixture) -> list[tuple[Any, Any]]:
        """The parameters one by one, (..., k) each, and how much their squares weigh in eq. (3)."""
        in_weights, in_means, in_covariances = self.block_weights
        d = mixture.n_features
        fields = [(in_weights, mixture.weights)]
        fields += [(in_means, mixture.means[..., i]) for i in range(d)]
        for i in range(d):
            fields += [(in_covariances, mixture.covariances[..., i, j]) for j in range(d)]
        return fields

    def __call__(self, own, frozen):
        """Eq. (3) at the frozen matching."""
        squares = [jnp.square(a - b).sum() for a, b in zip(own.parts, frozen.parts, strict=True)]
        return self._weighted(squares)

    def pull(self, own: Mixture, frozen: Any, weight: PerSlot) -> tuple[PerNode, Mixture]:
        r"""Closed form around the weighted mean of the matched neighbours, block by block.

        With $W = \sum_j w_j$ and $\bar\theta = \sum_j w_j P_j\theta_j / W$:
        $\sum_j w_j \|\theta - P_j\theta_j\|^2 = W \|\theta - \bar\theta\|^2 + \sum_j w_j
        \|P_j\theta_j - \bar\theta\|^2$, whose last term and $\bar\theta$ stay the same for a round.
        """
        centre = self.weigh(frozen, weight)
        value, gradient = centre.scatter, []
        parts = zip(own.parts, centre.origin.parts, centre.offset.parts, strict=True)
        for block, (mine, origin, offset) in zip(self.block_weights, parts, strict=True):
            difference = (mine - origin) - offset
            total = centre.total.reshape(-1, *[1] * (mine.ndim - 1))
            gradient.append(2 * block * total * difference)
            value = value + 0.5 * (gradient[-1] * difference).reshape(len(mine), -1).sum(-1)
        return value, Mixture(*gradient)

    def pairwise(self, own: Mixture, neighbour: Mixture) -> Float[Array, "k k"]:
        """Squared distance of every component of ours to every component of the neighbour's."""
        squares = [
            jnp.square(a[:, None] - b[None, :]).reshape(len(a), len(b), -1).sum(-1)
            for a, b in zip(own.parts, neighbour.parts, strict=True)
        ]
        return self._weighted(squares)

    def _weighted(self, squares: list[jax.Array]) -> jax.Array:
        weighted = (w * square for w, square in zip(self.block_weights, squares, strict=True))
        return jnp.asarray(sum(weighted))
