"""How good fitted mixtures are: the paper's metrics, seed by seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedmixtures._ties import first_greatest
from fedmixtures.data.node_data import NodeData
from fedmixtures.data.scenarios import Scenario
from fedmixtures.engine.evaluate import log_joint_rows
from fedmixtures.metrics import (
    effective_components,
    node_centroid_errors,
    node_mutual_information,
)
from fedmixtures.mixture.mixture import Mixture
from reproduction.tasks.union import joined_rows

FINAL = ("ll", "ll_train", "err", "nmi", "k_eff")


@dataclass(frozen=True)
class Rows:
    """Rows of several scenarios with the component each came from, node after node."""

    data: NodeData
    components: np.ndarray

    @classmethod
    def of(cls, scenarios: Sequence[Scenario], part: str = "") -> Rows:
        """Training rows, or those of another `part` such as ``_validation``."""
        found, components = [], []
        for scenario in scenarios:
            nodes = getattr(scenario, f"nodes{part}")
            data = NodeData.from_rows(getattr(scenario, f"X{part}"), nodes)
            found.append(data)
            components.append(getattr(scenario, f"components{part}")[data.source_index])
        names = [str(i) for i in range(len(found))]
        return cls(joined_rows(found, names), np.concatenate(components))

    def per_node(self, theta: Mixture) -> tuple[np.ndarray, np.ndarray]:
        """Mean log-density and normalized mutual information of every node."""
        joint = log_joint_rows(theta, self.data)
        density = np.logaddexp.reduce(joint, axis=1)
        ll = np.add.reduceat(density, self.data.offsets[:-1]) / self.data.counts
        nodes = self.data.node_index
        nmi = node_mutual_information(self.components, first_greatest(joint, scale=1.0), nodes)
        return ll, np.array([nmi[node] for node in range(self.data.n_nodes)])

    def log_likelihood(self, theta: Mixture) -> np.ndarray:
        """Mean log-density of every node."""
        density = np.logaddexp.reduce(log_joint_rows(theta, self.data), axis=1)
        return np.add.reduceat(density, self.data.offsets[:-1]) / self.data.counts


def final_numbers(
    theta: Mixture, scenarios: Sequence[Scenario], has_likelihood: bool = True
) -> list[dict[str, float | None]]:
    """All metrics of each scenario; `theta` stacks the mixtures of all of them.

    Nodes count alike: every metric is the plain mean over nodes of each node's own.
    """
    ll, nmi = Rows.of(scenarios, "_validation").per_node(theta)
    values = {
        "ll": ll if has_likelihood else None,
        "ll_train": Rows.of(scenarios).log_likelihood(theta) if has_likelihood else None,
        "err": centroid_errors(theta.means, scenarios),
        "nmi": nmi,
        "k_eff": np.asarray(effective_components(theta.weights)) if has_likelihood else None,
    }
    return [
        {name: None if v is None else float(v[span].mean()) for name, v in values.items()}
        for span in spans(scenarios)
    ]


def round_numbers(theta: Mixture, scenarios: Sequence[Scenario]) -> list[dict[str, float]]:
    """What is followed over rounds: centroid error and effective number of components."""
    values = {
        "err": centroid_errors(theta.means, scenarios),
        "k_eff": np.asarray(effective_components(theta.weights)),
    }
    return [
        {name: float(v[span].mean()) for name, v in values.items() if v is not None}
        for span in spans(scenarios)
    ]


def centroid_errors(means: ArrayLike, scenarios: Sequence[Scenario]) -> np.ndarray | None:
    """Centroid error of every node against its own block's truth; None where there is none."""
    truths = [scenario.means for scenario in scenarios if scenario.means is not None]
    return node_centroid_errors(means, np.concatenate(truths)) if truths else None


def spans(scenarios: Sequence[Scenario]) -> list[slice]:
    """The nodes of each scenario in a stack of all."""
    ends = np.cumsum([scenario.n_nodes for scenario in scenarios]).tolist()
    return [slice(end - s.n_nodes, end) for end, s in zip(ends, scenarios, strict=True)]
