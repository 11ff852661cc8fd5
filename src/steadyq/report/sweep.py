"""A sweep as tables, figures and a page: what `steadyq report SWEEP` writes.

Scores are evaluation means of finished runs, one number per seed; every interval resamples seeds (`suite.statistics`).
Published columns are computed on the games of the sweep alone, so that both sides of a comparison play the same.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from steadyq.errors import UserError, nearest
from steadyq.report import studies
from steadyq.report.curves import Run, exceptions, plain, read
from steadyq.report.html import StudyPart, write_report
from steadyq.report.spikes import spike_map
from steadyq.run.files import refuse_links, replace_text
from steadyq.run.folder import RunFolder
from steadyq.scores import statistics
from steadyq.scores.published import Published, Scores, atari100k, procgen
from steadyq.scores.statistics import Interval, Statistic
from steadyq.scores.tables import Cell, Table, Value
from steadyq.suite.study import STUDY_FILE, Study, file_name, run_name, sweep_study

Measure = Literal["mean_return", "training_return_10"]
"""What of a result counts as the score: the evaluation, or the paper's last 10 training games."""

THRESHOLDS = np.linspace(0.0, 2.0, 101)
LAYOUTS = (".svg", ".png", ".pdf")


@dataclass(frozen=True)
class Sweep:
    """A sweep folder, read once: its study and the runs that have begun, by environment, variant and seed."""

    path: Path
    study: Study
    cells: Mapping[str, Mapping[str, tuple[Run, ...]]]

    @property
    def runs(self) -> list[Run]:
        """Every run that has begun."""
        return [run for variants in self.cells.values() for runs in variants.values() for run in runs]

    @property
    def planned(self) -> int:
        """Runs of the whole study."""
        return len(self.study.games) * len(self.study.labels) * len(self.study.seeds)

    @property
    def finished(self) -> int:
        """Runs with a result."""
        return sum(run.result is not None for run in self.runs)

    def scores(self, label: str, envs: Sequence[str] | None = None, of: Measure = "mean_return") -> Scores | None:
        """One variant's evaluation means (or another result) by game and seed; None before a run has finished."""
        found = {
            env: {
                run.seed: float(run.result[of])
                for run in variants.get(label, ())
                if run.result and run.result.get(of) is not None
            }
            for env, variants in self.cells.items()
            if envs is None or env in envs
        }
        found = {env: column for env, column in found.items() if column}
        return Scores(found) if found else None

    @property
    def complete(self) -> list[str]:
        """Games on which every variant has a finished seed: only there can variants be compared."""
        return [
            env
            for env in self.study.games
            if all(any(run.result for run in self.cells.get(env, {}).get(label, ())) for label in self.study.labels)
        ]


def read_sweep(path: Path | str) -> Sweep:
    """Read a sweep folder."""
    path = Path(path)
    study = sweep_study(path)
    cells: dict[str, dict[str, tuple[Run, ...]]] = {}
    for env in study.games:
        for label in study.labels:
            names = [run_name(env, label if study.variants else "", seed) for seed in study.seeds]
            runs = tuple(read(path / name) for name in names if RunFolder(path / name).begun)
            if runs:
                cells.setdefault(env, {})[label] = runs
    if not cells:
        raise UserError(f"{path} has no runs yet: `steadyq sweep` starts them")
    return Sweep(path, study, cells)


def write_sweep_report(path: Path | str, out: Path | None = None) -> tuple[list[Table], list[Path]]:
    """Write tables, figures and the interactive page of a sweep into a folder; returns the tables and the files."""
    sweep = read_sweep(path)
    out = out or sweep.path / "report"
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file: a sweep's report needs a folder")
    if not any(run.rows or run.result for run in sweep.runs):
        raise UserError(f"{sweep.path} has no measurements yet")
    check_columns(sweep)
    found = tables(sweep)
    refuse_links(out)
    out.mkdir(parents=True, exist_ok=True)
    refuse_links(*out.iterdir())
    files = [out / "tables.txt", out / "tables.json"]
    replace_text(files[0], "\n".join(table.text(width=160) for table in found))
    replace_text(files[1], json.dumps([json.loads(table.json()) for table in found], ensure_ascii=False, indent=1))
    drawn = figures(sweep, out)
    part = StudyPart(
        title=sweep.study.title,
        question=sweep.study.question,
        state=_state(sweep),
        names={
            run.path: label for variants in sweep.cells.values() for label, runs in variants.items() for run in runs
        },
        tables=found,
        figures=[(file, words) for file, words in drawn.items() if file.suffix == ".svg"],
        shaded=sweep.study.figure == "spikes",
    )
    write_report([run.path for run in sweep.runs], page := out / "report.html", study=part)
    return found, [*files, *drawn, page]


def check_columns(sweep: Sweep) -> None:
    """Raise if runs have finished, and the figure wants nothing that they could have."""
    columns = sweep.study.columns
    known = {name for run in sweep.runs if run.result for row in run.rows for name in row}
    wanted = {column for column in columns if column in known or len(studies.series(sweep.runs[0], column)[0])}
    if known and sweep.study.figure == "curves" and not wanted:
        raise UserError(
            f"{sweep.path / STUDY_FILE}: no run has the figure's column {columns[0]!r}: {nearest(columns[0], known)}"
        )


