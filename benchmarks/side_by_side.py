"""The package against its peers on S1 to S4, one core and one thread each."""

from __future__ import annotations

import importlib
import sys

import numpy as np

from benchmarks import ours
from benchmarks.problems import ALPHA, KL_SAMPLES, Problem, problem
from benchmarks.timing import interleaved

PEERS = {
    "P1": ("benchmarks.peers.numpy_loops", "NumpyLoops"),
    "P2": ("benchmarks.peers.torch_loops", "TorchLoops"),
    "P3": ("benchmarks.peers.torch_batched", "TorchBatched"),
}
SHORT = {"S3": 5, "S4": 1}
"""Rounds that peers run on the long problems; their seconds are scaled to all rounds."""
TOO_SLOW = {("S4", "P1"), ("S4", "P2")}
"""Minutes to hours: only run when asked for by name."""


def load_peers(names: list[str]) -> dict[str, type]:
    """The peers' classes; those that need PyTorch are left out where it is missing."""
    found = {}
    for name in names:
        module, cls = PEERS[name]
        try:
            found[name] = getattr(importlib.import_module(module), cls)
        except ModuleNotFoundError as error:
            print(
                f"{name} is skipped: {error.name} is missing (pip install torch).", file=sys.stderr
            )
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    return found


def compare(name: str, coupling: str, peers: dict[str, type], dtype: str, repetitions: int) -> dict:
    """Seconds of all contenders on one problem, after checking that they agree."""
    whole = problem(name)
    short = whole.shortened(SHORT.get(name, whole.n_rounds))
    contenders = {
        key: cls(short, coupling, dtype)
        for key, cls in peers.items()
        if (name, key) not in TOO_SLOW
    }
    agreement = {key: _agreement(short, coupling, dtype, peer) for key, peer in contenders.items()}
    mine = {
        "ours": ours.Solve(whole, coupling, dtype),
        "rounds": ours.Rounds(whole, coupling, dtype),
        "whole fit": ours.Fit(whole, coupling),
    }
    for contender in mine.values():
        contender.run()  # compiles
    runs = {key: contender.run for key, contender in (mine | contenders).items()}
    times = interleaved(runs, repetitions)
    scale = whole.n_rounds / short.n_rounds
    seconds = {key: t.record(1.0 if key in mine else scale) for key, t in times.items()}
    ratio = lambda key, mine: seconds[key]["cpu_seconds"] / seconds[mine]["cpu_seconds"]
    return {
        "problem": name,
        "coupling": coupling,
        "dtype": dtype,
        "rounds": whole.n_rounds,
        "rounds_of_peers": short.n_rounds,
        "contenders": seconds,
        "ratio_to_ours": {key: ratio(key, "ours") for key in contenders},
        "ratio_to_whole_fit": {key: ratio(key, "whole fit") for key in contenders},
        "largest_difference": agreement,
    }


def _agreement(short: Problem, coupling: str, dtype: str, peer) -> float:
    """Largest difference of any parameter; for KL, whose points differ, of the objective."""
    mine, theirs = ours.Solve(short, coupling, dtype).run(), peer.run()
    if coupling == "kl":
        own, other = kl_objective(short, mine), kl_objective(short, theirs)
        difference, limit = abs(own - other) / abs(own), 5e-3
    else:
        difference = max(float(np.abs(a - b).max()) for a, b in zip(mine, theirs, strict=True))
        limit = 1e-6 if dtype == "float64" else 5e-3
    if not difference <= limit:
        raise AssertionError(f"{peer.name} differs by {difference:.2g} on {short.name} {coupling}")
    return difference


def kl_objective(short: Problem, parts) -> float:
    """Eq. (2) with eq. (4) on many common points, by NumPy: both contenders by the same measure."""
    from scipy.special import logsumexp

    def log_density(theta, x):
        pi, mu, cov = theta
        delta = x[:, None] - mu
        scaled = np.einsum("kij,mkj->mki", np.linalg.inv(cov), delta)
        exponent = np.einsum("mki,mki->mk", delta, scaled) + np.linalg.slogdet(cov)[1]
        return logsumexp(np.log(pi) - 0.5 * (exponent + x.shape[1] * np.log(2 * np.pi)), axis=1)

    rng = np.random.default_rng(1)
    of = lambda i: tuple(np.asarray(part[i], np.float64) for part in parts)
    total = sum(-log_density(of(i), rows).mean() for i, rows in enumerate(short.rows))
    for i, j, w in zip(*short.directed(), strict=True):
        pi, mu, cov = of(j)
        which = rng.choice(len(pi), 10 * KL_SAMPLES, p=pi / pi.sum())
        noise = rng.standard_normal((len(which), mu.shape[1], 1))
        x = mu[which] + (np.linalg.cholesky(cov)[which] @ noise)[..., 0]
        total += ALPHA["kl"] * w * (log_density((pi, mu, cov), x) - log_density(of(i), x)).mean()
    return float(total)


def line(result: dict) -> str:
    """One line of the printed table."""
    seconds = result["contenders"]
    spread = lambda s: f"{s['cpu_seconds']:.4g} ({s['cpu_median'] / s['cpu_seconds']:.2f})"
    times = "  ".join(f"{key} {spread(s)}" for key, s in seconds.items())
    ratios = "  ".join(f"{key} {r:.1f}x" for key, r in result["ratio_to_ours"].items())
    return f"{result['problem']} {result['coupling']:9s} {result['dtype']}  {times}  |  {ratios}"
