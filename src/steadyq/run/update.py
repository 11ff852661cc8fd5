"""An update's two halves: what the host draws and decides, and what the device does with it, captured once."""

from dataclasses import replace
from typing import assert_never

import numpy as np
import torch
from torch import Tensor

from steadyq.build import augmentation_for, draw_layout, operator_for
from steadyq.device.capture import Captured
from steadyq.envs.vector import EnvSpec
from steadyq.recipe import Recipe
from steadyq.replay.augmentation import augmented
from steadyq.replay.masks import WHOLE, kept
from steadyq.replay.ring import Ring
from steadyq.schedule import Schedule
from steadyq.value.learner import Learner
from steadyq.value.operators import order_for
from steadyq.value.shapes import DrawLayout


class Draws:
    """The host's half: everything random or scheduled in an update, as one vector."""

    def __init__(self, recipe: Recipe, spec: EnvSpec) -> None:
        self.recipe, self.layout = recipe, draw_layout(recipe, spec)
        self.augmentation, self.operator = augmentation_for(recipe, spec), operator_for(recipe)
        self.rate, self.gamma = Schedule.of(recipe.optim.rate), Schedule.of(recipe.optim.gamma)
        self.n_step = Schedule.of(recipe.replay.n_step)
        # Of the members' masks: the run's own, and the same for as long as it is trained.
        self.key = np.random.default_rng([recipe.seed, 3]).integers(WHOLE, size=self.layout.shapes["key"])

    def horizon(self, step: int, since: int) -> int:
        """n of the n-step return now."""
        return round(self.n_step.at(step, since))

    def __call__(self, rng: np.random.Generator, *, forbids: bool, step: int, since: int) -> np.ndarray:
        """Draw for one update, after `step` steps and `since` updates from the last scheduled reset."""
        uniform = rng.random(self.layout.batch)
        order = order_for(self.recipe.operator.exchange, self.layout.members, rng)
        return self.layout.pack(
            uniform=uniform,
            order=order,
            forbid=self.forbids(forbids, step, since),
            keep=self.keep(rng),
            key=self.key,
            rate=self.rate.at(step, since),
            horizon=self.horizon(step, since),
            gamma=self.gamma.at_complement(step, since),
            share=self.operator.shares(self.layout.members, rng),
            taus=rng.random(self.layout.shapes["taus"]) if self.layout.samples else 0.0,
            noise=rng.standard_normal(self.layout.shapes["noise"], np.float32) if self.layout.noise else 0.0,
            **self.augmentation.draw(self.layout.batch, rng, self.layout.future),
        )

    def forbids(self, wanted: bool, step: int, since: int) -> bool:
        """Whether the rewarded action is forbidden: n steps later it may not have anything to do with the bootstrap."""
        return wanted and (self.recipe.operator.forbid_until == "any_step" or self.horizon(step, since) == 1)

    def keep(self, rng: np.random.Generator) -> np.ndarray | float:
        """Which members learn in this update; from which transitions, where only some do, their masks say."""
        section = self.recipe.ensemble
        match section.learn:
            case "all" | "some":
                return 1.0
            case "one":
                return np.eye(section.members)[:, [rng.integers(section.members)]]
        assert_never(section.learn)


class Learning:
    """The device's half, called with a packed draw: sample, learn, set priorities, add up what was measured.

    Everything random or decided by the host comes in through that vector, so that a captured graph never repeats it.
    Where the learner is that of several runs, there is a vector for each, `[run, number]`.
    """

    def __init__(self, learner: Learner, ring: Ring, layout: DrawLayout, compiled: bool = False) -> None:
        self.learner, self.ring, self.layout = learner, ring, layout
        runs = (learner.runs,) if learner.runs > 1 else ()
        measured = len(learner.measured)
        self.sums = torch.zeros(*runs, measured + 1, device=learner.device)  # of what updates measured, their number
        self.one = torch.ones(runs, device=learner.device)
        self.captured = Captured(self.on_device, learner.device, compiled)

    def __call__(self, packed: Tensor) -> None:
        """One update."""
        self.captured(packed)
        self.learner.count()

    def on_device(self, packed: Tensor) -> Tensor:
        """What is captured."""
        draw = self.layout.unpack(packed) if packed.dim() == 1 else self.layout.together(packed)
        batch = self.ring.sample(draw)
        if self.layout.masked:
            slot = batch.index % self.ring.priorities.each  # among those of its run
            draw = replace(draw, keep=kept(draw.key, slot, batch.stamp, self.layout.masked))
        update = self.learner.update(augmented(batch, draw), draw)
        self.ring.priorities.update(batch.index, batch.stamp, update.priority)
        measures = [update.measures[name] for name in self.learner.measured]
        return self.sums.add_(torch.stack([*measures, self.one], -1))
