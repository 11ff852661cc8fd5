"""What a planned reset cost: how long a run took to play again as it had played before."""

from typing import NamedTuple

import numpy as np

from steadyq.suite.runs import Run

GAMES = 10
"""Finished games whose mean is the score at a moment."""


class Recovery(NamedTuple):
    """One planned reset: the score before it, and the steps until that score was reached again."""

    step: int
    before: float
    regained: int | None  # None: not before the next planned reset, or the end


def recoveries(run: Run) -> list[Recovery]:
    """Every planned reset of a run that had finished games before it."""
    resets = run.events.planned
    steps, scores = run.events.games
    found = []
    for step, end in zip(resets, [*resets[1:], np.inf], strict=True):
        earlier, later = scores[steps <= step], (steps > step) & (steps <= end)
        if not len(earlier):
            continue
        before = float(earlier[-GAMES:].mean())
        total = np.concatenate([[0.0], np.cumsum(scores[later])])
        reached = np.flatnonzero((total[GAMES:] - total[:-GAMES]) / GAMES >= before)
        regained = int(steps[later][reached[0] + GAMES - 1] - step) if len(reached) else None
        found.append(Recovery(step, before, regained))
    return found
