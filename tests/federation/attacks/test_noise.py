"""Membership in private sums: a member knows every row but one, and asks which of two it is.

What the attack proves is a lower bound of epsilon, from how often the likelihood ratio is right. It
may not be above what the ledger says; where the noise is a third of what it should be, it is.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import beta

from federated import Sites, a_job, site_rows
from fedmixtures import TrustThenPool
from fedmixtures.federation.masked_sums import total
from fedmixtures.federation.node import release
from fedmixtures.federation.node.ledger import noise_for, spent
from fedmixtures.federation.node.private_pool import SENSITIVITY, reach, sums_of
from fedmixtures.federation.node.summing import NoisyShare
from fedmixtures.mixture.mixture import Mixture

SITES = ("aachen", "bergen", "cork")
ATTACKER, VICTIM = "bergen", "cork"
SUMS, DELTA = 10, 1e-5
GAMES = 40_000
SURE = 1e-3
"""Probability with which the bound may be wrong."""
THETA = Mixture([0.5, 0.5], [[-20.0], [20.0]], [np.eye(1)] * 2)
OUTERMOST = 20 + reach(1)
"""No two rows are further apart in a sum than those so far out in different components."""


class Games:
    """Jobs of `SUMS` sums over three sites, one of which is the attacker."""

    def __init__(self, folder, noise: float):
        rows = {name: mine for name, mine in site_rows((60,) * 4).items() if name in SITES}
        edges = (("aachen", "bergen", 1.0), ("bergen", "cork", 1.0))
        job = a_job(TrustThenPool(), n_components=dict.fromkeys(SITES, 2), edges=edges,
                    n_rounds=SUMS, privacy={"clip": 3.0, "noise": noise})  # fmt: skip
        sites = Sites(folder, rows)
        sites.rounds(job).begin()
        self.nodes = sites.nodes
        self.sessions = {name: node.sessions[job.key] for name, node in sites.nodes.items()}
        self.rng = np.random.default_rng(1)

    def totals(self, row: float) -> np.ndarray:
        """(games, numbers of a job) less all that the attacker knows, if the row is this one.

        All sums are one long share: noise is drawn number by number.
        """
        long = np.tile(alone(row), GAMES * SUMS)
        shares = []
        for name in SITES:
            point, session = self.nodes[name].point, self.sessions[name]
            mine = long if name == VICTIM else np.zeros_like(long)
            share = NoisyShare(mine, frozenset(SITES), "")
            if name == ATTACKER:  # who knows its own noise
                passed = release._masked(point, share, mine, session.sum_name(share.members))
            else:
                point.secret = self.rng.bytes(32)
                passed = point.passed(share, session).message
            shares.append(passed.numbers)
        return total(shares).reshape(GAMES, -1)

    def proven_epsilon(self) -> float:
        """The largest lower bound of epsilon over thresholds that other games have chosen."""
        here, there = self.totals(-OUTERMOST), self.totals(OUTERMOST)
        apart = np.tile(alone(OUTERMOST) - alone(-OUTERMOST), SUMS)
        assert np.linalg.norm(apart) == pytest.approx(SENSITIVITY * SUMS**0.5)
        scores = [games @ apart for games in (here, there)]  # the ratio's logarithm, but for scale
        chosen, judged = zip(*(np.split(score, 2) for score in scores), strict=True)
        cuts = np.quantile(chosen[0], 1 - np.geomspace(1e-3, 0.5, 20))
        best = max(cuts, key=lambda cut: bound(*((s > cut).sum() for s in chosen), GAMES // 2))
        return bound(*((score > best).sum() for score in judged), GAMES // 2)


def alone(row: float) -> np.ndarray:
    """What one row adds to a sum."""
    return np.ravel(sums_of(THETA, np.array([[row]]), np.ones(1)))


def bound(false: int, true: int, n: int) -> float:
    """Epsilon at least, by so many false and true alarms of n (Clopper and Pearson)."""
    most_false = beta.ppf(1 - SURE / 2, false + 1, n - false) if false < n else 1.0
    least_true = beta.ppf(SURE / 2, true, n - true + 1) if true else 0.0
    return float(np.log(max(least_true - DELTA, 1e-12) / most_false))


def test_membership_is_told_no_better_than_the_ledger_says(tmp_path):
    noise = noise_for(3.0, DELTA, SUMS)
    epsilon = spent(((noise, SUMS),), DELTA)
    proven = Games(tmp_path, noise).proven_epsilon()
    assert 1.0 < proven <= epsilon


def test_a_third_of_the_noise_is_found_out(tmp_path, monkeypatch):
    noise = noise_for(3.0, DELTA, SUMS)
    monkeypatch.setattr(release, "SENSITIVITY", SENSITIVITY / 3)
    assert Games(tmp_path, noise).proven_epsilon() > spent(((noise, SUMS),), DELTA)
