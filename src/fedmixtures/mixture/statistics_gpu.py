"""The E-step as one GPU kernel (Pallas): responsibilities are never written to memory.

A thread holds one node: its components and their sums in registers, its rows streamed past them.
Same sums as `statistics`, which explains them; `interpret=True` runs it on any machine.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from fedmixtures.mixture.linear import sum_of

TILE = 64
"""Nodes in one program of the grid, one per thread of two warps."""


def moments_gpu(constant, means, factor, rows, row_weights, *, interpret: bool = False):
    """Log-likelihood (nodes,) and sums (k, 1 + d + d(d+1)/2, nodes) of mass and moments.

    `constant` (nodes, k) is the log of weight times normalising constant, `factor` the lower
    triangle of the inverse Cholesky factors as a list of rows of arrays (nodes, k).
    """
    nodes, m, d = rows.shape
    k, dtype = constant.shape[1], rows.dtype
    padding = -nodes % TILE
    last = lambda part: jnp.pad(
        jnp.moveaxis(part, 0, -1), [(0, 0)] * (part.ndim - 1) + [(0, padding)]
    )
    flat = [constant, *(means[..., i] for i in range(d)), *(e for row in factor for e in row)]
    own = jnp.stack([last(field) for field in flat], axis=1)  # (k, fields, nodes)
    # Rows in use come first; padding between them weighs zero and does no harm.
    in_use = jnp.where(row_weights != 0, jnp.arange(1, m + 1)[None], 0).max(1)
    in_use = jnp.pad(in_use.astype(jnp.int32), (0, padding))
    n_sums = 1 + d + d * (d + 1) // 2
    tile = lambda *shape: pl.BlockSpec((*shape, TILE), lambda i: (*(0 for _ in shape), i))
    sums, log_likelihood = pl.pallas_call(
        partial(_kernel, k=k, d=d),
        grid=((nodes + padding) // TILE,),
        in_specs=[tile(k, own.shape[1]), tile(m, d), tile(m), tile()],
        out_specs=[tile(k, n_sums), tile()],
        out_shape=[
            jax.ShapeDtypeStruct((k, n_sums, nodes + padding), dtype),
            jax.ShapeDtypeStruct((nodes + padding,), dtype),
        ],
        interpret=interpret,
        **({} if interpret else {"compiler_params": _compiler_params()}),
    )(own, last(rows), last(row_weights), in_use)
    return log_likelihood[:nodes], sums[..., :nodes]


def _compiler_params():
    from jax.experimental.pallas import triton

    return triton.CompilerParams(num_warps=TILE // 32, num_stages=1)


def _kernel(own_ref, x_ref, w_ref, in_use_ref, sums_ref, log_likelihood_ref, *, k: int, d: int):
    """Sums of one tile of nodes; every value below is a vector over the tile."""
    own = [[own_ref[c, f, :] for f in range(own_ref.shape[1])] for c in range(k)]
    zero = jnp.zeros_like(own[0][0])
    pairs = [(i, j) for i in range(d) for j in range(i + 1)]

    def one_row(r, carry):
        log_likelihood, totals = carry
        x, w = [x_ref[r, i, :] for i in range(d)], w_ref[r, :]
        delta = [[x[i] - own[c][1 + i] for i in range(d)] for c in range(k)]
        log_joint = [own[c][0] - 0.5 * _square(own[c][1 + d :], delta[c], d) for c in range(k)]
        top = log_joint[0]
        for value in log_joint[1:]:
            top = jnp.maximum(top, value)
        unnormalised = [jnp.exp(value - top) for value in log_joint]
        total = sum_of(unnormalised)
        scale = w / total
        new = []
        for c in range(k):
            share = unnormalised[c] * scale
            moments = [share, *(share * delta[c][i] for i in range(d))]
            moments += [share * (delta[c][i] * delta[c][j]) for i, j in pairs]
            new.append([t + moment for t, moment in zip(totals[c], moments, strict=True)])
        return log_likelihood + w * (top + jnp.log(total)), new

    start = (zero, [[zero] * (1 + d + len(pairs)) for _ in range(k)])
    log_likelihood, totals = jax.lax.fori_loop(0, in_use_ref[...].max(), one_row, start)
    log_likelihood_ref[...] = log_likelihood
    for c in range(k):
        for i, total in enumerate(totals[c]):
            sums_ref[c, i, :] = total


def _square(factor, delta, d: int):
    """Squared length of the whitened difference; `factor` is the flat lower triangle."""
    white = [
        sum_of(factor[i * (i + 1) // 2 + j] * delta[j] for j in range(i + 1)) for i in range(d)
    ]
    return sum_of(w * w for w in white)
