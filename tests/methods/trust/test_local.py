"""Local fits and out-of-fold densities."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from scipy.stats import multivariate_normal

from fedmixtures import Mixture, ShapePrior
from fedmixtures.methods.trust_then_pool.local import (
    affordable,
    fold_of_rows,
    local_fits,
    out_of_fold,
)
from fedmixtures.methods.trust_then_pool.settings import FitSettings
from fedmixtures.methods.trust_then_pool.starts import hard_start, penalised, plus_plus
from fedmixtures.mixture.precision import double

SETTINGS = FitSettings(ShapePrior(), 1e-3, 3)


def rows_of(n_nodes=3, m=40, padding=0, seed=0):
    rng = np.random.default_rng(seed)
    centres = np.array([[0.0, 0.0], [8.0, 0.0], [0.0, 8.0]])
    rows = centres[rng.integers(3, size=(n_nodes, m))] + rng.standard_normal((n_nodes, m, 2))
    rows = np.concatenate([rows, np.zeros((n_nodes, padding, 2))], axis=1)
    counts = np.concatenate([np.ones((n_nodes, m)), np.zeros((n_nodes, padding))], axis=1)
    return rows, counts


def keys(n, seed=1):
    return jax.vmap(jr.key)(jnp.arange(n) + seed)


def test_folds_are_even_and_padding_changes_none():
    with double():
        _, short = rows_of(padding=0)
        _, long = rows_of(padding=9)
        fold = np.asarray(fold_of_rows(keys(3), jnp.asarray(short), 5))
        padded = np.asarray(fold_of_rows(keys(3), jnp.asarray(long), 5))
    np.testing.assert_array_equal(fold, padded[:, :40])
    for node in fold:
        assert np.bincount(node, minlength=5).tolist() == [8] * 5
    assert not np.array_equal(fold[0], fold[1])


def test_no_more_components_than_half_the_rows():
    counts = jnp.asarray([[1.0, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 0, 0, 0, 0]])
    present = jnp.asarray([[True, True, True]] * 3)
    found = np.asarray(affordable(present, counts)).sum(1)
    assert found.tolist() == [1, 2, 1]


def test_centres_are_rows_and_padding_is_never_drawn():
    with double():
        rows, counts = rows_of(padding=7)
        centres = np.asarray(plus_plus(keys(3), jnp.asarray(rows), jnp.asarray(counts), 4))
        again = np.asarray(
            plus_plus(keys(3), jnp.asarray(rows[:, :40]), jnp.asarray(counts[:, :40]), 4)
        )
    np.testing.assert_array_equal(centres, again)
    for node in range(3):
        distance = np.linalg.norm(centres[node][:, None] - rows[node, :40][None], axis=-1)
        np.testing.assert_allclose(distance.min(1), 0.0)
        assert len(np.unique(distance.argmin(1))) == 4


def test_a_start_is_the_mixture_of_a_hard_clustering():
    with double():
        rows, counts = rows_of(n_nodes=1)
        centres = jnp.asarray([[[0.0, 0.0], [8.0, 0.0], [0.0, 8.0]]])
        theta = hard_start(
            centres, jnp.ones((1, 3), bool), jnp.asarray(rows), jnp.asarray(counts), 0.0, None
        ).to_numpy()
    cluster = np.linalg.norm(rows[0][:, None] - theta.means[0][None], axis=-1).argmin(1)
    for c in range(3):
        of_cluster = rows[0][cluster == c]
        np.testing.assert_allclose(theta.weights[0, c], len(of_cluster) / 40)
        np.testing.assert_allclose(theta.means[0, c], of_cluster.mean(0))
        np.testing.assert_allclose(theta.covariances[0, c], np.cov(of_cluster.T, bias=True))


def test_out_of_fold_density_row_by_row():
    with double():
        rows, counts = rows_of(n_nodes=1, m=6)
        fold = jnp.asarray([[0, 1, 0, 1, 1, 0]])
        means = np.array([[[[0.0, 0.0]]], [[[3.0, 1.0]]]])  # folds, nodes, k, d
        models = Mixture(
            jnp.ones((2, 1, 1)), jnp.asarray(means), jnp.broadcast_to(jnp.eye(2), (2, 1, 1, 2, 2))
        )
        found = np.asarray(out_of_fold(models, jnp.asarray(rows), fold))[0]
    expected = [
        multivariate_normal(means[f, 0, 0], np.eye(2)).logpdf(x)
        for f, x in zip(np.asarray(fold)[0], rows[0], strict=True)
    ]
    np.testing.assert_allclose(found, expected)


def fits(rows, counts, key):
    rows, counts = jnp.asarray(rows), jnp.asarray(counts)
    nodes = len(rows)
    eye = jnp.broadcast_to(jnp.eye(2), (nodes, 3, 2, 2))
    given = Mixture(jnp.full((nodes, 3), 1 / 3), rows[:, :3], eye)
    fold = fold_of_rows(key, counts, 4)
    return jax.tree.map(np.asarray, (*jitted_fits(key, given, rows, counts, fold), fold))


@jax.jit
def jitted_fits(key, given, rows, counts, fold):
    return local_fits(key, given, rows, counts, fold, 4, SETTINGS)


def test_a_node_fits_alike_alone_and_in_a_block():
    with double():
        rows, counts = rows_of()
        block, alone = fits(rows, counts, keys(3)), fits(rows[1:2], counts[1:2], keys(3)[1:2])
    for a, b in zip(block[0].parts, alone[0].parts, strict=True):
        np.testing.assert_allclose(a[1], b[0], rtol=1e-9, atol=1e-9)


def test_the_fit_of_a_fold_has_not_seen_its_rows():
    with double():
        rows, counts = rows_of(n_nodes=1)
        *_, fold = fits(rows, counts, keys(1))
        moved = rows + np.where(fold == 2, 50.0, 0.0)[..., None]
        *_, before, _ = fits(rows, counts, keys(1))
        *_, after, _ = fits(moved, counts, keys(1))
    for a, b in zip(before.parts, after.parts, strict=True):
        np.testing.assert_allclose(a[2], b[2])
        assert not np.allclose(a[1], b[1])


@pytest.mark.parametrize("strength", [0.0, 8.0])
def test_the_score_by_the_plain_formula(strength):
    rng = np.random.default_rng(2)
    roots = rng.standard_normal((1, 3, 2, 2))
    covariances = roots @ np.swapaxes(roots, -1, -2) + 0.3 * np.eye(2)
    theta = Mixture([[0.2, 0.8, 0.0]], rng.standard_normal((1, 3, 2)), covariances)
    average = 0.2 * covariances[0, 0] + 0.8 * covariances[0, 1]
    penalty = 0.0
    for sigma in covariances[0, :2]:
        ratio = np.linalg.solve(sigma, average)
        penalty += 0.5 * (np.trace(ratio) - 2 - np.log(np.linalg.det(ratio)))
    expected = -100.0 - strength * penalty - 0.5 * 11 * np.log(40)
    with double():
        found = penalised(
            jax.tree.map(jnp.asarray, theta), jnp.asarray([-100.0]), jnp.ones((1, 40)), strength
        )
    np.testing.assert_allclose(np.asarray(found), expected)
