"""Levels of trust: what a node asks for and does, from top to bottom.

| step | what | sent |
|---|---|---|
| 0 units | centre and scale of all features | coarse places of rows, two sums |
| 1 own | fits of own rows and of own folds | |
| 2 release | own mixture and number of rows | one message to neighbours |
| 3 everyone | EM of all rows of the connected network | sums |
| 4 personal | everyone's mixture moved to own rows | |
| 5 listen | whose release helps with own held-out rows | a bit and labels to each neighbour |
| 6 group | EM of all rows of a community that listens both ways | sums |
| 7 near | own rows with the releases of those listened to | |
| 8 weigh | how much each level counts | sums of a few numbers |
| 9 clusters | read from the level that counts most | |
|  | or, where asked for, joined of the personal one's components | a sum, k x k |
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from fedmixtures import _checks
from fedmixtures._ties import first_greatest
from fedmixtures._types import Array
from fedmixtures.fits.em import Shrinkage
from fedmixtures.fits.rows import by_node
from fedmixtures.fits.units import Units
from fedmixtures.kernels.arrays import pick, stacked, xp
from fedmixtures.methods.base import Diagnostics, Joined, Levels, Outcome
from fedmixtures.methods.protocol import (
    Block,
    Broadcast,
    Connect,
    Groups,
    PerNeighbour,
    Protocol,
    Release,
    Request,
    Stage,
    Sum,
    Walk,
    Whereabouts,
)
from fedmixtures.methods.trust_then_pool.constants import C
from fedmixtures.methods.trust_then_pool.join import join
from fedmixtures.methods.trust_then_pool.listen import Listened, listening
from fedmixtures.methods.trust_then_pool.newcomers import Known, by_oneself
from fedmixtures.methods.trust_then_pool.nodes import Nodes, common_units
from fedmixtures.methods.trust_then_pool.own import Level, Received, own_level, released
from fedmixtures.methods.trust_then_pool.personal import Personal, near_level, personal_level
from fedmixtures.methods.trust_then_pool.pool import (
    Everyone,
    Pooled,
    Pooling,
    pooled_level,
    pooled_level_of_groups,
)
from fedmixtures.methods.trust_then_pool.weigh import at_home, evidence, prequential, weights
from fedmixtures.mixture.m_step import PseudoData, ShapePrior

LEVELS: tuple[str, ...] = ("own", "near", "personal", "group", "everyone")


class TrustThenPool(Protocol):
    """Every node weighs several densities by how well they predict its own held-out rows.

    Its own; that of its own rows with what trusted neighbours released (*near*); everyone's moved
    to its own rows (*personal*); its group's; everyone's. Pooling is exact EM by sums. No number of
    groups, no labels; rows stay where they are. Cells may be missing (at random): EM is exact then,
    with conditional expectations of what is not there.

    Parameters
    ----------
    prior
        Shape prior of all fits. Pooled levels may choose another strength, by held-out rows.
    reg_covar
        Added to the diagonal of every covariance, in squared standard deviations of the features.
        Pooled levels may choose less, by held-out rows.
    n_starts, n_folds
        k-means++ starts of every own fit; folds of the out-of-fold densities.
    held_by
        Rows of the others that hold each component of the personal level in place: the network
        chooses from these by held-out rows.
    strengths
        Multiples of the prior's strength that pooled levels choose from; the first is one.
    ridges
        Multiples of `reg_covar` that pooled levels choose from afterwards; the first is one. Where
        columns nearly agree, little of it is much more than they differ by.
    pool_steps
        EM steps of a pooled level: from every start, with every strength of the prior from the best
        of them, and with the strength that was chosen.
    levels
        Which densities are weighed.
    smallest_group
        Groups of fewer nodes pool nothing.
    n_clusters
        None: every component of the level that counts most at a node is a cluster. A number, or
        ``"auto"``: components of the personal level, which are the same at all nodes, are joined
        into so many clusters, or as far as rows that the fit has not seen cannot tell them apart.
    """

    supports_missing: ClassVar[bool] = True
    supports_categories: ClassVar[bool] = True
    has_levels: ClassVar[bool] = True
    sends: ClassVar[tuple[type, ...]] = (Whereabouts, Release, PerNeighbour, Connect, Walk, Sum)
    transforms_columns: ClassVar[bool] = True
    standardises: ClassVar[bool] = True
    spreads: ClassVar[bool] = True
    keeps: ClassVar[tuple[type, ...]] = (
        Level,
        Everyone,
        Pooled,
        Personal,
        PseudoData,
        Listened,
        Shrinkage,
    )

    prior: ShapePrior = ShapePrior()
    reg_covar: float = 1e-3
    n_starts: int = 4
    n_folds: int = 5
    held_by: tuple[float, ...] = (12.0, 48.0)
    strengths: tuple[float, ...] = (1.0, 8.0, 1 / 30, 1 / 800)
    ridges: tuple[float, ...] = (1.0, 1 / 30, 1 / 1000)
    pool_steps: tuple[int, int, int] = (6, 10, 6)
    levels: tuple[str, ...] = LEVELS
    smallest_group: int = 2
    n_clusters: int | str | None = None

    def __check_init__(self):
        if not isinstance(self.prior, ShapePrior):
            raise ValueError(f"`prior` is {self.prior!r}. Give a ShapePrior.")
        _checks.positive("reg_covar", self.reg_covar)
        _checks.whole("n_starts", self.n_starts)
        _checks.whole("n_folds", self.n_folds, minimum=2)
        for name in ("held_by", "strengths", "ridges"):
            for number in getattr(self, name):
                _checks.positive(name, number)
        _checks.whole("smallest_group", self.smallest_group, minimum=2)
        steps = self.pool_steps
        if len(steps) != 3 or not all(isinstance(n, int) and n >= 0 for n in steps):
            raise ValueError(f"`pool_steps` is {steps!r}. Give three whole numbers of steps.")
        if not self.levels or not set(self.levels) <= set(LEVELS):
            raise ValueError(f"`levels` is {self.levels!r}. Give some of {', '.join(LEVELS)}.")
        if self.n_clusters is not None:
            if self.n_clusters != "auto":
                _checks.whole("n_clusters", self.n_clusters)
            if "personal" not in self.levels:
                raise ValueError("`n_clusters` joins components of the level personal: add it.")

    @property
    def needs_start(self) -> bool:
        """Own fits make their own starts."""
        return False

    def run(self, block: Block) -> Generator[Request | Stage, Any, Outcome]:
        """The steps above."""
        units = yield from common_units(block, self.covariance_type)
        nodes = Nodes(block, units, self)
        clusters = lambda level: units.users(level.clusters)
        alone = np.bincount(block.receiver, minlength=nodes.n) == 0
        shared = not {"own", "near", "group"} & set(self.levels)  # nobody listens to some alone
        judged = not shared or self.smallest_group > 2 or bool(alone.any())
        own = yield Stage("own", lambda: own_level(nodes, judged), clusters)
        message = Broadcast(released(nodes, own), units.common(block.device_data).rows)
        received = Received(nodes, (yield message))
        del message

        anybody = np.ones(len(block.receiver), dtype=bool)
        network = self._pooling(nodes, (yield Connect(anybody)))
        how = Pooling(nodes.nu * np.array(self.strengths), self._ridges(nodes), self.pool_steps, 3)
        everyone = yield Stage(
            "everyone", lambda: pooled_level(nodes, own, received, network, anybody, how)
        )
        personal = yield Stage(
            "personal",
            lambda: personal_level(nodes, own, everyone, network.label),
            lambda found: clusters(found.level),
        )
        everyone = everyone.level  # what stands behind it is not needed any more
        joining = None
        if self.n_clusters is not None:
            joining = yield from join(nodes, personal.level, network.label, self.n_clusters)
        if not {"near", "group"} & set(self.levels):  # nobody needs to know whom to listen to
            levels = dict(zip(LEVELS, (own, own, personal.level, own, everyone), strict=True))
            ended = self._ended(nodes, units, levels, network, np.True_, joining)
            return replace((yield from ended), nodes=_by_name(personal.shrinkage))

        edges = yield Stage("listen", lambda: listening(block, nodes, own, personal, received))
        near = yield Stage("near", lambda: near_level(nodes, own, received, edges.used))
        shrinkage = personal.shrinkage
        own, personal = own.without_folds(), personal.level.without_folds()
        groups = self._pooling(nodes, (yield Connect(edges.trusted)))
        same = groups.size == network.size  # nothing that is not known: no sum is asked for twice
        parts, how = self._pooling(nodes, groups, same), how._replace(salt=6)
        group = yield Stage(
            "group",
            lambda: pooled_level_of_groups(nodes, own, received, parts, edges.trusted, how),
        )
        group = group.where(nodes, same, everyone)

        levels = dict(zip(LEVELS, (own, near, personal, group, everyone), strict=True))
        ended = self._ended(nodes, units, levels, network, groups.size == 1, joining)
        trusted = np.asarray(edges.trusted)
        return replace(
            (yield from ended),
            nodes={"group": groups.label, "size": groups.size, **_by_name(shrinkage)},
            edges={
                "gain": np.asarray(edges.gain),
                "listens": np.asarray(edges.listens),
                "cut": np.asarray(edges.both) & ~trusted,
                "trusted": trusted,
            },
        )

    def _ended(
        self,
        nodes: Nodes,
        units: Units,
        levels: dict[str, Level],
        network: Groups,
        alone: np.ndarray | np.bool_,
        joining: Joined | None,
    ) -> Generator[Request, Any, Outcome]:
        """Steps 8 and 9."""
        judged = self._judged(nodes, levels, alone, network.size > 1)
        weight = yield from weights(nodes, judged, network.label)
        return replace(self._weighted(nodes, units, levels, judged, weight), joined=joining)

    def join(
        self, block: Block, levels: Levels, rows: np.ndarray, diagnostics: Diagnostics
    ) -> Outcome:
        """A node that comes later, from what the network has found: see `newcomers.Known`."""
        usual = {"nu": self.prior.strength, "reg_covar": self.reg_covar}
        found = {name: diagnostics.nodes.get(name, np.full(1, usual[name])) for name in usual}
        known = Known(levels, rows, Shrinkage(**found), self.covariance_type)
        nodes = Nodes(block, known.units, self)
        own, everyone = own_level(nodes), known.everyone_at(nodes)
        personal = by_oneself(personal_level(nodes, own, everyone, nodes.lone)).level
        found = dict(zip(LEVELS, (own, own, personal, own, everyone.level), strict=True))
        judged = self._judged(nodes, found, np.ones(1, bool), np.ones(1, bool))
        weight = at_home(nodes, judged, known.weights[None])
        alone = {"group": nodes.lone, "size": np.ones(1, np.int64)}
        alone |= _by_name(everyone.pooled.shrinkage)
        return replace(self._weighted(nodes, known.units, found, judged, weight), nodes=alone)

    def _judged(self, nodes: Nodes, levels: dict[str, Level], alone, connected) -> list[Any]:
        """By row: out-of-fold densities of each of the levels that are weighted.

        Who lacks a feature must borrow it: levels made at home cannot be judged on it.
        """
        lacking = nodes.lacks_feature & connected
        at_home = {"own": lacking, "near": lacking, "group": lacking & alone}
        found = {name: levels[name].out_of_fold for name in self.levels}
        if lacking.any():
            for name in at_home.keys() & found.keys():
                found[name] = by_node(at_home[name], nodes.node_of, C.lowest, found[name])
        return list(found.values())

    def _weighted(
        self,
        nodes: Nodes,
        units: Units,
        levels: dict[str, Level],
        judged: list[Array],
        weight: Array,
    ) -> Outcome:
        """Step 9, and all levels in the user's units."""
        found, weight = [levels[name] for name in self.levels], np.asarray(weight)
        clusters, mean = first_greatest(weight), evidence(nodes, judged)
        if self.n_clusters is not None:
            clusters = np.full(nodes.n, self.levels.index("personal"))
        weighted = Levels(
            self.levels,
            units.users(stacked([one.fit for one in found])),
            weight,
            mean - nodes.log_units(units),
            clusters,
            prequential(nodes, mean),
        )
        theta = pick(xp.asarray(clusters), [one.clusters for one in found])
        return Outcome(units.users(theta), _message(nodes), levels=weighted)

    def _ridges(self, nodes: Nodes) -> np.ndarray:
        """What pooled levels may add to covariances, as far as the precision can tell it from 0."""
        each = self.reg_covar * np.array(self.ridges)
        return each[(each > C.least_ridge[nodes.dtype]) | (np.arange(len(each)) == 0)]

    def _pooling(self, nodes: Nodes, groups: Groups, excluded: np.ndarray | bool = False) -> Groups:
        """The groups as far as they pool: members of smaller ones, and others, are each alone."""
        small = (groups.size < self.smallest_group) | excluded
        return Groups(
            np.where(small, nodes.lone, groups.label),
            np.where(small, 1, groups.size),
            np.where(small, 0, groups.rank),
        )


def _by_name(shrinkage: Shrinkage) -> dict[str, np.ndarray]:
    """Prior strength and `reg_covar` of every node, for the diagnostics."""
    return {name: np.asarray(of) for name, of in shrinkage._asdict().items()}


def _message(nodes: Nodes) -> str:
    if not nodes.capped.any():
        return ""
    few = [nodes.block.data.labels[i] for i in np.flatnonzero(nodes.capped)]
    return f"Fewer distinct rows than components at {_checks.listed(few)}: as many as rows there."
