"""All the forms rows, edges and counts come in give the same table."""

import numpy as np
import pytest

from fedmixtures.graph.network import Network
from fedmixtures.io.graph_files import read_counts, read_graph
from fedmixtures.io.runs import to_toml
from fedmixtures.io.tables import plain_labels, read_table

LABELS = ("h0", "h1", "h2", "h3", "h4", "h5")


@pytest.fixture
def frame(rows):
    import pyarrow as pa

    X, nodes = np.round(rows[0], 6), rows[1]
    return pa.table({"age": X[:, 0], "site": nodes, "dose": X[:, 1]})


def written(kind: str, frame, folder) -> list[str]:
    """The same rows in one of the forms; returns what to name on the command line."""
    from pyarrow import compute, csv, feather, parquet

    path = folder / f"table.{kind}"
    if kind == "parquet":
        parquet.write_table(frame, path)
    elif kind == "feather":
        feather.write_feather(frame, str(path))
    elif kind == "npz":
        X = np.stack([frame["age"].to_numpy(), frame["dose"].to_numpy()], 1)
        np.savez(
            path, X=X, site=frame["site"].to_numpy().astype(str), feature_names=["age", "dose"]
        )
    elif kind == "tsv":
        csv.write_csv(frame, path, csv.WriteOptions(delimiter="\t"))
    else:
        parts = folder / "sites"
        parts.mkdir()
        for label in LABELS:
            own = frame.filter(compute.equal(frame["site"], label)).drop_columns("site")
            csv.write_csv(own, parts / f"{label}.csv")
        return [str(parts)] if kind == "folder" else [str(parts / "h*.csv")]
    return [str(path)]


@pytest.mark.parametrize("kind", ["parquet", "feather", "npz", "tsv", "folder", "pattern"])
def test_every_form_holds_the_same_rows(kind, files, frame, tmp_path):
    wanted = read_table([str(files / "data.csv")], nodes="site")
    column = None if kind in ("folder", "pattern") else "site"
    found = read_table(written(kind, frame, tmp_path), nodes=column)
    assert found.features == ("age", "dose")
    assert found.nodes.tolist() == wanted.nodes.tolist()
    assert np.array_equal(found.rows, wanted.rows)


def test_features_are_chosen_by_name_and_in_order(files):
    table = read_table([str(files / "data.csv")], nodes="site", features=("dose", "age"))
    plain = read_table([str(files / "data.csv")], nodes="site")
    assert table.features == ("dose", "age")
    assert np.array_equal(table.rows, plain.rows[:, ::-1])


def features_of(folder, **columns):
    """What is recognised in one table of these columns beside a feature."""
    import pyarrow as pa
    from pyarrow import csv

    known = {"site": ["a", "b", "c"] * 20, "dose": np.random.default_rng(0).normal(size=60)}
    csv.write_csv(pa.table(known | columns), folder / "table.csv")
    table = read_table([str(folder / "table.csv")], nodes="site", recognise=True)
    assert table.rows.shape == (60, len(table.features))
    return table


@pytest.mark.parametrize(
    ("name", "cells", "why"),
    [
        ("n", range(100, 160), "an identifier: a different whole number in every row"),
        ("patient_id", range(0, 60_000_000, 1_000_000), "an identifier: a different whole"),
        ("file", [f"P{i:04}" for i in range(60)], "an identifier: different text in every row"),
        ("seen", [f"2024-01-{i % 28 + 1:02}" for i in range(60)], "dates"),
        ("at", [f"2024-01-{i % 28 + 1:02} 10:15:00" for i in range(60)], "dates"),
        ("on", [f"{i % 28 + 1}.3.2024" for i in range(60)], "dates"),
        ("unit", [7] * 60, "7 in every row"),
        ("kind", ["adult"] * 60, "'adult' in every row"),
        ("nothing", [None] * 60, "empty in every row"),
    ],
)
def test_what_is_no_feature_is_left_out_with_the_reason(tmp_path, name, cells, why):
    table = features_of(tmp_path, **{name: list(cells)})
    assert table.features == ("dose",)
    [(found, reason)] = table.left_out
    assert found == name
    assert reason.startswith(why)


def test_booleans_are_zero_and_one(tmp_path):
    table = features_of(tmp_path, smokes=[True, False, None] * 20)
    assert table.features == ("dose", "smokes")
    np.testing.assert_array_equal(table.rows[:3, 1], [1.0, 0.0, np.nan])
    np.savez(tmp_path / "rows.npz", X=np.eye(3, dtype=bool))
    assert np.array_equal(read_table([str(tmp_path / "rows.npz")]).rows, np.eye(3))


def test_measurements_are_no_identifiers(tmp_path):
    rng = np.random.default_rng(1)
    measured = {
        "weight": rng.normal(size=60),  # all different
        "patient": rng.normal(size=60),
        "income": rng.permutation(np.arange(0, 6_000_000, 100_000) + rng.integers(99_999, size=60)),
        "age": rng.integers(20, 90, size=60),
        "number_of_steps": np.arange(60) * 10_007,
    }
    table = features_of(tmp_path, **measured)
    assert table.features == ("dose", *measured)
    assert table.left_out == ()
    assert table.doubtful == ("income", "number_of_steps")


