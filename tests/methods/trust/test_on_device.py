"""The form whose arrays stay on a device, on the CPU: the same numbers, step by step.

A whole fit in this form is tested in `tests/kernels/test_arrays.py` (slow: a CPU compiles every
operation of it).
"""

import jax
import numpy as np
import pytest

import fedmixtures as fm
from fedmixtures.data.node_data import NodeData
from fedmixtures.engine.layout.blocks import protocol_block
from fedmixtures.engine.run.protocols import InProcess
from fedmixtures.graph.network import as_network
from fedmixtures.kernels import dispatch
from fedmixtures.kernels.arrays import numpy_rules
from fedmixtures.methods.trust_then_pool import weigh
from fedmixtures.methods.trust_then_pool.nodes import Nodes, common_units
from fedmixtures.methods.trust_then_pool.own import own_level
from fedmixtures.mixture.arithmetic import double

OPTIONS = fm.TrustThenPool(n_starts=2, n_folds=2)


@pytest.fixture
def quickly_compiled():
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def first_and_last_step():
    """Own fits, densities out of fold and weights of two levels, of nodes of unequal size."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(90, 1)) + 4 * rng.integers(0, 2, (90, 1))
    data = NodeData.from_rows(rows, np.repeat([0, 1, 2], [12, 28, 50]))
    network = as_network("full", data.labels).aligned(data.labels)
    with double(), numpy_rules("float64"):
        block = protocol_block(data, network, [2] * 3, 0)
        engine = InProcess(block)
        nodes = Nodes(block, drive(common_units(block), engine), OPTIONS)
        own = own_level(nodes)
        flat = own.out_of_fold * 0 - 1.5
        group = np.zeros(3, np.int64)
        weights = drive(weigh.weights(nodes, [own.out_of_fold, flat], group), engine)
        return *own.fit.parts, *own.folds.parts, own.out_of_fold, weights


def drive(steps, engine):
    answer = None
    while True:
        try:
            answer = engine(steps.send(answer))
        except StopIteration as end:
            return end.value


def test_steps_on_a_device_are_those_on_the_host(monkeypatch, quickly_compiled):
    host = first_and_last_step()
    assert all(isinstance(part, np.ndarray) for part in host)
    monkeypatch.setattr(dispatch, "keeps_on_device", lambda: True)
    there = first_and_last_step()
    assert all(isinstance(part, jax.Array) for part in there)
    for one, other in zip(there, host, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-11)
