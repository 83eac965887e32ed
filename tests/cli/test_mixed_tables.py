"""Words, codes, booleans, skew and collinear columns on the command line, as in Python."""

import csv
import json

import numpy as np
import pandas as pd
import pytest

import fedmixtures as fm
from fedmixtures.io.tables import read_table


@pytest.fixture(scope="module")
def frame():
    """Four wards; two clusters that sex tells apart, a code, and a skewed laboratory value."""
    rng = np.random.default_rng(0)
    n, cluster = 160, np.arange(160) // 4 % 2
    frame = pd.DataFrame({"ward": [f"w{i % 4}" for i in range(n)], "age": 50 + 9 * cluster})
    frame["age"] = (frame["age"] + 3 * rng.normal(size=n)).round(2)
    frame["crp"] = np.exp(1.2 * rng.normal(size=n)).round(4)
    frame["sex"] = np.where(rng.random(n) < 0.1 + 0.8 * cluster, "f", "m")
    frame["pain"] = rng.integers(1, 5, size=n)
    frame["smokes"] = rng.random(n) < 0.3
    frame.loc[3, "sex"] = None
    return frame


@pytest.fixture
def table(frame, tmp_path):
    frame.to_csv(tmp_path / "wards.csv", index=False)
    return tmp_path / "wards.csv"


def fit(run, more=""):
    code, out, err = run(f"fit wards.csv --nodes ward --k 2 --categorical pain --out run {more}")
    assert code == 0, err
    return out


def test_the_command_and_the_estimator_give_the_same_model(run, table, frame, tmp_path):
    out = fit(run, "--holdout 0")
    assert "pain (1, 2, 3 and 4), sex (f and m) and smokes (False and True)" not in out  # in order
    assert "sex (f and m), pain (1, 2, 3 and 4) and smokes (False and True)" in out
    assert "crp: log" in out
    other = fm.NetworkGaussianMixture(2, categorical=["pain"], random_state=0)
    other.fit(frame, nodes="ward")
    one = fm.load(tmp_path / "run")
    assert one.categories_ == other.categories_
    assert one.transform_ == other.transform_
    density = other.score_samples(frame, nodes="ward")
    np.testing.assert_allclose(one.score_samples(frame, nodes="ward"), density, atol=1e-9)
    assert run("predict run wards.csv --out p.csv")[0] == 0
    told = pd.read_csv(tmp_path / "p.csv")
    np.testing.assert_allclose(told["log_density"], density, atol=1e-6)
    np.testing.assert_array_equal(told["component"], other.predict(frame, nodes="ward"))
    code, out, _ = run("score run wards.csv")
    assert code == 0
    assert f"mean log-density {density.mean():.3f}" in out


def test_held_out_rows_and_the_page_are_in_the_users_units(run, table, frame, tmp_path):
    fit(run)
    content = json.loads((tmp_path / "run/report.json").read_text())
    model = fm.load(tmp_path / "run")
    held = pd.read_parquet(tmp_path / "run/assignments.parquet")["held_out"].to_numpy()
    density = pd.Series(model.score_samples(frame[held], nodes="ward"))
    by_node = density.groupby(frame["ward"][held].to_numpy()).mean()
    assert content["scores"]["medians"]["network"][0] == pytest.approx(by_node.median(), abs=1e-3)
    assert "log crp" in json.dumps(content)
    assert "sex=f" in json.dumps(content)
    assert run("report run --include-rows --out rows.html")[0] == 0


def test_new_rows_keep_their_categories(run, table, frame, tmp_path):
    fit(run)
    new = frame[frame["ward"] == "w1"].drop(columns="ward").assign(ward="w9")
    new.iloc[0, new.columns.get_loc("sex")] = "x"
    new.to_csv(tmp_path / "w9.csv", index=False)
    code, out, err = run("adapt run w9.csv --node w9 --out with")
    assert code == 0, err
    assert "column 'sex' holds 'x', which the run was not fitted on: taken as missing" in out
    assert "w9" in fm.load(tmp_path / "with").mixtures_
    assert run("predict with w9.csv --nodes ward --out p.csv")[0] == 0


