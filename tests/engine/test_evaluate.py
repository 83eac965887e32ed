"""Rows under their own node's mixture, whatever the blocks."""

import numpy as np
import pytest

import reference
from fedmixtures.data.node_data import NodeData
from fedmixtures.engine.evaluate import log_joint_rows
from fedmixtures.engine.layout import blocks
from fedmixtures.kernels import dispatch
from helpers import stack


@pytest.mark.parametrize("several", [False, True])
def test_rows_come_back_in_their_order(monkeypatch, several):
    if several:
        monkeypatch.setattr(blocks, "GROUP_OVERHEAD", 0.0)
        monkeypatch.setattr(dispatch, "BLOCK_NODES", 2)
    rng = np.random.default_rng(0)
    counts = [5, 60, 3, 200, 17]
    nodes = rng.permutation(np.repeat(list("abcde"), counts))
    X = rng.standard_normal((len(nodes), 2))
    theta = stack(0, 5, 3, 2, absent=1)
    found = log_joint_rows(theta, NodeData.from_rows(X, nodes))
    for i, label in enumerate("abcde"):
        mine = nodes == label
        expected = reference.log_joint(theta.at(i).parts, X[mine])
        np.testing.assert_allclose(found[mine], expected, rtol=1e-9)
