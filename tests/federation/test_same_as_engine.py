"""The node of a federation and the in-process engine run the same step."""

from __future__ import annotations

import pytest

from federated import SITES, Sites, a_job, engine_solution, log_lines, same_bits, site_rows
from fedmixtures import KL, MMD, Euclidean, FeasibleSet, GTVMin
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
