"""Runs as curves: read run folders, group seeds into variants, bring them onto one step grid, aggregate.

A variant is a recipe without its seed and without what does not change learning (where it computes, what it records,
how many games evaluate it). It is named by its preset and its changes from that preset, less those that all runs on
the environment share: so a variant keeps one name and colour on environments whose presets or sizes differ.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steadyq import envs
from steadyq.envs import Protocol
from steadyq.errors import UserError
from steadyq.presets import recipe_for, steady
from steadyq.recipe import Recipe, flatten
from steadyq.run.folder import RunFolder
from steadyq.scores.statistics import mean_interval

Array = NDArray[np.float64]

GRID_POINTS, ALL_POINTS = 500, 6000
"""Most points of one curve (more cannot be told apart on a screen), and of one quantity in all of a report."""

_NOT_LEARNING = ("record.", "evaluation.", "monitor.")

_DEFINED: dict[str, Callable[[Mapping[str, Any]], bool]] = {
    "same_action_rewarded": lambda row: row.get("rewarded", 0) > 0,
    "same_action_unrewarded": lambda row: row.get("rewarded", 1) < 1,
    "q_spread": lambda row: row["q_spread"] > 0,
}
"""When a column means something: the share of no transitions and the spread of one member are gaps, not zero."""


@dataclass(frozen=True)
class Run:
    """One run folder, read once."""

    path: Path
    recipe: Recipe
    rows: list[dict[str, Any]]
    events: list[dict[str, Any]]
    result: dict[str, Any] | None
    diagnostics: list[dict[str, Any]] = field(default_factory=list)
    meta: dict[str, Any] | None = None
    """What another learner's run says of itself; its recipe then holds nothing but what every run has."""

    @property
    def seed(self) -> int:
        """The run's seed."""
        return self.recipe.seed

    @property
    def watched(self) -> bool:
        """Whether it is somebody's own loop that the stability monitor watched: it has no end and no evaluation."""
        return self.meta is not None and "steps" not in self.meta

    @property
    def made_by(self) -> str:
        """Preset and scale, or the name of another learner."""
        return f"{self.recipe.preset} {self.recipe.scale}".strip()

    @property
    def evaluated(self) -> str:
        """How its evaluation differs from ours, in words."""
        said = (self.meta or {}).get("evaluation")
        return f"{self.made_by}: {said}." if said else ""

    @property
    def last_step(self) -> int:
        """The last recorded step."""
        return int(self.rows[-1]["step"]) if self.rows else 0

    @cached_property
    def changes(self) -> dict[str, Any]:
        """Fields in which the recipe departs from its preset; where it computes does not count, its precision does."""
        if self.meta is not None:
            return {}
        mine = flatten(self.recipe.to_dict())
        try:
            base = flatten(recipe_for(self.recipe.preset, self.recipe.env, self.recipe.scale).to_dict())
        except UserError:  # a preset of another version, or an environment that is not installed here
            base = {}
        ignored = ("seed", "env", "preset", "scale", "compute.device", "compute.threads", "compute.form")
        return {name: v for name, v in mine.items() if not name.startswith(ignored) and base.get(name) != v}

    @property
    def learning_changes(self) -> tuple[tuple[str, Any], ...]:
        """The changes that matter to learning, as hashable pairs."""
        return tuple(
            (name, tuple(value) if isinstance(value, list) else value)
            for name, value in sorted(self.changes.items())
            if not name.startswith(_NOT_LEARNING)
        )

    def series(self, column: str) -> tuple[Array, Array]:
        """Steps and values of one column, without the rows that do not have it; `diagnostics.` names the other file."""
        source, _, name = column.rpartition(".")
        rows, column = (self.diagnostics, name) if source == "diagnostics" else (self.rows, column)
        there = _DEFINED.get(column)
        kept = [row for row in rows if row.get(column) is not None and (there is None or there(row))]
        return np.array([row["step"] for row in kept], float), np.array([row[column] for row in kept], float)

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Events of one kind."""
        return [event for event in self.events if event.get("event") == kind]


def read(path: Path | str) -> Run:
    """Read a run folder, or that of another learner: it has a meta.json instead of a recipe."""
    folder = RunFolder(path)
    meta = folder.meta
    recipe = folder.recipe if meta is None else _stand_in(meta)
    result = folder.result
    if result is not None:
        _check_result(result, folder.path / "result.json")
    return Run(Path(path), recipe, folder.metrics(), folder.events(), result, folder.diagnostics(), meta)


def _check_result(result: Mapping[str, Any], file: Path) -> None:
    for name in ("mean_return", "random_return"):
        if not isinstance(result.get(name), int | float):
            raise UserError(f"{file} is damaged: {name} is no number")
    if not isinstance(result.get("returns"), list) or not result["returns"]:
        raise UserError(f"{file} is damaged: returns is no list of scores")


def _stand_in(meta: Mapping[str, Any]) -> Recipe:
    """A recipe that carries the few things every run has."""
    return Recipe(
        env=_known(str(meta.get("env") or "unknown")),
        protocol=Protocol(**meta["protocol"]) if "protocol" in meta else Protocol("gymnasium"),
        preset=str(meta.get("name") or "monitored"),
        scale="",
        steps=max(1, int(meta.get("steps") or 1)),
        seed=int(meta.get("seed") or 0),
    )


def _known(env: str) -> str:
    """The environment's name as our own runs write it, if it is one we know."""
    try:
        return envs.canonical(env)
    except UserError:
        return env


@dataclass(frozen=True)
class Curve:
    """One column of one variant on the step grid: every seed, their mean, and its interval if there are several."""

    seeds: Array  # [seed, point], NaN where a seed has no value
    mean: Array  # [point], NaN where any seed has none: a mean over survivors would flatter
    low: Array | None
    high: Array | None


