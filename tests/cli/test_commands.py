"""The commands, from files to files."""

import gc
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
import tomllib

import numpy as np
import pytest

import fedmixtures
from fedmixtures import NetworkGaussianMixture
from fedmixtures.io.runs import RunFolder

SCALED = "fit data.csv --nodes site --graph edges.csv --method gtv-mmd --k 2 --rounds 6"
FIT = f"{SCALED} --no-standardize"  # these rows are of order one as they are

COMPARE = "compare data.csv --nodes site --graph edges.csv --k 2 --rounds 4 --repeats 1"


@pytest.fixture
def fitted(run, files):
    """A finished run in run/."""
    code, out, err = run(f"{FIT} --out run")
    assert code == 0, err
    return files / "run", out


def assignments(path):
    from pyarrow import parquet

    return parquet.read_table(path).to_pydict()


def test_help_is_quick_and_loads_nothing_heavy(files):
    script = (
        "import sys; from fedmixtures.cli.main import main; main(['--help']);"
        "print(sorted({'jax', 'sklearn', 'numpy', 'scipy'} & set(sys.modules)))"
    )
    began = time.process_time(), time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip().endswith("[]")
    assert "fit" in done.stdout
    assert time.monotonic() - began[1] < 10  # far below a second on a quiet machine


def test_a_small_fit_does_without_scikit_learn():
    """Its import takes a second: as long as all else that is done before the first round."""
    script = """
import sys
import numpy as np
import fedmixtures.cli.fitting, fedmixtures.cli.prepare
from fedmixtures import KMeansStart
from fedmixtures.data.node_data import NodeData
from fedmixtures.estimators.resolve import all_rows_pooled, resolve_method
X, nodes = np.random.default_rng(0).normal(size=(80, 2)), np.repeat([0, 1], 40)
KMeansStart().mixtures(NodeData.from_rows(X, nodes), [3, 3], 0, 1e-3)
assert all_rows_pooled(resolve_method("trust"), X).engine == "jax"
print(sorted({"sklearn", "scipy.stats", "pandas", "matplotlib"} & set(sys.modules)))
"""
    how = {"capture_output": True, "text": True, "check": True}
    done = subprocess.run([sys.executable, "-c", script], **how)
    assert done.stdout.strip() == "[]"


def test_garbage_is_collected_rarely_in_a_process_of_our_own_alone(run):
    before = gc.get_threshold()
    run("--version")
    assert gc.get_threshold() == before
    script = (
        "import gc; from fedmixtures.cli.main import main; main(); print(gc.get_threshold()[0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "--version"], capture_output=True, text=True, check=True
    )
    assert int(done.stdout.split()[-1]) > 10_000  # 700 or 2,000, as Python begins


def test_every_command_says_something_before_it_loads_anything_heavy():
    """What takes seconds comes after the first line, which is there within one."""
    script = """
import builtins, sys
from fedmixtures.cli.main import main
def first(text, **how):
    raise SystemExit(f"{text} {sorted({'jax', 'sklearn', 'pyarrow'} & set(sys.modules))}")
builtins.print = first
main(sys.argv[1:])
"""
    for command, words in {
        "fit data.csv": "Reading data.csv",
        "compare data.csv": "Reading data.csv",
        "predict run new.csv": "Reading run and new.csv",
        "report run": "Reading run",
        "export run --node a": "Reading run",
        "methods": "Methods",
        "demo": "Making a network",
    }.items():
        arguments = [sys.executable, "-c", script, *command.split()]
        done = subprocess.run(arguments, capture_output=True, text=True)
        assert done.stderr.startswith(words), done.stderr
        assert done.stderr.strip().endswith("[]"), done.stderr


@pytest.mark.parametrize(
    "command", ["demo", "fit", "predict", "report", "compare", "export", "methods"]
)
def test_every_command_has_help_with_an_example(run, command):
    code, out, _ = run(f"{command} --help")
    assert code == 0
    assert f"Example: fedmixtures {command}" in out


