"""What a run has to say about trust: per edge, by which test, with which evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedmixtures._types import Label

KEPT = ("pooled", "refit", "local")
"""What a node ended with: its group's mixture, that of its trusted neighbourhood, or its own."""


@dataclass(frozen=True, eq=False)
class Trust:
    """Who trusted whom in a run of Trust-then-Pool.

    Edges are in the order of the network; columns of two-column arrays are the ends, source first.
    """

    labels: tuple[Label, ...]
    source: np.ndarray
    target: np.ndarray
    trusted: np.ndarray
    """Both ends listened to the end."""
    pooled: np.ndarray
    """Trusted, and of one tag: statistics flowed along this edge."""
    test: np.ndarray
    """(edges, 2) by which test each end listened: substitute, harmless or none."""
    gain: np.ndarray
    """(edges, 2) nats per row that the better of the two tests promised each end."""
    error: np.ndarray
    """(edges, 2) its standard error."""
    p_value: np.ndarray
    """(edges, 2) of the evidence round, seen from each end; one where it was not held."""
    group: np.ndarray
    """(nodes,) number of the group each node pooled with."""
    kept: np.ndarray
    """(nodes,) `pooled`, `refit` or `local`."""

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
                "pooled": bool(self.pooled[e]),
                "test": tuple(self.test[e].tolist()),
                "gain": tuple(self.gain[e].tolist()),
                "p_value": tuple(self.p_value[e].tolist()),
            }
            for e in range(len(self.source))
        ]

    @classmethod
    def of(
        cls,
        labels: tuple[Label, ...],
        ends: tuple[np.ndarray, np.ndarray],
        nodes: Mapping[str, np.ndarray],
        edges: Mapping[str, np.ndarray],
        caution: float,
    ) -> Trust:
        """From the nodes' accounts; those of edges are (edges, 2, ...), source's view first."""
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import connected_components

        source, target = ends
        gain, error = edges["tests"][..., 0::2], edges["tests"][..., 1::2]
        bound = gain + caution * error
        best = bound.argmax(-1)[..., None]
        names = np.where(best[..., 0] == 0, "substitute", "harmless")
        names = np.where(bound[..., 0] > 0, "substitute", names)  # looked at first
        best = np.where(bound[..., :1] > 0, 0, best)
        both = lambda of_ends: np.logical_and.reduce(of_ends, axis=1)
        trusted, pooled = both(edges["trusted"]), both(edges["pooled"])
        n = len(labels)
        joined = csr_array((np.ones(pooled.sum()), (source[pooled], target[pooled])), (n, n))
        return cls(
            labels,
            source,
            target,
            trusted,
            pooled,
            np.where((bound > 0).any(-1), names, "none"),
            np.take_along_axis(gain, best, -1)[..., 0],
            np.take_along_axis(error, best, -1)[..., 0],
            edges["p_value"],
            connected_components(joined, directed=False)[1],
            np.array(KEPT)[nodes["kept"].astype(int)],
        )
