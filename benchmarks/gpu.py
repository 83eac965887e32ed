"""One GPU: seconds of single steps and of a whole fit, against ceilings measured in the same run.

Run ``python -m benchmarks.gpu --nodes 10000,100000,1000000 --name gpu-h200``. Parts that
fail say so and leave the others standing; what is found is written as it is found.
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
from functools import lru_cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import report
from benchmarks.gpu_limits import Size, ceilings, limits, seconds
from fedmixtures import KL, MMD, Euclidean, FeasibleSet, GTVMin, Mixture
from fedmixtures.data.node_data import NodeData
from fedmixtures.engine.layout.blocks import build_layout
from fedmixtures.engine.run import rounds, runner
from fedmixtures.engine.solve import solve
from fedmixtures.graph import Network, sparse_random
from fedmixtures.kernels.dispatch import nll_and_gradient
from fedmixtures.kernels.trial import outcomes
from fedmixtures.mixture.arithmetic import precision

FEASIBLE = FeasibleSet(1e-3, 50.0, 0.05, 100.0)
TOGETHER = 5
"""Rounds in one call."""


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


def steps(n: int, k: int, d: int, m: int, couplings, measured: dict[str, float]) -> dict:
    """Seconds of the parts of a round at this size, and the least that they could take."""
    data, network, start = problem(n, k, d, m)
    found = {"limits": limits(Size(n, 2 * network.n_edges, k, d, m), measured)}
    known = {"mmd": MMD(), "euclidean": Euclidean(), "kl": KL()}
    with precision("float32"):
        for name in ("layout_first_s", "layout_s"):
            forget(data, network)
            begin = time.perf_counter()
            layout = jax.block_until_ready(build_layout(data, network, "float32"))
            found[name] = time.perf_counter() - begin
        states = runner.scatter(start, layout, "float32")
        found["shapes"] = [group.shape for group in layout.groups]
        rows = [(group.data.rows, group.data.row_weights) for group in layout.groups]
        found["nll_step"] = seconds(jax.jit(_nll), rows, states)
        for name in couplings:
            program = runner.as_traced(GTVMin(known[name], feasible=FEASIBLE), "float32")
            parts = attempt(_parts, program, layout, states)
            found |= {f"{name}_{part}": value for part, value in parts.items()}
            print(n, k, d, name, json.dumps(parts), flush=True)
    return found


def _nll(rows, states):
    return [
        runner.over_blocks(nll_and_gradient, state, *held)
        for state, held in zip(states, rows, strict=True)
    ]


def _parts(program: GTVMin, layout, states) -> dict[str, float]:
    """One exchange with freezing, one pull with its gradient, one whole round.

    ``round_alone`` is a call of one round, ``round`` one of the rounds of a longer call.
    """
    groups = layout.groups

    @jax.jit
    def freeze(states, groups):
        messages = [runner.over_blocks(jax.vmap(program.digest), s) for s in states]
        table = runner.table(messages, axes=2)

        def one(state, group):
            received = jax.tree.map(lambda t: t[group.sender], table)
            keys = rounds.keys_of_round(group.slot_key, jnp.int32(0))
            return program.discrepancy.couple(state, received, keys, group.weight)

        return [runner.over_blocks(one, s, g) for s, g in zip(states, groups, strict=True)]

    @jax.jit
    def pull(states, couplings):
        return [
            runner.over_blocks(lambda state, coupling: coupling.pull(state), s, coupling)
            for s, coupling in zip(states, couplings, strict=True)
        ]

    def several(n):
        return rounds.run_rounds(program, groups, states, jnp.int32(0), jnp.int32(n), TOGETHER)

    begin = time.perf_counter()
    frozen = jax.block_until_ready(freeze(states, groups))
    found = {"freeze_first_s": time.perf_counter() - begin}
    begin = time.perf_counter()
    jax.block_until_ready(pull(states, frozen))
    found |= {
        "step_first_s": time.perf_counter() - begin,
        "freeze": seconds(freeze, states, groups),
        "step": seconds(pull, states, frozen),
    }
    del frozen
    found["round_alone"] = seconds(several, 1, together=3)
    found["round"] = seconds(several, TOGETHER, together=1) / TOGETHER
    found["peak_gb"] = peak_gb()
    return found


def whole_fit(n: int, n_rounds: int = 40) -> dict:
    """A fit with MMD from rows and graph to mixtures on the host; twice, the first one compiles."""
    data, network, _ = problem(n, 5, 2, 50)
    found = {}
    for attempt in ("first", "again"):
        forget(data, network)
        begin = time.perf_counter()
        method, how = GTVMin(MMD(), feasible=FEASIBLE), {"n_rounds": n_rounds, "dtype": "float32"}
        solution = solve(method, data, network, n_components=5, **how)
        found[attempt] = {
            "total_s": time.perf_counter() - begin,
            "status": solution.status.value,
            "objective": [float(solution.history.objective[i]) for i in (0, -1)],
            "peak_gb": peak_gb(),
        }
        print("fit", n, json.dumps(found[attempt]), flush=True)
    return found


def default_fit(n: int, k: int, d: int, m: int) -> dict:
    """A fit with Trust-then-Pool, the default method, from rows and graph to mixtures; twice."""
    data, network, _ = problem(n, k, d, m)
    found, means = {}, []
    for attempt in ("first", "again"):
        forget(data, network)
        begin = time.perf_counter()
        solution = solve("trust", data, network, n_components=k, dtype="float32")
        found[attempt] = {
            "total_s": time.perf_counter() - begin,
            "objective": float(solution.history.objective[-1]),
            "peak_gb": peak_gb(),
        }
        means.append(solution.theta.means)
        print("default", n, json.dumps(found[attempt]), flush=True)
    return found | {"same_numbers": bool(np.array_equal(*means))}


def forget(data: NodeData, network: Network) -> None:
    """What they would work out only once: every attempt is to pay for it."""
    for name in ("label_hashes", "has_gaps", "_total_weights"):
        data.__dict__.pop(name, None)
    network.__dict__.pop("degree", None)


def memory(n: int) -> dict[str, float]:
    """Gigabytes on the GPU: what stays for a fit, and what a round with MMD needs on top of it."""
    data, network, start = problem(n, 5, 2, 50)
    with precision("float32"):
        layout = build_layout(data, network, "float32")
        states = runner.scatter(start, layout, "float32")
        size = lambda tree: sum(leaf.nbytes for leaf in jax.tree.leaves(tree)) / 1e9
        groups = layout.groups
        found = {
            "rows": size([g.data for g in groups]),
            "edges": size([(g.weight, g.sender, g.slot_key, g.node_key) for g in groups]),
            "mixtures": size(states),
        }
        for name, discrepancy in (("mmd", MMD()), ("kl", KL()), ("euclidean", Euclidean())):
            program = runner.as_traced(GTVMin(discrepancy, feasible=FEASIBLE), "float32")
            arguments = (program, groups, states, jnp.int32(0), jnp.int32(1), 1)
            analysis = rounds.run_rounds.lower(*arguments).compile().memory_analysis()
            found[f"{name}_temporaries"] = analysis.temp_size_in_bytes / 1e9
    return found


def peak_gb() -> float:
    """Most gigabytes held on the GPU since the process began."""
    return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0) / 1e9


def attempt(part, *args) -> dict:
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
    parser.add_argument("--default", type=int, help="also the default method, of so many nodes")
    parser.add_argument("--memory", type=int, help="also where the memory of so many nodes goes")
    parser.add_argument("--name", default="gpu", help="file name of the result, without .json")
    parser.add_argument("--folder", type=Path, help="where to write it, if not to the results")
    options = parser.parse_args()
    shape = (options.components, options.features, options.rows)
    result = report.gpu() | {
        "dtype": "float32",
        "problem": "k={}, d={}, {} rows, average degree 10".format(*shape),
        "ceilings": ceilings(),
    }
    print(json.dumps(result), flush=True)
    more = (options.couplings.split(","), result["ceilings"])
    # The fit comes first: the most memory held is that of the process so far.
    parts: list[tuple] = [("fit", whole_fit, options.fit)] if options.fit else []
    parts += [("default", default_fit, options.default, *shape)] if options.default else []
    parts += [(n, steps, int(n), *shape, *more) for n in options.nodes.split(",") if n]
    parts += [("memory", memory, options.memory)] if options.memory else []
    for name, part, *args in parts:
        result[name] = attempt(part, *args)
        print(name, json.dumps(result[name]), flush=True)
        result["kernels"] = outcomes()
        report.write(options.name, result, options.folder, "benchmarks.gpu")
    print(json.dumps(result["kernels"], indent=1))


if __name__ == "__main__":
    main()
