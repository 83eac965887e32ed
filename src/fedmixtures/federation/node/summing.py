"""Sums over sites, as exchanges: every member gets every masked share and adds up by itself.

Nobody announces a total, so nobody can forge one, and who sends different shares to different
members is found out at the next sum. Every sum takes two exchanges: all commit to their shares, and
only then all show them, so that nobody chooses after seeing. Sums of statistics are two sums:
masses, then moments of the components that enough rows stand behind.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from fedmixtures.federation.masked_sums import (
    SMALLEST_GROUP,
    OpenedSets,
    SumName,
    SumRefused,
    commitment,
    total,
)
from fedmixtures.federation.node.gate import Gate
from fedmixtures.federation.node.own_rows import protected
from fedmixtures.federation.wire.message import (
    MaskedShare,
    Message,
    ModelRefused,
    decode_digest,
    decode_share,
)
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import Statistics, project_psd

MIXTURES_IN_A_SUM = 4
"""A sum of statistics under more of them counts as several."""


@dataclass(frozen=True)
class SumShare:
    """A site's own part of a sum, as it is at home; it leaves rounded and under masks."""

    values: np.ndarray
    """Flat, float64."""
    coarseness: np.ndarray
    """Standard error of each number with one row behind it."""
    members: frozenset[str]
    cost: int
    """How many sums this exchange counts for in the budget."""
    seen: str
    draws: np.ndarray | None = None
    """Which of its secret draws each number is rounded by; None: each by one of its own."""


@dataclass(frozen=True)
class NoisyShare:
    """A site's own part of a private sum; it leaves with noise and under masks."""

    values: np.ndarray
    """Flat, float64; replacing one person moves it by at most the sensitivity of `PrivatePool`."""
    members: frozenset[str]
    seen: str


@dataclass(frozen=True)
class Promise:
    """That a share will be shown; a digest of it leaves, as it will be under its masks."""

    share: SumShare | NoisyShare


@dataclass
class Exchange:
    """What the node says next, whom it waits for, and how their messages are read."""

    messages: Mapping[str, object]
    decode: Callable[[bytes], Any]
    members: frozenset[str] | None = None
    """Of a sum over rows."""
    check: Callable[[str, Any], None] = lambda source, found: None
    """Refuses what a member says, once it is read, in view of what that member said before."""
    released: dict[str, Message] = field(default_factory=dict)
    """The messages as they left, once they have passed the gate."""


Exchanges = Generator[Exchange, dict[str, Any], Any]


