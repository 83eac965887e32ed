"""`fedmixtures report`: the page of a run, once more."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


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
    import json

    from fedmixtures.cli.console import say, size
    from fedmixtures.io.runs import CONTENT, RunFolder, write_text
    from fedmixtures.report.page import render

    folder = RunFolder.existing(run)
    if not folder.file(CONTENT).is_file():
        raise ValueError(
            f"the run in {str(run)!r} is not finished. Go on with: fedmixtures fit --resume {run}"
        )
    content = json.loads(folder.file(CONTENT).read_text(encoding="utf-8"))
    if include_rows:
        _add_rows(folder, content)
    if out is not None and out.exists():
        raise ValueError(f"{str(out)!r} already exists and is left as it is. Choose another --out.")
    path = out or folder.file("report-static.html" if static else "report.html")
    write_text(path, render(content, static))
    say(f"Written to {path} ({size(path.stat().st_size)})")


def _add_rows(folder, content: dict) -> None:
    """Places of all rows on the planes of the page, from the data files of the run."""
    import numpy as np

    from fedmixtures.cli.settings import FitSettings
    from fedmixtures.data.node_data import NodeData
    from fedmixtures.io.tables import read_table
    from fedmixtures.report import planes

    settings = FitSettings.from_config(folder.read_config())
    table = read_table(settings.data, settings.nodes, settings.features, settings.delimiter)
    data = NodeData.from_rows(table.rows, table.nodes)
    if [str(label) for label in data.labels] != content["nodes"]["label"]:
        raise ValueError("the data files have changed since the run: they hold other nodes.")
    for view in content["views"]:
        plane = planes.Plane(
            view["name"],
            view["x"],
            view["y"],
            np.array(view["axes"]),
            np.array(view["low"]),
            np.array(view["high"]),
        )
        view["rows"] = planes.text(planes.pack_rows(data, plane))
