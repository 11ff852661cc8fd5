"""What a sweep will cost: updates, hours on this machine, and hours on a GPU whose updates were measured."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from steadyq import envs
from steadyq.agent import ensemble_for
from steadyq.drive import seconds_per_update
from steadyq.recipe import Recipe
from steadyq.suite.scores import package_rows
from steadyq.suite.suites import PlannedRun

HOURS_A_DAY = 24


@dataclass(frozen=True)
class Measured:
    """Milliseconds of one update and one action of a network of a given size on a named GPU."""

    gpu: str
    network: str
    members: int
    scale: int
    batch: int
    update_ms: float
    act_ms: float
    form: str
    source: str

    @property
    def work(self) -> float:
        """Multiply-adds of one pass over a batch, on Atari with 18 actions and 51 quantiles as measured."""
        return _atari_work(self.members, self.scale, self.batch)


@dataclass(frozen=True)
class GpuTime:
    """Time of one run on a GPU, and the measurement it comes from."""

    seconds: float
    measured: Measured
    factor: float
    """The run's arithmetic over the measurement's; 1 where its very size was measured."""


def measured() -> tuple[Measured, ...]:
    """Every measured update that comes with the package."""
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
        for row in package_rows("measured", "updates")
    )


def gpu_time(run: PlannedRun) -> GpuTime | None:
    """A run's learning and acting on the measured GPU, scaled by arithmetic from the nearest size; None if unknown."""
    recipe = run.recipe
    candidates = [row for row in measured() if row.network == recipe.network.kind]
    if not candidates:
        return None
    mine = _work(recipe)
    # Narrow channels run less efficiently than wide ones, so a measurement of the same width comes first.
    nearest = min(candidates, key=lambda row: (row.scale != recipe.network.scale, abs(math.log(mine / row.work))))
    exact = (nearest.members, nearest.scale, nearest.batch, 128) == (
        recipe.ensemble.members,
        recipe.network.scale,
        recipe.replay.batch,
        recipe.network.head_multiple,
    ) and recipe.protocol.backend == "atari"
    factor = 1.0 if exact else mine / nearest.work
    acting = recipe.steps / recipe.protocol.lanes * nearest.act_ms
    return GpuTime((run.updates * nearest.update_ms * factor + acting) / 1e3, nearest, factor)


def seconds_here(runs: Sequence[PlannedRun]) -> dict[str, float]:
    """Learning time of each run on this machine, by name: one update of every size is timed."""
    timed: dict[tuple[object, ...], float] = {}
    found = {}
    for run in runs:
        recipe = run.recipe
        size = (recipe.network, recipe.ensemble, recipe.estimator, recipe.replay.batch, recipe.operator.kind)
        key = (*size, recipe.protocol.backend, recipe.compute)
        if key not in timed:
            timed[key] = seconds_per_update(recipe, envs.spec(recipe.env, recipe.protocol))
        found[run.name] = run.updates * timed[key]
    return found


def _work(recipe: Recipe) -> float:
    ensemble = ensemble_for(recipe, envs.spec(recipe.env, recipe.protocol))
    one = sum(layer.multiplications for layer in ensemble.network.layers.values())
    return float(one * ensemble.members * recipe.replay.batch)


@cache
def _atari_work(members: int, scale: int, batch: int) -> float:
    from steadyq.presets import steady

    size = {"ensemble.members": members, "network.scale": scale, "replay.batch": batch}
    return _work(steady("Atari/Alien", "paper").override(size))
