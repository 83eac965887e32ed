"""Tables with categories: read, fitted, scored, drawn, filled in, described and saved."""

import numpy as np
import pandas as pd
import pytest

import fedmixtures as fm
from fedmixtures import FitWarning, NetworkGaussianMixture
from fedmixtures.data.categories import Categories, found_in

COLOURS = np.array(["blue", "green", "red"])


def table(seed=0, n=60, gaps=0.0):
    """Three hospitals, two clusters that a number, a colour and a flag tell apart."""
    rng = np.random.default_rng(seed)
    cluster = (rng.random(3 * n) < 0.4).astype(int)
    shares = np.array([[0.85, 0.1, 0.05], [0.05, 0.15, 0.8]])[cluster].cumsum(1)
    frame = pd.DataFrame(
        {
            "age": rng.normal(50 + 8 * cluster, 6),
            "colour": COLOURS[(rng.random((3 * n, 1)) > shares).sum(1).clip(max=2)],
            "weight": rng.normal(70, 9, 3 * n),
            "smokes": rng.random(3 * n) < np.array([0.1, 0.8])[cluster],
        }
    )
    frame.loc[rng.random(3 * n) < gaps, "colour"] = None
    frame.loc[rng.random(3 * n) < gaps, "age"] = np.nan
    return frame, np.repeat(["a", "b", "c"], n), cluster


def agreement(found, cluster):
    share = (found == cluster).mean()
    return max(share, 1 - share)


@pytest.fixture(scope="module")
def model():
    X, nodes, _ = table(gaps=0.1)
    return NetworkGaussianMixture(2, graph="full", random_state=0).fit(X, nodes=nodes)


def test_words_and_booleans_are_categories(model):
    kinds = model.categories_
    assert kinds.positions == (1, 3)
    assert kinds.levels == (("blue", "green", "red"), (False, True))
    assert model.n_features_in_ == 4
    assert model.means_.shape == (3, 2, 7)
    assert model.covariances_.shape == (3, 2, 2, 2)
    np.testing.assert_allclose(model.means_[..., 2:5].sum(-1), 1, atol=1e-6)


def test_categories_tell_clusters_apart(model):
    X, nodes, cluster = table(seed=1)
    numbers = X[["age", "weight"]]
    plain = NetworkGaussianMixture(2, graph="full", random_state=0)
    plain.fit(table()[0][["age", "weight"]], nodes=nodes)
    with_categories = agreement(model.predict(X, nodes=nodes), cluster)
    assert with_categories > 0.9
    assert with_categories > agreement(plain.predict(numbers, nodes=nodes), cluster)


@pytest.mark.parametrize("method", ["local", "centralized", "fedem"])
def test_methods_that_know_categories_score_by_the_product(method):
    X, nodes, _ = table(gaps=0.1)
    rounds = {"n_rounds": 15} if method == "fedem" else {}
    model = NetworkGaussianMixture(2, method=method, random_state=0, **rounds).fit(X, nodes=nodes)
    X = table(seed=2)[0]
    found = model.score_samples(X, nodes=nodes)
    for row in (0, 70, 150):
        mixture = model.mixtures_[nodes[row]]
        by_component = []
        for weight, mean, covariance in zip(*mixture.parts, strict=True):
            off = X.loc[row, ["age", "weight"]].to_numpy(float) - mean[:2]
            value = np.log(weight) - 0.5 * off @ np.linalg.solve(covariance, off)
            value -= 0.5 * np.linalg.slogdet(2 * np.pi * covariance)[1]
            value += np.log(mean[2 + list(COLOURS).index(X.loc[row, "colour"])])
            by_component.append(value + np.log(mean[5 + int(X.loc[row, "smokes"])]))
        assert found[row] == pytest.approx(np.logaddexp.reduce(by_component), abs=1e-9)


def test_shares_of_all_categories_sum_to_one(model):
    X, nodes, _ = table(seed=3)
    row = X.iloc[[0] * 6].reset_index(drop=True)
    row["colour"] = np.tile(COLOURS, 2)
    row["smokes"] = np.repeat([False, True], 3)
    numbers = row.assign(colour=None, smokes=None)
    each = model.score_samples(row, nodes=nodes[:6])
    whole = model.score_samples(numbers, nodes=nodes[:6])[0]
    assert np.logaddexp.reduce(each) == pytest.approx(whole, abs=1e-9)


