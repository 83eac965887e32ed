"""Nodes that lie to the others: in what they release, in what they add to sums, or in both."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator
from typing import Any

import equinox as eqx
import jax
import numpy as np

from fedmixtures.methods.base import Outcome
from fedmixtures.methods.protocol import (
    Block,
    Broadcast,
    PerNeighbour,
    Release,
    Request,
    Sum,
    requests_of,
)
from fedmixtures.methods.trust_then_pool.program import TrustThenPool
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import Statistics
from reproduction.tasks.situation import LIAR_ROWS

LIES = ("random", "shifted", "late", "nan", "heavy")
SPREAD = 1.0
"""Standard deviation of the means of a random mixture, in common units."""


class Lying(TrustThenPool):
    """The protocol of honest nodes and of liars among them (told apart by their rows).

    Liars listen to everybody. What they hold themselves is as it would be if they did not lie.

    Parameters
    ----------
    lie
        ``"random"``: a random mixture is released, and statistics of rows drawn from it are added.
        ``"shifted"``: the liar's rows are shifted by one standard deviation (by the experiment).
        ``"late"``: an honest release, then sums of rows shifted by one unit. ``"nan"``: an honest
        release, then not a number in every sum. ``"heavy"``: as ``"late"``, of ten times the mass.
    """

    lie: str = eqx.field(static=True, default="shifted")

    def run(self, block: Block) -> Generator[Request, Any, Outcome]:
        """As an honest node runs it; what liars among the block yield is changed on its way."""
        liars = block.data.total_weights() == LIAR_ROWS
        protocol = requests_of(super().run(block))
        said, reply = 0, None
        while True:
            try:
                request = protocol.send(reply)
            except StopIteration as end:
                return end.value
            said += 1
            reply = yield self._told(request, liars, block, after_units=said > 3)

    def _told(
        self, request: Request, liars: np.ndarray, block: Block, after_units: bool
    ) -> Request:
        if isinstance(request, PerNeighbour) and np.asarray(request.message).dtype == bool:
            return PerNeighbour(np.where(liars[block.receiver], True, request.message))
        if isinstance(request, Broadcast) and self.lie == "random":
            return Broadcast(_at(liars, _random(request.message, block), request.message))
        if isinstance(request, Sum) and after_units and self.lie != "shifted":
            here = liars if request.who is None else liars[request.who]
            share = _at(here, self._share(request.share), request.share)
            return dataclasses.replace(request, share=share)
        return request

    def _share(self, share: Any) -> Any:
        if self.lie == "nan":
            return jax.tree.map(lambda part: np.full_like(part, np.nan), share)
        if not isinstance(share, Statistics):
            return share
        moved = shifted(
            share, np.ones(share.first.shape[-1]) * (3.0 if self.lie == "random" else 1.0)
        )
        return jax.tree.map(lambda part: 10.0 * part, moved) if self.lie == "heavy" else moved


def shifted(s: Statistics, by: np.ndarray) -> Statistics:
    """Statistics of the same rows, moved."""
    cross = s.first[..., :, None] * by
    square = s.mass[..., None, None] * by[:, None] * by
    second = s.second + cross + np.swapaxes(cross, -1, -2) + square
    moved = s.first + s.mass[..., None] * by, second
    return eqx.tree_at(lambda sums: (sums.first, sums.second), s, moved)


def _random(release: Release, block: Block) -> Release:
    """A random mixture for each node, from its label."""
    shape = release.theta.means.shape
    draws = np.stack([np.random.default_rng([1, h]).normal(size=shape[1:]) for h in _hashes(block)])
    there = release.theta.weights > 0
    eye = np.broadcast_to(np.eye(shape[-1]) / 4, release.theta.covariances.shape)
    weights = there / there.sum(-1, keepdims=True)
    return Release(Mixture(weights, SPREAD * draws, eye), release.rows)


def _hashes(block: Block) -> list[int]:
    return block.data.label_hashes.tolist()


def _at(liars: np.ndarray, lie: Any, truth: Any) -> Any:
    """The lie at liars, the truth elsewhere."""
    wide = lambda part: liars.reshape(-1, *(1,) * (np.ndim(part) - 1))
    return jax.tree.map(lambda a, b: np.where(wide(b), a, b), lie, truth)
