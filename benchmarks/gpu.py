"""One GPU: seconds of single steps and of a whole fit, against ceilings measured in the same run.

Run ``python -m benchmarks.gpu --nodes 10000,100000,1000000 --out results.json``. Parts that
fail say so and leave the others standing; what is found is written as it is found.
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np

from fedmixtures import KL, MMD, Euclidean, FeasibleSet, GTVMin, Mixture
from fedmixtures.data.node_data import NodeData
from fedmixtures.engine import rounds
from fedmixtures.engine.blocks import build_layout
from fedmixtures.engine.solve import Options, solve
from fedmixtures.graph import sparse_random
from fedmixtures.init.kmeans import KMeansStart
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


@lru_cache(1)
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
    theta = (np.full((n, k), 1 / k), means, np.broadcast_to(1.2 * np.eye(d), (n, k, d, d)).copy())
    # A million mixtures need no check of their eigenvalues.
    structure = jax.tree.structure(Mixture(*(part[:1] for part in theta)))
    return data, sparse_random(n, degree, seed), jax.tree.unflatten(structure, theta)


def steps(n: int, k: int, d: int, m: int, couplings=("mmd", "euclidean", "kl")) -> dict:
    """Seconds of the parts of a round at this size."""
    data, network, start = problem(n, k, d, m)
    found = {}
    known = {"mmd": MMD(), "euclidean": Euclidean(), "kl": KL()}
    with precision("float32"):
        for attempt in ("layout_first_s", "layout_s"):
            data.__dict__.pop("label_hashes", None)
            begin = time.perf_counter()
            layout = jax.block_until_ready(build_layout(data, network, "float32"))
            found[attempt] = time.perf_counter() - begin
        states = rounds.scatter(start, layout, "float32")
        found["shapes"] = [group.shape for group in layout.groups]
        rows = [(group.data.rows, group.data.row_weights) for group in layout.groups]
        found["nll_step"] = seconds(jax.jit(_nll), rows, states)
        for name in couplings:
            program = rounds.dynamic(GTVMin(known[name], feasible=FEASIBLE), "float32")
            parts = attempt_part(_parts, program, layout, states)
            found |= {f"{name}_{part}": value for part, value in parts.items()}
            print(n, k, d, name, json.dumps(parts), flush=True)
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
            frozen = program.discrepancy.freeze_slots(state, received, keys)
            return program.discrepancy.weigh(frozen, group.weight)

        return [rounds.over_blocks(one, s, g) for s, g in zip(states, groups, strict=True)]

    @jax.jit
    def pull(states, frozen):
        return [
            rounds.over_blocks(program.discrepancy.pull, s, f, g.weight)
            for s, f, g in zip(states, frozen, groups, strict=True)
        ]

    begin = time.perf_counter()
    frozen = jax.block_until_ready(freeze(states))
    jax.block_until_ready(pull(states, frozen))
    whole = lambda: rounds.run_rounds(program, groups, states, jnp.int32(0), jnp.int32(1), 1)
    found = {"compile_s": time.perf_counter() - begin}
    found |= {"freeze": seconds(freeze, states), "step": seconds(pull, states, frozen)}
    del frozen
    found["round"] = seconds(whole, together=3)
    found["peak_gb"] = peak_gb()
    return found


def whole_fit(n: int, n_rounds: int = 40) -> dict:
    """A fit with MMD from rows and graph to mixtures on the host; twice, the first one compiles."""
    data, network, _ = problem(n, 5, 2, 50)
    found = {}
    for attempt in ("first", "again"):
        data.__dict__.pop("label_hashes", None)
        begin = time.perf_counter()
        start = KMeansStart().mixtures(data, [5] * n, 0, FEASIBLE.min_variance)
        started = time.perf_counter()
        method, options = GTVMin(MMD(), feasible=FEASIBLE), Options(n_rounds, dtype="float32")
        solution = solve(method, data, network, start, options)
        end = time.perf_counter()
        found[attempt] = {
            "start_s": started - begin,
            "solve_s": end - started,
            "total_s": end - begin,
            "status": solution.status.value,
            "objective": [float(solution.history.objective[i]) for i in (0, -1)],
            "peak_gb": peak_gb(),
        }
        print("fit", n, json.dumps(found[attempt]), flush=True)
    return found


def memory(n: int) -> dict[str, float]:
    """Gigabytes on the GPU: what stays for a fit, and what a round with MMD needs on top of it."""
    data, network, start = problem(n, 5, 2, 50)
    with precision("float32"):
        layout = build_layout(data, network, "float32")
        states = rounds.scatter(start, layout, "float32")
        size = lambda tree: sum(leaf.nbytes for leaf in jax.tree.leaves(tree)) / 1e9
        groups = layout.groups
        found = {
            "rows": size([g.data for g in groups]),
            "edges": size(
                [(g.weight, g.sender, g.reverse, g.slot_key, g.node_key) for g in groups]
            ),
            "mixtures": size(states),
        }
        for name, discrepancy in (("mmd", MMD()), ("kl", KL()), ("euclidean", Euclidean())):
            program = rounds.dynamic(GTVMin(discrepancy, feasible=FEASIBLE), "float32")
            arguments = (program, groups, states, jnp.int32(0), jnp.int32(1), 1)
            analysis = rounds.run_rounds.lower(*arguments).compile().compiled.memory_analysis()
            found[f"{name}_temporaries"] = analysis.temp_size_in_bytes / 1e9
    return found


def peak_gb() -> float:
    """Most gigabytes held on the GPU since the process began."""
    return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0) / 1e9


def attempt_part(part, *args) -> dict:
    """What `part` finds, or what went wrong with it."""
    try:
        return part(*args)
    except Exception as error:
        traceback.print_exc()
        return {"failed": repr(error)[:300]}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", default="10000,100000,1000000")
    parser.add_argument("--components", type=int, default=5)
    parser.add_argument("--features", type=int, default=2)
    parser.add_argument("--rows", type=int, default=50)
    parser.add_argument("--couplings", default="mmd,euclidean,kl")
    parser.add_argument("--fit", type=int, help="also a whole fit of so many nodes")
    parser.add_argument("--memory", type=int, help="also where the memory of so many nodes goes")
    parser.add_argument("--out")
    options = parser.parse_args()
    result = {"device": str(jax.devices()[0]), "jax": jax.__version__}
    shape = (options.components, options.features, options.rows)
    couplings = options.couplings.split(",")
    parts = [("ceilings", ceilings)] if options.nodes else []
    parts += [(n, steps, int(n), *shape, couplings) for n in options.nodes.split(",") if n]
    parts += [("fit", whole_fit, options.fit)] if options.fit else []
    parts += [("memory", memory, options.memory)] if options.memory else []
    for name, part, *args in parts:
        result[name] = attempt_part(part, *args)
        print(name, json.dumps(result[name]), flush=True)
        if options.out:
            with open(options.out, "w") as file:
                json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
