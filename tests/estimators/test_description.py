"""Columns that were not fitted, by cluster."""

import numpy as np
import pandas as pd
import pytest

from fedmixtures import NetworkGaussianMixture, load
from fedmixtures.data.node_data import NodeData
from fedmixtures.estimators.description import OTHERS, described


@pytest.fixture(scope="module")
def wards():
    """Two kinds of patients far apart; the second mostly ill; a rare value at one ward."""
    rng = np.random.default_rng(5)
    kind = np.repeat([0, 1], 60)
    frame = pd.DataFrame({"glucose": rng.normal(90 + 90 * kind, 8)})
    frame["sodium"] = rng.normal(140, 3, 120)
    frame["ward"] = np.tile(["north", "south", "west"], 40)
    frame["ill"] = (rng.random(120) < 0.2 + 0.6 * kind).astype(int)
    frame["sex"] = rng.choice(["f", "m"], 120).astype(object)
    frame.loc[frame.index[:6], "sex"] = None
    frame.loc[frame.index[6:9], "sex"] = "x"
    frame["age"] = np.where(rng.random(120) < 0.1, np.nan, rng.normal(50 + 10 * kind, 5))
    return frame.sample(frac=1.0, random_state=0)


@pytest.fixture(scope="module")
def model(wards):
    model = NetworkGaussianMixture(2, graph="full", random_state=0)
    return model.fit(wards, nodes="ward", describe=["ill", "sex", "age"])


def test_shares_and_means_are_those_of_the_rows(model, wards):
    """Clusters are far apart, so that memberships are all but certain."""
    found, shown = model.predict(wards, nodes="ward"), model.atlas_.description()
    assert list(model.feature_names_in_) == ["glucose", "sodium"]
    for c in range(2):
        rows = wards[found == c]
        assert shown["ill=1"].iloc[c] == pytest.approx((rows.ill == 1).mean(), abs=0.01)
        assert shown["sex=f"].iloc[c] == pytest.approx((rows.sex.dropna() == "f").mean(), abs=0.01)
        assert shown["age"].iloc[c] == pytest.approx(rows.age.mean(), abs=0.1)
        assert shown["age (sd)"].iloc[c] == pytest.approx(rows.age.std(ddof=0), rel=0.03)
    assert shown["age"].loc["all"] == pytest.approx(wards.age.mean())
    west = wards[(found == 1) & (wards.ward == "west")]
    assert model.atlas_.description("west")["age"].iloc[1] == pytest.approx(
        west.age.mean(), abs=0.3
    )


def test_nothing_is_told_of_fewer_than_five_rows(model):
    """Neither where it is shown nor in what is stored."""
    assert (model.atlas_.description()["sex=x"] == "<5").all()
    described = model.described_
    assert np.isnan(described.means[..., described.cells.index("sex=x")]).all()


def test_described_columns_change_no_fit(model, wards):
    alone = NetworkGaussianMixture(2, graph="full", random_state=0)
    alone.fit(wards[["glucose", "sodium", "ward"]], nodes="ward")
    np.testing.assert_array_equal(alone.means_, model.means_)
    beside = NetworkGaussianMixture(2, graph="full", random_state=0).fit(
        wards[["glucose", "sodium"]].to_numpy(),
        nodes=wards.ward.to_numpy(),
        describe=wards[["ill", "sex", "age"]],
    )
    pd.testing.assert_frame_equal(beside.atlas_.description(), model.atlas_.description())


def test_descriptions_are_saved_and_kept(model, wards, tmp_path):
    model.save(tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    pd.testing.assert_frame_equal(again.atlas_.description(), model.atlas_.description())
    np.testing.assert_array_equal(again.predict(wards, nodes="ward"), model.predict(wards, "ward"))
    more = again.adapt(wards[["glucose", "sodium"]][:30], "east")
    assert more.atlas_.description("south").equals(model.atlas_.description("south"))
    with pytest.raises(ValueError, match="no description of node 'east'"):
        more.atlas_.description("east")
    again.fit(wards[["glucose", "sodium", "ward"]], nodes="ward")
    with pytest.raises(ValueError, match="describe=\\['sex', 'outcome'\\]"):
        again.atlas_.description()


def test_described_columns_are_on_the_page(model, wards, tmp_path):
    text = model.report(tmp_path / "page.html", wards, nodes="ward", static=True).read_text()
    section = text[text.index("What else is known of them") :]
    assert "&lt;5" in section[: section.index("</table>")]
    assert "± " in section[: section.index("</table>")]


def test_weights_count_rows_but_hide_none_less():
    data = NodeData.from_rows(np.zeros((8, 1)), None, np.array([2.0, 2, 2, 1, 1, 1, 9, 9]))
    cells = {"kind": ["a", "a", "a", "b", "b", "b", "b", "b"]}
    (shares,) = described(cells, np.ones((8, 1)), data).means[0, :1]
    np.testing.assert_allclose(shares, [np.nan, 21 / 27])  # three rows, whatever they weigh


def test_many_values_are_the_most_frequent_and_others():
    words = [f"w{i % 40}" for i in range(400)] + ["often"] * 50
    data = NodeData.from_rows(np.zeros((450, 1)))
    cells = {"word": words, "n": [str(i) for i in range(450)], "empty": [None] * 450}
    found = described(cells, np.ones((450, 1)), data)
    word, number, empty = found.columns
    assert len(word.levels) == 13
    assert word.levels[-1] == OTHERS
    assert "often" in word.levels
    assert not number.levels
    assert not empty.levels
    assert np.isnan(found.means[..., -1]).all()
    assert found.means[0, 0, :13].sum() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("describe", "words"),
    [
        (["outcome"], "names 'outcome', but the columns are"),
        ("ward", "the column of nodes"),
        (["glucose", "sodium", "ill", "sex", "age"], "names all columns"),
        (pd.DataFrame({"a": [1, 2]}), "column 'a' of `describe` has 2 rows, but X has 120"),
        (pd.DataFrame({"sodium": np.arange(120)}), "which is a feature in X"),
        (pd.DataFrame({"ward": np.arange(120)}), "which is the column of nodes in X"),
        (3, "`describe` is 3"),
    ],
)
def test_what_cannot_describe_is_refused(wards, describe, words):
    with pytest.raises(ValueError, match=words):
        NetworkGaussianMixture(2).fit(wards, nodes="ward", describe=describe)


def test_names_need_a_table(wards):
    with pytest.raises(ValueError, match="X is a ndarray without column names"):
        NetworkGaussianMixture(2).fit(wards[["glucose", "sodium"]].to_numpy(), describe=["ill"])
