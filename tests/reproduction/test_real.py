"""Tables of a folder and the stress list: what methods are given, and how they are judged."""

import csv
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from reproduction.config import Row, load
from reproduction.kinds import real
from reproduction.run import cells_of, run_experiments, seeds_of
from reproduction.tasks import csv_tables, held_out
from reproduction.tasks.compared import WITH_PRIOR
from reproduction.tasks.stresses import PLAIN, STRESSES, stressed


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two tables: one with an entry in tables.toml, one read by convention."""
    rng = np.random.default_rng(0)
    where = tmp_path / "tables"
    where.mkdir()
    for name, nodes in (("shops", 3), ("farms", 9)):
        with (where / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["node", "kind", "day", "size", "price"])
            for i in range(nodes * 40):
                size, label = rng.normal(), i % 2
                price = "" if i == 5 else f"{np.exp(3 * label + rng.normal()):.4f}"
                writer.writerow([f"n{i % nodes}", "ab"[label], "monday", f"{size:.3f}", price])
    (where / "tables.toml").write_text(
        '[shops]\nfeatures = ["size", "price"]\nlogarithm = ["price"]\nn_components = 2\nfew = 20\n'
    )
    monkeypatch.setenv(csv_tables.VARIABLE, str(where))
    return where


def test_a_table_says_its_form_or_has_one_by_convention(folder):
    found = csv_tables.problems()
    assert found["shops"]["form"]["few"] == 20
    assert found["farms"]["form"]["features"] == ["size", "price"]  # a day is no number
    assert found["farms"]["form"]["n_components"] == 2  # as many as labels
    assert found["farms"]["n_nodes"] == 9


def test_splits_keep_nodes_and_leave_gaps_out(folder):
    data = {**csv_tables.problems()["shops"], "regime": "few"}
    one, other = csv_tables.split(data, 10), csv_tables.split(data, 11)
    assert np.bincount(np.unique(one.nodes, return_inverse=True)[1]).tolist() == [20] * 3
    assert not np.array_equal(one.X, other.X)
    whole = csv_tables.split({**data, "regime": "70/30"}, 10)
    assert len(whole.X) + len(whole.X_test) == 3 * 40 - 1  # one row has a gap
    seen = {tuple(row) for row in whole.X} & {tuple(row) for row in whole.X_test}
    assert not seen
    together = np.concatenate([whole.X, whole.X_test])
    np.testing.assert_allclose(together.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(together.std(0), 1, atol=1e-12)


def test_a_misspelt_feature_is_named(folder):
    (folder / "tables.toml").write_text('[shops]\nfeatures = ["prize"]\n')
    with pytest.raises(ValueError, match="no numeric column 'prize'.*size, price"):
        csv_tables.problems()
    (folder / "tables.toml").write_text('[shops]\nfeature = ["price"]\n')
    with pytest.raises(ValueError, match="names 'feature' for table 'shops'. Known are features"):
        csv_tables.problems()


def test_without_a_folder_it_says_how_to_name_one(tmp_path, monkeypatch):
    monkeypatch.delenv(csv_tables.VARIABLE, raising=False)
    with pytest.raises(ValueError, match="Give --tables FOLDER or set FEDMIXTURES_TABLES"):
        cells_of(load("real"))
    monkeypatch.setenv(csv_tables.VARIABLE, str(tmp_path))
    with pytest.raises(ValueError, match="holds no CSV file"):
        cells_of(load("real"))


def test_nearest_neighbours_only_where_there_are_nodes_enough(folder):
    graphs = {(place.table, place.graph) for place in real.places(load("real"))}
    assert graphs == {("shops", "full"), ("farms", "full"), ("farms", "knn:3")}


def test_splits_of_design_are_not_judged_by():
    assert seeds_of(load("real"), None) == range(10, 20)
    assert seeds_of(load("real"), 2) == range(10, 12)
    assert seeds_of(load("real").quickened(), 3) == range(10, 11)


def test_scores_are_means_over_nodes_of_each_nodes_own():
    class Model:
        def score_samples(self, X, nodes):
            return X[:, 0]

        def predict(self, X, nodes):
            return (X[:, 0] > 0).astype(int)

    nodes = np.repeat(["a", "b"], [40, 20])
    X = np.linspace(-1, 1, 60)[:, None]
    labels = np.where(X[:, 0] > 0, "up", "down")
    found = held_out.scores(Model(), csv_tables.Split(X, nodes, X, nodes, labels), 0.5)
    own = X[:40, 0].mean(), X[40:, 0].mean()
    assert found["ll"] == pytest.approx(np.mean(own) - 0.5)
    assert found["ll_trimmed"] == pytest.approx((X[2:40].mean() + X[41:].mean()) / 2 - 0.5)
    assert found["ari"] == found["nmi"] == 1.0


def test_from_a_folder_to_tables(folder, tmp_path):
    whole = load("real")
    local = replace(whole.row("local"), options={})
    everyone = replace(whole.row("centralized"), options={})
    ours = Row("trust", "stand-in", "local", {"n_init": 2})
    options = {"regimes": ["few"], "graphs": ["full"]}
    small = replace(whole, n_seeds=2, rows=[ours, local, everyone], options=options)
    (written,) = run_experiments([small], None, 0, tmp_path)
    table = (written / "table.md").read_text()
    assert "### farms few full" in table
    assert "seeds 10 to 11" in table
    assert "| Local |" in table.replace("**", "")
    assert (written / "figure.png").exists()


@pytest.mark.parametrize("name", STRESSES)
def test_stressed_rows_come_from_twelve_nodes(name):
    rows = stressed({"stress": name}, 0)
    assert len(np.unique(rows.nodes)) == len(np.unique(rows.nodes_test)) == 12
    assert (
        len(rows.nodes) == len(rows.X) == 12 * PLAIN["n_train"] * (3 if name == "repeated" else 1)
    )
    assert np.isfinite(rows.X).all()
    assert rows.X.shape[1] == rows.X_test.shape[1]


def test_what_is_fitted_in_pooled_units_is_scored_in_the_units_of_the_rows():
    em = {"engine": "jax", "prior": True, "reg_covar": 1e-3, "n_init": 2}
    row = Row("local", "Local", "local", {**em, "standardised": True})
    score = lambda name: held_out.one(
        real.held_out_cell(row, {"stress": name}, "full", 3, 0).settings, 0
    )["ll"]
    small, plain = score("x0.01"), score("none")
    assert small == pytest.approx(plain - PLAIN["n_features"] * np.log(0.01), abs=1e-6)


def test_a_fit_that_raises_is_a_result():
    row = Row("local", "Local", "local", {"reg_covar": 0.0})
    settings = real.held_out_cell(row, {"stress": "duplicate"}, "full", 3, 0).settings
    found = held_out.one(settings, 0)
    assert found["status"] == "diverged"
    assert found["ll"] is None
    assert found["message"]


def test_alpha_is_chosen_and_the_start_is_local(folder, monkeypatch):
    asked = {}

    def chosen(X, nodes, alphas, **settings):
        asked.update(settings, rows=len(X), alphas=alphas)
        return SimpleNamespace(alpha=alphas[0])

    monkeypatch.setattr(held_out, "select_alpha", chosen)
    options = {"alphas": [0.3, 1.0], "init": "local", "n_rounds": 0}
    data = {**csv_tables.problems()["shops"], "regime": "few"}
    own, local = (
        held_out.one(real.held_out_cell(row, data, "full", 2, 5).settings, 10)
        for row in (
            Row("gtv", "GTV", "gtv-mmd", options),
            Row("local", "Local", "local", dict(WITH_PRIOR) | {"prior": True}),
        )
    )
    assert asked["rows"] == 60  # training rows alone
    assert asked["init"] == "local"  # folds begin as the fit does
    assert own["alpha"] == 0.3
    assert own["ll"] == pytest.approx(local["ll"], abs=1e-6)  # no round: the start itself
