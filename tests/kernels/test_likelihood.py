"""One pass over rows: moments against a loop, gradients against automatic differentiation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import reference
from fedmixtures import Mixture
from fedmixtures.kernels import dispatch
from fedmixtures.kernels.arrays import owner_sums
from fedmixtures.kernels.compiling import jit
from fedmixtures.mixture import density
from fedmixtures.mixture.arithmetic import double, precision
from helpers import assert_close, draw, mixture, stack

# nodes, components, features and rows all differ, so that no two axes can be mistaken
SHAPES = [(4, 3, 1, 7), (5, 3, 2, 11), (2, 5, 3, 9), (4, 2, 5, 13)]


def rows_for(theta, m, seed=0):
    """Rows near each node's mixture, with uneven weights, some of them zero."""
    rng = np.random.default_rng(seed)
    rows = np.stack([draw(theta.at(i).trimmed(), m, seed + i) for i in range(len(theta.weights))])
    weights = rng.uniform(0, 1, rows.shape[:2]) * (rng.random(rows.shape[:2]) < 0.8)
    return rows, weights / weights.sum(-1, keepdims=True)


def by_loop(theta, rows, weights):
    """The definitions, one node and component at a time."""
    joint = reference.log_joint(theta.parts, rows)
    log_density = np.logaddexp.reduce(joint, axis=1)
    share = np.exp(joint - log_density[:, None]) * weights[:, None]
    delta = rows[:, None, :] - theta.means[None]
    return (
        weights @ log_density,
        share.sum(0),
        np.einsum("mk,mki->ki", share, delta),
        np.einsum("mk,mki,mkj->kij", share, delta, delta),
    )


@pytest.mark.parametrize(("n", "k", "d", "m"), SHAPES)
def test_statistics_agree_with_a_loop(n, k, d, m):
    """Ill-conditioned, far from the origin, and with an absent component."""
    theta = stack(3, n, k, d, condition=1e6, centre=1e4, absent=1)
    rows, weights = rows_for(theta, m)
    with double():
        s = jit(dispatch.statistics)(theta, rows, weights)
    found = (s.log_likelihood, s.mass, s.first, s.second)
    for i in range(n):
        for got, wanted in zip(found, by_loop(theta.at(i), rows[i], weights[i]), strict=True):
            np.testing.assert_allclose(got[i], wanted, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("d", [3, 6, 16])  # by entries, by kept products, by products made anew
def test_statistics_of_tiles_add_up_to_those_of_their_fit(d):
    theta = stack(3, 2, 3, d)
    rows, weights = rows_for(theta, 20)
    tiles = lambda part: part.reshape(4, 10, *part.shape[2:])
    owner = np.array([0, 0, 1, 1])
    with double():
        add = owner_sums(owner, 2, None)
        table = dispatch.TileRows.of(jnp.asarray(tiles(rows)))
        found = dispatch.tile_statistics(theta, table, tiles(weights), owner, add)
    for i in range(2):
        expected = by_loop(theta.at(i), rows[i], weights[i])
        for name, value in zip(
            ("log_likelihood", "mass", "first", "second"), expected, strict=True
        ):
            np.testing.assert_allclose(getattr(found, name)[i], value, atol=1e-9, err_msg=name)


@pytest.mark.parametrize(("n", "k", "d", "m"), SHAPES)
def test_gradient_agrees_with_automatic_differentiation(n, k, d, m):
    theta = stack(1, n, k, d)
    rows, weights = rows_for(theta, m)

    @jit
    def both(parts, rows, weights):
        theta = Mixture(*parts)
        derived = jax.vmap(jax.value_and_grad(density.local_loss))(theta, rows, weights)
        return dispatch.nll_and_gradient(theta, rows, weights), derived

    with double():
        parts = tuple(jnp.asarray(part) for part in theta.parts)
        (value, gradient), (wanted, derived) = both(parts, rows, weights)
    np.testing.assert_allclose(value, wanted, rtol=1e-12)
    assert_close(gradient, derived, 1e-10)


def test_chunks_of_rows_add_up(monkeypatch):
    """Rows in chunks, a short last one included, are rows all at once."""
    theta = stack(2, 3, 2, 2)
    rows, weights = rows_for(theta, 41)
    with double():
        whole = jit(dispatch.statistics)(theta, rows, weights)
        monkeypatch.setattr(dispatch, "ROW_CHUNK", 16)
        chunked = jit(lambda *a: dispatch.statistics(*a))(theta, rows, weights)
    for got, wanted in zip(jax.tree.leaves(chunked), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-14)


def test_absent_components_change_nothing():
    theta, padded = stack(4, 2, 3, 2), stack(4, 2, 3, 2, absent=2)
    rows, weights = rows_for(theta, 12)
    with double():
        gradient = jit(dispatch.nll_and_gradient)
        value, g = gradient(theta, rows, weights)
        same, g_padded = gradient(padded, rows, weights)
    np.testing.assert_allclose(same, value, rtol=1e-13)
    for got, wanted in zip(g_padded.parts, g.parts, strict=True):
        np.testing.assert_allclose(got[:, :3], wanted, rtol=1e-12)
        assert not np.asarray(got)[:, 3:].any()


def test_rows_without_a_node_give_zero():
    """An empty place of a block has weights zero: no NaN may come of it."""
    theta, rows = stack(0, 2, 3, 2), np.zeros((2, 4, 2))
    with double():
        value, gradient = jit(dispatch.nll_and_gradient)(theta, rows, np.zeros((2, 4)))
    assert np.asarray(value).tolist() == [0.0, 0.0]
    assert all(not np.asarray(part).any() for part in gradient.parts)


@pytest.mark.parametrize("d", [2, 5])
def test_float32_near_1e4_is_as_good_as_its_rows(d):
    """Moments about the own mean lose no digits beyond those the rows lose on entering float32."""
    p = mixture(1, 3, d, centre=1e4)
    rows = draw(p, 50)[None].astype(np.float32)
    means = p.means.astype(np.float32).astype(np.float64)
    theta = Mixture(p.weights[None], means[None], p.covariances[None])
    weights = np.full((1, 50), 1 / 50)
    with double():
        value, gradient = jit(dispatch.nll_and_gradient)(theta, rows.astype(np.float64), weights)
    with precision("float32"):
        single = Mixture(*(jnp.asarray(part, jnp.float32) for part in theta.parts))
        value32, gradient32 = jit(dispatch.nll_and_gradient)(
            single, jnp.asarray(rows), jnp.asarray(weights, jnp.float32)
        )
    np.testing.assert_allclose(value32, value, rtol=1e-5)
    for got, wanted in zip(gradient32.parts, gradient.parts, strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-4 * np.abs(wanted).max())
