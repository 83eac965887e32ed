"""What a run found and a report is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedmixtures.data.node_data import NodeData
from fedmixtures.engine.solution import Certificate, History
from fedmixtures.graph.network import Network
from fedmixtures.methods.base import Levels
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.report.scores import Scores


@dataclass(frozen=True)
class Findings:
    """What a run found, in memory."""

    theta: Mixture
    """Final mixtures, stacked in the order of `data.labels`, components aligned."""
    theta_scaled: Mixture
    """The same in the units of the fit, where discrepancies are taken."""
    network: Network
    data: NodeData
    features: tuple[str, ...]
    history: History
    method: Any
    scores: Scores
    snapshots: Mapping[int, Mixture] = field(default_factory=dict)
    held_out: Mapping[int, float] = field(default_factory=dict)
    """Mean held-out log-likelihood by round."""
    certificate: Certificate | None = None
    converged: bool = False
    traffic: Any = None
    levels: Levels | None = None
    """Where a node's density is a weighed sum of several."""
    trust: Any = None
    """What a method that decides whom to trust has to say (`trust_` of the estimator)."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
