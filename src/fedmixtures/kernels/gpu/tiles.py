"""What the GPU kernels (Pallas) share: tiles of nodes, a thread for each node of a tile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Float, Int

from fedmixtures._types import Array

TILE = 64
"""Nodes in one program of the grid, one per thread of two warps."""


def options(interpret: bool) -> dict[str, Any]:
    """How a kernel is run: compiled for the GPU, or interpreted on any machine."""
    if interpret:
        return {"interpret": True}
    from jax.experimental.pallas import triton

    return {"compiler_params": triton.CompilerParams(num_warps=TILE // 32, num_stages=1)}


@dataclass(frozen=True)
class Functions:
    """What kernels take of mathematics beyond plus and times."""

    exp2: Callable[[Any], jax.Array] = jnp.exp2
    log2: Callable[[Any], jax.Array] = jnp.log2
    rsqrt: Callable[[Any], jax.Array] = jax.lax.rsqrt


def functions(dtype: Any, interpret: bool) -> Functions:
    """For float32 on a GPU one instruction each, good to about 2e-7: subnormal numbers are zero.

    Otherwise the compiler spends as many instructions again on numbers that never occur here.
    """
    if interpret or dtype != jnp.float32:
        return Functions()
    return Functions(*(partial(_instruction, name) for name in ("ex2", "lg2", "rsqrt")))


def _instruction(name: str, x: jax.Array) -> jax.Array:
    from jax.experimental.pallas import triton

    (result,) = triton.elementwise_inline_asm(
        f"{name}.approx.ftz.f32 $0, $1;",
        args=[x],
        constraints="=f,f",
        pack=1,
        result_shape_dtypes=[jax.ShapeDtypeStruct(x.shape, x.dtype)],
    )
    return result


def flat(part: Array) -> jax.Array:
    """(nodes, numbers) in whole tiles: fewer axes are fewer operations for every number read."""
    return whole_tiles(part.reshape(len(part), -1))


def whole_tiles(part: Array) -> jax.Array:
    """The nodes in front padded to whole tiles: no work where there are many, a round number."""
    return jnp.pad(part, [(0, -len(part) % TILE), *[(0, 0)] * (part.ndim - 1)])


def nodes_last(part: Array) -> jax.Array:
    """The node axis moved to the end, where threads read side by side, in whole tiles."""
    padding = [(0, 0)] * (part.ndim - 1) + [(0, -len(part) % TILE)]
    return jnp.pad(jnp.moveaxis(part, 0, -1), padding)


def leading(part: Any) -> pl.BlockSpec:
    """A tile of an array that leads with the nodes; the last number of a program is its tile's."""
    return pl.BlockSpec((TILE, *part.shape[1:]), lambda *at: (at[-1], *[0] * (part.ndim - 1)))


def trailing(part: Any) -> pl.BlockSpec:
    """A tile of an array with the nodes last."""
    return pl.BlockSpec((*part.shape[:-1], TILE), lambda *at: (*[0] * (part.ndim - 1), at[-1]))


def in_use(weight: Float[Array, "nodes slots"]) -> Int[Array, " nodes"]:
    """Slots (or rows) of each node up to the last one that counts.

    Those in use come first; an empty one in between weighs zero and does no harm.
    """
    return (
        jnp.where(weight != 0, jnp.arange(1, weight.shape[1] + 1)[None], 0).max(1).astype(jnp.int32)
    )
