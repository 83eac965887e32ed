"""Run a method without rounds: all at once, or a conversation."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedmixtures.data.node_data import NodeData
from fedmixtures.engine.evaluate import Evaluator
from fedmixtures.engine.layout.blocks import conversation_block
from fedmixtures.engine.run.conversation import InProcess, account_of_block, converse
from fedmixtures.engine.solution import FitWarning, History, Solution, Status, Traffic
from fedmixtures.graph.network import Network
from fedmixtures.methods.base import Account, OneShot, Outcome
from fedmixtures.methods.conversation import Conversation
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.precision import precision

BYTES = 8
"""A number on the wire; one-shot fits are in float64."""


def fit_once(
    method: OneShot,
    data: NodeData,
    n_components: Sequence[int],
    theta: Mixture | None,
    seed: int,
) -> Solution:
    """Fit all nodes; the history has one entry, the fit of the result."""
    outcome = method.fit(data, n_components, theta, seed)
    bytes_of = lambda numbers: dict(
        zip(data.labels, (BYTES * np.broadcast_to(numbers, data.n_nodes)).tolist(), strict=True)
    )
    sent, received = bytes_of(outcome.sent), bytes_of(outcome.received)
    traffic = Traffic(0, sent, recipients=method.recipients, setup=sent, received=received)
    return _solution(outcome, data, traffic, None)


def fit_by_conversation(
    method: Conversation,
    data: NodeData,
    network: Network,
    n_components: Sequence[int],
    theta: Mixture | None,
    seed: int,
    dtype: str,
    told: Callable[[str], Any] | None = None,
) -> Solution:
    """All nodes in one block; bytes and rounds are counted as if they were not."""

    def reply(request: Any) -> Any:
        answer = engine(request)
        if told is not None:
            told(f"exchange {engine.rounds}")
        return answer

    with precision(dtype):
        block = conversation_block(data, network, n_components, seed, dtype, theta)
        engine = InProcess(block)
        outcome = converse(method, block, reply)
    outcome = replace(outcome, theta=outcome.theta.to_numpy())
    account = account_of_block(outcome, block, network)
    return _solution(outcome, data, engine.traffic(), account)


def _solution(
    outcome: Outcome, data: NodeData, traffic: Traffic, account: Account | None
) -> Solution:
    if outcome.message:
        warnings.warn(outcome.message, FitWarning, stacklevel=4)
    open_end = np.full(1, np.nan)
    # Rows without weight were left out: positions in the table they came from may lie beyond.
    in_place = replace(data, source_index=np.arange(len(data.rows)))
    losses = Evaluator(in_place).node_losses(outcome.theta)
    total, nothing = np.array([losses.sum()]), np.zeros(1)
    nodes = losses[None], np.zeros_like(losses)[None]
    return Solution(
        data.labels,
        outcome.theta,
        History(total, nothing, open_end, open_end, *nodes),
        Status.COMPLETED,
        traffic.n_rounds,
        outcome.message,
        None,
        traffic,
        account,
        converged=not outcome.message,
        levels=outcome.levels,
    )