def test_fit_says_what_it_understood_and_leaves_a_run_folder(fitted):
    folder, out = fitted
    assert "180 (36 held out to judge by)" in out
    assert "6; the smallest is 'h0' with 30 rows" in out
    assert "5; connected" in out
    names = {path.name for path in folder.iterdir()}
    wanted = {"config.toml", "history.jsonl", "model.safetensors", "assignments.parquet"}
    assert names == wanted | {"report.html", "report.json"}
    records = RunFolder(folder).read_history()
    assert [record["round"] for record in records] == list(range(7))
    assert records[-1]["objective"] < records[0]["objective"]
    assert all("held_out" in record for record in records)
    table = assignments(folder / "assignments.parquet")
    assert len(table["row"]) == 180
    assert sum(table["held_out"]) == 36
    model = fedmixtures.load(folder)
    X = np.loadtxt(folder.parent / "data.csv", delimiter=",", skiprows=1, usecols=(0, 2))
    p = model.node("h3").predict_proba(X[90:120])
    shown = np.stack([table["p0"][90:120], table["p1"][90:120]], 1)
    assert shown == pytest.approx(p, abs=1e-9)
    assert table["component"][90:120] == p.argmax(1).tolist()


def test_the_same_settings_give_the_same_numbers(fitted, run):
    folder, _ = fitted
    code, _, err = run(f"fit --config {folder}/config.toml --out again")
    assert code == 0, err
    again = folder.parent / "again"
    for name in ("history.jsonl", "config.toml", "assignments.parquet", "report.html"):
        assert (again / name).read_bytes() == (folder / name).read_bytes(), name


def test_nodes_spread_over_devices_give_the_same_numbers(fitted, run):
    folder, _ = fitted
    code, _, err = run(f"{FIT} --devices 2 --out spread")
    assert code == 0, err
    spread = folder.parent / "spread"
    one, two = (fedmixtures.load(path) for path in (folder, spread))
    assert two.means_ == pytest.approx(one.means_, abs=1e-12)
    configs = [tomllib.loads((path / "config.toml").read_text()) for path in (folder, spread)]
    assert [config["devices"] for config in configs] == [1, 2]
    code, _, err = run(f"{FIT} --devices 99 --out no")
    assert code != 0
    assert "`devices` is 99, but JAX sees" in " ".join(err.split())
    assert not (folder.parent / "no").exists()


def test_nodes_far_apart_do_not_make_a_feature_wide():
    """What counts is the spread within nodes: that between them says nothing of components."""
    from fedmixtures.data.node_data import NodeData
    from fedmixtures.estimators.scale import of_order_one

    nodes = np.repeat(np.arange(3), 40)
    rows = (
        np.random.default_rng(0).normal(size=(120, 3)) * [1.0, 0.1, 30.0] + 500.0 * nodes[:, None]
    )
    rows[::7, 0] = np.nan
    assert of_order_one(NodeData.from_rows(rows, nodes)).tolist() == [True, False, False]


def test_standardized_fits_are_stored_in_the_units_of_the_table(run, files):
    """A column times 1000 changes nothing but its units, if the scale is divided out."""
    lines = [line.split(",") for line in (files / "data.csv").read_text().splitlines()]
    scaled = [lines[0], *([f"{1000 * float(a):.3f}", s, b] for a, s, b in lines[1:])]
    (files / "big.csv").write_text("\n".join(",".join(line) for line in scaled) + "\n")
    code, out, _ = run(f"{SCALED} --out plain")
    assert code == 0
    assert "standard deviation" not in out  # rows of order one stay as they are
    assert run(f"{SCALED} --standardize --out one")[0] == 0
    code, out, err = run(f"{SCALED.replace('data.csv', 'big.csv')} --out two")
    assert code == 0, err
    assert "divided by its standard deviation" in out  # a spread of thousands is too much
    one, two = fedmixtures.load(files / "one"), fedmixtures.load(files / "two")
    assert two.means_[..., 0] == pytest.approx(1000 * one.means_[..., 0], rel=1e-5)
    assert two.means_[..., 1] == pytest.approx(one.means_[..., 1], rel=1e-5)
    ends = [RunFolder(files / name).read_history()[-1] for name in ("one", "two")]
    assert ends[1]["held_out"] == pytest.approx(ends[0]["held_out"] - np.log(1000), abs=1e-5)
    assert ends[1]["fit"] == pytest.approx(ends[0]["fit"] + 6 * np.log(1000), abs=1e-5)  # nodes
    assert two.lower_bound_ == pytest.approx(-ends[1]["objective"])
    assert tomllib.loads((files / "one" / "config.toml").read_text())["standardize"] is True
    assert run(f"{FIT} --out three")[0] == 0
    three = fedmixtures.load(files / "three")
    assert np.abs(three.means_ - one.means_).max() > 1e-4


