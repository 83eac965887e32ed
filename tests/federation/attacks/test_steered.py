"""N1: a member that steers the mixture, and what sites do not add whatever it steers to.

The attacker of `dishonest` finds half of the rows it looks for, to 0.01 standard deviations, where
it may wait for the others' parts and these add all that is asked for.
"""

from __future__ import annotations

import numpy as np
import pytest

from attackers import hits
from dishonest import Attack, Member, Plane
from federated import a_job
from fedmixtures import TrustThenPool
from fedmixtures.federation.node.own_rows import blurred

APART = 0.04
"""Angle between the directions that a row is the outermost in."""


def found_by_steering(folder, monkeypatch, n: int, m: int, d: int, seed: int, targets: int = 2):
    """What a member makes of one default job, and the rows of the others, in common units."""
    rng = np.random.default_rng([7, seed])
    centres = np.zeros((3, d))
    centres[1, 0] = centres[2, -1] = 4.0
    names = [f"site-{i:02d}" for i in range(n)]
    rows = {name: centres[np.arange(m) % 3] + rng.standard_normal((m, d)) for name in names}
    groups = []
    for _ in range(targets):
        first, *others = np.linalg.qr(rng.standard_normal((d, d)))[0].T
        near = [first, *(first + APART * other for other in others)]
        groups.append([Plane(one / np.linalg.norm(one)) for one in near])
    member = Member([plane for group in groups for plane in group], d)
    job = a_job(
        TrustThenPool(),
        edges=tuple((a, b, 1.0) for a in names for b in names if a < b),
        n_components=dict.fromkeys(names, 3),
        seed=seed,
        features=tuple(f"x{i}" for i in range(d)),
    )
    attack = Attack(folder, monkeypatch, job, rows, names[-1], member)
    attack.run()
    others = np.concatenate([rows[name] for name in names[:-1]])
    solved = [
        np.linalg.solve([plane.direction for plane in group], [plane.next for plane in group])
        for group in groups
    ]
    assert sum(plane.asked for group in groups for plane in group) > 20
    return np.array(solved), (others - attack.units.centre) / attack.units.scale


def test_n1_a_member_that_sends_last_finds_no_row(tmp_path, monkeypatch):
    found, others = found_by_steering(tmp_path, monkeypatch, 3, 60, 2, 3)
    assert len(found) == 2
    assert hits(others, found, 0.01) < 2  # one of them may be so near by chance


@pytest.mark.slow
@pytest.mark.parametrize(("n", "m", "d"), [(3, 60, 2), (6, 60, 2), (10, 60, 2), (3, 300, 2),
                                           (3, 60, 5)])  # fmt: skip
def test_n1_by_sites_rows_and_features(tmp_path, monkeypatch, n, m, d):
    caught = 0
    for seed in range(4):
        with monkeypatch.context() as patch:
            found, others = found_by_steering(tmp_path / f"{seed}", patch, n, m, d, seed)
            caught += hits(others, found, 0.01)
    assert caught <= 1


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
