"""Missing cells between sites: the default method by masked sums of what is there."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest

from federated import (
    SITES,
    WIDE_OPEN,
    Sites,
    a_job,
    engine_solution,
    log_lines,
    same_bits,
    site_rows,
)
from fedmixtures import load
from fedmixtures.federation.node.gate import Gate, Support
from fedmixtures.federation.node.kept import folder_of
from fedmixtures.federation.node.own_rows import protected
from fedmixtures.federation.rounds import NodeRefused
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import Statistics
from helpers import QUICK_TRUST

pytestmark = pytest.mark.filterwarnings("ignore:X does not have valid feature names")
SIZES = (64, 64, 64, 64)  # powers of two: as such the numbers of rows leave


def gappy_rows() -> dict[str, np.ndarray]:
    """Rows of two columns, of which a quarter lack one; delft has no second column at all."""
    rows = site_rows(SIZES)
    for name, own in rows.items():
        own[::8, 0] = own[3::8, 1] = np.nan
        if name == "delft":
            own[::8, 0] = 1.0
            own[:, 1] = np.nan
    return rows


def gappy_job(**entries):
    return a_job(QUICK_TRUST, **({"missing": True} | entries))


def test_without_gate_and_rounding_it_is_the_engine_s(tmp_path):
    rows, job = gappy_rows(), gappy_job()
    sites = Sites(tmp_path, rows, gate=WIDE_OPEN)
    sites.run(job)
    alone = engine_solution(job, rows, block_size=None)
    for name, found in sites.results(job).items():
        for a, b in zip(found.parts, alone.mixture(name).parts, strict=True):
            np.testing.assert_allclose(a, b, atol=2e-6)  # what fixed point leaves


@pytest.mark.slow
def test_at_the_default_gate_a_site_borrows_the_column_it_lacks(tmp_path):
    rows, job = gappy_rows(), gappy_job()
    sites = Sites(tmp_path, rows, gate=Gate())
    sites.run(job)
    everyone = []
    for name in SITES:
        kept = load(folder_of(sites.nodes[name].config, job))
        everyone.append(kept.levels_.theta.at((kept.levels_.names.index("everyone"), 0)))
    assert all(same_bits(one, everyone[0]) for one in everyone)
    # Places of the three groups in both columns, also at the site that lacks one.
    delft = load(folder_of(sites.nodes["delft"].config, job))
    whole = site_rows(SIZES)["delft"]
    density = delft.score_samples(whole, nodes=["delft"] * len(whole))
    own = site_rows(SIZES)["aachen"]
    like = load(folder_of(sites.nodes["aachen"].config, job))
    beside = like.score_samples(own, nodes=["aachen"] * len(own))
    assert density.mean() > beside.mean() - 0.5


def test_sums_count_the_rows_that_have_both_columns():
    """A brute-force count, with responsibilities by hand."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((60, 3))
    rows[rng.random(rows.shape) < 0.3] = np.nan
    rows[np.isnan(rows).all(1), 0] = 0.0
    means = np.array([[0.0, 0, 0], [1.0, 1, 1]])
    theta = Mixture(np.full(2, 0.5), means, np.stack([np.eye(3)] * 2))
    found = Support(rows).masses_together(Mixture.stack([theta]))[0]
    expected = np.zeros((2, 6))
    pairs = list(zip(*np.triu_indices(3), strict=True))
    for row in rows:
        there = ~np.isnan(row)
        log = -0.5 * ((row - means)[:, there] ** 2).sum(1)
        shares = np.exp(log - np.logaddexp.reduce(log))
        for p, (i, j) in enumerate(pairs):
            expected[:, p] += shares * (there[i] and there[j])
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_a_component_with_few_rows_of_two_columns_adds_nothing_of_its_own():
    second = np.stack([np.eye(2) * 30.0] * 2)
    sums = Statistics(np.zeros(1), np.array([[40.0, 30.0]]), np.ones((1, 2, 2)), second[None])
    theta = Mixture(np.full((1, 2), 0.5), np.zeros((1, 2, 2)), np.stack([np.eye(2)] * 2)[None])
    own, theta = jax.tree.map(lambda part: part[None], (sums, theta))
    together = np.array([[[40.0, 20.0, 30.0], [30.0, 3.0, 12.0]]])
    found = protected(own, theta, 5, together)
    np.testing.assert_array_equal(found.mass[0, 0], [70.0, 0.0])
    np.testing.assert_array_equal(together[0], [[70.0, 35.0, 52.5], [0.0, 0.0, 0.0]])
    assert not found.second[0, 0, 1].any()


def test_a_column_of_a_few_values_is_refused_before_anything_is_sent(tmp_path):
    rows = gappy_rows()
    rows["cork"][3:, 1] = np.nan
    rows["cork"][:, 0] = 0.5
    sites = Sites(tmp_path, rows, gate=Gate())
    with pytest.raises(NodeRefused, match="'cork' has columns of which too few rows have values"):
        sites.run(gappy_job())
    (line,) = [one for one in log_lines(tmp_path, "cork") if one["event"] == "few rows together"]
    assert "x1" in line["columns"]
    assert not [one for one in log_lines(tmp_path, "cork") if one["event"] == "sent"]


def test_a_job_that_does_not_know_of_gaps_is_refused(tmp_path):
    with pytest.raises(NodeRefused, match="`missing = true`"):
        Sites(tmp_path, gappy_rows(), gate=Gate()).run(gappy_job(missing=False))


def test_gaps_are_refused_under_privacy_with_the_reason(tmp_path):
    job = gappy_job(privacy={"clip": 3.0, "noise": 30.0}, n_rounds=3)
    sites = Sites(tmp_path, gappy_rows(), require_privacy=True)
    with pytest.raises(NodeRefused, match="noise for privacy is made for whole rows"):
        sites.run(job)


@pytest.mark.slow
def test_where_nothing_is_missing_a_job_that_allows_it_gives_the_same_models(tmp_path):
    rows = site_rows(SIZES)
    found, keys = [], None
    for missing in (False, True):
        sites = Sites(tmp_path / str(missing), rows, gate=WIDE_OPEN)
        if keys is not None:
            sites.keys, sites.roster = keys
            sites.nodes = {name: sites.started(name) for name in SITES}
        keys = sites.keys, sites.roster
        job = gappy_job(missing=missing)
        sites.run(job)
        found.append(sites.results(job))
        sums = json.loads((tmp_path / str(missing) / "cork" / "sums.json").read_text())["rows"]
        assert sums
    assert all(same_bits(found[0][name], found[1][name]) for name in SITES)
