"""What a sweep will cost: updates, hours on this machine, and hours on a GPU whose updates were measured."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch

from steadyq import envs
from steadyq.build import ensemble_for, wants_gpu, work
from steadyq.presets import steady
from steadyq.recipe import Recipe
from steadyq.run.loop import seconds_per_update
from steadyq.scores.published import package_rows
from steadyq.suite.study import PlannedRun

HOURS_A_DAY = 24


_GAMES = {"resnet": "Atari/Alien", "minatar": "MinAtar/Breakout"}
"""The game whose shapes each network was measured with."""


@dataclass(frozen=True)
class Measured:
    """Milliseconds of one update and one action of a network of a given size on a named GPU."""

    gpu: str
    network: str
    members: int
    scale: int
    """Width: s of a resnet, channels of a minatar network."""
    batch: int
    update_ms: float
    act_ms: float
    form: str
    """How the update was computed and timed."""
    source: str
    """Where the number comes from."""

    @property
    def work(self) -> float:
        """Multiply-adds of one pass over a batch."""
        return _work(_measured_recipe(self.network, self.members, self.scale, self.batch))


@dataclass(frozen=True)
class GpuTime:
    """Time of one run on a GPU, and the measurement it comes from."""

    seconds: float
    measured: Measured
    factor: float
    """The run's arithmetic over the measurement's; 1 where its very size was measured."""


@cache
def measured() -> tuple[Measured, ...]:
    """Every measured update that comes with the package; of two forms of one size and GPU the first counts."""
    return tuple(
        Measured(
            row["gpu"],
            row["network"],
            int(row["members"]),
            int(row["scale"]),
            int(row["batch"]),
            float(row["update_ms"]),
            float(row["act_ms"]),
            row["form"],
            row["source"],
        )
        for row in package_rows("steadyq.suite", "measured", "updates")
    )


def gpu_time(run: PlannedRun, gpu: str) -> GpuTime | None:
    """A run's learning and acting on a GPU, scaled by arithmetic from the nearest size measured; None if unknown."""
    recipe = run.recipe
    candidates = [row for row in measured() if (row.gpu, row.network) == (gpu, recipe.network.kind)]
    compute = recipe.compute
    as_measured = compute.precision in ("auto", "bf16") and compute.form in ("auto", "kernels")
    if not candidates or not as_measured or recipe.more_passes or compute.device == "cpu":
        return None
    mine = _work(recipe)
    # Narrow channels run less efficiently than wide ones, so a measurement of the same width comes first.
    nearest = min(candidates, key=lambda row: (row.scale != _width(recipe), abs(math.log(mine / row.work))))
    factor = 1.0 if _same_size(nearest, recipe) else mine / nearest.work
    acting = recipe.steps / recipe.protocol.lanes * nearest.act_ms
    return GpuTime((run.recipe.updates * nearest.update_ms * factor + acting) / 1e3, nearest, factor)


def gpus() -> tuple[str, ...]:
    """GPUs on which updates were measured."""
    return tuple(dict.fromkeys(row.gpu for row in measured()))


def possible_here(recipe: Recipe, on_gpu: bool = True) -> Recipe:
    """The recipe as this machine can build it, though another with a GPU will train it."""
    if on_gpu and torch.cuda.is_available():
        return recipe
    changes = {"compute.device": "cpu"} if not on_gpu else {}
    if wants_gpu(recipe):
        changes = {"compute.device": "cpu", "compute.precision": "auto", "compute.form": "auto"}
    return recipe.override(changes)


def seconds_here(runs: Sequence[PlannedRun], on_gpu: bool = True) -> dict[str, float]:
    """Learning time of each run on this machine, by name: one update of every size is timed."""
    timed: dict[tuple[object, ...], float] = {}
    found = {}
    for run in runs:
        recipe = possible_here(run.recipe, on_gpu)
        size = (recipe.network, recipe.ensemble, recipe.estimator, recipe.replay.batch, recipe.operator.kind)
        rules = (recipe.auxiliary, recipe.regulation)
        key = (*size, recipe.operator.snapshots, *rules, recipe.protocol.backend, recipe.compute)
        if key not in timed:
            timed[key] = seconds_per_update(recipe, envs.spec(recipe.env, recipe.protocol))
        found[run.name] = run.recipe.updates * timed[key]
    torch.cuda.empty_cache()  # this process stays, and its runs need the memory
    return found


def _width(recipe: Recipe) -> int:
    return recipe.network.channels if recipe.network.kind == "minatar" else recipe.network.scale


def _same_size(row: Measured, recipe: Recipe) -> bool:
    """Whether the measurement is of this very size; numbers of actions differ little and do not count."""
    own = _measured_recipe(row.network, row.members, row.scale, row.batch)
    return (own.network, own.ensemble, own.estimator, own.replay.batch, own.protocol.backend) == (
        recipe.network,
        recipe.ensemble,
        recipe.estimator,
        recipe.replay.batch,
        recipe.protocol.backend,
    )


@cache
def _measured_recipe(network: str, members: int, scale: int, batch: int) -> Recipe:
    width = "network.channels" if network == "minatar" else "network.scale"
    size = {"ensemble.members": members, width: scale, "replay.batch": batch}
    return steady(_GAMES[network], "paper").override(size)


@cache
def _work(recipe: Recipe) -> float:
    ensemble = ensemble_for(possible_here(recipe), envs.spec(recipe.env, recipe.protocol))
    return float(work(ensemble, recipe.replay.batch))
