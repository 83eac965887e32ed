r"""Step 8, weigh: how much each level counts at a node, by its own out-of-fold densities.

Weights are fitted by EM, shrunk to those of the whole network by ten rows; the network's are
the shares of all rows that the levels have under the nodes' own weights, in a few rounds. What is
proved is prequential: predict each row by levels weighed by the rows before it, equally at first,
then $w_l \propto w^0_l \prod p_l$. The total log-loss $-\ln \sum_l w^0_l \prod_x p_l(x)$ is at most
that of any level plus $\ln(\text{levels})$, whatever the levels are and whoever has lied.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import Any

import numpy as np

from fedmixtures._types import Array
from fedmixtures.kernels.arrays import Segments, at, jit_on_gpu, xp
from fedmixtures.methods.protocol import Request, Sum
from fedmixtures.methods.trust_then_pool.constants import C
from fedmixtures.methods.trust_then_pool.nodes import Nodes


def weights(nodes: Nodes, density: list[Array], group: np.ndarray) -> Generator[Request, Any, Any]:
    """(nodes, levels), from the levels' out-of-fold densities by row; sums over `group`."""
    likely = lambda part, who: part.log_likelihoods(_usable(at(density, nodes.tiles(who))))
    likelihoods, spread = nodes.in_parts(likely)
    shares = {"evidence": likelihoods, "rows": nodes.rows_of}
    spread = {"evidence": spread, "rows": np.ones(nodes.n)}
    network = found = _first((yield Sum(shares, group, spread)))
    for _ in range(C.sums):
        found, shares = _fitted(nodes, density, network, found, C.few_steps)
        network = _grown(network, (yield Sum(shares, group)))
    return _fitted(nodes, density, network, network, C.steps)[0]


@jit_on_gpu
def _grown(network: Array, total: Array) -> Any:
    """The network's weights after a sum of rows that levels explain.

    Twice the step in logarithms: no fixed point moves, and half the sums do. What grows has at most
    twice its share: a total's rounding is not much more then.
    """
    good = xp.isfinite(total).all(-1) & (total >= 0).all(-1) & (total.sum(-1) > 0)
    total = xp.where(good[:, None], total, network)  # what cannot be a sum changes nothing
    share = total / total.sum(-1, keepdims=True)
    network = xp.maximum(share * xp.minimum(share / network, C.most_growth), C.least_weight)
    return network / network.sum(-1, keepdims=True)


def at_home(nodes: Nodes, density: list[Array], network: Array) -> Any:
    """(nodes, levels) weights of own rows, shrunk to those of the network (nodes, levels)."""
    return _fitted(nodes, density, network, network, C.steps)[0]


def _fitted(
    nodes: Nodes, density: list[Array], network: Array, found: Array, n_steps: int
) -> tuple[Any, Any]:
    """EM of every node's own weights from `found`, shrunk to the network's.

    And (nodes, levels) rows that each level explains under them.
    """

    def steps(part: Nodes, who: slice, network: Array, found: Array) -> tuple[Any, Any]:
        relative = _relative(at(density, nodes.tiles(who)))
        shares = partial(_shares, relative, part.count, part.node_of, part.tiles_of)
        for _ in range(n_steps):
            found = _shrunk(shares(found), network)
        return found, shares(found)

    return nodes.in_parts(steps, network, found)


@jit_on_gpu
def _relative(density: list[Array]) -> Any:
    """(levels, tiles, rows) how likely every row is under each level, by the likeliest."""
    table = usable(xp.stack(density))
    return xp.exp(table - table.max(0))


@jit_on_gpu
def _shrunk(shares: Array, network: Array) -> Any:
    found = shares + C.shrink * network + C.least_rows
    return found / found.sum(-1, keepdims=True)


@jit_on_gpu
def _shares(relative: Array, count: Array, node_of: Array, tiles_of: Segments, by_node) -> Any:
    weight = by_node.T[:, node_of]
    factor = count / xp.einsum("ltr,lt->tr", relative, weight)
    by_tile = weight * xp.einsum("ltr,tr->lt", relative, factor)
    return tiles_of.sums(by_tile.T)


@jit_on_gpu
def _first(total: dict[str, Any]) -> Any:
    r"""(nodes, levels) where EM begins: $w_l \propto \exp(30\,(e_l - \max e))$, mean evidence $e$.

    Where levels are nearly the same the likelihood of weights is flat, and what matters is that EM
    does not begin with much weight on the worse of them; what is needed grows from little.
    """
    mean = total["evidence"] / xp.maximum(total["rows"], 1.0)[:, None]
    known = xp.isfinite(mean).all(-1, keepdims=True)
    mean = xp.where(known, mean, 0.0)
    share = xp.exp(
        xp.maximum(C.sure * (mean - mean.max(-1, keepdims=True)), np.log(C.least_weight))
    )
    return share / share.sum(-1, keepdims=True)


@jit_on_gpu
def _usable(densities: list[Array]) -> list[Any]:
    return [usable(density) for density in densities]


@jit_on_gpu
def usable(density: Array) -> Any:
    """Finite densities: what is none counts as very unlikely."""
    return xp.maximum(
        xp.nan_to_num(density, nan=C.lowest, posinf=C.lowest, neginf=C.lowest), C.lowest
    )


def evidence(nodes: Nodes, density: list[Array]) -> np.ndarray:
    """(nodes, levels) mean out-of-fold log-density of own rows."""
    return np.asarray(_totals(density, nodes.count, nodes.tiles_of)) / nodes.rows_of[:, None]


@jit_on_gpu
def _totals(density: list[Array], count: Array, tiles_of: Segments) -> Any:
    """(nodes, levels) log-likelihoods."""
    totals = [tiles_of.sums((part * count).sum(-1)) for part in map(usable, density)]
    return xp.stack(totals, axis=-1)


def prequential(nodes: Nodes, evidence: np.ndarray) -> np.ndarray:
    """(nodes, 1 + levels) total log-loss: of the levels weighed as rows come, and of each alone."""
    each = -evidence * nodes.rows_of[:, None]
    first = np.log(1.0 / each.shape[1])
    return np.column_stack([-np.logaddexp.reduce(first - each, axis=1), each])