def test_covariances_of_a_type_are_of_it_in_the_units_of_the_table(run, files):
    code, _, err = run(f"{SCALED} --covariance spherical --out run")
    assert code == 0, err
    model = fedmixtures.load(files / "run").node("h4")
    assert model.covariance_type == "spherical"
    assert run("export run --node h4 --to sklearn --out h4.npz")[0] == 0
    with np.load(files / "h4.npz") as stored:
        assert str(stored["covariance_type"]) == "spherical"
        assert stored["covariances"] == pytest.approx(model.covariances_)
    code, _, err = run(f"{FIT} --covariance diagonal --out no")
    assert code == 2
    assert "`--covariance` is 'diagonal'. Choose from full, tied, diag, spherical." in err


def test_components_by_node_and_by_bic(run, files, monkeypatch):

    counts = "".join(f"h{i},{1 + i % 2}\n" for i in range(6))
    (files / "k.csv").write_text("node,k\n" + counts)
    assert run(f"{FIT.replace('--k 2', '--k k.csv')} --out own")[0] == 0
    own = fedmixtures.load(files / "own")
    assert [own.mixtures_[f"h{i}"].n_components for i in range(6)] == [1, 2] * 3
    code, out, err = run(f"{FIT.replace('--k 2', '--k auto')} --out auto")
    assert code == 0, err
    assert "k chosen by BIC" in out
    chosen = [m.n_components for m in fedmixtures.load(files / "auto").mixtures_.values()]
    config = tomllib.loads((files / "auto" / "config.toml").read_text())
    assert chosen == (
        list(config["components"].values()) if "components" in config else [int(config["k"])] * 6
    )
    page = (files / "auto" / "report.html").read_text()
    assert len(config["curve"]) > 1
    assert "How many components" in page
    assert "what each k was worth" in page
    assert "How many components" not in (files / "own" / "report.html").read_text()
    assert run("fit data.csv --nodes site --k 3:2 --out no")[0] == 2
    code, out, err = run("fit data.csv --nodes site --k 1:2 --out levels")
    assert code == 0, err
    assert "looking for the number of components: 1" in out
    assert "log-density of such a row, by number, ± what chance differs by: 1: -" in out
    config = tomllib.loads((files / "levels" / "config.toml").read_text())
    assert set(config["curve"]) == set(config["curve_errors"]) == {"1", "2"}


def test_alpha_chosen_on_held_out_rows(run, files):
    code, out, err = run(f"{FIT} --alpha auto --out auto")
    assert code == 0, err
    assert "chosen by held-out log-likelihood" in out
    config = tomllib.loads((files / "auto" / "config.toml").read_text())
    assert fedmixtures.load(files / "auto").method.alpha == float(config["alpha"])


def test_empty_cells_are_missing_and_their_number_is_told(run, files, change):
    change(40, 2, "")
    change(41, 0, "nan")
    code, out, err = run(f"{FIT} --out run".replace("gtv-mmd", "local").replace("--rounds 6", ""))
    assert code == 0, err
    assert "2 cells (0.6%), taken as missing at random: age (1) and dose (1)" in out
    found = assignments(files / "run" / "assignments.parquet")
    assert np.isfinite(found["p0"]).all()
    assert "–" not in out.split("median held-out")[0][-12:]  # rows with gaps are scored too
    code, out, _ = run("predict run data.csv --out again.parquet")
    assert code == 0
    assert assignments(files / "again.parquet")["component"] == found["component"]
    assert run("report run --include-rows")[0] == 0
    compared = "compare data.csv --nodes site --k 2 --repeats 1 --methods local,centralized"
    assert "centralized" in run(compared)[1]


