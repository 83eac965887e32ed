"""Attacks by who does not follow the protocol: jobs that are dropped, run again, or flooded."""

from __future__ import annotations

import pytest

from federated import SITES, Sites, a_job, site_rows
from fedmixtures import TrustThenPool
from fedmixtures.federation.in_process import ask
from fedmixtures.federation.node.budgets import ReleaseBudget
from fedmixtures.federation.node.gate import Gate
from fedmixtures.federation.rounds import NodeRefused
from fedmixtures.federation.wire.frames import request

ROWS = site_rows((60, 60, 60, 60))
QUICK = TrustThenPool(n_starts=1, n_folds=2, strengths=(1.0,), pool_steps=(1, 1, 1))


def trust_job(**entries):
    return a_job(QUICK, **({"n_components": dict.fromkeys(SITES, 2)} | entries))


def test_a_dropped_job_counts(tmp_path):
    """N3: each job has a sum of units and is dropped before a model leaves; the sixth has none."""
    sites = Sites(tmp_path, ROWS, gate=Gate(), releases=ReleaseBudget())
    for number in range(5):
        sites.nodes = {name: sites.started(name) for name in SITES}
        rounds = sites.rounds(trust_job(shift=(0.1 * number, 0.0)))
        rounds.begin()
        rounds.round(0)
    sites.nodes = {name: sites.started(name) for name in SITES}
    with pytest.raises(NodeRefused, match="max_jobs"):
        sites.rounds(trust_job(shift=(0.5, 0.0))).begin()
    assert sites.nodes["aachen"].releases.left() == (0, ReleaseBudget().max_models)
    sites.run(trust_job(shift=(0.4, 0.0)))  # one that is counted is gone on with


def test_jobs_that_were_let_in_together_are_counted_one_by_one(tmp_path):
    """N3: all are shown before any begins, so that each finds an account with nothing in it."""
    sites = Sites(tmp_path, ROWS, gate=Gate(), releases=ReleaseBudget(max_jobs=1))
    jobs = [trust_job(seed=seed) for seed in range(2)]
    node = sites.nodes["aachen"]
    for job in jobs:
        ask(node, sites.hello(job))
    assert ask(node, request("share", job=jobs[0].key, round=0)).boxes
    with pytest.raises(NodeRefused, match="max_jobs"):
        ask(node, request("share", job=jobs[1].key, round=0))
