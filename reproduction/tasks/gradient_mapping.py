r"""Proposition 1 on runs of GTV-MMD with one local step.

A round moves along the gradient of the objective with every edge **once**, $F_1 = \sum_i L_i +
\alpha \sum_{\{i,j\}} D$, not of the paper's $F = \sum_i L_i + 2\alpha \sum_{\{i,j\}} D$. Both are
followed, from the k-means start or from near a stationary point of F.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np

from fedmixtures.discrepancy import MMD
from fedmixtures.graph.network import Network
from fedmixtures.kernels.compiling import jit_in_order
from fedmixtures.methods.gtvmin import GTVMin
from fedmixtures.mixture.arithmetic import double
from fedmixtures.mixture.density import local_loss
from fedmixtures.mixture.mixture import Mixture
from reproduction.tasks.fit import Run, each_round, feasible, quiet_solve
from reproduction.tasks.union import Union

LOOKED_AT = 5
"""States of a run at which the curvature is worked out."""
POWER_STEPS = 100


def compute(runs: Sequence[tuple[dict[str, Any], int]]) -> Iterator[dict[str, Any]]:
    """Objectives and gradient mappings over rounds, one entry per run."""
    own = [Run(settings, seed) for settings, seed in runs]
    settings = own[0].settings
    union = Union.of([run.part() for run in own])
    lowest = np.full(len(own), np.inf)
    if settings["from"] == "stationary":
        # F with every edge from both ends is the once-counted objective with twice the alpha.
        rounds, rate = settings["stationary_rounds"], settings["stationary_rate"]
        solution, _ = follow(union, settings, 2 * settings["alpha"], rate, rounds, look=False)
        union = Union(union.rows, union.network, solution.theta, union.spans)
        lowest = _per_run(solution.history, union, 1.0).min(0)
    solution, thetas = follow(
        union, settings, settings["alpha"], settings["learning_rate"], settings["n_rounds"]
    )
    once = _per_run(solution.history, union, 0.5)[: len(thetas)]
    printed = _per_run(solution.history, union, 1.0)[: len(thetas)]
    moved = np.array([_moved(a, b, union) for a, b in zip(thetas, thetas[1:], strict=False)])
    for i, run in enumerate(own):
        yield {
            "once": once[:, i].tolist(),
            "printed": printed[:, i].tolist(),
            "squared_norms": (moved[:, i] / settings["learning_rate"] ** 2).tolist(),
            "lowest_printed": float(min(lowest[i], printed[:, i].min())),
            "curvature": _curvature(run, thetas, union.spans[i]),
            "status": "completed",
        }


def follow(union: Union, settings: dict, alpha: float, rate: float, rounds: int, look: bool = True):
    """Algorithm 1 with one local step; its mixtures after every round, if wanted."""
    thetas: list[Mixture] = []
    watch = {"watch": each_round(thetas.append), "report_every": 1} if look else {}
    method = GTVMin(MMD(), alpha, 1, rate, feasible(settings["gtv"]))
    given = method, union.rows, union.network, union.theta
    return quiet_solve(*given, n_rounds=rounds, keep_nodes=True, **watch), thetas


def _per_run(history: Any, union: Union, pull_share: float) -> np.ndarray:
    """An objective of every run after every round, (rounds, runs)."""
    per_node = history.node_fit + pull_share * history.node_pull
    return np.stack([per_node[:, span].sum(1) for span in union.spans], axis=1)


def _moved(before: Mixture, after: Mixture, union: Union) -> list[float]:
    """Squared distance that each run moved in one round."""
    squares = [
        np.square(np.asarray(a - b)).reshape(len(a), -1).sum(1)
        for a, b in zip(before.parts, after.parts, strict=True)
    ]
    per_node = np.sum(squares, axis=0)
    return [float(per_node[span].sum()) for span in union.spans]


def objective(theta: Mixture, rows: jax.Array, pull: jax.Array) -> jax.Array:
    """The GTVMin objective as it is defined: no engine, no kernel.

    `pull` (nodes, nodes) holds alpha times the weight of each edge once, zero where there is none.
    """
    share = jnp.full(rows.shape[1], 1 / rows.shape[1])
    fit = jax.vmap(lambda own, x: local_loss(own, x, share))(theta, rows)
    mmd = MMD()
    pair = lambda own, other: mmd(own, mmd.digest(other))
    all_pairs = jax.vmap(jax.vmap(pair, (None, 0)), (0, None))(theta, theta)
    return fit.sum() + (pull * all_pairs).sum()


def edges_once(network: Network, alpha: float) -> np.ndarray:
    """The `pull` of `objective`."""
    matrix = np.zeros((network.n_nodes, network.n_nodes))
    matrix[network.source, network.target] = alpha * network.weight
    return matrix


def _curvature(run: Run, thetas: list[Mixture], span: slice) -> float:
    """The largest curvature of the once-counted objective at some states of the run."""
    part, n = run.part(), run.scenario.n_nodes
    at = np.unique(np.linspace(0, len(thetas) - 1, LOOKED_AT).astype(int))
    with double():
        rows = jnp.asarray(part.rows.rows.reshape(n, -1, part.rows.n_features))
        pull = jnp.asarray(edges_once(part.network, run.settings["alpha"]))
        states = [jax.tree.map(lambda p, t=t: jnp.asarray(p[span]), thetas[t]) for t in at]
        return max(float(_largest_curvature(state, rows, pull)) for state in states)


@jit_in_order
def _largest_curvature(theta: Mixture, rows: jax.Array, pull: jax.Array) -> jax.Array:
    """The eigenvalue of largest size of the Hessian, by the power method."""
    flat, restore = jax.flatten_util.ravel_pytree(theta)
    gradient = jax.grad(lambda x: objective(restore(x), rows, pull))
    times_hessian = lambda v: jax.jvp(gradient, (flat,), (v,))[1]

    def step(v, _):
        image = times_hessian(v)
        size = jnp.linalg.norm(image)
        return image / size, size

    begin = jnp.cos(jnp.arange(flat.size, dtype=flat.dtype))
    _, sizes = jax.lax.scan(step, begin / jnp.linalg.norm(begin), length=POWER_STEPS)
    return sizes[-1]