def test_columns_that_are_no_features_are_left_out_and_told(run, files):
    lines = (files / "data.csv").read_text().splitlines()
    table = [f"{lines[0]},patient,seen,sick,ward"]
    table += [
        f"{line},P{i},2024-05-{i % 30 + 1:02},{i % 2},w{i % 4}" for i, line in enumerate(lines[1:])
    ]
    (files / "data.csv").write_text("\n".join(table) + "\n")
    code, out, err = run(f"{FIT} --label sick --drop ward --out run")
    assert code == 0, err
    [line] = [line for line in out.splitlines() if "left out" in line]
    for words in ("ward (--drop)", "sick (the label)", "patient (an identifier: different text"):
        assert words in line
    assert "seen (dates)" in line
    assert fedmixtures.load(files / "run").feature_names_in_.tolist() == ["age", "dose"]
    config = tomllib.loads((files / "run" / "config.toml").read_text())
    assert config["features"] == ["age", "dose"]
    assert run("report run --include-rows --out rows.html")[0] == 0
    code, out, err = run("predict run data.csv")
    assert code == 0, err
    code, out, err = run(f"{COMPARE} --label sick --drop ward --methods local,gtv-mmd")
    assert code == 0, err
    assert "sick (the label)" in out


def test_predict(fitted, run):
    folder, _ = fitted
    code, out, err = run("predict run data.csv --out new.csv")
    assert code == 0, err
    lines = (folder.parent / "new.csv").read_text().splitlines()
    assert lines[0] == '"row","node","component","log_density","p0","p1"'
    wanted = assignments(folder / "assignments.parquet")
    assert [int(line.split(",")[2]) for line in lines[1:]] == wanted["component"]
    code, _, err = run("predict run data.csv --out new.csv")
    assert code == 2
    assert "already exists" in err


def test_predict_names_a_node_the_run_does_not_know(fitted, run, change):
    change(3, 1, "h9")
    code, out, _ = run("predict run data.csv --out new.csv")
    assert code == 0
    assert "Note: 'h9' is no node of this run: rows are taken as everyone's" in out


def test_report_again_static_and_with_rows(fitted, run):
    folder, _ = fitted
    before = (folder / "report.html").read_bytes()
    assert run("report run")[0] == 0
    assert (folder / "report.html").read_bytes() == before
    assert run("report run --static")[0] == 0
    assert (folder / "report-static.html").stat().st_size < 500_000
    assert run("report run --include-rows --out rows.html")[0] == 0
    assert "contains the place of every row" in (folder.parent / "rows.html").read_text()
    assert '"rows":"' not in before.decode()


def test_export_to_json_and_scikit_learn(fitted, run):
    from sklearn.mixture import GaussianMixture

    folder, _ = fitted
    mixture = fedmixtures.load(folder).mixtures_["h4"]
    assert run("export run --node h4 --to json")[0] == 0
    stored = json.loads((folder.parent / "h4.json").read_text())
    assert stored["features"] == ["age", "dose"]
    assert np.array_equal(stored["means"], mixture.means)
    code, out, _ = run("export run --node h4 --to sklearn")
    assert code == 0
    snippet = out[out.index("import numpy") :]
    X = np.random.default_rng(0).normal(size=(5, 2))
    names = {"X": X}
    exec(snippet, names)  # what the user is told to type
    assert isinstance(names["model"], GaussianMixture)
    assert names["model"].predict_proba(X) == pytest.approx(mixture.responsibilities(X), abs=1e-9)


def test_export_to_onnx_says_what_is_missing(fitted, run):
    if importlib.util.find_spec("skl2onnx"):
        pytest.skip("skl2onnx is installed")
    code, _, err = run("export run --node h4 --to onnx")
    assert code == 2
    assert "pip install skl2onnx" in err


def test_compare_on_the_same_splits(run, files):
    command = "compare data.csv --nodes site --graph edges.csv --k 2 --rounds 4 --repeats 3"
    code, out, err = run(f"{command} --methods local,centralized,gtv-mmd --out numbers.csv")
    assert code == 0, err
    for word in ("local", "centralized", "gtv-mmd", "95% interval", "vs local"):
        assert word in out
    lines = (files / "numbers.csv").read_text().splitlines()[1:]
    assert len(lines) == 3 * 3 * 6
    values = [float(line.split(",")[3]) for line in lines if line.startswith("local,")]
    mean = np.median(np.mean(np.reshape(values, (3, 6)), axis=1))
    assert f"{mean:.3f}" in out


