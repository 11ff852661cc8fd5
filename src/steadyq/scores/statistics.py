"""Summaries of scores over games and seeds, with confidence intervals that resample seeds.

Mean, median, pooled IQM, optimality gap, score distributions and probability of improvement are those of
Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice". Three IQMs are kept
apart because published tables mix them, and on one set of scores they differ by more than the gaps between agents.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steadyq.errors import UserError
from steadyq.scores.published import Array, Published, Scores, atari100k, procgen

# One array [..., seed] per game: leading axes are resamples, so a bootstrap is one call, not thousands.
Columns = Sequence[Array]

# Bounds the memory of a bootstrap; part of what a random seed means, so not a setting.
_RESAMPLES_AT_ONCE = 1000


def normalised(scores: Scores, published: Published, clip: bool = False) -> Scores:
    """Return (score - low) / (high - low) with a benchmark's constants; `clip` limits it to [0, 1]."""

    def change(game: str, values: Array) -> Array:
        name = published.game(game)
        low, high = published.low[name], published.high[name]
        scaled: Array = (values - low) / (high - low)
        return np.clip(scaled, 0.0, 1.0) if clip else scaled

    return scores.apply(change)


def human_normalised(scores: Scores) -> Scores:
    """Return Atari scores with random play at 0 and the human player at 1."""
    return normalised(scores, atari100k())


def procgen_normalised(
    scores: Scores, clip: bool = False, constants: Literal["appendix", "code"] = "appendix"
) -> Scores:
    """Return Procgen (easy) scores with a blind policy at 0 and a solved game at 1."""
    return normalised(scores, procgen(constants), clip)


def trimmed_mean(values: Array) -> Array:
    """Return the mean of the last axis without its lowest and highest quarter: int(n/4) dropped at each end."""
    count = values.shape[-1]
    cut = int(0.25 * count)
    kept: Array = np.sort(values, axis=-1)[..., cut : count - cut]
    return np.asarray(kept.mean(axis=-1))


def slice_mean(values: Array) -> Array:
    """Return the mean of sorted[int(n/4) : int(3n/4)], the paper's IQM.

    It drops one value more at the top than at the bottom unless n is a multiple of 4: at 26 games, 6 and 7.
    """
    count = values.shape[-1]
    if count < 2:
        raise UserError("sorted[n/4:3n/4] of one value is empty")
    kept: Array = np.sort(values, axis=-1)[..., int(0.25 * count) : int(0.75 * count)]
    return np.asarray(kept.mean(axis=-1))


def _game_means(columns: Columns) -> Array:
    return np.stack([column.mean(axis=-1) for column in columns], axis=-1)


def _pooled(columns: Columns) -> Array:
    counts = {column.shape[-1] for column in columns}
    if len(counts) > 1:
        raise UserError(f"games have {min(counts)} to {max(counts)} seeds; pool over Scores.balanced() instead")
    return np.concatenate(columns, axis=-1)


@dataclass(frozen=True)
class Statistic:
    """A named summary: a number for `Scores`, and one per resample for the bootstrap."""

    name: str
    of: Callable[[Columns], Array]

    def __call__(self, scores: Scores) -> float:
        """Return the summary of one set of scores."""
        return float(self.of(scores.columns()))


mean = Statistic("mean", lambda columns: np.asarray(_game_means(columns).mean(axis=-1)))
median = Statistic("median", lambda columns: np.asarray(np.median(_game_means(columns), axis=-1)))
iqm = Statistic("IQM (runs x games)", lambda columns: trimmed_mean(_pooled(columns)))
iqm_game_means = Statistic("IQM (game means)", lambda columns: trimmed_mean(_game_means(columns)))
iqm_slice = Statistic("IQM (sorted[n/4:3n/4])", lambda columns: slice_mean(_game_means(columns)))
optimality_gap = Statistic(
    "optimality gap", lambda columns: 1.0 - _game_means([np.minimum(column, 1.0) for column in columns]).mean(axis=-1)
)

STATISTICS = {each.name: each for each in (mean, median, iqm, iqm_game_means, iqm_slice, optimality_gap)}


@dataclass(frozen=True)
class Interval:
    """A value and its percentile bootstrap interval over seeds."""

    value: float
    low: float
    high: float


def interval(scores: Scores, statistic: Statistic, level: float = 0.95, reps: int = 2000, seed: int = 0) -> Interval:
    """Return a statistic with the interval from resampling seeds within each game; equal `seed`, equal result."""
    drawn = _bootstrap((scores,), lambda columns: statistic.of(columns[0]), reps, seed)
    low, high = _percentiles(drawn, level)
    return Interval(statistic(scores), float(low), float(high))


