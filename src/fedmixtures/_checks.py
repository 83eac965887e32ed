"""Checks of what users pass in. Every message says which argument, what came, what to do."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np


def listed(labels: Iterable[Any], limit: int = 5) -> str:
    """Labels as they stand in a sentence: 'a', 'b' and 'c'; past `limit`, and so many more."""
    labels = list(labels)
    names = [repr(plain(label)) for label in labels[:limit]]
    if len(labels) > limit:
        names.append(f"{len(labels) - limit} more")
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def plain(label: Any) -> Any:
    """A NumPy scalar as the Python value it stands for: equal labels hash and print alike."""
    return label.item() if isinstance(label, np.generic) else label


def mixture_shapes(weights: Any, means: Any, covariances: Any) -> None:
    """Weights (..., k), means (..., k, d), covariances (..., k, d, d), or of the first features."""
    if means.ndim < 2 or weights.shape != means.shape[:-1]:
        raise ValueError(
            f"`weights` has shape {weights.shape} and `means` {means.shape}. Give weights (k,) and "
            "means (k, d), with the same axes in front of both for a stack."
        )
    wanted = (*means.shape, means.shape[-1])
    g = covariances.shape[-1] if covariances.ndim else 0
    if covariances.shape != (*means.shape[:-1], g, g) or not 0 < g <= means.shape[-1]:
        raise ValueError(
            f"`covariances` has shape {covariances.shape} but means of shape {means.shape} need "
            f"{wanted}: one full matrix per component."
        )


def mixture_values(weights: Any, means: Any, covariances: Any) -> None:
    """Finite numbers, weights on the simplex, symmetric positive definite covariances."""
    for name, part in (("weights", weights), ("means", means), ("covariances", covariances)):
        if not np.isfinite(part).all():
            raise ValueError(f"`{name}` of a mixture holds NaN or infinity. Give finite numbers.")
    total = weights.sum(-1)
    if (weights < 0).any() or not np.allclose(total, 1.0, rtol=0, atol=1e-5):
        raise ValueError(
            f"`weights` must be non-negative and sum to 1; the smallest is {weights.min():g} and "
            f"the sum {np.ravel(total)[np.abs(np.ravel(total) - 1).argmax()]:g}. "
            "Divide them by their sum."
        )
    tables = means[..., covariances.shape[-1] :][weights > 0]
    sums, out = tables.sum(-1), (tables < -1e-6) | (tables > 1 + 1e-6)
    if tables.size and (out.any() or not np.allclose(sums, np.rint(sums[0]), atol=1e-4)):
        raise ValueError(
            f"`covariances` are of {covariances.shape[-1]} of {means.shape[-1]} features, but the "
            "means of the others are no shares of categories. Give covariances of all features, or "
            "shares that sum to 1 for each categorical column."
        )
    scale = np.abs(covariances).max(initial=0.0)
    # What was computed in float32 is symmetric to a few 1e-7 of its scale.
    if not np.allclose(covariances, np.swapaxes(covariances, -1, -2), rtol=0, atol=1e-6 * scale):
        raise ValueError("`covariances` must be symmetric. Average each matrix with its transpose.")
    try:  # unlike computed eigenvalues, this does not fail for columns of very different scales
        np.linalg.cholesky(covariances)
    except np.linalg.LinAlgError:
        smallest = np.linalg.eigvalsh(covariances).min()
        raise ValueError(
            f"`covariances` must be positive definite; the smallest eigenvalue is {smallest:g}. "
            "Add a small multiple of the identity."
        ) from None


def single_mixture(weights: Any, action: str) -> None:
    """Evaluation is for one mixture at a time."""
    if weights.ndim != 1:
        raise ValueError(
            f"`{action}` is for one mixture but this is a stack of shape {weights.shape[:-1]}. "
            "Pick one with `.at(index)`."
        )


def rows(x: Any, n_features: int, name: str = "x") -> np.ndarray:
    """Rows to evaluate: two axes, the right number of features, finite."""
    x = np.asarray(x, dtype=np.float64)
    if x.ndim != 2 or x.shape[1] != n_features:
        raise ValueError(
            f"`{name}` has shape {x.shape} but the mixture has {n_features} features. "
            f"Give rows of shape (rows, {n_features})."
        )
    if not np.isfinite(x).all():
        row, column = np.argwhere(~np.isfinite(x))[0]
        raise ValueError(
            f"`{name}` holds {x[row, column]} at row {row}, column {column}. "
            "Drop or fill such rows first."
        )
    return x


def positive(name: str, value: Any, *, allow_zero: bool = False) -> None:
    """A finite number above zero (or at least zero)."""
    number = isinstance(value, (int, float, np.integer, np.floating))
    number = number and not isinstance(value, bool) and np.isfinite(value)
    if not number or value < 0 or (value == 0 and not allow_zero):
        wanted = "zero or a positive number" if allow_zero else "a positive number"
        raise ValueError(f"`{name}` is {value!r}. Give {wanted}.")


def whole(name: str, value: Any, minimum: int = 1) -> int:
    """A whole number of at least `minimum`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < minimum:
        raise ValueError(f"`{name}` is {value!r}. Give a whole number of at least {minimum}.")
    return int(value)


def share(name: str, value: float, most: float = 1.0) -> None:
    """A number from zero to `most`."""
    if not 0.0 <= value <= most:
        raise ValueError(f"`{name}` is {value!r}. Give a number from 0 to {most:g}.")


def one_of(name: str, value: Any, choices: Collection[str]) -> None:
    """A known word; the closest one is suggested."""
    if value in choices:
        return
    import difflib

    close = difflib.get_close_matches(str(value), list(choices), n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise ValueError(f"`{name}` is {value!r}. Choose from {', '.join(choices)}.{hint}")


def enough_rows(counts: Mapping[Any, int], n_components: Mapping[Any, int]) -> None:
    """Every node needs at least as many distinct rows as components."""
    for label, count in counts.items():
        if count < n_components[label]:
            raise ValueError(
                f"node {plain(label)!r} has {count} distinct row{'s' * (count != 1)} but "
                f"n_components={n_components[label]}. Lower n_components, or merge "
                f"{plain(label)!r} with a neighbour."
            )


def same_components(method: str, n_components: Collection[int]) -> None:
    """Some methods join components across nodes one by one."""
    if len(set(n_components)) > 1:
        raise ValueError(
            f"`n_components` differs between nodes (from {min(n_components)} to "
            f"{max(n_components)}), but {method} needs the same number at all nodes. Give one "
            "number, or use Local or GTVMin with MMD or KL."
        )
