"""Who receives what: a program whose nodes tell each other their numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedmixtures import Mixture
from fedmixtures.data.node_data import NodeData
from fedmixtures.engine.layout import blocks
from fedmixtures.engine.solve import solve
from fedmixtures.graph.generate import erdos_renyi_ring
from fedmixtures.graph.network import Network
from fedmixtures.kernels import dispatch
from fedmixtures.methods.programs import Info, NodeProgram


class Listeners(NodeProgram):
    """Everybody tells its number; a node's result is what it heard, each by the edge's weight."""

    def start(self, theta, data, keys):
        return {"number": theta.means[:, 0, 0], "theta": theta}

    def outgoing(self, state):
        return state["number"]

    def step(self, state, inbox, data, keys):
        heard = (inbox.weight * inbox.broadcast).sum(-1)[:, None, None]
        theta = Mixture(state["theta"].weights, heard, state["theta"].covariances)
        nothing = jnp.zeros_like(state["number"])
        return state | {"theta": theta}, Info.without_pull(nothing, nothing)

    def result(self, state, data):
        return state["theta"]


LAYOUTS = [
    pytest.param({}, {}, id="one-block"),
    pytest.param({}, {"block_size": 1}, id="every-node-alone"),
    pytest.param({"GROUP_OVERHEAD": 0.0, "BLOCK_NODES": 3}, {}, id="groups-and-blocks"),
    pytest.param({}, {"devices": 2}, id="two-devices"),
    pytest.param({"GROUP_OVERHEAD": 0.0, "BLOCK_NODES": 3}, {"devices": 3}, id="three-devices"),
]


@pytest.mark.parametrize(("constants", "options"), LAYOUTS)
def test_messages_arrive_at_neighbours_and_nowhere_else(monkeypatch, constants, options):
    for name, value in constants.items():
        monkeypatch.setattr(blocks if hasattr(blocks, name) else dispatch, name, value)
    if "devices" in options:
        options = {"devices": tuple(jax.devices()[: options["devices"]])}
    n = 11
    counts = [3, 40, 9, 1, 17, 300, 5, 8, 2, 11, 90]
    data = NodeData.from_rows(np.zeros((sum(counts), 1)), np.repeat(np.arange(n), counts))
    network = erdos_renyi_ring(n, 0.3, seed=2)
    # Powers of two: a sum says which they were. Every second edge counts for 2^11 of them.
    weight = np.where(np.arange(network.n_edges) % 2, 2.0**n, 1.0)
    network = Network(network.labels, network.source, network.target, weight)
    numbers = 2.0 ** np.random.default_rng(0).permutation(n)
    theta = Mixture(np.ones((n, 1)), numbers[:, None, None], np.ones((n, 1, 1, 1)))
    solution = solve(Listeners(), data, network, theta, n_rounds=2, **options)
    wanted = network.adjacency() @ numbers
    np.testing.assert_array_equal(solution.theta.means[:, 0, 0], wanted)
    # one number of eight bytes to every neighbour, each round
    assert solution.traffic.message_bytes == 8
    assert solution.traffic.sent == {i: 2 * 8 * int(network.degree[i]) for i in range(n)}
