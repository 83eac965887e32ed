"""Arrays of a whole network: NumPy's on a CPU, the device's own on a GPU.

Code that is written with `xp` serves both: on a CPU nothing is compiled for it, on a GPU nothing
goes back to the host between two programs. What the two name differently has a function here. Sums
on a GPU add in one order, so that the same seed gives the same numbers: no atomic additions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from fedmixtures._ties import margin
from fedmixtures._types import Array
from fedmixtures.kernels import dispatch
from fedmixtures.mixture.arithmetic import precision


class _Namespace:
    """The functions of NumPy, or of JAX where arrays stay on the device."""

    def __getattr__(self, name: str) -> Any:
        return getattr(jnp if dispatch.keeps_on_device() else np, name)


xp: Any = _Namespace()
MOST_LINES = 0.9
"""Share of the lines from which on all are worked on: see `worth_selecting`."""

Tree = TypeVar("Tree")
"""A pytree of arrays."""


@contextmanager
def numpy_rules(dtype: str) -> Iterator[None]:
    """What is written with `xp` follows NumPy's rules: shapes are stretched, labels have 64 bits.

    Programs that compute in `dtype` say so themselves where arrays stay on the device.
    """
    if dispatch.keeps_on_device():
        with precision("float64"), jax.numpy_rank_promotion("allow"):
            yield
    else:
        with precision(dtype):
            yield


def jit_on_gpu(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """`function`, written with `xp`, as one program where arrays stay on the device."""
    program = jax.jit(function, **options)

    @wraps(function)
    def call(*args: Any) -> Any:
        return (program if dispatch.keeps_on_device() else function)(*args)

    return call


def at(tree: Tree, index: Any) -> Tree:
    """The lines `index` of every array, as one program."""
    if isinstance(index, slice):
        return _slice(tree, index.start or 0, index.stop)
    return _at(tree, index)


@jit_on_gpu
def _at(tree: Any, index: Any) -> Any:
    return jax.tree.map(lambda part: xp.asarray(part)[index], tree)


@partial(jit_on_gpu, static_argnums=(1, 2))
def _slice(tree: Any, first: int, end: int | None) -> Any:
    return jax.tree.map(lambda part: xp.asarray(part)[first:end], tree)


@jit_on_gpu
def where(condition: Array, one: Any, other: Any) -> Any:
    """Line by line `one` where the condition holds, else `other`."""
    wide = lambda part: condition.reshape(-1, *(1,) * (part.ndim - 1))
    return jax.tree.map(lambda a, b: xp.where(wide(a), a, b), one, other)


@jit_on_gpu
def pick(best: Array, trees: list[Any]) -> Any:
    """Line by line that of the tree with the number `best`."""
    found = trees[0]
    for number, tree in enumerate(trees[1:], 1):
        found = where(best == number, tree, found)
    return found


@jit_on_gpu
def stacked(trees: list[Any]) -> Any:
    """Arrays one above the other."""
    return jax.tree.map(lambda *parts: xp.stack(parts), *trees)


@partial(jit_on_gpu, static_argnums=1)
def repeated(tree: Tree, times: int) -> Tree:
    """(lines, times, ...): every line several times."""
    return jax.tree.map(lambda part: xp.repeat(part[:, None], times, axis=1), tree)


class Segments(eqx.Module):
    """Consecutive lines that belong together: the rows of a node, the members of a group."""

    first: Array
    end: Array | None
    """(lines,) where the segment of each line ends; None if all have the same length."""
    n: int = eqx.field(static=True)
    """Lines."""
    length: int = eqx.field(static=True)
    """Of all, if it is the same."""

    def __init__(self, first: np.ndarray, n: int):
        """Segments begin at `first` (ascending, none empty) and reach to line `n`."""
        length = np.diff(first, append=n)
        equal = len(length) > 0 and (length == length[0]).all()
        self.length = int(length[0]) if equal else 0
        self.n, self.first, self.end = n, xp.asarray(first), None
        if dispatch.keeps_on_device() and not equal:
            self.end = jnp.asarray(np.repeat(first + length, length))

    def number(self) -> Any:
        """Of the segment that each line belongs to."""
        if not dispatch.keeps_on_device():
            return np.repeat(np.arange(len(self.first)), np.diff(self.first, append=self.n))
        return _numbered(self.first, self.n)

    def sums(self, values: Array, dtype: Any = None) -> Any:
        """The sum of every segment."""
        if not isinstance(values, jax.Array):
            return np.add.reduceat(values, self.first, axis=0, dtype=dtype)
        return _summed_by_segment(self, values, dtype)


@partial(jax.jit, static_argnums=1)
def _numbered(first: jax.Array, n: int) -> jax.Array:
    return jnp.cumsum(jnp.zeros(n, jnp.int32).at[first].set(1)) - 1


@partial(jax.jit, static_argnums=2)
def _summed_by_segment(segments: Segments, values: jax.Array, dtype: Any) -> jax.Array:
    values = values if dtype is None else values.astype(dtype)
    if segments.end is None:
        return values.reshape(-1, segments.length, *values.shape[1:]).sum(1)
    return segment_sums(values, segments.end)[segments.first]


def segment_sums(
    values: Array, end: Array, doublings: int | None = None, join: Any = jnp.add, nothing: Any = 0
) -> jax.Array:
    """For every line the sum from there to the end of its segment, or what else `join` makes.

    `end` (lines,) is where the segment of each line ends. Each pass adds the sum of as many lines
    again: an order that nothing else changes. There are as many passes as the longest segment
    needs, or `doublings` that are written out: quicker where they are few, and a program of its own
    for every number of them.
    """
    values, line = jnp.asarray(values), jnp.arange(len(values))

    def add(values: jax.Array, step: Any) -> jax.Array:
        there = (line + step < end).reshape(-1, *(1,) * (values.ndim - 1))
        if isinstance(step, int):
            other = jnp.roll(values, -step, axis=0)
        else:
            other = values[jnp.minimum(line + step, len(line) - 1)]
        return join(values, jnp.where(there, other, nothing))

    if doublings is not None:
        for power in range(doublings):
            values = add(values, 1 << power)
        return values
    longest = (end - line).max(initial=1)
    double = lambda carry: (add(*carry), 2 * carry[1])
    begin = values, jnp.ones((), line.dtype)
    return jax.lax.while_loop(lambda carry: carry[1] < longest, double, begin)[0]


def owner_sums(owner: Array, n: int, doublings: int | None) -> Callable[[Array], jax.Array]:
    """What sums lines over each of `n` owners (sorted).

    On a GPU by doubling, since its scatters add in any order: see `segment_sums`. An owner of no
    line has any number there.
    """
    if doublings is None:
        return lambda part: jax.ops.segment_sum(part, owner, n, indices_are_sorted=True)
    return _by_doubling(owner, n, doublings, jnp.add, 0)


def owner_least(owner: Array, n: int, doublings: int | None) -> Callable[[Array], jax.Array]:
    """What takes the least of lines over each of `n` owners (sorted)."""
    if doublings is None:
        return lambda part: jax.ops.segment_min(part, owner, n, indices_are_sorted=True)
    return _by_doubling(owner, n, doublings, jnp.minimum, jnp.inf)


def _by_doubling(owner, n: int, doublings: int, join, nothing) -> Callable[[Array], jax.Array]:
    first = jnp.searchsorted(owner, jnp.arange(n, dtype=owner.dtype))
    line = jnp.arange(len(owner))
    last = jnp.concatenate([owner[1:] != owner[:-1], jnp.ones(1, bool)])
    end = jax.lax.cummin(jnp.where(last, line + 1, len(owner)), reverse=True)
    place = jnp.minimum(first, len(owner) - 1)
    return lambda part: segment_sums(part, end, doublings, join, nothing)[place]


def in_order_of(*keys: Array) -> Any:
    """`numpy.lexsort`: the last key counts most, what is equal stays as it stands.

    On a device key by key: sorts by one whole number are ready-made there, others are compiled for
    seconds.
    """
    if not dispatch.keeps_on_device():
        return np.lexsort(keys)
    order = np.arange(len(keys[0]), dtype=np.int32)
    for key in keys:
        order = _then_by(order, key)
    return order


@jax.jit
def _then_by(order: Array, key: Array) -> jax.Array:
    bits = _ascending(jnp.asarray(key))[order]
    return jax.lax.sort((bits, jnp.asarray(order)), num_keys=1, is_stable=True)[1]


def _ascending(key: jax.Array) -> jax.Array:
    """Whole numbers without a sign, in the same order; what is no number comes last."""
    kind, size = key.dtype.kind, 8 * key.dtype.itemsize
    if kind == "u":
        return key
    unsigned, signed = (jnp.dtype(f"{name}{size}") for name in ("uint", "int"))
    if kind == "f":
        # One zero, and one that is no number; a compiler would leave out an added zero.
        key = jnp.where(jnp.isnan(key), jnp.nan, jnp.where(key == 0, 0.0, key))
        key = jax.lax.bitcast_convert_type(key, signed)
        key = jnp.where(key < 0, key ^ jnp.iinfo(signed).max, key)
    return jax.lax.bitcast_convert_type(key, unsigned) ^ unsigned.type(1 << (size - 1))


def repeat_lines(lines: Array, times: Array, total: int) -> Any:
    """`numpy.repeat` to `total` lines."""
    if dispatch.keeps_on_device():
        return jnp.repeat(lines, times, total_repeat_length=total)
    return np.repeat(lines, times)


def counted(index: Array, n: int) -> np.ndarray:
    """How often each number below `n` stands in `index`, on the host."""
    if isinstance(index, jax.Array):
        return np.asarray(_counted(index, n))
    return np.bincount(index, minlength=n)


_counted = jax.jit(lambda index, n: jnp.bincount(index, length=n), static_argnums=1)


def tally(flags: Array, index: Array, n: int) -> Any:
    """How many of the flags that belong to each number below `n` are set."""
    if dispatch.keeps_on_device():
        return jnp.zeros(n, jnp.int32).at[index].add(flags)
    return np.bincount(index, flags, n)


def lines_with(flags: Array) -> Any:
    """`numpy.flatnonzero`."""
    if dispatch.keeps_on_device():
        return _lines_with(flags, int(_how_many(flags)))
    return np.flatnonzero(flags)


_how_many = jax.jit(jnp.count_nonzero)


@partial(jax.jit, static_argnums=1)
def _lines_with(flags: jax.Array, n: int) -> jax.Array:
    return jnp.flatnonzero(flags, size=n)


def worth_selecting(flags: np.ndarray) -> np.ndarray:
    """The lines with a flag; all where most have one, since a copy would cost more than it saves.

    On a device always all, since every other length is another program.
    """
    return np.flatnonzero(flags | (flags.mean() > MOST_LINES) | dispatch.keeps_on_device())


def with_either(flags: Array, index: Array, more: Array) -> Any:
    """A copy of `flags`, true also where a line of `more` that belongs to it is."""
    if dispatch.keeps_on_device():
        return _scattered_max(flags, index, more)
    flags = np.array(flags)
    np.logical_or.at(flags, index, more)
    return flags


def placed(n: int, place: Array, values: Array, fill: Any, dtype: Any) -> Any:
    """`n` lines of `fill`, with `values` at the lines `place`."""
    if dispatch.keeps_on_device():
        return _placed(n, place, values, fill, np.dtype(dtype))
    table = np.full((n, *values.shape[1:]), fill, dtype)
    table[place] = values
    return table


def replaced(array: Array, index: Any, lines: Array) -> Any:
    """A copy with other lines at `index`."""
    if dispatch.keeps_on_device():
        return _scattered(array, index, lines)
    array = np.array(array)
    array[index] = lines
    return array


@partial(jax.jit, static_argnums=(0, 3, 4))
def _placed(n, place, values, fill, dtype):
    table = jnp.full((n, *values.shape[1:]), fill, dtype)
    return table.at[place].set(values.astype(dtype))


@jax.jit
def _scattered(array, index, lines):
    array = jnp.asarray(array)
    return array.at[index].set(lines.astype(array.dtype))


@jax.jit
def _scattered_max(array, index, lines):
    return jnp.asarray(array).at[index].max(lines)


def most_voted(receiver: Array, heard: Array, weight: Array, label: Array) -> Any:
    """For every node the label with the largest weight among those heard; of equals the smallest.

    Votes of weight zero do not count; who has no other keeps its own `label`.
    """
    if dispatch.keeps_on_device():
        order = in_order_of(heard, receiver)
        return _most_voted_on_device(order, receiver, heard, weight, label)
    if not weight.any():
        return label
    order = in_order_of(heard, receiver)
    node, name, weight = receiver[order], heard[order], weight[order]
    first = np.flatnonzero(np.r_[True, (np.diff(node) != 0) | (np.diff(name) != 0)])
    votes, node, name = np.add.reduceat(weight, first), node[first], name[first]
    most = np.zeros(len(label))
    np.maximum.at(most, node, votes)
    winner = (votes >= most[node] * (1 - margin(votes.dtype))) & (votes > 0)
    found = label.copy()
    place = np.flatnonzero(winner)[::-1]  # the smallest is written last
    found[node[place]] = name[place]
    return found


@jax.jit
def _most_voted_on_device(order, receiver, heard, weight, label):
    """`most_voted` without a length that depends on the votes."""
    node, name, weight = receiver[order], heard[order], weight[order]
    line, n = jnp.arange(len(node)), len(node)
    new = jnp.concatenate([jnp.ones(1, bool), (node[1:] != node[:-1]) | (name[1:] != name[:-1])])
    last = jnp.concatenate([new[1:], jnp.ones(1, bool)])
    end = jax.lax.cummin(jnp.where(last, line + 1, n), reverse=True)
    votes = jnp.where(new, segment_sums(weight, end), 0.0)
    most = jax.ops.segment_max(votes, node, len(label), indices_are_sorted=True)
    winner = (votes >= most[node] * (1 - margin(votes.dtype))) & (votes > 0)
    none = jnp.iinfo(label.dtype).max
    least = jax.ops.segment_min(jnp.where(winner, name, none), node, len(label))
    return jnp.where(least < none, least, label)