class Summing:
    """What a site remembers of the sums of one protocol, and how it takes part in them."""

    def __init__(self, site: str, gate: Gate, covariance_type: str):
        self.site, self.gate, self.covariance_type = site, gate, covariance_type
        self.shared: list[frozenset[str]] = []
        """Members of the sums over rows that this site has sent a share of."""
        self.begun = hashlib.sha256(b"").hexdigest()
        """Digest of what all have told of their rows."""
        self.seen: dict[frozenset[str], str] = {}
        self.mass_of: dict[frozenset[str], float] = {}
        self.name: Callable[[frozenset[str]], SumName] | None = None
        """Which sum is being shown just now; set by the session."""
        self.together: Callable[[Mixture], np.ndarray] | None = None
        """Where cells may be missing: own rows that have both of any two columns, behind mixtures
        (mixtures, components, pairs); set by the session."""

    def begin(self, told: Mapping[str, Any]) -> None:
        """Sums are of sites that have heard the same of all: who has not is found out there."""
        plain = json.dumps(told, sort_keys=True)
        self.begun = hashlib.sha256(b"fedmixtures places v1" + plain.encode()).hexdigest()

    def total(self, share: Any, members: frozenset[str], spread: Any) -> Exchanges:
        """The total of a share (a tree of arrays) over the members."""
        if isinstance(share, Statistics):
            return (yield from self._statistics(share, spread, members))
        leaves, structure = jax.tree.flatten(share)
        values = _flat(share)
        widths = np.full_like(values, spread) if isinstance(spread, float) else _flat(spread)
        # What is made of releases is as coarse as they left, and tells nothing new.
        cost = 1 if widths.any() else 0
        made = lambda seen: SumShare(values, widths, members, cost, seen)
        added = yield from self._added(made, members, of_rows=cost > 0)
        parts = np.split(added, np.cumsum([np.size(leaf) for leaf in leaves])[:-1])
        shaped = [p.reshape(np.shape(leaf)) for p, leaf in zip(parts, leaves, strict=True)]
        return jax.tree.unflatten(structure, shaped)

    def _statistics(self, own: Statistics, theta: Mixture, members: frozenset[str]) -> Exchanges:
        """Masses first; moments only of components that enough rows of all members stand behind.

        The others keep their mean and covariance. Moments are summed in units in which the
        component is round, so that rounding is as fine in a narrow direction, by its own standard
        error, as in a wide one. A total that cannot be one comes back as NaN, which changes nothing
        at anybody's.
        """
        pairs = None if self.together is None else self.together(theta.at(0))
        own = protected(own, theta, self.gate.own_count(own.first.shape[-1]), pairs)
        mass = np.asarray(own.mass, np.float64)
        factor = np.linalg.cholesky(np.asarray(theta.covariances, np.float64))
        first, second = _in_units(np.linalg.inv(factor), own.first, own.second)
        _, times, k, d = first.shape
        cost = -(-times // MIXTURES_IN_A_SUM)
        counts = mass[0, ..., None]
        if pairs is not None:
            counts = np.concatenate([counts, pairs], axis=-1)
        # Equal counts of a component leave as equal numbers: several would be finer than one.
        draws = np.repeat(np.arange(times * k), counts.shape[-1])
        masses = np.ravel(counts)
        added = yield from self._added(
            lambda seen: SumShare(masses, np.ones_like(masses), members, cost, seen, draws), members
        )
        added = added.reshape(1, *counts.shape)
        mass_total = added[..., 0]
        # Behind every number that is opened; columns that nobody has both of carry none.
        least = np.where(added > 0, added, np.inf).min(-1)
        enough = np.minimum(mass_total, least) >= self.gate.threshold(d)
        # Spread of the own rows in each component; of too few rows, that of the component.
        spread = np.diagonal(second, axis1=-2, axis2=-1) / np.maximum(mass, 1.0)[..., None]
        spread = np.sqrt(np.where(mass[..., None] >= 1.0, np.maximum(spread, 1e-6), 1.0))
        apart = self.covariance_type in ("diag", "spherical")
        upper = np.diag_indices(d) if apart else np.triu_indices(d)
        heavy = np.concatenate([first, second[..., upper[0], upper[1]]], axis=-1)
        # Of a square the variance is twice that of a product.
        squares = spread[..., upper[0]] * spread[..., upper[1]]
        squares = np.where(upper[0] == upper[1], np.sqrt(2), 1.0) * squares
        widths = np.concatenate([spread, squares], axis=-1)
        heavy = np.where(enough[..., None], heavy, 0.0)
        widths = np.where(enough[..., None], widths, 0.0)
        added = yield from self._added(
            lambda seen: SumShare(np.ravel(heavy), np.ravel(widths), members, 0, seen), members
        )
        added = added.reshape(heavy.shape)
        whole = np.zeros_like(second)
        whole[..., upper[0], upper[1]] = added[..., d:]
        whole[..., upper[1], upper[0]] = added[..., d:]
        # What is not opened stays where it is.
        whole = np.where(enough[..., None, None], whole, mass_total[..., None, None] * np.eye(d))
        good = self._in_range(mass_total, mass, members)
        nan = lambda part: np.where(good.reshape(1, -1, *(1,) * (part.ndim - 2)), part, np.nan)
        parts = nan(mass_total), *map(nan, _in_units(factor, added[..., :d], whole))
        like = jax.tree.structure(own)
        return project_psd(jax.tree.unflatten(like, [np.zeros_like(own.log_likelihood), *parts]))

    def _in_range(self, masses: np.ndarray, own: np.ndarray, members: frozenset[str]) -> np.ndarray:
        """Whether the masses of each mixture can be those of the rows that the members have.

        The first total says how many these are. No later one has more, but for rounding, nor less
        than half, where sites have too few rows in a component to add them; and in no component is
        there less than the own rows.
        """
        rows = masses.sum(-1)[0]
        known = self.mass_of.setdefault(members, float(rows[0]))
        slack = 2.0 + 0.05 * abs(known)
        not_less = (masses[0] > own[0] - len(members)).all(-1)
        return not_less & (rows <= known + slack) & (rows >= known / 2 - slack)

    def may_open(self, members: frozenset[str]) -> bool:
        """Whether no sum that a share was sent for tells, less this one, about one or two sites."""
        try:
            OpenedSets(self.shared).admit(members)
        except SumRefused:
            return False
        return len(members) >= SMALLEST_GROUP

    def noisy(self, share: np.ndarray, members: frozenset[str]) -> Exchanges:
        """The total of a share with noise in it."""
        made = lambda seen: NoisyShare(np.ravel(share), members, seen)
        return (yield from self._added(made, members)).reshape(share.shape)

    def _added(
        self, made: Callable[[str], SumShare | NoisyShare], members: frozenset[str],
        of_rows: bool = True,
    ) -> Exchanges:  # fmt: skip
        """One masked sum: the total that every member works out, once all have committed."""
        seen = self.seen.setdefault(members, self.begun)
        share = made(seen)
        others = sorted(members - {self.site})
        promised = yield Exchange(
            dict.fromkeys(others, Promise(share)),
            lambda content: decode_digest(content, "commitment"),
        )
        assert self.name is not None
        name = self.name(members)

        def as_promised(source: str, numbers: np.ndarray) -> None:
            if commitment(name, source, numbers) != promised[source]:
                raise ModelRefused("the member shows another share than it has committed to")

        exchange = Exchange(
            dict.fromkeys(others, share),
            lambda content: decode_share(content, len(share.values), seen),
            members if of_rows else None,
            as_promised,
        )
        heard = yield exchange
        own = exchange.released[others[0]]
        assert isinstance(own, MaskedShare)
        found = total([own.numbers, *(heard[name] for name in others)])
        self.seen[members] = hashlib.sha256(bytes.fromhex(seen) + found.tobytes()).hexdigest()
        return found


def _flat(tree: Any) -> np.ndarray:
    return np.concatenate(
        [np.ravel(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(tree)]
    )


def _in_units(units: np.ndarray, first: Any, second: Any) -> tuple[np.ndarray, np.ndarray]:
    """First and second moments of rows that are multiplied by `units` (..., d, d)."""
    second = units @ np.asarray(second, np.float64) @ np.swapaxes(units, -1, -2)
    return (units @ np.asarray(first, np.float64)[..., None])[..., 0], second
