"""Every table that a page, a sweep's report or `steadyq compare` shows.

Scores are evaluation means of finished runs, one number per seed; every interval resamples seeds (`scores.statistics`).
Published agents are computed on the games of the sweep alone, so that both sides of a comparison play the same.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from steadyq.scores import statistics
from steadyq.scores.anchors import Anchor, anchors
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
from steadyq.suite.remedies import remedies_table
from steadyq.suite.runs import Run
from steadyq.suite.sweep import Sweep, state
from steadyq.suite.variants import Cell as VariantRuns
from steadyq.suite.variants import Comparison, evaluation_rules, exceptions

THIS_SWEEP = "this sweep"
"""What the rows that are ours rest on."""


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


def score_rows(comparison: Comparison, at: int | None = None) -> list[ScoreRow]:
    """A row for each variant on each environment: its evaluations, or its training games up to step `at`."""
    found = []
    for cell in (cell for env in comparison.envs for cell in comparison.on(env)):
        scores, random = cell.scores if at is None else cell.training_at(at), cell.random
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
    """Every table of a sweep: aggregates and cost beside published ones where there are any, variants, scores by game.

    The last says where published numbers come from, so that a page or file stands by itself.
    """
    benchmark = benchmark_of(sweep.complete)
    found = []
    if benchmark is not None:
        for name, change in normalisations(benchmark):
            found.append(_aggregates(sweep, benchmark, name, change))
        found += _costs(sweep, benchmark)
    if sweep.study.figure == "remedies":
        found.append(remedies_table(sweep))
    if len(sweep.study.labels) > 1 and (best := best_means(sweep)):
        found.append(_variants(sweep, best))
    found.append(_by_game(sweep, benchmark))
    return [*found, _sources(sweep, benchmark)] if benchmark is not None else found


def _own(sweep: Sweep, label: str, change: Callable[[Scores], Scores]) -> tuple[Scores, Scores | None]:
    """A variant's normalised scores of the finished games, and those of the seeds that all of these have."""
    raw = sweep.scores(label, sweep.complete)
    assert raw is not None
    scores = change(without_backend(raw))
    return scores, scores.balanced() if _shared_seeds(scores) else None


def _aggregates(
    sweep: Sweep, benchmark: Published, name: str, change: Callable[[Scores], Scores], level: float = 0.95
) -> Table:
    """Ours and the published agents over the same games, from the highest IQM of game means to the lowest."""
    games, clip = _games(sweep, benchmark), "clipped" in name
    rows: list[_Aggregate] = []
    fewer = []
    for label in sweep.study.labels:
        scores, pooled = _own(sweep, label, change)
        counts = sorted({len(scores.seeds(game)) for game in scores.games})
        if pooled is not None and counts[-1] > len(pooled.seeds(pooled.games[0])):
            fewer.append(f"{label}: {', '.join(map(str, pooled.seeds(pooled.games[0])))}")
        rows.append(
            _Aggregate(
                name=label,
                basis=THIS_SWEEP,
                seeds=f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}",
                minutes=None if (spent := _minutes(sweep, label)) is None else float(np.mean(spent)),
                means=scores.means(),
                iqm_runs=statistics.iqm(pooled) if pooled else None,
                spans=(
                    interval_of(scores, statistics.iqm_game_means, level),
                    interval_of(pooled, statistics.iqm, level) if pooled else None,
                    interval_of(scores, statistics.mean, level),
                ),
            )
        )
    timed = any(row.minutes is not None for row in rows)
    whole = len(games) == len(benchmark.games)
    for anchor in anchors(benchmark).values():
        rows.append(
            _Aggregate(
                name=anchor.name,
                basis=anchor.basis,
                seeds=anchor.seeds or None,
                minutes=anchor.gpu_minutes,
                means=anchor.normalised(benchmark, games, clip),
                iqm_runs=anchor.iqm_runs if whole else None,
                spans=(None, anchor.iqm_interval if whole else None, None),
            )
        )
    most = np.max([row.means for row in rows], axis=0)
    rows.sort(key=lambda row: -row.iqm_games)
    pools = f" Seeds that all games have: {'; '.join(fewer)}." if fewer else ""
    columns: dict[str, list[Value]] = {
        "agent": [row.name for row in rows],
        "seeds": [row.seeds for row in rows],
        "GPU minutes": [row.minutes if timed else None for row in rows],
        "IQM games": [row.iqm_games for row in rows],
        "interval": [_span(row.spans[0]) for row in rows],
        "IQM runs x games": [row.iqm_runs for row in rows],
        "interval ": [_span(row.spans[1]) for row in rows],
        "mean": [float(row.means.mean()) for row in rows],
        "interval  ": [_span(row.spans[2]) for row in rows],
        "median": [float(np.median(row.means)) for row in rows],
        "IQM slice": [float(statistics.slice_mean(row.means)) if len(games) > 1 else None for row in rows],
        "above": [int((row.means > 1.0).sum()) for row in rows],
        "best": [int((row.means == most).sum()) for row in rows],
        "basis": [row.basis for row in rows],
    }
    columns = {head: values for head, values in columns.items() if any(value is not None for value in values)}
    marked = ("IQM games", "IQM runs x games", "mean", "median", "IQM slice", "above", "best")
    heads = list(columns)
    return Table(
        title=f"{sweep.study.title}: {name}, {len(games)} of {len(benchmark.games)} games of {benchmark.benchmark}",
        columns=tuple(heads),
        rows=_mark(
            list(zip(*columns.values(), strict=True)),
            [heads.index(head) for head in marked if head in heads],
            {heads.index("GPU minutes"): 1} if timed else {},
        ),
        ours=tuple(place for place, row in enumerate(rows) if row.basis == THIS_SWEEP),
        notes=(
            "> this sweep. Rows from the highest IQM games, which all rows have, to the lowest.",
            f"* highest of its column. Above: games whose mean exceeds 1 ({top_of(benchmark)}). Best: games on which "
            "no row is higher. Seeds: of each game, a dash where the source does not say."
            + (" GPU minutes: of one game and seed, on different GPUs (next table)." if timed else ""),
            "Three IQMs, to be compared within their column alone. IQM games: mean of the middle half of the game "
            f"means. IQM runs x games: the same of all runs of the seeds that every game has.{pools} It needs every "
            "seed's score: published agents have it where their source gives it, of all games together. With one seed "
            "both are one number, with more IQM games tends to be higher. IQM slice: mean of sorted[n/4:3n/4] of the "
            "game means, the paper's IQM of its own row. Each interval is that of the column before it.",
            "Intervals: 95 % bootstrap over seeds within games; a dash where a game has one seed or the source gives "
            "means alone. Published agents are on the same games, with other protocols and seeds.",
            state(sweep),
        ),
        optional=1,  # the table of sources has the basis too
    )


