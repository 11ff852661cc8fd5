"""Every table that a page, a sweep's report or `steadyq compare` shows.

Scores are evaluation means of finished runs, one number per seed; every interval resamples seeds (`scores.statistics`).
Published columns are computed on the games of the sweep alone, so that both sides of a comparison play the same.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steadyq.scores import statistics
from steadyq.scores.published import Published, Scores
from steadyq.scores.statistics import Interval, mean_interval
from steadyq.scores.tables import Cell, Table, Value
from steadyq.suite.comparing import (
    benchmark_of,
    best_means,
    interval_of,
    intervals_possible,
    normalisations,
    relative,
    top_of,
    without_backend,
)
from steadyq.suite.sweep import Sweep, state
from steadyq.suite.variants import Cell as VariantRuns
from steadyq.suite.variants import Comparison, exceptions


@dataclass(frozen=True)
class ScoreRow:
    """What one variant scored on one environment; None where nothing has finished, or there is one seed."""

    cell: VariantRuns
    label: str
    scores: list[float]
    mean: float | None
    interval: tuple[float, float] | None
    random: float | None
    times_random: float | None
    resets: int | None


def score_rows(comparison: Comparison) -> list[ScoreRow]:
    """A row for each variant on each environment."""
    found = []
    for cell in (cell for env in comparison.envs for cell in comparison.on(env)):
        scores, random = cell.scores, cell.random
        mean = float(np.mean(scores)) if scores else None
        interval = tuple(map(float, mean_interval(scores))) if len(scores) > 1 else None
        ratio = times_random(mean, random) if mean is not None and random is not None else None
        resets = [counts["resets"] for run in cell.runs if "resets" in (counts := run.counts)]
        total = int(sum(resets)) if resets else None
        label = comparison.labels[cell.variant]
        found.append(ScoreRow(cell, label, scores, mean, interval, random, ratio, total))  # type: ignore[arg-type]
    return found


def times_random(score: float, baseline: float) -> float | None:
    """How many times the random policy's score, where that means something."""
    return score / baseline if baseline > 0 and score >= 0 else None


def tables(sweep: Sweep) -> list[Table]:
    """Every table of a sweep: aggregates beside published ones where there are any, variants, scores by game."""
    found = []
    benchmark = benchmark_of(sweep.complete)
    if benchmark is not None:
        for name, change in normalisations(benchmark):
            found.append(_aggregates(sweep, benchmark, name, change))
    if len(sweep.study.labels) > 1 and (best := best_means(sweep)):
        found.append(_variants(sweep, best))
    return [*found, _by_game(sweep, benchmark)]


def _aggregates(
    sweep: Sweep, benchmark: Published, name: str, change: Callable[[Scores], Scores], level: float = 0.95
) -> Table:
    """Ours and the published algorithms over the same games."""
    games, clip = sweep.complete, "clipped" in name
    columns = (
        "algorithm",
        "seeds",
        "above",
        "best",
        "mean",
        "interval",
        "median",
        "IQM runs x games",
        "interval ",
        "IQM games",
        "IQM slice",
    )
    rows: list[list[Value]] = []
    by_game: list[NDArray[np.float64]] = []
    for label in sweep.study.labels:
        raw = sweep.scores(label, games)
        assert raw is not None
        scores = change(without_backend(raw))
        pooled = scores.balanced() if _shared_seeds(scores) else None
        seeds = sorted({len(scores.seeds(game)) for game in scores.games})
        rows.append(
            [
                label,
                f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}",
                int((scores.means() > 1.0).sum()),
                None,
                statistics.mean(scores),
                _span(interval_of(scores, statistics.mean, level)),
                statistics.median(scores),
                statistics.iqm(pooled) if pooled else None,
                _span(interval_of(pooled, statistics.iqm, level)) if pooled else None,
                statistics.iqm_game_means(scores),
                statistics.iqm_slice(scores) if len(games) > 1 else None,
            ]
        )
        by_game.append(scores.means())
    kept = [benchmark.game(env.partition("/")[2]) for env in games]
    places = [benchmark.games.index(game) for game in kept]
    for column in benchmark.scores:
        values = benchmark.normalised(column, clip)[places]
        source = benchmark.sources[column]
        middle, trimmed = float(np.median(values)), float(statistics.trimmed_mean(values))
        shown = f"{source.printed_name} (published)"
        sliced = float(statistics.slice_mean(values)) if len(games) > 1 else None
        above = int((values > 1).sum())
        rows.append([shown, source.seeds, above, None, float(values.mean()), None, middle, None, None, trimmed, sliced])
        by_game.append(values)
    most = np.max(by_game, axis=0)
    for row, values in zip(rows, by_game, strict=True):
        row[3] = int((values == most).sum())
    return Table(
        title=f"{sweep.study.title}: {name}, {len(games)} of {len(benchmark.games)} games of {benchmark.benchmark}",
        columns=columns,
        rows=_mark(rows, (2, 3, 4, 6, 7, 9, 10)),
        notes=(
            f"* highest of its column. Above: games whose mean exceeds 1 ({top_of(benchmark)}). Best: games on which "
            "no row is higher. IQM slice: mean of sorted[n/4:3n/4] of the game means, the paper's IQM of its own row. "
            "Intervals: 95 % bootstrap over seeds within games; a dash where a game has one seed. Published rows: "
            "per-game means as printed, on the same games; they have other protocols and seeds, see `steadyq paper "
            "sources`.",
            state(sweep),
        ),
    )


