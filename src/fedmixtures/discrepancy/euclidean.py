"""Eq. (3): squared Euclidean distance of parameters after the best matching of components."""

from __future__ import annotations

from typing import Any, ClassVar

import jax.numpy as jnp

from fedmixtures import _checks
from fedmixtures._types import PerSlot, SlotKeys
from fedmixtures.discrepancy.base import AbstractDiscrepancy, Coupling
from fedmixtures.kernels import dispatch
from fedmixtures.kernels.cpu.matching import best_matching, component_distances
from fedmixtures.mixture.mixture import Mixture


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
        cost = component_distances(own, neighbour, self.block_weights)
        return neighbour.relabel(best_matching(cost))

    def __call__(self, own, frozen):
        """Eq. (3) at the frozen matching."""
        squares = [jnp.square(a - b).sum() for a, b in zip(own.parts, frozen.parts, strict=True)]
        return jnp.asarray(sum(w * s for w, s in zip(self.block_weights, squares, strict=True)))

    def couple(self, own: Mixture, neighbours: Any, keys: SlotKeys, weight: PerSlot) -> Coupling:
        """The matched neighbours averaged, once for all local steps of a round."""
        del keys
        return dispatch.matched_mean(own, neighbours, weight, self.block_weights)
