"""One job at one node: rows, program, state, neighbours heard, checkpoints."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from fedmixtures.engine.layout.blocks import Group, node_group
from fedmixtures.engine.run import rounds, runner
from fedmixtures.federation.job import Job, JobError
from fedmixtures.federation.node.gate import Support
from fedmixtures.federation.node.job_program import (
    feasible_of,
    private_round,
    program_of,
    starting_mixture,
)
from fedmixtures.federation.node.ledger import Ledger
from fedmixtures.federation.node.store import NodeState, Store, digest
from fedmixtures.federation.wire.message import (
    ModelMessage,
    ModelRefused,
    PrivateModelMessage,
    decode_message,
    encode_message,
)
from fedmixtures.kernels.compiling import jit
from fedmixtures.methods.base import Outcome
from fedmixtures.methods.programs import Inbox, NodeProgram
from fedmixtures.mixture.arithmetic import double
from fedmixtures.mixture.mixture import Mixture

SPARE_ROUNDS = 4


class Refused(ValueError):
    """A request that this node does not carry out."""


def job_rows(job: Job, rows: np.ndarray) -> np.ndarray:
    """Rows in the units of the job."""
    if rows.ndim != 2 or rows.shape[1] != len(job.features) or not len(rows):
        raise Refused("the rows here do not have the job's features")
    if job.shift:
        rows = rows - np.array(job.shift)
    return rows / np.array(job.scale) if job.scale else rows


def rows_fingerprint(job: Job, rows: np.ndarray) -> str:
    """What tells a job on these rows from any other."""
    content = np.ascontiguousarray(rows).tobytes()
    return hashlib.sha256(job.key.encode() + content).hexdigest()


class Session:
    """What a node holds for a job between two requests."""

    def __init__(self, job: Job, site: str, support: Support, folder: Path, ledger: Ledger | None):
        self.job, self.site, self.ledger = job, site, ledger
        given = program_of(job)
        if not isinstance(given, NodeProgram):
            raise Refused("this is no job of rounds between neighbours")
        self.given = given
        self.feasible = feasible_of(self.given)
        self.program = runner.as_traced(self.given, "float64")
        self.neighbours = job.neighbours(site)
        self.support = Support(job_rows(job, support.rows), support.people)
        rows = self.support.rows
        # Under privacy people are what is protected, so that people are what is fitted.
        weights = np.ones(len(rows)) if ledger is None else self.support.weights
        self.group, self.slots = node_group(site, rows, weights, self.neighbours, seed=job.seed)
        self.fingerprint = rows_fingerprint(job, self.support.rows)
        self.store = Store(folder, self.fingerprint, job.reach + SPARE_ROUNDS)
        self.inputs, self.released, _ = self.store.answers()
        self.answered = {
            (source, t): mark
            for inputs in self.inputs.values()
            for source, (t, mark) in inputs.items()
        }
        self.round: int | None = None
        self.state: Any = None
        self.state_from = "nowhere"
        self.heard: dict[str, tuple[int, Mixture | None]] = {}
        self.initial = self._initial()

    def _initial(self) -> Any:
        try:
            theta = starting_mixture(self.job, self.given, self.site, self.support.rows)
        except JobError:
            raise
        except ValueError as error:  # names numbers of rows, which are nobody else's business
            raise Refused("no start could be made from the rows here") from error
        leading = jax.tree.map(lambda part: jnp.asarray(part)[None, None], theta)
        (state,) = rounds.start(self.program, (self.group,), (leading,))
        return _without_block(state)

    def available(self) -> list[int]:
        """Rounds this node can go back to; the start can always be made again."""
        return sorted({0, *self.store.rounds()})

    @property
    def key(self) -> str:
        """What boxes are sealed under."""
        return self.job.key

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
        elif (after := self.store.read(t)) is not None:
            self._adopt(after)
        elif t == 0:
            self.state, self.state_from, self.heard = self.initial, "init", {}
        else:
            raise Refused(f"round {t} is not on disk here")
        self.round = t

    def _adopt(self, after: NodeState) -> None:
        leaves, structure = jax.tree.flatten(self.initial)
        pairs = zip(after.state, leaves, strict=True)
        state = [jnp.asarray(new, old.dtype) for new, old in pairs]
        self.state, self.state_from = jax.tree.unflatten(structure, state), "disk"
        self.heard, self.round = dict(after.heard), after.round

    def accept(self, source: str, source_round: int, content: bytes) -> None:
        """Take in an opened message; `ModelRefused` if it is no usable model.

        A round that was answered keeps the messages it was answered to: another one for it is an
        attempt to get a second answer.
        """
        k, d = self.job.most_components, len(self.job.features)
        mixture = decode_message(content, k, d, self.feasible)
        if self.answered.get((source, source_round), known := _mark(mixture)) != known:
            raise ModelRefused("another message of that round was already answered")
        self.heard[source] = (source_round, mixture)

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

    def must_wait(self, freshness: dict[str, list[str]]) -> bool:
        """A node that hears no fresh neighbour holds; it never steps on alone."""
        return bool(self.slots) and not freshness["fresh"]

    @property
    def at_home(self) -> Support:
        """The rows, in the units of the job."""
        return self.support

    @property
    def outcome(self) -> Outcome:
        """What the rounds have come to, for the site itself."""
        return Outcome(Mixture.stack([self.result()]))

    @property
    def is_over(self) -> bool:
        """Whether all rounds are done."""
        return self.reached >= self.job.n_rounds

    def replay(self) -> bool:
        """Go on to the state that this round was answered with; False if it was not, or is gone."""
        after = self.store.read(self.reached + 1)
        if self.reached not in self.inputs or after is None:
            return False
        self._adopt(after)
        return True

    def step(self, freshness: dict[str, list[str]]) -> None:
        """One round with what was heard, on disk before anything leaves."""
        if not self.store.is_ours():
            raise Refused("another process of this site has taken the job over")
        t = self.reached
        usable = {*freshness["fresh"], *freshness["stale"]}
        inputs = {s: (self.heard[s][0], _mark(self.heard[s][1])) for s in sorted(usable)}
        if self.inputs.get(t, inputs) != inputs:
            raise Refused(f"round {t} was already answered, to other messages")
        if self.ledger is not None:
            self.ledger.charge(*private_round(self.job, self.given))
        state = self._stepped(usable - {*freshness["silent"]}, t)
        leaves = tuple(np.asarray(leaf) for leaf in jax.tree.leaves(state))
        if not all(np.isfinite(leaf).all() for leaf in leaves):
            raise Refused("the model here is no longer finite: lower learning_rate or alpha")
        if t not in self.inputs:
            self.store.note(t, inputs=inputs)
            self.inputs[t] = inputs
            self.answered |= {(source, r): mark for source, (r, mark) in inputs.items()}
        self.store.write(NodeState(t + 1, leaves, self.heard))
        self.state, self.round, self.state_from = state, t + 1, "memory"

    def _stepped(self, usable: set[str], t: int) -> Any:
        own = self.model()
        n_slots = self.group.weight.shape[-1]
        padding = [False] * (n_slots - len(self.slots))
        heard = np.array([s in usable for s in self.slots] + padding)
        # An unheard slot holds what the engine puts into an empty one: the own message.
        messages = [self.heard[s][1] if s in usable else own for s in self.slots]
        messages += [own] * len(padding)
        broadcast = jax.tree.map(lambda *parts: jnp.stack(parts), *messages)
        group = self.group
        if self.ledger is not None:  # noise that nobody who knows the seed can take off again
            secret = np.frombuffer(os.urandom(8), np.uint32).reshape(group.node_key.shape)
            group = eqx.tree_at(lambda g: g.node_key, group, jnp.asarray(secret))
        return _round(self.program, group, self.state, broadcast, jnp.asarray(heard), jnp.int32(t))

    def warm_up(self) -> None:
        """Compile everything a round needs; the outcome is thrown away."""
        before, self.state = self.state, self.initial
        ledger, self.ledger = self.ledger, None
        try:
            jax.block_until_ready(self._stepped(set(), 0))
            self.result()
        finally:
            self.state, self.ledger = before, ledger

    def model(self) -> Mixture:
        """The mixture this node would tell its neighbours, before the gate."""
        out = _outgoing(self.program, self.state)
        return jax.tree.map(lambda part: np.asarray(part)[0], out)

    def message(self) -> ModelMessage | PrivateModelMessage:
        """What the node has to say, typed: the type decides by which rule it may leave."""
        return (ModelMessage if self.ledger is None else PrivateModelMessage)(self.model())

    def outgoing(self) -> dict[str, object]:
        """The message of this round, the same to every neighbour."""
        return dict.fromkeys(self.slots, self.message())

    @property
    def n_models(self) -> int:
        """Models that left before this round's."""
        return self.reached

    def result(self) -> Mixture:
        """The mixture of this node; it stays here."""
        with double():
            return _result(self.program, self.group, self.state).to_numpy()


