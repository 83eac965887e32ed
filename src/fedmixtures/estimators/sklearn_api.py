"""scikit-learn's conventions: nested parameters (``method__alpha``), and its `GaussianMixture`."""

from __future__ import annotations

import dataclasses
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator

from fedmixtures import _checks
from fedmixtures.data.node_data import NodeData
from fedmixtures.engine.solution import FitWarning
from fedmixtures.estimators import resolve
from fedmixtures.methods.registry import remedy_for_gaps
from fedmixtures.mixture.covariance_types import TYPES, check_type, is_of_type
from fedmixtures.mixture.mixture import Mixture

if TYPE_CHECKING:
    from sklearn.mixture import GaussianMixture


def nested(name: str, value: Any) -> dict[str, Any]:
    """All fields of a dataclass, deep, under ``name__field``."""
    found: dict[str, Any] = {}
    for field in _fields(value):
        key = f"{name}__{field}"
        found[key] = getattr(value, field)
        found.update(nested(key, found[key]))
    return found


def _fields(value: Any) -> list[str]:
    """Names of the fields of a dataclass object; nothing else has any."""
    if isinstance(value, type) or not dataclasses.is_dataclass(value):
        return []
    return [field.name for field in dataclasses.fields(value)]


def replaced(value: Any, path: str, new: Any, name: str) -> Any:
    """A copy of `value` with the field at ``a__b__c`` replaced."""
    head, _, rest = path.partition("__")
    fields = _fields(value)
    if head not in fields:
        has = ", ".join(fields) or "none"
        raise ValueError(
            f"Invalid parameter {head!r} for `{name}` ({type(value).__name__}). Valid ones: {has}."
        )
    inner = replaced(getattr(value, head), rest, new, f"{name}__{head}") if rest else new
    return dataclasses.replace(value, **{head: inner})


class NestedParameters(BaseEstimator):
    """`get_params` and `set_params` that reach into the frozen objects of an estimator."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters; with `deep` also those of method and start, as ``method__alpha``."""
        params = super().get_params(deep=False)
        if deep:
            for name, resolved in (("method", resolve.METHODS), ("init", resolve.STARTS)):
                value = params[name]
                known = isinstance(value, str) and value in resolved
                params.update(nested(name, resolved[value]() if known else value))
        return params

    def set_params(self, **params: Any):
        """Set parameters; ``method__alpha=0.3`` replaces the method by one with that alpha."""
        for key in sorted(params, key=lambda key: key.count("__")):
            name, _, path = key.partition("__")
            if not path:
                super().set_params(**{name: params[key]})
                continue
            whole = {"method": resolve.resolve_method, "init": resolve.resolve_start}.get(name)
            if whole is None:
                raise ValueError(f"Invalid parameter {key!r} for {type(self).__name__}.")
            current = whole(getattr(self, name))
            setattr(self, name, replaced(current, path, params[key], name))
        return self


def to_sklearn(mixture: Mixture, covariance_type: str = "full") -> GaussianMixture:
    """A fitted scikit-learn `GaussianMixture` with the parameters of one mixture."""
    from sklearn.mixture import GaussianMixture

    check_type("covariance_type", covariance_type)
    mixture = mixture.trimmed()
    if not is_of_type(mixture, covariance_type):
        raise ValueError(
            f"`covariance_type` is {covariance_type!r}, but the mixture has other covariances. "
            "Give 'full'."
        )
    compact = TYPES[covariance_type].compact
    model = GaussianMixture(mixture.n_components, covariance_type=covariance_type)
    model.weights_, model.means_ = mixture.weights, mixture.means
    model.covariances_ = compact(mixture.covariances)
    factors = np.linalg.cholesky(mixture.covariances)
    eye = np.broadcast_to(np.eye(mixture.n_features), factors.shape)
    inverse = np.linalg.solve(factors, eye)
    model.precisions_cholesky_ = compact(np.swapaxes(inverse, -1, -2))
    model.precisions_ = compact(np.swapaxes(inverse, -1, -2) @ inverse)
    model.n_features_in_ = mixture.n_features
    model.converged_, model.n_iter_, model.lower_bound_ = True, 0, np.nan
    model.lower_bounds_ = []
    return model


def from_sklearn(model: GaussianMixture) -> Mixture:
    """The mixture of a fitted scikit-learn model; any covariance type becomes full matrices."""
    if not hasattr(model, "weights_"):
        raise ValueError("`model` is not fitted. Call its `fit` first.")
    given = np.asarray(model.covariances_)
    covariances = TYPES[model.covariance_type].expanded(given, *model.means_.shape)
    return Mixture(model.weights_, model.means_, covariances)


FEW_VALUES = 10  # a column of at most so many values, each ten times on average, is told of


def split_nodes(X: Any, nodes: Any) -> tuple[Any, Any]:
    """Take the node column out of a table when `nodes` is its name; else leave both alone."""
    if not isinstance(nodes, str):
        return X, None if nodes is None else _labels(nodes)
    import narwhals as nw

    try:
        frame = nw.from_native(X, eager_only=True)
    except TypeError:
        raise ValueError(
            f"`nodes` is the column name {nodes!r}, but X is a {type(X).__name__} without column "
            "names. Give a table, or one label per row."
        ) from None
    if nodes not in frame.columns:
        raise ValueError(
            f"`nodes` is {nodes!r}, but the table has no such column. "
            f"Its columns are {_checks.listed(frame.columns, 12)}."
        )
    return frame.drop(nodes).to_native(), frame[nodes].to_numpy()


