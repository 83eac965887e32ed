"""Who listens to whom: the network of nodes, its converters and its generators."""

from fedmixtures.graph.generate import (
    erdos_renyi_ring,
    nearest_neighbours,
    ring,
    sparse_random,
    star,
    stochastic_blocks,
)
from fedmixtures.graph.network import Network, as_network, complete

from_edges, from_networkx = Network.from_edges, Network.from_networkx
from_sparse = Network.from_sparse

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
