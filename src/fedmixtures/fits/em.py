r"""One fit for all steps of a method: MAP expectation maximisation of a batch of mixtures on tiles.

The step is `mixture.m_step`, with the rows of others as extra_mass-data.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from fedmixtures._ties import first_greatest
from fedmixtures._types import Array
from fedmixtures.fits.batches import Entries, Tiles, Work, of_batches
from fedmixtures.kernels import dispatch
from fedmixtures.kernels.arrays import jit_on_gpu, owner_least, owner_sums, xp
from fedmixtures.kernels.compiling import jit
from fedmixtures.kernels.dispatch import (
    TileRows,
    log_joints,
    statistics,
    tile_log_density,
    tile_statistics,
)
from fedmixtures.mixture.covariance_types import n_parameters
from fedmixtures.mixture.density import IncompleteRows
from fedmixtures.mixture.m_step import (
    PseudoData,
    ShapePrior,
    component_moments,
    m_step,
    shape_penalty,
)
from fedmixtures.mixture.mixture import Mixture
from fedmixtures.mixture.moments import Statistics

HARD = 1e-4
"""Variance (in common units) of the narrow components whose E-step is Lloyd's assignment."""
LLOYD_STEPS = 5
LEAST = 0.05
"""A component of a smaller mass keeps its place: sums that were subtracted leave such crumbs."""
SAME_FIT = 3e-6
"""Scores that differ by less are those of one fit, under two orders of its components: three times
what rounding changes in 99 of 100 scores in float32. Both precisions choose alike."""

quick = partial(jit, quick=True)
"""Small programs that are called often: compiling is most of their time."""


class Shrinkage(NamedTuple):
    """What holds covariances: each (fits,), or a number for all."""

    nu: Any
    """Strength of the shape prior, in rows."""
    reg_covar: Any
    """Added to the diagonal."""


@jit_on_gpu
def as_pseudo_data(theta: Mixture, s: Statistics, most: Any = np.inf) -> PseudoData:
    """Sums taken under `theta`, as rows that count at most `most` in each component."""
    kept, means, covariances = component_moments(theta, s, LEAST, xp)
    mass = xp.where(kept, xp.minimum(xp.where(kept, s.mass, 1.0), most), 0.0)
    return PseudoData(mass.astype(s.mass.dtype), means, covariances)


@jit_on_gpu
def _nothing(theta: Mixture) -> PseudoData:
    """No rows of others."""
    return PseudoData(0.0 * theta.weights, theta.means, theta.covariances)


class Fit(eqx.Module):
    """What a batch of fits came to."""

    theta: Mixture
    own: Statistics
    """Statistics of the tiles (without pseudo-data) under `theta`, if they were asked for."""
    penalty: Any
    """What `score` takes off a likelihood."""
    covariance_type: str = eqx.field(static=True, default="full")

    def score(self, log_likelihood: Array, rows: Array) -> Any:
        r"""$\ell - \nu \sum_c KL(N(0, S_0) \| N(0, \Sigma_c)) - \frac12 p \ln N$, p parameters.

        What fits of one set of rows are compared by; least if not finite.
        """
        k, d = (self.theta.weights > 0).sum(-1), self.theta.n_continuous
        parameters = n_parameters(self.covariance_type, k, d)
        parameters = parameters + k * (self.theta.n_features - d)
        score = log_likelihood - self.penalty - 0.5 * parameters * xp.log(xp.maximum(rows, 1.0))
        return xp.where(xp.isfinite(score), score, -np.inf)


def fitted(
    tiles: Tiles,
    entries: Entries,
    theta: Mixture,
    shrinkage: Shrinkage,
    n_steps: int,
    *,
    pseudo_data: PseudoData | None = None,
    extra_mass: Array | float = 1.0,
    from_centres: bool = False,
    tolerance: float = 1e-6,
    sums: bool = True,
    covariance_type: str = "full",
) -> Fit:
    """All fits, a batch of tiles at a time; `n_steps=0` only takes sums.

    `from_centres`: only the means of `theta` are meant; a few Lloyd steps come first. Without
    `sums` there are none of the result.
    """
    dtype = tiles.x.dtype
    pseudo_data = pseudo_data or _nothing(theta)
    shrinkage, extra_mass = _wide(shrinkage, extra_mass, theta.weights, str(dtype))
    n_hard = LLOYD_STEPS if from_centres else 0
    steps = np.int32(n_steps + n_hard), np.int32(n_hard)
    how = How(*steps, np.bool_(sums), np.asarray(tolerance, dtype))
    lines = theta, pseudo_data, extra_mass, shrinkage
    return of_batches(_fitted, tiles, entries, lines, how, covariance_type)


def seeded(
    tiles: Tiles, entries: Entries, keys: Array, present: Array, n_continuous: int
) -> Mixture:
    """Centres by k-means++, as equal components where `present` (fits, k)."""
    centres = of_batches(_centres, tiles, entries, (keys,), present.shape[1])
    return _spheres(centres, present, n_continuous)


