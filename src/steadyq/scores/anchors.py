"""Published agents that a sweep stands beside: mean score of each game, what they rest on and what they cost.

On Atari-100K they are not the paper's table but agents whose numbers could be read at their source; `the paper's agent`
is the one row of that table among them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

import numpy as np

from steadyq.scores.published import Array, Published, atari100k, published_rows

Basis = Literal["per-seed file", "published means"]


@dataclass(frozen=True)
class Anchor:
    """One published agent of a benchmark."""

    name: str
    basis: Basis
    """Whether the game means are of a public file of every seed, or were printed as means."""
    source: str
    scores: Mapping[str, float] = field(repr=False)  # game -> mean
    seeds: str = ""
    """Seeds of each game, empty where the source does not say."""
    iqm_runs: float | None = None
    """IQM over runs x games, of all games of the benchmark: the game means alone cannot give it."""
    iqm_interval: tuple[float, float] | None = None
    gpu_minutes: float | None = None
    """Of one game and seed."""
    gpu: str = ""
    gpu_time: str = ""
    """Where the minutes come from."""
    licence: str = ""
    """Of the scores."""
    note: str = ""

    def normalised(self, benchmark: Published, games: Sequence[str], clip: bool = False) -> Array:
        """Return (score - low) / (high - low) of these games; `clip` limits it to [0, 1]."""
        values = np.array(
            [(self.scores[g] - benchmark.low[g]) / (benchmark.high[g] - benchmark.low[g]) for g in games], np.float64
        )
        return np.clip(values, 0.0, 1.0) if clip else values


def anchors(benchmark: Published) -> Mapping[str, Anchor]:
    """Return the agents that stand beside a sweep of this benchmark, by column: Atari-100K's, or its own columns."""
    if benchmark.benchmark == "atari100k":
        return _atari100k()
    found = {}
    for column, scores in benchmark.scores.items():
        own = benchmark.sources[column]
        name = own.printed_name if column != "ours" else "the paper's agent"  # `Ours` in a report of ours would be us
        found[column] = Anchor(name, "published means", own.source, scores, own.seeds, note=own.note)
    return found


@cache
def _atari100k() -> Mapping[str, Anchor]:
    means = published_rows("anchors")
    found = {}
    for row in published_rows("anchor_sources"):
        column = row["column"]
        low, high = _number(row["iqm_runs_low"]), _number(row["iqm_runs_high"])
        scores = {each["game"]: float(each[column]) for each in means if column in each}
        found[column] = Anchor(
            name=row["name"],
            basis=row["basis"],  # type: ignore[arg-type]  # checked in tests
            source=row["source"],
            scores=scores or atari100k().scores[column],
            seeds=row["seeds"],
            iqm_runs=_number(row["iqm_runs"]),
            iqm_interval=None if low is None or high is None else (low, high),
            gpu_minutes=_number(row["gpu_minutes"]),
            gpu=row["gpu"],
            gpu_time=row["gpu_time"],
            licence=row["licence"],
            note=row["note"],
        )
    return found


def _number(text: str) -> float | None:
    return float(text) if text else None
