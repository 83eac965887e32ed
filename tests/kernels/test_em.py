"""EM against scikit-learn from the same start, and its own promises."""

import equinox as eqx
import numpy as np
import pytest

from em_oracle import mixture_of, sklearn_model
from fedmixtures import Mixture
from fedmixtures.kernels.block_em import expectation_maximisation
from fedmixtures.kernels.dispatch import statistics
from fedmixtures.mixture.arithmetic import double
from fedmixtures.mixture.m_step import ShapePrior, m_step
from helpers import assert_close, draw, mixture, stack

_em = eqx.filter_jit(expectation_maximisation)


def em(theta, rows, counts=None, **options):
    counts = np.ones(rows.shape[:2]) if counts is None else counts
    with double():
        fitted = _em(theta, rows, counts, **options)
        return (
            fitted.theta.to_numpy(),
            np.asarray(fitted.log_likelihood),
            np.asarray(fitted.n_steps),
        )


@pytest.mark.parametrize("options", [{"d": 2, "centre": 1e4}, {"d": 5, "k": 2}])
def test_agrees_with_sklearn_from_the_same_start(options):
    starts = stack(1, 2, **options)
    rows = np.stack([draw(mixture(7 + i, **options), 60, seed=i) for i in range(2)])
    fitted, log_likelihood, _ = em(starts, rows, n_steps=12, tolerance=0.0)
    for i in range(2):
        model = sklearn_model(rows[i], starts.at(i), 12)
        wanted = mixture_of(model)
        # scikit-learn adds 10 eps to every mass; twelve steps carry it on
        assert_close(fitted.at(i), wanted, 1e-8)
        assert log_likelihood[i] == pytest.approx(model.score_samples(rows[i]).sum(), rel=1e-9)


def test_stops_where_sklearn_stops():
    starts = stack(1, 2, k=2)
    rows = np.stack([draw(mixture(7, k=2), 60), draw(mixture(9, k=2, spread=8.0), 60)])
    fitted, _, n_steps = em(starts, rows, n_steps=100, tolerance=1e-3)
    for i in range(2):
        model = sklearn_model(rows[i], starts.at(i), 100, 1e-3)
        wanted = mixture_of(model)
        assert n_steps[i] == model.n_iter_
        assert_close(fitted.at(i), wanted, 1e-8)
    assert n_steps[0] != n_steps[1]  # the early one stood still while the other went on


def test_likelihood_never_falls():
    start, rows = stack(5, 1, k=3), draw(mixture(3, 3), 80)[None]
    values = []
    theta = start
    for _ in range(15):
        theta, value, _ = em(theta, rows, n_steps=1, tolerance=0.0, reg_covar=0.0)
        values.append(value[0])
    assert (np.diff(values) > -1e-10).all()
    assert values[-1] > values[0] + 1


def test_counts_are_copies_and_zero_is_absent():
    start, x = stack(5, 1, k=2), draw(mixture(3, 2), 30)
    counts = np.arange(30) % 3.0
    repeated = np.repeat(x, counts.astype(int), axis=0)
    weighted, by_weight, _ = em(start, x[None], counts[None], n_steps=12, tolerance=0.0)
    copied, by_copy, _ = em(start, repeated[None], n_steps=12, tolerance=0.0)
    assert_close(weighted, copied, 1e-10)
    np.testing.assert_allclose(by_weight, by_copy, rtol=1e-12)


def test_absent_and_empty_components_stay_as_they_are():
    p = mixture(1, 2)
    far = Mixture(
        np.append(p.weights * 0.9, 0.1),
        np.concatenate([p.means, [[1e3, 1e3]]]),
        np.concatenate([p.covariances, [np.eye(2)]]),
    )
    rows = draw(p, 40)[None]
    fitted, _, _ = em(Mixture.stack([far]).at(slice(None)), rows, n_steps=12, tolerance=0.0)
    assert fitted.weights[0, 2] < 1e-12
    np.testing.assert_allclose(fitted.means[0, 2], [1e3, 1e3])
    padded, _, _ = em(stack(1, 1, 2, absent=1), rows, n_steps=12, tolerance=0.0)
    plain, _, _ = em(stack(1, 1, 2), rows, n_steps=12, tolerance=0.0)
    assert_close(padded.at(0).trimmed(), plain.at(0), 1e-12)


def test_shape_prior_is_the_formula_it_states():
    theta, rows = stack(2, 1, k=3), draw(mixture(4, 3), 25)[None]
    prior, reg_covar = ShapePrior(strength=3.0, extra_mass=0.5), 1e-6
    with double():
        s = eqx.filter_jit(statistics)(theta, rows, np.ones((1, 25)))
        new = eqx.filter_jit(m_step)(theta, s, reg_covar, prior).to_numpy().at(0)
        plain = eqx.filter_jit(m_step)(theta, s, 0.0).to_numpy().at(0)
    mass = np.asarray(s.mass)[0]
    average = np.einsum("k,kij->ij", mass / mass.sum(), plain.covariances)
    expected = [
        (n * cov + 3.0 * average) / (n + 3.0) + reg_covar * np.eye(2)
        for n, cov in zip(mass, plain.covariances, strict=True)
    ]
    np.testing.assert_allclose(new.covariances, expected, rtol=1e-10)
    np.testing.assert_allclose(new.weights, (mass + 0.5) / (mass.sum() + 1.5), rtol=1e-12)
    np.testing.assert_allclose(new.means, plain.means, rtol=1e-12)


def test_prior_settings_are_checked():
    with pytest.raises(ValueError, match="`strength` is -1. Give zero or a positive number"):
        ShapePrior(strength=-1)
