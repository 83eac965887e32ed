"""The GPU kernels, interpreted: the same sums as the CPU's, whatever the tile holds."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedmixtures import MMD, Mixture
from fedmixtures.discrepancy import mmd_gpu
from fedmixtures.mixture import statistics
from fedmixtures.mixture.precision import double

NODES = 70  # more than a tile, and no multiple of it


def mixtures(rng, *batch, k=2, d=2):
    """A stack of random mixtures as JAX arrays."""
    root = rng.normal(size=(*batch, k, d, d))
    covariances = root @ np.swapaxes(root, -1, -2) + 0.3 * np.eye(d)
    means = 3 * rng.normal(size=(*batch, k, d))
    parts = (rng.dirichlet(np.ones(k), size=batch), means, covariances)
    return jax.tree.map(jnp.asarray, Mixture(*parts))


@pytest.mark.parametrize("d", [2, 3])
def test_mmd_sums_agree_with_the_cpu_kernel(d):
    rng = np.random.default_rng(d)
    weight = rng.uniform(size=(NODES, 5))
    weight[:, 4] = 0  # a slot nobody uses
    weight[:30, 3:] = 0  # tiles whose nodes have fewer neighbours
    discrepancy = MMD((0.5, 2.0))
    with double():
        own, neighbours = mixtures(rng, NODES, d=d), mixtures(rng, NODES, 5, d=d)
        wanted = jax.jit(discrepancy._sums)(own, neighbours, jnp.asarray(weight))
        on_gpu = jax.jit(partial(mmd_gpu.atom_sums_gpu, interpret=True))
        found = on_gpu(own, mmd_gpu.GpuAtoms.of(neighbours), jnp.asarray(weight), (0.5, 2.0))
    for a, b in zip(wanted, found, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-13)


@pytest.mark.parametrize("d", [2, 3])
def test_statistics_agree_with_the_cpu_kernel(d):
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
        wanted = jax.jit(statistics.statistics)(*args)
        found = jax.jit(lambda *a: statistics._by_gpu_kernel(*a, interpret=True))(*args)
    for a, b in zip(jax.tree.leaves(wanted), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)
