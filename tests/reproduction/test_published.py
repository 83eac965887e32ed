import numpy as np
import pytest

from fedmixtures.metrics import Interval
from reproduction import rendering
from reproduction.config import Experiment, Problem, Row, load
from reproduction.published import Published, _all, published
from reproduction.results import Entry, Result

INTERVAL = "-4.36 [-4.42, -4.24]"


@pytest.mark.parametrize(
    ("text", "ours", "verdict"),
    [
        (INTERVAL, (-4.40, -4.50, -4.30), "inside"),
        (INTERVAL, (-4.424, -4.5, -4.43), "inside"),  # rounds to the printed bound
        (INTERVAL, (-4.426, -4.5, -4.39), "overlapping"),
        (INTERVAL, (-4.6, -4.7, -4.424), "overlapping"),
        (INTERVAL, (-4.6, -4.7, -4.43), "outside"),
        (INTERVAL, (-4.0, -4.2, -3.9), "outside"),
        (INTERVAL, (-np.inf, np.nan, np.nan), "diverged"),
        ("0.85", (0.849, 0.7, 0.9), "inside"),
        ("0.85", (0.80, 0.7, 0.9), "overlapping"),
        ("0.85", (0.80, 0.7, 0.84), "outside"),
        ("0.85", (0.80, np.nan, np.nan), "outside"),  # one seed has no interval
        ("-32", (-31.6, -33.0, -30.0), "inside"),
        ("[0.84, 0.88]", (0.87, 0.8, 0.9), "inside"),
        ("[0.84, 0.88]", (0.82, 0.8, 0.84), "overlapping"),
    ],
)
def test_where_our_number_lies(text, ours, verdict):
    assert Published.parse(text).verdict(Interval(*ours)) == verdict


@pytest.mark.parametrize("text", ["", "about 3", "1.0 [2.0]"])
def test_what_is_not_a_number_is_refused(text):
    with pytest.raises(ValueError, match="Write '1.5'"):
        Published.parse(text)


def test_every_published_number_parses_and_has_a_row_that_shows_it():
    total = 0
    for name, section in _all().items():
        if "values" not in section:
            continue
        experiment = load(name)
        for problem, rows in section["values"].items():
            for row, metrics in rows.items():
                assert experiment.problem(problem)
                assert experiment.row(row)
                for metric in metrics:
                    number = published(name, problem, row, metric)
                    assert number is not None
                    assert number.low <= number.high
                    assert number.median is None or number.low <= number.median <= number.high
                    assert metric in experiment.metrics
                    total += 1
    assert total == 33 + 18 + 24 + 16 + 1 + 12 + 3  # tables 2 (and its NMI) and 3, then the text


def test_table_shows_paper_ours_verdict_and_difference():
    experiment = Experiment(
        "table3",
        "A table",
        "comparison",
        metrics=["ll"],
        references=["local"],
        problems=[Problem("homogeneous", "all alike", {}, {}, 5)],
        rows=[Row("gtv-kl", "GTV-KL", "gtv-kl"), Row("local", "Local", "local")],
    )
    paper = Published.parse(INTERVAL)
    entries = [
        Entry(
            "homogeneous",
            "gtv-kl",
            "ll",
            (-4.4, None, -4.41),
            Interval(-4.41, -4.5, -4.4),
            paper,
            "inside",
            {"local": Interval(0.7, 0.6, 0.8)},
        ),
        Entry("homogeneous", "local", "ll", (-5.0,) * 3, Interval(-5, -5.1, -4.9), None, ""),
    ]
    result = Result(experiment, (0, 1, 2), entries)
    table = rendering.comparison(result, "homogeneous").splitlines()
    assert table[2] == (
        "| GTV-KL | -4.36 [-4.42, -4.24] | -4.410 [-4.500, -4.400] (1 of 3 diverged) | inside |"
    )
    assert table[3] == "| Local | — | -5.000 [-5.100, -4.900] |  |"
    assert "| GTV-KL | +0.700 [+0.600, +0.800] |" in rendering.differences(result, "homogeneous")
    assert rendering.counts(result) == {"inside": 1}
    line = rendering.to_csv(result).splitlines()[1]
    assert line.startswith('homogeneous,gtv-kl,ll,"-4.36 [-4.42, -4.24]",-4.41,-4.5,-4.4,inside,1,')
    assert line.endswith(",0.7,0.6,0.8,-4.4,,-4.41")
