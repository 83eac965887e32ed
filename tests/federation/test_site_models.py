"""The model stays at the site: whole, in its own units, and of use there without any network."""

from __future__ import annotations

import numpy as np
import pytest

from federated import SITES, Sites, a_job, engine_solution, log_lines, site_rows
from fedmixtures import FeasibleSet, GTVMin, load
from fedmixtures.federation.collected import as_plain, write_run
from fedmixtures.federation.in_process import ask
from fedmixtures.federation.node.gate import Gate
from fedmixtures.federation.node.kept import folder_of, models_of
from fedmixtures.federation.wire.frames import request
from helpers import QUICK_TRUST

pytestmark = pytest.mark.filterwarnings("ignore:X does not have valid feature names")
ROWS = site_rows((60, 60, 60, 60))
SHIFT, SCALE = (1.0, 2.0), (2.0, 0.5)


def at_home(sites, job, name):
    """Folder and model that a site has kept."""
    folder = folder_of(sites.nodes[name].config, job)
    return folder, load(folder)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A job of the default method, at the default gate; rows also in files, as sites have them."""
    folder = tmp_path_factory.mktemp("kept")
    sites = Sites(folder, ROWS, gate=Gate(), share_result=True)
    for name, rows in ROWS.items():
        np.savetxt(folder / f"{name}.csv", rows, "%.17g", ",", header="x0,x1", comments="")
    job = a_job(QUICK_TRUST, shift=SHIFT, scale=SCALE, collector="researcher")
    sites.run(job)
    return sites, job


def test_every_site_has_its_whole_model_in_the_units_of_its_columns(finished):
    sites, job = finished
    shift, scale = np.array(SHIFT), np.array(SCALE)
    for name in SITES:
        folder, model = at_home(sites, job, name)
        assert models_of(sites.nodes[name].config) == [folder]
        outcome = sites.nodes[name].sessions[job.key].outcome
        weights, (expected,) = model.levels_.weights, outcome.levels.weights
        np.testing.assert_array_equal(weights, [expected])
        found = model.levels_.theta.means
        for level, means in zip(found[:, 0], outcome.levels.theta.means[:, 0], strict=True):
            given = means * scale + shift
            assert np.allclose(np.sort(level, axis=0), np.sort(given, axis=0))
        density = model.score_samples(ROWS[name], nodes=[name] * len(ROWS[name]))
        in_job = outcome.levels.density.at(0).log_density((ROWS[name] - shift) / scale)
        np.testing.assert_allclose(density, in_job - np.log(scale).sum())
        assert model.diagnostics_.nodes["group"] == outcome.nodes["group"]
        assert list(model.feature_names_in_) == ["x0", "x1"]


def test_a_number_of_a_cluster_means_the_same_at_every_site(finished):
    sites, job = finished
    models = [at_home(sites, job, name)[1] for name in SITES]
    everyone = [model.levels_.theta.means[-1, 0] for model in models]
    assert all((one == everyone[0]).all() for one in everyone)
    # The groups of rows that the sites share, wherever a site reads its clusters from.
    numbers = [m.predict(np.array([[0.0, 0.0], [5.0, 0.0], [0.0, 5.0]]), nodes=[n] * 3)
               for m, n in zip(models, SITES, strict=True)]  # fmt: skip
    assert len({tuple(found) for found in numbers}) == 1
    assert sorted(numbers[0]) == [0, 1, 2]


def test_what_is_kept_did_not_leave_and_is_readable_by_its_owner_alone(finished):
    sites, job = finished
    for name in SITES:
        folder, _ = at_home(sites, job, name)
        assert folder.stat().st_mode & 0o077 == 0
        (line,) = [one for one in log_lines(sites.folder, name) if one["event"] == "kept"]
        assert line["job"] == job.key
        models = [x for x in log_lines(sites.folder, name) if x.get("kind") == "ModelMessage"]
        assert len(models) == 2  # one release, to both neighbours


@pytest.mark.parametrize("kind", ["full", "diag"])
def test_a_coupling_leaves_its_model_too(tmp_path, kind):
    job = a_job(GTVMin(feasible=FeasibleSet(), covariance_type=kind), n_rounds=2)
    sites = Sites(tmp_path, ROWS)
    sites.run(job)
    alone = engine_solution(job, ROWS, block_size=1)
    for name in SITES:
        _, model = at_home(sites, job, name)
        np.testing.assert_allclose(model.means_[0], alone.mixture(name).means, atol=1e-10)
        assert model.method.covariance_type == kind


def test_offline_commands_take_a_site_s_model(finished, tmp_path, capsys, monkeypatch):
    from fedmixtures.cli.main import main

    sites, job = finished
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    folder, model = at_home(sites, job, "cork")
    new = sites.folder / "aachen.csv"

    def run(*arguments):
        code = main([str(argument) for argument in arguments])
        told = capsys.readouterr()
        assert code == 0, told.err
        return told.out

    run("predict", folder, new, "--out", "found.csv")
    found = np.genfromtxt("found.csv", delimiter=",", names=True, dtype=None, encoding=None)
    expected = model.score_samples(ROWS["aachen"], nodes=["cork"] * 60)
    np.testing.assert_allclose(found["log_density"], expected, rtol=1e-6)
    assert {name.strip('"') for name in found["node"].tolist()} == {"cork"}
    assert f"mean log-density {expected.mean():.3f}" in run("score", folder, new)
    told = run("explain", folder)
    assert "cork took part in the job 'test' with 'aachen', 'bergen' and 'delft'." in told
    assert "Its density: " in told
    assert "masked parts of sums" in told
    run("adapt", folder, new, "--node", "ward-7", "--out", "with-ward")
    assert list(load("with-ward").nodes_) == ["cork", "ward-7"]
    run("report", folder, "--out", "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "<h1>3 clusters in 60 rows of cork</h1>" in page
    assert "The mixture of cork, found with other sites." in page
    assert "cork took part in the job" in page
    assert "Nobody listened" not in page


def test_the_researcher_gets_a_run_of_what_was_released(finished, tmp_path):
    sites, job = finished
    models = {}
    for name, node in sites.nodes.items():
        session = node.sessions[job.key]
        ask(node, request("result", job=job.key))
        models[name] = node.point.passed(session.message(), session).message.mixture
    del models["delft"]  # which released nothing
    plain = as_plain(job, models)
    assert sorted(plain) == ["aachen", "bergen", "cork"]
    released = models["cork"].means * np.array(SCALE) + np.array(SHIFT)
    np.testing.assert_allclose(plain["cork"]["means"], released)
    folder = write_run(tmp_path, job, models)
    model = load(folder)
    assert model.levels_ is None  # which the sites keep
    assert model.network_.n_edges == 2
    np.testing.assert_allclose(np.sort(model.mixtures_["cork"].means, 0), np.sort(released, 0))
