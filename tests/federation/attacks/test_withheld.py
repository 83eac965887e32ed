"""A member that commits to its share, gets all others', and never shows its own.

It alone knows the total. For the others the sum has not taken place: if they then sum without one
of them, the difference of both totals is that one's own, and no sum over three sites.
"""

from __future__ import annotations

import numpy as np
import pytest

from federated import SITES, Sites, a_job, site_rows
from fedmixtures import TrustThenPool
from fedmixtures.federation.node import summing
from fedmixtures.federation.node.gate import Gate
from fedmixtures.federation.node.own_rows import blurred
from fedmixtures.federation.rounds import NodeRefused

ROWS = site_rows((60, 60, 60, 60))
QUICK = TrustThenPool(n_starts=1, n_folds=2, strengths=(1.0,), pool_steps=(1, 1, 1))
VICTIM, LIAR = SITES[2:]
SHOWN = 3
"""The exchange in which the first shares are shown."""


@pytest.fixture
def after_it(tmp_path, monkeypatch):
    """Sites that have been through it, and totals as they are added up from then on."""
    totals, added = [], summing.total

    def watched(shares):
        totals.append(added(shares))
        return totals[-1]

    monkeypatch.setattr(summing, "total", watched)
    sites = Sites(tmp_path, ROWS, gate=Gate())
    rounds = sites.rounds(job(SITES))
    rounds.begin()
    for t in range(SHOWN):
        rounds.round(t)
    for name, parcels in rounds.waiting.items():
        rounds.waiting[name] = [p for p in parcels if p.source != LIAR]
    rounds.round(SHOWN)
    assert len(totals) == 1  # the liar's
    return sites, totals


def job(names):
    names = tuple(names)
    edges = tuple((a, b, 1.0) for a in names for b in names if a < b)
    return a_job(QUICK, name="-".join(names), n_components=dict.fromkeys(names, 2), edges=edges)


def up_to_the_first_total(sites: Sites, names) -> None:
    sites.nodes = {name: sites.started(name) for name in names}
    if LIAR in names:  # it takes part in whatever it likes
        sites.nodes[LIAR].point.sums._admit = lambda *of: None
    rounds = sites.rounds(job(names))
    for t in range(rounds.begin(), SHOWN + 1):
        rounds.round(t)


def test_a_sum_without_another_is_refused_after_it(after_it):
    sites, totals = after_it
    without = [name for name in SITES if name != VICTIM]
    try:
        up_to_the_first_total(sites, without)
    except NodeRefused as refused:
        why = str(refused)
    else:
        why = ""
    if "would tell about 1 of them alone" in why:
        return
    own = np.asarray(totals[0]) - np.asarray(totals[-1])
    secret = sites.keys[VICTIM].secret(f"blur {sites.nodes[LIAR].config.data_set}")
    rows = blurred(ROWS[VICTIM], 0.2, secret)
    pytest.fail(f"{own} is {VICTIM}'s own, whose rows add up to {rows.sum(0)}")


def test_the_others_can_go_on_without_the_one_that_withheld(after_it):
    up_to_the_first_total(after_it[0], [name for name in SITES if name != LIAR])


def test_all_can_begin_again(after_it):
    sites, _ = after_it
    up_to_the_first_total(sites, SITES)
    with pytest.raises(NodeRefused, match="would tell"):  # now it is opened
        up_to_the_first_total(sites, SITES[:3])
