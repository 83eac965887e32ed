"""What a run gives back: mixtures, history, status, certificate, traffic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import numpy as np

from fedmixtures._types import Label
from fedmixtures.methods.base import Joined, Levels
from fedmixtures.mixture.mixture import Mixture, merged


class Status(StrEnum):
    """How a run ended."""

    COMPLETED = "completed"
    """All rounds were run, or the run converged before."""
    DIVERGED = "diverged"
    """Stopped because the objective ran away; the mixtures are those of the last good round."""
    INTERRUPTED = "interrupted"
    """Stopped by the user; the mixtures are those of the last finished round."""


class FitWarning(UserWarning):
    """Something about a fit that its user should know: what happened, and what to change."""


@dataclass(frozen=True)
class History:
    """The objective over rounds; entry 0 is the start.

    ``objective = fit + pull``. `fit` is the sum of the local losses. `pull` is what the edges add:
    every edge once for a symmetric discrepancy, from both ends for KL (whose values are on the
    points drawn in that round). `node_fit` and `node_pull` (rounds, nodes), kept on request, are
    each node's own local loss and pull, as in line 5 of Algorithm 1.
    """

    fit: np.ndarray
    pull: np.ndarray
    moved: np.ndarray
    """Squared distance all parameters moved in the round that followed; NaN in the last entry."""
    learning_rate: np.ndarray
    """Step size of the round that followed; NaN in the last entry."""
    node_fit: np.ndarray | None = None
    node_pull: np.ndarray | None = None

    @property
    def objective(self) -> np.ndarray:
        """Fit plus pull."""
        return self.fit + self.pull

    def __len__(self) -> int:
        return len(self.fit)

    def records(self) -> list[dict[str, int | float]]:
        """One plain dictionary per round, as written to JSON lines."""
        return [self.record(t) for t in range(len(self))]

    def record(self, t: int) -> dict[str, int | float]:
        """Round `t` as a plain dictionary."""
        return {
            "round": t,
            "objective": float(self.objective[t]),
            "fit": float(self.fit[t]),
            "pull": float(self.pull[t]),
        }


@dataclass(frozen=True)
class Certificate:
    r"""Proposition 1, checked on the run itself (smooth discrepancy, one local step).

    With gradient mappings $G_t = (\Theta_t - \Theta_{t+1})/\eta_t$ of the once-counted objective,
    ``left`` is their squared norm averaged over rounds (weighted by the step, where it varied) and
    ``right`` is $2 (F_0 - F_T) / \sum_t \eta_t$. Since $F_T \ge F^*$, ``left <= right`` is stronger
    than the proposition. ``smallest`` is the least squared norm: how near to stationary it got.
    """

    learning_rate: float
    """The smallest step used."""
    squared_norms: np.ndarray
    left: float
    right: float
    smallest: float
    every_step_decreased: bool
    r"""Whether each round lowered the objective by at least $\frac{\eta_t}{2}\|G_t\|^2$."""
    holds: bool

    @classmethod
    def of(cls, history: History) -> Certificate | None:
        """The certificate of a run; None if it made no round."""
        rates, moved = history.learning_rate[:-1], history.moved[:-1]
        if not len(rates):
            return None
        squared_norms = moved / rates**2
        objective = history.objective
        # Differences of objectives carry rounding of their own size.
        rounding = 64 * np.finfo(float).eps * np.abs(objective).max()
        left = float((rates * squared_norms).sum() / rates.sum())
        right = float(2 * (objective[0] - objective[-1]) / rates.sum())
        decrease = objective[:-1] - objective[1:]
        return cls(
            float(rates.min()),
            squared_norms,
            left,
            right,
            float(squared_norms.min()),
            bool((decrease >= 0.5 * rates * squared_norms - rounding).all()),
            bool(left <= right + 2 * rounding / rates.sum()),
        )


ELSEWHERE = "other sites"
"""Who receives what a site sends: they are no nodes of its own model."""


@dataclass(frozen=True)
class Traffic:
    """How many bytes left each node, and to whom they went, as counted by the engine."""

    message_bytes: int
    """Size of one message to one recipient in a round; of a protocol, whose messages differ,
    what the busiest node sends in a round on average."""
    sent: dict[Label, int]
    """Bytes each node sent in the whole run."""
    recipients: str = "neighbours"
    """Who received them: ``"neighbours"``, ``"neighbours and sums"``, ``"hub"`` (it sees everything
    sent), ``"nobody"``, or ``"other sites"``, which the solution does not hold."""
    n_rounds: int = 0
    setup: dict[Label, int] = field(default_factory=dict)
    """The part each node sent before the first round; empty if none."""
    received: dict[Label, int] = field(default_factory=dict)
    """Bytes the hub sent to each node in the whole run; empty where there is no hub."""
    kinds: dict[str, dict[str, int]] = field(default_factory=dict)
    """Of a protocol: requests and bytes sent by all nodes, by kind of request."""
    simulated: bool = True
    """Whether bytes were only counted, all nodes being in one process."""

    @property
    def is_far(self) -> bool:
        """Whether nodes hear of others by no edge that the network holds."""
        return self.recipients in ("hub", ELSEWHERE)

    def per_round(self, label: Label) -> int:
        """Bytes this node sent in each round."""
        return (self.sent[label] - self.setup.get(label, 0)) // max(self.n_rounds, 1)

    @property
    def total(self) -> int:
        """Bytes sent by all nodes together."""
        return sum(self.sent.values())


@dataclass(frozen=True)
class Shards:
    """How the network was spread over devices."""

    n_devices: int
    n_edges: int
    cut_edges: int
    """Edges between nodes of different devices: all that devices have to say to each other."""
    halo_nodes: int
    """Models that cross from device to device in a round, each once per device that needs it."""
    largest_share: float
    """Work of the busiest device, as a multiple of the average."""


@dataclass(frozen=True)
class Solution:
    """The result of a run: a failed fit is a value, not an exception.

    To show the mixtures in other units, ``dataclasses.replace(solution, theta=...)``.
    """

    labels: tuple[Label, ...]
    theta: Mixture
    """Stack of the nodes' mixtures, in the order of `labels`, as NumPy."""
    history: History
    status: Status
    n_rounds: int
    message: str
    """What to know if the status is not `completed`."""
    certificate: Certificate | None
    traffic: Traffic
    diagnostics: Any = None
    """What the method tells of the run beside the mixtures, by node and by edge; or nothing."""
    shards: Shards | None = None
    """How the network was spread over several devices."""
    converged: bool = False
    """Whether no node's parameters changed by more than `tol` in the last round."""
    levels: Levels | None = None
    """Where the density of a node is a weighted sum of several; `theta` is then what clusters."""
    joined: Joined | None = None
    """Which components of `theta` are one cluster; None: each is one."""
    rows: np.ndarray | None = None
    """(nodes,) sum of the sample weights of each node, where that is known."""

    @property
    def share(self) -> np.ndarray:
        """(nodes,) of each node in all rows; equal where that is not known."""
        rows = np.ones(len(self.labels)) if self.rows is None else self.rows
        return rows / rows.sum()

    @property
    def n_clusters(self) -> int:
        """Numbers that clusters have, in the whole network."""
        return self.theta.n_components if self.joined is None else self.joined.unsure.shape[1]

    @property
    def clusters(self) -> Mixture:
        """(nodes, clusters, ...) `theta` with a Gaussian of the same moments for each cluster."""
        return self.merged(self.theta)

    def merged(self, theta: Mixture) -> Mixture:
        """Mixtures with the components of `theta`, with a Gaussian for each cluster."""
        joined = self.joined
        return theta if joined is None else merged(theta, joined.cluster, self.n_clusters)

    @classmethod
    def collected(
        cls, mixtures: Mapping[Label, Mixture], n_rounds: int, traffic: Traffic
    ) -> Solution:
        """What nodes elsewhere have sent back; their losses stay with them, so none are known."""
        unknown = np.full(n_rounds + 1, np.nan)
        history = History(unknown, unknown, unknown, unknown)
        theta = Mixture.stack(list(mixtures.values()))
        return cls(tuple(mixtures), theta, history, Status.COMPLETED, n_rounds, "", None, traffic)

    def changed(
        self, change: Callable[[Mixture], Mixture], volume: np.ndarray | None = None
    ) -> Solution:
        """A copy with `change` applied to all its mixtures, say to other units.

        `volume` (nodes,) is then what the mean log-density of own rows loses at each node.
        """
        volume = np.zeros(len(self.labels)) if volume is None else volume
        levels, history = self.levels, self.history
        if levels is not None:
            rows = np.ones(len(volume)) if self.rows is None else self.rows
            levels = replace(
                levels,
                theta=change(levels.theta),
                evidence=levels.evidence - volume[:, None],
                prequential=levels.prequential + (rows * volume)[:, None],
            )
        each = None if history.node_fit is None else history.node_fit + volume
        history = replace(history, fit=history.fit + volume.sum(), node_fit=each)
        return replace(self, theta=change(self.theta), levels=levels, history=history)

    def mixture(self, label: Label) -> Mixture:
        """The mixture of one node, without absent components."""
        return self.theta.at(self.labels.index(label)).trimmed()
