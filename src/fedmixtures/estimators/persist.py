"""Fitted models as files: safetensors with a JSON header, no pickle."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmixtures.data.categories import Categories
from fedmixtures.data.transform import Column, Transform
from fedmixtures.engine.solution import Certificate, FitWarning, History, Solution, Status, Traffic
from fedmixtures.estimators.description import DescribedColumn, Description
from fedmixtures.graph.network import Network
from fedmixtures.io.runs import MODEL, PARTS
from fedmixtures.io.storage import UnknownType, decode, encode, read_arrays, write_arrays
from fedmixtures.methods.base import Diagnostics, Joined, Levels
from fedmixtures.methods.registry import registered_classes
from fedmixtures.mixture.mixture import Mixture

if TYPE_CHECKING:
    from fedmixtures.estimators.network_mixture import NetworkGaussianMixture

FORMAT = 2
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
NOT_STORED = ("graph", "on_round", "init", "checkpoint", "devices", "keep_interrupted", "verbose")
"""Parameters that are not settings: the graph is stored as edges, the rest belongs to a session."""


def save(
    path: str | Path,
    solution: Solution,
    network: Network,
    params: Mapping[str, Any],
    *,
    labelled: bool = True,
    feature_names: Any = None,
    cluster_names: Any = None,
    transform: Transform | None = None,
    categories: Categories | None = None,
    described: Description | None = None,
) -> Path:
    """Write a model to `path`, or into it if it is a folder; `params` are the estimator's."""
    import fedmixtures

    path = Path(path)
    path = path / MODEL if path.is_dir() else path
    arrays = {"source": network.source, "target": network.target, "edge_weight": network.weight}
    arrays |= _named("", solution.theta)
    arrays |= _fields("history.", solution.history)
    if solution.rows is not None:
        arrays["rows"] = solution.rows
    header: dict[str, Any] = {}
    if solution.levels is not None:
        arrays |= _named("levels.", solution.levels.theta) | _fields("levels.", solution.levels)
        header["levels"] = list(solution.levels.names)
    if solution.joined is not None:
        arrays |= _fields("joined.", solution.joined)
    if solution.diagnostics is not None:
        for kind in ("nodes", "edges"):
            for name, values in getattr(solution.diagnostics, kind).items():
                arrays[f"diagnostics.{kind}.{name}"] = np.asarray(values)
        header["diagnostics"] = True
    if described is not None:
        arrays |= _fields("described.", described)
        header["described"] = encode(described.columns)
    params = {name: value for name, value in params.items() if name not in NOT_STORED}
    header |= {
        "kind": "model",
        "format": FORMAT,
        "version": fedmixtures.__version__,
        "labels": encode(list(network.labels)),
        "labelled": labelled,
        "feature_names": encode(feature_names),
        "cluster_names": encode(cluster_names),
        "transform": encode(transform),
        "categories": encode(categories),
        "params": {name: encode(value) for name, value in params.items()},
        "status": str(solution.status),
        "message": solution.message,
        "n_rounds": solution.n_rounds,
        "converged": solution.converged,
        "certificate": encode(solution.certificate),
        "traffic": encode(solution.traffic),
    }
    return write_arrays(path, arrays, header)


def _named(prefix: str, theta: Mixture) -> dict[str, np.ndarray]:
    """The parts of a stack of mixtures."""
    return {f"{prefix}{name}": np.asarray(p) for name, p in zip(PARTS, theta.parts, strict=True)}


def _fields(prefix: str, record: Any) -> dict[str, np.ndarray]:
    """The arrays of a record."""
    found = {f.name: getattr(record, f.name) for f in dataclasses.fields(record)}
    return {f"{prefix}of.{n}": v for n, v in found.items() if isinstance(v, np.ndarray)}


def _below(prefix: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays whose names begin so, by the rest of their names."""
    return {n.removeprefix(prefix): v for n, v in arrays.items() if n.startswith(prefix)}


def load(path: str | Path) -> NetworkGaussianMixture:
    """Read a fitted model from a file, or from the `model.safetensors` of a folder."""
    path = Path(path)
    path = path / MODEL if path.is_dir() else path
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
    theta = _mixture("", arrays)
    names = decode(header["feature_names"], {})
    if len(theta.weights) != len(labels):
        raise ValueError(f"{len(labels)} labels for {len(theta.weights)} mixtures")
    names = None if names is None else tuple(str(name) for name in names)
    kinds = decode(header.get("categories"), {"Categories": Categories})
    columns = theta.n_features if kinds is None else kinds.n_columns
    if kinds is not None and theta.n_features != len(kinds.continuous) + sum(kinds.sizes):
        raise ValueError(f"{kinds.sizes} categories in {theta.n_features} columns")
    if names is not None and len(names) != columns:
        raise ValueError(f"{len(names)} feature names for {columns} features")
    levels = diagnostics = None
    if "levels" in header:
        of = _below("levels.of.", arrays)
        levels = Levels(tuple(header["levels"]), _mixture("levels.", arrays), **of)
    if "diagnostics" in header:
        diagnostics = Diagnostics(
            _below("diagnostics.nodes.", arrays), _below("diagnostics.edges.", arrays)
        )
    joined = _below("joined.of.", arrays)
    records = {"Certificate": Certificate, "Traffic": Traffic}
    solution = Solution(
        labels,
        theta,
        History(**_below("history.of.", arrays)),
        Status(header["status"]),
        header["n_rounds"],
        header["message"],
        decode(header["certificate"], records),
        decode(header["traffic"], records),
        diagnostics,
        converged=header["converged"],
        levels=levels,
        joined=Joined(**joined) if joined else None,
        rows=arrays.get("rows"),
    )
    model.graph = network
    taken = decode(header.get("transform"), {"Transform": Transform, "Column": Column})
    if taken is not None and len(taken.columns) != theta.n_features:
        raise ValueError(f"{len(taken.columns)} transforms for {theta.n_features} features")
    known = {"labelled": header["labelled"], "feature_names": names, "transform": taken}
    known["categories"] = kinds
    if "described" in header:
        columns = decode(header["described"], {"DescribedColumn": DescribedColumn})
        known["described"] = told = Description(columns, **_below("described.of.", arrays))
        if told.means.shape[1:] != (solution.n_clusters + 1, len(told.cells)):
            raise ValueError(f"a description of {told.means.shape[1:]} cells")
    model.adopt(solution, network, **known)
    called = decode(header.get("cluster_names"), {})
    return model if called is None else model.name_clusters(called)


def _mixture(prefix: str, arrays: dict[str, np.ndarray]) -> Mixture:
    return Mixture(*(arrays[f"{prefix}{name}"] for name in PARTS))


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
    """Classes that settings may be made of: public dataclasses, and what is registered by name."""
    import fedmixtures

    found = {name: getattr(fedmixtures, name) for name in fedmixtures.__all__}
    is_record = lambda c: isinstance(c, type) and dataclasses.is_dataclass(c)
    return registered_classes() | {name: c for name, c in found.items() if is_record(c)}
