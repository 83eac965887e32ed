"""Run a method without rounds."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedmixtures.data.node_data import NodeData
from fedmixtures.engine.evaluate import log_joint_rows
from fedmixtures.engine.solution import FitWarning, History, Solution, Status, Traffic
from fedmixtures.methods.base import OneShot
from fedmixtures.mixture.mixture import Mixture

BYTES = 8
"""A number on the wire; one-shot fits are in float64."""


def fit_once(
    method: OneShot,
    data: NodeData,
    n_components: Sequence[int] | None,
    theta: Mixture | None,
    seed: int,
) -> Solution:
    """Fit all nodes; the history has one entry, the fit of the result."""
    if n_components is None:
        raise ValueError(
            f"`n_components` is missing: {type(method).__name__} makes its own starts. "
            "Give the number of components of each node."
        )
    outcome = method.fit(data, n_components, theta, seed)
    if outcome.message:
        warnings.warn(outcome.message, FitWarning, stacklevel=3)
    open_end = np.full(1, np.nan)
    losses = node_losses(outcome.theta, data)
    total, nothing = np.array([losses.sum()]), np.zeros(1)
    nodes = losses[None], np.zeros_like(losses)[None]
    history = History(total, nothing, open_end, open_end, *nodes)
    bytes_of = lambda numbers: dict(
        zip(data.labels, (BYTES * np.asarray(numbers)).tolist(), strict=True)
    )
    sent = bytes_of(outcome.sent)
    traffic = Traffic(
        0, sent, recipients=method.recipients, setup=sent, received=bytes_of(outcome.received)
    )
    return Solution(
        data.labels,
        outcome.theta,
        history,
        Status.COMPLETED,
        0,
        outcome.message,
        None,
        traffic,
        converged=not outcome.message,
    )


def node_losses(theta: Mixture, data: NodeData) -> np.ndarray:
    """Eq. (1) of every node: minus the weighted mean log-density of its rows."""
    in_place = replace(data, source_index=np.arange(len(data.rows)))
    density = np.logaddexp.reduce(log_joint_rows(theta, in_place), axis=1)
    weighted = data.row_weights * density
    return -np.add.reduceat(weighted, data.offsets[:-1]) / data.total_weights()