def _mark(mixture: Mixture | None) -> str:
    return "silent" if mixture is None else digest(encode_message(ModelMessage(mixture)))


# One node's round, compiled: the engine's own step on a block of one.


@jit
def _outgoing(program: NodeProgram, state: Any) -> Any:
    return program.outgoing(state)


@jit
def _round(
    program: NodeProgram, group: Group, state: Any, broadcast: Any, heard: jax.Array, t: jax.Array
) -> Any:
    """Round `t`: messages (slots, ...) as they came, and which of the slots were heard."""
    in_front = lambda tree, axes: jax.tree.map(lambda p: p.reshape((1,) * axes + p.shape), tree)
    # As in the engine, where the sender's block digests what it sends, a node at a time.
    one_by_one = jax.tree.map(lambda part: part[:, None], broadcast)
    digested = rounds.over_blocks(jax.vmap(program.digest), one_by_one)
    digested = jax.tree.map(lambda part: part[:, 0], digested)
    group = eqx.tree_at(lambda g: g.weight, group, jnp.where(heard[None, None], group.weight, 0.0))

    def receive(state, group: Group, digested):
        return rounds.step(program, state, Inbox(digested, group.weight), group, t)

    stepped, _ = rounds.over_blocks(receive, in_front(state, 1), group, in_front(digested, 2))
    return _without_block(stepped)


@jit
def _result(program: NodeProgram, group: Group, state: Any) -> Mixture:
    return _without_block(program.result(state, _without_block(group).data))


def _without_block(tree: Any) -> Any:
    return jax.tree.map(lambda part: part[0], tree)
