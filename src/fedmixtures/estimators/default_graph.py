"""Who may listen to whom where nobody says it: one default for all that fits."""

from __future__ import annotations

import numpy as np

from fedmixtures.data.node_data import NodeData
from fedmixtures.graph.generate import connected_neighbours
from fedmixtures.graph.network import Network, as_network
from fedmixtures.methods.base import Method
from fedmixtures.mixture.moments import column_moments

EVERYBODY = 300
"""Nodes up to which everybody may listen to everybody."""
NEAREST, FEWEST = 20, 5
"""Neighbours beyond that; those of methods that take every edge for true."""
HELD = 8.0
"""Rows of all nodes in the standard deviation that a node is compared by."""


def default_graph(data: NodeData, method: Method | None = None) -> Network:
    """Who may listen to whom where nobody says it.

    Everybody to everybody, where there are at most `EVERYBODY` nodes; else everybody to the
    `NEAREST` nodes with the most similar means and standard deviations. Methods that take every
    edge for true, such as couplings, get the `FEWEST` nearest at any number of nodes. All nodes are
    connected, and neither the order of nodes nor rounding changes a thing. Of many nodes those of
    methods that ask no neighbours have no edges.
    """
    kind = "protocol" if method is None else method.kind
    believes = kind == "neighbours"
    if data.n_nodes <= 1 + FEWEST or (data.n_nodes <= EVERYBODY and not believes):
        return as_network("full", data.labels)
    if kind in ("hub", "one-shot"):  # which ask for no neighbours
        return as_network("none", data.labels)
    order = np.argsort(data.label_hashes, kind="stable")
    labels = [data.labels[i] for i in order]
    points = _summaries(data)[order]
    return connected_neighbours(points, FEWEST if believes else NEAREST, labels).aligned(
        data.labels
    )


def words_on_default_graph(network: Network) -> str:
    """What a graph that nobody gave is, for the first line of what is told."""
    n = len(network.labels)
    if n < 2 or not network.n_edges:
        return ""
    if network.n_edges == n * (n - 1) // 2:
        return "no graph given: everybody may listen to everybody"
    return "no graph given: everybody may listen to the nodes most like it"


def _summaries(data: NodeData) -> np.ndarray:
    r"""(nodes, 2 features) points whose squared distances are divergences of Gaussians, nearly.

    Means in standard deviations within nodes, and $\sqrt2$ times the logarithms of these, drawn to
    those of all nodes by `HELD` rows.
    """
    there = ~np.isnan(data.rows)
    sums = lambda cells: np.add.reduceat(cells, data.offsets[:-1])
    cells = sums(there.astype(float))
    overall, _ = column_moments(data.rows)
    means = np.where(cells > 0, data.means(), overall)
    off = np.nan_to_num(data.rows - means[data.node_index])
    squares = sums(off**2)
    within = squares.sum(0) / np.maximum(cells.sum(0), 1)
    within = np.where(within > 0, within, 1.0)
    variance = (squares + HELD * within) / (cells + HELD)
    return np.hstack([(means - overall) / np.sqrt(within), np.log(variance / within) / np.sqrt(2)])
