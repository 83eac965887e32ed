"""The one place that knows where programs run: it picks the kernel and the sizes for CPU or GPU.

For every definition there is one function here, with the same meaning on all backends. Nobody
outside asks which kernel ran. Kernels for a GPU are tried before they are relied on (`trial`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Float

from fedmixtures._types import Array, PerNode, PerSlot, Rows, RowWeights, SlotKeys
from fedmixtures.kernels.cores import own_cores
from fedmixtures.kernels.cpu import clustering, drawing, likelihood, matching, pair_sums
from fedmixtures.kernels.trial import passes
from fedmixtures.mixture.density import IncompleteRows, log_joint, log_joint_observed
from fedmixtures.mixture.linear import UNROLLED, inverse_cholesky
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import (
    Statistics,
    observed_statistics,
    plain_gradient,
    plain_statistics,
)

ROW_CHUNK = 8192
"""Rows of a node beyond this many are visited in chunks, so that memory stays bounded."""
CPU_ENTRIES, GPU_ENTRIES = 1 << 17, 1 << 27
"""Entries of the matrices that rows with gaps need in one go, at most."""
LAYOUT_NODES = 100_000
"""From so many nodes on a GPU does the layout itself, once it has compiled how."""
BLOCK_NODES, BLOCK_ROWS = 128, 65536
"""Nodes and rows in a block on a CPU, at most: what stays in its cache."""
GPU_NODES, GPU_ROWS = 1 << 20, 1 << 27
"""Nodes and rows in a block on a GPU, which wants all work at once."""
KEPT_PRODUCTS, MOST_PRODUCTS = 14, 20
"""Up to so many features a tile's statistics are matrix products with all products of features,
which are kept from step to step or made anew."""
CPU_CLUSTERED, GPU_CLUSTERED = 1 << 16, 1 << 26
"""Rows times restarts that are clustered in one call, at most."""


def on_gpu() -> bool:
    """Whether programs are about to run on an NVIDIA GPU."""
    return jax.default_backend() in ("gpu", "cuda")


def on_cpu() -> bool:
    """Whether programs are about to run on a CPU, for which the compiler has options."""
    return jax.default_backend() == "cpu"


def most_in_a_block() -> tuple[int, int]:
    """Nodes and rows that a block holds here, at most."""
    return (GPU_NODES, GPU_ROWS) if on_gpu() else (BLOCK_NODES, BLOCK_ROWS)


def tolerable_padding() -> float:
    """Share of more work that a shape less to compile is worth: for a GPU that takes seconds."""
    return 0.15 if on_gpu() else 0.02


def lays_out_on_device(n_nodes: int, n_rows: int) -> bool:
    """Whether the device puts rows and neighbours in order, instead of the host."""
    return on_gpu() and n_nodes >= LAYOUT_NODES and n_rows < 2**31


def keeps_on_device() -> bool:
    """Whether arrays of the whole network stay on the device between programs (`arrays.xp`)."""
    return on_gpu()


def sorts_on_device() -> bool:
    """Whether the device sorts and joins the rows that are to be clustered."""
    return on_gpu()


def clustered_at_once() -> int:
    """Rows times restarts in one call of `lloyd`, at most."""
    return GPU_CLUSTERED if on_gpu() else CPU_CLUSTERED


def sum_together(terms: Sequence[Array], axis: int | tuple[int, ...]) -> list[jax.Array]:
    """Sum several arrays of one shape over one axis in a single loop.

    The arrays usually share expensive intermediate values (an exponential, say). XLA on CPU would
    work them out anew for each sum; one reduction with many results does it once. On a GPU XLA
    joins sums by itself, and uses more threads than for such a reduction.
    """
    axes = (axis,) if isinstance(axis, int) else axis
    if on_gpu():
        return [jnp.sum(term, axes) for term in terms]
    zeros = [jnp.zeros((), term.dtype) for term in terms]
    added = lambda a, b: [left + right for left, right in zip(a, b, strict=True)]
    return list(jax.lax.reduce(terms, zeros, added, axes))


# The likelihood of a node's rows -----------------------------------------------------------------


def statistics(theta: Mixture, rows: Rows | IncompleteRows, row_weights: RowWeights) -> Statistics:
    """`moments.plain_statistics`: the E-step of every node of a block on its own weighted rows.

    Of rows with gaps, `moments.observed_statistics`.
    """
    if isinstance(rows, IncompleteRows):
        return _observed_statistics(theta, rows, row_weights)
    if theta.is_mixed:
        chunk = partial(plain_statistics, theta)
        return _summed(chunk, (rows, row_weights), ROW_CHUNK)
    k, d = theta.n_components, theta.n_features
    n_sums = likelihood.n_sums(d)
    one_pass = plain_statistics
    if _likelihood_on_gpu(theta):
        from fedmixtures.kernels.gpu.likelihood import statistics_gpu

        one_pass = statistics_gpu
    elif d <= UNROLLED and k * n_sums <= likelihood.MOST_SUMS:
        return likelihood.unrolled(theta, rows, row_weights)
    elif n_sums <= likelihood.MOST_SUMS and not on_gpu():
        one_pass = likelihood.rows_last
    if rows.shape[1] <= ROW_CHUNK:
        return one_pass(theta, rows, row_weights)
    return _summed(lambda *chunk: one_pass(theta, *chunk), (rows, row_weights), ROW_CHUNK)


def _observed_statistics(
    theta: Mixture, rows: IncompleteRows, row_weights: RowWeights
) -> Statistics:
    """In chunks of segments, for each of which and each component there is a matrix."""
    x, observed = rows.by_segment, rows.observed

    def one_pass(x, observed, weights):
        flat = x.reshape(len(x), -1, x.shape[-1])
        return observed_statistics(
            theta, IncompleteRows(flat, observed), weights.reshape(len(x), -1)
        )

    weights = row_weights.reshape(x.shape[:3])
    return _summed(one_pass, (x, observed, weights), segments_at_once(theta))


def segments_at_once(theta: Mixture) -> int:
    """Segments of every node whose matrices are held together."""
    nodes, k, d = theta.means.shape
    return max(1, (GPU_ENTRIES if on_gpu() else CPU_ENTRIES) // (nodes * k * d * d))


def log_joints(theta: Mixture, rows: Rows | IncompleteRows) -> Float[Array, "nodes m k"]:
    """`density.log_joint` of every node's rows; of rows with gaps, of what is there."""
    if not isinstance(rows, IncompleteRows):
        return jax.vmap(log_joint)(theta, rows)
    x, width = rows.by_segment, segments_at_once(theta)

    def of_chunk(chunk):
        x, observed = chunk
        return log_joint_observed(
            theta, IncompleteRows(x.reshape(len(x), -1, x.shape[-1]), observed)
        )

    if x.shape[1] <= width:
        return of_chunk((x, rows.observed))
    joint = jax.lax.map(of_chunk, _chunks((x, rows.observed), width))
    return jnp.moveaxis(joint, 0, 1).reshape(len(x), -1, joint.shape[-1])[:, : rows.shape[1]]


