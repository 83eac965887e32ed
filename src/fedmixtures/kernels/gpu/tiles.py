"""What the GPU kernels (Pallas, Mosaic GPU) share: tiles of nodes, a thread for each node.

A kernel sees whole arrays and reads of them what belongs to its tile. `interpret=True` runs it on
any machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Float, Int

from fedmixtures._types import Array

TILE = 128
"""Nodes in one program of the grid, one per thread of a warpgroup."""


def call(
    body: Callable[..., None],
    grid: Mapping[str, int],
    results: Sequence[jax.ShapeDtypeStruct],
    arrays: Sequence[Array],
    *,
    interpret: bool,
    approximate: bool = False,
) -> Sequence[jax.Array]:
    """Run `body` once for every point of `grid`: the results.

    It gets the numbers of the point, then references to `arrays` and to the results. With
    `approximate`, functions of float32 numbers are one instruction each, good to about 2e-7, for
    which subnormal numbers are zero; otherwise the compiler spends as many instructions again on
    numbers that never occur here.
    """
    if interpret:
        here = lambda *refs: body(*map(pl.program_id, range(len(grid))), *refs)
        run = pl.pallas_call(here, results, grid=tuple(grid.values()), interpret=True)
        return run(*arrays)
    from jax.experimental.pallas import mosaic_gpu

    here = lambda *refs: body(*map(jax.lax.axis_index, grid), *refs)
    run = mosaic_gpu.kernel(
        here,
        out_type=results,
        grid=tuple(grid.values()),
        grid_names=tuple(grid),
        compiler_params=mosaic_gpu.CompilerParams(
            approx_math=approximate and arrays[0].dtype == jnp.float32,
            # The other semantics take minutes to write a kernel of some thousand operations.
            lowering_semantics=mosaic_gpu.LoweringSemantics.Lane,
        ),
    )
    return run(*arrays)


def nodes_of(tile: Any) -> slice | pl.Slice:
    """Where the nodes of a tile stand in arrays that have them last, or first."""
    return pl.ds(tile * TILE, TILE)


def zeros(x: Array) -> jax.Array:
    """Zeros for a loop to start with, one for each thread.

    Of `jnp.zeros_like` the compiler keeps one for all, from which no thread's own sum can go on.
    """
    return jnp.where(x == x, jnp.zeros((), x.dtype), jnp.zeros((), x.dtype))


def sqrt(x: jax.Array) -> jax.Array:
    """Of positive numbers, by a function that JAX 0.10 can write for a GPU, too."""
    return x * jax.lax.rsqrt(x)


def flat(part: Array) -> jax.Array:
    """(nodes, numbers) in whole tiles: no work where there are many nodes, a round number."""
    part = part.reshape(len(part), -1)
    return jnp.pad(part, [(0, -len(part) % TILE), (0, 0)])


def nodes_last(part: Array) -> jax.Array:
    """The node axis moved to the end, where threads read side by side, in whole tiles."""
    padding = [(0, 0)] * (part.ndim - 1) + [(0, -len(part) % TILE)]
    return jnp.pad(jnp.moveaxis(part, 0, -1), padding)


def in_use(weight: Float[Array, "nodes slots"]) -> Int[Array, " nodes"]:
    """Slots (or rows) of each node up to the last one that counts.

    Those in use come first; an empty one in between weighs zero and does no harm.
    """
    return (
        jnp.where(weight != 0, jnp.arange(1, weight.shape[1] + 1)[None], 0).max(1).astype(jnp.int32)
    )


def most_in_use(weight: Float[Array, "nodes slots"]) -> Int[Array, " tiles"]:
    """Slots (or rows) of each tile up to the last one that counts: its loop may end there."""
    return nodes_last(in_use(weight)).reshape(-1, TILE).max(-1)
