"""Who listens to whom: the network of nodes, its converters and its generators."""

from fedmixtures.graph.convert import as_network, from_edges, from_networkx, from_sparse
from fedmixtures.graph.generate import (
    complete,
    erdos_renyi_ring,
    nearest_neighbours,
    ring,
    sparse_random,
    star,
    stochastic_blocks,
)
from fedmixtures.graph.network import Network

__all__ = [
    "Network",
    "as_network",
    "complete",
    "erdos_renyi_ring",
    "from_edges",
    "from_networkx",
    "from_sparse",
    "nearest_neighbours",
    "ring",
    "sparse_random",
    "star",
    "stochastic_blocks",
]