def test_columns_are_taken_as_they_are_on_request(run, table):
    assert "transformed" not in fit(run, "--transforms none")
    code, _, err = run("fit wards.csv --nodes ward --k 2 --transforms crp=cube --out other")
    assert code == 2
    assert "transforms['crp']" in err


def test_couplings_and_sites_refuse_categories(run, table):
    code, _, err = run("fit wards.csv --nodes ward --k 2 --method gtv-mmd --out other")
    assert code == 2
    assert "categor" in err
    code, _, err = run("federate try wards.csv --nodes ward --k 2 --out sites")
    assert code == 2
    assert "no categories between sites" in err
    assert "'sex'" in err
    _, _, err = run("federate try wards.csv --nodes ward --drop sex --k 2 --out sites")
    assert "no categories between sites" in err
    assert "'sex'" not in err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sex": [f"text {i // 2}" for i in range(160)]}, "80 different texts, too many"),
        ({"sex": ["1", "2", "m", "f"] * 40}, "holds the text 'm' at row 2"),
    ],
)
def test_text_that_is_no_category_is_refused(run, table, frame, change, words):
    frame.assign(**change).to_csv(table, index=False)
    code, _, err = run("fit wards.csv --nodes ward --k 2 --out other")
    assert code == 2
    assert words in err


def test_columns_that_determine_each_other_are_told_and_harmless(run, table, frame):
    frame = frame.drop(columns=["sex", "pain", "smokes"])
    frame.assign(months=12 * frame["age"] + 1).to_csv(table, index=False)
    code, out, err = run("fit wards.csv --nodes ward --k 2 --out run")
    assert code == 0, err
    assert "age and months determine each other up to rounding" in out
    assert "all rows pooled" in out


def test_files_of_nodes_share_their_categories(tmp_path):
    for name, sex in (("a", ["f", "f", "m"]), ("b", ["m", "NA", "m"])):
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            lines = csv.writer(file)
            lines.writerows([["x", "sex"], *zip([1, 2, 3.5], sex, strict=True)])
    table = read_table([str(tmp_path)], categorical=())
    assert table.categories.levels == (("f", "m"),)
    np.testing.assert_array_equal(table.rows[:, 1], [0, 0, 1, 1, np.nan, 1])
    assert table.by_node().categories == (2,)
    with pytest.raises(ValueError, match="--categorical names 'age', which is none of"):
        read_table([str(tmp_path)], categorical=("age",))
    with pytest.raises(ValueError, match="Features must be numbers"):
        read_table([str(tmp_path)])  # as sites read theirs


def test_columns_describe_clusters_and_are_not_fitted(run, table, frame, tmp_path):
    import fedmixtures

    outcome = np.where(np.arange(len(frame)) % 3, "well", "ill")
    frame.assign(outcome=outcome).to_csv(tmp_path / "more.csv", index=False)
    column = "age"
    options = f"--nodes ward --k 2 --holdout 0 --label outcome --describe {column}"
    code, out, err = run(f"fit more.csv {options} --out told/")
    assert code == 0, err
    assert "outcome (the label)" in out
    assert f"{column} (--describe)" in out
    model = fedmixtures.load(tmp_path / "told")
    assert column not in model.feature_names_in_
    shown = model.atlas_.description()
    assert shown.loc["all", "outcome=ill"] == pytest.approx((outcome == "ill").mean())
    assert shown.loc["all", column] == pytest.approx(frame[column].mean())
    assert "What else is known of them" in (tmp_path / "told" / "report.html").read_text()
    assert run("report told/ --static --out again.html")[0] == 0
    assert "What else is known of them" in (tmp_path / "again.html").read_text()
    refused = lambda what: run(f"fit more.csv --nodes ward {what} --out no/")[2]
    assert "--describe names 'height'" in refused("--describe height").replace("\n", " ")
    assert "--features names too" in refused(f"--features {column} --describe {column}")
    assert "--nodes names too" in refused("--describe ward")
