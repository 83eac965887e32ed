"""Bad input: one paragraph, exit code 2, no traceback, nothing written."""

import os
import subprocess
import sys

import pytest

FIT = "fit data.csv --nodes site --graph edges.csv --k 2 --out run"


@pytest.fixture
def refused(run, files):
    """A command that must be refused, with these words in its message."""

    def check(command: str, *words: str) -> str:
        before = {p: p.stat().st_mtime_ns for p in files.rglob("*")}
        code, _, error = run(command)
        assert code == 2, error
        assert error.startswith("Error: ")
        assert "Traceback" not in error
        assert len(error.strip().splitlines()) == 1, error
        for word in words:
            assert word in error
        assert {p: p.stat().st_mtime_ns for p in files.rglob("*")} == before
        return error

    return check


def test_missing_file(refused):
    refused("fit date.csv --nodes site --k 2", "there is no file 'date.csv'", "data.csv")


def test_missing_column(refused):
    refused(FIT.replace("site", "hospital"), "no column 'hospital'", "'age', 'site' and 'dose'")


def test_missing_feature(refused):
    refused(f"{FIT} --features age,weight", "--features names 'weight'")


def test_infinity(refused, change):
    change(5, 0, "inf")
    refused(FIT, "column 'age' holds infinity at row 4", "node 'h0'")


def test_empty_cells_where_the_method_cannot_take_them(refused, change):
    change(40, 2, "")
    change(41, 2, "nan")
    command = f"{FIT} --method fedkmeans --holdout 0"
    refused(command, "cells are missing (2 are NaN), and FedKMeans cannot", "gtv-mmd")


def test_text_in_a_numeric_column(refused, change):
    change(7, 2, "high")
    refused(FIT, "column 'dose'", "the text 'high' at row 6")


@pytest.mark.parametrize("cell", ["", "  "])
def test_an_empty_node_cell(refused, change, cell):
    change(8, 1, cell)
    change(12, 1, cell)
    refused(FIT, "column 'site' of data.csv names no node at row 7; 2 rows have none. Give every")


def test_a_forgotten_node_column_is_guessed(refused):
    refused("fit data.csv --k 2 --out run", "holds 'h0', and no column names", "--nodes site")


def test_self_loop(refused, files, write_csv):
    write_csv(files / "edges.csv", ["source", "target"], [("h0", "h1"), ("h2", "h2")])
    refused(FIT + " --allow-isolated", "edge ('h2', 'h2') is a self-loop")


def test_edge_to_a_node_without_rows(refused, files):
    with open(files / "edges.csv", "a") as file:
        file.write("h0,h9\n")
    refused(FIT, "edges.csv names node 'h9', which holds no rows")


def test_node_without_an_edge(refused, files, write_csv):
    write_csv(files / "edges.csv", ["source", "target"], [("h0", "h1"), ("h2", "h3")])
    refused(FIT, "edges.csv has no edge for node 'h4' and 'h5'", "--allow-isolated")


def test_edges_without_header(refused, files):
    (files / "edges.csv").write_text("h0;h1\nh1;h2\n")
    refused(FIT, "source,target")


def test_bad_edge_weight(refused, files, write_csv):
    write_csv(files / "edges.csv", ["source", "target", "weight"], [("h0", "h1", "much")])
    refused(FIT, "line 2 of edges.csv has the weight 'much'")


def test_unknown_graph(refused):
    refused(FIT.replace("edges.csv", "nearest"), "--graph is 'nearest'")


@pytest.mark.parametrize("k", ["0", "-1", "2.5", "many"])
def test_bad_k(refused, k):
    refused(FIT.replace("--k 2", f"--k {k}"), "--k")


def test_k_by_node_must_name_every_node(refused, files, write_csv):
    write_csv(files / "k.csv", ["node", "k"], [("h0", 2)])
    refused(FIT.replace("--k 2", "--k k.csv"), "names no k for node 'h1'")


def test_negative_alpha(refused):
    refused(f"{FIT} --alpha -1", "--alpha", "-1")


def test_alpha_of_a_method_without_one(refused):
    refused(f"{FIT} --method local --alpha 1", "'local' has no setting 'alpha'")


def test_unknown_method(refused):
    refused(f"{FIT} --method gtv-mdm", "'gtv-mdm'", "Did you mean 'gtv-mmd'?")


