"""What the last panels of a sweep's figure show: final returns against the best variant's, or score distributions."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from steadyq.scores import statistics
from steadyq.suite.columns import Array
from steadyq.suite.comparing import (
    benchmark_of,
    best_means,
    interval_of,
    intervals_possible,
    normalisations,
    relative,
    without_backend,
)
from steadyq.suite.sweep import Measure, Sweep
from steadyq.suite.variants import plain

THRESHOLDS = np.linspace(0.0, 2.0, 101)


@dataclass(frozen=True)
class Points:
    """A summary panel of one value for each variant: of every game, their mean, and its interval over seeds."""

    by_game: Mapping[str, Sequence[float]]
    mean: Sequence[float]
    low: Sequence[float] | None
    high: Sequence[float] | None
    positions: Sequence[float]
    """Where the variants stand: numbers they were set to, or their places."""
    ticks: Sequence[str]
    numeric: bool
    axis: str
    title: str
    what: str
    """Which value, for the figure's statement."""


@dataclass(frozen=True)
class Profile:
    """A summary panel of score distributions: the share of runs above each normalised score, by variant."""

    thresholds: Array
    shares: Mapping[str, Array]
    bands: Mapping[str, Array]
    axis: str


def summaries(sweep: Sweep) -> list[Points | Profile]:
    """The figure's last panels: a suite's score distribution; a study's final returns against the best variant's.

    The paper's summaries show the last 10 training games; the evaluation, by which tables compare, stands beside them.
    """
    if len(sweep.study.labels) == 1:
        profile = _profile(sweep)
        return [profile] if profile else []
    found = (
        _points(
            sweep, "training_return_10", "Final training return", "mean of the last 10 training games, as the paper"
        ),
        _points(sweep, "mean_return", "Evaluation score", "mean over evaluation games"),
    )
    return [points for points in found if points]


def _points(sweep: Sweep, of: Measure, title: str, what: str) -> Points | None:
    study = sweep.study
    best = best_means(sweep, of)
    if not best:
        return None
    shares = {label: relative(sweep, label, best, of) for label in study.labels}
    intervals = [interval_of(scores, statistics.mean) for scores in shares.values()]
    varied = study.varied[0] if len(study.varied) == 1 else ""
    values = [study.variants[label].get(varied) if varied else label for label in study.labels]
    places, numeric = positions(values)
    known = [each for each in intervals if each is not None]
    return Points(
        by_game={env: [float(scores[env].mean()) for scores in shares.values()] for env in best},
        mean=[statistics.mean(scores) for scores in shares.values()],
        low=[each.low for each in known] if len(known) == len(intervals) else None,
        high=[each.high for each in known] if len(known) == len(intervals) else None,
        positions=places,
        ticks=[plain(value) for value in values] if numeric else list(study.labels),
        numeric=numeric,
        axis=varied,
        title=title,
        what=what,
    )


def _profile(sweep: Sweep) -> Profile | None:
    benchmark = benchmark_of(sweep.complete)
    if benchmark is None:
        return None
    name, change = normalisations(benchmark)[0]
    shares, bands = {}, {}
    for label in sweep.study.labels:
        scores = sweep.scores(label, sweep.complete)
        assert scores is not None
        scores = change(without_backend(scores))
        shares[label] = statistics.profile(scores, THRESHOLDS.tolist())
        if intervals_possible(scores):
            bands[label] = statistics.profile_band(scores, THRESHOLDS.tolist())
    return Profile(THRESHOLDS, shares, bands, f"{name} score")


def positions(values: Sequence[Any]) -> tuple[list[float], bool]:
    """Where variants stand on an axis: at their numbers if all are positive and different, else at their places."""
    numbers = [float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool) and v > 0]
    if len(numbers) == len(values) and len(set(numbers)) == len(numbers) > 1 and all(map(math.isfinite, numbers)):
        return numbers, True
    return [float(place) for place in range(len(values))], False