@dataclass(frozen=True)
class _Aggregate:
    """A row of aggregates, before its numbers are put in columns."""

    name: str
    basis: str
    seeds: str | None
    minutes: float | None
    means: NDArray[np.float64]
    """Normalised mean of every game."""
    iqm_runs: float | None
    spans: tuple[Interval | None, Interval | tuple[float, float] | None, Interval | None]
    """Intervals of the IQM of game means, of the IQM of all runs, of the mean."""

    @property
    def iqm_games(self) -> float:
        return float(statistics.trimmed_mean(self.means))


def gpu_minutes(run: Run) -> float | None:
    """Minutes that a finished run held its GPU, training and evaluation; None if it had none or does not say."""
    result = run.result or {}
    seconds = [result.get(name) for name in ("wall_seconds", "evaluation_seconds")]
    on_gpu = (result.get("hardware") or {}).get("gpu") and result.get("device") != "cpu"
    return sum(float(each) for each in seconds if each is not None) / 60 if on_gpu and None not in seconds else None


def _minutes(sweep: Sweep, label: str) -> list[float] | None:
    """Mean GPU-minutes of a variant's runs on each finished game; None unless all of them ran on a GPU."""
    runs = [[run for run in sweep.cells[env][label] if run.result] for env in sweep.complete]
    minutes = [[spent for run in own if (spent := gpu_minutes(run)) is not None] for own in runs]
    if any(len(spent) < len(own) for spent, own in zip(minutes, runs, strict=True)):
        return None
    return [float(np.mean(spent)) for spent in minutes]


