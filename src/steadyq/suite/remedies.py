"""Remedies x mechanisms: what each change to a setup did to its score, and to what the monitor measures.

A study of remedies names its variants `setup: remedy`, and has `setup: none` to compare with. Every measure is one
number a seed, from the end of a run; what moved is judged by seeds alone.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from steadyq.scores.published import Scores
from steadyq.scores.statistics import improvement_interval, probability_of_improvement
from steadyq.scores.tables import Cell, Table
from steadyq.suite.runs import Run
from steadyq.suite.study import NO_REMEDY, parted
from steadyq.suite.sweep import Sweep

LAST = 0.25
"""The end of a run: so much of its steps."""


@dataclass(frozen=True)
class Measure:
    """A figure of a run's end, in the words of docs/metrics.md; `mechanism` is the axis that it belongs to."""

    name: str
    mechanism: str
    of: Callable[[Run], float]


@dataclass(frozen=True)
class Effect:
    """A remedy's mean over seeds, the chance that its figure is above one without remedy, and whether seeds tell."""

    mean: float
    chance: float | None = None
    sure: bool = False

    @property
    def way(self) -> str:
        """Which way it moved."""
        return "+" if self.chance is not None and self.chance > 0.5 else "-"


Effects = Mapping[str, Mapping[str, Mapping[str, Mapping[str, Effect]]]]
"""By environment, setup, remedy and measure."""


def at_end(run: Run, column: str) -> float:
    """Mean of a column of diagnostics over the end of a run; NaN where it has none."""
    steps, values = run.diagnostics.series(column)
    late = values[steps > (1 - LAST) * run.last_step]
    return float(late.mean()) if len(late) else math.nan


def _score(run: Run) -> float:
    found = None if run.result is None else run.result.get("mean_return")
    return math.nan if found is None else float(found)


def _column(name: str) -> Callable[[Run], float]:
    return lambda run: at_end(run, name)


MEASURES = (
    Measure("score", "evaluation", _score),
    Measure("overestimation", "operator", lambda run: at_end(run, "q_taken") - at_end(run, "return_mean")),
    Measure("target gap", "operator", _column("target_gap_relative")),
    Measure("churn", "estimator", _column("churn")),
    Measure("TD tail", "estimator", _column("td_tail")),
    Measure("spike", "parameter", _column("spike")),
    Measure("dormant", "parameter", _column("dormant")),
    Measure("rank share", "parameter", lambda run: at_end(run, "effective_rank") / at_end(run, "rank_possible")),
    Measure("weight norm", "parameter", _column("weight_norm")),
    Measure("update ratio", "parameter", _column("update_ratio")),
)


def effects(sweep: Sweep) -> Effects:
    """What every remedy did on every game to every measure that it and its setup without remedy have."""
    found: dict[str, dict[str, dict[str, dict[str, Effect]]]] = {}
    for env, variants in sweep.cells.items():
        for label, runs in variants.items():
            setup, remedy = parted(label)
            plain = variants.get(f"{setup}: {NO_REMEDY}", ())
            own = {each.name: _effect(each, runs, plain if remedy != NO_REMEDY else ()) for each in MEASURES}
            found.setdefault(env, {}).setdefault(setup, {})[remedy] = {
                name: effect for name, effect in own.items() if effect is not None
            }
    return found


def _effect(measure: Measure, runs: tuple[Run, ...], plain: tuple[Run, ...]) -> Effect | None:
    ours, theirs = (
        {run.seed: value for run in each if math.isfinite(value := measure.of(run))} for each in (runs, plain)
    )
    if not ours:
        return None
    mean = sum(ours.values()) / len(ours)
    if not theirs:
        return Effect(mean)
    mine, other = Scores({"": ours}), Scores({"": theirs})
    if min(len(ours), len(theirs)) < 2:
        return Effect(mean, probability_of_improvement(mine, other))
    span = improvement_interval(mine, other)
    return Effect(mean, span.value, not span.low <= 0.5 <= span.high)


def remedies_table(sweep: Sweep) -> Table:
    """Means of every measure, and which moved."""
    rows = []
    for env, setups in effects(sweep).items():
        for setup, remedies in setups.items():
            for remedy, own in remedies.items():
                moved = [f"{name} {effect.way}" for name, effect in own.items() if effect.sure]
                means = [Cell(own[each.name].mean if each.name in own else None) for each in MEASURES]
                about = (Cell(remedy), Cell(setup), Cell(env.partition("/")[2] or env))
                rows.append((*about, *means, Cell(", ".join(moved) or None)))
    return Table(
        title=f"{sweep.study.title}: remedies x mechanisms",
        columns=("remedy", "setup", "game", *(each.name for each in MEASURES), "moved"),
        rows=tuple(rows),
        notes=(
            f"Means over seeds of the evaluation score, and of diagnostics over the last {LAST:.0%} of the steps. "
            "Moved: the chance that a run with the remedy lies above (+) or below (-) one without, where its 95% "
            "bootstrap interval over seeds leaves out one half; many are looked at, and nothing is corrected for that.",
            "Overestimation: mean Q(s, a) minus the mean discounted return; rank share: effective rank over the "
            "largest possible; all others as docs/metrics.md defines them.",
        ),
    )
