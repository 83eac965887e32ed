"""What one site sends another, inside the box: typed messages, checked before they are used.

All messages of a job have the same number of bytes, so that a box does not show whether the release
gate let a model through.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedmixtures.federation.wire.frames import Frame, FrameError
from fedmixtures.mixture.covariance_types import TYPES
from fedmixtures.mixture.feasible import FeasibleSet
from fedmixtures.mixture.mixture import Mixture

SCHEMA = "fedmixtures.message.2"
MOST_ROWS = 1e12
SLACK = 1e-9
"""Rounding that a model at the bound of the feasible set may carry."""


class ModelRefused(ValueError):
    """A message from a neighbour that is not a usable model."""


@dataclass(frozen=True)
class ModelMessage:
    """A node's mixture, fitted to its rows."""

    mixture: Mixture
    rows: float = 0.0
    """How many rows it stands for, where a method asks for that; in coarse steps when it leaves."""


@dataclass(frozen=True)
class PrivateModelMessage:
    """A node's mixture that differentially private steps have made, from a public start."""

    mixture: Mixture


@dataclass(frozen=True)
class Silence:
    """The node is there, but releases nothing."""

    n_components: int
    n_features: int


@dataclass(frozen=True)
class IntegerMessage:
    """Whole numbers about the network: a bit for an edge, or which sites belong together."""

    numbers: np.ndarray


@dataclass(frozen=True)
class PlaceMessage(IntegerMessage):
    """About where a site's rows lie, by column."""


@dataclass(frozen=True)
class MaskedShare:
    """A site's part of a sum, under masks."""

    numbers: np.ndarray
    """uint64"""
    seen: str
    """Digest of the totals over the same members so far: all must have seen the same."""


@dataclass(frozen=True)
class RunNonce:
    """What a site has drawn for this run of a job: nothing about rows is in it."""

    value: bytes


@dataclass(frozen=True)
class Commitment:
    """Digest of the masked share that a site will show once all have said theirs."""

    digest: bytes


Message = (
    ModelMessage | PrivateModelMessage | Silence | IntegerMessage | MaskedShare | RunNonce
    | Commitment
)  # fmt: skip
DIGEST_BYTES = 32
"""Length of what is in a `RunNonce` or a `Commitment`."""


