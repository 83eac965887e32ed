"""Many small problems at once: k-means starts, local EM fits, twenty seeds in one program."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import partial

import numpy as np

from benchmarks import ours
from benchmarks.problems import Problem, problem
from benchmarks.timing import Times, interleaved
from fedmixtures.data.node_data import NodeData
from fedmixtures.graph.network import Network
from fedmixtures.mixture.mixture import Mixture


def starts(sizes: list[int]) -> list[dict]:
    """k-means starts of n nodes (50 rows, k = 5, d = 2): scikit-learn's loop against one batch."""
    results = []
    for n in sizes:
        made = partial(_starts_of, problem(f"S4@{n}").node_data())
        run = {"sklearn": partial(made, False), "batched": partial(made, True)}
        run["batched"]()  # compiles
        times = interleaved(run, 3)
        results.append({"nodes": n} | _record(times))
        _say("k-means starts", n, times)
    return results


def _starts_of(data: NodeData, batched: bool) -> Mixture:
    from fedmixtures import KMeansStart

    return KMeansStart(batched=batched).mixtures(data, [5] * data.n_nodes, 0, 1e-3)


def fits(n: int) -> list[dict]:
    """`n` local fits by EM, five starts each: scikit-learn's loop against one batch."""
    from fedmixtures import Local

    data = problem(f"S4@{n}").node_data()
    methods = {"sklearn": Local(engine="sklearn"), "batched": Local(engine="jax")}
    found: dict[str, Mixture] = {}

    def run(name):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found[name] = methods[name].fit(data, [5] * n, None, 0).theta

    run("batched")  # compiles
    times = interleaved({name: (lambda name=name: run(name)) for name in methods}, 1)
    _say("EM fits", n, times)
    likelihood = {name: _mean_log_density(theta, data) for name, theta in found.items()}
    print("mean log-likelihood per row:", likelihood)
    return [{"nodes": n, "starts": 5, "mean_log_likelihood": likelihood} | _record(times)]


def union(couplings: list[str], n_seeds: int) -> list[dict]:
    """S2 with `n_seeds` seeds: one after the other, and as one disjoint union of graphs."""
    each = [problem("S2", seed) for seed in range(n_seeds)]
    results = []
    for coupling in couplings:
        single = [ours.Solve(one, coupling).run for one in each]
        run = {
            "one by one": lambda single=single: [solve() for solve in single],
            "union": ours.Solve(_union_of(each), coupling).run,
        }
        apart = [np.concatenate(parts) for parts in zip(*run["one by one"](), strict=True)]
        together = run["union"]()
        difference = max(float(np.abs(a - b).max()) for a, b in zip(apart, together, strict=True))
        times = interleaved(run, 7)
        results.append(
            {"coupling": coupling, "seeds": n_seeds, "largest_difference": difference}
            | _record(times)
            | {"whole_fits": _record(_whole_fits(each, coupling))}
        )
        _say(f"{coupling}, seeds", n_seeds, times)
        print(f"  whole estimator fits: {results[-1]['whole_fits']['ratio']:.1f}x", flush=True)
    return results


def _whole_fits(each: list[Problem], coupling: str) -> dict[str, Times]:
    """The same through the estimator, k-means starts included."""
    fits = [ours.Fit(one, coupling) for one in each]
    run = {
        "one by one": lambda: [fit.run() for fit in fits],
        "union": ours.Fit(_union_of(each), coupling).run,
    }
    for contender in run.values():
        contender()  # compiles
    return interleaved(run, 3)


def _union_of(each: list[Problem]) -> Problem:
    """All problems beside one another; node labels are renumbered."""
    first = np.cumsum([0] + [one.n_nodes for one in each])
    join = lambda parts: np.concatenate(list(parts))
    network = Network(
        tuple(range(first[-1])),
        join(one.network.source + first[i] for i, one in enumerate(each)),
        join(one.network.target + first[i] for i, one in enumerate(each)),
        join(one.network.weight for one in each),
    )
    theta = Mixture(
        *(join(parts) for parts in zip(*(one.theta.parts for one in each), strict=True))
    )
    return replace(each[0], rows=join(one.rows for one in each), network=network, theta=theta)


def _mean_log_density(theta: Mixture, data: NodeData) -> float:
    """Mean of ln p over all rows, each under its node's mixture, by SciPy."""
    from scipy.special import logsumexp
    from scipy.stats import multivariate_normal

    total = 0.0
    for i in range(data.n_nodes):
        rows, mixture = data.of(i)[0], theta.at(i).trimmed()
        parts = [
            np.log(w) + multivariate_normal(mean, covariance, allow_singular=True).logpdf(rows)
            for w, mean, covariance in zip(*mixture.to_numpy().parts, strict=True)
        ]
        total += float(logsumexp(np.stack(parts), axis=0).sum())
    return total / len(data.rows)


def _record(times: dict[str, Times]) -> dict:
    seconds = {name: t.record() for name, t in times.items()}
    slow, fast = (part["cpu_seconds"] for part in seconds.values())
    return {"seconds": seconds, "ratio": slow / fast}


def _say(what: str, n: int, times: dict[str, Times]) -> None:
    seconds = {name: f"{min(t.cpu):.4g}" for name, t in times.items()}
    (_, slow), (_, fast) = times.items()
    print(f"{what} {n}: CPU seconds {seconds}, {min(slow.cpu) / min(fast.cpu):.1f}x", flush=True)
