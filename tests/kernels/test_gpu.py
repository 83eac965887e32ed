"""The GPU kernels, interpreted: the same sums as the CPU's, whatever the tile holds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedmixtures import KL, MMD, Euclidean, Mixture
from fedmixtures.kernels import dispatch
from fedmixtures.kernels.cpu.matching import best_matchings, best_path
from fedmixtures.kernels.cpu.pair_sums import Atoms
from fedmixtures.kernels.gpu.drawing import drawn_points_gpu
from fedmixtures.kernels.gpu.likelihood import GpuRows, nll_gpu, statistics_gpu
from fedmixtures.kernels.gpu.matching import matched_mean_gpu
from fedmixtures.kernels.gpu.pair_sums import GpuAtoms, atom_sums_gpu
from fedmixtures.kernels.gpu.tiles import TILE
from fedmixtures.mixture.arithmetic import double

pytestmark = pytest.mark.slow  # interpreted, these take half a minute

NODES = TILE + 6  # no whole number of tiles


def mixtures(rng, *batch, k=2, d=2):
    """A stack of random mixtures as JAX arrays."""
    root = rng.normal(size=(*batch, k, d, d))
    covariances = root @ np.swapaxes(root, -1, -2) + 0.3 * np.eye(d)
    means = 3 * rng.normal(size=(*batch, k, d))
    parts = (rng.dirichlet(np.ones(k), size=batch), means, covariances)
    return jax.tree.map(jnp.asarray, Mixture(*parts))


@pytest.mark.parametrize("d", [1, 2, 3, 6])
def test_mmd_sums_agree_with_the_cpu_kernel(d):
    rng = np.random.default_rng(d)
    weight = rng.uniform(size=(NODES, 5))
    weight[:, 4] = 0  # a slot nobody uses
    weight[:30, 3:] = 0  # tiles whose nodes have fewer neighbours
    bandwidths = (0.5, 2.0)
    with double():
        own, neighbours = mixtures(rng, NODES, d=d), mixtures(rng, NODES, 5, d=d)
        args = neighbours, jnp.asarray(weight), jnp.zeros(NODES)
        wanted = jax.jit(lambda own, *args: Atoms(*args, bandwidths).sums(own))(own, *args)
        on_gpu = lambda own, *args: atom_sums_gpu(
            own, GpuAtoms.of(*args, bandwidths), interpret=True
        )
        found = jax.jit(on_gpu)(own, *args)
    for a, b in zip(wanted, found, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-13)


def test_atoms_pull_as_those_of_the_cpu():
    rng = np.random.default_rng(5)
    discrepancy = MMD((0.5, 2.0))
    with double():
        own, neighbours = mixtures(rng, NODES), mixtures(rng, NODES, 3)
        weight, constants = (jnp.asarray(rng.uniform(size=(NODES, 3))) for _ in range(2))
        keys = jax.random.split(jax.random.key(0), weight.shape)
        couple = lambda own, *args: discrepancy.couple(own, args, keys, weight).pull(own)
        wanted = jax.jit(couple)(own, neighbours, constants)
        constant = (weight * constants).sum(-1)
        atoms = GpuAtoms.of(neighbours, weight, constant, discrepancy.bandwidths)
        found = jax.jit(lambda own: atoms.pull(own, interpret=True))(own)
    for a, b in zip(jax.tree.leaves(wanted), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-13)


@pytest.mark.parametrize("d", [2, 3])
def test_statistics_and_gradients_agree_with_the_cpu_kernel(d):
    rng = np.random.default_rng(10 + d)
    weights = rng.uniform(size=(NODES, 9))
    weights[:, 7:] = 0  # padding rows
    weights[:20, 5:] = 0
    weights[3] = 0  # a place without a node
    with double():
        theta = mixtures(rng, NODES, d=d)
        absent = theta.weights.at[5].set(jnp.array([0.0, 1.0]))
        theta = Mixture(absent, theta.means, theta.covariances)
        args = (theta, jnp.asarray(rng.normal(size=(NODES, 9, d))), jnp.asarray(weights))
        wanted = jax.jit(dispatch.statistics)(*args)
        found = jax.jit(lambda *a: statistics_gpu(*a, interpret=True))(*args)
        wanted_nll = jax.jit(dispatch.nll_and_gradient)(*args)
        of_rows = lambda theta, *rows: nll_gpu(theta, GpuRows.of(*rows), interpret=True)
        found_nll = jax.jit(of_rows)(*args)
    wanted, found = (wanted, wanted_nll), (found, found_nll)
    for a, b in zip(jax.tree.leaves(wanted), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("d", "k"), [(1, 4), (2, 3), (2, 4)])
def test_centres_pull_as_the_matched_neighbours_do(d, k):
    rng = np.random.default_rng(20 + d)
    weight = rng.uniform(size=(NODES, 4))
    weight[:, 3] = 0  # a slot nobody uses
    weight[:30, 1:] = 0
    weight[7] = 0  # a node alone
    discrepancy = Euclidean((1.0, 2.0, 0.5))
    with double():
        own, neighbours = mixtures(rng, NODES, k=k, d=d), mixtures(rng, NODES, 4, k=k, d=d)
        moved = Mixture(own.weights, own.means + 0.1, 1.1 * own.covariances)
        weight = jnp.asarray(weight)
        keys = jax.random.split(jax.random.key(0), weight.shape)
        couple = lambda own, others: discrepancy.couple(own, others, keys, weight)
        wanted = jax.jit(couple)(own, neighbours).pull(moved)
        find = lambda own, others: matched_mean_gpu(
            own, others, weight, discrepancy.block_weights, interpret=True
        )
        found = jax.jit(find)(own, neighbours).pull(moved)
    for a, b in zip(jax.tree.leaves(wanted), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
    assert not np.asarray(found[1].means)[7].any()


@pytest.mark.parametrize("k", [1, 2, 6])
def test_paths_are_the_best_matchings(k):
    cost = np.random.default_rng(k).integers(0, 4, size=(k, k, 50)).astype(float)  # many equals
    with double():
        wanted = np.asarray(best_matchings(jnp.asarray(cost)))
        rows = [[jnp.asarray(cost[c, e]) for e in range(k)] for c in range(k)]
        least, path = map(np.asarray, best_path(rows))
    partner = np.stack([(path >> (3 * c)) & 7 for c in range(k)])
    np.testing.assert_array_equal(partner, wanted)
    np.testing.assert_array_equal(least, np.take_along_axis(cost, wanted[:, None], 1).sum((0, 1)))


@pytest.mark.parametrize("d", [1, 3])
def test_drawn_points_pull_as_those_of_the_cpu(d):
    """The same points, as rows of the statistics kernel with a weight for each slot."""
    rng = np.random.default_rng(30 + d)
    weight = rng.uniform(size=(NODES, 3))
    weight[:, 2] = 0  # a slot nobody uses
    weight[:TILE, 1:] = 0  # a whole tile with a single neighbour each
    weight[7] = 0
    discrepancy = KL(6)
    with double():
        own, neighbours = mixtures(rng, NODES, k=3, d=d), mixtures(rng, NODES, 3, k=3, d=d)
        weight = jnp.asarray(weight)
        keys = jax.random.split(jax.random.key(1), weight.shape)
        plain = jax.jit(discrepancy.couple)(own, neighbours, keys, weight)
        wanted = jax.jit(lambda own: plain.pull(own))(own)
        draw = jax.jit(lambda *args: drawn_points_gpu(*args, weight, 6, interpret=True))
        drawn = draw(neighbours, keys)
        found = jax.jit(lambda own: drawn.pull(own, interpret=True))(own)
    points = np.asarray(drawn.rows.x).reshape(3, 6, d, -1)
    np.testing.assert_allclose(points[0, ..., 3], np.asarray(plain.points)[3, 0], rtol=1e-12)
    np.testing.assert_allclose(
        points[1, ..., NODES - 1], np.asarray(plain.points)[-1, 1], rtol=1e-12
    )
    for a, b in zip(jax.tree.leaves(wanted), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11)