def mean_interval(samples: ArrayLike, level: float = 0.95, reps: int = 2000, seed: int = 0) -> Array:
    """Return the interval of the mean over the first axis, [low/high, ...]: the same draws as `interval` of one game.

    A mean needs no more than how often each seed was drawn, so thousands of points of a curve are one product.
    """
    values = np.asarray(samples, dtype=np.float64)
    count = len(values)
    if count < 2:
        raise UserError("an interval over seeds needs at least two seeds")
    drawn = []
    for index in _draws((count,), reps, np.random.default_rng(seed)):
        times = (index[0][..., None] == np.arange(count)).sum(axis=1)  # [resample, seed]
        drawn.append(times @ values.reshape(count, -1) / count)  # NaN in one seed stays NaN
    return _percentiles(np.concatenate(drawn), level).reshape(2, *values.shape[1:])


def profile(scores: Scores, thresholds: Sequence[float]) -> Array:
    """Return the score distribution: the fraction of runs above each threshold, [threshold]."""
    return _profile(scores.columns(), np.asarray(thresholds, dtype=np.float64))


def profile_band(
    scores: Scores, thresholds: Sequence[float], level: float = 0.95, reps: int = 2000, seed: int = 0
) -> Array:
    """Return the pointwise interval of `profile`, [low/high, threshold]."""
    tau = np.asarray(thresholds, dtype=np.float64)
    drawn = _bootstrap((scores,), lambda columns: _profile(columns[0], tau), reps, seed)
    return _percentiles(drawn, level)


def probability_of_improvement(ours: Scores, theirs: Scores) -> float:
    """Return the chance that a run of ours beats one of theirs on the same game, averaged over games; a tie is half."""
    _same_games(ours, theirs)
    return float(_improvement(ours.columns(), theirs.columns()))


def improvement_interval(
    ours: Scores, theirs: Scores, level: float = 0.95, reps: int = 2000, seed: int = 0
) -> Interval:
    """Return `probability_of_improvement` with its interval, both sides' seeds resampled independently."""
    value = probability_of_improvement(ours, theirs)
    drawn = _bootstrap((ours, theirs), lambda columns: _improvement(*columns), reps, seed)
    low, high = _percentiles(drawn, level)
    return Interval(value, float(low), float(high))


def _profile(columns: Columns, thresholds: Array) -> Array:
    # Averaging per game first equals averaging over all runs when games have equally many seeds,
    # and keeps a game with more seeds from counting more when they do not.
    above = [(column[..., None, :] > thresholds[:, None]).mean(axis=-1) for column in columns]
    return np.asarray(np.stack(above).mean(axis=0))


def _improvement(ours: Columns, theirs: Columns) -> Array:
    wins = []
    for x, y in zip(ours, theirs, strict=True):
        above, equal = x[..., :, None] > y[..., None, :], x[..., :, None] == y[..., None, :]
        wins.append((above + 0.5 * equal).mean(axis=(-2, -1)))
    return np.asarray(np.stack(wins).mean(axis=0))


def _same_games(ours: Scores, theirs: Scores) -> None:
    if different := sorted(set(ours.games) ^ set(theirs.games)):
        raise UserError(f"both sides need the same games; only one has {', '.join(different)}")


def _bootstrap(samples: Sequence[Scores], of: Callable[[Sequence[Columns]], Array], reps: int, seed: int) -> Array:
    for scores in samples:
        for game in scores.games:
            if len(scores.seeds(game)) < 2:
                raise UserError(f"{game} has one seed: an interval over seeds needs at least two in every game")
    columns = [column for scores in samples for column in scores.columns()]
    drawn = []
    for index in _draws([len(column) for column in columns], reps, np.random.default_rng(seed)):
        resampled = iter([column[own] for column, own in zip(columns, index, strict=True)])
        drawn.append(of([[next(resampled) for _ in scores.games] for scores in samples]))
    return np.concatenate(drawn)


def _draws(counts: Sequence[int], reps: int, rng: np.random.Generator) -> Iterator[list[NDArray[np.int64]]]:
    """Seeds drawn with replacement, for each count an index [resample, seed], some resamples at a time."""
    if reps < 1:
        raise UserError(f"a bootstrap needs at least one resample, not {reps}")
    for start in range(0, reps, _RESAMPLES_AT_ONCE):
        size = min(_RESAMPLES_AT_ONCE, reps - start)
        yield [rng.integers(count, size=(size, count)) for count in counts]


def _percentiles(drawn: Array, level: float) -> Array:
    if not 0.0 < level < 1.0:
        raise UserError(f"a confidence level lies between 0 and 1, not {level}")
    tail = (1.0 - level) / 2.0
    return np.asarray(np.quantile(drawn, [tail, 1.0 - tail], axis=0))
