r"""The MMD pair sums as one GPU kernel (Pallas): no pair is ever written to memory.

A thread holds one component of a receiving node in registers and streams its neighbours' components
past it. The loop over slots ends at the largest degree of the tile, so that nodes sorted by degree
waste little. Same sums as `mmd_kernels`, which explains them; `interpret=True` runs it on any
machine.
"""

from __future__ import annotations

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jaxtyping import Float, Int

from fedmixtures._types import Array, PerSlot
from fedmixtures.discrepancy.mmd_kernels import Sums, atom_sums
from fedmixtures.discrepancy.mmd_pairs_gpu import any_features, band_table, two_features
from fedmixtures.mixture import tiles_gpu
from fedmixtures.mixture.linear import lower_triangle, symmetric
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.tiles_gpu import TILE, nodes_last
from fedmixtures.mixture.trial import compare, some_mixtures

MOST_FEATURES = 10
"""A thread's registers hold no larger matrix."""


class GpuAtoms(eqx.Module):
    """Neighbours as the kernel reads them, laid out once per round, nodes last in whole tiles."""

    fields: Float[Array, "numbers places"]
    """Weight, mean and lower triangle of the covariance, component after component."""
    factors: Float[Array, "slots places"] | None = None
    """The sum of a node's edge weights, then each of them, negative."""
    in_use: Int[Array, " places"] | None = None
    """Slots of each node."""

    @classmethod
    def of(cls, neighbours: Mixture) -> GpuAtoms:
        """Mixtures (nodes, slots, k, ...)."""
        return cls(_fields(neighbours))

    def weighed(self, weight: PerSlot) -> GpuAtoms:
        """With what the kernel needs of the weights of the edges, which are positive."""
        if self.factors is not None:
            return self
        factors = jnp.concatenate([weight.sum(-1)[:, None], -weight], axis=1)
        return GpuAtoms(self.fields, nodes_last(factors), nodes_last(tiles_gpu.in_use(weight)))


def atom_sums_gpu(own: Mixture, atoms: GpuAtoms, bandwidths, *, interpret: bool = False) -> Sums:
    """`mmd_kernels.atom_sums` on a GPU, of neighbours that are `weighed`."""
    nodes, k, d = own.means.shape
    dtype = own.means.dtype
    # Every program reads all components of its nodes: turned about once they are read quickly.
    mine = _fields(own)
    others = atoms.fields if d == 2 else jnp.concatenate([mine, atoms.fields])
    arrays = (mine, others, atoms.factors, atoms.in_use)
    # Few numbers are written where they belong; of many only one half, to save compiling.
    widths = [1, 1, d, d * d if d == 2 else d * (d + 1) // 2]
    places = mine.shape[-1]
    sums = pl.pallas_call(
        partial(_kernel, k=k, d=d, functions=tiles_gpu.functions(dtype, interpret)),
        grid=(k, places // TILE),
        in_specs=[
            pl.BlockSpec((3, len(bandwidths)), lambda c, i: (0, 0)),
            pl.BlockSpec((len(mine) // k, TILE), lambda c, i: (c, i)),
            *map(tiles_gpu.trailing, arrays),
        ],
        out_specs=[pl.BlockSpec((TILE, width), lambda c, i: (i, c)) for width in widths],
        out_shape=[jax.ShapeDtypeStruct((places, k * width), dtype) for width in widths],
        **tiles_gpu.options(interpret),
    )(band_table(bandwidths, dtype), mine, *arrays)
    own_kernels, neighbour_kernels, means, covariances = (part[:nodes] for part in sums)
    if d != 2:
        entries = iter(jnp.moveaxis(covariances.reshape(nodes, k, -1), -1, 0))
        covariances = symmetric([[next(entries) for _ in range(i + 1)] for i in range(d)])
    shape = own.means.shape
    return own_kernels, neighbour_kernels, means.reshape(shape), covariances.reshape(*shape, d)


def trial(k: int, d: int, dtype: str, interpret: bool = False) -> None:
    """See `mixture.trial`."""
    rng = np.random.default_rng(0)
    weight = rng.uniform(size=(TILE, 3)).astype(dtype)
    weight[: TILE // 2, 1:] = 0
    own, neighbours = (some_mixtures(rng, dtype, TILE, *s, k, d) for s in ((), (3,)))
    bandwidths = (0.5, 2.0)

    def kernel(own, neighbours, weight):
        atoms = GpuAtoms.of(neighbours).weighed(weight)
        return atom_sums_gpu(own, atoms, bandwidths, interpret=interpret)

    def plain(own, neighbours, weight):
        atoms = jax.tree.map(lambda a, b: jnp.concatenate([a[:, None], b], 1), own, neighbours)
        factors = jnp.concatenate([weight.sum(-1)[:, None], -weight], axis=1)
        return atom_sums(own, atoms, factors, bandwidths)

    compare(kernel, plain, dtype, own, neighbours, weight)


def _fields(mixture: Mixture) -> jax.Array:
    """Weight, mean and lower triangle of the covariance of all components, nodes last."""
    triangle = [entry for row in lower_triangle(mixture.covariances) for entry in row]
    weights, triangle = mixture.weights[..., None], jnp.stack(triangle, axis=-1)
    packed = jnp.concatenate([weights, mixture.means, triangle], axis=-1)
    return nodes_last(packed.reshape(len(packed), -1))


def _kernel(
    band_ref, mine_ref, own_ref, atom_ref, factor_ref, in_use_ref, *out_refs, k, d, functions
):
    """Sums of one component for one tile of nodes; every value below is a vector over the tile."""
    n_fields = len(mine_ref)
    mine = [mine_ref[f, :] for f in range(1, n_fields)]
    zero = jnp.zeros_like(mine[0])
    start = [zero] * n_fields
    in_use = in_use_ref[...].max()
    read = lambda ref, a: [ref[a * n_fields + f, :] for f in range(n_fields)]

    def one_atom(a, totals):
        """Own components come first, then those of the neighbours: one body to compile."""
        before, here = totals
        weight, *atom = read(atom_ref, a)
        factor = factor_ref[jax.lax.div(a, np.int32(k)), :] * weight
        after = any_features(here, mine, atom, factor, band_ref, functions)
        return jnp.where(a < k, after[0], before), after

    def one_node(ref, first, edge, totals):
        def one_component(e, totals):
            weight, *atom = read(ref, first + e)
            return two_features(totals, mine, atom, edge * weight, bands, functions)

        return jax.lax.fori_loop(0, k, one_component, totals)

    def one_slot(slot, totals):
        return one_node(atom_ref, slot * k, factor_ref[slot + 1, :], totals)

    if d == 2:  # two loops are quicker; where the body is long, compiling it twice is not
        bands = [(band_ref[1, b], band_ref[2, b]) for b in range(band_ref.shape[1])]
        totals = one_node(own_ref, 0, factor_ref[0, :], start)
        own_kernels = totals[0]
        totals = jax.lax.fori_loop(0, in_use, one_slot, totals)
    else:
        own_kernels, totals = jax.lax.fori_loop(0, k + k * in_use, one_atom, (zero, start))
    own_out, other_out, means_out, covariances_out = out_refs
    own_out[:, 0] = own_kernels
    other_out[:, 0] = totals[0] - own_kernels
    for i in range(d):
        means_out[:, i] = totals[1 + i]
    entries = totals[1 + d :]
    written = [entries[i] for i in (0, 1, 1, 2)] if d == 2 else entries
    for i, entry in enumerate(written):
        covariances_out[:, i] = 0.5 * entry