def test_draws_and_filled_cells_are_tables(model):
    rows, clusters = model.sample(200, nodes="a")
    assert list(rows.columns) == ["age", "colour", "weight", "smokes"]
    assert set(rows["colour"]) == set(COLOURS)
    assert len(clusters) == 200
    share = (rows["colour"] == "blue").mean()
    assert share == pytest.approx(float(model.weights_[0] @ model.means_[0, :, 2]), abs=0.15)
    X, nodes, _ = table(gaps=0.2, seed=4)
    filled = model.impute(X, nodes)
    there = ~X["colour"].isna()
    assert filled["colour"].isin(COLOURS).all()
    assert (filled.loc[there, "colour"] == X.loc[there, "colour"]).all()
    assert len(model.impute(X, nodes, n_draws=2)) == 2


def test_the_atlas_has_shares_and_words(model):
    shown = model.atlas_.table()
    assert "colour=red" in shown
    assert "colour=red (sd)" not in shown
    assert "age (sd)" in shown
    words = " ".join(shown["what sets it apart"])
    assert "mostly colour=red" in words
    assert "mostly smokes=True" in words


def test_a_saved_model_and_a_newcomer_keep_categories(model, tmp_path):
    again = fm.load(model.save(tmp_path / "model.safetensors"))
    X, nodes, cluster = table(seed=5)
    assert again.categories_ == model.categories_
    found = again.score_samples(X, nodes=nodes)
    np.testing.assert_array_equal(found, model.score_samples(X, nodes=nodes))
    again.adapt(X.iloc[:60], "d")
    assert agreement(again.predict(X, nodes=["d"] * 180), cluster) > 0.85


def test_unknown_categories_are_missing_with_a_warning(model):
    X, nodes, _ = table(seed=6)
    X.loc[0, "colour"] = "mauve"
    with pytest.warns(FitWarning, match="'colour' holds 'mauve'.*taken as missing"):
        found = model.score_samples(X, nodes=nodes)
    X.loc[0, "colour"] = None
    np.testing.assert_array_equal(found, model.score_samples(X, nodes=nodes))


def test_a_report_says_what_clusters_have(model, tmp_path):
    X, nodes, _ = table(gaps=0.1)
    page = model.report(tmp_path / "page.html", X, nodes).read_text("utf-8")
    assert "are in the clusters, pictures show the others" in page


def test_a_node_may_lack_a_category_altogether():
    X, nodes, _ = table(n=30, seed=7)
    X.loc[nodes == "b", "colour"] = None
    model = NetworkGaussianMixture(2, graph="full", random_state=0).fit(X, nodes=nodes)
    np.testing.assert_allclose(model.means_[..., 2:5].sum(-1), 1, atol=1e-6)
    assert np.isfinite(model.score(table(n=30, seed=8)[0], nodes=nodes))


def test_named_columns_of_numbers_are_categories():
    X, nodes, _ = table()
    X["colour"] = X["colour"].map({"blue": 1, "green": 2, "red": 3})
    kinds = found_in(X, ["colour"], True)
    assert kinds == Categories(4, (1, 3), ((1, 2, 3), (False, True)))
    array = X.astype(float).to_numpy()
    local = NetworkGaussianMixture(2, method="local", categorical=[1, 3], random_state=0)
    assert local.fit(array, nodes=nodes).categories_.levels == ((1.0, 2.0, 3.0), (0.0, 1.0))


def test_methods_for_gaussians_refuse_categories():
    X, nodes, _ = table()
    numbers = X.assign(colour=X["colour"].map({"blue": 1, "green": 2, "red": 3}))
    numbers = numbers.drop(columns="smokes")
    coupled = NetworkGaussianMixture(2, graph="full", method="gtv-mmd", categorical=["colour"])
    with pytest.raises(ValueError, match="GTVMin is defined for Gaussians alone. Leave them out"):
        coupled.fit(numbers, nodes=nodes)
    with pytest.raises(ValueError, match="holds the text 'blue'|holds the text"):
        NetworkGaussianMixture(2, method="gtv-mmd").fit(X, nodes=nodes)


def test_what_cannot_be_a_category_is_refused(model):
    X, nodes, _ = table()
    with pytest.raises(ValueError, match="`categorical` names 'color', but the columns are 'age'"):
        NetworkGaussianMixture(2, categorical="color").fit(X, nodes=nodes)
    with pytest.raises(ValueError, match="'age' of X is to be categorical and has 180 different"):
        NetworkGaussianMixture(2, categorical="age").fit(X, nodes=nodes)
    words = X.assign(name=[f"patient {i}" for i in range(180)])
    with pytest.raises(ValueError, match="'name' of X holds the text"):
        NetworkGaussianMixture(2).fit(words, nodes=nodes)
    with pytest.raises(ValueError, match="all columns are categorical"):
        NetworkGaussianMixture(2).fit(X[["colour", "smokes"]], nodes=nodes)
    with pytest.raises(ValueError, match="does not know. Take `mixtures_` or `atlas_`"):
        model.node("a")
