"""Runs as curves: brought onto one step grid and aggregated over seeds."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from steadyq.scores.statistics import mean_interval
from steadyq.suite.columns import Array
from steadyq.suite.runs import Run
from steadyq.suite.variants import Cell, Comparison

GRID_POINTS, ALL_POINTS = 500, 6000
"""Most points of one curve (more cannot be told apart on a screen), and of one quantity in all of a report."""

FEW_ROWS = 20
"""A run with fewer rows is short: its return is drawn from its games."""

GAMES_POINTS = 100
"""Points of the curves of a short run."""


@dataclass(frozen=True)
class Curve:
    """One column of one variant on the step grid: every seed, their mean, and its interval if there are several."""

    seeds: Array  # [seed, point], NaN where a seed has no value
    mean: Array  # [point], NaN where any seed has none: a mean over survivors would flatter
    low: Array | None
    high: Array | None


def series(run: Run, column: str) -> tuple[Array, Array]:
    """Steps and values of one column of metrics.jsonl; `diagnostics.` names the other file.

    `resets_per_check` counts the (member, layer) pairs that were reset at every measurement of spikes. A short run's
    `return_10` is the same mean at the end of every game.
    """
    source, _, name = column.rpartition(".")
    if source == "diagnostics":
        return run.diagnostics.series(name)
    if column == "resets_per_check":
        counts = {float(step): 0 for each in run.events.spikes for step in each.steps}
        for reset in run.events.resets:
            counts[float(reset.step)] = counts.get(float(reset.step), 0) + 1
        return np.array(list(counts), float), np.array(list(counts.values()), float)
    if column == "return_10" and from_games(run):
        steps, scores = run.events.games
        total = np.concatenate([[0.0], np.cumsum(scores)])
        first = np.maximum(np.arange(len(scores)) - 9, 0)
        return steps, (total[1:] - total[first]) / (np.arange(len(scores)) + 1 - first)
    return run.metrics.series(column)


def from_games(run: Run) -> bool:
    """Whether a run is so short that its games say more than its rows."""
    return len(run.metrics) < FEW_ROWS and len(run.events.games[0]) > len(run.metrics)


def curve(cell: Cell, column: str, grid: Array) -> Curve | None:
    """A column of a variant on the grid, or None if no run has it."""
    each = [on_grid(*series(run, column), grid) for run in cell.runs]
    return aggregate(np.stack(each)) if any(np.isfinite(values).any() for values in each) else None


def grid_of(comparison: Comparison, env: str, column: str = "") -> Array:
    """Common steps of an environment's curves: as fine as its coarsest run, coarser in a large report."""
    points = max(100, min(GRID_POINTS, ALL_POINTS // len(comparison.cells)))
    return step_grid([run for cell in comparison.on(env) for run in cell.runs], points, column)


def step_grid(runs: Sequence[Run], points: int = GRID_POINTS, column: str = "") -> Array:
    """Equally spaced steps up to the last one, as fine as the coarsest run, at most so many points.

    The return of short runs, drawn from games, has a finer grid than what is drawn from their few rows.
    """
    last = max((run.last_step for run in runs), default=0)
    spacings = [spacing for run in runs if (spacing := _spacing(run, column))]
    if not last or not spacings:
        return np.zeros(0)
    spacing = max(*spacings, last / points)
    grid = np.arange(1, int(np.ceil(last / spacing * (1 - 1e-9))) + 1, dtype=np.float64) * spacing
    grid[-1] = last
    return grid


def _spacing(run: Run, column: str) -> float:
    """Steps between a run's points; 0 where it has none."""
    if column == "return_10" and from_games(run):
        return run.last_step / GAMES_POINTS
    steps = run.metrics.steps if len(run.metrics) else run.diagnostics.steps
    return float(np.median(np.diff(steps, prepend=0.0))) if len(steps) else 0.0


def on_grid(steps: Array, values: Array, grid: Array) -> Array:
    """Mean of the values since the previous grid step, the last one before it where there is none.

    NaN before the first value and after the last one: a run that stopped early is not continued by assumption.
    """
    result = np.full(len(grid), np.nan)
    if not len(steps) or not len(grid):
        return result
    slack = (grid[1] - grid[0] if len(grid) > 1 else grid[0]) * 0.01  # a row one step late is that step's
    ends = np.searchsorted(steps, grid + slack, side="right")
    starts = np.concatenate([[0], ends[:-1]])
    counts = ends - starts
    fresh = counts > 0
    if fresh.any():
        # A sum for each point: differences of one running sum would carry a huge value into all that follow.
        with np.errstate(invalid="ignore", over="ignore"):  # a run that diverged has infinities
            result[fresh] = np.add.reduceat(values[: ends[-1]], starts[fresh]) / counts[fresh]
    held = ~fresh & (ends > 0) & (grid <= steps[-1] + slack)
    result[held] = values[ends[held] - 1]
    return result


def aggregate(seeds: Array) -> Curve:
    """Mean over seeds [seed, point] and its 95% interval; one seed has no interval."""
    mean = seeds.mean(axis=0)
    if len(seeds) < 2:
        return Curve(seeds, mean, None, None)
    low, high = mean_interval(seeds)
    return Curve(seeds, mean, low, high)