def test_compare_takes_the_default_method_and_the_graph_there_is(run, files):
    """Three sites, fewer than the five neighbours of the default graph."""
    lines = (files / "data.csv").read_text().splitlines()
    few = [lines[0], *(line for line in lines if any(f",h{i}," in line for i in range(3)))]
    (files / "few.csv").write_text("\n".join(few) + "\n")
    code, out, err = run("compare few.csv --nodes site --k 1 --repeats 1")
    assert code == 0, err
    assert "3; no graph given: everybody may listen to everybody" in out
    for name in ("local", "centralized", NetworkGaussianMixture().method):
        assert f"\n{name} " in out


def test_numbers_of_hopeless_fits_do_not_break_the_columns():
    from fedmixtures.cli.compare import short

    assert short(-878_552_123.4) == "-8.79e+08"
    assert short(-1234.5678) == "-1,234.568"


def test_compare_checks_all_methods_before_any_work(run, files, monkeypatch):
    """And with `all`, what cannot run as asked is left out with a word."""
    from fedmixtures.cli import compare

    begun = []
    found = {"nodes": {"h0": -1.0}, "seconds": 0.0, "sent": 0, "notes": []}
    fake = lambda task, settings, name: begun.append(name) or found
    monkeypatch.setattr(compare, "_fit", fake)
    command = "compare data.csv --nodes site --graph edges.csv --k 2 --repeats 2"
    code, _, err = run(f"{command} --methods local,ifca")
    assert (code, begun) == (2, [])
    assert "ifca: `n_groups` of IFCA is missing" in err
    code, out, err = run(f"{command} --methods all")
    assert code == 0, err
    assert "ifca left out: `n_groups` of IFCA is missing" in out
    assert "ifca" not in begun
    assert begun[: len(begun) // 2] == begun[len(begun) // 2 :]


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])
def test_compare_keeps_what_is_computed(run, files, monkeypatch, failure):
    from fedmixtures.cli import compare

    fit = compare._fit

    def fails(task, settings, name):
        if name == "fedem" and settings.seed == 1:
            raise failure("nothing goes any more")
        return fit(task, settings, name)

    monkeypatch.setattr(compare, "_fit", fails)
    command = "compare data.csv --nodes site --graph edges.csv --k 1 --rounds 2 --repeats 3"
    code, out, err = run(f"{command} --methods local,fedem,centralized --out numbers.csv")
    lines = (files / "numbers.csv").read_text().splitlines()[1:]
    assert "local " in out
    if failure is ValueError:
        assert code == 0, err
        assert "fedem failed in repeat 2: nothing goes any more" in out
        assert len(lines) == (9 - 1) * 6
    else:
        assert code == 130
        assert len(lines) == 4 * 6


def test_methods_are_listed_as_they_are(run):
    from fedmixtures.estimators.resolve import METHODS

    code, out, _ = run("methods")
    assert code == 0
    assert all(name in out for name in METHODS)


def test_one_table_without_edges(run, files):
    how = "--graph none --method gtv-mmd --k 2 --rounds 2 --holdout 0"
    assert run(f"fit data.csv --nodes site {how} --out run")[0] == 0
    page = (files / "run" / "report.html").read_text()
    assert "One mixture for each of 6 nodes. Nobody listened to anybody." in page


@pytest.mark.parametrize("method", ["trust", "local"])
def test_without_edges_no_gain_is_claimed(run, files, method):
    """Not even that of a prior which only the method has."""
    code, out, err = run(
        f"fit data.csv --nodes site --graph none --method {method} --k 2 --out run"
    )
    assert code == 0, err
    assert "One mixture for each of 6 nodes. Nobody listened to anybody." in out
    assert "gained" not in out
    assert "with neighbours" not in out
    content = json.loads((files / "run" / "report.json").read_text())
    assert content["scores"]["gain"] == [None] * 3


