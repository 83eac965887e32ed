"""What a run has to say about trust: per edge who listens to whom and what it gains, and groups."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from fedmixtures._types import Label
from fedmixtures.graph.network import Network
from fedmixtures.methods.base import Account


@dataclass(frozen=True, eq=False)
class Trust:
    """Who listened to whom in a run of Trust-then-Pool.

    Edges are in the order of the network; columns of two-column arrays are the ends, source first.
    """

    labels: tuple[Label, ...]
    source: np.ndarray
    target: np.ndarray
    trusted: np.ndarray
    """(edges,) both ends listen: the edge joins a group."""
    listens: np.ndarray
    """(edges, 2) whether each end listens to the other."""
    gain: np.ndarray
    """(edges, 2) nats per held-out row that each end gains by the other's release."""
    group: np.ndarray
    """(nodes,) number of the group each node pooled with."""

    @property
    def groups(self) -> list[tuple[Label, ...]]:
        """Labels of the nodes of each group."""
        return [
            tuple(self.labels[i] for i in np.flatnonzero(self.group == number))
            for number in range(self.group.max(initial=-1) + 1)
        ]

    def edges(self) -> list[dict]:
        """One plain record per edge, for tables and pages."""
        return [
            {
                "source": self.labels[self.source[e]],
                "target": self.labels[self.target[e]],
                "trusted": bool(self.trusted[e]),
                "listens": tuple(self.listens[e].tolist()),
                "gain": tuple(self.gain[e].tolist()),
            }
            for e in range(len(self.source))
        ]

    @classmethod
    def of(cls, account: Account, network: Network) -> Trust:
        """From what a run told of its nodes and edges."""
        listens = account.edges["listens"].astype(bool)
        # Groups are numbered by their first node, whatever their labels in the run were.
        _, first, group = np.unique(account.nodes["group"], return_index=True, return_inverse=True)
        rank = np.argsort(np.argsort(first))
        return cls(
            network.labels,
            network.source,
            network.target,
            listens.all(1),
            listens,
            account.edges["gain"],
            rank[group],
        )

    @classmethod
    def stored(cls, **values: Any) -> Trust:
        """From a file, also of the earlier form, which told of tests and of what was kept."""
        values.setdefault("listens", np.repeat(np.asarray(values["trusted"])[:, None], 2, axis=1))
        return cls(**{field.name: values[field.name] for field in fields(cls)})