def test_files_of_nodes_are_judged_together(tmp_path):
    for site, unit in (("a", 1), ("b", 2)):
        lines = [f"{site}{i},{i},{unit},{i / 7},{site}" for i in range(10)]
        (tmp_path / f"{site}.csv").write_text("\n".join(["key,nr,unit,x,name", *lines]) + "\n")
    table = read_table([str(tmp_path)], recognise=True)
    assert table.features == ("unit", "x")  # one value in each file, but not the same
    assert [name for name, _ in table.left_out] == ["key", "nr", "name"]
    (tmp_path / "b.csv").write_text("key,nr,unit,x,name\nb1,1,2,?,b\nb2,2,2,?,b\n")
    with pytest.raises(ValueError, match="column 'x' holds '\\?' in some files and other"):
        read_table([str(tmp_path)], recognise=True)


def test_a_bad_row_is_named_by_its_file(files, frame, tmp_path):
    sources = written("folder", frame, tmp_path)
    path = tmp_path / "sites" / "h4.csv"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:3], "inf,1.0", *lines[4:]]) + "\n")
    with pytest.raises(
        ValueError, match=r"column 'age' holds infinity at row 2 of h4.csv \(node 'h4'\)"
    ):
        read_table(sources)


def test_text_beyond_the_first_megabyte_is_found(tmp_path):
    """Arrow guesses types from the first block; a late surprise must be told as plainly."""
    lines = ["x,n", *(f"{i}.123456789,a" for i in range(120_000)), "oops,a"]
    (tmp_path / "long.csv").write_text("\n".join(lines) + "\n")
    with pytest.raises(ValueError, match="the text 'oops' at row 120000"):
        read_table([str(tmp_path / "long.csv")], nodes="n")


def test_other_columns_of_other_files_are_refused(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,2\n2,3\n")
    (tmp_path / "b.csv").write_text("x,z\n1,2\n2,3\n")
    with pytest.raises(ValueError, match="b.csv has the columns 'x' and 'z' but a.csv"):
        read_table([str(tmp_path)])


@pytest.mark.parametrize("empty", ["", "nan"])
def test_an_empty_node_in_arrays_is_named_by_its_row(tmp_path, empty):
    labels = np.array([1.0, 2.0, np.nan]) if empty == "nan" else np.array(["a", "b", empty])
    np.savez(tmp_path / "rows.npz", X=np.eye(3), site=labels)
    with pytest.raises(ValueError, match=r"'site' of rows.npz names no node at row 2\. Give"):
        read_table([str(tmp_path / "rows.npz")], nodes="site")


def test_labels_are_numbers_only_if_written_as_such():
    assert plain_labels(["1", "2", "10"]).tolist() == [1, 2, 10]
    assert plain_labels(["01", "2"]).tolist() == ["01", "2"]
    assert plain_labels(np.array([3, 4], dtype=np.int16)).tolist() == [3, 4]
    assert plain_labels([1.5, 2.0]).tolist() == ["1.5", "2.0"]


def test_integer_nodes_meet_integer_edges(tmp_path):
    (tmp_path / "edges.csv").write_text("source,target,weight\n1,2,0.5\n2,10,1\n")
    network = read_graph(str(tmp_path / "edges.csv"), (1, 2, 10))
    assert isinstance(network, Network)
    assert network.labels == (1, 2, 10)
    assert network.weight.tolist() == [0.5, 1.0]


def test_graphml_gives_the_same_network_as_csv(files):
    import networkx

    wanted = read_graph(str(files / "edges.csv"), LABELS)
    networkx.write_graphml(wanted.to_networkx(), files / "edges.graphml")
    assert read_graph(str(files / "edges.graphml"), LABELS) == wanted


def test_graphs_by_name_are_passed_on():
    assert read_graph("full", LABELS) == "full"
    assert read_graph("knn:5", LABELS) == "knn:5"
    assert read_graph(None, LABELS) is None


def test_isolated_nodes_on_request(tmp_path):
    (tmp_path / "edges.csv").write_text("source,target\nh0,h1\n")
    network = read_graph(str(tmp_path / "edges.csv"), LABELS, allow_isolated=True)
    assert network.degree.tolist() == [1, 1, 0, 0, 0, 0]


def test_counts_by_node(tmp_path):
    (tmp_path / "k.csv").write_text(
        "node,k\n" + "".join(f"{n},{i + 1}\n" for i, n in enumerate(LABELS))
    )
    assert read_counts(tmp_path / "k.csv", LABELS) == {n: i + 1 for i, n in enumerate(LABELS)}


def test_toml_comes_back_as_it_was():
    import tomllib

    settings = {
        "data": ["a b.csv", 'c"d\\e.csv'],
        "n": 3,
        "x": 1e-7,
        "on": True,
        "nothing": None,
        "components": {"h 1": 2, "ü": 3},
    }
    back = tomllib.loads(to_toml(settings))
    assert back == {name: value for name, value in settings.items() if value is not None}
