"""The default method on one, two and four devices of a process; says whether they agree."""

import jax
import numpy as np

from fedmixtures.data.node_data import NodeData
from fedmixtures.engine.solve import solve
from fedmixtures.graph.generate import stochastic_blocks

rng = np.random.default_rng(1)
nodes = np.repeat(np.arange(40), rng.integers(10, 80, 40))
centres = 4 * rng.normal(size=(4, 3, 2))
X = centres[nodes // 10, rng.integers(0, 3, len(nodes))] + rng.normal(size=(len(nodes), 2))
problem = NodeData.from_rows(X, nodes), stochastic_blocks([10] * 4, 0.6, 0.1, seed=0)
one, *several = (
    solve("trust", *problem, n_components=3, devices=jax.devices()[:n] if n > 1 else ())
    for n in (1, 2, 4)
)
for n, found in zip((2, 4), several, strict=True):
    assert found.shards.n_devices == n
    assert found.traffic == one.traffic
    np.testing.assert_array_equal(found.diagnostics.nodes["group"], one.diagnostics.nodes["group"])
    for ours, theirs in zip(found.levels.theta.parts, one.levels.theta.parts, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(found.levels.weights, one.levels.weights, rtol=1e-10, atol=1e-10)
groups = len(np.unique(one.diagnostics.nodes["group"]))
print(f"1, 2 and 4 devices agree on {groups} groups")