def test_unknown_setting(refused):
    refused(f"{FIT} --method gtv-mmd --set steps=1", "has no setting 'steps'", "n_local_steps")


def test_a_node_with_fewer_rows_than_components_is_told_and_not_refused(run, files):
    lines = (files / "data.csv").read_text().splitlines()
    kept = [line for line in lines if ",h2," not in line]
    few = [line for line in lines if ",h2," in line][:3]
    (files / "data.csv").write_text("\n".join(kept + few) + "\n")
    code, out, err = run(FIT.replace("--k 2", "--k 5 --method gtv-mmd"))
    assert code == 0, err
    assert "node 'h2' has fewer distinct rows than n_components" in out


def test_constant_column(refused, files):
    lines = (files / "data.csv").read_text().splitlines()
    lines = [lines[0] + ",unit", *(line + ",7" for line in lines[1:])]
    (files / "data.csv").write_text("\n".join(lines) + "\n")
    command = f"{FIT} --features age,dose,unit"
    refused(command, "column 'unit' is 7 in every row", "--features age,dose")


def test_columns_to_leave_out(refused):
    refused(
        f"{FIT} --drop age,hight", "--drop names 'hight', which data.csv does not have", "'dose'"
    )
    refused(f"{FIT} --label sick", "--label names 'sick', which data.csv does not have")
    refused(f"{FIT} --drop site", "--drop names 'site', which --nodes names too")
    refused(f"{FIT} --features age --label age", "--label names 'age', which --features names too")
    refused(f"{FIT} --drop age,dose", "data.csv has no feature column beside 'site', 'age' and")


def test_no_column_is_a_feature(refused, files):
    lines = ["id,site,when", *(f"{i},h{i % 3},2024-01-{i + 1:02}" for i in range(20))]
    (files / "data.csv").write_text("\n".join(lines) + "\n")
    refused(FIT, "data.csv has no column that is a feature: id (an identifier", "when (dates)")


def test_empty_file(refused, files):
    (files / "data.csv").write_text("")
    refused(FIT, "data.csv is empty")


def test_header_without_rows(refused, files):
    (files / "data.csv").write_text("age,site,dose\n")
    refused(FIT, "data.csv has no rows")


def test_wrong_delimiter(refused, files):
    text = (files / "data.csv").read_text()
    (files / "data.csv").write_text(text.replace(",", ";"))
    refused(FIT, "separated by ';'", "--delimiter")


def test_options_without_a_part_in_the_method(refused):
    refused(f"{FIT} --rounds 20", "--rounds is 20, but TrustThenPool has no rounds", "gtv-mmd")
    refused(f"{FIT} -m local --devices 2", "--devices is 2, but Local runs on one device")
    refused(
        "compare data.csv --nodes site --graph edges.csv --k 2 --rounds 4",
        "--rounds is 4, but none of local, centralized, trust has rounds",
    )


def test_unwritable_folder(refused):
    refused(FIT.replace("--out run", "--out data.csv/run"), "cannot be written")


def test_folder_that_exists(refused, files):
    (files / "run").mkdir()
    (files / "run" / "precious.txt").write_text("mine")
    refused(FIT, "'run' already exists and is left as it is")


def test_resume_of_nothing(refused):
    refused("fit --resume run", "no run folder 'run'")


def test_bad_holdout(refused):
    refused(f"{FIT} --holdout 1.5", "--holdout is 1.5")


def test_unknown_option(refused):
    refused(f"{FIT} --colour blue", "--colour")


def test_no_data(refused):
    refused("fit --nodes site", "no data given")


def test_unknown_ending(refused, files):
    (files / "data.csv").rename(files / "data.xls")
    refused(FIT.replace("data.csv", "data.xls"), "unknown ending", ".parquet")


def test_damaged_parquet(refused, files):
    (files / "data.parquet").write_bytes(b"PAR1 no more")
    refused(FIT.replace("data.csv", "data.parquet"), "data.parquet could not be read")


def test_in_a_process_of_its_own(files):
    """The whole way once, as a user's shell sees it."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from fedmixtures.cli.main import main; sys.exit(main())",
        ]
        + FIT.replace("--k 2", "--k 0").split(),
        cwd=files,
        env=os.environ | {"COLUMNS": "300"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == "Reading data.csv\n"
    assert done.stderr == "Error: `--k` is 0. Give a whole number of at least 1.\n"
    assert not (files / "run").exists()
