"""Every preset learns a chain whose only reward lies six steps away, in seconds, and as separate networks would."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import kinds
import numpy as np
import pytest
import torch

from steadyq import build, envs, presets
from steadyq.presets import PRESETS, recipe_for
from steadyq.recipe import Recipe
from steadyq.run.loop import seconds_per_update, train
from steadyq.run.update import Draws
from steadyq.value.learner import Learner
from steadyq.value.operators import take
from steadyq.value.shapes import Batch, Draw, Future, Values

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
    recipe = recipe_for(preset, "SteadyChain-v0")
    hidden = (32,) if recipe.auxiliary.kind == "none" else (32, 32)  # a latent to predict
    recipe = recipe.override(
        {
            "steps": 1200,
            "network.hidden": hidden,
            "replay.warmup": 100,
            "replay.every": 2,
            "optim.gamma": 0.9,
            "optim.rate": 3e-3,
            "optim.tau": 0.05,
            "optim.hard_copy_every": min(10, recipe.optim.hard_copy_every),
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


@pytest.mark.parametrize("preset", PRESETS)
def test_every_presets_update_can_be_timed_before_a_run(preset: str) -> None:
    """On made-up transitions, with all that its losses ask for."""
    recipe = recipe_for(preset, "SteadyChain-v0").override({"compute.device": "cpu", "network.hidden": (8, 8)})
    assert 0 < seconds_per_update(recipe, envs.spec(recipe.env, recipe.protocol)) < 60


SMALLEST = {
    "resnet": {"network.scale": 1, "network.head_multiple": 4, "network.strides": (2, 2, 2, 2)},
    "impala": {"network.width": 1, "network.hidden": (8,)},
    "cnn": {"network.hidden": (8,)},
    "der": {"network.hidden": (8,)},
}


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_trains_on_an_atari_game(preset: str, tmp_path: Path) -> None:
    """In miniature: every part of it runs on real frames, is finite, and is evaluated."""
    recipe = recipe_for(preset, "Atari/Breakout")
    recipe = recipe.override(
        {
            **SMALLEST[recipe.network.kind],
            "steps": 52,
            "protocol.max_frames": 120,
            "ensemble.members": min(3, recipe.ensemble.members),
            "replay.warmup": 32,
            "replay.batch": 4,
            "replay.capacity": 100,
            "replay.every": 4,
            "replay.ratio": 1,
            "optim.hard_copy_every": min(2, recipe.optim.hard_copy_every),
            "regulation.every": 4,
            "monitor.every": 10,
            "monitor.batch": 4,
            "record.every": 20,
            "record.tensorboard": False,
            "evaluation.episodes": 1,
            "evaluation.random_episodes": 1,
            "compute.device": "cpu",
            "compute.threads": 1,
        }
    )
    before = learned(recipe)
    folder = train(recipe, run=tmp_path)
    assert folder.result is not None
    assert folder.result["updates"] == 5
    assert folder.diagnostics()
    weights, _ = folder.weights("online")
    assert weights.keys() == before.keys()
    for name, p in weights.items():
        assert p.isfinite().all()
        assert torch.equal(p, before[name]) == name.startswith("prior."), name  # all else has learned


def learned(recipe: Recipe) -> dict[str, torch.Tensor]:
    """The parameters that a run of the recipe begins with."""
    spec, generator = envs.spec(recipe.env, recipe.protocol), torch.Generator().manual_seed(recipe.seed)
    return build.learner_for(recipe, spec, generator, torch.device("cpu")).online


# -- stacked members are separate networks ----------------------------------------------------------------------------


def update_apart(learners: list[Learner], batch: Batch, draw: Draw) -> torch.Tensor:
    """An update of separate networks in plain words; operator and loss alone see them together. Returns priorities."""
    first = learners[0]
    operator, estimator = first.operator, first.estimator

    def noise_of(one: Learner, whose: int) -> torch.Tensor:
        i = next(i for i, each in enumerate(learners) if each is one)
        return draw.noise[whose, i : i + 1]

    def together(values: Callable[[Learner], Values]) -> Values:
        z = torch.cat([values(one).z for one in learners])
        return Values(z, estimator.q(z))

    with torch.no_grad():
        after, taus = batch.next_observation, draw.taus[1]
        online = together(lambda one: one.values(one.online, after, taus, noise_of(one, 0)))
        target = together(lambda one: one.target_values(after, taus, noise_of(one, 1)))
        z_next = operator(online, target, batch, draw)
        reward = batch.reward
        if operator.reads_here:
            here = together(lambda one: one.target_values(batch.observation, taus, noise_of(one, 1)))
            reward = reward + operator.bonus(here, batch)
        y = estimator.backup(z_next, reward, batch.discount, first.ceiling)
        weight = first.weight(z_next, batch)
    leaves = [{name: p.detach().requires_grad_() for name, p in one.online.items()} for one in learners]
    apart = [
        take(
            one.ensemble.forward(own, batch.observation, taus=draw.taus[0], noise=noise_of(one, 0)), batch.action[None]
        )
        for one, own in zip(learners, leaves, strict=True)
    ]
    taken = operator.blend(torch.cat(apart), draw)
    each = estimator.loss(taken, y[: len(taken)], draw.taus[0])
    keep = draw.keep if draw.keep.shape[1] else torch.ones(len(learners), 1)
    loss = (weight * (each * keep[: len(each)]).sum(0)).mean()
    for i, (one, own) in enumerate(zip(learners, leaves, strict=True)):
        if one.auxiliary is not None:
            goal = one.auxiliary.goal(one.ensemble, one.slow or one.target, batch)
            _, predicted = one.auxiliary.predict(one.ensemble, own, batch)
            ahead = one.auxiliary.loss(predicted, goal, batch)[0]
            loss = loss + one.auxiliary.weight * (weight * ahead * keep[i]).mean()
    for i, (one, own) in enumerate(zip(learners, leaves, strict=True)):
        slopes = torch.autograd.grad(loss, list(own.values()), materialize_grads=True, retain_graph=True)
        with torch.no_grad():
            one.step_(dict(zip(own, slopes, strict=True)), replace(draw, keep=draw.keep[i : i + 1]))
    return each.detach().mean(0)


@pytest.mark.parametrize("preset", PRESETS)
def test_stacked_members_learn_what_separate_networks_learn(preset: str) -> None:
    members, count = 3, 16
    recipe = recipe_for(preset, "SteadyChain-v0").override(
        {"network.hidden": (16, 16), "ensemble.members": members, "replay.batch": count, "compute.device": "cpu"}
    )
    if recipe.operator.snapshots > 1:
        recipe = recipe.override({"operator.snapshots": 3, "optim.hard_copy_every": 2})
    spec, device = envs.spec(recipe.env, recipe.protocol), torch.device("cpu")
    stacked = build.learner_for(recipe, spec, torch.Generator().manual_seed(0), device)
    apart = [build.learner_for(recipe, spec, torch.Generator().manual_seed(1), device, 1) for _ in range(members)]
    with torch.no_grad():
        for name, p in stacked.target.items():  # targets of their own, so that selector and evaluator differ
            p += 0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(2))
            for i, one in enumerate(apart):
                one.online[name].copy_(stacked.online[name][i : i + 1])
                one.target[name].copy_(p[i : i + 1])
                one.older[name].copy_(stacked.older[name][i::members])
                if stacked.slow:
                    one.slow[name].copy_(p[i : i + 1])
            if stacked.slow:
                stacked.slow[name].copy_(p)
    draws, rng = Draws(recipe, spec), np.random.default_rng(0)
    for step in range(5):
        generator = torch.Generator().manual_seed(step)
        see = torch.rand(7, count, LENGTH, generator=generator)
        reward = torch.randint(-1, 2, (count,), generator=generator).float()
        action = torch.randint(2, (count,), generator=generator)
        discount = 0.9 * (torch.rand(count, generator=generator) > 0.2)
        weight, index = torch.rand(count, generator=generator), torch.arange(count)
        known = torch.rand(5, count, generator=generator) > 0.2
        future = Future(see[2:], torch.randint(2, (5, count), generator=generator), known)
        batch = Batch(see[0], action, reward, discount, see[1], weight, index, index, reward > 0, future=future)
        draw = draws.layout.unpack(torch.from_numpy(draws(rng, forbids=preset == "steady", step=0, since=step)))
        mine, theirs = stacked.update(batch, draw), update_apart(apart, batch, draw)
        for learner in (stacked, *apart):
            learner.count()
        torch.testing.assert_close(mine.priority, theirs, rtol=1e-4, atol=1e-6)
    for i, one in enumerate(apart):
        for name in stacked.online:
            for ours, others in (
                (stacked.online, one.online),
                (stacked.target, one.target),
                (stacked.adam.first, one.adam.first),
                (stacked.adam.second, one.adam.second),
                (stacked.adam.step, one.adam.step),
                *([(stacked.slow, one.slow)] if stacked.slow else []),
            ):
                torch.testing.assert_close(
                    ours[name][i], others[name][0], rtol=1e-4, atol=2e-6, msg=lambda text, n=name: f"{n}: {text}"
                )


def test_an_image_and_a_vector_are_read_together(tmp_path: Path) -> None:
    """What is rewarded follows from both and from neither alone: the image tells three cases apart, the vector two."""
    options = {
        "network.hidden": (32,), "replay.warmup": 100, "replay.every": 2, "record.tensorboard": False,
        "monitor.every": 0, "explore.epsilon": "1 -> 0.05 linear 700 steps", "evaluation.random_episodes": 2,
        "compute.device": "cpu",
    }  # fmt: skip
    result = train(presets.double_dqn(kinds.Both, steps=1500, **options), run=tmp_path / "both").result
    assert result is not None
    assert result["mean_return"] > 11  # of 12; reading one of the two gives 6 at most