def figures(sweep: Sweep, out: Path) -> dict[Path, str]:
    """Draw the study's figure as SVG, PNG and PDF, spike ratios one for each game; returns what each file shows."""
    study = sweep.study
    cells = {env: v for env, v in sweep.cells.items() if any(run.rows for runs in v.values() for run in runs)}
    drawn: dict[Path, str] = {}
    if study.figure == "spikes":
        for env, variants in cells.items():
            if all(spike_map(runs) is None for runs in variants.values()):
                continue  # nothing has been measured yet
            name = f"{study.name}-{file_name(env.partition('/')[2])}" if len(cells) > 1 else study.name
            outs = [out / f"{name}{suffix}" for suffix in LAYOUTS]
            studies.draw_spikes(env, variants, outs, title=study.title)
            words = f"{study.title}: spike ratio of every layer over time. {studies.facts({env: variants})}"
            drawn |= dict.fromkeys(outs, words)
        return drawn
    if not any(len(studies.series(run, column)[0]) for run in sweep.runs for column in study.columns):
        return drawn  # no game has finished yet
    outs = [out / f"{study.name}{suffix}" for suffix in LAYOUTS]
    panels = summaries(sweep)
    studies.draw_curves(cells, study.columns, outs, title=study.title, summaries=panels)
    words = f"{study.title}: {', '.join(study.columns)} of every game. {studies.statement(cells, panels)}"
    return dict.fromkeys(outs, words)


def summaries(sweep: Sweep) -> list[studies.Points | studies.Profile]:
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
        _points(sweep, "mean_return", "Evaluation score", "mean over full games"),
    )
    return [points for points in found if points]


def _points(sweep: Sweep, of: Measure, title: str, what: str) -> studies.Points | None:
    study = sweep.study
    best = _best_means(sweep, of)
    if not best:
        return None
    relative = {label: _relative(sweep, label, best, of) for label in study.labels}
    intervals = [_interval(scores, statistics.mean) for scores in relative.values()]
    varied = study.varied[0] if len(study.varied) == 1 else ""
    values = [study.variants[label].get(varied) if varied else label for label in study.labels]
    places, numeric = studies.positions(values)
    known = [each for each in intervals if each is not None]
    return studies.Points(
        by_game={env: [float(scores[env].mean()) for scores in relative.values()] for env in best},
        mean=[statistics.mean(scores) for scores in relative.values()],
        low=[each.low for each in known] if len(known) == len(intervals) else None,
        high=[each.high for each in known] if len(known) == len(intervals) else None,
        positions=places,
        ticks=[plain(value) for value in values] if numeric else list(study.labels),
        numeric=numeric,
        axis=varied,
        title=title,
        what=what,
    )


def tables(sweep: Sweep) -> list[Table]:
    """Every table of a sweep: aggregates beside published ones where there are any, variants, scores by game."""
    found = []
    benchmark = _benchmark(sweep.complete)
    if benchmark is not None:
        for name, change in _normalisations(benchmark):
            found.append(_aggregates(sweep, benchmark, name, change))
    if len(sweep.study.labels) > 1 and (best := _best_means(sweep)):
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
        scores = change(_short(raw))
        pooled = scores.balanced() if _shared_seeds(scores) else None
        seeds = sorted({len(scores.seeds(game)) for game in scores.games})
        rows.append(
            [
                label,
                f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}",
                int((scores.means() > 1.0).sum()),
                None,
                statistics.mean(scores),
                _span(_interval(scores, statistics.mean, level)),
                statistics.median(scores),
                statistics.iqm(pooled) if pooled else None,
                _span(_interval(pooled, statistics.iqm, level)) if pooled else None,
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
            f"* highest of its column. Above: games whose mean exceeds 1 ({_top(benchmark)}). Best: games on which no "
            "row is higher. IQM slice: mean of sorted[n/4:3n/4] of the game means, the paper's IQM of its own row. "
            "Intervals: 95 % bootstrap over seeds within games; a dash where a game has one seed. Published rows: "
            "per-game means as printed, on the same games; they have other protocols and seeds, see `steadyq paper "
            "sources`.",
            _state(sweep),
        ),
    )


