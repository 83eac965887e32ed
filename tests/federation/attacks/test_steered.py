"""N1: a member that steers the mixture, and what sites do not add whatever it steers to.

The attacker of `dishonest` finds half of the rows it looks for, to 0.01 standard deviations, where
it may wait for the others' parts and these add all that is asked for.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pytest

from attackers import hits
from dishonest import BLUNT, FAR, RANGE, SHARP, Attack, Member, Plane
from federated import a_job, record
from fedmixtures import TrustThenPool
from fedmixtures.federation.node.own_rows import blurred
from fedmixtures.federation.rounds import NodeRefused

WITHIN = 0.01
"""Pooled standard deviations, in every feature, that a row is found to."""
APART = 0.04
"""Angle between the directions that a row is the outermost in."""


@dataclass(frozen=True)
class Play:
    """A federation, what its attacker does, and how often: `targets` rows are looked for."""

    sites: int = 3
    rows: int = 60
    features: int = 2
    targets: int = 2
    silent: int = 0
    """Members in league with the attacker, who add nothing."""
    jobs: int = 1
    """One after the other; what one has told is where the next begins."""
    claimed: float = 0.0
    """Rows that the attacker says it has; 0: as many as let every total pass, whichever it sets."""
    cells: tuple[float, float] = (FAR, SHARP)
    by: str = "mass"
    inside: bool = False
    """Not the outermost rows are looked for, but those in the middle."""
    unprotected: bool = False

    def found(self, folder, monkeypatch, seed: int) -> tuple[int, float, int]:
        """Rows of the others that were found, by chance as many, and how often it was tried."""
        rng, d = np.random.default_rng([7, seed]), self.features
        centres = np.zeros((3, d))
        centres[1, 0] = centres[2, -1] = 4.0
        names = [f"site-{i:02d}" for i in range(self.sites)]
        draw = lambda: centres[np.arange(self.rows) % 3] + rng.standard_normal((self.rows, d))
        rows = {name: draw() for name in names}
        silent = tuple(names[1 : 1 + self.silent])
        honest = [name for name in names[:-1] if name not in silent]
        apart = 0.002 if self.inside else APART
        beyond = len(honest) * self.rows // 2 if self.inside else 0
        groups = []
        for _ in range(self.targets):
            first, *others = np.linalg.qr(rng.standard_normal((d, d)))[0].T
            near = [first, *(first + apart * other for other in others)]
            low = -RANGE if self.inside else 0.0
            groups.append([Plane(one / np.linalg.norm(one), low, beyond=beyond) for one in near])
        planes = [plane for group in groups for plane in group]
        claimed = self.claimed or 3 * (1.2 * self.rows + 10)
        member = Member(planes, d, claimed, self.cells, self.by)
        attack = Attack(folder, monkeypatch, rows, names[-1], member, silent, self.unprotected)
        for job in range(self.jobs):
            with suppress(NodeRefused):  # it may overdo it, which ends the job for all
                attack.run(self.job(names, seed + 100 * job))
        assert sum(plane.asked for plane in planes) > 8
        units = attack.units
        others = (np.concatenate([rows[name] for name in honest]) - units.centre) / units.scale
        solved = np.array([np.linalg.solve([p.direction for p in g], [p.next for p in g])
                           for g in groups])  # fmt: skip
        # What a guess finds: rows like these, as often as there are guesses.
        drawn = centres[rng.integers(3, size=4000)] + rng.standard_normal((4000, d))
        guesses = (drawn - units.centre) / units.scale
        near = sum(hits(others, one[None], WITHIN) > 0 for one in guesses) / len(guesses)
        found = sum(hits(others, one[None], WITHIN) > 0 for one in solved)
        return int(found), near * len(solved), len(solved)

    def job(self, names: list[str], seed: int):
        """The default job of all."""
        return a_job(
            TrustThenPool(),
            name=f"job-{seed}",
            edges=tuple((a, b, 1.0) for a in names for b in names if a < b),
            n_components=dict.fromkeys(names, 3),
            seed=seed,
            features=tuple(f"x{i}" for i in range(self.features)),
        )


def test_n1_a_member_that_sends_last_finds_no_row(tmp_path, monkeypatch):
    found, _, tried = Play().found(tmp_path, monkeypatch, 3)
    assert tried == 2
    assert found < 2  # one of them may be so near by chance


PLAYS = {
    f"{n} sites, {m} rows, {d} features": Play(n, m, d)
    for n in (3, 6, 10)
    for m in (60, 300)
    for d in (2, 5)
} | {
    "not rushing, five times the rows of all": Play(claimed=1e3),
    "two in league, of six": Play(sites=6, silent=1),
    "five jobs, one after the other": Play(jobs=5, targets=4),
    "by moments instead of masses": Play(by="moments"),
    "cells as wide as is let through": Play(cells=BLUNT),
    "rows in the middle": Play(inside=True),
    "rows in the middle, wide cells": Play(inside=True, cells=BLUNT),
}
BARE = "3 sites, 60 rows, 2 features, unprotected"
SEEDS = int(os.environ.get("FEDERATION_SEEDS", "4"))
FORMS = os.environ.get("FEDERATION_FORMS", "")
"""Only forms whose names have this in them: all of them take hours."""


@pytest.mark.silos
def test_n1_at_length(tmp_path, monkeypatch):
    """Every form with the protection, and the plain one without: what the attacker is worth."""
    plays = PLAYS | {BARE: Play(unprotected=True)}
    total = np.zeros(3)
    for name, play in plays.items():
        if FORMS not in name:
            continue
        runs = []
        for seed in range(SEEDS):
            with monkeypatch.context() as patch:
                runs.append(play.found(tmp_path / f"{name}-{seed}", patch, seed))
        found, chance, tried = np.sum(runs, axis=0)
        figures = {"found": int(found), "by_chance": round(chance, 3), "tried": int(tried)}
        file = "attack-n1-" + name.replace(",", "").replace(" ", "-")
        record(file, seed=0, seeds=SEEDS, within=WITHIN, form=name, **figures)
        if name == BARE:
            assert found > 0.25 * tried
        else:
            total += found, chance, tried
    assert total[0] <= total[1] + 0.02 * total[2]


def test_rows_in_sums_are_no_finer_than_a_part_of_their_spread():
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.standard_normal((60, 2)), 50 + 0.1 * rng.standard_normal((60, 2))])
    rows[1] = rows[0]
    rows[2, 1] = np.nan
    moved = blurred(rows, 0.2, b"secret") - rows
    for part, spread in ((slice(0, 60), 1.0), (slice(60, 120), 0.1)):
        assert 0.05 * spread < np.nanstd(moved[part]) < 0.35 * spread
    np.testing.assert_array_equal(moved[0], moved[1])
    np.testing.assert_array_equal(np.isnan(moved), np.isnan(rows))
    np.testing.assert_array_equal(blurred(rows, 0.2, b"secret") - rows, moved)
    assert not (blurred(rows, 0.2, b"other") - rows == moved).any()
    np.testing.assert_array_equal(blurred(rows, 0.0, b"secret"), rows)
