"""One update of every preset at its own network, as it trains, beside the same one without what makes it fast."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from steadyq import envs
from steadyq.bench.clock import milliseconds
from steadyq.bench.sheets import Row
from steadyq.bench.updates import backends, noisy
from steadyq.build import compiled_for, computing, device_for, draw_layout, learner_for, ring_for
from steadyq.device.capture import to_device
from steadyq.device.kernels.triton import compiling_ahead
from steadyq.envs.vector import EnvSpec
from steadyq.nets import Ensemble
from steadyq.recipe import Recipe
from steadyq.run.update import Draws, Learning
from steadyq.value.learner import Learner
from steadyq.value.optim import decays, polyak_
from steadyq.value.shapes import Draw, Params

EAGER = {"compute.form": "loop", "compute.precision": "fp32"}


class Eager(Learner):
    """Every member clips and steps with PyTorch's own optimizer, one after another."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        adam = self.settings.adam
        self.alone: list[list[Tensor]] = [[p[i] for p in self.online.values()] for i in range(self.ensemble.members)]
        weights = [decays(p) for p in self.online.values()]
        self.optimizers = [
            torch.optim.AdamW(
                [
                    {"params": [p for p, decayed in zip(own, weights, strict=True) if decayed == group]}
                    | {"weight_decay": adam.decay if group else 0.0}
                    for group in (True, False)
                ],
                lr=adam.rate,
                betas=adam.betas,
                eps=adam.epsilon,
            )
            for own in self.alone
        ]

    def step_(self, gradient: Params, draw: Draw) -> Tensor:
        """Move online and target parameters; returns each member's gradient norm."""
        settings, norms = self.settings, []
        active = (draw.keep.amax(1) > 0).tolist() if draw.keep.shape[1] else [True] * len(self.alone)
        for member, (own, optimizer) in enumerate(zip(self.alone, self.optimizers, strict=True)):
            for p, slope in zip(own, gradient.values(), strict=True):
                p.grad = slope[member].to(p.dtype).contiguous()
            norms.append(torch.nn.utils.clip_grad_norm_(own, settings.clip))
            if active[member]:
                optimizer.step()
        if not settings.hard_copy_every:
            polyak_(self.target, self.online, settings.tau)
        self.refresh()
        return torch.stack(norms)


def update_times(recipe: Recipe, budget: float = 0.5) -> tuple[float, Ensemble]:
    """Milliseconds of one update as it trains: drawing, sampling, learning and priorities; and the networks."""
    device, spec = device_for(recipe), envs.spec(recipe.env, recipe.protocol)
    if device.type == "cuda":
        with compiling_ahead(device):  # of something to throw away
            update_of(recipe, spec, learning_of(recipe, spec, device), captured=False)()
    ours = learning_of(recipe, spec, device)
    backends(recipe.compute.precision != "fp32", search=False)
    return milliseconds(update_of(recipe, spec, ours), device, budget=budget), ours.learner.ensemble


def learning_of(recipe: Recipe, spec: EnvSpec, device: torch.device, kind: type[Learner] = Learner) -> Learning:
    """A recipe's learning step over a replay buffer full of noise."""
    learner = learner_for(recipe, spec, torch.Generator().manual_seed(0), device, kind=kind)
    ring = noisy(ring_for(recipe, spec, device), spec, recipe.replay.capacity)
    return Learning(learner, ring, draw_layout(recipe, spec), compiled_for(recipe, learner.ensemble))


def preset_times(recipe: Recipe, budget: float = 0.5) -> Row:
    """One update of a preset, as it trains and eagerly."""
    device, spec = device_for(recipe), envs.spec(recipe.env, recipe.protocol)
    fast, ensemble = update_times(recipe, budget)
    row = {
        "preset": recipe.preset,
        "env": recipe.env,
        "scale": recipe.scale,
        "network": recipe.network.kind,
        "members": recipe.ensemble.members,
        **computing(ensemble, device),
        "updates": recipe.updates,
    }
    backends(False, search=True)
    eager = recipe.override(EAGER)
    slow = milliseconds(
        update_of(eager, spec, learning_of(eager, spec, device, Eager), captured=False), device, budget=budget, warm=3
    )
    return row | {"update_ms": fast, "eager_ms": slow}


def update_of(recipe: Recipe, spec: EnvSpec, learning: Learning, captured: bool = True) -> Callable[[], None]:
    """A whole update of the recipe with fresh draws, captured as in training or not."""
    draws, rng, device = Draws(recipe, spec), np.random.default_rng(0), learning.learner.device

    def update() -> None:
        packed = to_device(draws(rng, forbids=True, step=0, since=0), device)
        if captured:
            return learning(packed)
        learning.on_device(packed)
        learning.learner.count()

    return update
