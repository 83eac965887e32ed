"""One GPU: seconds of single steps and of a whole fit, against ceilings measured in the same run.

Run ``python -m benchmarks.gpu --nodes 10000,100000,1000000 --out results.json``.
"""

from __future__ import annotations

import argparse
import json
import time

import jax
import jax.numpy as jnp
import numpy as np

from fedmixtures import KL, MMD, Euclidean, FeasibleSet, GTVMin, Mixture
from fedmixtures.data.node_data import NodeData
from fedmixtures.engine import rounds
from fedmixtures.engine.blocks import build_layout
from fedmixtures.graph import sparse_random
from fedmixtures.mixture.precision import precision
from fedmixtures.mixture.statistics import nll_and_gradient

FEASIBLE = FeasibleSet(1e-3, 50.0, 0.05, 100.0)


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
    many = jax.jit(lambda x: jax.lax.fori_loop(0, 32, lambda i, y: jnp.exp(-y), x))
    return {"copy_bytes": copy, "flops": flops, "exp": 32 * x.size / seconds(many, x)}


def problem(n: int, k: int = 5, d: int = 2, m: int = 50, degree: float = 10.0, seed: int = 0):
    """A sparse random network of `n` nodes and mixtures near their rows."""
    rng = np.random.default_rng(seed)
    centres = 5 * rng.normal(size=(k, d))
    rows = rng.normal(size=(n, m, d)) + centres[rng.integers(k, size=(n, m))]
    data = NodeData(
        tuple(range(n)),
        rows.reshape(-1, d),
        np.ones(n * m),
        np.arange(n + 1) * m,
        np.arange(n * m),
    )
    means = centres[None] + 0.3 * rng.normal(size=(n, k, d))
    theta = jax.tree.map(
        np.array,
        (np.full((n, k), 1 / k), means, np.broadcast_to(1.2 * np.eye(d), (n, k, d, d))),
    )
    start = object.__new__(Mixture)  # a million mixtures need no check of their eigenvalues
    for name, part in zip(("weights", "means", "covariances"), theta, strict=True):
        object.__setattr__(start, name, part)
    return data, sparse_random(n, degree, seed), start


def one_size(n: int, k: int, d: int, m: int) -> dict[str, float]:
    """Seconds of the parts of a round at this size."""
    begin = time.perf_counter()
    data, network, start = problem(n, k, d, m)
    with precision("float32"):
        layout = build_layout(data, network, "float32")
        states = rounds.scatter(start, layout, "float32")
        found = {"layout_s": time.perf_counter() - begin}
        found["shapes"] = [group.shape for group in layout.groups]
        for name, discrepancy in (("mmd", MMD()), ("kl", KL()), ("euclidean", Euclidean())):
            program = rounds.dynamic(GTVMin(discrepancy, feasible=FEASIBLE), "float32")
            found |= {f"{name}_{part}": s for part, s in _parts(program, layout, states).items()}
        rows = [(group.data.rows, group.data.row_weights) for group in layout.groups]
        found["nll_step"] = seconds(jax.jit(_nll), rows, states)
    return found


def _nll(rows, states):
    return [
        rounds.over_blocks(nll_and_gradient, state, *held)
        for state, held in zip(states, rows, strict=True)
    ]


def _parts(program: GTVMin, layout, states) -> dict[str, float]:
    """One exchange with freezing, one pull with its gradient, one whole round."""
    groups = layout.groups

    @jax.jit
    def freeze(states):
        messages = [rounds.over_blocks(jax.vmap(program.digest), s) for s in states]
        table = rounds.table(messages, axes=2)

        def one(state, group):
            received = jax.tree.map(lambda t: t[group.sender], table)
            keys = rounds._of_round(group.slot_key, jnp.int32(0))
            return program.discrepancy.freeze_slots(state, received, keys)

        return [rounds.over_blocks(one, s, g) for s, g in zip(states, groups, strict=True)]

    @jax.jit
    def pull(states, frozen):
        return [
            rounds.over_blocks(program.discrepancy.pull, s, f, g.weight)
            for s, f, g in zip(states, frozen, groups, strict=True)
        ]

    frozen = jax.block_until_ready(freeze(states))
    whole = lambda: rounds.run_rounds(program, groups, states, jnp.int32(0), jnp.int32(1), 1)
    found = {"freeze": seconds(freeze, states), "step": seconds(pull, states, frozen)}
    del frozen
    found["round"] = seconds(whole, together=3)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", default="10000,100000,1000000")
    parser.add_argument("--components", type=int, default=5)
    parser.add_argument("--features", type=int, default=2)
    parser.add_argument("--rows", type=int, default=50)
    parser.add_argument("--out")
    options = parser.parse_args()
    result = {"device": str(jax.devices()[0]), "jax": jax.__version__, "ceilings": ceilings()}
    print(json.dumps(result), flush=True)
    for n in map(int, options.nodes.split(",")):
        shape = (options.components, options.features, options.rows)
        result[str(n)] = one_size(n, *shape)
        print(n, json.dumps(result[str(n)]), flush=True)
    if options.out:
        with open(options.out, "w") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