def _costs(sweep: Sweep, benchmark: Published) -> list[Table]:
    """GPU-minutes a game and score per GPU-minute beside published ones; none unless a variant ran on GPUs alone."""
    (_, change), *_ = normalisations(benchmark)
    games = _games(sweep, benchmark)
    whole = len(games) == len(benchmark.games)
    rows: list[tuple[Cell, ...]] = []
    for label in sweep.study.labels:
        by_game = _minutes(sweep, label)
        if by_game is None:
            continue
        runs = [run for env in sweep.complete for run in sweep.cells[env][label]]
        gpus = dict.fromkeys(str(run.result["hardware"]["gpu"]) for run in runs if run.result)
        scores, pooled = _own(sweep, label, change)
        iqm = statistics.iqm(pooled) if pooled else None
        spent = float(np.mean(by_game))
        rows.append(
            _cost(label, ", ".join(gpus), spent, max(by_game), iqm, statistics.iqm_game_means(scores), "measured")
        )
    if not rows:
        return []
    ours = tuple(range(len(rows)))
    for anchor in anchors(benchmark).values():
        if anchor.gpu_minutes is not None:
            means = float(statistics.trimmed_mean(anchor.normalised(benchmark, games)))
            iqm = anchor.iqm_runs if whole else None
            rows.append(_cost(anchor.name, anchor.gpu, anchor.gpu_minutes, None, iqm, means, anchor.gpu_time))
    unknown = [anchor.name for anchor in anchors(benchmark).values() if anchor.gpu_minutes is None]
    return [
        Table(
            title=f"{sweep.study.title}: GPU-minutes of one game and seed",
            columns=(
                "agent",
                "GPU",
                "GPU-minutes",
                "longest game",
                "IQM runs x games a minute",
                "IQM games a minute",
                "where from",
            ),
            rows=tuple(rows),
            ours=ours,
            notes=(
                "> this sweep: training and evaluation as each run measured them, mean over games, without the start "
                "of its process. A run that shares its GPU with others waits for them, so its minutes are an upper "
                "bound of what it needs alone. Agents ran on different GPUs: minutes of one are not those of another. "
                "A dash: that IQM is not known of these games."
                + (f" Not known: {', '.join(unknown)}." if unknown else ""),
            ),
        )
    ]


def _cost(
    name: str, gpu: str, minutes: float, longest: float | None, runs: float | None, games: float, how: str
) -> tuple[Cell, ...]:
    per_minute = [Cell(None if iqm is None or not minutes else iqm / minutes, 4) for iqm in (runs, games)]
    return (Cell(name), Cell(gpu), Cell(minutes, 1), Cell(longest, 1), *per_minute, Cell(how))


def _sources(sweep: Sweep, benchmark: Published) -> Table:
    """Where every published number of the other tables was read."""
    return Table(
        title=f"{sweep.study.title}: sources of published agents",
        columns=("agent", "basis", "seeds", "source", "licence", "note"),
        rows=tuple(
            tuple(
                Cell(value or None)
                for value in (each.name, each.basis, each.seeds, each.source, each.licence, each.note)
            )
            for each in anchors(benchmark).values()
        ),
        notes=(
            "Per-seed file: game means and both IQMs are computed from a public file with every seed's score. "
            "Published means: one number a game, from which IQM runs x games cannot be computed. Licence: of the "
            "scores (NOTICE).",
        ),
    )


def _games(sweep: Sweep, benchmark: Published) -> list[str]:
    """The finished games, as their benchmark names them."""
    return [benchmark.game(env.partition("/")[2]) for env in sweep.complete]


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
    """Scores of every game, maxima marked; a suite stands beside all published agents, a study beside the paper's."""
    labels = sweep.study.labels
    several = any(len(runs) > 1 for variants in sweep.cells.values() for runs in variants.values())
    published: list[Anchor] = []
    if benchmark is not None:
        published = [each for column, each in anchors(benchmark).items() if len(labels) == 1 or column == "ours"]
    heads = [head for label in labels for head in ((label, f"{label}: interval") if several else (label,))]
    names = [each.name for each in published]
    ends = ["human" if benchmark.benchmark == "atari100k" else "high"] if benchmark else []
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
        theirs = [each.scores[game] if known else None for each in published]
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
            "* highest of its row. Mean over seeds of each seed's mean over its evaluation games; random: a "
            "uniform policy under the same protocol. Intervals: 95 % bootstrap over seeds."
            + (f" Published: {', '.join(names)}." if names else "")
            + exceptions(sweep.runs),
            *([rules] if (rules := evaluation_rules(sweep.runs)) else []),
            state(sweep),
        ),
        optional=max(0, len(names) - 1),
    )


def _shared_seeds(scores: Scores) -> bool:
    return bool(set.intersection(*(set(scores.seeds(game)) for game in scores.games)))


def _span(interval: Interval | tuple[float, float] | None, digits: int = 3) -> str | None:
    if interval is None:
        return None
    low, high = (interval.low, interval.high) if isinstance(interval, Interval) else interval
    return f"{low:.{digits}f} to {high:.{digits}f}"


def _mark(
    rows: Sequence[Sequence[Value]], columns: Sequence[int], digits: Mapping[int, int] = MappingProxyType({})
) -> tuple[tuple[Cell, ...], ...]:
    """Rows as cells, the highest value of each given column marked, unless there is nothing to be higher than.

    `digits` are those of columns that show other than three.
    """
    values = {c: [v for row in rows if isinstance(v := row[c], int | float)] for c in columns}
    tops = {c: max(own) for c, own in values.items() if own and max(own) > min(own)}
    return tuple(
        tuple(Cell(v, digits.get(c, 3), best=c in tops and v is not None and v == tops[c]) for c, v in enumerate(row))
        for row in rows
    )
