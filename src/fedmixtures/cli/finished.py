"""What can be done with a finished run: `predict`, `report` and `export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from fedmixtures.cli.main import begin, say

ENDINGS = {"json": ".json", "sklearn": ".npz", "onnx": ".onnx"}
SNIPPET = """\
import numpy as np
from sklearn.mixture import GaussianMixture
p = np.load({file!r})
model = GaussianMixture(len(p["weights"]), covariance_type=str(p["covariance_type"]))
model.weights_, model.means_, model.covariances_ = p["weights"], p["means"], p["covariances"]
model.precisions_cholesky_ = p["precisions_cholesky"]
model.predict_proba(X)  # columns: {columns}"""


def predict(
    run: Path,
    /,
    *data: str,
    nodes: Annotated[str | None, Parameter(name=["--nodes", "-n"])] = None,
    out: Annotated[Path, Parameter(name=["--out", "-o"])] = Path("predictions.parquet"),
    delimiter: str | None = None,
) -> None:
    """Assign new rows to the components of their node, with probabilities and log-density.

    Example: `fedmixtures predict run/ new.csv --out new-components.csv`

    Parameters
    ----------
    run
        Folder of a fitted run.
    data
        New rows, in the form the run was fitted on.
    nodes
        Column that names the node; by default the one of the run.
    out
        File to write, Parquet or CSV by its ending; it must not exist yet.
    delimiter
        Between the cells of a CSV; by default that of the run.
    """
    begin(f"Reading {run} and {' '.join(data[:3]) or 'nothing'}")
    import numpy as np

    from fedmixtures import _checks
    from fedmixtures.cli.fitting import in_units_of_fit, load_run, new_rows
    from fedmixtures.estimators.scoring import assigned, log_joints, probabilities, user_densities
    from fedmixtures.estimators.solutions import unknown
    from fedmixtures.io.runs import check_new, write_assignments

    model, settings, features = load_run(run)
    check_new(out)
    table, rows = new_rows(model, settings, features, data, nodes, delimiter)
    if new := unknown(model.solution_, rows.labels):
        say(
            f"Note: {_checks.listed(new)} is no node of this run: rows are taken as everyone's. "
            f"Known nodes are {_checks.listed(model.solution_.labels)}.",
            "yellow",
        )
    joint = log_joints(model.solution_, in_units_of_fit(model, rows))
    density = user_densities(model.solution_, model.transform_, rows)
    columns = {
        "row": np.arange(table.n_rows),
        "node": table.nodes,
        "component": assigned(joint),
        "log_density": density,
    }
    write_assignments(out, columns, probabilities(joint))
    say(
        f"{table.n_rows:,} rows of {len(np.unique(table.nodes)):,} nodes, mean log-density "
        f"{density.mean():.3f}. Written to {out}"
    )


def report(
    run: Path,
    /,
    *,
    out: Annotated[Path | None, Parameter(name=["--out", "-o"])] = None,
    static: Annotated[bool, Parameter(negative="")] = False,
    include_rows: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Write the report page of a run, from what the run folder holds.

    Example: `fedmixtures report run/ --static --out small.html`

    Parameters
    ----------
    run
        Folder of a fitted run.
    out
        File to write; by default report.html in the folder, or report-static.html.
    static
        A light version without a script: pictures only, for mail and print.
    include_rows
        Also show every row as a dot. The page then holds your rows: treat it as you treat them.
        Needs the data files of the run.
    """
    begin(f"Reading {run}")
    import json

    from fedmixtures.cli.fitting import site_content
    from fedmixtures.io.runs import CONTENT, RunFolder, check_new, write_text
    from fedmixtures.report.page import render, size

    folder = RunFolder.existing(run)
    config = folder.read_config()
    if "adapted" in config:
        raise ValueError(
            f"the run in {str(run)!r} has one node more than was fitted: its page is made in "
            "Python, by fedmixtures.load(...).report(path, X, nodes)."
        )
    if "site" in config:
        content = site_content(folder)
    else:
        content = json.loads(folder.finished(CONTENT).read_text(encoding="utf-8"))
    if include_rows:
        _add_rows(folder, content)
    check_new(out)
    path = out or folder.file("report-static.html" if static else "report.html")
    write_text(path, render(content, static))
    say(f"Written to {path} ({size(path.stat().st_size)})")


def _add_rows(folder, content: dict) -> None:
    """Places of all rows on the planes of the page, from the data files of the run."""
    import numpy as np

    from fedmixtures.cli.fitting import in_units_of_fit, load_run, new_rows
    from fedmixtures.report import geometry

    model, settings, features = load_run(folder.path)
    _, data = new_rows(model, settings, features, settings.data)
    data = in_units_of_fit(model, data).continuous
    if [str(label) for label in data.labels] != content["nodes"]["label"]:
        raise ValueError("the data files have changed since the run: they hold other nodes.")
    for view in content["views"]:
        plane = geometry.Plane(
            view["name"],
            view["x"],
            view["y"],
            np.array(view["axes"]),
            np.array(view["low"]),
            np.array(view["high"]),
        )
        view["rows"] = geometry.text(geometry.pack_rows(data, plane))


def export(
    run: Path,
    /,
    *,
    node: Annotated[str, Parameter(name=["--node", "-n"])],
    to: Literal["json", "sklearn", "onnx"] = "json",
    level: str | None = None,
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
    level
        Where nodes have several densities (own, group, everyone): which of them, or `density` for
        all of them weighed. By default the mixture that rows are assigned by.
    out
        File to write; by default named like the node. It must not exist yet.
    """
    begin(f"Reading {run}")
    from fedmixtures.cli.fitting import load_run, node_label
    from fedmixtures.io.runs import check_new

    model, _, features = load_run(run)
    features = model.transform_.names(features)
    label = node_label(model, node)
    safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in node)
    path = out or Path(f"{safe}{ENDINGS[to]}")
    check_new(path)
    _write(model.node(label, level), to, label, features, path)
    say(f"Written to {path}")
    if to == "sklearn":
        say("\n" + SNIPPET.format(file=str(path), columns=", ".join(features)))


def _write(mixture: Any, to: str, label: Any, features: tuple[str, ...], path: Path) -> None:
    """One node's scikit-learn mixture in the form that was asked for."""
    import json

    import numpy as np

    names = ("weights", "means", "covariances")
    arrays = {name: getattr(mixture, f"{name}_") for name in names}
    kind = {"covariance_type": mixture.covariance_type}
    if to == "json":
        content = {"node": label, "features": list(features)} | kind
        content |= {name: array.tolist() for name, array in arrays.items()}
        path.write_text(json.dumps(content, indent=1), encoding="utf-8")
    elif to == "sklearn":
        factors = {"precisions_cholesky": mixture.precisions_cholesky_}
        np.savez(path, **arrays, **factors, **kind, feature_names=np.array(features))
    else:
        try:
            from skl2onnx import to_onnx  # pyright: ignore[reportMissingImports]
        except ModuleNotFoundError:
            raise ValueError(
                "ONNX needs the package skl2onnx, which is not installed: pip install skl2onnx"
            ) from None
        example = np.zeros((1, len(features)), dtype=np.float32)
        path.write_bytes(to_onnx(mixture, example).SerializeToString())
