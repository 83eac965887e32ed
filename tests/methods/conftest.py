"""Small networks that the tests of all methods share."""

from types import SimpleNamespace

import numpy as np
import pytest

from fedmixtures import Mixture
from fedmixtures.data import homogeneous, shifted_blocks
from fedmixtures.data.node_data import NodeData
from fedmixtures.graph.generate import ring
from fedmixtures.graph.network import complete


def _case(scenario, network):
    return SimpleNamespace(
        X=scenario.X,
        nodes=scenario.nodes,
        data=NodeData.from_rows(scenario.X, scenario.nodes),
        network=network,
        truth=scenario.means,
        blocks=scenario.blocks,
        scenario=scenario,
        rows=[scenario.X[scenario.nodes == label] for label in scenario.labels],
    )


@pytest.fixture(scope="session")
def alike():
    """Six nodes with one distribution, on a ring."""
    return _case(homogeneous(n_nodes=6, n_components=3, n_train=40, seed=3), ring(6))


@pytest.fixture(scope="session")
def blocks():
    """Two blocks of three nodes with shifted means, all joined."""
    scenario = shifted_blocks(2, 3, n_components=3, n_train=40, shift_scale=15, seed=1)
    return _case(scenario, complete(range(6)))


@pytest.fixture(scope="session")
def uneven():
    """Five nodes of very different sizes."""
    rows = [12, 35, 20, 60, 15]
    scenario = homogeneous(n_nodes=5, n_components=3, rows_per_node=rows, seed=5)
    return _case(scenario, ring(5))


@pytest.fixture(scope="session")
def shared_start(alike):
    """One mixture, as the start of every node of `alike`."""
    means = alike.truth[0] + 0.7
    start = Mixture(np.array([0.5, 0.3, 0.2]), means, np.tile(1.5 * np.eye(2), (3, 1, 1)))
    return dict.fromkeys(alike.data.labels, start)


@pytest.fixture(scope="module")
def gaps():
    """A scenario, and its rows with three of ten cells missing."""
    scenario = shifted_blocks(n_blocks=2, nodes_per_block=3, n_components=2, n_train=60, seed=5)
    missing = np.random.default_rng(0).random(scenario.X.shape) < 0.3
    missing[missing.all(1), 0] = False
    return scenario, np.where(missing, np.nan, scenario.X)


@pytest.fixture(autouse=True)
def numbers_of_the_method(monkeypatch):
    """Methods are compared with references in the numbering of components that they give.

    That of the estimator's clusters is tested in tests/estimators/test_align.py.
    """
    as_it_is = lambda solution, *_: solution
    monkeypatch.setattr("fedmixtures.estimators.network_mixture.aligned", as_it_is)