@partial(jit_on_gpu, static_argnums=2)
def _spheres(means: Array, present: Array, n_continuous: int) -> Mixture:
    """Equal components about means."""
    weights = (present / present.sum(-1, keepdims=True)).astype(means.dtype)
    eye = xp.eye(n_continuous, dtype=means.dtype)
    return Mixture(weights, means, xp.broadcast_to(eye, (*means.shape[:-1], *eye.shape)).copy())


@partial(jit_on_gpu, static_argnums=3)
def _wide(
    shrinkage: Shrinkage, extra_mass: Any, weights: Array, dtype: str
) -> tuple[Shrinkage, Any]:
    """What holds covariances, and extra_mass-counts, of every fit."""
    wide = lambda number, shape: xp.broadcast_to(xp.asarray(number, dtype), shape)
    each = (wide(number, weights.shape[:1]) for number in shrinkage)
    return Shrinkage(*each), wide(extra_mass, weights.shape)


def densities(tiles: Tiles, entries: Entries, theta: Mixture) -> Any:
    """Log-density of the rows of every entry under its fit's mixture, (entries, rows)."""
    return of_batches(_densities, tiles, entries, (theta,), by_entry=True)


def overlaps(tiles: Tiles, entries: Entries, theta: Mixture, fold: Array) -> Any:
    """(fits, k, k) sums of the products of memberships, over the rows of `fold` (fits,) alone."""
    return of_batches(_overlaps, tiles, entries, (theta, fold))


def m_step_of_batch(
    theta: Mixture, s: Statistics, shrinkage: Shrinkage, covariance_type: str
) -> Mixture:
    """One M-step of a batch from sums."""
    n, dtype = len(theta.weights), theta.means.dtype
    given = theta, s, _wide(shrinkage, 0.0, theta.weights, str(dtype))[0]
    if dispatch.keeps_on_device():
        return _m_step(*given, covariance_type)
    room = max(256, 1 << max(n - 1, 1).bit_length())
    fill = lambda part: np.concatenate([part, np.repeat(part[:1], room - n, axis=0)])
    out = _m_step(*jax.tree.map(fill, given), covariance_type)
    return jax.tree.map(lambda part: np.asarray(part)[:n], out)


@jit_on_gpu
def best_of(fits: list[Fit]) -> Mixture:
    """The best of several fits of the same rows, one by one; of equals the first."""
    rows = fits[0].own.mass.sum(-1)
    scores = xp.stack([fit.score(fit.own.log_likelihood, rows) for fit in fits])
    best = first_greatest(scores, 0, rows, SAME_FIT)
    pick = lambda *parts: xp.stack(parts)[best, xp.arange(len(best))]
    return jax.tree.map(pick, *(fit.theta for fit in fits))


class How(NamedTuple):
    """Numbers of a fit that are no part of its program."""

    n_steps: Any
    n_hard: Any
    """Lloyd steps among them, the first."""
    sums: Any
    """Whether sums of the result are wanted."""
    tolerance: Any


@quick
def _fitted(
    tiles: Tiles,
    work: Work,
    theta: Mixture,
    pseudo_data: PseudoData,
    extra_mass: Array,
    shrinkage: Shrinkage,
    how: How,
    covariance_type: str,
) -> Fit:
    b, dtype = len(theta.weights), tiles.x.dtype
    count, e_step = _e_step(tiles, work, b)
    add = owner_sums(work.owner, b, work.doublings)
    total = jnp.maximum(add(count.sum(-1)), 1.0)
    nu, reg_covar = (of[:, None, None, None] for of in shrinkage)
    prior = ShapePrior(nu, extra_mass)

    def step(carry):
        theta, before, done, t = carry
        hard = t < how.n_hard
        used = jax.tree.map(lambda a, b: jnp.where(hard, a, b), _narrow(theta), theta)
        s = e_step(used)
        new = m_step(theta, s, reg_covar, prior, covariance_type, pseudo_data, LEAST)
        still = lambda old, fresh: jnp.where(done.reshape(-1, *(1,) * (fresh.ndim - 1)), old, fresh)
        mean = s.log_likelihood / total
        small = (jnp.abs(mean - before) < how.tolerance) & (t > how.n_hard)
        return jax.tree.map(still, theta, new), mean, done | small, t + 1

    go_on = lambda carry: (carry[-1] < how.n_steps) & ~carry[2].all()
    start = theta, jnp.full(b, -jnp.inf, dtype), jnp.zeros(b, bool), jnp.int32(0)
    theta = jax.lax.while_loop(go_on, step, start)[0]
    nothing = jax.tree.map(jnp.zeros_like, jax.eval_shape(e_step, theta))
    own = jax.lax.cond(how.sums, e_step, lambda theta: nothing, theta)
    return Fit(theta, own, shape_penalty(theta, shrinkage.nu), covariance_type)


def _e_step(tiles: Tiles, work: Work, n: int) -> tuple[Array, Callable[[Mixture], Statistics]]:
    """Counts of the rows of every entry, and what gives the statistics of all `n` fits."""
    x, count = tiles.x[work.tile], _counts(tiles, work)
    add = owner_sums(work.owner, n, work.doublings)
    if tiles.observed is None:
        rows = TileRows.of(x)
        return count, lambda theta: tile_statistics(theta, rows, count, work.owner, add)
    some = IncompleteRows(x, tiles.observed[work.tile])

    def of_what_is_there(theta: Mixture) -> Statistics:
        at = jax.tree.map(lambda part: part[work.owner], theta)
        return jax.tree.map(add, statistics(at, some, count))

    return count, of_what_is_there


