"""One job at one node: rows, program, state, neighbours heard, checkpoints."""

from __future__ import annotations

import hashlib
import os
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from fedmixtures.engine.layout.blocks import node_group
from fedmixtures.engine.run import rounds
from fedmixtures.federation.job import Job, JobError
from fedmixtures.federation.node import stepping
from fedmixtures.federation.node.gate import Gate
from fedmixtures.federation.node.ledger import Ledger
from fedmixtures.federation.node.program import (
    feasible_of,
    merging,
    private_round,
    program_of,
    shares_counts,
    starting_mixture,
)
from fedmixtures.federation.node.store import Saved, Store
from fedmixtures.federation.wire.message import decode_message
from fedmixtures.methods.base import NodeProgram
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.precision import double

SPARE_ROUNDS = 4


class Refused(ValueError):
    """A request that this node does not carry out."""


class Session:
    """What a node holds for a job between two requests."""

    def __init__(self, job: Job, site: str, rows: np.ndarray, folder, ledger: Ledger | None):
        self.job, self.site, self.ledger = job, site, ledger
        self.given: NodeProgram = program_of(job)
        self.feasible = feasible_of(self.given)
        self.program = rounds.dynamic(self.given, "float64")
        self.neighbours = job.neighbours(site)
        rows = self._scaled(rows)
        self.rows = rows
        self.group, self.slots = node_group(
            site, rows, np.ones(len(rows)), self.neighbours, seed=job.seed
        )
        digest = hashlib.sha256(job.key.encode() + np.ascontiguousarray(rows).tobytes())
        self.store = Store(folder, digest.hexdigest(), job.reach + SPARE_ROUNDS)
        self.round: int | None = None
        self.state: Any = None
        self.state_from = "nowhere"
        self.heard: dict[str, tuple[int, Any]] = {}
        self.initial = self._initial()
        self.like = self._message_like()

    def _scaled(self, rows: np.ndarray) -> np.ndarray:
        if rows.ndim != 2 or rows.shape[1] != len(self.job.features) or not len(rows):
            raise Refused("the rows here do not have the job's features")
        if self.job.shift:
            rows = rows - np.array(self.job.shift)
        return rows / np.array(self.job.scale) if self.job.scale else rows

    def _initial(self) -> Any:
        try:
            theta = starting_mixture(self.job, self.given, self.site, self.rows)
        except JobError:
            raise
        except ValueError as error:  # names numbers of rows, which are nobody else's business
            raise Refused("no start could be made from the rows here") from error
        leading = jax.tree.map(lambda part: jnp.asarray(part)[None], theta)
        return stepping.node_start(self.program, self.group, leading)

    def _message_like(self) -> Any:
        """The arrays of one message, without node and slot axes."""
        out = eqx.filter_eval_shape(self.program.outgoing, self.initial, self.group.weight[0])
        one = lambda tree, axes: jax.tree.map(
            lambda leaf: np.zeros(leaf.shape[axes:], leaf.dtype), tree
        )
        return (_empty_of(out.broadcast, 1), one(out.per_slot, 2))

    def available(self) -> list[int]:
        """Rounds this node can go back to; the start can always be made again."""
        readable = [t for t in self.store.rounds() if self.store.read(t) is not None]
        return sorted({0, *readable})

    @property
    def reached(self) -> int:
        """The round this node stands after."""
        if self.round is None:
            raise Refused("this node stands nowhere yet: ask it to share first")
        return self.round

    def go_to(self, t: int) -> None:
        """Stand after `t` rounds: from memory, from disk, or from the start."""
        if self.round == t:
            self.state_from = "memory"
        elif (saved := self.store.read(t)) is not None:
            leaves, structure = jax.tree.flatten(self.initial)
            state = [
                jnp.asarray(new, old.dtype) for new, old in zip(saved.state, leaves, strict=True)
            ]
            self.state, self.state_from = jax.tree.unflatten(structure, state), "disk"
            self.heard = {s: (r, self._rebuilt(m)) for s, (r, m) in saved.heard.items()}
        elif t == 0:
            self.state, self.state_from, self.heard = self.initial, "init", {}
        else:
            raise Refused(f"round {t} is not on disk here")
        if self.round != t:
            self.store.forget_after(t)
            self.round = t

    def _rebuilt(self, leaves: Any) -> Any:
        if leaves is None:
            return None
        structure = jax.tree.structure(self.like)
        kinds = [leaf.dtype for leaf in jax.tree.leaves(self.like)]
        return jax.tree.unflatten(
            structure, [a.astype(k) for a, k in zip(leaves, kinds, strict=True)]
        )

    def accept(self, source: str, source_round: int, content: bytes) -> None:
        """Take in an opened message; `ModelRefused` if it is no usable model."""
        message = decode_message(content, self.like, self.feasible)
        self.heard[source] = (source_round, message)

    def freshness(self) -> dict[str, list[str]]:
        """Neighbours by how recent their last message is."""
        found: dict[str, list[str]] = {"fresh": [], "stale": [], "dropped": [], "silent": []}
        for source in self.slots:
            source_round, message = self.heard.get(source, (-1, None))
            behind = self.reached - source_round
            if source_round < 0 or behind > self.job.max_stale:
                found["dropped"].append(source)
            else:
                found["fresh" if behind == 0 else "stale"].append(source)
                if message is None:
                    found["silent"].append(source)
        return found

    def step(self, freshness: dict[str, list[str]]) -> None:
        """One round with what was heard, written to disk before it is told."""
        if not self.store.is_ours():
            raise Refused("another process of this site has taken the job over")
        if self.ledger is not None:
            self.ledger.charge(*private_round(self.job, self.given))
        usable = {*freshness["fresh"], *freshness["stale"]} - {*freshness["silent"]}
        state = self._stepped(usable, self.reached)
        leaves = tuple(np.asarray(leaf) for leaf in jax.tree.leaves(state))
        if not all(np.isfinite(leaf).all() for leaf in leaves):
            raise Refused("the model here is no longer finite: lower learning_rate or alpha")
        self.state, self.round, self.state_from = state, self.reached + 1, "memory"
        heard = {
            source: (r, None if m is None else tuple(jax.tree.leaves(m)))
            for source, (r, m) in self.heard.items()
        }
        self.store.write(Saved(self.round, leaves, heard))

    def _stepped(self, usable: set[str], t: int) -> Any:
        own = self.outgoing()
        n_slots = self.group.weight.shape[-1]
        empty = own_slot(own, 0)
        messages = [self.heard[s][1] if s in usable else empty for s in self.slots]
        messages += [empty] * (n_slots - len(self.slots))
        broadcast, per_slot = jax.tree.map(lambda *parts: jnp.stack(parts), *messages)
        heard = np.array([s in usable for s in self.slots] + [False] * (n_slots - len(self.slots)))
        group = self.group
        if self.ledger is not None:  # noise that nobody who knows the seed can take off again
            secret = np.frombuffer(os.urandom(8), np.uint32).reshape(group.node_key.shape)
            group = eqx.tree_at(lambda g: g.node_key, group, jnp.asarray(secret))
        state, _ = stepping.node_round(
            self.program, group, self.state, broadcast, per_slot, jnp.asarray(heard), jnp.int32(t)
        )
        return state

    def warm_up(self) -> None:
        """Compile everything a round needs; the outcome is thrown away."""
        before = self.state
        self.state = self.initial
        ledger, self.ledger = self.ledger, None
        try:
            jax.block_until_ready(self._stepped(set(), 0))
            self.result()
        finally:
            self.state, self.ledger = before, ledger

    def outgoing(self) -> Any:
        """Everything the program has to say, before the gate."""
        return stepping.node_outgoing(self.program, self.group, self.state)

    def released(self, gate: Gate) -> tuple[list[Any] | None, int]:
        """A message per slot as it may leave, or None; and how many components were merged."""
        out = self.outgoing()
        block = jax.tree.map(lambda part: part[0], self.group.data)
        if self.ledger is not None:  # the model is private as it is; the gate would look again
            return [own_slot(out, s) for s in range(len(self.slots))], 0
        if shares_counts(self.given):
            passes = gate.passes(self.result(), block)
            passes = passes and len(self.rows) >= gate.threshold(self.rows.shape[1])
            return [own_slot(out, s) for s in range(len(self.slots))] if passes else None, 0
        feasible, may_merge = merging(self.given)
        mixture, merged = gate.released(_plain(out.broadcast), block, feasible, may_merge=may_merge)
        message = None if mixture is None else [(mixture, None)] * len(self.slots)
        return message, merged

    def result(self) -> Mixture:
        """The mixture of this node; it stays here."""
        with double():
            return stepping.node_result(self.program, self.group, self.state).to_numpy()


def own_slot(out: Any, slot: int) -> Any:
    """The message for one slot: the broadcast, and what is meant for that slot alone."""
    pick = lambda tree, *index: jax.tree.map(lambda part: np.asarray(part)[index], tree)
    return (_plain(out.broadcast), pick(out.per_slot, 0, slot))


def _plain(broadcast: Any) -> Any:
    return jax.tree.map(lambda part: np.asarray(part)[0], broadcast)


def _empty_of(tree: Any, axes: int) -> Any:
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape[axes:], leaf.dtype), tree)
