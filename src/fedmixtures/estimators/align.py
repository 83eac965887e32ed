"""One numbering of components for all nodes."""

from __future__ import annotations

import numpy as np

from fedmixtures._ties import first_matching, in_order
from fedmixtures.graph.network import Network
from fedmixtures.mixture.mixture import Mixture


def aligned(theta: Mixture, network: Network) -> Mixture:
    """The same mixtures, alike components under the same number at all nodes."""
    orders = aligned_orders(theta, network)
    parts = [
        np.take_along_axis(part, orders.reshape(*orders.shape, *(1,) * (part.ndim - 2)), 1)
        for part in theta.parts
    ]
    return Mixture(*parts)


def aligned_orders(theta: Mixture, network: Network) -> np.ndarray:
    """For every node, the order of its components that matches its neighbours'.

    Nodes are matched along a spanning tree of the most alike pairs, from a root in each connected
    part; the roots are matched to the first root. No unit of a feature matters.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree

    theta = _in_common_units(theta)

    def matching(i: int, j: int) -> tuple[np.ndarray, float]:
        cost = _pairwise(theta.at(i), theta.at(j))
        partner = first_matching(cost)
        return partner, float(cost[np.arange(len(cost)), partner].sum())

    n = network.n_nodes
    ends = zip(network.source.tolist(), network.target.tolist(), strict=True)
    costs = np.array([matching(i, j)[1] for i, j in ends])
    # The tree depends on the order of costs alone: by rank, from 1, no two edges cost the same.
    rank = np.argsort(in_order(costs)) + 1.0
    tree = minimum_spanning_tree(csr_array((rank, (network.source, network.target)), (n, n)))
    orders = np.full((n, theta.n_components), -1)
    first = None
    for root in range(n):
        if orders[root, 0] >= 0:
            continue
        if first is None:
            orders[root] = np.arange(theta.n_components)
        else:
            orders[root] = matching(first, root)[0][orders[first]]
        first = root if first is None else first
        visited, parents = breadth_first_order(tree, root, directed=False)
        for node in visited[1:].tolist():
            parent = int(parents[node])
            orders[node] = matching(parent, node)[0][orders[parent]]
    return orders


def _in_common_units(theta: Mixture) -> Mixture:
    """Features divided by their standard deviation over all nodes' mixtures together."""
    share = (theta.weights / len(theta.weights))[..., None]
    centre = (share * theta.means).sum((0, 1))
    within = np.diagonal(theta.covariances, axis1=-2, axis2=-1)
    scale = np.sqrt((share * (within + (theta.means - centre) ** 2)).sum((0, 1)))
    spread = scale[:, None] * scale
    return Mixture(theta.weights, (theta.means - centre) / scale, theta.covariances / spread)


def _pairwise(a: Mixture, b: Mixture) -> np.ndarray:
    """Squared distances of components; absent ones are as far as can be from present ones."""
    squares = sum(
        np.square(x[:, None] - y[None, :]).reshape(len(x), len(y), -1).sum(-1)
        for x, y in zip(a.parts, b.parts, strict=True)
    )
    differ = (a.weights > 0)[:, None] != (b.weights > 0)[None, :]
    return squares + np.where(differ, 1e6 * (1 + np.max(squares)), 0.0)
