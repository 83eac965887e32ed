"""Many small symmetric matrices at once, without a call into LAPACK for each of them.

Besides speed there is a reason to stay away: JAX 0.10 splits a LAPACK batch over the threads of a
pool and waits for them inside that pool, so that two such calls at once can wait for each other
for ever on a machine of two cores (seen with `dtrsm` and `dpotrf`; gone in JAX 0.11).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from fedmixtures._types import Array

UNROLLED = 4  # up to this many features matrix algebra is written out entry by entry

Triangle = list[list[Array]]
"""Lower triangle of a symmetric or triangular matrix, an array (the batch) per entry."""
Root = Callable[[Any], jax.Array]
"""How a kernel takes a square root."""


def lower_triangle(matrices: Float[Array, "... d d"]) -> Triangle:
    """The entries on and below the diagonal, each with the batch axes only.

    Off the diagonal both mirrored entries count half, so that a gradient comes out symmetric.
    """
    matrices = jnp.asarray(matrices)
    return [
        [
            *(0.5 * (matrices[..., i, j] + matrices[..., j, i]) for j in range(i)),
            matrices[..., i, i],
        ]
        for i in range(matrices.shape[-1])
    ]


def symmetric(entries: Triangle) -> Float[Array, "... d d"]:
    """The full symmetric matrices of a triangle of entries."""
    d = len(entries)
    rows = [jnp.stack([entries[max(i, j)][min(i, j)] for j in range(d)], axis=-1) for i in range(d)]
    return jnp.stack(rows, axis=-2)


def cholesky_entries(entries: Triangle, sqrt: Root = jnp.sqrt) -> Triangle:
    r"""$L$ with $A = LL^\top$, entry by entry over the batch."""
    return _cholesky_entries(entries, sqrt)[0]


def _cholesky_entries(
    entries: Triangle, sqrt: Root = jnp.sqrt
) -> tuple[Triangle, list[Array], list[Array]]:
    """The factor, the inverses of its diagonal, and the squares of its diagonal."""
    d = len(entries)
    factor: Triangle = [[entries[i][j] for j in range(i + 1)] for i in range(d)]
    inverse_diagonal, pivots = [], []
    for j in range(d):
        pivots.append(factor[j][j] - sum_of(factor[j][p] * factor[j][p] for p in range(j)))
        factor[j][j] = sqrt(pivots[j])
        inverse_diagonal.append(1.0 / factor[j][j])
        for i in range(j + 1, d):
            below = factor[i][j] - sum_of(factor[i][p] * factor[j][p] for p in range(j))
            factor[i][j] = below * inverse_diagonal[j]
    return factor, inverse_diagonal, pivots


def inverse_cholesky_entries(entries: Triangle, sqrt: Root = jnp.sqrt) -> tuple[Triangle, Array]:
    r"""$L^{-1}$ with $A = LL^\top$, and $\ln|A|$, entry by entry over the batch."""
    d = len(entries)
    factor, inverse_diagonal, pivots = _cholesky_entries(entries, sqrt)
    log_determinant = sum_of(jnp.log(pivot) for pivot in pivots)
    inverse: Triangle = []
    for i in range(d):
        row = [
            -inverse_diagonal[i] * sum_of(factor[i][p] * inverse[p][j] for p in range(j, i))
            for j in range(i)
        ]
        inverse.append([*row, inverse_diagonal[i]])
    return inverse, log_determinant


def cholesky(matrices: Float[Array, "*batch d d"]) -> Float[Array, "*batch d d"]:
    r"""$L$ (lower triangular) with $A = LL^\top$; not finite where $A$ is not positive definite."""
    d = matrices.shape[-1]
    if d <= UNROLLED:
        return _filled(cholesky_entries(lower_triangle(matrices)))
    table = _eliminated(_batch_last(matrices))
    scaled = jnp.where(
        jnp.triu(jnp.ones((d, d), bool))[:, :, None],
        table / jnp.sqrt(_diagonal(table))[:, None],
        0.0,
    )
    return jnp.moveaxis(scaled, -1, 0).swapaxes(-1, -2).reshape(matrices.shape)


def positive_definite(matrices: Float[Array, "*batch d d"]) -> Bool[Array, "*batch"]:
    """Whether all entries are finite and all pivots positive."""
    d = matrices.shape[-1]
    if d <= UNROLLED:
        pivots = jnp.stack(_cholesky_entries(lower_triangle(matrices))[2], axis=-1)
    else:
        pivots = _diagonal(_eliminated(_batch_last(matrices))).T.reshape(matrices.shape[:-1])
    return (pivots > 0).all(-1) & jnp.isfinite(matrices).all((-1, -2))


def inverse_cholesky(
    matrices: Float[Array, "*batch d d"],
) -> tuple[Float[Array, "*batch d d"], Float[Array, "*batch"]]:
    r"""$L^{-1}$ (lower triangular) with $A = LL^\top$, and $\ln|A|$."""
    d = matrices.shape[-1]
    if d <= UNROLLED:
        entries, log_determinant = inverse_cholesky_entries(lower_triangle(matrices))
        return _filled(entries), log_determinant
    table = _batch_last(matrices)
    eye = jnp.broadcast_to(jnp.eye(d, dtype=table.dtype)[:, :, None], table.shape)
    table = _eliminated(jnp.concatenate([table, eye], axis=1))
    pivots = _diagonal(table)
    inverse = jnp.moveaxis(table[:, d:] / jnp.sqrt(pivots)[:, None], -1, 0)
    return inverse.reshape(matrices.shape), jnp.log(pivots).sum(0).reshape(matrices.shape[:-2])


def _filled(entries: Triangle) -> jax.Array:
    """The lower triangular matrices of a triangle of entries."""
    d, zero = len(entries), jnp.zeros_like(entries[0][0])
    rows = [jnp.stack(row + [zero] * (d - len(row)), axis=-1) for row in entries]
    return jnp.stack(rows, axis=-2)


def _batch_last(matrices: Float[Array, "*batch d d"]) -> jax.Array:
    """(d, d, batch); both mirrored entries count half, so that a gradient comes out symmetric."""
    mirrored = 0.5 * (matrices + jnp.swapaxes(matrices, -1, -2))
    return jnp.moveaxis(mirrored.reshape(-1, *matrices.shape[-2:]), 0, -1)


def _diagonal(table: Float[Array, "d e batch"]) -> Float[Array, "d batch"]:
    return jnp.stack([table[i, i] for i in range(len(table))])


def _eliminated(table: Float[Array, "d e batch"]) -> Float[Array, "d e batch"]:
    """All below the diagonal of A eliminated in A or [A | I], column by column, the batch last.

    Positive definite matrices need no pivoting.
    """
    d = len(table)
    below = jnp.arange(d)[:, None]

    def around(table, j):
        """What the step at pivot `j` subtracts, as column times row: divisions once per row."""
        row = jax.lax.dynamic_index_in_dim(table, j, 0, keepdims=False)
        column = jax.lax.dynamic_index_in_dim(table, j, 1, keepdims=False)
        pivot = jax.lax.dynamic_index_in_dim(row, j, 0)
        return jnp.where(below > j, column / pivot, 0.0), row

    def eliminate(j, carry):
        table, share, row = carry
        table = table - share[:, None] * row[None]
        return table, *around(table, jnp.minimum(j + 1, d - 1))

    return jax.lax.fori_loop(0, d - 1, eliminate, (table, *around(table, 0)))[0]


def inverse_by_elimination(
    matrices: Float[Array, "d d batch"], scale: float | Array
) -> tuple[Float[Array, "d d batch"], Float[Array, " batch"]]:
    r"""$A^{-1}$ and $\text{scale}^d / \sqrt{|A|}$ by Gauss-Jordan steps, the batch standing last.

    For well-conditioned positive definite matrices, which need no exchange of rows. Every step is
    one vector operation over the batch, several times as fast as LAPACK on matrices this small.
    """
    d = len(matrices)
    index = jnp.arange(d)

    def around(matrices, p):
        """What the step at pivot `p` subtracts, as column times row, and the inverse pivot."""
        here = (index == p)[:, None]
        inverse = 1.0 / matrices[p, p]
        row = jnp.where(here, inverse[None], matrices[p] * inverse[None])
        return jnp.where(here, -1.0, matrices[:, p]), row, inverse

    def eliminate(p, carry):
        matrices, factor, column, row, inverse = carry
        keep = jnp.where(index == p, 0.0, 1.0).astype(matrices.dtype)
        keep = (keep[:, None] * keep[None])[:, :, None]
        matrices = keep * matrices - column[:, None] * row[None]
        following = around(matrices, jnp.minimum(p + 1, d - 1))
        return matrices, factor * (scale * jnp.sqrt(inverse)), *following

    start = (matrices, jnp.ones(matrices.shape[-1], matrices.dtype), *around(matrices, 0))
    return jax.lax.fori_loop(0, d, eliminate, start)[:2]


def swept(
    matrices: Float[Array, "*batch d d"], chosen: Bool[Array, "*batch d"]
) -> tuple[Float[Array, "*batch d d"], Float[Array, "*batch"]]:
    r"""Sweep positive definite matrices on some of their indices, O; the others are M.

    Where A was stand $-A_{OO}^{-1}$, $A_{MO} A_{OO}^{-1}$ and $A_{MM} - A_{MO} A_{OO}^{-1} A_{OM}$:
    minus a precision, regression coefficients and what regression leaves. With it $\ln|A_{OO}|$.
    """
    d = matrices.shape[-1]
    table, index = _batch_last(matrices), jnp.arange(d)
    chosen = jnp.moveaxis(chosen.reshape(-1, d), 0, -1)

    def around(table, p):
        """What the sweep of `p` adds, as column times row; nothing where it is not chosen."""
        here = (index == p)[:, None]
        pivot = table[p, p]
        row = jnp.where(here, 1.0, table[p]) / pivot[None]
        row = jnp.where(chosen[p][None], row, 0.0)
        return jnp.where(here, 1.0, table[:, p]), row, jnp.where(chosen[p], jnp.log(pivot), 0.0)

    def sweep(p, carry):
        table, total, column, row, log_pivot = carry
        here = index == p
        cross = here[:, None] ^ here[None]
        sign = jnp.where(cross, 1.0, -1.0).astype(table.dtype)[:, :, None]
        gone = (here[:, None] | here[None])[:, :, None] & chosen[p][None, None]
        table = jnp.where(gone, 0.0, table) + sign * column[:, None] * row[None]
        return table, total + log_pivot, *around(table, jnp.minimum(p + 1, d - 1))

    start = table, jnp.zeros(table.shape[-1], table.dtype), *around(table, 0)
    table, log_determinant = jax.lax.fori_loop(0, d, sweep, start)[:2]
    shape = matrices.shape
    return jnp.moveaxis(table, -1, 0).reshape(shape), log_determinant.reshape(shape[:-2])


def sum_of(terms: Iterable[Any]) -> Any:
    """Sum without the leading ``0 +`` of the builtin, which XLA would keep."""
    terms = list(terms)
    return functools.reduce(operator.add, terms) if terms else 0.0
