"""Skewed columns: what transforms are chosen, and what they bring on rows that were held out.

``python -m reproduction.columns --tables FOLDER`` writes ``results/columns``. Splits 0 to 4 were
looked at while the choice was designed, splits 10 to 19 judge. The same rows, fitted by the default
method with and without transforms; log-densities in the tables' own units. Values of coarse columns
are spread over their resolution where they judge, and for the fit without transforms; the fit with
transforms sees them as the table has them, unless ``--spread`` is given: then both see them
spread, and a difference is what transforms alone bring.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedmixtures import FitWarning, NetworkGaussianMixture
from fedmixtures.metrics import median_interval
from reproduction.page import made as how_made

JUDGE = tuple(range(10, 20))
WHOLE, FEW, MOST_TEST = 300, 50, 300
"""Training rows of a node in the two regimes, and rows that judge."""
MOST_NODES = 6
"""Larger tables are fitted with few rows alone."""
TABLES: dict[str, tuple[list[str], int, dict[str, float]]] = {
    "heart_disease": (
        ["age", "trestbps", "chol", "thalach", "oldpeak"],
        3,
        {"oldpeak": 0.1, "trestbps": 2.0, "age": 1.0, "chol": 1.0, "thalach": 1.0},
    ),
    "beijing_air_daily": (
        ["PM2.5", "PM10", "SO2", "NO2", "CO", "O3", "TEMP", "PRES", "DEWP", "WSPM"],
        4,
        {},
    ),
    "cytof_multicenter": ([f"m{i}" for i in range(8)], 5, {f"m{i}": 1.0 for i in range(8)}),
    "penguins": (
        ["bill_length_mm", "bill_depth_mm", "flipper_length_mm", "body_mass_g"],
        3,
        {},
    ),
}
"""Features, components, and the resolution that values are spread over."""
SIMULATED = "log-normal", "normal", "mixed"


def simulated(kind: str, seed: int) -> pd.DataFrame:
    """Six nodes, three clusters in other shares, five columns: all, none or two log-normal."""
    rng = np.random.default_rng([21, seed])
    nodes = np.repeat(np.arange(6), 400)
    shares = rng.dirichlet(np.full(3, 2.0), size=6)
    cluster = np.array([rng.choice(3, p=shares[i]) for i in nodes])
    centres = 1.5 * rng.standard_normal((3, 5))
    factor = 0.7 * np.tril(rng.standard_normal((3, 5, 5)), -1) * 0.5 + 0.7 * np.eye(5)
    x = centres[cluster] + np.einsum("nij,nj->ni", factor[cluster], rng.standard_normal((2400, 5)))
    skewed = {"log-normal": slice(0, 5), "normal": slice(0, 0), "mixed": slice(0, 2)}[kind]
    x[:, skewed] = np.exp(x[:, skewed])
    return pd.DataFrame(x, columns=[f"x{i}" for i in range(5)]).assign(node=nodes)


def tables(folder: Path) -> Iterator[tuple[str, list[str], int, Any]]:
    """Name, features, components, and the table of a seed."""
    for name, (features, k, resolution) in TABLES.items():
        path = folder / f"{name}.csv"
        if not path.exists():
            continue
        frame = pd.read_csv(path)
        rng, spread = np.random.default_rng(22), frame.copy()
        for column, width in resolution.items():
            spread[column] += width * (rng.random(len(frame)) - 0.5)
        yield name, features, k, lambda seed, both=(frame, spread): both
    for kind in SIMULATED:
        features = [f"x{i}" for i in range(5)]
        yield f"simulated {kind}", features, 3, lambda seed, kind=kind: (simulated(kind, seed),) * 2


def split(nodes: np.ndarray, seed: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows to fit and rows to judge by, within every node."""
    train, test = [], []
    for number, node in enumerate(np.unique(nodes)):
        rng = np.random.default_rng([23, seed, number])
        own = rng.permutation(np.flatnonzero(nodes == node))
        cut = round(0.7 * len(own))
        train.append(own[: min(cut, most)])
        test.append(own[cut : cut + MOST_TEST])
    return np.concatenate(train), np.concatenate(test)