def _narrow(theta: Mixture) -> Mixture:
    """Equal, narrow components at the same means: their E-step is Lloyd's assignment."""
    there = jnp.where(theta.weights > 0, 1.0, 0.0).astype(theta.means.dtype)
    eye = jnp.eye(theta.n_continuous, dtype=theta.means.dtype)
    covariances = jnp.broadcast_to(HARD * eye, theta.covariances.shape)
    return Mixture(there / there.sum(-1, keepdims=True), theta.means, covariances)


@quick
def _centres(tiles: Tiles, work: Work, keys, k: int) -> jax.Array:
    """k-means++: the next centre wins a race of the rows, each as quick as its pull.

    A row's draw depends on the fit's key and the row's place in the fit alone, not on the batch.
    """
    x, count = tiles.x[work.tile], _counts(tiles, work)
    add, least = (of(work.owner, len(keys), work.doublings) for of in (owner_sums, owner_least))
    if tiles.observed is not None:  # a centre is a whole row, where there is one
        whole = tiles.observed[work.tile].all(-1)
        whole = jnp.where(jnp.repeat(whole, count.shape[1] // whole.shape[1], 1), count, 0.0)
        count = jnp.where((add(whole.sum(-1)) > 0)[work.owner][:, None], whole, count)
    size = x.shape[1]
    row = work.number[:, None] * size + jnp.arange(size, dtype=jnp.uint32)[None]
    of_row = keys[work.owner][:, None] ^ _mixed(row)

    def draw(nearest, number):
        bits = _mixed(of_row + number * jnp.uint32(0x9E3779B9))
        uniform = (bits >> jnp.uint32(9)).astype(x.dtype) * 2.0**-23 + 2.0**-24
        pull = count * nearest
        some = add(pull.sum(-1))[work.owner][:, None] > 0
        pull = jnp.where(some, pull, count)
        running = pull > 0
        time = jnp.where(running, -jnp.log(uniform) / jnp.where(running, pull, 1.0), jnp.inf)
        first = least(time.min(-1))
        won = (time == first[work.owner][:, None]) & running
        centre = add(jnp.where(won[..., None], x, 0.0).sum(1))
        centre = centre / jnp.maximum(add(won.sum(-1)), 1)[:, None].astype(x.dtype)
        distance = jnp.square(x - centre[work.owner][:, None]).sum(-1)
        return jnp.where(number == 0, distance, jnp.minimum(nearest, distance)), centre

    numbers = jnp.arange(k, dtype=jnp.uint32)
    return jnp.moveaxis(jax.lax.scan(draw, jnp.ones_like(count), numbers)[1], 0, 1)


@quick
def _densities(tiles: Tiles, work: Work, theta: Mixture) -> Array:
    x, observed = tiles.x[work.tile], tiles.observed
    if observed is None:
        return tile_log_density(theta, x, work.owner)
    at = jax.tree.map(lambda part: part[work.owner], theta)
    return jax.nn.logsumexp(log_joints(at, IncompleteRows(x, observed[work.tile])), axis=-1)


@quick
def _overlaps(tiles: Tiles, work: Work, theta: Mixture, fold: Array) -> Array:
    x, observed = tiles.x[work.tile], tiles.observed
    at = jax.tree.map(lambda part: part[work.owner], theta)
    rows = x if observed is None else IncompleteRows(x, observed[work.tile])
    here = tiles.fold[work.tile] == fold[work.owner][:, None]
    count = jnp.where(here, tiles.count[work.tile] * work.scale[:, None], 0.0)
    member = jnp.where(count[..., None] > 0, jax.nn.softmax(log_joints(at, rows), axis=-1), 0.0)
    by_entry = jnp.einsum("erk,erl,er->ekl", member, member, count)
    return owner_sums(work.owner, len(fold), work.doublings)(by_entry)


@quick
def _m_step(theta: Mixture, s: Statistics, shrinkage: Shrinkage, covariance_type) -> Mixture:
    nu, reg_covar = (of[:, None, None, None] for of in shrinkage)
    prior = ShapePrior(nu, 1.0)
    return m_step(theta, s, reg_covar, prior, covariance_type, least_mass=LEAST)


def _counts(tiles: Tiles, work: Work) -> jax.Array:
    kept = tiles.fold[work.tile] != work.leave[:, None]
    return jnp.where(kept, tiles.count[work.tile] * work.scale[:, None], 0.0)


def _mixed(bits: Array) -> Array:
    """32 bits, mixed well (the finaliser of MurmurHash3)."""
    bits = (bits ^ (bits >> 16)) * jnp.uint32(0x85EBCA6B)
    bits = (bits ^ (bits >> 13)) * jnp.uint32(0xC2B2AE35)
    return bits ^ (bits >> 16)
