"""Many runs as one: the disjoint union of their networks, nodes labelled (run, node).

Nodes talk to neighbours alone, so a union computes what its parts would. Random draws come from the
labels, so they do not depend on which other runs are part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedmixtures.data.node_data import NodeData
from fedmixtures.graph.network import Network
from fedmixtures.mixture.mixture import Mixture


@dataclass(frozen=True)
class Part:
    """One run of a union."""

    name: str
    """Unique, and made from the settings of the run alone."""
    rows: NodeData
    network: Network
    theta: Mixture


@dataclass(frozen=True)
class Union:
    """Several runs side by side."""

    rows: NodeData
    network: Network
    theta: Mixture
    spans: tuple[slice, ...]
    """The nodes of each part."""

    @classmethod
    def of(cls, parts: Sequence[Part]) -> Union:
        """Put the parts side by side; all have the same number of components."""
        sizes = [part.rows.n_nodes for part in parts]
        first = np.concatenate([[0], np.cumsum(sizes)])
        rows = joined_rows([part.rows for part in parts], [part.name for part in parts])
        ends = lambda name: np.concatenate(
            [getattr(part.network, name) + at for part, at in zip(parts, first, strict=False)]
        )
        weight = np.concatenate([part.network.weight for part in parts])
        network = Network(rows.labels, ends("source"), ends("target"), weight)
        blocks = zip(*(part.theta.parts for part in parts), strict=True)
        theta = Mixture(*(np.concatenate(block) for block in blocks))
        spans = tuple(slice(a, b) for a, b in zip(first[:-1], first[1:], strict=True))
        return cls(rows, network, theta, spans)


def joined_rows(parts: Sequence[NodeData], names: Sequence[str]) -> NodeData:
    """Rows of all parts, node after node; the order of rows is the order of the result."""
    labels = tuple(
        (name, label) for name, part in zip(names, parts, strict=True) for label in part.labels
    )
    rows = np.concatenate([part.rows for part in parts])
    counts = np.concatenate([part.counts for part in parts])
    return NodeData(
        labels,
        rows,
        np.concatenate([part.row_weights for part in parts]),
        np.concatenate([[0], np.cumsum(counts)]),
        np.arange(len(rows)),
    )
