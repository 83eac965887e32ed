"""The node of a federation and the in-process engine run the same step."""

from __future__ import annotations

import numpy as np
import pytest

from federated import SITES, Sites, a_job, engine_solution, log_lines, site_rows
from fedmixtures import KL, MMD, Euclidean, FeasibleSet, GTVMin
from fedmixtures.federation.rounds import NodeRefused
from fedmixtures.mixture.covariance_types import is_of_type
from helpers import assert_close

COUPLINGS = [  # one in `make test`, all in `make slow`
    (MMD(), "full"),
    *(
        pytest.param(*one, marks=pytest.mark.slow)
        for one in ((Euclidean(), "full"), (MMD(), "tied"), (KL(n_samples=20), "full"))
    ),
]


@pytest.mark.parametrize(("discrepancy", "kind"), COUPLINGS, ids=lambda d: str(d)[:9])
def test_final_models_are_those_of_the_engine(tmp_path, discrepancy, kind):
    # The gate is on, and every component rests on enough rows for it.
    rows = site_rows()
    job = a_job(GTVMin(discrepancy, feasible=FeasibleSet(), covariance_type=kind))
    sites = Sites(tmp_path, rows)
    exchange = sites.run(job)
    found = sites.results(job)
    alone = engine_solution(job, rows, block_size=1)
    batched = engine_solution(job, rows, block_size=None)
    assert all(reply.head["round"] == 10 for reply in exchange.replies.values())
    for name in SITES:
        assert is_of_type(found[name], kind)
        # The same bits with the versions of constraints.txt; other compilers may round otherwise.
        assert_close(found[name], alone.mixture(name), 1e-10)
        assert_close(found[name], batched.mixture(name), 1e-10)
    sent = [line for name in SITES for line in log_lines(tmp_path, name) if line["event"] == "sent"]
    assert len(sent) == 11 * 2 * len(job.edges)
    assert {line["merged"] for line in sent} == {0}


@pytest.mark.slow
def test_missing_cells_are_fitted_as_by_the_engine(tmp_path):
    rows = site_rows()
    for own in rows.values():
        own[::9, 0] = own[4::9, 1] = np.nan
    job = a_job(n_rounds=3)
    sites = Sites(tmp_path, rows)
    sites.run(job)
    alone = engine_solution(job, rows, block_size=1)
    for name in SITES:  # the engine's segments of rows have one length for all
        assert_close(sites.results(job)[name], alone.mixture(name), 1e-10)


def test_missing_cells_are_refused_under_privacy(tmp_path):
    rows = site_rows()
    rows["cork"][5, 1] = np.nan
    job = a_job(privacy={"clip": 1.0, "noise": 30.0}, n_rounds=3)
    with pytest.raises(NodeRefused, match="'cork' has rows with missing cells"):
        Sites(tmp_path, rows, require_privacy=True).run(job)


def test_a_type_with_fewer_numbers_sends_fewer_bytes(tmp_path):
    size = {}
    for kind in ("full", "diag", "spherical"):
        job = a_job(GTVMin(feasible=FeasibleSet(), covariance_type=kind), n_rounds=1)
        Sites(tmp_path / kind, site_rows()).run(job)
        lines = log_lines(tmp_path / kind, "cork")
        size[kind] = next(line["bytes"] for line in lines if line["event"] == "sent")
    assert size["full"] - size["diag"] == pytest.approx(3 * 2 * 8, abs=4)
    assert size["diag"] - size["spherical"] == pytest.approx(3 * 8, abs=4)


def test_sites_with_different_numbers_of_components(tmp_path):
    rows = site_rows()
    job = a_job(n_components=dict(zip(SITES, (1, 3, 2, 3), strict=True)), n_rounds=3)
    sites = Sites(tmp_path, rows)
    sites.run(job)
    alone = engine_solution(job, rows, block_size=1)
    for name, k in job.n_components.items():
        found = sites.results(job)[name].trimmed()
        assert found.n_components == k
        assert_close(found, alone.mixture(name), 1e-10)
