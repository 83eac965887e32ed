"""`fedmixtures export`: one node's mixture for use elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

ENDINGS = {"json": ".json", "sklearn": ".npz", "onnx": ".onnx"}
SNIPPET = """\
import numpy as np
from sklearn.mixture import GaussianMixture
p = np.load({file!r})
model = GaussianMixture(len(p["weights"]))
model.weights_, model.means_, model.covariances_ = p["weights"], p["means"], p["covariances"]
model.precisions_cholesky_ = p["precisions_cholesky"]
model.predict_proba(X)  # columns: {columns}"""


def export(
    run: Path,
    /,
    *,
    node: Annotated[str, Parameter(name=["--node", "-n"])],
    to: Literal["json", "sklearn", "onnx"] = "json",
    out: Annotated[Path | None, Parameter(name=["--out", "-o"])] = None,
) -> None:
    """Write one node's mixture as JSON, for scikit-learn, or as ONNX.

    `sklearn` writes the arrays of a fitted GaussianMixture as NPZ and prints the six lines that
    make the estimator from them. It is no pickle, so reading it runs no code and it does not
    depend on the version of scikit-learn. In Python with fedmixtures installed,
    `fedmixtures.load("run/").node("h07")` is that estimator at once.

    Example: `fedmixtures export run/ --node h07 --to sklearn`

    Parameters
    ----------
    run
        Folder of a fitted run.
    node
        The node whose mixture is written.
    to
        The form. ONNX needs the package skl2onnx.
    out
        File to write; by default named like the node. It must not exist yet.
    """
    from fedmixtures.cli.console import say
    from fedmixtures.cli.loaded import load_run, node_label

    model, _, features = load_run(run)
    label = node_label(model, node)
    safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in node)
    path = out or Path(f"{safe}{ENDINGS[to]}")
    if path.exists():
        raise ValueError(
            f"{str(path)!r} already exists and is left as it is. Choose another --out."
        )
    {"json": _json, "sklearn": _sklearn, "onnx": _onnx}[to](model, label, features, path)
    say(f"Written to {path}")
    if to == "sklearn":
        say("\n" + SNIPPET.format(file=str(path), columns=", ".join(features)))


def _json(model: Any, label: Any, features: tuple[str, ...], path: Path) -> None:
    import json

    weights, means, covariances = (part.tolist() for part in model.mixtures_[label].parts)
    content = {
        "node": label,
        "features": list(features),
        "weights": weights,
        "means": means,
        "covariances": covariances,
    }
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")


def _sklearn(model: Any, label: Any, features: tuple[str, ...], path: Path) -> None:
    import numpy as np

    mixture = model.node(label)
    np.savez(
        path,
        weights=mixture.weights_,
        means=mixture.means_,
        covariances=mixture.covariances_,
        precisions_cholesky=mixture.precisions_cholesky_,
        feature_names=np.array(features),
    )


def _onnx(model: Any, label: Any, features: tuple[str, ...], path: Path) -> None:
    try:
        from skl2onnx import to_onnx  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError:
        raise ValueError(
            "ONNX needs the package skl2onnx, which is not installed: pip install skl2onnx"
        ) from None
    import numpy as np

    example = np.zeros((1, len(features)), dtype=np.float32)
    path.write_bytes(to_onnx(model.node(label), example).SerializeToString())
