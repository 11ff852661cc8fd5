"""The league: every preset that fits on five MinAtar games, all tuned alike; writes docs/league.md.

python experiments/league.py grid --runs DIR      learning and target rates of every preset on one game
python experiments/league.py choose               the best of them: writes studies/league.toml
python experiments/league.py play --runs DIR      studies/league.toml
python experiments/league.py table                what archives in results/ say: prints tables, writes the page; the
                                                  grid's alone where the first preset has not played all games

`grid` and `play` begin with what results/league-grid*.tar.xz and results/league-play*.tar.xz hold, run what is missing
(of some `--presets`, or of all) for at most `--minutes`, and pack all that has ended into `--archive`: the next visit
to a machine goes on from there, and archives of several machines lie side by side until the next `grid` or `play`
packs them together.
"""

import argparse
import dataclasses
import math
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from steadyq import envs
from steadyq.build import ensemble_for
from steadyq.errors import UserError
from steadyq.monitor.verdict import overestimation
from steadyq.presets import PRESETS, recipe_for
from steadyq.run.files import replace_text
from steadyq.scores import statistics
from steadyq.scores.published import Scores
from steadyq.scores.tables import Cell, Table, render
from steadyq.suite.archive import bring, ended_runs, pack
from steadyq.suite.comparing import interval_of
from steadyq.suite.launch import launch, launcher_for
from steadyq.suite.plan import make_plan
from steadyq.suite.runs import Run
from steadyq.suite.study import STUDY_FILE, Study, find_study
from steadyq.suite.sweep import Sweep, read_sweep
from steadyq.suite.tables import tables

ROOT = Path(__file__).parents[1]
RESULTS, STUDY, PAGE = ROOT / "results", ROOT / "studies" / "league.toml", ROOT / "docs" / "league.md"

GAMES = ("MinAtar/Asterix", "MinAtar/Breakout", "MinAtar/Freeway", "MinAtar/Seaquest", "MinAtar/SpaceInvaders")
TUNED_ON = "MinAtar/SpaceInvaders"
"""Rewards are dense there, so that half a run tells rates apart."""
RATES, TARGET_RATES = (2e-4, 5e-4, 1.25e-3), (0.005, 0.02)
GRID_SEEDS, SEEDS = (100, 101), (0, 1, 2, 3, 4)
GRID_STEPS, STEPS = 50_000, 100_000
TOGETHER = len(RATES) * len(GRID_SEEDS)
"""Runs of a preset that differ in seed and learning rate alone."""
FIRST = "dqn"
"""The preset that all others are held against."""
COMMON = {
    "evaluation.episodes": 32,  # as many as are played side by side
    "record.every": 2000,
    "record.checkpoint_every": 25_000,
    "record.tensorboard": False,
    "monitor.every": 5000,
}
LAST_ROWS = 4
"""Diagnostics at the end are the mean of so many rows: the last fifth of a run."""


def presets() -> tuple[dict[str, None], dict[str, str]]:
    """Presets that can be built on every game, the first one first, and why others cannot."""
    fit, left = {FIRST: None}, {}
    for preset in PRESETS:
        try:
            for game in GAMES:
                recipe = recipe_for(preset, game)
                ensemble_for(recipe, envs.spec(recipe.env, recipe.protocol))
            fit[preset] = None
        except UserError as error:
            left[preset] = str(error)
    return fit, left


def target_changes(preset: str, rate: float) -> dict[str, Any]:
    """A target rate as options: tau, or a copy every 1 / tau updates where the preset copies.

    Nothing where it copies after every update: it has no target network by design.
    """
    every = recipe_for(preset, TUNED_ON).optim.hard_copy_every
    return {"optim.tau": rate} if not every else {"optim.hard_copy_every": round(1 / rate)} if every > 1 else {}


def label_of(preset: str, rate: float, target: float) -> str:
    """What a point of the grid is called; the same at every target rate where that makes no difference."""
    return f"{preset} rate {rate:g}" + (f" target {target:g}" if target_changes(preset, target) else "")


