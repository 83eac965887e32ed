"""Rounds over several devices, which exchange what crosses between them.

Every device runs the rounds of `rounds` on its own blocks. Once a round it sends the messages of
its nodes that have neighbours elsewhere to the devices of those neighbours, and nothing else.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as Spec

from fedmixtures.engine.layout.shards import AXIS, ShardedLayout
from fedmixtures.engine.run import rounds
from fedmixtures.engine.run.rounds import NeighbourRunner
from fedmixtures.kernels.compiling import jit
from fedmixtures.methods.programs import NodeProgram

BLOCKS, EVERYWHERE, RECORD = Spec(AXIS), Spec(), Spec(None, AXIS)


class DeviceRunner(NeighbourRunner):
    """From neighbour to neighbour, each on one of several devices."""

    layout: ShardedLayout

    def start(self, program, prepared):
        """Every device the nodes it holds."""
        return _start(_plain(program), self.groups, self.thetas(prepared), self.layout.mesh)

    def run(self, program, states, first, n, capacity):
        """Devices send what crosses between them, then every device runs its own nodes' round."""
        span, halo = (np.int32(first), np.int32(n)), self.layout.halo
        run = _plain(program), self.groups, halo, states
        return _run_rounds(*run, *span, capacity, self.layout.mesh)

    def results(self, program, states):
        """Every device of the nodes it holds."""
        return _results(_plain(program), self.groups, states, self.layout.mesh)


@jit
def _start(program, groups, thetas, mesh: Mesh):
    return _on_devices(rounds.start.function, mesh, program, (groups, thetas), (), BLOCKS)


@jit
def _run_rounds(program, groups, halo, states, first, n_rounds, capacity: int, mesh: Mesh):
    def run(program, groups, halo, states, first, n_rounds):
        relay = _crossing(halo[0])
        return rounds.run_rounds.function(program, groups, states, first, n_rounds, capacity, relay)

    split, whole = (groups, halo, states), (first, n_rounds)
    return _on_devices(run, mesh, program, split, whole, (BLOCKS, RECORD))


@jit
def _results(program, groups, states, mesh: Mesh):
    return _on_devices(rounds.results.function, mesh, program, (groups, states), (), BLOCKS)


def _crossing(sent: jax.Array) -> rounds.Relay:
    """Append what other devices send to a table of messages; `sent` (devices, messages)."""

    def cross(table: jax.Array) -> jax.Array:
        received = jax.lax.all_to_all(table[sent], AXIS, 0, 0, tiled=True)
        return jnp.concatenate([table, received.reshape(-1, *table.shape[1:])])

    return lambda tables: jax.tree.map(cross, tables)


def _on_devices(function, mesh: Mesh, program, split: tuple, whole: tuple, out: Any):
    """Run `function(program, *split, *whole)` on every device, with its own piece of `split`."""
    numbers, structure = eqx.partition(program, eqx.is_array)
    call = lambda numbers, *rest: function(eqx.combine(numbers, structure), *rest)
    specs = (EVERYWHERE, *(BLOCKS,) * len(split), *(EVERYWHERE,) * len(whole))
    spread = jax.shard_map(call, mesh=mesh, in_specs=specs, out_specs=out, check_vma=False)
    return spread(numbers, *split, *whole)


def _plain(program: NodeProgram) -> NodeProgram:
    """The program's numbers as NumPy: known to every process, on no device yet."""
    return jax.tree.map(lambda part: np.asarray(part) if eqx.is_array(part) else part, program)
