"""The node of a federation and the in-process engine run the same step."""

from __future__ import annotations

import pytest

from federated import SITES, Sites, a_job, engine_solution, log_lines, same_bits, site_rows
from fedmixtures import KL, MMD, Euclidean, FeasibleSet, GTVMin, TrustThenPool
from fedmixtures.federation.in_process import NodeRefused
from helpers import assert_close

COUPLINGS = [Euclidean(), MMD(), KL(n_samples=20)]


@pytest.mark.parametrize("discrepancy", COUPLINGS, ids=lambda d: type(d).__name__)
def test_final_models_are_those_of_the_engine(tmp_path, discrepancy):
    # The gate is on, and every component rests on enough rows for it.
    rows = site_rows()
    job = a_job(GTVMin(discrepancy, feasible=FeasibleSet()))
    sites = Sites(tmp_path, rows)
    exchange = sites.run(job)
    found = sites.results(job)
    alone = engine_solution(job, rows, block_size=1)
    batched = engine_solution(job, rows, block_size=None)
    assert all(reply.head["round"] == 10 for reply in exchange.replies.values())
    for name in SITES:
        assert same_bits(found[name], alone.mixture(name)), name
        assert_close(found[name], batched.mixture(name), 1e-10)
    sent = [line for name in SITES for line in log_lines(tmp_path, name) if line["event"] == "sent"]
    assert len(sent) == 11 * 2 * len(job.edges)
    assert {line["merged"] for line in sent} == {0}


def test_sites_with_different_numbers_of_components(tmp_path):
    rows = site_rows()
    job = a_job(n_components=dict(zip(SITES, (1, 3, 2, 3), strict=True)), n_rounds=3)
    sites = Sites(tmp_path, rows)
    sites.run(job)
    alone = engine_solution(job, rows, block_size=1)
    for name, k in job.n_components.items():
        found = sites.results(job)[name].trimmed()
        assert found.n_components == k
        assert same_bits(found, alone.mixture(name))


@pytest.mark.silos
def test_trust_then_pool_where_the_site_shares_counts(tmp_path, made_up_rows):
    rows = site_rows((96, 96, 96, 96))
    method = TrustThenPool(n_starts=1, n_folds=2, agree_rounds=2)
    job = a_job(method, n_rounds=8)
    closed = Sites(tmp_path / "closed", rows, couplings=("TrustThenPool",))
    with pytest.raises(NodeRefused, match="share_counts is not set"):
        closed.run(job)
    sites = Sites(tmp_path / "open", rows, couplings=("TrustThenPool",), share_counts=True)
    exchange = sites.run(job)
    assert all(reply.head["silent"] == [] for reply in exchange.replies.values())
    alone = engine_solution(job, rows, block_size=1)
    for name in SITES:
        assert same_bits(sites.results(job)[name].trimmed(), alone.mixture(name)), name
