"""What one evaluation of a discrepancy costs: operations of the traced program, and time."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from fedmixtures.discrepancy import KL, MMD, Euclidean
from fedmixtures.kernels.cpu.matching import best_matching, component_distances
from fedmixtures.mixture.arithmetic import double
from fedmixtures.mixture.mixture import Mixture

EDGES = 16
"""Timed together, as an engine would."""
FREE = {
    "broadcast_in_dim",
    "concatenate",
    "convert_element_type",
    "copy",
    "dynamic_slice",
    "dynamic_update_slice",
    "gather",
    "iota",
    "pad",
    "random_bits",
    "random_unwrap",
    "random_wrap",
    "reshape",
    "rev",
    "scatter",
    "slice",
    "squeeze",
    "stop_gradient",
    "transpose",
}
"""Moving numbers is not counted."""


class DataDependent(Exception):
    """A loop whose length depends on the data has no count of operations."""


def compute(runs: Sequence[tuple[dict[str, Any], int]]) -> Iterator[dict[str, Any]]:
    """Operations and seconds per edge for each setting."""
    for settings, seed in runs:
        with double():
            yield _measure(settings, seed)


def _measure(settings: dict[str, Any], seed: int) -> dict[str, Any]:
    k, d, n_samples = settings["k"], settings["d"], settings["n_samples"]
    own, neighbour = (mixture(k, d, seed + i) for i in range(2))
    function = evaluation(settings["discrepancy"], n_samples)
    key = jr.key(seed)
    try:
        operations = count(jax.make_jaxpr(function)(own, neighbour, key).jaxpr)
    except DataDependent:
        operations = None
    stacked = jax.tree.map(lambda part: jnp.stack([part] * EDGES), (own, neighbour))
    seconds = _seconds(jax.jit(jax.vmap(function)), *stacked, jr.split(key, EDGES)) / EDGES
    return {"operations": operations, "seconds": seconds, "status": "completed"}


def evaluation(name: str, n_samples: int):
    """One evaluation of D from two mixtures, as a function of (own, neighbour, key)."""
    pairs = lambda own, neighbour, key: component_distances(
        own, neighbour, Euclidean().block_weights
    )
    if name == "matching":
        return lambda *arguments: best_matching(pairs(*arguments))
    if name == "euclidean":  # what stands beside the matching: all pairs of components
        return pairs
    discrepancy = KL(n_samples) if name == "kl" else MMD()

    def value(own, neighbour, key):
        return discrepancy(own, discrepancy.freeze(own, discrepancy.digest(neighbour), key))

    return value


def mixture(k: int, d: int, seed: int) -> Mixture:
    """A random mixture."""
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((k, d, d))
    parts = (
        np.full(k, 1 / k),
        3 * rng.standard_normal((k, d)),
        a @ np.swapaxes(a, -1, -2) / d + np.eye(d),
    )
    return Mixture(*map(jnp.asarray, parts))


def count(jaxpr: Any) -> int:
    """Arithmetic operations of a traced program: one per number made, more for linear algebra."""
    return sum(_operations(equation) for equation in jaxpr.eqns)


def _operations(equation: Any) -> int:
    name = equation.primitive.name
    inner = [count(getattr(sub, "jaxpr", sub)) for sub in _subprograms(equation.params)]
    if name == "scan":
        return equation.params["length"] * sum(inner)
    if name == "cond":
        return max(inner)
    if name == "while":
        raise DataDependent
    if inner:
        return sum(inner)
    if name in FREE:
        return 0
    made = sum(math.prod(out.aval.shape) for out in equation.outvars)
    shape = tuple(equation.invars[0].aval.shape) if equation.invars else (0,)
    if name == "dot_general":
        contracted, _ = equation.params["dimension_numbers"][0]
        return 2 * made * math.prod(shape[axis] for axis in contracted)
    if name == "cholesky":
        return made * shape[-1] // 3
    if name == "triangular_solve":
        return made * shape[-1]
    if name.startswith(("reduce", "arg", "cum", "sort", "random_gamma")):
        return math.prod(shape)
    return made


def _subprograms(params: dict[str, Any]) -> list[Any]:
    found = []
    for value in params.values():
        for entry in value if isinstance(value, list | tuple) else [value]:
            if hasattr(entry, "jaxpr") or hasattr(entry, "eqns"):
                found.append(entry)
    return found


def _seconds(function: Any, *arguments: Any) -> float:
    """The quickest of several timings, in processor time: a busy machine only adds to it."""
    jax.block_until_ready(function(*arguments))
    best, last = math.inf, time.process_time() + 1.0
    for _ in range(5):
        if time.process_time() > last and best < math.inf:
            break
        repeats, begun = 0, time.process_time()
        while time.process_time() - begun < 0.03:
            jax.block_until_ready(function(*arguments))
            repeats += 1
        best = min(best, (time.process_time() - begun) / repeats)
    return best