def _variants(sweep: Sweep, best: Mapping[str, float]) -> Table:
    """Variants relative to the best one of each game, and the chance that a run beats one of the first variant."""
    first, *_ = sweep.study.labels
    trained = best_means(sweep, "training_return_10")
    rows: list[list[Value]] = []
    for label in sweep.study.labels:
        scores = relative(sweep, label, best)
        training = relative(sweep, label, trained, "training_return_10") if trained else None
        chance: Value = None
        span: Value = None
        if label != first:
            other = relative(sweep, first, best)
            chance = statistics.probability_of_improvement(scores, other)
            if intervals_possible(scores) and intervals_possible(other):
                span = _span(statistics.improvement_interval(scores, other))
        interval = _span(interval_of(scores, statistics.mean))
        rows.append([label, statistics.mean(scores), interval, statistics.median(scores), chance, span])
        if training:
            rows[-1] += [statistics.mean(training), _span(interval_of(training, statistics.mean))]
    left = [env for env in sweep.complete if env not in best]
    return Table(
        title=f"{sweep.study.title}: evaluation score divided by the best variant's mean on the same game",
        columns=(
            "variant",
            "mean",
            "interval",
            "median",
            f"beats {first}",
            "interval ",
            *(("training mean", "interval  ") if trained else ()),
        ),
        rows=_mark(rows, (1, 3, 6) if trained else (1, 3)),
        notes=(
            "* highest of its column. Training: the last 10 training games instead, which the paper's summaries show. "
            "Beats: chance that a run scores higher than one of the first variant on the same "
            "game, a tie counting half. Intervals: 95 % bootstrap over seeds; a dash where a game has one seed."
            + (f" Left out, no variant scores above 0: {', '.join(left)}." if left else ""),
            state(sweep),
        ),
    )


def _by_game(sweep: Sweep, benchmark: Published | None) -> Table:
    """Scores of every game, maxima marked; a suite stands beside all published columns, a study beside the paper's."""
    labels = sweep.study.labels
    several = any(len(runs) > 1 for variants in sweep.cells.values() for runs in variants.values())
    published = [] if benchmark is None else list(benchmark.scores) if len(labels) == 1 else ["ours"]
    heads = [head for label in labels for head in ((label, f"{label}: interval") if several else (label,))]
    names = [f"{benchmark.sources[column].printed_name} (published)" for column in published] if benchmark else []
    ends = ["high"] if benchmark else []
    rows = []
    for env, variants in sweep.cells.items():
        game = env.partition("/")[2]
        runs = [run for each in variants.values() for run in each if run.result]
        cells = [Cell(float(np.mean([run.result["random_return"] for run in runs if run.result])) if runs else None, 2)]
        known = benchmark is not None and game in benchmark.games
        if benchmark is not None:
            cells.append(Cell(benchmark.high[game] if known else None, 1))
        means: list[float | None] = []
        for label in labels:
            scores = [float(run.result["mean_return"]) for run in variants.get(label, ()) if run.result]
            means.append(float(np.mean(scores)) if scores else None)
        theirs = [benchmark.scores[column][game] if benchmark and known else None for column in published]
        top = max((value for value in (*means, *theirs) if value is not None), default=None)
        for label, mean in zip(labels, means, strict=True):
            cells.append(Cell(mean, 2, best=mean is not None and mean == top))
            if several:
                own = sweep.scores(label, [env])
                cells.append(Cell(_span(interval_of(own, statistics.mean) if own else None, 2)))
        cells += [Cell(value, 1, best=value is not None and value == top) for value in theirs]
        rows.append((Cell(env), *cells))
    return Table(
        title=f"{sweep.study.title}: mean evaluation score by game",
        columns=("game", "random", *ends, *heads, *names),
        rows=tuple(rows),
        notes=(
            "* highest of its row. Mean over seeds of each seed's mean over full games without exploration; random: a "
            "uniform policy under the same protocol. Intervals: 95 % bootstrap over seeds." + exceptions(sweep.runs),
            state(sweep),
        ),
    )


def _shared_seeds(scores: Scores) -> bool:
    return bool(set.intersection(*(set(scores.seeds(game)) for game in scores.games)))


def _span(interval: Interval | None, digits: int = 3) -> str | None:
    return None if interval is None else f"{interval.low:.{digits}f} to {interval.high:.{digits}f}"


def _mark(rows: Sequence[Sequence[Value]], columns: Sequence[int]) -> tuple[tuple[Cell, ...], ...]:
    """Rows as cells, the highest value of each given column marked, unless there is nothing to be higher than."""
    values = {c: [v for row in rows if isinstance(v := row[c], int | float)] for c in columns}
    tops = {c: max(own) for c, own in values.items() if own and max(own) > min(own)}
    return tuple(
        tuple(Cell(v, best=c in tops and v is not None and v == tops[c]) for c, v in enumerate(row)) for row in rows
    )
