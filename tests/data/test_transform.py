"""Transforms of columns: reversible, with their Jacobian, chosen by what describes them best."""

import numpy as np
import pytest

from fedmixtures.data.node_data import NodeData
from fedmixtures.data.transform import (
    Column,
    Transform,
    atoms_of,
    centre_sums,
    choose,
    chosen,
    em_sums,
    to_fit,
)
from fedmixtures.mixture.mixture import Mixture

COLUMNS = [
    Column(),
    Column("log", 0.0, 0.0, 0.02),
    *(Column("power", power, 0.7, 2.5) for power in (0.0, 0.5, 1.5, 2.0)),
]


@pytest.mark.parametrize("column", COLUMNS, ids=str)
def test_columns_are_reversible_and_know_their_slope(column):
    x = np.linspace(-3.0, 9.0, 401)
    t = column.apply(x)
    assert (np.diff(t) > 0).all()
    np.testing.assert_allclose(column.invert(t), x, rtol=1e-9, atol=1e-9)
    h = 1e-6
    slope = (column.apply(x + h) - column.apply(x - h)) / (2 * h)
    away = np.abs(x - column.unit) > 1e-3 if column.kind == "log" else slice(None)
    np.testing.assert_allclose(column.log_slope(x)[away], np.log(slope)[away], atol=1e-5)
    assert np.isnan(column.apply(np.array([np.nan]))).all()


def test_skewed_columns_are_chosen_and_clusters_are_not():
    rng = np.random.default_rng(0)
    two = rng.random(400) < 0.3
    assert chosen(np.exp(rng.normal(2 * two, 0.5)))[0].kind == "log"
    assert chosen(np.exp(rng.normal(0, 0.7, 400)))[0].kind == "log"
    assert chosen(-np.exp(rng.normal(0, 0.7, 400)))[0].power > 1  # skewed the other way
    assert chosen(rng.normal(5 * two, 1))[0] == Column()
    assert chosen(rng.standard_normal(400))[0] == Column()
    assert chosen(np.exp(rng.standard_normal(20)))[0] == Column()  # too few to tell


def test_the_choice_does_not_depend_on_units():
    x = np.random.default_rng(1).gamma(2.0, size=300)
    column, gain = chosen(x)
    other, same = chosen(1000 * x)
    assert (column.kind, column.power) == (other.kind, other.power) != ("none", 1.0)
    assert same == pytest.approx(gain, abs=1e-9)


def test_what_the_choice_looks_at_are_sums_over_rows():
    rng = np.random.default_rng(2)
    x = rng.gamma(2.0, size=90)
    mixtures = np.array([[[0.3, 0.7], [0.5, 3.0], [1.0, 2.0]]])
    parts = [em_sums(x[None, a:b], mixtures) for a, b in ((0, 40), (40, 90))]
    np.testing.assert_allclose(em_sums(x[None], mixtures), sum(parts), rtol=1e-12)
    np.testing.assert_allclose(centre_sums(x), centre_sums(x[:40]) + centre_sums(x[40:]))


def test_atoms_are_noticed_and_spread_whatever_the_order_of_rows():
    rng = np.random.default_rng(3)
    x = np.where(rng.random(200) < 0.4, 0.0, rng.gamma(2.0, size=200))
    X, nodes = np.stack([x, rng.standard_normal(200)], 1), np.arange(200) % 3
    data = NodeData.from_rows(X, nodes)
    transform = choose(data)
    assert transform.atoms == ((0.0,), ())
    spread = to_fit(data, transform, 0)
    inside = transform.apply(data.rows)
    zero = data.rows[:, 0] == 0
    assert len(np.unique(spread.rows[zero, 0])) == zero.sum()
    assert np.abs(spread.rows - inside)[zero].max() <= 0.05 * inside[:, 0].std()
    np.testing.assert_array_equal(spread.rows[~zero], inside[~zero])
    order = rng.permutation(200)
    again = to_fit(NodeData.from_rows(X[order], nodes[order]), transform, 0)
    restored = np.empty_like(again.rows)
    restored[order[again.source_index]] = again.rows
    expected = np.empty_like(spread.rows)
    expected[spread.source_index] = spread.rows
    np.testing.assert_array_equal(restored, expected)


def test_columns_of_few_values_are_left_alone():
    assert atoms_of(np.tile([0.0, 1.0], 50)) is None
    data = NodeData.from_rows(np.tile([[0.0], [1.0], [1.0], [1.0]], (30, 1)))
    assert choose(data) == Transform.none(1)


def test_a_logarithm_of_what_is_not_positive_is_refused():
    data = NodeData.from_rows(np.linspace(-1, 5, 50)[:, None])
    with pytest.raises(ValueError, match="which is -1 in a row. Take 'auto' or 'none'"):
        choose(data, {0: "log"})


def test_shown_mixtures_have_medians_and_the_same_correlations():
    columns = (Column("log", 0.0, 0.0, 1e-3), Column())
    transform = Transform(columns, ((), ()), (0.0, 0.0))
    theta = Mixture([1.0], [[1.0, 2.0]], [[[0.04, 0.03], [0.03, 0.09]]])
    shown = transform.users(theta)
    np.testing.assert_allclose(shown.means, [[np.e, 2.0]])
    spread = np.sqrt(np.diagonal(shown.covariances[0]))
    np.testing.assert_allclose(spread, [np.e * np.sinh(0.2), 0.3])
    assert shown.covariances[0, 0, 1] / spread.prod() == pytest.approx(0.5)
    back = transform.of_users(shown)
    np.testing.assert_allclose(back.means, theta.means)
    np.testing.assert_allclose(back.covariances, theta.covariances, rtol=0.05)