def _summed(one_pass: Callable[..., Any], parts: tuple[Array, ...], width: int) -> Any:
    """The sum of what a pass gives for every `width` lines of the second axis."""
    if parts[0].shape[1] <= width:
        return one_pass(*parts)
    chunks = _chunks(parts, width)
    first = one_pass(*(part[0] for part in chunks))
    add = lambda total, chunk: (jax.tree.map(jnp.add, total, one_pass(*chunk)), None)
    return jax.lax.scan(add, first, tuple(part[1:] for part in chunks))[0]


def _chunks(parts: tuple[Array, ...], width: int) -> tuple[Array, ...]:
    """(chunks, nodes, width, ...); zeros behind the last line."""

    def cut(part):
        n = -(-part.shape[1] // width)
        room = [(0, 0), (0, n * width - part.shape[1]), *[(0, 0)] * (part.ndim - 2)]
        padded = jnp.pad(part, room).reshape(len(part), n, width, *part.shape[2:])
        return jnp.moveaxis(padded, 1, 0)

    return tuple(map(cut, parts))


class TileRows(eqx.Module):
    """Rows in tiles, made ready for many calls of `tile_statistics`."""

    rows: Rows
    products: Array | None

    @classmethod
    def of(cls, rows: Rows) -> TileRows:
        """With products of features where these are kept."""
        kept = _by_products(rows) and rows.shape[-1] <= KEPT_PRODUCTS
        return cls(rows, likelihood.products(rows) if kept else None)


def _by_products(rows: Rows) -> bool:
    d, precise = rows.shape[-1], rows.dtype == jnp.float64
    return UNROLLED < d <= MOST_PRODUCTS and precise and not on_gpu()


def tile_statistics(
    theta: Mixture,
    tiles: TileRows,
    row_weights: RowWeights,
    owner: Array,
    add: Callable[[Array], Array],
) -> Statistics:
    """`moments.plain_statistics` of fits to standardised rows, each of several tiles, summed.

    `owner` (tiles,), sorted, is the number of the fit, `add` sums over it. Forms that compile
    quickly: `rows_last` up to four features (but see `_unrolls`), `by_products` from five to twenty
    (there 4 ms for 8,192 rows and k = 6, the definition 7; one look on a busy machine, which no
    benchmark repeats, and none at more features). On an H200 `unrolled` takes 2.2 ms for 1,048,576
    tiles of 32 rows, k = 5, d = 2, `rows_last` 2.7 to 3.4 ms, the definition 14 ms and a kernel of
    our own 1.8 ms, which is not worth its lines here.
    """
    if _by_products(tiles.rows) and not theta.is_mixed:
        return likelihood.by_products(theta, tiles.rows, tiles.products, row_weights, owner)
    at = jax.tree.map(lambda part: part[owner], theta)
    if theta.n_features <= UNROLLED and not theta.is_mixed:
        form = likelihood.unrolled if _unrolls(theta, tiles.rows) else likelihood.rows_last
        by_tile = form(at, tiles.rows, row_weights)
    else:
        factor = jax.tree.map(lambda part: part[owner], inverse_cholesky(theta.covariances))
        by_tile = plain_statistics(at, tiles.rows, row_weights, factor)
    return jax.tree.map(add, by_tile)


def _unrolls(theta: Mixture, tiles: Rows) -> bool:
    """Whether `unrolled` pays, which compiles longer: on a CPU for few sums over many rows.

    1,024 tiles of 32 rows in float64 on one core: k = 5, d = 2 take 0.75 ms (`rows_last` 0.91),
    k = 3, d = 1 0.27 (0.57), k = 4, d = 3 the same, k = 10, d = 2 1.7 (1.5); compiling 0.2 s more.
    Looked at once, on a busy machine.
    """
    sums = theta.n_components * likelihood.n_sums(theta.n_features)
    if on_gpu():
        return sums <= likelihood.MOST_SUMS
    many = tiles.shape[0] * tiles.shape[1] >= rows_at_once(theta.n_features)
    return many and sums <= likelihood.FEW_SUMS


def tile_log_density(theta: Mixture, rows: Rows, owner: Array) -> Float[Array, "tiles m"]:
    """Log-density of the rows of every tile under the mixture of its fit."""
    take = lambda tree: jax.tree.map(lambda part: part[owner], tree)
    if theta.n_features <= UNROLLED and not theta.is_mixed:
        return likelihood.log_density_rows_last(take(theta), rows)
    joint = log_joint(take(theta), rows, take(inverse_cholesky(theta.covariances)))
    return jax.nn.logsumexp(joint, axis=-1)


def rows_at_once(n_features: int) -> int:
    """Rows, by tile, in one call: what a CPU's cache or a GPU's memory holds."""
    if on_gpu():
        return 1 << 25
    return 1 << (15 if n_features <= UNROLLED else 13)


def edges_at_once() -> int:
    """Edges whose ends are fitted together: what memory holds several mixtures for."""
    return 1 << 20 if on_gpu() else 4096 * calls_at_once()


def nodes_at_once() -> int:
    """Nodes that work at home together: enough for several calls on every core."""
    return 1 << 20 if on_gpu() else 2048 * calls_at_once()


def calls_at_once() -> int:
    """Calls that run side by side: as many as cores, or as NPROC says; one on a GPU."""
    return 1 if on_gpu() else own_cores()


def nll_and_gradient(
    theta: Mixture, rows: Rows | IncompleteRows, row_weights: RowWeights
) -> tuple[PerNode, Mixture]:
    """Weighted negative log-likelihood of every node and its gradient, in closed form."""
    whole = not isinstance(rows, IncompleteRows)
    if whole and rows.shape[1] <= ROW_CHUNK and _likelihood_on_gpu(theta):
        from fedmixtures.kernels.gpu.likelihood import GpuRows, nll_gpu

        return nll_gpu(theta, GpuRows.of(rows, row_weights))
    return nll_of_statistics(theta, statistics(theta, rows, row_weights))


def nll_of_statistics(theta: Mixture, s: Statistics) -> tuple[PerNode, Mixture]:
    """Negative log-likelihood and gradient, from statistics already taken under `theta`."""
    few = theta.n_features <= UNROLLED
    gradient = (likelihood.gradient_by_entries if few else plain_gradient)(theta, s)
    return -s.log_likelihood, gradient


def _likelihood_on_gpu(theta: Mixture) -> bool:
    if theta.n_features > UNROLLED or not on_gpu():
        return False
    from fedmixtures.kernels.gpu.likelihood import trial

    return passes(trial, theta.n_components, theta.n_features, theta.means.dtype)


# The neighbours of a block's nodes, made ready for all local steps of a round ---------------------
# Each has `pull(own)`: the weighted sum of the discrepancy over the slots of every node, and its
# gradient in `own`.


def matched_mean(
    own: Mixture, neighbours: Mixture, weight: PerSlot, block_weights: Sequence[Any]
) -> matching.MatchedMean:
    """For eq. (3): the weighted mean of the neighbours, components matched to the node's own."""
    k, d = own.n_components, own.n_features
    if on_gpu() and d <= UNROLLED and k <= matching.WRITTEN_OUT:
        from fedmixtures.kernels.gpu.matching import matched_mean_gpu, trial

        if passes(trial, k, d, own.means.dtype):
            return matched_mean_gpu(own, neighbours, weight, block_weights)
    return matching.mean_of(matching.matched(own, neighbours, block_weights), weight, block_weights)


def drawn_points(own: Mixture, neighbours: Mixture, keys: SlotKeys, weight: PerSlot, n: int):
    """For eq. (4): `n` points of every neighbour as rows of the node."""
    k, d = own.n_components, own.n_features
    if on_gpu() and d <= UNROLLED:
        from fedmixtures.kernels.gpu.drawing import drawn_points_gpu, trial

        if passes(trial, k, d, own.means.dtype):
            return drawn_points_gpu(neighbours, keys, weight, n)
    return drawing.draw_points(neighbours, keys, weight, n)


def weighted_points(points, weights, constants, weight: PerSlot) -> drawing.NeighbourRows:
    """For eq. (4) on given points: `weights` of the points of each neighbour sum to one."""
    row_weights = weight[:, :, None] * weights
    return drawing.NeighbourRows(points, row_weights, (row_weights * constants).sum((-1, -2)))


def together(slots: int) -> int:
    """How many of the slots' rows are summed up at once."""
    many = slots > 2 * drawing.CHUNK_SLOTS and not on_gpu()
    return drawing.CHUNK_SLOTS if many else slots


def paired_atoms(
    own: Mixture,
    neighbours: Mixture,
    constants: Float[Array, "nodes s"],
    weight: PerSlot,
    bandwidths: Sequence[Any],
):
    """For eq. (5): the neighbours' components; `constants` are their own inner products."""
    constant = (weight * constants).sum(-1)
    if on_gpu():
        from fedmixtures.kernels.gpu.pair_sums import MOST_FEATURES, GpuAtoms, trial

        k, d = own.n_components, own.n_features
        if d <= MOST_FEATURES and passes(trial, k, d, own.means.dtype):
            return GpuAtoms.of(neighbours, weight, constant, bandwidths)
    return pair_sums.Atoms(neighbours, weight, constant, tuple(bandwidths))


def pair_sums_of_many_features(*args) -> pair_sums.Sums:
    """`pair_sums.atom_sums` beyond `UNROLLED` features."""
    many = pair_sums.by_factorisation if on_gpu() else pair_sums.by_elimination
    return many(*args)


# k-means -----------------------------------------------------------------------------------------


def lloyd(x, weights, centres) -> clustering.Clustering:
    """`clustering.lloyd` of all restarts of every node: `centres` lists them node after node."""
    k, d = centres.shape[1:]
    if on_gpu():
        from fedmixtures.kernels.gpu.clustering import MOST_NUMBERS, lloyd_gpu, trial

        if k * d <= MOST_NUMBERS and passes(trial, k, d, x.dtype):
            return lloyd_gpu(x, weights, centres)
    n_init = len(centres) // len(x)
    again = lambda part: jnp.repeat(part, n_init, axis=0)
    return clustering.lloyd(again(x), again(weights), centres)
