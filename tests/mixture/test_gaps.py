"""Missing cells: density, sums and gradient against a direct calculation row by row."""

import equinox as eqx
import jax
import numpy as np
import pytest
from scipy.stats import multivariate_normal

from fedmixtures.kernels import dispatch
from fedmixtures.mixture.arithmetic import double
from fedmixtures.mixture.density import IncompleteRows, log_joint_observed
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import observed_statistics, plain_gradient, plain_statistics

N, T, LENGTH, K = 2, 7, 2, 3


@pytest.fixture(params=[4, 6])  # written out, and by elimination
def problem(request):
    rng, d = np.random.default_rng(0), request.param
    a = rng.normal(size=(N, K, d, d))
    covariances = a @ np.swapaxes(a, -1, -2) + np.eye(d)
    theta = Mixture(rng.dirichlet(np.ones(K), N), rng.normal(size=(N, K, d)), covariances)
    rows = rng.normal(size=(N, T * LENGTH, d))
    observed = rng.random((N, T, d)) > 0.4
    observed[0, 0], observed[0, 1] = False, True  # rows without any cell, and whole ones
    by_row = np.repeat(observed, LENGTH, axis=1)
    return theta, rows, by_row, rng.random(rows.shape[:2]), IncompleteRows(by_row * rows, observed)


def direct(theta, rows, observed):
    """Log joint, conditional expectation of x - mu and the covariance that is left, by row."""
    n, m, d = rows.shape
    joint = np.tile(np.log(theta.weights)[:, None], (1, m, 1))
    filled, left = np.zeros((n, m, K, d)), np.zeros((n, m, K, d, d))
    for node, row, c in np.ndindex(n, m, K):
        mean, spread = theta.means[node, c], theta.covariances[node, c]
        o, u = observed[node, row], ~observed[node, row]
        filled[node, row, c, o] = rows[node, row, o] - mean[o]
        if o.any():
            normal = multivariate_normal(mean[o], spread[np.ix_(o, o)])
            joint[node, row, c] += normal.logpdf(rows[node, row][o])
        gain = spread[np.ix_(u, o)] @ np.linalg.inv(spread[np.ix_(o, o)])
        filled[node, row, c, u] = gain @ filled[node, row, c, o]
        left[node, row, c][np.ix_(u, u)] = spread[np.ix_(u, u)] - gain @ spread[np.ix_(o, u)]
    return joint, filled, left


def test_density_and_sums_are_those_of_a_direct_calculation(problem, monkeypatch):
    theta, rows, observed, weights, incomplete = problem
    joint, filled, left = direct(theta, rows, observed)
    density = np.logaddexp.reduce(joint, axis=-1)
    share = np.exp(joint - density[..., None]) * weights[..., None]
    expected = [
        (weights * density).sum(1),
        share.sum(1),
        np.einsum("nmk,nmki->nki", share, filled),
        np.einsum("nmk,nmki,nmkj->nkij", share, filled, filled)
        + np.einsum("nmk,nmkij->nkij", share, left),
    ]
    for at_once in (7, 3):  # a few segments at a time come to the same
        monkeypatch.setattr(dispatch, "CPU_ENTRIES", at_once * N * K * rows.shape[2] ** 2)
        assert dispatch.segments_at_once(theta) == at_once
        with double():
            found = eqx.filter_jit(dispatch.log_joints)(theta, incomplete)
            sums = eqx.filter_jit(dispatch.statistics)(theta, incomplete, weights)
        np.testing.assert_allclose(found, joint, rtol=1e-10)
        for ours, theirs in zip(jax.tree.leaves(sums), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)


def test_the_sums_give_the_gradient_of_the_likelihood_of_what_is_there(problem):
    theta, _, _, weights, incomplete = problem

    def loss(theta):
        density = jax.nn.logsumexp(log_joint_observed(theta, incomplete), axis=-1)
        return -(weights * density).sum()

    with double():
        derived = jax.jit(jax.grad(loss))(jax.tree.map(jax.numpy.asarray, theta))
        found = plain_gradient(theta, jax.jit(observed_statistics)(theta, incomplete, weights))
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(derived), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-11)


def test_without_gaps_it_is_the_ordinary_e_step(problem):
    theta, rows, _, weights, incomplete = problem
    with double():
        whole = IncompleteRows(rows, np.ones_like(incomplete.observed))
        found = jax.jit(observed_statistics)(theta, whole, weights)
        expected = plain_statistics(theta, rows, weights)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9)
