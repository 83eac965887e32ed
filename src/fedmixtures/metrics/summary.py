"""Medians over seeds with bootstrap intervals, as the paper's tables print them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike


class Interval(NamedTuple):
    """A median and the interval around it."""

    median: float
    low: float
    high: float


def median_interval(
    values: ArrayLike, n_resamples: int = 9999, confidence: float = 0.95, seed: int = 0
) -> Interval:
    """Median over repetitions and its percentile-bootstrap interval.

    One value has itself as median and no interval (NaN), no value no median either. A NaN among
    the values (a run that failed) makes all three NaN: drop it knowingly or not at all. Infinite
    values are ranked as such, and a bound that falls between them is NaN.
    """
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 1:
        raise ValueError(f"`values` has the shape {values.shape}. Give one number per repetition.")
    if len(values) == 0 or np.isnan(values).any():
        return Interval(np.nan, np.nan, np.nan)
    if len(values) == 1:
        return Interval(float(values[0]), np.nan, np.nan)
    from scipy.stats import bootstrap

    with np.errstate(invalid="ignore"):  # inf - inf
        found = bootstrap(
            (values,),
            np.median,
            n_resamples=n_resamples,
            batch=max(1, 1_000_000 // len(values)),
            confidence_level=confidence,
            method="percentile",
            # The newer name, `rng`, is not in scipy before 1.15.
            random_state=np.random.default_rng(seed),  # pyright: ignore[reportCallIssue]
        ).confidence_interval
        return Interval(float(np.median(values)), float(found.low), float(found.high))


def paired_difference(
    a: ArrayLike, b: ArrayLike, n_resamples: int = 9999, confidence: float = 0.95, seed: int = 0
) -> Interval:
    """Median of a - b over repetitions, with its interval; a[i] and b[i] share a seed.

    What two methods have in common, the draw of the data, cancels: use this rather than two
    intervals side by side to say which is better.
    """
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if a.shape != b.shape:
        raise ValueError(
            f"`a` has the shape {a.shape} and `b` {b.shape}. "
            "Give the same repetitions of both, in the same order."
        )
    with np.errstate(invalid="ignore"):  # inf - inf: neither is better, NaN says so
        return median_interval(a - b, n_resamples, confidence, seed)
