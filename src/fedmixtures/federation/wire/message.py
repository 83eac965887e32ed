"""What one site sends another, inside the box: typed messages, checked before they are used.

All messages of a job have the same number of bytes, so that a box does not show whether the release
gate let a model through.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedmixtures.federation.wire.frames import Frame, FrameError
from fedmixtures.mixture.feasible import FeasibleSet
from fedmixtures.mixture.mixture import Mixture

SCHEMA = "fedmixtures.message.2"
SLACK = 1e-9
"""Rounding that a model at the bound of the feasible set may carry."""


class ModelRefused(ValueError):
    """A message from a neighbour that is not a usable model."""


@dataclass(frozen=True)
class ModelMessage:
    """A node's mixture, fitted to its rows."""

    mixture: Mixture


@dataclass(frozen=True)
class PrivateModelMessage:
    """A node's mixture that differentially private steps have made, from a public start."""

    mixture: Mixture


@dataclass(frozen=True)
class Silence:
    """The node is there, but releases nothing."""

    n_components: int
    n_features: int


Message = ModelMessage | PrivateModelMessage | Silence


def encode_message(message: Message) -> bytes:
    """The message as a frame; silence is as long as a model."""
    if isinstance(message, Silence):
        k, d = message.n_components, message.n_features
        parts = (np.zeros(k), np.zeros((k, d)), np.zeros((k, d, d)))
    else:
        parts = message.mixture.to_numpy().parts
    arrays = dict(zip(("weights", "means", "covariances"), parts, strict=True))
    return Frame({"schema": SCHEMA, "silent": int(isinstance(message, Silence))}, arrays).encode()


def decode_message(
    content: bytes, n_components: int, n_features: int, feasible: FeasibleSet | None
) -> Mixture | None:
    """The mixture of a message (NumPy), or None from a node that only listens.

    `ModelRefused` for wrong shapes, numbers that are not finite, and mixtures off the simplex, not
    positive definite or outside the feasible set.
    """
    try:
        frame = Frame.decode(content)
    except FrameError as error:
        raise ModelRefused(str(error)) from None
    silent = frame.head.get("silent")
    if frame.head.get("schema") != SCHEMA or frame.boxes or silent not in (0, 1):
        raise ModelRefused(f"the message is not of the schema {SCHEMA}")
    k, d = n_components, n_features
    shapes = {"weights": (k,), "means": (k, d), "covariances": (k, d, d)}
    if set(frame.arrays) != set(shapes):
        raise ModelRefused(f"the message holds other arrays than {', '.join(shapes)}")
    for name, shape in shapes.items():
        if frame.arrays[name].shape != shape:
            raise ModelRefused(f"{name} have shape {frame.arrays[name].shape}, not {shape}")
    if silent:
        return None
    if not all(np.isfinite(array).all() for array in frame.arrays.values()):
        raise ModelRefused("the message holds NaN or infinity")
    parts = [frame.arrays[name] for name in shapes]
    check_model(*parts, feasible=feasible)
    return Mixture(*parts)


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
