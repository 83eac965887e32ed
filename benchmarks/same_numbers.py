"""The numbers of a list of small fits, to compare before and after a change of the code.

    python -m benchmarks.same_numbers before.npz
    python -m benchmarks.same_numbers after.npz --against before.npz

Only the public estimator is used, so that the list outlives the modules behind it. The comparison
prints for every fit whether all bits are equal, or the largest difference relative to the largest
entry of the array it is in.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import fedmixtures as fm
from fedmixtures.data import shifted_blocks

PARTS = ("weights", "means", "covariances", "objective")
TOLERANCE = 1e-10
"""Above this relative difference in float64 a change is more than another order of summation."""


def fits() -> dict[str, dict[str, Any]]:
    """Settings of the estimator by name; beside them `n_features` of the rows."""
    few = {"n_rounds": 6}
    return {
        "gtv-euclidean": {"method": "gtv-euclidean", **few},
        "gtv-kl": {"method": "gtv-kl", **few},
        "gtv-mmd": {"method": "gtv-mmd", **few},
        "gtv-mmd auto": {"method": fm.GTVMin(learning_rate="auto"), **few},
        "gtv-unscented": {"method": fm.GTVMin(fm.UnscentedKL()), **few},
        "gtv-mmd d=5": {"method": "gtv-mmd", "n_features": 5, **few},
        "gtv-mmd float32": {"method": "gtv-mmd", "dtype": "float32", **few},
        "gtv-mmd knn": {"method": fm.GTVMin(alpha=0.3), "graph": "knn:2", **few},
        "trust": {"method": "trust"},
        "local": {"method": "local"},
        "local jax": {"method": fm.Local(engine="jax")},
        "centralized": {"method": "centralized"},
        "fedkmeans": {"method": "fedkmeans", **few},
        "fedkmeans hub": {"method": fm.FedKMeans(server=True), **few},
        "fedgrem": {"method": "fedgrem", **few},
        "fedgrem shared": {"method": fm.FedGrEM(init="shared", prior=fm.ShapePrior()), **few},
        "consensus-em": {"method": "consensus-em", **few},
        "consensus-em aligned": {"method": fm.ConsensusEM(align=True, init="shared"), **few},
        "fedem": {"method": "fedem", **few},
        "fedgengmm": {"method": "fedgengmm"},
        "ifca": {"method": fm.IFCA(n_groups=2), **few},
    }


def fitted(n_features: int = 2, graph: Any = "full", **settings: Any) -> dict[str, np.ndarray]:
    """The numbers of one fit of six nodes in two blocks, 30 rows each."""
    data = shifted_blocks(2, 3, n_components=3, n_features=n_features, n_train=30, seed=7)
    model = fm.NetworkGaussianMixture(
        3, graph=graph, random_state=11, transforms="none", **settings
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(data.X, nodes=data.nodes)
    arrays = model.weights_, model.means_, model.covariances_, model.history_.objective
    return dict(zip(PARTS, map(np.asarray, arrays), strict=True))


def recorded(only: str) -> dict[str, np.ndarray]:
    """All fits whose name contains `only`, as ``name/part``."""
    found = {}
    for name, settings in fits().items():
        if only in name:
            found |= {f"{name}/{part}": array for part, array in fitted(**settings).items()}
    return found


def digest(arrays: list[np.ndarray]) -> str:
    """The same for the same bits alone."""
    return hashlib.sha256(b"".join(map(np.ndarray.tobytes, arrays))).hexdigest()[:16]


def difference(old: np.ndarray, new: np.ndarray) -> float:
    """Largest difference, as a share of the largest entry."""
    if old.shape != new.shape or not (np.isfinite(old) == np.isfinite(new)).all():
        return np.inf
    finite = np.isfinite(old)
    scale = np.abs(old[finite]).max(initial=0) or 1.0
    return float(np.abs(old[finite] - new[finite]).max(initial=0) / scale)


def names_of(record: dict[str, np.ndarray]) -> list[str]:
    """Names of the fits in a record."""
    return list(dict.fromkeys(key.rpartition("/")[0] for key in record))


def summary(record: dict[str, np.ndarray]) -> dict[str, Any]:
    """Digest and rounded values of each fit, short enough to keep beside the code."""
    lines = {}
    for name in names_of(record):
        arrays = [record[f"{name}/{part}"] for part in PARTS]
        lines[name] = {
            "digest": digest(arrays),
            "objective": float(f"{arrays[3][-1]:.10g}"),
            "means": [float(f"{value:.6g}") for value in arrays[1][0].ravel()],
        }
    return lines


def compare(
    old: dict[str, np.ndarray], new: dict[str, np.ndarray], tolerance: float = TOLERANCE
) -> int:
    """Print a line per fit; the number of float64 fits that differ by more than rounding."""
    beyond = 0
    for name in names_of(new):
        if f"{name}/means" not in old:
            print(f"{name:22s} not in the old record")
            continue
        pairs = [(old[f"{name}/{part}"], new[f"{name}/{part}"]) for part in PARTS]
        if digest([a for a, _ in pairs]) == digest([b for _, b in pairs]):
            print(f"{name:22s} bitwise")
            continue
        found = {part: difference(*pair) for part, pair in zip(PARTS, pairs, strict=True)}
        beyond += max(found.values()) > tolerance and "float32" not in name
        print(f"{name:22s} " + "  ".join(f"{part} {value:.1e}" for part, value in found.items()))
    return beyond


def main() -> int:
    """Record, and compare if there is something to compare with."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("record", type=Path, help="where to write the numbers (.npz)")
    parser.add_argument("--against", type=Path, help="an earlier record")
    parser.add_argument("--tolerance", type=float, default=TOLERANCE, help="of float64 fits")
    parser.add_argument("--summary", type=Path, help="also digests and rounded values (.json)")
    parser.add_argument("--only", default="", help="fits whose name contains this")
    arguments = parser.parse_args()
    record = recorded(arguments.only)
    np.savez(arguments.record, **record)
    if arguments.summary:
        arguments.summary.write_text(json.dumps(summary(record), indent=1) + "\n")
    if arguments.against is None:
        return 0
    with np.load(arguments.against) as old:
        return min(compare(dict(old), record, arguments.tolerance), 1)


if __name__ == "__main__":
    sys.exit(main())
