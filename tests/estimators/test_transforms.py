"""Skewed columns in the estimator: fitted transformed, asked and answered in the user's units."""

import numpy as np
import pytest

import fedmixtures as fm
from fedmixtures import NetworkGaussianMixture


def table(n=100, seed=0):
    """Three nodes, two clusters: a log-normal column and a normal one, with gaps."""
    rng = np.random.default_rng(seed)
    cluster = rng.random(3 * n) < 0.4
    X = np.stack([np.exp(rng.normal(1 + 2 * cluster, 0.6)), rng.normal(3 * cluster, 1)], 1)
    X[rng.random(3 * n) < 0.05, 1] = np.nan
    return X, np.repeat(["a", "b", "c"], n)


@pytest.fixture(scope="module")
def model():
    X, nodes = table()
    return NetworkGaussianMixture(2, graph="full", random_state=0).fit(X, nodes=nodes)


@pytest.fixture(scope="module")
def plain():
    X, nodes = table()
    settings = {"graph": "full", "random_state": 0, "transforms": "none"}
    return NetworkGaussianMixture(2, **settings).fit(X, nodes=nodes)


def test_the_default_method_transforms_and_gains(model, plain):
    X, nodes = table(seed=1)
    assert [column.kind for column in model.transform_.columns] == ["log", "none"]
    assert plain.transform_.is_identity
    assert model.score(X, nodes=nodes) > plain.score(X, nodes=nodes) + 0.1


def test_densities_are_in_the_users_units(model):
    X, nodes = table(seed=2)
    inside = X.copy()
    inside[:, 0] = np.log(X[:, 0])
    names, weight = model.levels_.names, model.levels_.weights[0]
    whole = ~np.isnan(X).any(1)
    place = np.flatnonzero(whole & (nodes == "a"))[:5]
    level = [model.node("a", level=name).score_samples(inside[place]) for name in names]
    expected = np.log(weight @ np.exp(level)) - np.log(X[place, 0])
    found = model.score_samples(X[place], nodes=nodes[place])
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_a_density_of_one_transformed_column_integrates_to_one():
    x = table()[0][:, :1]
    local = NetworkGaussianMixture(2, method="local", transforms="auto", random_state=0)
    model = local.fit(x)
    assert not model.transform_.is_identity
    grid = np.linspace(-1, 200, 400_001)[:, None]
    assert np.exp(model.score_samples(grid)).sum() * (grid[1] - grid[0]) == pytest.approx(
        1, abs=1e-3
    )
    mixture = model.mixtures_[0]
    some = grid[10_000:10_050]
    np.testing.assert_allclose(mixture.log_density(some), model.score_samples(some), atol=1e-9)
    rows, _ = mixture.sample(200)
    assert (rows > 0).all()


def test_what_is_shown_is_in_the_users_units(model):
    at = model.means_[list(model.nodes_).index("a")]
    np.testing.assert_allclose(np.sort(at[:, 0]), np.exp([1.0, 3.0]), rtol=0.25)
    shown = model.atlas_.table()
    np.testing.assert_allclose(np.sort(shown["x0"]), np.exp([1.0, 3.0]), rtol=0.25)
    assert (shown["x0 (sd)"] < 15).all()
    rows, _ = model.sample(50)
    assert (rows[:, 0] > 0).all()
    assert 1 < np.median(rows[:, 0]) < 25


def test_imputation_keeps_what_is_there(model):
    X, nodes = table(seed=3)
    X[::7, 0] = np.nan
    X[np.isnan(X).all(1), 1] = 0.0
    known = ~np.isnan(X)
    filled, draws = model.impute(X, nodes), model.impute(X, nodes, n_draws=2)
    np.testing.assert_array_equal(filled[known], X[known])
    assert (filled[:, 0] > 0).all()
    assert (draws[..., 0] > 0).all()
    assert not np.isnan(draws).any()


def test_a_saved_model_keeps_its_transform(model, tmp_path):
    X, nodes = table(seed=4)
    again = fm.load(model.save(tmp_path / "model.safetensors"))
    assert again.transform_ == model.transform_
    found = again.score_samples(X, nodes=nodes)
    np.testing.assert_array_equal(found, model.score_samples(X, nodes=nodes))


def test_evidence_and_criteria_are_in_the_users_units(model, plain):
    X, nodes = table()
    assert (model.levels_.evidence.max(1) > plain.levels_.evidence.max(1)).all()
    assert model.bic(X, nodes=nodes) < plain.bic(X, nodes=nodes)


def test_newcomers_are_taken_in_the_same_units(model, tmp_path):
    X, nodes = table(seed=5)
    again = fm.load(model.save(tmp_path / "model.safetensors"))
    again.adapt(X[nodes == "a"], "d")
    found = again.score_samples(X[nodes == "b"], nodes=["d"] * 100)
    known = model.score_samples(X[nodes == "b"], nodes=["b"] * 100)
    assert found.mean() == pytest.approx(known.mean(), abs=0.2)
    difference = again.levels_.evidence[-1].max() - model.levels_.evidence.max(1).mean()
    assert abs(difference) < 0.5


def test_a_report_names_the_columns_and_what_was_done(model, tmp_path):
    X, nodes = table()
    page = model.report(tmp_path / "page.html", X, nodes).read_text("utf-8")
    assert "log x0" in page
    assert "skewed columns are fitted transformed" in page


def test_other_methods_take_columns_as_they_are_unless_told():
    X, nodes = table()
    X = np.nan_to_num(X)
    local = NetworkGaussianMixture(2, method="local", random_state=0)
    assert local.fit(X, nodes=nodes).transform_.is_identity
    told = NetworkGaussianMixture(2, method="local", transforms="auto", random_state=0)
    assert not told.fit(X, nodes=nodes).transform_.is_identity


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("sqrt", "`transforms` is 'sqrt'"),
        ({"chol": "log"}, "`transforms` names 'chol', but the columns are 'x0' and 'x1'"),
        ({"x0": "root"}, "`transforms\\['x0'\\]` is 'root'"),
    ],
)
def test_unknown_transforms_are_refused(given, words):
    X, nodes = table()
    with pytest.raises(ValueError, match=words):
        NetworkGaussianMixture(2, transforms=given).fit(X, nodes=nodes)
