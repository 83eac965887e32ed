"""The ledger of differential privacy: what was spent on a site's rows, and the end of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fedmixtures.federation.node.budgets import BudgetSpent, LockedRecord

LARGE = 30.0


@dataclass(frozen=True)
class PrivacyBudget:
    """Differential privacy spent on this site's rows in its whole life, at most."""

    epsilon: float = 3.0
    delta: float = 1e-5


class Ledger:
    """Gaussian steps on this site's rows, on disk before they are taken.

    The entries are counts of steps by noise multiplier (standard deviation of the noise over the
    sensitivity under replacement of one person's rows, or of one row where no person is named).
    """

    def __init__(self, account: LockedRecord, budget: PrivacyBudget):
        self.account, self.budget = account, budget

    @property
    def steps(self) -> dict[float, int]:
        """Steps taken so far, by noise multiplier."""
        return _steps(self.account.read())

    def epsilon(self) -> float:
        """What was spent at the budget's delta."""
        return spent(tuple(sorted(self.steps.items())), self.budget.delta)

    def charge(self, noise: float, n: int) -> None:
        """Enter `n` steps, or refuse them if they would go past the budget."""
        with self.account.locked() as content:
            steps = _steps(content)
            steps[noise] = steps.get(noise, 0) + n
            cost = spent(tuple(sorted(steps.items())), self.budget.delta)
            if cost > self.budget.epsilon:
                raise BudgetSpent(
                    f"{n} more steps would bring this site's privacy loss to epsilon={cost:.3g}, "
                    f"above its budget of {self.budget.epsilon:g} at delta={self.budget.delta:g}"
                )
            content["steps"] = {repr(noise): n for noise, n in steps.items()}


def _steps(content: dict[str, Any]) -> dict[float, int]:
    return {float(noise): int(n) for noise, n in content.get("steps", {}).items()}


@lru_cache(maxsize=256)
def spent(steps: tuple[tuple[float, int], ...], delta: float) -> float:
    r"""Epsilon of composed Gaussian steps, by the accountant of privacy loss distributions.

    Gaussian mechanisms compose into one: $n_i$ steps of multiplier $z_i$ are one step of multiplier
    $(\sum_i n_i / z_i^2)^{-1/2}$, exactly. The accountant sees that one step.
    """
    if not sum(n for _, n in steps):
        return 0.0
    multiplier = sum(n / noise**2 for noise, n in steps) ** -0.5
    exact = gaussian_epsilon(multiplier, delta)
    if exact > LARGE:
        return exact  # far past any budget, where the accountant's grid would fill the memory
    from dp_accounting import GaussianDpEvent
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant()
    accountant.compose(GaussianDpEvent(multiplier))
    return float(accountant.get_epsilon(delta))


def gaussian_epsilon(multiplier: float, delta: float) -> float:
    r"""Epsilon of one Gaussian mechanism (Balle and Wang 2018, Theorem 8).

    The root of $\Phi(a - \epsilon z) - e^\epsilon \Phi(-a - \epsilon z) = \delta$, $a = 1/(2z)$.
    """
    from scipy.special import log_ndtr, ndtr

    half = 0.5 / multiplier
    excess = lambda e: (
        ndtr(half - e * multiplier) - math.exp(min(e + log_ndtr(-half - e * multiplier), 0.0))
    )
    low, high = 0.0, 1.0
    while excess(high) > delta:
        high *= 2
    for _ in range(100):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if excess(middle) > delta else (low, middle)
    return high


def noise_for(epsilon: float, delta: float, n_steps: int) -> float:
    """The smallest noise multiplier (to 1e-4) with which `n_steps` steps cost at most `epsilon`."""
    low, high = 1e-3, 1e6
    while high / low > 1 + 1e-4:
        middle = (low * high) ** 0.5
        if gaussian_epsilon(middle / n_steps**0.5, delta) > epsilon:
            low = middle
        else:
            high = middle
    return high * (1 + 1e-3)  # the accountant rounds up; its figure decides
