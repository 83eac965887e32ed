"""One of two processes that fit a network together, two devices each; prints what came out."""

import sys

import jax
import numpy as np

jax.config.update("jax_num_cpu_devices", 2)
jax.distributed.initialize(f"127.0.0.1:{sys.argv[1]}", 2, int(sys.argv[2]))

from fedmixtures import NetworkGaussianMixture  # noqa: E402
from fedmixtures.graph.generate import erdos_renyi_ring  # noqa: E402

rng = np.random.default_rng(0)
nodes = np.repeat(np.arange(20), rng.integers(10, 40, 20))
X = rng.standard_normal((len(nodes), 2)) + 4 * rng.integers(0, 2, (len(nodes), 1))
settings = {"graph": erdos_renyi_ring(20, 0.2, seed=0), "method": "gtv-mmd", "n_rounds": 5}
alone = NetworkGaussianMixture(2, random_state=0, **settings).fit(X, nodes=nodes)
together = NetworkGaussianMixture(2, random_state=0, devices="all", **settings).fit(X, nodes=nodes)
difference = np.abs(alone.means_ - together.means_).max()
said = "0" if difference < 1e-12 else f"{difference:g}"
print(f"{together.shards_.n_devices} devices, largest difference {said}")
