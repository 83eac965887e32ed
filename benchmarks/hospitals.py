"""A simulated table in the likeness of real ones: many small hospitals, gaps, skew, an identifier.

186 hospitals with 2 to 30 patients each, 2,205 in all. Hospitals are of four types, which differ
in how often each of four sorts of patients comes; each measures a little differently. Laboratory
values are skewed; that of a patient is missing as a whole in one of four rows, single cells now and
then: 15 % of all. `patient` is an identifier, `unit` a code without an order, `died` a label.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

HOSPITALS, PATIENTS = 186, 2205
LEAST, MOST = 2, 30
VITAL = ("age", "heart_rate", "mean_pressure", "temperature", "respiration")
LABORATORY = ("sodium", "creatinine", "urea", "glucose", "leucocytes")
SKEWED = ("creatinine", "urea", "glucose", "leucocytes")
FEATURES = (*VITAL, *LABORATORY)
NO_PANEL, NO_CELL = 0.25, 0.02
"""Chance that a patient has no laboratory values; that a single other cell is empty."""

# Of each sort of patients, in the middle; of skewed ones the logarithm.
CENTRES = np.array(
    [
        [62.0, 88.0, 92.0, 36.8, 18.0, 138.0, -0.1, 2.8, 4.9, 2.3],
        [71.0, 112.0, 62.0, 38.4, 27.0, 136.0, 0.6, 3.6, 5.0, 2.9],
        [66.0, 78.0, 98.0, 36.5, 17.0, 137.0, 1.7, 4.3, 4.9, 2.1],
        [44.0, 101.0, 84.0, 36.9, 22.0, 132.0, -0.3, 2.6, 5.9, 2.4],
    ]
)
SPREAD = np.array([12.0, 13.0, 11.0, 0.5, 4.0, 3.5, 0.35, 0.4, 0.3, 0.35])
TYPES = np.array(
    [[0.7, 0.1, 0.1, 0.1], [0.3, 0.5, 0.1, 0.1], [0.3, 0.1, 0.5, 0.1], [0.4, 0.1, 0.1, 0.4]]
)


def table(seed: int = 0, *, gaps: bool = True, n_hospitals: int = HOSPITALS) -> pd.DataFrame:
    """The table, a row for each patient; without `gaps` only the rows that have none."""
    rng = np.random.default_rng([seed, 186])
    counts = _counts(rng, n_hospitals)
    hospital = np.repeat(np.arange(n_hospitals), counts)
    kind = rng.integers(len(TYPES), size=n_hospitals)
    sort = (rng.random(len(hospital))[:, None] > TYPES[kind].cumsum(1)[hospital]).sum(1)
    here = rng.normal(scale=0.3, size=(n_hospitals, len(FEATURES)))
    turned = rng.normal(scale=0.35, size=(len(CENTRES), len(FEATURES), len(FEATURES)))
    noise = rng.normal(size=(len(hospital), len(FEATURES)))
    noise = noise + np.einsum("rij,rj->ri", np.tril(turned, -1)[sort], noise)
    values = CENTRES[sort] + SPREAD * (noise + here[hospital])
    found = pd.DataFrame(values, columns=list(FEATURES))
    for name in SKEWED:
        found[name] = np.exp(found[name])
    decimals = {"temperature": 1, "creatinine": 2, "leucocytes": 1}
    found = found.round({name: decimals.get(name, 0) for name in FEATURES})
    missing = rng.random(found.shape) < NO_CELL
    missing[:, len(VITAL) :] |= (rng.random(len(found)) < NO_PANEL)[:, None]
    found = found.mask(missing)
    risk = 0.04 + 0.2 * (sort == 1) + 0.1 * (sort == 2)
    found.insert(0, "hospital", [f"hospital {i:03d}" for i in hospital])
    found.insert(1, "patient", rng.permutation(10**6)[: len(found)] + 10**6)
    found.insert(2, "unit", rng.choice([201, 203, 236, 264], size=len(found)))
    found["died"] = (rng.random(len(found)) < risk).astype(int)
    return found if gaps else found[~missing.any(1)].reset_index(drop=True)


def _counts(rng: np.random.Generator, n_hospitals: int) -> np.ndarray:
    """Patients of every hospital, at least two; about twelve on average."""
    total = round(PATIENTS * n_hospitals / HOSPITALS)
    share = rng.gamma(2.5, size=n_hospitals)
    counts = np.clip(np.round(share / share.sum() * total).astype(int), LEAST, MOST)
    while (off := total - counts.sum()) != 0:
        i = rng.integers(n_hospitals)
        counts[i] = np.clip(counts[i] + np.sign(off), LEAST, MOST)
    return counts


def write(path: str | Path, seed: int = 0, **how) -> Path:
    """The same as a file."""
    table(seed, **how).to_csv(path, index=False)
    return Path(path)
