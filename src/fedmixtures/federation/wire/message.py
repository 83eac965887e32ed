"""What one node tells another in a round, inside the box: arrays, checked before they are used."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from fedmixtures.federation.wire.frames import Frame, FrameError
from fedmixtures.mixture.feasible import FeasibleSet
from fedmixtures.mixture.mixture import Mixture

SCHEMA = "fedmixtures.message.1"
SLACK = 1e-9
"""Rounding that a model at the bound of the feasible set may carry."""


class ModelRefused(ValueError):
    """A message from a neighbour that is not a usable model."""


def encode_message(tree: Any) -> bytes:
    """Arrays of a message as a frame; None says that the node is there but releases nothing."""
    if tree is None:
        return Frame({"schema": SCHEMA, "silent": True}).encode()
    leaves = jax.tree.leaves(tree)
    arrays = {str(i): np.asarray(leaf, dtype=np.float64) for i, leaf in enumerate(leaves)}
    return Frame({"schema": SCHEMA, "silent": False}, arrays).encode()


def decode_message(content: bytes, like: Any, feasible: FeasibleSet | None) -> Any:
    """The message in the structure of `like` (NumPy), or None from a node that only listens.

    `ModelRefused` for wrong shapes, numbers that are not finite, and mixtures off the simplex, not
    positive definite or outside the feasible set.
    """
    try:
        frame = Frame.decode(content)
    except FrameError as error:
        raise ModelRefused(str(error)) from None
    if frame.head.get("schema") != SCHEMA or frame.boxes:
        raise ModelRefused(f"the message is not of the schema {SCHEMA}")
    if frame.head.get("silent") is True and not frame.arrays:
        return None
    leaves, structure = jax.tree.flatten(like)
    if list(frame.arrays) != [str(i) for i in range(len(leaves))]:
        raise ModelRefused(f"the message holds {len(frame.arrays)} arrays, not {len(leaves)}")
    arrays = list(frame.arrays.values())
    for array, leaf in zip(arrays, leaves, strict=True):
        if array.shape != np.shape(leaf):
            raise ModelRefused(f"an array has shape {array.shape}, not {np.shape(leaf)}")
        if not np.isfinite(array).all():
            raise ModelRefused("the message holds NaN or infinity")
    arrays = [a.astype(np.asarray(leaf).dtype) for a, leaf in zip(arrays, leaves, strict=True)]
    _check_mixtures(like, arrays, feasible)
    return jax.tree.unflatten(structure, arrays)


def _check_mixtures(like: Any, arrays: list[np.ndarray], feasible: FeasibleSet | None) -> None:
    """Look at every mixture among the arrays, before a `Mixture` is made of them."""
    at = 0
    for part in jax.tree.leaves(like, is_leaf=lambda node: isinstance(node, Mixture)):
        if isinstance(part, Mixture):
            check_model(*arrays[at : at + 3], feasible=feasible)
            at += 3
        else:
            at += 1


def check_model(
    weights: np.ndarray, means: np.ndarray, covariances: np.ndarray, feasible: FeasibleSet | None
) -> None:
    """Simplex, symmetric, positive definite, inside the feasible set; absent components too."""
    with np.errstate(all="ignore"):  # what overflows is compared as infinity, and refused
        wrong = _not_a_mixture(weights, covariances)
        if not wrong and feasible is not None:
            wrong = _not_feasible(weights, means, covariances, feasible)
    if wrong:
        raise ModelRefused(wrong)


def _not_a_mixture(weights: np.ndarray, covariances: np.ndarray) -> str:
    on_simplex = (weights >= 0).all() and abs(weights.sum() - 1) <= 1e-6
    if not on_simplex:
        return "the weights are not on the simplex"
    scale = np.abs(covariances).max()
    if not np.abs(covariances - np.swapaxes(covariances, -1, -2)).max() <= SLACK * scale:
        return "a covariance is not symmetric"
    return "" if (_spectrum(covariances) > 0).all() else "a covariance is not positive definite"


def _not_feasible(
    weights: np.ndarray, means: np.ndarray, covariances: np.ndarray, feasible: FeasibleSet
) -> str:
    present = weights > 0
    if not (weights[present] >= feasible.min_weight * (1 - SLACK)).all():
        return "a weight is below the feasible set's smallest"
    if not (np.linalg.norm(means, axis=-1) <= feasible.max_mean_norm * (1 + SLACK)).all():
        return "a mean lies outside the feasible set"
    spectrum = _spectrum(covariances)
    rounding = SLACK * spectrum.max(axis=-1)
    # In an empty place stands the identity, or what the set allows.
    low = np.where(present, feasible.min_variance, min(feasible.min_variance, 1.0))
    high = np.where(present, feasible.max_variance, max(feasible.max_variance, 1.0))
    inside = (spectrum.min(-1) >= low - rounding) & (spectrum.max(-1) <= high + rounding)
    return "" if inside.all() else "a covariance lies outside the feasible set"


def _spectrum(covariances: np.ndarray) -> np.ndarray:
    try:
        return np.linalg.eigvalsh(covariances)
    except np.linalg.LinAlgError:
        return np.full(covariances.shape[:-1], np.nan)
