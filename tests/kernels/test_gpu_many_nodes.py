"""What a GPU does for very many nodes itself, done here: the same layout, the same start."""

import jax
import numpy as np
import pytest

from fedmixtures.data.node_data import NodeData
from fedmixtures.engine.layout import blocks
from fedmixtures.graph.generate import sparse_random
from fedmixtures.init import KMeansStart
from fedmixtures.kernels import dispatch
from fedmixtures.kernels.gpu import clustering
from fedmixtures.mixture.arithmetic import double, precision

pytestmark = pytest.mark.slow  # interpreted, these take half a minute


def data_of(counts, seed=0, digits=None):
    rng = np.random.default_rng(seed)
    nodes = rng.permutation(np.repeat(np.arange(len(counts)), counts))
    X = rng.standard_normal((len(nodes), 2))
    if digits is not None:
        X = np.round(X, digits)  # many equal rows
    return NodeData.from_rows(X, nodes, rng.uniform(0.5, 2, len(nodes)))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_layout_is_the_same(monkeypatch, dtype):
    data = data_of(np.random.default_rng(1).integers(1, 60, size=90))
    network = sparse_random(90, 5, 2)
    monkeypatch.setattr(blocks, "GROUP_OVERHEAD", 0.0)
    monkeypatch.setattr(dispatch, "BLOCK_NODES", dispatch.GPU_NODES)
    with precision(dtype):
        wanted = blocks.build_layout(data, network, dtype, seed=3)
        monkeypatch.setattr(dispatch, "lays_out_on_device", lambda n_nodes, n_rows: True)
        found = blocks.build_layout(data, network, dtype, seed=3)
    assert len(wanted.groups) > 2
    np.testing.assert_array_equal(found.position, wanted.position)
    assert found.n_places == wanted.n_places
    for a, b in zip(wanted.groups, found.groups, strict=True):
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
            assert (x.dtype, x.shape) == (y.dtype, y.shape)
            np.testing.assert_allclose(x, y, rtol=1e-6 if x.dtype == np.float32 else 1e-15)
    # keys and places exactly, whatever the precision
    for name in ("sender", "node_key", "slot_key"):
        for a, b in zip(wanted.groups, found.groups, strict=True):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name))


@pytest.mark.parametrize("digits", [None, 1])
def test_the_start_is_the_same(monkeypatch, digits):
    data = data_of([30, 31, 28, 30, 25, 29], digits=digits)
    start = KMeansStart(n_init=3, reg_covar=0.1, batched=True)
    with double():
        wanted = start.mixtures(data, [3, 2, 3, 3, 3, 2], 5, 0.0)
        monkeypatch.setattr(dispatch, "sorts_on_device", lambda: True)
        found = start.mixtures(data, [3, 2, 3, 3, 3, 2], 5, 0.0)
    for a, b in zip(wanted.parts, found.parts, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("k", "d"), [(3, 1), (4, 3)])
def test_the_kernel_clusters_as_the_plain_form_does(k, d):
    """Empty clusters too; differences beyond 1e-9 are an error."""
    clustering.trial(k, d, "float64", interpret=True)


def test_too_few_distinct_rows_are_named(monkeypatch):
    data = NodeData.from_rows(np.ones((8, 1)), np.repeat([4, 5], 4))
    monkeypatch.setattr(dispatch, "sorts_on_device", lambda: True)
    with pytest.raises(ValueError, match=r"node 4 has 1 distinct row but n_components=2"):
        KMeansStart(batched=True).mixtures(data, [2, 2], 0, 0.1)
