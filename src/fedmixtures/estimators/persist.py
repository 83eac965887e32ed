"""Fitted models as files: safetensors with a JSON header, no pickle."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmixtures.engine.solution import Certificate, FitWarning, History, Traffic
from fedmixtures.graph.network import Network
from fedmixtures.io.arrays import read_arrays, write_arrays
from fedmixtures.io.codec import UnknownType, decode, encode
from fedmixtures.methods.base import Account
from fedmixtures.methods.trust_then_pool.account import Trust
from fedmixtures.mixture.mixture import Mixture

if TYPE_CHECKING:
    from fedmixtures.estimators.network_mixture import NetworkGaussianMixture

FORMAT = 1
FILE_NAME = "model.safetensors"
BROKEN = (
    KeyError,
    TypeError,
    ValueError,
    IndexError,
    AttributeError,
    OverflowError,
    RecursionError,
)
"""What a header that somebody else wrote may lead to."""
NOT_STORED = ("graph", "on_round", "init", "checkpoint", "devices", "keep_interrupted")
"""Parameters that are not settings: the graph is stored as edges, the rest belongs to a session."""


def save(model: NetworkGaussianMixture, path: str | Path) -> Path:
    """Write a fitted model to `path`, or into it if it is a folder."""
    import fedmixtures

    path = Path(path)
    path = path / FILE_NAME if path.is_dir() else path
    network, history = model.network_, model.history_
    parts = map(np.asarray, model._theta.parts)
    arrays = dict(zip(("weights", "means", "covariances"), parts, strict=True))
    arrays |= {"source": network.source, "target": network.target, "edge_weight": network.weight}
    for field in dataclasses.fields(History):
        values = getattr(history, field.name)
        if values is not None:
            arrays[f"history.{field.name}"] = values
    params = {k: v for k, v in model.get_params(deep=False).items() if k not in NOT_STORED}
    header = {
        "kind": "model",
        "format": FORMAT,
        "version": fedmixtures.__version__,
        "labels": encode(list(network.labels)),
        "labelled": model._labelled,
        "feature_names": encode(getattr(model, "feature_names_in_", None)),
        "params": {name: encode(value) for name, value in params.items()},
        "status": model.status_,
        "n_rounds": model.n_iter_,
        "converged": model.converged_,
        "certificate": encode(model.certificate_),
        "traffic": encode(model.traffic_),
        "account": encode(getattr(model, "account_", None)),
    }
    return write_arrays(path, arrays, header)


def load(path: str | Path) -> NetworkGaussianMixture:
    """Read a fitted model from a file, or from the `model.safetensors` of a folder."""
    path = Path(path)
    path = path / FILE_NAME if path.is_dir() else path
    arrays, header = read_arrays(path, "model")
    written = header.get("format")
    if isinstance(written, int) and written > FORMAT:
        raise ValueError(
            f"{str(path)!r} was written by fedmixtures {header.get('version')} in a newer format. "
            "Update fedmixtures to read it."
        )
    try:
        return _model_of(arrays, header)
    except BROKEN as error:
        raise ValueError(
            f"{str(path)!r} does not hold a whole fedmixtures model: its header does not fit its "
            f"arrays ({type(error).__name__}: {error}). Save the model again."
        ) from None


def _model_of(arrays: dict[str, np.ndarray], header: dict[str, Any]) -> NetworkGaussianMixture:
    """The model of a file that was written whole; anything may be raised for others."""
    from fedmixtures.estimators.network_mixture import NetworkGaussianMixture

    if header["format"] != FORMAT:
        raise ValueError(f"format {header['format']!r}")
    model = NetworkGaussianMixture(**_params(header["params"]))
    labels = tuple(decode(header["labels"], {}))
    network = Network(labels, arrays["source"], arrays["target"], arrays["edge_weight"])
    model.graph = model.network_ = network
    model._labelled = header["labelled"]
    names = decode(header["feature_names"], {})
    if names is not None:
        model.feature_names_in_ = names.astype(object)
    model.n_features_in_ = arrays["means"].shape[-1]
    if len(arrays["weights"]) != len(labels):
        raise ValueError(f"{len(labels)} labels for {len(arrays['weights'])} mixtures")
    if names is not None and len(names) != model.n_features_in_:
        raise ValueError(f"{len(names)} feature names for {model.n_features_in_} features")
    stored = {f.name: f"history.{f.name}" for f in dataclasses.fields(History)}
    history = {name: arrays[key] for name, key in stored.items() if key in arrays}
    model._adopt(
        labels,
        Mixture(arrays["weights"], arrays["means"], arrays["covariances"]),
        History(**history),
        header["status"],
        header["n_rounds"],
    )
    model.converged_ = bool(header.get("converged", False))
    kinds = (Account, Certificate, Traffic, Trust)
    records = {kind.__name__: kind for kind in kinds}
    model.certificate_ = decode(header["certificate"], records)
    model.shards_ = None
    model.traffic_ = decode(header["traffic"], records)
    model.account_ = decode(header.get("account"), records)
    return model


def _params(stored: dict[str, Any]) -> dict[str, Any]:
    """Settings as they were; a method of the user's own cannot be made again from its name."""
    params = {}
    for name, value in stored.items():
        try:
            params[name] = decode(value, _public_classes())
        except UnknownType as unknown:
            warnings.warn(
                f"the model was fitted with `{name}` of class {unknown}, which is not part of "
                "fedmixtures; the mixtures are loaded, the setting is not.",
                FitWarning,
                stacklevel=3,
            )
    return params


def _public_classes() -> dict[str, type]:
    """Classes that settings may be made of: public dataclasses of this package."""
    import fedmixtures

    found = {name: getattr(fedmixtures, name) for name in fedmixtures.__all__}
    is_record = lambda c: isinstance(c, type) and dataclasses.is_dataclass(c)
    return {name: c for name, c in found.items() if is_record(c)}