def held_out(
    frames: tuple[pd.DataFrame, pd.DataFrame],
    features: list[str],
    k: int,
    most: int,
    seed: int,
    transform: str,
) -> tuple[float, dict[str, str]]:
    """Mean over nodes of the log-density of held-out rows, and what was chosen."""
    raw, spread = frames
    frame, nodes = raw if transform == "auto" else spread, raw["node"].to_numpy()
    train, test = split(nodes, seed, most)
    model = NetworkGaussianMixture(k, graph="full", transforms=transform, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        model.fit(frame[features].iloc[train], nodes=nodes[train])
        density = model.score_samples(spread[features].iloc[test], nodes=nodes[test])
    each = pd.Series(density).groupby(nodes[test]).mean()
    columns = zip(features, model.transform_.columns, strict=True)
    return float(each.mean()), {n: str(c) for n, c in columns if c.kind != "none"}


def main() -> None:
    """Run all, write numbers and a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("results/columns"))
    parser.add_argument("--seeds", type=int, nargs="+", default=JUDGE)
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--spread", action="store_true")
    asked = parser.parse_args()
    found: list[dict[str, Any]] = []
    for name, features, k, table in tables(asked.tables):
        if asked.only and name not in asked.only:
            continue
        nodes = table(0)[0]["node"].nunique()
        for regime, most in (("few", FEW), ("most", WHOLE)):
            if regime == "most" and nodes > MOST_NODES:
                continue  # for time
            values: dict[str, list[float]] = {"none": [], "auto": []}
            chosen = []
            for seed in asked.seeds:
                for way, of_way in values.items():
                    raw, spread = table(seed)
                    frames = (spread if asked.spread else raw), spread
                    density, told = held_out(frames, features, k, most, seed, way)
                    of_way.append(density)
                    chosen += [told] if way == "auto" else []
            gain = np.subtract(values["auto"], values["none"])
            found.append(
                {
                    "table": name,
                    "regime": regime,
                    "rows by node": most,
                    **values,
                    "gain": list(median_interval(gain)),
                    "least gain": float(gain.min()),
                    "chosen": chosen,
                }
            )
            print(name, regime, *(f"{g:.3f}" for g in gain), chosen[-1], flush=True)
    command = " ".join(["python -m reproduction.columns --tables FOLDER", *_told(asked)])
    made = how_made(command) | {"seeds": list(asked.seeds)}
    asked.out.mkdir(parents=True, exist_ok=True)
    result = json.dumps({"made": made, "tables": found}, indent=1)
    (asked.out / "result.json").write_text(result + "\n", "utf-8")
    (asked.out / "table.md").write_text(page(found, made), "utf-8")


def _told(asked: argparse.Namespace) -> list[str]:
    """What else was asked for, as it is written."""
    only = ["--only", *asked.only] if asked.only else []
    return [*only, *(["--spread"] if asked.spread else [])]


def page(found: list[dict[str, Any]], made: dict[str, Any]) -> str:
    """The numbers as a table in Markdown."""
    lines = [
        "| table | training rows a node | as they are | transformed | gain | least gain | chosen |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for one in found:
        middle, low, high = one["gain"]
        times: dict[str, int] = {}
        for told in one["chosen"]:
            for column, what in told.items():
                word = f"{column} {'log' if what == 'log' else 'power'}"
                times[word] = times.get(word, 0) + 1
        listed = ", ".join(f"{word} ({n})" for word, n in sorted(times.items())) or "none"
        lines.append(
            f"| {one['table']} | {one['rows by node']} | {np.median(one['none']):.3f} | "
            f"{np.median(one['auto']):.3f} | {middle:.3f} [{low:.3f}, {high:.3f}] | "
            f"{one['least gain']:.3f} | {listed} |"
        )
    seeds = f"splits {made['seeds'][0]} to {made['seeds'][-1]}"
    lines += ["", f"Made by `{made['command']}` on {made['date']}, {seeds}."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
