"""Who receives what: a program whose nodes write letters to each neighbour by name."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedmixtures import Mixture
from fedmixtures.data.node_data import NodeData
from fedmixtures.engine.layout import blocks
from fedmixtures.engine.solve import solve
from fedmixtures.graph.generate import erdos_renyi_ring
from fedmixtures.kernels import dispatch
from fedmixtures.methods.programs import Info, NodeProgram, Outgoing


class Letters(NodeProgram):
    """Round 1: everybody tells its number. Round 2: a letter to each neighbour, by its number."""

    def start(self, theta, data, keys):
        return {"number": theta.means[:, 0, 0], "theta": theta}

    def meet(self, state, weight):
        nothing = jnp.zeros_like(weight)
        return state | {"known": nothing, "letter": nothing, "edge": nothing}

    def outgoing(self, state, weight):
        return Outgoing(state["number"], 1000 * state["number"][:, None] + state["known"])

    def step(self, state, inbox, data, keys):
        heard = {"known": inbox.broadcast, "letter": inbox.per_slot, "edge": inbox.weight}
        nothing = jnp.zeros_like(state["number"])
        return state | heard, Info(nothing, nothing, nothing, nothing)

    def result(self, state, data):
        return state["theta"]

    def account(self, state, data):
        slots = {name: state[name] for name in ("known", "letter", "edge")}
        return {"number": state["number"]}, slots


LAYOUTS = [
    pytest.param({}, {}, id="one-block"),
    pytest.param({}, {"block_size": 1}, id="every-node-alone"),
    pytest.param({"GROUP_OVERHEAD": 0.0, "BLOCK_NODES": 3}, {}, id="groups-and-blocks"),
    pytest.param({}, {"devices": 2}, id="two-devices"),
    pytest.param({"GROUP_OVERHEAD": 0.0, "BLOCK_NODES": 3}, {"devices": 3}, id="three-devices"),
]


@pytest.mark.parametrize(("constants", "options"), LAYOUTS)
def test_letters_arrive_where_they_are_addressed_to(monkeypatch, constants, options):
    for name, value in constants.items():
        monkeypatch.setattr(blocks if hasattr(blocks, name) else dispatch, name, value)
    if "devices" in options:
        options = {"devices": tuple(jax.devices()[: options["devices"]])}
    n = 11
    counts = [3, 40, 9, 1, 17, 300, 5, 8, 2, 11, 90]
    data = NodeData.from_rows(np.zeros((sum(counts), 1)), np.repeat(np.arange(n), counts))
    network = erdos_renyi_ring(n, 0.3, seed=2)
    numbers = 1.0 + np.random.default_rng(0).permutation(n)
    theta = Mixture(np.ones((n, 1)), numbers[:, None, None], np.ones((n, 1, 1, 1)))
    solution = solve(Letters(), data, network, theta, n_rounds=2, **options)
    told = solution.account
    np.testing.assert_array_equal(told.nodes["number"], numbers)
    ends = np.stack([network.source, network.target], axis=1)
    own, other = numbers[ends], numbers[ends[:, ::-1]]  # (edges, ends)
    np.testing.assert_array_equal(told.edges["known"], other)
    np.testing.assert_array_equal(told.edges["letter"], 1000 * other + own)
    np.testing.assert_array_equal(told.edges["edge"], np.stack([network.weight] * 2, axis=1))
    # one number to all and one to each: two of eight bytes to every neighbour, each round
    assert solution.traffic.message_bytes == 16
    assert solution.traffic.sent == {i: 2 * 16 * int(network.degree[i]) for i in range(n)}
