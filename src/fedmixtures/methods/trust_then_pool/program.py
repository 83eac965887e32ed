"""Levels of trust: what a node asks for and does, from top to bottom.

| step | what | sent |
|---|---|---|
| 0 units | centre and scale of all features | two sums |
| 1 own | fits of own rows and of own folds | |
| 2 release | own mixture and number of rows | one message to neighbours |
| 3 everyone | EM of all rows of the connected network | sums |
| 4 personal | everyone's mixture moved to own rows | |
| 5 join | where clusters are wanted: which components are one | a sum, k x k |
| 6 listen | whose release helps with own held-out rows | a bit and labels to each neighbour |
| 7 group | EM of all rows of a community that listens both ways | sums |
| 8 near | own rows with the releases of those listened to | |
| 9 weigh | how much each level counts | sums of a few numbers |
| 10 clusters | read from the level that counts most, or joined of the personal one | |
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from fedmixtures import _checks
from fedmixtures._ties import first_greatest
from fedmixtures._types import Array
from fedmixtures.kernels.arrays import pick, stacked, xp
from fedmixtures.methods.base import Diagnostics, Joined, Levels, Outcome, warn_of_retired
from fedmixtures.methods.protocol import (
    Block,
    Broadcast,
    Connect,
    Groups,
    PerNeighbour,
    Protocol,
    Request,
)
from fedmixtures.methods.trust_then_pool.join import join
from fedmixtures.methods.trust_then_pool.listen import both_ways, gains, inside
from fedmixtures.methods.trust_then_pool.nodes import Nodes, Units, by_node, common_units
from fedmixtures.methods.trust_then_pool.own import Level, Received, own_level, released
from fedmixtures.methods.trust_then_pool.personal import (
    Known,
    by_oneself,
    near_level,
    personal_level,
)
from fedmixtures.methods.trust_then_pool.pool import pooled_level, pooled_level_of_groups
from fedmixtures.methods.trust_then_pool.weigh import (
    LOWEST,
    at_home,
    evidence,
    prequential,
    weights,
)
from fedmixtures.mixture.m_step import ShapePrior

LEVELS = ("own", "near", "personal", "group", "everyone")
RETIRED = ("caution", "level", "prior_odds", "agree_rounds")


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
    n_starts, n_folds
        k-means++ starts of every own fit; folds of the out-of-fold densities.
    held_by
        Rows of the others that hold each component of the personal level in place: the network
        chooses from these by held-out rows.
    strengths
        Multiples of the prior's strength that pooled levels choose from; the first is one.
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
    caution, level, prior_odds, agree_rounds
        Of an earlier form; without effect.
    """

    supports_missing: ClassVar[bool] = True
    has_levels: ClassVar[bool] = True
    transforms_columns: ClassVar[bool] = True
    standardises: ClassVar[bool] = True

    prior: ShapePrior = ShapePrior()
    reg_covar: float = 1e-3
    n_starts: int = 4
    n_folds: int = 5
    held_by: tuple[float, ...] = (12.0, 48.0)
    strengths: tuple[float, ...] = (1.0, 8.0, 1 / 30, 1 / 800)
    pool_steps: tuple[int, int, int] = (6, 10, 6)
    levels: tuple[str, ...] = LEVELS
    smallest_group: int = 2
    n_clusters: int | str | None = None
    caution: float | None = None
    level: float | None = None
    prior_odds: float | None = None
    agree_rounds: int | None = None

    def __check_init__(self):
        if not isinstance(self.prior, ShapePrior):
            raise ValueError(f"`prior` is {self.prior!r}. Give a ShapePrior.")
        _checks.positive("reg_covar", self.reg_covar)
        _checks.whole("n_starts", self.n_starts)
        _checks.whole("n_folds", self.n_folds, minimum=2)
        for held in self.held_by:
            _checks.positive("held_by", held)
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
        warn_of_retired(self, *RETIRED)

    @property
    def needs_start(self) -> bool:
        """Own fits make their own starts."""
        return False

    def run(self, block: Block) -> Generator[Request, Any, Outcome]:
        """The steps above."""
        nu = float(self.prior.strength)
        strengths = nu * np.array(self.strengths)
        units = yield from common_units(block, self.covariance_type)
        nodes = Nodes(block, units, self.n_folds, self.reg_covar, self.covariance_type)
        own, folds = own_level(nodes, nu, self.n_starts)
        release = Broadcast(released(nodes, own), units.common(block.held).rows)
        received = Received(nodes, (yield release))
        del release

        everybody = np.ones(len(block.receiver), dtype=bool)
        network = self._pooling(nodes, (yield Connect(everybody)))
        pooled = nodes, own, received
        more = strengths, self.pool_steps
        everyone, sums, full = yield from pooled_level(*pooled, network, everybody, *more, 3)
        held = self.held_by, network.label
        personal = yield from personal_level(nodes, own, folds, sums, full, *held)
        joining = None
        if self.n_clusters is not None:
            joining = yield from join(nodes, personal.folds, network.label, self.n_clusters)

        if not {"near", "group"} & set(self.levels):  # nobody needs to know whom to listen to
            found = own, own, personal.level, own, everyone
            ended = self._ended(nodes, units, found, network, np.True_, joining)
            return replace((yield from ended), nodes={"nu": np.asarray(personal.nu)})
        gain = gains(nodes, own, folds, personal, received, nu)
        listens = gain.mean > 0
        returned = yield PerNeighbour(listens)
        both, without = both_ways(listens, gain.without, returned)
        live = yield from inside(block, both, gain.mean)
        near = near_level(nodes, own, folds, received, live, without, nu)
        told = {"gain": gain.mean, "listens": listens, "cut": both, "trusted": live}
        personal, strength = personal.level, personal.nu
        del folds, sums, full, gain, without  # no later step needs them
        groups = self._pooling(nodes, (yield Connect(live)))
        same = groups.size == network.size  # nothing that is not known: no sum is asked for twice
        parts = self._pooling(nodes, groups, same)
        group = yield from pooled_level_of_groups(*pooled, parts, live, *more, 6)
        group = group.where(nodes, same, everyone)

        found = own, near, personal, group, everyone
        ended = self._ended(nodes, units, found, network, groups.size == 1, joining)
        edges = {name: np.asarray(of) for name, of in told.items()}
        edges["cut"] = edges["cut"] & ~edges["trusted"]
        return replace(
            (yield from ended),
            nodes={"group": groups.label, "size": groups.size, "nu": np.asarray(strength)},
            edges=edges,
        )

    def _ended(
        self,
        nodes: Nodes,
        units: Units,
        found: tuple[Level, ...],
        network: Groups,
        alone: np.ndarray | np.bool_,
        joining: Joined | None,
    ) -> Generator[Request, Any, Outcome]:
        """Steps 9 and 10."""
        density = self._judged(nodes, found, alone, network.size > 1)
        weight = yield from weights(nodes, density, network.label)
        return self._weighed(nodes, units, found, density, weight, joining)

    def join(
        self, block: Block, levels: Levels, rows: np.ndarray, diagnostics: Diagnostics
    ) -> Outcome:
        """A node that comes later, from what the network has found: see `personal.Known`."""
        nu = diagnostics.nodes.get("nu", np.full(len(rows), self.prior.strength))
        known = Known(levels, rows, nu, self.covariance_type)
        nodes = Nodes(block, known.units, self.n_folds, self.reg_covar, self.covariance_type)
        own, folds = own_level(nodes, float(self.prior.strength), self.n_starts)
        everyone, pooled = known.pooled(nodes)
        moved = personal_level(nodes, own, folds, pooled, pooled, self.held_by, nodes.lone)
        found = own, own, by_oneself(moved).level, own, everyone
        density = self._judged(nodes, found, np.ones(1, bool), np.ones(1, bool))
        weight = at_home(nodes, density, known.weights[None])
        told = {"group": nodes.lone, "size": np.ones(1, np.int64), "nu": pooled.nu}
        return replace(self._weighed(nodes, known.units, found, density, weight), nodes=told)

    def _judged(self, nodes: Nodes, found: tuple[Level, ...], alone, connected) -> list[Any]:
        """By row: out-of-fold densities of each of the levels that are weighed.

        Who lacks a feature must borrow it: levels made at home cannot be judged on it.
        """
        density = [found[LEVELS.index(name)].density for name in self.levels]
        blind = nodes.blind & connected
        if not blind.any():
            return density
        home = {"own": blind, "near": blind, "group": blind & alone}
        return [
            by_node(home[name], nodes.node_of, LOWEST, level) if name in home else level
            for name, level in zip(self.levels, density, strict=True)
        ]

    def _weighed(
        self,
        nodes: Nodes,
        units: Units,
        found: tuple[Level, ...],
        density: list[Array],
        weight: Array,
        joining: Joined | None = None,
    ) -> Outcome:
        """Step 10, and all levels in the user's units."""
        levels = [found[LEVELS.index(name)] for name in self.levels]
        weight = np.asarray(weight)
        clusters = first_greatest(weight)
        if self.n_clusters is not None:
            clusters = np.full(nodes.n, self.levels.index("personal"))
        told = evidence(nodes, density)
        weighed = Levels(
            self.levels,
            units.users(stacked([one.theta for one in levels])),
            weight,
            told - nodes.log_units(units),
            clusters,
            prequential(nodes, told),
        )
        to_cluster = pick(xp.asarray(clusters), [one.clusters for one in levels])
        theta = units.users(to_cluster)
        return Outcome(theta, _message(nodes), levels=weighed, joined=joining)

    def _pooling(self, nodes: Nodes, groups: Groups, but: np.ndarray | bool = False) -> Groups:
        """The groups as far as they pool: members of smaller ones, and others, are each alone."""
        small = (groups.size < self.smallest_group) | but
        return Groups(
            np.where(small, nodes.lone, groups.label),
            np.where(small, 1, groups.size),
            np.where(small, 0, groups.rank),
        )


def _message(nodes: Nodes) -> str:
    if not nodes.capped.any():
        return ""
    few = [nodes.block.data.labels[i] for i in np.flatnonzero(nodes.capped)]
    return f"Fewer distinct rows than components at {_checks.listed(few)}: as many as rows there."
