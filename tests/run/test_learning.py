"""Every preset learns a chain whose only reward lies six steps away, in seconds."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from steadyq.presets import PRESETS, recipe_for
from steadyq.run.loop import train

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
