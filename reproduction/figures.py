"""The paper's figures, in its layout; legible in grey by lines, markers and shades."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedmixtures.metrics import Interval
from reproduction.published import Published
from reproduction.rendering import METRICS

# Shades from dark to light, so that neighbours differ in grey as well as in colour.
STYLES = [
    ("#c1272d", "-", "o"),
    ("#0000a7", "--", "s"),
    ("#008176", "-.", "^"),
    ("#555555", ":", "D"),
    ("#000000", (0, (6, 2)), "x"),
    ("#b3770a", (0, (1, 1)), "v"),
    ("#999999", (0, (3, 1, 1, 1)), "P"),
    ("#7a4fa3", (0, (5, 1)), "*"),
]
SETTINGS: dict[Any, Any] = {
    "font.size": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "svg.hashsalt": "fedmixtures",  # the same figure is the same file
    "svg.fonttype": "none",
}


def panels(n: int, width: float = 2.5, height: float = 2.3) -> tuple[Any, np.ndarray]:
    """A row of panels of this size, in inches."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with matplotlib.rc_context(SETTINGS):
        fig, axes = pyplot.subplots(1, n, figsize=(width * n, height), squeeze=False)
    return fig, axes[0]


def curve(
    axis: Any,
    label: str,
    number: int,
    points: Sequence[tuple[float | None, Interval, Published | None]],
) -> None:
    """Medians with their interval over a sweep, and a cross where the paper quotes a number."""
    colour, line, marker = STYLES[number % len(STYLES)]
    x = np.array([at for at, _, _ in points], dtype=float)
    values = np.array([tuple(ours) for _, ours, _ in points], dtype=float)
    values[~np.isfinite(values[:, 0])] = np.nan  # diverged: no point
    axis.plot(x, values[:, 0], color=colour, linestyle=line, marker=marker, ms=3, lw=1, label=label)
    axis.fill_between(x, values[:, 1], values[:, 2], color=colour, alpha=0.15, linewidth=0)
    quoted = [(at, paper.median) for at, _, paper in points if paper and paper.median is not None]
    if quoted:
        axis.plot(*zip(*quoted, strict=True), "+", color=colour, ms=8, mew=1.2)


def band(axis: Any, label: str, number: int, x: np.ndarray, values: np.ndarray) -> None:
    """A curve of many points with its interval; values (points, 3)."""
    colour, line, _ = STYLES[number % len(STYLES)]
    axis.plot(x, values[:, 0], color=colour, linestyle=line, lw=1.2, label=label)
    axis.fill_between(x, values[:, 1], values[:, 2], color=colour, alpha=0.15, linewidth=0)


def line(axis: Any, label: str, number: int, x: Any, y: Any, marked: bool = True) -> None:
    """A curve without an interval."""
    colour, style, marker = STYLES[number % len(STYLES)]
    shape = {"marker": marker, "ms": 3} if marked else {}
    axis.plot(x, y, color=colour, linestyle=style, lw=1, label=label, **shape)


def dots(axis: Any, label: str, number: int, x: Any, names: Sequence[str]) -> None:
    """A marker per name on a line of its own."""
    colour, _, marker = STYLES[number % len(STYLES)]
    y = np.arange(len(names))[::-1]
    axis.plot(x, y, linestyle="", color=colour, marker=marker, ms=3, label=label)
    axis.set_yticks(y, names)


def level(axis: Any, label: str, interval: Interval) -> None:
    """A number that has no rounds."""
    axis.axhline(interval.median, color="#555555", linestyle=":", lw=1, label=label)


def mark(axis: Any, value: float, text: str) -> None:
    """A thin line with a name."""
    axis.axhline(value, color="#999999", lw=0.6)
    axis.annotate(text, (0.01, value), xycoords=("axes fraction", "data"), va="bottom", fontsize=7)


def finish(axis: Any, label: str, metric: str, log: bool = False) -> None:
    """Labels and scale."""
    if log:
        axis.set_xscale("log")
    axis.set_xlabel(label, fontsize=8)
    axis.set_ylabel(METRICS.get(metric, metric), fontsize=8)
    axis.tick_params(labelsize=7)
    axis.grid(True, lw=0.3, color="#dddddd")
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def legend(fig: Any, *axes: Any) -> None:
    """One legend for all panels, above them."""
    shown: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            shown.setdefault(label, handle)
    labels, handles = list(shown), list(shown.values())
    per_line = max(2, round(fig.get_figwidth() / 1.4))
    lines = -(-len(labels) // per_line)
    fig.tight_layout(rect=(0, 0, 1, 1 - 0.07 * lines))
    fig.legend(
        handles, labels, loc="upper center", ncol=per_line, frameon=False, fontsize=7, borderpad=0
    )


def save(fig: Any, folder: Path) -> None:
    """As PNG and SVG, without a date inside."""
    import matplotlib
    from matplotlib import pyplot

    with matplotlib.rc_context(SETTINGS):
        fig.savefig(folder / "figure.png", dpi=200)
        fig.savefig(folder / "figure.svg", metadata={"Date": None})
    pyplot.close(fig)
