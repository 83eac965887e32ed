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
from jaxtyping import Float

from fedmixtures._types import Array, PerSlot
from fedmixtures.discrepancy.mmd_kernels import Sums, atom_sums
from fedmixtures.discrepancy.mmd_pairs_gpu import any_features, two_features
from fedmixtures.mixture import tiles_gpu
from fedmixtures.mixture.linear import lower_triangle
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.tiles_gpu import TILE, nodes_last
from fedmixtures.mixture.trial import compare, some_mixtures

MOST_FEATURES = 10
"""A thread's registers hold no larger matrix."""
SIDE_BY_SIDE = 8
"""Up to so many components of a neighbour are written out one after another."""


class GpuAtoms(eqx.Module):
    """Neighbours as the kernel reads them, laid out once per round: (slots * k, fields, nodes)."""

    fields: Float[Array, "atoms fields nodes"]

    @classmethod
    def of(cls, neighbours: Mixture) -> GpuAtoms:
        """Mixtures (nodes, slots, k, ...) with the node axis last, padded to whole tiles."""
        stacked = _stacked(neighbours)
        return cls(stacked.reshape(-1, *stacked.shape[-2:]))


def atom_sums_gpu(
    own: Mixture, atoms: GpuAtoms, weight: PerSlot, bandwidths, *, interpret: bool = False
) -> Sums:
    """`mmd_kernels.atom_sums` on a GPU: `weight` is that of the edges, positive."""
    nodes = len(weight)
    k, d, dtype = own.n_components, own.n_features, own.means.dtype
    sigmas = jnp.stack([jnp.asarray(sigma, dtype) for sigma in bandwidths])
    # Every program reads all components of its nodes: turned about once they are read quickly.
    fields = _stacked(own)
    per_node = [tiles_gpu.whole_tiles(part) for part in (weight, tiles_gpu.in_use(weight))]
    of_one = lambda part: pl.BlockSpec(
        (TILE, 1, *part.shape[2:]), lambda c, i: (i, c, *[0] * (part.ndim - 2))
    )
    places = len(per_node[0])
    shapes = [(places, k), (places, k), (places, k, d), (places, k, d, d)]
    results = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    sums = pl.pallas_call(
        partial(_kernel, k=k, d=d),
        grid=(k, places // TILE),
        in_specs=[
            pl.BlockSpec((len(bandwidths),), lambda c, i: (0,)),
            pl.BlockSpec((1, fields.shape[1], TILE), lambda c, i: (c, 0, i)),
            tiles_gpu.trailing(fields),
            *map(tiles_gpu.leading, per_node),
            tiles_gpu.trailing(atoms.fields),
        ],
        out_specs=list(map(of_one, results)),
        out_shape=results,
        **tiles_gpu.options(interpret),
    )(sigmas, fields, fields, *per_node, atoms.fields)
    return tuple(part[:nodes] for part in sums)


def trial(k: int, d: int, dtype: str, interpret: bool = False) -> None:
    """See `mixture.trial`."""
    rng = np.random.default_rng(0)
    weight = rng.uniform(size=(TILE, 3)).astype(dtype)
    weight[: TILE // 2, 1:] = 0
    own, neighbours = (some_mixtures(rng, dtype, TILE, *s, k, d) for s in ((), (3,)))
    bandwidths = (0.5, 2.0)

    def kernel(own, neighbours, weight):
        atoms = GpuAtoms.of(neighbours)
        return atom_sums_gpu(own, atoms, weight, bandwidths, interpret=interpret)

    def plain(own, neighbours, weight):
        atoms = jax.tree.map(lambda a, b: jnp.concatenate([a[:, None], b], 1), own, neighbours)
        factors = jnp.concatenate([weight.sum(-1)[:, None], -weight], axis=1)
        return atom_sums(own, atoms, factors, bandwidths)

    compare(kernel, plain, dtype, own, neighbours, weight)


def _stacked(mixture: Mixture) -> jax.Array:
    """Weight, means, lower triangle of the covariance: (..., k, fields, nodes), whole tiles."""
    d = mixture.n_features
    triangle = [entry for row in lower_triangle(mixture.covariances) for entry in row]
    fields = [mixture.weights, *(mixture.means[..., i] for i in range(d)), *triangle]
    return jnp.stack([nodes_last(field) for field in fields], axis=-2)


def _kernel(sigma_ref, mine_ref, own_ref, weight_ref, in_use_ref, atom_ref, *out_refs, k, d):
    """Sums of one component for one tile of nodes; every value below is a vector over the tile."""
    n_fields = mine_ref.shape[1]
    mine = [mine_ref[0, f, :] for f in range(1, n_fields)]
    zero = jnp.zeros_like(mine[0])
    in_use = in_use_ref[...].max()
    degree = jax.lax.fori_loop(0, in_use, lambda slot, total: total + weight_ref[:, slot], zero)
    start = [zero] * n_fields
    read = lambda ref, a: [ref[a, f, :] for f in range(n_fields)]

    def one_atom(a, totals):
        """Own components come first, then those of the neighbours: one body to compile."""
        before, here = totals
        is_own = a < k
        place = jnp.maximum(a - k, 0)
        both = zip(read(own_ref, jnp.minimum(a, k - 1)), read(atom_ref, place), strict=True)
        atom = [jnp.where(is_own, x, y) for x, y in both]
        edge = jnp.where(is_own, degree, -weight_ref[:, place // k])
        after = any_features(here, mine, atom[1:], edge * atom[0], sigma_ref)
        return jnp.where(is_own, after[0], before), after

    def one_own(a, totals):
        atom = read(own_ref, a)
        return two_features(totals, mine, atom[1:], degree * atom[0], sigma_ref)

    def one_slot(slot, totals):
        """All components of a neighbour: the later ones are read while the first is worked on."""
        edge = -weight_ref[:, slot]

        def one_neighbour(e, totals):
            atom = read(atom_ref, slot * k + e)
            return two_features(totals, mine, atom[1:], edge * atom[0], sigma_ref)

        return jax.lax.fori_loop(0, k, one_neighbour, totals, unroll=k <= SIDE_BY_SIDE)

    if d == 2:  # two loops are quicker; where the body is long, compiling it twice is not
        totals = jax.lax.fori_loop(0, k, one_own, start)
        own_kernels = totals[0]
        totals = jax.lax.fori_loop(0, in_use, one_slot, totals)
    else:
        own_kernels, totals = jax.lax.fori_loop(0, k + k * in_use, one_atom, (zero, start))
    _write(out_refs, own_kernels, totals, d)


def _write(out_refs, own_kernels, totals, d: int) -> None:
    own_ref, other_ref, means_ref, covariances_ref = out_refs
    own_ref[:, 0] = own_kernels
    other_ref[:, 0] = totals[0] - own_kernels
    for i in range(d):
        means_ref[:, 0, i] = totals[1 + i]
    entries = iter(totals[1 + d :])
    for i in range(d):
        for j in range(i + 1):
            half = 0.5 * next(entries)
            covariances_ref[:, 0, i, j] = half
            if i != j:
                covariances_ref[:, 0, j, i] = half