def _labels(nodes: Any) -> np.ndarray:
    """Labels of any sequence or column as an array; tuples stay single labels."""
    import narwhals as nw

    series = nw.from_native(nodes, series_only=True, pass_through=True)
    if isinstance(series, nw.Series):
        return series.to_numpy()
    if not isinstance(nodes, np.ndarray):
        nodes = list(nodes)
        # NumPy would spread tuples over a second axis and turn 1 next to 'a' into '1'.
        words = sum(isinstance(label, str) for label in nodes)
        if 0 < words < len(nodes) or any(isinstance(label, tuple) for label in nodes):
            array = np.empty(len(nodes), dtype=object)
            array[:] = nodes
            return array
    return np.asarray(nodes)


def text_column(X: Any) -> str:
    """Name the first column that holds no numbers, with what it holds; empty if there is none."""
    import narwhals as nw

    frame = nw.from_native(X, eager_only=True, pass_through=True)
    if isinstance(frame, nw.DataFrame):
        columns = {name: frame[name].to_list() for name in frame.columns}
    elif isinstance(X, np.ndarray) and X.ndim == 2 and X.dtype.kind in "OUS":
        columns = dict(enumerate(X.T.tolist()))
    else:
        return ""
    for name, cells in columns.items():
        for row, cell in enumerate(cells):
            if isinstance(cell, (str, bytes)) and not _is_number(cell):
                return (
                    f"column {name!r} of X holds the text {cell!r} at row {row}. Features must be "
                    "numbers: encode the column or leave it out."
                )
    return ""


def _is_number(text: str | bytes) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def warn_of_columns(data: NodeData, columns: Any) -> None:
    """Warn of columns that are constant, everywhere or at a node, or take few values."""
    for note in notes_on_columns(data, columns):
        warnings.warn(note, FitWarning, stacklevel=3)


def notes_on_columns(data: NodeData, columns: Any) -> list[str]:
    """What a density in these columns would be misleading about, in words."""
    names = range(data.n_features) if columns is None else columns
    name = lambda c: repr(_checks.plain(names[c]))
    low = np.fmin.reduceat(data.rows, data.offsets[:-1])
    high = np.fmax.reduceat(data.rows, data.offsets[:-1])
    least = np.fmin.reduce(low)
    everywhere = least == np.fmax.reduce(high)
    at_node = (low == high) & (data.counts > 1)[:, None] & ~everywhere
    found = [f"column {name(c)} is {least[c]:g} in every row" for c in np.flatnonzero(everywhere)]
    found += [
        f"column {name(c)} has a single value at node "
        + _checks.listed(data.labels[i] for i in np.flatnonzero(at_node[:, c]))
        for c in np.flatnonzero(at_node.any(0))
    ]
    notes = []
    if found and len(data.rows) > 1:
        more = f" (and {len(found) - 5} more such columns)" if len(found) > 5 else ""
        notes.append(
            f"{'; '.join(found[:5])}{more}: it cannot tell rows apart there, and densities are as "
            "high as the smallest variance allows. Leave such columns out, or raise the ridge."
        )
    few = {c: n for c in np.flatnonzero(~everywhere) if (n := _few_values(data.rows[:, c]))}
    if few:
        listed = _checks.listed((f"{_checks.plain(names[c])} ({n})" for c, n in few.items()), 6)
        notes.append(
            f"few values in {listed.replace(chr(39), '')}: a Gaussian density of such a column "
            "grows as components close in on single values. Compare fits of the same columns only."
        )
    return notes


def _few_values(column: np.ndarray) -> int:
    """How many values a column takes where they are few, each many times over; else zero."""
    there = column[~np.isnan(column)]
    if len(there) < 2 * FEW_VALUES:
        return 0
    some = np.unique(there[:: max(1, len(there) // 1000)])  # enough to tell most columns apart
    if len(some) > FEW_VALUES:
        return 0
    n = len(np.unique(there))
    return n if n <= FEW_VALUES and len(there) >= 10 * n else 0


def check_finite(X: np.ndarray, nodes: Any, columns: Any, gaps: bool = False) -> None:
    """Infinity, and NaN unless there may be `gaps`, are refused with row, node and column."""
    bad = np.isinf(X) if gaps else ~np.isfinite(X)
    if not bad.any():
        return
    row, column = np.argwhere(bad)[0]
    name = repr(_checks.plain(columns[column])) if columns is not None else column
    at = "" if nodes is None else f", node {_checks.plain(np.asarray(nodes)[row])!r}"
    what = "NaN" if np.isnan(X[row, column]) else "infinity (inf)"
    raise ValueError(
        f"X contains {what} at row {row}, column {name}{at} ({int(bad.sum())} such values in all). "
        "Drop or fill these rows first" + (f", or {remedy_for_gaps()}." if what == "NaN" else ".")
    )
