"""The mixture type: shapes, checks and their texts, padding, densities, drawing."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import reference
from fedmixtures import Mixture
from helpers import assert_close, draw, mixture, stack


def test_one_mixture_and_a_stack():
    p, many = mixture(0, 3, 2), stack(0, 4, 3, 2)
    assert (p.n_components, p.n_features) == (3, 2)
    assert many.weights.shape == (4, 3)
    assert_close(many.at(2), mixture(2, 3, 2), 0.0)
    assert_close(many.at(np.array([1, 1])).at(0), mixture(1, 3, 2), 0.0)


def test_lists_become_float64():
    p = Mixture([1], [[2]], [[[3]]])
    assert {part.dtype for part in p.parts} == {np.dtype("float64")}


def test_unequal_mixtures_stack_with_absent_components():
    small, large = mixture(0, 2, 3), mixture(1, 4, 3)
    both = Mixture.stack([small, large])
    assert both.weights[0].tolist()[2:] == [0.0, 0.0]
    assert_close(both.at(0).trimmed(), small, 0.0)
    assert_close(both.at(1).trimmed(), large, 0.0)


def test_relabelling_changes_the_order_of_components_alone():
    p, x = mixture(0, 3, 2), draw(mixture(1, 3, 2), 20)
    q = p.relabel([2, 0, 1])
    np.testing.assert_array_equal(q.means, p.means[[2, 0, 1]])
    np.testing.assert_allclose(q.log_density(x), p.log_density(x), rtol=1e-13)
    expected = p.responsibilities(x)[:, [2, 0, 1]]
    np.testing.assert_allclose(q.responsibilities(x), expected, atol=1e-14)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (([0.5, 0.5], [[0.0]], [[[1.0]]]), r"`weights` has shape \(2,\) and `means` \(1, 1\)"),
        (([1.0], [0.0], [[1.0]]), r"Give weights \(k,\) and means \(k, d\)"),
        (([1.0], [[0.0, 0.0]], [[[1.0, 0.0]]]), r"need \(1, 2, 2\): one full matrix per component"),
        (([0.5, 0.4], [[0.0], [1.0]], [[[1.0]]] * 2), r"sum to 1; the smallest is 0\.4 .* 0\.9"),
        (([1.5, -0.5], [[0.0], [1.0]], [[[1.0]]] * 2), r"non-negative .* smallest is -0\.5"),
        (([1.0], [[np.nan]], [[[1.0]]]), "`means` of a mixture holds NaN or infinity"),
        (([1.0], [[0.0, 0.0]], [[[1.0, 0.5], [0.0, 1.0]]]), "must be symmetric. Average"),
        (([1.0], [[0.0, 0.0]], [[[1.0, 2.0], [2.0, 1.0]]]), "smallest eigenvalue is -1. Add"),
    ],
)
def test_impossible_parameters_are_refused(parts, message):
    with pytest.raises(ValueError, match=message):
        Mixture(*parts)


def test_evaluation_is_refused_where_it_has_no_meaning():
    with pytest.raises(ValueError, match=r"`log_density` is for one mixture but this is a stack"):
        stack(0, 2).log_density(np.zeros((1, 2)))
    with pytest.raises(ValueError, match=r"`sample` is for one mixture .* Pick one with `.at"):
        stack(0, 2).sample(3)
    with pytest.raises(ValueError, match=r"`x` has shape \(1, 3\) but the mixture has 2 features"):
        mixture(0).log_density(np.zeros((1, 3)))
    with pytest.raises(ValueError, match=r"`x` holds nan at row 1, column 0. Drop or fill"):
        mixture(0).log_density([[0.0, 0.0], [np.nan, 0.0]])


@pytest.mark.parametrize("options", [{}, {"condition": 1e8}, {"centre": 1e4}, {"absent": 2}])
def test_densities_agree_with_scipy(options):
    p = mixture(3, 3, 3, **options)
    x = draw(p.trimmed(), 30)
    np.testing.assert_allclose(p.log_density(x), reference.log_density(p.parts, x), rtol=1e-7)
    joint = reference.log_joint(p.parts, x)
    shares = np.exp(joint - np.logaddexp.reduce(joint, axis=1, keepdims=True))
    np.testing.assert_allclose(p.responsibilities(x), shares, atol=1e-7)


def test_rows_far_away_have_finite_log_density_and_proper_responsibilities():
    p = mixture(0, 3, 2)
    x = np.array([[1e6, -1e6], [1e150, 0.0]])
    assert np.isfinite(p.log_density(x)).all()
    np.testing.assert_allclose(p.responsibilities(x).sum(1), 1.0)


def test_float64_whatever_jax_is_set_to():
    assert not jax.config.jax_enable_x64  # the tests never switch it on
    p = mixture(0, 3, 2)
    single = Mixture(*(jnp.asarray(part) for part in p.parts))
    assert single.means.dtype == np.float32
    assert single.log_density(np.zeros((1, 2))).dtype == np.float64
    assert p.sample(3)[0].dtype == np.float64
    assert not jax.config.jax_enable_x64


def test_importing_the_package_sets_no_jax_configuration():
    program = (
        "import jax; before = dict(jax.config.values); import fedmixtures;"
        "[getattr(fedmixtures, name) for name in ('MMD', 'GTVMin', 'NetworkGaussianMixture')];"
        "changed = {k for k, v in jax.config.values.items() if before.get(k, v) != v};"
        "print(sorted(changed))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[]"


# drawing -----------------------------------------------------------------------------------------


def test_drawn_rows_have_the_moments_of_their_component():
    p = mixture(2, 3, 2, centre=1e4)
    x, c = p.sample(30_000, random_state=4)
    share = np.bincount(c, minlength=3) / len(c)
    error = np.sqrt(p.weights * (1 - p.weights) / len(c))
    assert (np.abs(share - p.weights) < 4 * error).all()
    for j in range(3):
        rows = x[c == j] - p.means[j]
        n = len(rows)
        variances = np.diagonal(p.covariances[j])
        assert (np.abs(rows.mean(0)) < 4 * np.sqrt(variances / n)).all()
        # entries of a sample covariance have variance (s_ii s_jj + s_ij^2) / n
        error = np.sqrt((np.outer(variances, variances) + p.covariances[j] ** 2) / n)
        assert (np.abs(rows.T @ rows / n - p.covariances[j]) < 4 * error).all()


def test_drawing_repeats_with_the_seed_and_never_draws_absent_components():
    p = mixture(2, 2, 2, absent=2).relabel([2, 0, 3, 1])
    x, c = p.sample(2000, random_state=1)
    np.testing.assert_array_equal(x, p.sample(2000, random_state=1)[0])
    assert not np.array_equal(x, p.sample(2000, random_state=2)[0])
    assert set(c.tolist()) == {1, 3}
