"""Runs that differ in nothing but their seed or learning rate, trained as one program: their networks lie in one stack,
their replay in one ring, and an update of all of them is about as many launches as one of a single run.

Every run keeps what makes it a run: its games, its random numbers, its folder, its logs and checkpoints, from which it
can go on alone. What they share is the device's half of a step, so that they go step by step; what the members of one
run say of each other's values stays within the run.
"""

import gc
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch

from steadyq.build import compiled_for, learner_for, ring_for
from steadyq.device.capture import Readback, to_device
from steadyq.envs.vector import Step
from steadyq.recipe import Recipe
from steadyq.run.explore import Values
from steadyq.run.step import Training, learn_watched, storing
from steadyq.run.update import Learning


def alone_because(recipe: Recipe) -> str:
    """Why a run of this recipe is trained by itself; empty where others of it may be trained with it."""
    why = {
        "a network of one's own": recipe.network.kind == "own",
        "an image beside other things": recipe.network.kind == "joined",
        "compute.form loop": recipe.compute.form == "loop",
        "units that are replaced": recipe.regulation.intervention == "replace",
        "a dataset": bool(recipe.replay.dataset),
        "evaluations on the way": recipe.evaluation.every > 0,
        "a logger of one run a process": recipe.record.wandb or recipe.record.trackio,
    }
    return next((words for words, holds in why.items() if holds), "")


def alike(recipe: Recipe) -> Recipe:
    """What runs that are trained together have in common: all but the seed and the learning rate."""
    return replace(recipe, seed=0, optim=replace(recipe.optim, rate=1.0))


class Together:
    """Several runs, one `step` at a time; each must be new or restored to the same step once it has joined."""

    def __init__(self, runs: Sequence[Training]) -> None:
        first, count = runs[0], len(runs)
        self.runs, self.recipe, self.device = tuple(runs), first.recipe, first.device
        self.learner = learner_for(self.recipe, first.spec, torch.Generator(), self.device, runs=count)
        self.ring = ring_for(self.recipe, first.spec, self.device, runs=count)
        compiled = compiled_for(self.recipe, self.learner.ensemble)
        self.learning = Learning(self.learner, self.ring, first.draws.layout, compiled)
        self.values = Values(self.recipe, first.spec, self.learner, self.ring)
        self._store = storing(self.ring, compiled)
        for place, run in enumerate(runs):
            run.join(self.learning, self.values, place)
        if self.device.type == "cuda":  # what each had of its own is given back
            gc.collect()
            torch.cuda.empty_cache()

    def step(self) -> list[dict[str, Any] | None]:
        """One step of every run, as `Training.step` makes it; returns the rows of metrics that were due."""
        runs = self.runs
        for run in runs:
            run.begin()
            run.draw_noise()
        q = Readback(self.values())
        choose = [run.chooser() for run in runs]
        if runs[0].learns:
            learn_watched(runs, self.learn, self.recipe.replay.ratio)
        values = q.numpy().reshape(len(runs), runs[0].spec.lanes, -1)
        actions = [chosen(own) for chosen, own in zip(choose, values, strict=True)]
        steps = [run.play(action) for run, action in zip(runs, actions, strict=True)]
        rewards = [run.reward(step) for run, step in zip(runs, steps, strict=True)]
        packed = self.ring.packed(np.concatenate(actions), np.concatenate(rewards), side_by_side(steps))
        self._store(to_device(packed, self.device))
        for run, reward, step in zip(runs, rewards, steps, strict=True):
            run.played(reward, step)
        return [run.end() for run in runs]

    def learn(self, updates: int) -> None:
        """Update all networks, every run on batches of its own."""
        drawn = [run.drawn(updates) for run in self.runs]
        self.learner.updates = self.runs[0].learner.updates
        for packed in to_device(np.stack(drawn, 1), self.device) if updates else ():
            self.learning(packed)
        for run in self.runs:
            run.learner.updates = self.learner.updates


def side_by_side(steps: Sequence[Step]) -> Step:
    """The steps of several runs as one of all their lanes."""
    columns: dict[str, list[Any]] = {f.name: [getattr(step, f.name) for step in steps] for f in fields(Step)}
    joined: dict[str, Any] = {name: None if each[0] is None else np.concatenate(each) for name, each in columns.items()}
    return Step(**joined)
