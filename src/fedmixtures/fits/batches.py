"""Fits in batches of one shape: which tiles each is made from, how batches are cut and joined."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from fedmixtures._types import Array
from fedmixtures.kernels import dispatch
from fedmixtures.kernels.arrays import Segments
from fedmixtures.kernels.compiling import jit
from fedmixtures.kernels.dispatch import calls_at_once, rows_at_once
from fedmixtures.mixture.arithmetic import precision

ALL = -1
"""`leave` of a fit that leaves out no fold."""


class Tiles(eqx.Module):
    """Rows of all nodes, tile by tile; the points of released mixtures behind them."""

    x: Array
    """(tiles, rows, features)."""
    count: Array
    """(tiles, rows), zero for padding."""
    fold: Array
    """(tiles, rows)."""
    observed: Array | None = None
    """(tiles, segments, features) which cells the rows of a segment have; None where all have."""
    per_fit: int = eqx.field(static=True, default=1)
    """Tiles of a fit, on average, as a power of two."""

    @property
    def at_once(self) -> tuple[int, int]:
        """Tiles and fits in one call, at most: no more than a few times all there are.

        Calls cost more on a GPU, what fills them up costs more on a CPU.
        """
        times = 8 if dispatch.on_gpu() else 2
        tiles = max(16, rows_at_once(self.x.shape[2]) // self.count.shape[1])
        tiles = min(tiles, times * len(self.count))
        return tiles, max(1, tiles // self.per_fit)


class Work(eqx.Module):
    """Which tiles each of a batch of fits is made from."""

    tile: Array
    """(entries,) line of `Tiles`."""
    owner: Array
    """(entries,) number of the fit."""
    leave: Array
    """(entries,) fold to leave out."""
    scale: Array
    """(entries,) factor of the counts; zero for padding."""
    number: Array
    """(entries,) number of the entry within its fit."""
    doublings: int | None = eqx.field(static=True, default=None)
    """No fit has more than 2^doublings entries; None: sums do without it."""


class Batch(NamedTuple):
    """Some fits that run together, and their entries."""

    fits: slice
    entries: slice
    room: int
    """For entries, in the program."""


@dataclass(frozen=True)
class Entries:
    """Which tiles any number of fits are made from; entries of a fit stand together."""

    tile: Array
    owner: Array
    leave: Array
    scale: Array
    n_fits: int
    size: np.ndarray | int
    """(fits,) entries of each; a number if all have as many."""

    @cached_property
    def by_fit(self) -> Segments:
        """Where the entries of each fit stand."""
        return Segments(np.cumsum(self.size) - self.size, len(self.owner))

    @property
    def most(self) -> int:
        """Entries of the largest fit."""
        return int(np.max(self.size, initial=1))

    def sums(self, by_entry: Array) -> Any:
        """The sum over the entries of every fit."""
        if isinstance(by_entry, np.ndarray):
            return np.bincount(self.owner, by_entry, self.n_fits)
        if isinstance(self.size, int):
            return _equally_many(by_entry, self.size)
        return self.by_fit.sums(by_entry)

    def batches(self, at_once: tuple[int, int]) -> Iterator[Batch]:
        """Whole fits within these tiles and fits (more tiles only for a larger fit)."""
        most, fits = at_once
        equal = self.size if isinstance(self.size, int) else 0
        ends = np.cumsum(0 if equal else self.size)
        first, begin = 0, 0
        while first < self.n_fits:
            last = begin + most
            last = last // equal if equal else int(np.searchsorted(ends, last, side="right"))
            last = min(max(last, first + 1), first + fits, self.n_fits)
            here = slice(begin, last * equal if equal else int(ends[last - 1]))
            room = max(most, 1 << (here.stop - here.start - 1).bit_length())
            yield Batch(slice(first, last), here, room)
            first, begin = last, here.stop

    def work(self, batch: Batch, fits: int) -> Work:
        """The entries of a batch, filled up with such that count nothing (NumPy)."""
        here, first = batch.entries, batch.fits.start
        fill = batch.room - (here.stop - here.start)

        def pad(part, value):
            part = part[here]
            return np.append(part, np.full(fill, value, part.dtype)) if fill else part

        owner = pad(self.owner, first + fits - 1) - first
        number = np.arange(batch.room) - np.searchsorted(owner, owner)
        entry = pad(self.tile, 0), owner, pad(self.leave, ALL), pad(self.scale, 0.0)
        return Work(*entry, number.astype(np.uint32))


@partial(jax.jit, static_argnums=1)
def _equally_many(by_entry: Array, size: int) -> jax.Array:
    return by_entry.reshape(-1, size).sum(1)


def of_batches(
    program: jit, tiles: Tiles, entries: Entries, lines: tuple, *more: Any, by_entry: bool = False
) -> Any:
    """`program(tiles, work, *lines, *more)`, batch by batch: `lines` and results are by fit.

    With `by_entry` results are by entry. Every batch has the same shape, filled up. On a CPU the
    first compiles, the others share the cores; on a GPU all that is cut and joined stays there.
    """
    fits, batches = tiles.at_once[1], list(entries.batches(tiles.at_once))
    on_device = dispatch.keeps_on_device()
    workers = 1 if on_device else calls_at_once()
    device = getattr(jax.config, "jax_default_device", None)
    cut = _cut_on_device(tiles, entries, lines, fits) if on_device else _cut(entries, lines, fits)
    size = lambda part: part.stop - part.start
    n = [size(batch.entries if by_entry else batch.fits) for batch in batches]

    def call(batch: Batch) -> Any:
        work, given = cut(batch)
        with precision(str(tiles.x.dtype)), jax.default_device(device):  # unknown to a new thread
            out = program(tiles, work, *given, *more)
        return out if on_device else jax.tree.map(np.asarray, out)

    found = [call(batches[0])]
    if workers == 1:
        found += map(call, batches[1:])
    elif len(batches) > 1:
        with ThreadPoolExecutor(workers) as pool:
            found += pool.map(call, batches[1:])
    return _joined(found, n)


def _joined(found: list[Any], n: list[int]) -> Any:
    """The first lines of each, as many as said."""
    if isinstance(jax.tree.leaves(found[0])[0], np.ndarray):
        cut = [
            jax.tree.map(lambda part, i=i: part[:i], tree) for tree, i in zip(found, n, strict=True)
        ]
        return jax.tree.map(lambda *parts: np.concatenate(parts), *cut)
    width = [len(jax.tree.leaves(part)[0]) for part in found]
    if n[:-1] == width[:-1]:
        return _concatenated(found, None, sum(n))
    begin = np.cumsum(width) - width
    here = [b + np.arange(i) for b, i in zip(begin, n, strict=True)]
    return _concatenated(found, np.concatenate(here), sum(n))


@partial(jax.jit, static_argnums=2)
def _concatenated(parts: list[Any], here: Array | None, n: int) -> Any:
    """All lines, then those at `here`, or the first `n` of them."""
    cut = lambda part: part[:n] if here is None else part[here]
    return jax.tree.map(lambda *lines: cut(jnp.concatenate(lines)), *parts)


def _cut(entries: Entries, lines: tuple, fits: int) -> Callable[[Batch], tuple[Work, Any]]:
    """Cuts out the work of a batch, and its lines, filled up with copies of the first."""

    def of(part, here):
        part = part[here]
        fill = fits - len(part)
        return np.concatenate([part, np.repeat(part[:1], fill, axis=0)]) if fill else part

    def cut(batch):
        given = jax.tree.map(lambda part: of(part, batch.fits), lines)
        return entries.work(batch, fits), given

    return cut


def _cut_on_device(
    tiles: Tiles, entries: Entries, lines: tuple, fits: int
) -> Callable[[Batch], tuple[Work, Any]]:
    """Cuts out the work of a batch, and its lines, on the device."""
    table = entries.tile, entries.owner, entries.leave, entries.scale
    doublings = (entries.most - 1).bit_length()

    def cut(batch):
        here = batch.entries
        place = np.int32(batch.fits.start), np.int64(here.start), np.int64(here.stop)
        *work, given = _at_place(table, lines, *place, batch.room, fits, str(tiles.x.dtype))
        return Work(*work, doublings=doublings), given

    return cut


@partial(jax.jit, static_argnums=(5, 6, 7))
def _at_place(table, lines, first, begin, end, room: int, fits: int, dtype: str):
    place = begin + jnp.arange(room)
    there, at = place < end, jnp.minimum(place, end - 1)
    tile, owner, leave, scale = (part[at] for part in table)
    owner = jnp.where(there, owner - first, fits - 1)
    entry = jnp.arange(room)
    new = jnp.concatenate([jnp.ones(1, bool), owner[1:] != owner[:-1]])
    number = entry - jax.lax.cummax(jnp.where(new, entry, 0))
    scale = jnp.where(there, scale, 0.0).astype(dtype)
    last = lambda part: jnp.minimum(first + jnp.arange(fits), len(part) - 1)
    given = jax.tree.map(lambda part: part[last(part)], lines)
    tile, leave = jnp.where(there, tile, 0), jnp.where(there, leave, ALL)
    return tile, owner, leave, scale, number.astype(jnp.uint32), given