def points(preset: str) -> dict[str, dict[str, Any]]:
    """The grid of one preset, by label."""
    return {
        label_of(preset, rate, target): {"preset": preset, "optim.rate": rate, **target_changes(preset, target)}
        for rate in RATES
        for target in TARGET_RATES
    }


def grid() -> Study:
    """Every preset at every point, on one game, with seeds that the league does not have."""
    return Study(
        name="league-grid",
        title="The league's grid",
        question="Which learning rate and target rate suits each preset?",
        games=(TUNED_ON,),
        preset=FIRST,
        seeds=GRID_SEEDS,
        settings={**COMMON, "evaluation.episodes": 1, "steps": GRID_STEPS},  # training games are what is judged
        variants={label: changes for preset in presets()[0] for label, changes in points(preset).items()},
    )


def area(run: Run) -> float:
    """Mean over a run's rows of the return of its last 100 training games; a run that diverged is worst."""
    if run.result is None:
        return -math.inf
    return float(np.mean(run.metrics.series("return_100")[1]))


def areas(sweep: Sweep, preset: str) -> dict[str, float]:
    """What a preset's points came to, mean over seeds; empty unless all of them are complete."""
    cells = sweep.cells.get(TUNED_ON, {})
    missing = [label for label in points(preset) if len(cells.get(label, ())) < len(sweep.study.seeds)]
    return {} if missing else {label: float(np.mean([area(run) for run in cells[label]])) for label in points(preset)}


def choose(sweep: Sweep) -> Study:
    """The league: each preset at the point whose runs have the largest area under their curve, mean over seeds."""
    variants: dict[str, Mapping[str, Any]] = {}
    for preset in presets()[0]:
        if found := areas(sweep, preset):
            variants[preset] = points(preset)[max(found, key=found.__getitem__)]
        else:
            print(f"left out: {preset}, whose grid is not complete")
    if FIRST not in variants:
        raise UserError(f"the grid of {FIRST} is not complete, and all others are held against it")
    return Study(
        name="league",
        title="The league",
        question="Which remedy helps, at equal tuning?",
        games=GAMES,
        preset=FIRST,
        seeds=SEEDS,
        settings={**COMMON, "steps": STEPS},
        variants=variants,
        columns=("return_100",),
    )


def gather(part: str, runs: Path) -> None:
    """Put what archives hold into a sweep folder."""
    runs.mkdir(parents=True, exist_ok=True)
    for archive in sorted(RESULTS.glob(f"league-{part}*.tar.xz")):
        bring(archive, runs)


def run(part: str, study: Study, args: argparse.Namespace) -> int:
    """Run what is missing, as long as there is time, and pack what has come to an end."""
    gather(part, args.runs)
    if args.presets:
        study = study.changed(variants=[f"{name} rate *" if part == "grid" else name for name in args.presets])
    plan = make_plan(study, args.runs)
    launcher = launcher_for("local", plan, args.jobs, args.gpus_per_run, retries=1, abreast=args.together)
    print(f"{len(plan.todo)} of {len(plan.entries)} runs to do on {launcher.words}", flush=True)
    code = launch(plan, launcher, Console(width=160), retries=1, minutes=args.minutes)
    ended = ended_runs(args.runs)
    archive = args.archive or RESULTS / f"league-{part}.tar.xz"
    pack(args.runs, archive, f"league-{part}", ended)
    print(f"{len(ended)} runs in {archive}, {archive.stat().st_size / 1e6:.1f} MB")
    return code


def read(part: str, study: Study) -> Sweep:
    """All archives of a part as one sweep, whatever presets each visit to a machine ran."""
    with tempfile.TemporaryDirectory() as place:
        gather(part, Path(place))
        replace_text(Path(place) / STUDY_FILE, study.to_toml())
        return read_sweep(Path(place))


def played(sweep: Sweep) -> Sweep | None:
    """The presets whose runs have all come to an end; none unless the first one's have."""
    study = sweep.study
    ended = {
        env: {label for label, runs in cells.items() if len(runs) == len(study.seeds)}
        for env, cells in sweep.cells.items()
    }
    labels = [label for label in study.labels if all(label in ended.get(env, ()) for env in study.games)]
    if FIRST not in labels:
        return None
    cells = {env: {label: runs[label] for label in labels} for env, runs in sweep.cells.items()}
    return dataclasses.replace(sweep, study=study.changed(variants=labels), cells=cells)


