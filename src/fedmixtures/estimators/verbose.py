"""Progress in plain text: a line that is rewritten on a terminal or in a notebook, else a log."""

from __future__ import annotations

import sys
import time
from typing import Any

from fedmixtures.engine.run.watch import Progress

SECONDS = 10.0
"""Between two lines of a log."""


class Teller:
    """Says what a fit is at, from its first moment on."""

    def __init__(self, n_rounds: int, enabled: bool):
        self.n_rounds, self.enabled = n_rounds, enabled
        self.began = self.last = time.monotonic()
        self.rewrites = enabled and (sys.stdout.isatty() or "ipykernel" in sys.modules)
        self.width = 0

    def say(self, text: str, *, lasting: bool = True) -> None:
        """Print a line; one that is not lasting is overwritten by the next."""
        if not self.enabled:
            return
        now = time.monotonic()
        text = f"[{now - self.began:6.1f} s] {text}"
        if self.rewrites:
            print(f"\r{text:<{self.width}}", end="\n" if lasting else "", flush=True)
            self.width = 0 if lasting else len(text)
        elif lasting or now - self.last > SECONDS:
            print(text, flush=True)
            self.last = now

    def __call__(self, progress: Progress) -> None:
        """Tell the round a run has reached."""
        if progress.round == 0:
            self.say("starts made; compiling the first rounds", lasting=False)
        elif not progress.final:
            objective = progress.records[-1]["objective"] if progress.records else float("nan")
            words = f"round {progress.round} of {self.n_rounds}, objective {objective:.4f}"
            self.say(words, lasting=False)

    def ended(self, solution: Any) -> None:
        """The last line."""
        how = "converged" if solution.converged else str(solution.status)
        self.say(f"{how} after {solution.n_rounds} rounds")
