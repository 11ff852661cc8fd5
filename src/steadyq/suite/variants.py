"""Seeds grouped into variants, so that what is compared has a name.

A variant is a recipe without its seed and without what does not change learning (where it computes, what it records,
how many games evaluate it). It is named by its preset and its changes from that preset, less those that all runs on
the environment share: so a variant keeps one name and colour on environments whose presets or sizes differ.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from steadyq import envs
from steadyq.errors import UserError
from steadyq.fields import flatten
from steadyq.presets import steady
from steadyq.suite.runs import Run


@dataclass(frozen=True)
class Cell:
    """The runs of one variant on one environment, by seed."""

    env: str
    variant: int
    runs: tuple[Run, ...]

    @property
    def scores(self) -> list[float]:
        """Evaluation means of the finished runs."""
        return [run.result["mean_return"] for run in self.runs if run.result]

    def training_at(self, step: int) -> list[float]:
        """Means of the last ten training games of the runs that have come so far, finished or not."""
        found = []
        for run in self.runs:
            steps, values = run.metrics.series("return_10")
            there = np.flatnonzero(steps <= step)
            if len(there) and len(run.metrics) and run.metrics.steps[-1] >= step:
                found.append(float(values[there[-1]]))
        return found

    def mean_of(self, value: Callable[[Mapping[str, Any]], float | None]) -> float | None:
        """Mean over the finished runs of something in their results."""
        found = [v for run in self.runs if run.result and (v := value(run.result)) is not None]
        return float(np.mean(found)) if found else None

    @property
    def random(self) -> float | None:
        """What a random policy scored, mean over the finished runs."""
        return self.mean_of(lambda result: result["random_return"])


@dataclass(frozen=True)
class Comparison:
    """All runs that are shown together: named variants on environments."""

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


def group(runs: Sequence[Run], names: Mapping[Path, str] | None = None) -> Comparison:
    """Group runs into variants; the same seed twice is an error.

    `names` gives the variant of each path where that is known; else recipes tell.
    """
    if not runs:
        raise UserError("nothing to show: name at least one run folder")
    by_env: dict[str, list[Run]] = {}
    for run in runs:
        by_env.setdefault(run.recipe.env, []).append(run)
    shared = {env: set.intersection(*(set(run.learning_changes) for run in own)) for env, own in by_env.items()}
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
    fields = flatten(steady(envs.example()).to_dict())
    return Counter(name.rpartition(".")[2] for name in fields)


def plain(value: Any) -> str:
    """A recipe's value as a person types it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple):
        return " ".join(map(plain, value))
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)


def exceptions(runs: Iterable[Run]) -> str:
    """What a statement on evaluations must add for these runs."""
    return "".join(f" {said}" for said in dict.fromkeys(run.evaluated for run in runs) if said)


def evaluation_rules(runs: Iterable[Run]) -> str:
    """What a table must say where its evaluations were not all made by today's rules, or not by the same; else empty.

    Rules that changed are those of games with lives and hidden presses: Atari's. A result by today's names epsilon and
    networks, one by older rules does not.
    """
    finished = [run for run in runs if run.result and run.meta is None]
    atari = [run for run in finished if run.recipe.env.startswith("Atari/")]
    older = [run for run in atari if not {"evaluation_epsilon", "evaluated_networks"} <= (run.result or {}).keys()]
    said = []
    if older:
        which = _named(older) if len(older) < len(atari) else "every run"
        said.append(
            f"Evaluated by older rules, not to be set beside newer evaluations of Atari: {which}. Epsilon was 0, the "
            "networks the online ones, a frame stack was kept across a lost life, and scores lack what hidden presses "
            "gave."
        )
    by_env: dict[str, dict[float, list[Run]]] = {}
    for run in finished:
        if run.result and (epsilon := run.result.get("evaluation_epsilon")) is not None:
            by_env.setdefault(run.recipe.env, {}).setdefault(float(epsilon), []).append(run)
    for env, own in by_env.items():
        if len(own) > 1:
            each = "; ".join(f"{epsilon:g} ({_named(same)})" for epsilon, same in sorted(own.items()))
            said.append(f"{env} was evaluated with different epsilons: {each}.")
    return " ".join(said)


def _named(runs: Sequence[Run]) -> str:
    """A few runs by name, many by their number."""
    return ", ".join(run.path.name for run in runs) if len(runs) <= 3 else f"{len(runs)} runs"
