"""Several devices: the same numbers, and only what has to cross crosses."""

import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from fedmixtures import KL, MMD, Euclidean, GTVMin, NetworkGaussianMixture
from fedmixtures.data.node_data import NodeData
from fedmixtures.engine.layout import blocks
from fedmixtures.engine.layout.shards import build_sharded_layout, cut_into_parts, n_cut_edges
from fedmixtures.engine.solve import solve
from fedmixtures.graph.generate import erdos_renyi_ring, stochastic_blocks
from fedmixtures.mixture.arithmetic import double
from helpers import stack

N = 24


@pytest.fixture(scope="module")
def problem():
    """Nodes of very different size, so that there are several groups of blocks."""
    rng = np.random.default_rng(3)
    counts = rng.integers(5, 60, N)
    nodes = np.repeat(np.arange(N), counts)
    data = NodeData.from_rows(rng.standard_normal((len(nodes), 2)), nodes, None)
    return data, erdos_renyi_ring(N, 0.15, seed=1), stack(5, N, k=2)


def test_every_device_holds_its_part_of_every_group(problem, monkeypatch):
    monkeypatch.setattr(blocks, "GROUP_OVERHEAD", 0.0)
    data, network, _ = problem
    with double():
        layout = build_sharded_layout(data, network, jax.devices()[:3])
    assert len(layout.groups) > 1
    for group in layout.groups:  # who hears whom is in test_messages
        assert {shard.device for shard in group.weight.addressable_shards} == set(jax.devices()[:3])
    assert sum(int((np.asarray(g.weight) > 0).sum()) for g in layout.groups) == 2 * network.n_edges


@pytest.mark.parametrize("coupling", [Euclidean(), MMD(), KL(n_samples=5)], ids=str)
def test_the_numbers_are_those_of_one_device(problem, coupling):
    data, network, theta = problem
    method = GTVMin(coupling).bounded(data, [2] * N)
    one = solve(method, data, network, theta, n_rounds=4)
    three = solve(method, data, network, theta, n_rounds=4, devices=jax.devices()[:3])
    for ours, theirs in zip(three.theta.parts, one.theta.parts, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(three.history.objective, one.history.objective, rtol=1e-12)
    assert three.traffic == one.traffic
    assert one.shards is None
    assert three.shards.n_devices == 3


def test_a_model_crosses_once_to_each_device_that_needs_it(problem):
    data, network, _ = problem
    with double():
        layout = build_sharded_layout(data, network, jax.devices()[:3])
    device = np.empty(N, dtype=int)  # read back from where the rows lie
    first = 0
    for group in layout.groups:
        n_blocks, width = group.weight.shape[:2]
        for shard in group.weight.addressable_shards:
            start = first + shard.index[0].start * width
            stop = first + shard.index[0].stop * width
            here = (layout.position >= start) & (layout.position < stop)
            device[here] = shard.device.id
        first += n_blocks * width
    ends = np.stack([network.source, network.target])
    ends = np.concatenate([ends, ends[::-1]], axis=1)
    apart = device[ends[0]] != device[ends[1]]
    assert layout.shards.cut_edges == apart.sum() // 2
    assert layout.shards.halo_nodes == len({(a, device[b]) for a, b in ends.T[apart]})


def test_parts_share_the_work_and_cut_few_edges():
    network = stochastic_blocks([60] * 3, 0.2, 0.01, seed=0)
    part = cut_into_parts(network, np.ones(180), 3)
    assert np.bincount(part).tolist() == [60, 60, 60]
    between_blocks = n_cut_edges(network, np.repeat(np.arange(3), 60))
    at_random = n_cut_edges(network, np.random.default_rng(0).permutation(part))
    assert n_cut_edges(network, part) <= 1.5 * between_blocks
    assert n_cut_edges(network, part) < 0.3 * at_random


def test_an_interrupted_run_over_devices_goes_on(problem):
    data, network, theta = problem
    method = GTVMin(MMD()).bounded(data, [2] * N)
    devices = tuple(jax.devices()[:2])
    kept = []
    given = method, data, network, theta
    whole = solve(*given, n_rounds=6, report_every=3, checkpoint=kept.append, devices=devices)
    rest = solve(*given, n_rounds=6, resume=kept[0], devices=devices)
    assert kept[0].round == 3
    np.testing.assert_array_equal(rest.theta.means, whole.theta.means)
    with pytest.raises(ValueError, match="`resume` comes from another run"):
        solve(*given, n_rounds=6, resume=kept[0])


def test_the_estimator_takes_devices_and_says_what_is_wrong_with_them(problem):
    data, network, _ = problem
    model = NetworkGaussianMixture(2, graph=network, method="gtv-mmd", n_rounds=2, devices=2)
    nodes = np.repeat(np.arange(N), data.counts)
    assert model.fit(data.rows, nodes=nodes).shards_.n_devices == 2
    for devices, message in [
        (99, f"`devices` is 99, but JAX sees {jax.device_count()}"),
        (0, "`devices`"),
        ("gpu", "`devices`"),
        ([], "`devices` is "),
    ]:
        with pytest.raises(ValueError, match=message):
            model.set_params(devices=devices).fit(data.rows, nodes=nodes)


def test_two_processes_hold_a_network_together():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = Path(__file__).with_name("two_processes.py")
    both = [
        subprocess.Popen(
            [sys.executable, script, str(port), str(i)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for i in range(2)
    ]
    said = [process.communicate(timeout=120)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], "\n".join(said)
    assert all("4 devices, largest difference 0" in text for text in said), "\n".join(said)
