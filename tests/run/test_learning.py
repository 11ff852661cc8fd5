"""Every preset learns a chain whose only reward lies six steps away, in seconds, and as separate networks would."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from steadyq import build, envs
from steadyq.presets import PRESETS, recipe_for
from steadyq.run.loop import train
from steadyq.run.update import Draws
from steadyq.value.learner import Learner
from steadyq.value.operators import take
from steadyq.value.shapes import Batch, Draw, Values

KEYS = (1, 0, 0, 1, 1, 0)  # the action that leads on, place by place: no constant policy arrives
LENGTH = len(KEYS)


class Chain(gymnasium.Env[np.ndarray, int]):
    """Choose right six times for a reward of 1; a wrong action steps back. Random walks rarely arrive in time."""

    observation_space = gymnasium.spaces.Box(0, 1, (LENGTH,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = 0
        return self.seen(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.place = self.place + 1 if action == KEYS[self.place] else max(0, self.place - 1)
        over = self.place == LENGTH
        return self.seen(), float(over), over, False, {}

    def seen(self) -> np.ndarray:
        return np.eye(LENGTH + 1, LENGTH, dtype=np.float32)[self.place]


@pytest.fixture(scope="module", autouse=True)
def registered() -> Iterator[None]:
    gymnasium.register("SteadyChain-v0", entry_point=Chain, max_episode_steps=14)
    yield
    del gymnasium.registry["SteadyChain-v0"]


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_learns_a_chain(preset: str, tmp_path: Path) -> None:
    recipe = recipe_for(preset, "SteadyChain-v0").override(
        {
            "steps": 1200,
            "network.hidden": (32,),
            "replay.warmup": 100,
            "replay.every": 2,
            "optim.gamma": 0.9,
            "optim.rate": 3e-3,
            "optim.tau": 0.05,
            "explore.epsilon": "1 -> 0.05 linear 1000 steps",
            "record.tensorboard": False,
            "evaluation.episodes": 3,
            "evaluation.random_episodes": 50,
            "compute.device": "cpu",
            "compute.threads": 1,
        }
    )
    result = train(recipe, run=tmp_path).result
    assert result is not None
    assert result["mean_return"] == 1.0
    assert result["random_return"] < 0.5  # it had to be learnt


# -- stacked members are separate networks ----------------------------------------------------------------------------


def update_apart(learners: list[Learner], batch: Batch, draw: Draw) -> torch.Tensor:
    """An update of separate networks in plain words; only the operator sees them together. Returns priorities."""
    first = learners[0]

    def together(which: str) -> Values:
        z = torch.cat([one.ensemble.forward(getattr(one, which), batch.next_observation) for one in learners])
        return Values(z, first.estimator.q(z))

    with torch.no_grad():
        z_next = first.operator(together("online"), together("target"), batch, draw)
        y = first.estimator.backup(z_next, batch.reward, batch.discount, first.ceiling)
    losses = []
    for i, one in enumerate(learners):
        leaves = {name: p.detach().requires_grad_() for name, p in one.online.items()}
        z = take(one.ensemble.forward(leaves, batch.observation), batch.action[None])
        each = one.estimator.loss(z, y[i : i + 1])
        losses.append(each.detach())
        keep = draw.keep[i : i + 1]
        loss = (batch.weight * (each * keep if keep.shape[1] else each)).mean()
        gradient = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))
        with torch.no_grad():
            one.step_(gradient, replace(draw, keep=keep))
    return torch.cat(losses).mean(0)


@pytest.mark.parametrize("preset", PRESETS)
def test_stacked_members_learn_what_separate_networks_learn(preset: str) -> None:
    members, count = 3, 16
    recipe = recipe_for(preset, "SteadyChain-v0").override(
        {"network.hidden": (16, 16), "ensemble.members": members, "replay.batch": count, "compute.device": "cpu"}
    )
    spec, device = envs.spec(recipe.env, recipe.protocol), torch.device("cpu")
    stacked = build.learner_for(recipe, spec, torch.Generator().manual_seed(0), device)
    alone = recipe.override({"ensemble.members": 1})
    apart = [build.learner_for(alone, spec, torch.Generator().manual_seed(1), device) for _ in range(members)]
    with torch.no_grad():
        for name, p in stacked.target.items():  # targets of their own, so that selector and evaluator differ
            p += 0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(2))
            for i, one in enumerate(apart):
                one.online[name].copy_(stacked.online[name][i : i + 1])
                one.target[name].copy_(p[i : i + 1])
    draws, rng = Draws(recipe, spec), np.random.default_rng(0)
    for step in range(5):
        generator = torch.Generator().manual_seed(step)
        see = torch.rand(2, count, LENGTH, generator=generator)
        reward = torch.randint(-1, 2, (count,), generator=generator).float()
        action = torch.randint(2, (count,), generator=generator)
        discount = 0.9 * (torch.rand(count, generator=generator) > 0.2)
        weight, index = torch.rand(count, generator=generator), torch.arange(count)
        batch = Batch(see[0], action, reward, discount, see[1], weight, index, index, reward > 0)
        draw = draws.layout.unpack(torch.from_numpy(draws(rng, forbids=preset == "steady", step=0, since=step)))
        mine, theirs = stacked.update(batch, draw), update_apart(apart, batch, draw)
        torch.testing.assert_close(mine.priority, theirs, rtol=1e-4, atol=1e-6)
    for i, one in enumerate(apart):
        for name in stacked.online:
            for ours, others in (
                (stacked.online, one.online),
                (stacked.target, one.target),
                (stacked.adam.first, one.adam.first),
                (stacked.adam.second, one.adam.second),
                (stacked.adam.step, one.adam.step),
            ):
                torch.testing.assert_close(
                    ours[name][i], others[name][0], rtol=1e-4, atol=2e-6, msg=lambda text, n=name: f"{n}: {text}"
                )
