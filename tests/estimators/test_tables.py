"""Tables of pandas, polars and pyarrow in place of arrays."""

import numpy as np
import pandas
import polars
import pyarrow
import pytest

from fedmixtures import NetworkGaussianMixture
from fedmixtures.estimators.selection import select_components

FRAMES = {
    "pandas": pandas.DataFrame,
    "polars": polars.DataFrame,
    "pyarrow": pyarrow.table,
}
over_frames = pytest.mark.parametrize("kind", FRAMES)


def table(kind, case):
    columns = {"x": case.X[:, 0], "site": case.nodes.tolist(), "y": case.X[:, 1]}
    return FRAMES[kind](columns)


@over_frames
def test_node_column_by_name(kind, case, make, fitted):
    frame = table(kind, case)
    model = make().fit(frame, nodes="site")
    np.testing.assert_array_equal(model.means_, fitted.means_)
    assert model.nodes_.tolist() == ["a", "b", "c"]
    np.testing.assert_array_equal(
        model.predict(frame, nodes="site"), fitted.predict(case.X, case.nodes)
    )
    assert model.score(frame, nodes="site") == pytest.approx(fitted.score(case.X, nodes=case.nodes))


@over_frames
def test_columns_apart(kind, case, make, fitted):
    frame = table(kind, case)
    rows = {
        "pandas": lambda: frame[["x", "y"]],
        "polars": lambda: frame.select("x", "y"),
        "pyarrow": lambda: frame.select(["x", "y"]),
    }[kind]()
    model = make().fit(rows, nodes=frame["site"])
    np.testing.assert_array_equal(model.means_, fitted.means_)


@over_frames
def test_names_of_features_are_kept_and_named_in_errors(kind, case, make):
    frame = table(kind, case)
    model = make(n_rounds=0).fit(frame, nodes="site")
    assert model.feature_names_in_.tolist() == ["x", "y"]
    X = case.X.copy()
    X[50, 1] = np.nan
    broken = FRAMES[kind]({"x": X[:, 0], "site": case.nodes.tolist(), "y": X[:, 1]})
    with pytest.raises(ValueError, match="X contains NaN at row 50, column 'y', node 'b'"):
        make(method="fedkmeans").fit(broken, nodes="site")


@over_frames
def test_a_missing_column_is_named_with_those_there_are(kind, case, make):
    message = "`nodes` is 'ward', but the table has no such column. Its columns are 'x', 'site' and"
    with pytest.raises(ValueError, match=message):
        make().fit(table(kind, case), nodes="ward")


def test_missing_labels_in_a_column_are_refused(case, make):
    frame = table("pandas", case)
    frame.loc[3, "site"] = None
    with pytest.raises(ValueError, match="`nodes` is missing for 1 rows, the first is row 3"):
        make().fit(frame, nodes="site")


@over_frames
def test_dates_are_refused_by_their_column(kind, case, make):
    days = np.datetime64("2024-01-01") + np.arange(len(case.X))
    frame = FRAMES[kind]({"x": case.X[:, 0], "seen": days.astype("datetime64[us]")})
    with pytest.raises(ValueError, match=r"column 'seen' of X holds Datetime.* values. Features"):
        make().fit(frame, nodes=case.nodes)


def test_dates_in_arrays_and_as_objects(case, make):
    days = np.datetime64("2024-01-01") + np.arange(len(case.X))
    with pytest.raises(ValueError, match=r"column 0 of X holds datetime64\[D\] values"):
        make().fit(days[:, None], nodes=case.nodes)
    frame = pandas.DataFrame({"x": case.X[:, 0], "seen": pandas.Series(days.tolist())})
    with pytest.raises(ValueError, match="'seen' of X holds the date '2024-01-01' at row 0"):
        make().fit(frame, nodes=case.nodes)


@over_frames
def test_selection_takes_the_node_column_by_name(kind, case):
    found = select_components(table(kind, case), "site", candidates=(1, 2), method="local")
    wanted = select_components(case.X, case.nodes, candidates=(1, 2), method="local")
    assert found.n_components == wanted.n_components
    np.testing.assert_array_equal(found.bic, wanted.bic)


@over_frames
def test_adapt_takes_a_table_with_the_node_column_of_fit(kind, case, make):
    columns = {"x": case.X[:30, 0], "site": ["new"] * 30, "y": case.X[:30, 1]}
    found = make(n_rounds=1).fit(table(kind, case), nodes="site")
    found.adapt(FRAMES[kind](columns), node="new")
    wanted = make(n_rounds=1).fit(case.X, nodes=case.nodes).adapt(case.X[:30], node="new")
    np.testing.assert_array_equal(found.means_, wanted.means_)
    other = FRAMES[kind](columns | {"site": ["other"] * 29 + ["a"]})
    with pytest.raises(
        ValueError, match="`node` is 'other', but column 'site' names 'a' at row 29"
    ):
        found.adapt(other, node="other")


def test_integer_labels(case, make, fitted):
    numbers = pandas.Series(case.nodes).map({"a": 1, "b": 2, "c": 3})
    model = make(graph=[(1, 2), (2, 3, 0.5)]).fit(case.X, nodes=numbers)
    assert model.nodes_.tolist() == [1, 2, 3]
    assert model.node(np.int64(2)).means_.shape == (2, 2)
    # the k-means seed of a node is its label's; the mixtures are the same all the same
    for number, label in ((1, "a"), (2, "b"), (3, "c")):
        mine, theirs = (
            np.sort(m.means, axis=0) for m in (model.mixtures_[number], fitted.mixtures_[label])
        )
        np.testing.assert_allclose(mine, theirs, atol=1e-8)


@over_frames
def test_what_is_filled_in_is_a_table_of_the_same_kind(kind, case):
    whole = {"x": case.X[:, 0], "site": case.nodes.tolist(), "y": case.X[:, 1]}
    model, plain = (NetworkGaussianMixture(2, method="local", random_state=0) for _ in "ab")
    model.fit(FRAMES[kind](whole), nodes="site")
    plain.fit(case.X, nodes=case.nodes)
    X = case.X.copy()
    X[::9, 1] = np.nan
    frame = FRAMES[kind]({**whole, "y": X[:, 1]})
    if kind == "pandas":
        frame.index = frame.index + 7
    filled = model.impute(frame, nodes="site")
    assert type(filled) is type(frame)
    assert list(map(str, filled.columns if kind != "pyarrow" else filled.column_names)) == [*whole]
    expected = plain.impute(X, nodes=case.nodes)
    found = np.asarray(filled["y"])
    np.testing.assert_allclose(found, expected[:, 1])
    assert not np.isnan(found).any()
    if kind == "pandas":
        assert (filled.index == frame.index).all()
        assert (filled["site"] == frame["site"]).all()
    assert len(model.impute(frame, nodes="site", n_draws=2)) == 2


def test_labels_of_the_rows_that_were_fitted(case):
    model = NetworkGaussianMixture(2, method="local", random_state=0)
    model.fit(case.X, nodes=case.nodes)
    np.testing.assert_array_equal(model.labels_, model.predict(case.X, case.nodes))
