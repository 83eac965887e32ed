"""What a GPU can do, measured, and what the work of a step must therefore cost at least.

Useful work alone is counted: nodes, rows and edges that exist, not the places that pad them. A
multiply-add is two operations; logarithms and roots count as exponentials do, one each.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

FLOAT = 4


def seconds(function, *args, repeats: int = 5, together: int = 10) -> float:
    """Median seconds of a call among `together` that are queued at once, after a warm-up."""
    jax.block_until_ready(function(*args))
    found = []
    for _ in range(repeats):
        begin = time.perf_counter()
        for _ in range(together):
            result = function(*args)
        jax.block_until_ready(result)
        found.append((time.perf_counter() - begin) / together)
    return float(np.median(found))


def ceilings() -> dict[str, float]:
    """Copy bandwidth, float32 multiply-adds and exponentials per second, as this run sees them."""
    x = jnp.ones(1 << 28, jnp.float32)
    copy = 2 * x.nbytes / seconds(jax.jit(lambda x: x * 1.0001), x)
    a = jax.random.normal(jax.random.key(0), (8192, 8192), jnp.float32)
    with jax.default_matmul_precision("highest"):
        flops = 2 * 8192**3 / seconds(jax.jit(lambda a: a @ a), a)

    @jax.jit
    def many(x):
        for _ in range(32):  # written out: one kernel, which keeps its numbers in registers
            x = jnp.exp(-x)
        return x

    return {"copy_bytes": copy, "flops": flops, "exp": 32 * x.size / seconds(many, x)}


@dataclass(frozen=True)
class Work:
    """Operations, exponentials and bytes of one step of all nodes."""

    flops: float
    exp: float
    bytes: float

    def seconds(self, ceilings: dict[str, float]) -> dict[str, float]:
        """By each ceiling alone; the largest is the limit."""
        found = {
            "flops": self.flops / ceilings["flops"],
            "exp": self.exp / ceilings["exp"],
            "bytes": self.bytes / ceilings["copy_bytes"],
        }
        return found | {"limit": max(found.values())}


@dataclass(frozen=True)
class Size:
    """A network as the kernels see it."""

    nodes: int
    edges: int
    """Directed: each edge from both ends."""
    k: int
    d: int
    rows: int

    @property
    def triangle(self) -> int:
        """Numbers of a symmetric matrix."""
        return self.d * (self.d + 1) // 2

    @property
    def component(self) -> int:
        """Numbers of a component: weight, mean and covariance, this once."""
        return 1 + self.d + self.triangle

    def mmd(self, bandwidths: int = 4) -> Work:
        """All pairs of own components with own and neighbours' ones, as `mmd_pairs_gpu` sums."""
        pairs = (self.edges + self.nodes) * self.k**2
        if self.d == 2:
            flops, special = 40 + 29 * bandwidths, 2 * bandwidths
        else:
            sweep = 2 + (self.d - 1) + 2 * self.d * (self.d - 1) // 2
            sums = self.component + 3 * self.triangle + 2 * self.d
            one = self.d * sweep + 2 * self.d**2 + sums + 5
            flops = 3 * self.triangle + 2 * self.d + bandwidths * one
            special = bandwidths * (1 + self.d)
        numbers = self.k * self.component * (self.edges + 2 * self.nodes)
        return Work(pairs * flops, pairs * special, FLOAT * numbers)

    def loss(self, rows: float, numbers_per_row: int) -> Work:
        """Rows (of all nodes together) under the nodes' mixtures: `statistics_gpu`."""
        d = self.d
        each = d**2 + 5 * d + 6 + 3 * self.triangle
        numbers = rows * numbers_per_row + 2 * self.nodes * self.k * self.component
        return Work(rows * self.k * each, rows * (self.k + 1), FLOAT * numbers)

    def nll(self) -> Work:
        """The local loss: every row is read with its weight."""
        return self.loss(self.nodes * self.rows, self.d + 1)

    def kl(self, points: int = 50) -> Work:
        """The same on drawn points, whose weights stand once for each edge."""
        return self.loss(self.edges * points, self.d)

    def euclidean_round(self, local_steps: int = 5) -> Work:
        """Every neighbour fetched once and matched (costs, subsets, mean); the local steps.

        Of the matching, the costs of all pairs and 2^k k subset sums are counted.
        """
        loss = self.nll()
        matching = self.edges * (3 * self.k**2 * self.component + 2**self.k * self.k)
        fetched = 2 * self.edges * self.k * self.component
        return Work(
            local_steps * loss.flops + matching,
            local_steps * loss.exp,
            local_steps * loss.bytes + FLOAT * fetched,
        )


def limits(size: Size, ceilings: dict[str, float]) -> dict[str, dict[str, float]]:
    """Seconds that the steps of this size take at least."""
    work = {
        "mmd_step": size.mmd(),
        "kl_step": size.kl(),
        "nll_step": size.nll(),
        "euclidean_round": size.euclidean_round(),
    }
    return {name: one.seconds(ceilings) for name, one in work.items()}
