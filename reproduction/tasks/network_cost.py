"""What a run costs: bytes on an edge, seconds of a whole solve."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from fedmixtures.data.node_data import NodeData
from fedmixtures.engine.solution import Solution
from fedmixtures.graph import generate
from fedmixtures.init import clustered_mixture
from fedmixtures.methods.registry import METHODS
from fedmixtures.mixture.mixture import Mixture
from reproduction.tasks.fit import quiet_solve

MEAN_SCALE = 5.0


def compute(runs: Sequence[tuple[dict[str, Any], int]]) -> Iterator[dict[str, Any]]:
    """Seconds of the second of two equal solves (the first compiles), bytes per edge and round.

    On a CPU the processor's seconds.
    """
    for settings, seed in runs:
        yield _measure(settings, seed)


def _measure(settings: dict[str, Any], seed: int) -> dict[str, Any]:
    device = jax.devices()[0].device_kind
    # A core may be shared with others, a GPU's time is not seen by the processor's clock.
    clock = time.process_time if jax.default_backend() == "cpu" else time.perf_counter
    data, network, theta = _nodes(settings, seed)
    method = METHODS[settings["method"]]().bounded(data, [settings["k"]] * data.n_nodes)
    how = {"n_rounds": settings["n_rounds"], "seed": seed, "n_components": settings["k"]}

    def timed() -> tuple[float, Solution]:
        start = clock()
        solution = quiet_solve(method, data, network, theta, **how)
        return clock() - start, solution

    begun = time.perf_counter()
    first, _ = timed()
    seconds, solution = timed()
    return {
        "seconds": seconds,
        "first": first,
        "wall": time.perf_counter() - begun,
        "bytes": solution.traffic.message_bytes,
        "device": device,
        "status": "completed",
    }


def _nodes(settings: dict[str, Any], seed: int) -> tuple[NodeData, Any, Mixture]:
    """Nodes of a few blocks on a sparse random graph, with a start from the true clusters.

    Data sets of this size would spend most of their time in k-means; what is timed is the solve.
    """
    n, m, k, d = (settings[name] for name in ("n_nodes", "n_rows", "k", "d"))
    rng = np.random.default_rng(seed)
    means = MEAN_SCALE * rng.standard_normal((settings["n_blocks"], k, d))
    block = rng.integers(settings["n_blocks"], size=n)
    component = np.tile(np.arange(m) % k, (n, 1))
    rows = means[block[:, None], component] + rng.standard_normal((n, m, d))
    data = NodeData.from_rows(rows.reshape(-1, d), np.repeat(np.arange(n), m))
    one = clustered_mixture(rows[0], np.ones(m), component[0], k, 1e-3)
    weights = np.repeat(one.weights[None], n, axis=0)
    member = np.eye(k)[component[0]] / (component[0] == np.arange(k)[:, None]).sum(1)
    centres = np.einsum("mk,nmd->nkd", member, rows)
    delta = rows[:, :, None] - centres[:, None]
    spread = np.einsum("mk,nmki,nmkj->nkij", member, delta, delta) + 1e-3 * np.eye(d)
    network = generate.sparse_random(n, settings["degree"], seed)
    return data, network, Mixture(weights, centres, spread)
