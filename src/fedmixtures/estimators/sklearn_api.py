"""scikit-learn's conventions: nested parameters (``method__alpha``), and its `GaussianMixture`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator

from fedmixtures.estimators import resolve
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