@pytest.mark.parametrize(
    ("method", "to"), [("fedem", "a hub, which"), ("gtv-mmd", "the neighbours, and")]
)
def test_the_page_says_who_received_what(run, files, method, to):
    assert run(f"{FIT.replace('gtv-mmd', method)} --out run")[0] == 0
    page = " ".join((files / "run" / "report.html").read_text().split())
    assert f"Model-sized messages to {to}" in page
    assert ("to nobody else" in page) == (method == "gtv-mmd")


def test_diverging_fits_are_told_and_kept(run, files):
    code, out, err = run(f"{FIT} --set learning_rate=50.0 --out run")
    assert code == 0, err
    assert "diverged in round" in out
    assert "diverged in round" in (files / "run" / "report.html").read_text()


LONG = FIT.replace("--rounds 6", "--rounds 20")
STOPPED = """
import signal, sys
from fedmixtures.estimators import problem
from fedmixtures.cli.main import main

def write(*args, write=problem.write_checkpoint):
    write(*args)
    signal.raise_signal(int(sys.argv[1]))

problem.write_checkpoint = write
sys.exit(main(sys.argv[2:]))
"""


def stopped(files, command: str, by: int) -> tuple[int, str]:
    """A fit in a process of its own, which gets a signal as soon as some rounds are on disk."""
    done = subprocess.run(
        [sys.executable, "-c", STOPPED, str(int(by)), *command.split()],
        cwd=files,
        env=os.environ | {"COLUMNS": "200"},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_killed_fit_resumes_with_the_same_numbers(run, files):
    code, _, err = run(f"{LONG} --out whole")
    assert code == 0, err
    code, out = stopped(files, f"{LONG} --out cut", signal.SIGKILL)
    assert code == -signal.SIGKILL, out
    assert not (files / "cut" / "model.safetensors").exists()
    code, _, err = run("fit data.csv --nodes site --k 2 --out cut")
    assert code == 2
    assert "--resume cut" in err
    code, _, err = run("fit --resume cut")
    assert code == 0, err
    for name in ("history.jsonl", "config.toml", "assignments.parquet", "report.html"):
        assert (files / "cut" / name).read_bytes() == (files / "whole" / name).read_bytes(), name
    a, b = fedmixtures.load(files / "whole"), fedmixtures.load(files / "cut")
    for name in ("weights_", "means_", "covariances_"):
        assert np.array_equal(getattr(a, name), getattr(b, name))


def test_ctrl_c_in_the_default_method_keeps_own_fits_and_what_was_reached(run, files):
    command = "fit data.csv --nodes site --k 2"
    code, out = stopped(files, f"{command} --out cut", signal.SIGINT)
    assert code == 0, out
    assert "interrupted; returning the mixtures of the step 'own'" in " ".join(out.split())
    assert "Go on with: fedmixtures fit --resume cut" in out
    assert fedmixtures.load(files / "cut").levels_ is None
    for rest in ("fit --resume cut", f"{command} --out whole"):
        code, _, err = run(rest)
        assert code == 0, err
    name = "assignments.parquet"
    assert (files / "cut" / name).read_bytes() == (files / "whole" / name).read_bytes()
    code, _, err = run("fit --resume cut")
    assert code == 2
    assert "is complete; there is nothing to resume" in err


def test_ctrl_c_keeps_the_last_round(files):
    code, out = stopped(files, f"{LONG} --out cut", signal.SIGINT)
    assert code == 0, out
    assert "Go on with: fedmixtures fit --resume cut" in out
    reached = fedmixtures.load(files / "cut").n_iter_
    assert 0 < reached < 20
    assert len(RunFolder(files / "cut").read_history()) == reached + 1
    assert "stopped early" in (files / "cut" / "report.html").read_text()


def test_demo(run, tmp_path):
    from fedmixtures.cli.fitting import replace_demo

    code, out, err = run("demo --out shown")
    assert code == 0, err
    assert "own data only" in out
    assert "all rows pooled" in out
    assert (tmp_path / "shown" / "report.html").is_file()
    assert replace_demo(tmp_path / "shown").path == tmp_path / "shown"  # a former demo
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    code, _, err = run("demo --out mine")
    assert code == 2
    assert "left as it is" in err