def n_numbers(message: Message) -> int:
    """How many numbers a message tells."""
    match message:
        case Silence() | RunNonce() | Commitment():
            return 0
        case IntegerMessage(numbers) | MaskedShare(numbers):
            return len(numbers)
    weights, means, _ = message.mixture.parts
    d = means.shape[-1]
    return int(len(weights) * (1 + d + d * (d + 1) // 2))


def encode_message(message: Message, covariance_type: str = "full") -> bytes:
    """The message as a frame; silence is as long as a model.

    Covariances are sent as the numbers that are free in their type.
    """
    if isinstance(message, IntegerMessage):
        return Frame({"schema": SCHEMA}, {"numbers": message.numbers}).encode()
    if isinstance(message, MaskedShare):
        content = message.numbers.astype("<u8").tobytes()
        return Frame({"schema": SCHEMA, "seen": message.seen}, boxes={"share": content}).encode()
    if isinstance(message, RunNonce):
        return Frame({"schema": SCHEMA}, boxes={"nonce": message.value}).encode()
    if isinstance(message, Commitment):
        return Frame({"schema": SCHEMA}, boxes={"commitment": message.digest}).encode()
    rows = 0.0
    if isinstance(message, Silence):
        k, d = message.n_components, message.n_features
        parts = (np.zeros(k), np.zeros((k, d)), np.zeros((k, d, d)))
    else:
        parts = tuple(np.asarray(part) for part in message.mixture.to_numpy().parts)
        rows = getattr(message, "rows", 0.0)
    arrays: dict[str, Any] = dict(zip(("weights", "means", "covariances"), parts, strict=True))
    arrays["covariances"] = TYPES[covariance_type].compact(arrays["covariances"])
    head = {"schema": SCHEMA, "silent": int(isinstance(message, Silence))}
    return Frame(head, arrays | {"rows": np.array(rows)}).encode()


def decode_whole(content: bytes, n: int, low: int, high: int) -> np.ndarray:
    """The numbers of a `IntegerMessage` (int64), each within bounds."""
    frame = _framed(content)
    numbers = frame.arrays.get("numbers", np.zeros(0))
    if numbers.shape != (n,) or frame.boxes or not (numbers == np.rint(numbers)).all():
        raise ModelRefused(f"the message does not hold {n} whole numbers")
    if not ((numbers >= low) & (numbers <= high)).all():
        raise ModelRefused("a number of the message is out of bounds")
    return numbers.astype(np.int64)


def decode_digest(content: bytes, kind: str) -> bytes:
    """What is in a `RunNonce` (``nonce``) or a `Commitment` (``commitment``)."""
    frame = _framed(content)
    if frame.arrays or set(frame.boxes) != {kind} or len(frame.boxes[kind]) != DIGEST_BYTES:
        raise ModelRefused(f"the message is no {kind}")
    return frame.boxes[kind]


def decode_share(content: bytes, n: int, seen: str) -> np.ndarray:
    """The numbers of a `MaskedShare` from a member who has seen the same totals as we."""
    frame = _framed(content)
    share = frame.boxes.get("share", b"")
    if frame.arrays or len(share) != 8 * n:
        raise ModelRefused(f"the message is not a share of {n} numbers")
    if frame.head.get("seen") != seen:
        raise ModelRefused("the member has seen other totals: somebody has sent different shares")
    return np.frombuffer(share, "<u8").astype(np.uint64)


def _framed(content: bytes) -> Frame:
    try:
        frame = Frame.decode(content)
    except FrameError as error:
        raise ModelRefused(str(error)) from None
    if frame.head.get("schema") != SCHEMA:
        raise ModelRefused(f"the message is not of the schema {SCHEMA}")
    return frame


def decode_message(
    content: bytes, n_components: int, n_features: int, feasible: FeasibleSet | None
) -> Mixture | None:
    """The mixture of a message (NumPy), or None from a node that only listens; as below."""
    found = decode_model(content, n_components, n_features, feasible)
    return None if found is None else found.mixture


def decode_model(
    content: bytes, n_components: int, n_features: int, feasible: FeasibleSet | None
) -> ModelMessage | None:
    """A model with its number of rows, or None from a node that only listens.

    Covariances are of the feasible set's type. `ModelRefused` for wrong shapes, numbers that are
    not finite, and mixtures off the simplex, not positive definite or outside the feasible set.
    """
    frame = _framed(content)
    silent = frame.head.get("silent")
    if frame.boxes or silent not in (0, 1):
        raise ModelRefused(f"the message is not of the schema {SCHEMA}")
    k, d = n_components, n_features
    kind = TYPES["full" if feasible is None else feasible.covariance_type]
    covariances = kind.compact(np.zeros((k, d, d))).shape
    shapes = {"weights": (k,), "means": (k, d), "covariances": covariances, "rows": ()}
    if set(frame.arrays) != set(shapes):
        raise ModelRefused(f"the message holds other arrays than {', '.join(shapes)}")
    for name, shape in shapes.items():
        if frame.arrays[name].shape != shape:
            raise ModelRefused(f"{name} have shape {frame.arrays[name].shape}, not {shape}")
    if silent:
        return None
    if not all(np.isfinite(array).all() for array in frame.arrays.values()):
        raise ModelRefused("the message holds NaN or infinity")
    weights, means, compact, rows = (frame.arrays[name] for name in shapes)
    if not 0 <= rows <= MOST_ROWS:
        raise ModelRefused("the number of rows is out of bounds")
    parts = weights, means, np.asarray(kind.expanded(compact, k, d))
    check_model(*parts, feasible=feasible)
    return ModelMessage(Mixture(*parts), float(rows))


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
