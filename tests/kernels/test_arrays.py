"""Arrays of a whole network: the forms for a device against those of NumPy."""

import jax
import numpy as np
import pytest

import fedmixtures as fm
from fedmixtures.data import shifted_blocks
from fedmixtures.data.node_data import NodeData
from fedmixtures.engine.run import in_process
from fedmixtures.graph.network import as_network
from fedmixtures.kernels import arrays, dispatch
from fedmixtures.mixture.arithmetic import double


@pytest.fixture
def on_device(monkeypatch):
    """As on a GPU: arrays stay with JAX."""
    monkeypatch.setattr(dispatch, "keeps_on_device", lambda: True)
    with double():
        yield


@pytest.mark.parametrize("lengths", [[3, 3, 3], [1, 4, 2, 9], [7]])
def test_stretches_are_summed_as_by_numpy(on_device, lengths):
    n = sum(lengths)
    first = np.cumsum(lengths) - lengths
    values = np.random.default_rng(0).normal(size=(n, 2))
    segments = arrays.Segments(first, n)
    found = segments.sums(jax.numpy.asarray(values))
    np.testing.assert_allclose(found, np.add.reduceat(values, first), rtol=1e-12)
    np.testing.assert_array_equal(segments.number(), np.repeat(range(len(lengths)), lengths))


def test_the_most_voted_label_is_the_same_on_a_device(monkeypatch):
    rng = np.random.default_rng(1)
    receiver = np.sort(rng.integers(20, size=90))
    heard, label = rng.integers(5, size=90), 100 + np.arange(20)
    weight = np.where(rng.random(90) < 0.3, 0.0, rng.integers(1, 4, size=90) / 4)  # with ties
    plain = arrays.most_voted(receiver, heard, weight, label)
    monkeypatch.setattr(dispatch, "keeps_on_device", lambda: True)
    with double():
        found = arrays.most_voted(*map(jax.numpy.asarray, (receiver, heard, weight, label)))
    np.testing.assert_array_equal(found, plain)
    assert len(set(plain.tolist())) > 2


def test_lines_are_put_in_place(on_device):
    place, values = np.array([4, 0, 2]), np.array([1.0, 2.0, 3.0])
    assert arrays.placed(5, place, values, -1, float).tolist() == [2, -1, 3, -1, 1]
    assert arrays.replaced(np.zeros(3), np.array([1]), np.array([5.0])).tolist() == [0, 5, 0]
    flags = arrays.with_either(np.array([False, False, True]), np.array([0, 0]), values[:2] > 1)
    assert flags.tolist() == [True, False, True]
    assert arrays.counted(jax.numpy.asarray([2, 0, 2]), 4).tolist() == [1, 0, 2, 0]


def test_an_order_is_that_of_numpy(on_device):
    rng = np.random.default_rng(2)
    keys = [
        rng.choice([-1.5, -0.0, 0.0, 2.0, np.nan, -np.inf], size=60),
        rng.integers(-3, 3, size=60),
        rng.choice(np.array([0, 1 << 63, 5], np.uint64), size=60),
    ]
    for used in (keys[:1], keys[1:], keys):
        np.testing.assert_array_equal(arrays.in_order_of(*used), np.lexsort(used))


def test_flags_are_found_and_counted(on_device):
    flags = np.array([True, False, True, True])
    assert arrays.lines_with(flags).tolist() == [0, 2, 3]
    assert arrays.tally(flags, np.array([1, 1, 0, 1]), 3).tolist() == [1, 2, 0]


@pytest.mark.parametrize("degree", [0.5, 3.0])
def test_flooding_finds_the_groups_that_a_search_finds(on_device, degree):
    rng = np.random.default_rng(3)
    n, e = 40, int(20 * degree)
    ends = np.stack([rng.integers(n, size=e), rng.integers(n, size=e)])
    receiver, sender = np.concatenate([ends, ends[::-1]], axis=1)
    order = np.lexsort((sender, receiver))
    receiver, sender = receiver[order], sender[order]
    hashes = rng.integers(1 << 60, size=n, dtype=np.uint64)
    live = np.ones(len(order), dtype=bool)
    root, depth = in_process._flooded(live, receiver, sender, hashes)
    wanted, far = in_process._searched(sender, np.bincount(receiver, minlength=n), hashes)
    np.testing.assert_array_equal(root, wanted)
    assert depth == far > 0


def test_a_long_chain_is_searched(on_device):
    n = in_process.FLOOD_ROUNDS + 50
    receiver = np.repeat(np.arange(n), 2)[1:-1]
    sender = receiver + np.tile([1, -1], n - 1)
    hashes = np.arange(n, dtype=np.uint64)
    assert in_process._flooded(np.ones(len(sender), bool), receiver, sender, hashes) is None


@pytest.mark.slow  # a minute: a CPU compiles every operation of it
@pytest.mark.parametrize(("dtype", "gaps"), [("float64", 0), ("float32", 0), ("float64", 40)])
def test_a_fit_whose_arrays_stay_on_the_device_is_the_same(monkeypatch, dtype, gaps):
    scenario = shifted_blocks(n_blocks=2, nodes_per_block=4, n_components=3, n_train=45, seed=1)
    rows = np.delete(scenario.X, slice(0, 20), axis=0)  # nodes of unequal size
    rows[np.arange(gaps) * 7, 0] = np.nan
    data = NodeData.from_rows(rows, np.delete(scenario.nodes, slice(0, 20)))
    network = as_network("full", data.labels).aligned(data.labels)
    fit = lambda: fm.solve("trust", data, network, n_components=3, dtype=dtype)
    plain = fit()
    monkeypatch.setattr(dispatch, "keeps_on_device", lambda: True)
    first, again = fit(), fit()
    if dtype == "float64":
        np.testing.assert_allclose(first.theta.means, plain.theta.means, atol=1e-9)
        np.testing.assert_allclose(first.levels.weights, plain.levels.weights, atol=1e-9)
    found, wanted = (float(one.history.objective[-1]) for one in (first, plain))
    assert found == pytest.approx(wanted, abs=1e-3)  # starts that are as good may change places
    np.testing.assert_array_equal(first.theta.means, again.theta.means)
    trusted = [one.account.edges["trusted"] for one in (first, plain) if one.account]
    np.testing.assert_array_equal(*trusted)