def at_the_end(run: Run) -> dict[str, float | None]:
    """Diagnostics of the last fifth of a run."""
    rows = [run.diagnostics[at] for at in range(max(0, len(run.diagnostics) - LAST_ROWS), len(run.diagnostics))]

    def mean(values: Iterable[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return float(np.mean(known)) if known else None

    rank = [row.get("effective_rank") for row in rows]
    possible = [row.get("rank_possible") for row in rows]
    return {
        "dormant share": mean(row.get("dormant") for row in rows),
        "effective rank, of possible": mean(a / b for a, b in zip(rank, possible, strict=True) if a and b),
        "spike": mean(row.get("spike") for row in rows),
        "churn": mean(row.get("churn") for row in rows),
        "overestimation": mean(overestimation(rows, at) for at in range(len(rows))),
    }


def diagnostics(sweep: Sweep) -> Table:
    """What the monitor measured at the end of every preset's runs, mean over games and seeds with its interval."""
    rows, names = [], tuple(at_the_end(sweep.runs[0]))
    for label in sweep.study.labels:
        own = {env: variants[label] for env, variants in sweep.cells.items() if label in variants}
        cells = [Cell(label)]
        for name in names:
            values = {
                env: {r.seed: v for r in runs if (v := at_the_end(r)[name]) is not None} for env, runs in own.items()
            }
            cells.append(Cell(spanned(Scores({env: found for env, found in values.items() if found}), 3)))
        rows.append(tuple(cells))
    return Table(
        title=f"{sweep.study.title}: diagnostics at the end",
        columns=("preset", *names),
        rows=tuple(rows),
        notes=(
            f"Mean of the last {LAST_ROWS} rows of every run's diagnostics ([metrics.md](metrics.md) defines them), "
            "then over games and seeds, with its 95 % bootstrap interval over seeds. Overestimation: greedy values "
            "above realised returns, in units of these.",
        ),
    )


def by_game(sweep: Sweep) -> Table:
    """Every preset's mean evaluation score on every game."""
    rows = []
    for label in sweep.study.labels:
        scores = [sweep.scores(label, [env]) for env in sweep.study.games]
        rows.append((Cell(label), *(Cell(None if each is None else spanned(each, 1)) for each in scores)))
    names = [env.partition("/")[2] for env in sweep.study.games]
    return Table(f"{sweep.study.title}: mean evaluation score", ("preset", *names), tuple(rows))


def spanned(scores: Scores, digits: int) -> str | None:
    """A mean with its interval."""
    if not scores.games:
        return None
    found = interval_of(scores, statistics.mean)
    span = f" ({found.low:.{digits}f} to {found.high:.{digits}f})" if found else ""
    return f"{statistics.mean(scores):.{digits}f}{span}"


def sensitivity(sweep: Sweep) -> Table:
    """Every preset at every point of the grid, the best first, and how much of its best it keeps at its worst."""
    rows = []
    for preset in presets()[0]:
        if found := areas(sweep, preset):
            best, worst = max(found.values()), min(found.values())
            cells, shown = [Cell(preset)], set()
            for rate in RATES:
                for target in TARGET_RATES:
                    label = label_of(preset, rate, target)
                    value = found[label] if label not in shown and math.isfinite(found[label]) else None
                    cells.append(Cell(value, 1, best=value == best))
                    shown.add(label)
            rows.append((best, (*cells, Cell(worst / best if math.isfinite(worst) and best > 0 else None, 2))))
    seeds = [[area(run) for run in cell] for cell in sweep.cells[TUNED_ON].values()]
    apart = [float(np.ptp(each)) for each in seeds if len(each) > 1 and np.isfinite(each).all()]
    spread = f", which are {np.mean(apart):.1f} apart at a point" if apart else ""
    rows.sort(key=lambda row: row[0], reverse=True)
    return Table(
        "The grid",
        ("preset", *(f"{rate:g}, {target:g}" for rate in RATES for target in TARGET_RATES), "worst of best"),
        tuple(row for _, row in rows),
        notes=(
            "* the point taken.",
            f"Learning rate, target rate; on {TUNED_ON}, mean over the run of the last 100 training games' return, "
            f"mean over seeds {' and '.join(map(str, GRID_SEEDS))}{spread}. A preset that copies its target after "
            "every update has no target rate. Worst of best: what is left of a preset's best point at its worst.",
        ),
    )


def bold(note: str) -> str:
    """A note on what a star marks, where the same is in bold."""
    return f"Bold: {note.removeprefix('* ')}" if note.startswith("* ") else note


def page(sweep: Sweep | None, tuned: Sweep, found: Sequence[Table]) -> str:
    """The whole page; without a sweep nothing has been played."""

    def commits(*sweeps: Sweep) -> str:
        runs = [run.result for each in sweeps for run in each.runs if run.result]
        return ", ".join(sorted({str(result["commit"])[:10] for result in runs if result.get("commit")}))

    fit, unfit = presets()
    left = "".join(f"Left out: `{preset}` ({why}). " for preset, why in unfit.items())
    if waiting := [f"`{preset}`" for preset in fit if sweep is None or preset not in sweep.study.labels]:
        left += f"Not played yet: {', '.join(waiting)}. "
    body = "\n".join(
        f"## {table.title}\n\n{table.markdown()}\n" + "".join(f"{bold(note)}\n\n" for note in table.notes)
        for table in found
    )
    rates, targets = (", ".join(f"{rate:g}" for rate in each) for each in (RATES, TARGET_RATES))
    games = f"`results/league-play*.tar.xz` (commits {commits(sweep)}) and " if sweep else ""
    return f"""# The league

Every preset on {len(GAMES)} MinAtar games, {STEPS:,} steps, {len(SEEDS)} seeds,
{COMMON["evaluation.episodes"]} evaluation games a run. {left}All were tuned alike: learning rates {rates} times
target rates {targets} (where a preset copies its
target, a copy every 1 / rate updates) on {TUNED_ON} alone, {GRID_STEPS:,} steps, seeds
{" and ".join(map(str, GRID_SEEDS))}, which no run of the league has; the point with the largest mean of the training
return over the whole run was taken for all games. Everything else is as the presets have it. Written by
`python experiments/league.py table` from {games}`results/league-grid*.tar.xz` (commits {commits(tuned)}).

{body}"""


def main(arguments: list[str] | None = None) -> int:
    """One of the four commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("grid", "choose", "play", "table"))
    parser.add_argument("--runs", type=Path, default=ROOT / "sweeps" / "league", help="folder of the runs, one a part")
    parser.add_argument("--presets", nargs="+", metavar="PRESET", help="of `grid` and `play`, these alone")
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop then; the same command continues")
    parser.add_argument("--jobs", type=int, help="runs at a time; by default one for each core")
    parser.add_argument("--gpus-per-run", type=float, help="as of `steadyq sweep`; 0 trains on the CPU")
    parser.add_argument("--together", type=int, default=TOGETHER, help="runs trained as one program, at most")
    parser.add_argument("--archive", type=Path, help="what is packed; by default results/league-PART.tar.xz")
    args = parser.parse_args(arguments)
    args.runs = args.runs.with_name(f"{args.runs.name}-{args.command}")
    os.environ.setdefault("STEADYQ_COMMAND", f"python experiments/league.py {args.command}")  # what results name
    if args.command == "grid":
        return run("grid", grid(), args)
    if args.command == "play":
        return run("play", find_study(str(STUDY)), args)
    if args.command == "choose":
        tuned = read("grid", grid())
        replace_text(STUDY, choose(tuned).to_toml())
        render(sensitivity(tuned), Console(width=160))
        return 0
    tuned = read("grid", grid())
    sweep = played(read("play", find_study(str(STUDY)))) if any(RESULTS.glob("league-play*.tar.xz")) else None
    found = [*tables(sweep)[:1], by_game(sweep), diagnostics(sweep)] if sweep else []
    found.append(sensitivity(tuned))
    for table in found:
        render(table, Console(width=200))
    replace_text(PAGE, page(sweep, tuned, found))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        sys.exit(f"league: {error}")