@dataclass(frozen=True)
class Cell:
    """The runs of one variant on one environment, by seed."""

    env: str
    variant: int
    runs: tuple[Run, ...]

    def curve(self, column: str, grid: Array) -> Curve | None:
        """The column on the grid, or None if no run has it."""
        each = [on_grid(*run.series(column), grid) for run in self.runs]
        return aggregate(np.stack(each)) if any(np.isfinite(values).any() for values in each) else None

    @property
    def scores(self) -> list[float]:
        """Evaluation means of the finished runs."""
        return [run.result["mean_return"] for run in self.runs if run.result]


@dataclass(frozen=True)
class Comparison:
    """All runs of a report: named variants on environments."""

    labels: tuple[str, ...]
    cells: tuple[Cell, ...]

    @property
    def envs(self) -> tuple[str, ...]:
        """Environments in the order given."""
        return tuple(dict.fromkeys(cell.env for cell in self.cells))

    @property
    def runs(self) -> list[Run]:
        """Every run."""
        return [run for cell in self.cells for run in cell.runs]

    def on(self, env: str) -> list[Cell]:
        """The variants that were run on an environment."""
        return [cell for cell in self.cells if cell.env == env]

    def grid(self, env: str) -> Array:
        """Common steps of an environment's curves: as fine as its coarsest run, coarser in a large report."""
        points = max(100, min(GRID_POINTS, ALL_POINTS // len(self.cells)))
        return step_grid([run for cell in self.on(env) for run in cell.runs], points)


def compare(paths: Sequence[Path | str], names: Mapping[Path, str] | None = None) -> Comparison:
    """Read run folders and group them; the same folder twice counts once, the same seed twice is an error.

    `names` gives the variant of each path where that is known; else recipes tell.
    """
    unique = {Path(path).resolve(): Path(path) for path in paths}
    runs = [read(path) for path in unique.values()]
    if not runs:
        raise UserError("a report needs at least one run folder")
    by_env: dict[str, list[Run]] = {}
    for run in runs:
        by_env.setdefault(run.recipe.env, []).append(run)
    shared = {env: set.intersection(*(set(run.learning_changes) for run in group)) for env, group in by_env.items()}
    found: dict[tuple[str, Identity], dict[int, Run]] = {}
    for run in runs:
        own = tuple(change for change in run.learning_changes if change not in shared[run.recipe.env])
        identity = Identity(names[run.path], "", ()) if names else Identity(run.recipe.preset, run.recipe.scale, own)
        seeds = found.setdefault((run.recipe.env, identity), {})
        if run.seed in seeds:
            raise UserError(
                f"{seeds[run.seed].path} and {run.path} are the same recipe with the same seed {run.seed}: give one"
                + (" (watched runs are told apart by the monitor's name= and seed=)" if run.watched else "")
            )
        seeds[run.seed] = run
    variants = list(dict.fromkeys(identity for _, identity in found))
    cells = [
        Cell(env, variants.index(identity), tuple(seeds[seed] for seed in sorted(seeds)))
        for (env, identity), seeds in found.items()
    ]
    return Comparison(labels(variants), tuple(cells))


class Identity(NamedTuple):
    """What sets a variant apart: its preset, its scale, and the changes not shared by every run on its environment."""

    preset: str
    scale: str
    changes: tuple[tuple[str, Any], ...]


def labels(variants: Sequence[Identity]) -> tuple[str, ...]:
    """Names for variants: the preset, the scale if there are several, and the changes."""
    several_scales = len({variant.scale for variant in variants}) > 1
    return tuple(
        ", ".join(
            [
                variant.preset + (f" {variant.scale}" if several_scales else ""),
                *(f"{brief(name)} {plain(value)}" for name, value in variant.changes),
            ]
        )
        for variant in variants
    )


def brief(name: str) -> str:
    """A recipe field's name without its section, where no other section has the same."""
    leaf = name.rpartition(".")[2]
    return leaf if _leaves()[leaf] == 1 else name


@cache
def _leaves() -> Counter[str]:
    fields = flatten(steady("MinAtar/Breakout").to_dict())
    return Counter(name.rpartition(".")[2] for name in fields)


def plain(value: Any) -> str:
    """A recipe's value as a person types it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple):
        return " ".join(map(plain, value))
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)


def step_grid(runs: Sequence[Run], points: int = GRID_POINTS) -> Array:
    """Equally spaced steps up to the last row, as fine as the coarsest run, at most so many points."""
    last = max((run.last_step for run in runs), default=0)
    spacings = [np.median(np.diff([0, *(row["step"] for row in run.rows)])) for run in runs if run.rows]
    if not last:
        return np.zeros(0)
    spacing = max(*map(float, spacings), last / points)
    return np.arange(1, int(np.ceil(last / spacing)) + 1, dtype=np.float64) * spacing


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


def actions(run: Run) -> int | None:
    """How many actions the environment has, if it is installed here or the run says so."""
    recipe = run.recipe
    if run.meta is not None:
        return run.meta.get("actions")
    try:
        return envs.spec(recipe.env, recipe.protocol).num_actions
    except UserError:
        return None


def exceptions(runs: Iterable[Run]) -> str:
    """What a statement on evaluations must add for these runs."""
    return "".join(f" {said}" for said in dict.fromkeys(run.evaluated for run in runs) if said)


def mean_of(cell: Cell, value: Callable[[Mapping[str, Any]], float | None]) -> float | None:
    """Mean over a cell's finished runs of something in their results."""
    found = [v for run in cell.runs if run.result and (v := value(run.result)) is not None]
    return float(np.mean(found)) if found else None
