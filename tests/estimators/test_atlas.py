"""The clusters of the whole network, described."""

import numpy as np
import pandas as pd
import pytest

from fedmixtures import NetworkGaussianMixture, load


@pytest.fixture(scope="module")
def wards():
    """Three kinds of patients; the third at one hospital alone."""
    rng = np.random.default_rng(3)
    parts = []
    wards = {"north": (60, 30, 0), "south": (50, 40, 0), "west": (20, 20, 25)}
    for label, counts in wards.items():
        for (glucose, sodium), n in zip([(90, 140), (180, 140), (90, 120)], counts, strict=True):
            rows = np.column_stack([rng.normal(glucose, 8, n), rng.normal(sodium, 3, n)])
            parts.append(pd.DataFrame(rows, columns=["glucose", "sodium"]).assign(ward=label))
    return pd.concat(parts, ignore_index=True)


@pytest.fixture(scope="module")
def model(wards):
    return NetworkGaussianMixture(3, graph="full", random_state=0).fit(wards, nodes="ward")


def test_profiles_are_those_of_the_rows(model, wards):
    """By the rows that `predict` gives to each cluster."""
    atlas, found = model.atlas_, model.predict(wards, nodes="ward")
    X = wards[["glucose", "sodium"]]
    for c in range(3):
        np.testing.assert_allclose(atlas.profiles.means[c], X[found == c].mean(), rtol=0.03)
        np.testing.assert_allclose(atlas.spreads[c], X[found == c].std(), rtol=0.25)
        assert atlas.profiles.weights[c] == pytest.approx((found == c).mean(), abs=0.03)
    here = (wards.ward == "west").to_numpy()
    west = np.bincount(found[here], minlength=3) / here.sum()
    place = atlas.node_labels.index("west")
    np.testing.assert_allclose(atlas.shares[place], west, atol=0.05)
    low, high = atlas.intervals[place].T
    assert ((low < west) & (west < high)).all()


def test_what_sets_clusters_apart_and_where_they_are(model):
    atlas = model.atlas_
    words = {atlas.words(c) for c in range(3)}
    (sick,) = (c for c in range(3) if atlas.words(c).startswith("high glucose"))
    (rare,) = (c for c in range(3) if atlas.words(c).startswith("low sodium"))
    assert len(words) == 3
    assert sick != rare
    assert set(atlas.nodes_of(sick)) == {"north", "south", "west"}
    assert atlas.nodes_of(rare) == ("west",)
    assert "at west alone" in str(atlas)
    assert atlas.overlap[sick, rare] < 0.01
    assert atlas.overlap[sick, sick] == pytest.approx(1.0)
    assert np.isnan(atlas.drift[atlas.node_labels.index("north"), rare])
    assert atlas.n_clusters == 3


def test_tables(model):
    table = model.atlas_.table()
    assert list(table.columns[:4]) == ["name", "share", "what sets it apart", "nodes"]
    assert table["share"].sum() == pytest.approx(1.0)
    assert table["share"].is_monotonic_decreasing
    shares = model.atlas_.share_table()
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    assert list(shares.index) == list(model.nodes_)


def test_names_travel_with_the_model(model, wards, tmp_path):
    with pytest.raises(ValueError, match="Give 3 different names"):
        model.name_clusters(["a", "b"])
    model.name_clusters(["well", "diabetic", "drained"])
    model.save(tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    assert again.atlas_.names == ("well", "diabetic", "drained")
    assert list(again.atlas_.table()["name"]) == ["well", "diabetic", "drained"]
    later = NetworkGaussianMixture(3, graph="full", random_state=1)
    assert later.fit(wards, nodes="ward", like=again).atlas_.names == again.atlas_.names
    assert later.fit(wards, nodes="ward").atlas_.names == ("0", "1", "2")