def _variants(sweep: Sweep, best: Mapping[str, float]) -> Table:
    """Variants relative to the best one of each game, and the chance that a run beats one of the first variant."""
    first, *_ = sweep.study.labels
    trained = _best_means(sweep, "training_return_10")
    rows: list[list[Value]] = []
    for label in sweep.study.labels:
        scores = _relative(sweep, label, best)
        training = _relative(sweep, label, trained, "training_return_10") if trained else None
        chance: Value = None
        span: Value = None
        if label != first:
            other = _relative(sweep, first, best)
            chance = statistics.probability_of_improvement(scores, other)
            if _intervals_possible(scores) and _intervals_possible(other):
                span = _span(statistics.improvement_interval(scores, other))
        interval = _span(_interval(scores, statistics.mean))
        rows.append([label, statistics.mean(scores), interval, statistics.median(scores), chance, span])
        if training:
            rows[-1] += [statistics.mean(training), _span(_interval(training, statistics.mean))]
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
            _state(sweep),
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
                cells.append(Cell(_span(_interval(own, statistics.mean) if own else None, 2)))
        cells += [Cell(value, 1, best=value is not None and value == top) for value in theirs]
        rows.append((Cell(env), *cells))
    return Table(
        title=f"{sweep.study.title}: mean evaluation score by game",
        columns=("game", "random", *ends, *heads, *names),
        rows=tuple(rows),
        notes=(
            "* highest of its row. Mean over seeds of each seed's mean over full games; random: a "
            "uniform policy under the same protocol. Intervals: 95 % bootstrap over seeds." + exceptions(sweep.runs),
            _state(sweep),
        ),
    )


def _profile(sweep: Sweep) -> studies.Profile | None:
    benchmark = _benchmark(sweep.complete)
    if benchmark is None:
        return None
    name, change = _normalisations(benchmark)[0]
    shares, bands = {}, {}
    for label in sweep.study.labels:
        scores = sweep.scores(label, sweep.complete)
        assert scores is not None
        scores = change(_short(scores))
        shares[label] = statistics.profile(scores, THRESHOLDS.tolist())
        if _intervals_possible(scores):
            bands[label] = statistics.profile_band(scores, THRESHOLDS.tolist())
    return studies.Profile(THRESHOLDS, shares, bands, f"{name} score")


def _benchmark(envs: Sequence[str]) -> Published | None:
    """The benchmark whose games these all are."""
    for prefix, published in (("Atari/", atari100k()), ("Procgen/", procgen())):
        if envs and all(env.startswith(prefix) and env.partition("/")[2] in published.games for env in envs):
            return published
    return None


def _normalisations(benchmark: Published) -> list[tuple[str, Callable[[Scores], Scores]]]:
    if benchmark.benchmark == "atari100k":
        return [("human-normalised", statistics.human_normalised)]
    return [
        ("min-max normalised", statistics.procgen_normalised),
        ("min-max normalised, clipped", lambda scores: statistics.procgen_normalised(scores, clip=True)),
    ]


def _top(benchmark: Published) -> str:
    return "the human player" if benchmark.benchmark == "atari100k" else "a solved game"


def _best_means(sweep: Sweep, of: Measure = "mean_return") -> dict[str, float]:
    """The best variant's mean of each game that all variants have finished, where it is above 0."""
    found: dict[str, float] = {}
    for env in sweep.complete:
        means = [float(own[env].mean()) for label in sweep.study.labels if (own := sweep.scores(label, [env], of))]
        if len(means) == len(sweep.study.labels) and max(means) > 0:
            found[env] = max(means)
    return found


def _relative(sweep: Sweep, label: str, best: Mapping[str, float], of: Measure = "mean_return") -> Scores:
    scores = sweep.scores(label, list(best), of)
    assert scores is not None
    return scores.apply(lambda env, values: values / best[env])


def _short(scores: Scores) -> Scores:
    """Games without their backend, as benchmarks name them."""
    return Scores({env.partition("/")[2]: column for env, column in scores.by_seed.items()})


def _shared_seeds(scores: Scores) -> bool:
    return bool(set.intersection(*(set(scores.seeds(game)) for game in scores.games)))


def _intervals_possible(scores: Scores) -> bool:
    return all(len(scores.seeds(game)) > 1 for game in scores.games)


def _interval(scores: Scores, statistic: Statistic, level: float = 0.95) -> Interval | None:
    return statistics.interval(scores, statistic, level) if _intervals_possible(scores) else None


def _span(interval: Interval | None, digits: int = 3) -> str | None:
    return None if interval is None else f"{interval.low:.{digits}f} to {interval.high:.{digits}f}"


def _mark(rows: Sequence[Sequence[Value]], columns: Sequence[int]) -> tuple[tuple[Cell, ...], ...]:
    """Rows as cells, the highest value of each given column marked, unless there is nothing to be higher than."""
    values = {c: [v for row in rows if isinstance(v := row[c], int | float)] for c in columns}
    tops = {c: max(own) for c, own in values.items() if own and max(own) > min(own)}
    return tuple(
        tuple(Cell(v, best=c in tops and v is not None and v == tops[c]) for c, v in enumerate(row)) for row in rows
    )


def _state(sweep: Sweep) -> str:
    """What the table rests on: games, seeds, protocol, and how much of the sweep has finished."""
    runs = sweep.runs
    seeds = ", ".join(map(str, sorted({run.seed for run in runs})))
    protocols = ", ".join(dict.fromkeys(run.recipe.protocol.label for run in runs))
    presets = ", ".join(dict.fromkeys(run.made_by for run in runs))
    return (
        f"{len(sweep.cells)} game{'s' * (len(sweep.cells) > 1)}, seeds {seeds}, protocol {protocols}, preset "
        f"{presets}, {max(run.recipe.steps for run in runs):,} steps; {sweep.finished} of {sweep.planned} runs "
        "finished."
    )
