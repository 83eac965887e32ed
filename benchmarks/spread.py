"""The default method on one CPU device and spread over several: what that costs, and what differs.

All devices share one core here, so that what more of them add is overhead alone.
"""

from __future__ import annotations

import numpy as np

from benchmarks.groups import problem
from benchmarks.timing import interleaved
from fedmixtures.engine.solution import Solution
from fedmixtures.engine.solve import solve

SIZES = (1, 2, 4)


def spread(n: int, repetitions: int) -> dict:
    """CPU seconds of fits after the first, interleaved; differences from one device."""
    import jax

    data, network, _, _ = problem(n, max(2, n // 100), "equal")
    fits: dict[int, Solution] = {}

    def fit(size: int) -> None:
        devices = tuple(jax.devices()[:size]) if size > 1 else ()
        fits[size] = solve("trust", data, network, n_components=5, devices=devices)

    for size in SIZES:
        fit(size)  # compiles
    times = interleaved({str(size): lambda size=size: fit(size) for size in SIZES}, repetitions)
    one, found = fits[1], {"nodes": n, "edges": int(network.n_edges), "devices": {}}
    for size in SIZES:
        other = fits[size]
        assert one.levels is not None
        assert other.levels is not None
        pairs = zip(other.levels.theta.parts, one.levels.theta.parts, strict=True)
        label = [fitted.diagnostics.nodes["group"] for fitted in (one, other)]
        found["devices"][size] = {
            "cpu_seconds": times[str(size)].cpu,
            "largest_difference": max(float(np.abs(a - b).max()) for a, b in pairs),
            "same_groups": bool((label[0] == label[1]).all()),
            "shards": None if other.shards is None else vars(other.shards),
        }
        print(size, found["devices"][size], flush=True)
    return found
