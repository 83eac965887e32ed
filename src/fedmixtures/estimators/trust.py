"""Who trusted whom and who belongs together, read off a method's account."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedmixtures._types import Label
from fedmixtures.graph.network import Network
from fedmixtures.methods.base import Account


@dataclass(frozen=True, eq=False)
class Trust:
    """An account that tells of trust, by edge and by group.

    A method is read so if its account names an array ``trusted`` of edges; its further arrays, by
    whatever name, are evidence that is passed on as it is.
    """

    labels: tuple[Label, ...]
    source: np.ndarray
    target: np.ndarray
    trusted: np.ndarray
    """(edges,) whether both ends trust each other."""
    group: np.ndarray
    """(nodes,) number of the group of each node, counted from 0 in the order of the labels."""
    account: Account

    @classmethod
    def of(cls, account: Account | None, network: Network) -> Trust | None:
        """The account's view of trust; None where it has none."""
        if account is None or "trusted" not in account.edges:
            return None
        trusted = np.logical_and.reduce(np.asarray(account.edges["trusted"], dtype=bool), axis=1)
        ends = network.source, network.target
        told = account.nodes.get("group")
        group = _connected(network, trusted) if told is None else told
        first, number = np.unique(group, return_index=True, return_inverse=True)[1:]
        rank = np.argsort(np.argsort(first))
        return cls(network.labels, *ends, trusted, rank[number.reshape(-1)], account)

    @property
    def groups(self) -> list[tuple[Label, ...]]:
        """Labels of the nodes of each group."""
        return [
            tuple(self.labels[i] for i in np.flatnonzero(self.group == number))
            for number in range(self.group.max(initial=-1) + 1)
        ]

    def edges(self) -> list[dict[str, Any]]:
        """One plain record per edge: its ends, whether it is trusted, and all evidence of it.

        Evidence is a pair: seen from the source, seen from the target.
        """
        evidence = {name: of for name, of in self.account.edges.items() if name != "trusted"}
        return [
            {
                "source": self.labels[self.source[e]],
                "target": self.labels[self.target[e]],
                "trusted": bool(self.trusted[e]),
                **{name: tuple(of[e].tolist()) for name, of in evidence.items()},
            }
            for e in range(len(self.source))
        ]


def _connected(network: Network, trusted: np.ndarray) -> np.ndarray:
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    n = network.n_nodes
    ends = network.source[trusted], network.target[trusted]
    return connected_components(csr_array((np.ones(trusted.sum()), ends), (n, n)), directed=False)[
        1
    ]
