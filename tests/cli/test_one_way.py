"""A row's way through a command: grouped once, scaled once, laid out once for each use."""

from collections import Counter

import numpy as np
import pytest

import fedmixtures
from fedmixtures import NetworkGaussianMixture
from fedmixtures.data import node_data
from fedmixtures.engine import evaluate
from fedmixtures.estimators import scale
from fedmixtures.io.runs import RunFolder

TRAINED, HELD = 144, 36
FIT = "fit data.csv --nodes site --graph edges.csv"


@pytest.fixture
def counted(monkeypatch):
    """How often rows are grouped by node, scaled, and laid out to be evaluated, by their number."""
    counts = Counter()

    def count(module, name, key):
        do = getattr(module, name)

        def counting(*given, **how):
            counts[key(*given)] += 1
            return do(*given, **how)

        monkeypatch.setattr(module, name, counting)

    count(node_data, "group_labels", lambda *_: "grouped")
    count(evaluate, "build_layout", lambda data, *_: ("laid out", len(data.rows)))
    scaled = lambda _, x: "rows scaled" if x.shape == (TRAINED, 2) else "other scaled"
    count(scale.Scale, "scaled", scaled)
    return counts


@pytest.mark.parametrize(
    ("command", "scaled"),
    [
        (f"{FIT} --k 2", 0),
        (f"{FIT} --k 2 --method gtv-mmd --rounds 6 --standardize", 1),
        (f"{FIT} --k auto --method local", 0),
    ],
)
def test_a_row_goes_one_way(run, files, counted, command, scaled):
    """Looked at every other round, compared with two more fits, reported."""
    code, _, err = run(f"{command} --out run")
    assert code == 0, err
    assert counted["grouped"] == 1
    assert counted["rows scaled"] == scaled
    assert counted["laid out", HELD] == 1


def test_methods_that_are_compared_share_the_rows(run, files, counted):
    assert run("compare data.csv --nodes site --graph edges.csv --k 2 --repeats 2")[0] == 0
    assert counted["grouped"] == 1
    assert counted["laid out", HELD] == 2  # one split for each repeat


@pytest.mark.filterwarnings("ignore::fedmixtures.FitWarning")
@pytest.mark.parametrize("method", ["trust", "gtv-mmd"])
def test_the_command_and_the_estimator_give_the_same_numbers(run, files, method):
    """Of a table in odd units, which couplings are to have standardised."""
    lines = [line.split(",") for line in (files / "data.csv").read_text().splitlines()]
    large = [[f"{30 * float(a):.3f}", site, b] for a, site, b in lines[1:]]
    text = "".join(",".join(line) + "\n" for line in [lines[0], *large])
    (files / "large.csv").write_text(text)
    rounds = {} if method == "trust" else {"n_rounds": 6}
    given = "--rounds 6" if rounds else ""
    command = FIT.replace("data.csv", "large.csv")
    code, _, err = run(f"{command} --k 2 --holdout 0 --method {method} {given} --out run")
    assert code == 0, err
    one = fedmixtures.load(files / "run")
    X = np.array([[float(a), float(b)] for a, _, b in large])
    edges = [tuple(line.split(",")) for line in (files / "edges.csv").read_text().split()[1:]]
    other = NetworkGaussianMixture(
        2, graph=edges, method=method, standardize=None, random_state=0, **rounds
    ).fit(X, nodes=[site for _, site, _ in large])
    for name in ("means_", "covariances_"):
        assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-9)
    history = RunFolder(files / "run").read_history()
    assert history[-1]["objective"] == pytest.approx(-other.lower_bound_, rel=1e-12)
