"""Environments of every kind of space: each trains, continues where it was stopped, evaluates and acts."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from safetensors.torch import load_file

import steadyq as sq
from steadyq.run.loop import Interrupted
from steadyq.run.progress import Display

SMALL = {
    "ensemble.members": 2,
    "network.hidden": (16,),
    "replay.warmup": 64,
    "record.tensorboard": False,
    "record.every": 50,
    "evaluation.episodes": 2,
    "evaluation.random_episodes": 2,
    "protocol.max_frames": 60,
}


class Room(gymnasium.Env):  # type: ignore[type-arg]
    """Nested observations and two choices an action."""

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            place=spaces.Tuple([spaces.Discrete(5, start=1), spaces.Box(-1, 1, (2,))]), doors=spaces.MultiBinary(3)
        )
        self.action_space = spaces.MultiDiscrete([3, 2], start=[-1, 0])

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at = 3
        return self.seen(), {}

    def seen(self) -> dict[str, Any]:
        noise = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return {"place": (self.at, noise), "doors": self.np_random.integers(0, 2, 3).astype(np.int8)}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        self.at += int(action[0]) * (1 + int(action[1]))
        over = not 1 <= self.at <= 5
        reward, self.at = float(self.at > 5), min(5, max(1, self.at))
        return self.seen(), reward, over, False, {}


@pytest.fixture(autouse=True)
def room() -> Iterator[None]:
    gymnasium.register("SteadyQRoom-v0", Room)
    yield
    del gymnasium.registry["SteadyQRoom-v0"]


class StopAt(Display):
    """Stops a run as Ctrl-C does."""

    def step(self, training: Any, row: Any) -> None:
        if training.step_count == 170:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize(
    "env",
    [f"Gymnasium/{name}" for name in ("FrozenLake", "Taxi", "Blackjack", "CliffWalking", "Acrobot", "SteadyQRoom")],
)
def test_it_trains_continues_evaluates_and_acts(tmp_path: Path, env: str) -> None:
    recipe = sq.presets.steady(env, steps=300, **SMALL)
    whole = sq.train(recipe, run=tmp_path / "whole")
    with pytest.raises(Interrupted):
        sq.train(recipe, run=tmp_path / "parts", display=StopAt())
    parts = sq.train(recipe, run=tmp_path / "parts")
    one, other = (load_file(run.checkpoints()[-1] / "online.safetensors") for run in (whole, parts))
    assert all((one[name] == other[name]).all() for name in one)
    assert whole.result is not None
    assert parts.result is not None
    assert whole.result["returns"] == parts.result["returns"]
    agent, game = sq.load(whole.path), gymnasium.make(recipe.env.partition("/")[2], disable_env_checker=True)
    observation, _ = game.reset(seed=0)
    for _ in range(5):
        action = agent.act(observation)
        assert game.action_space.contains(action)
        observation, _, terminated, truncated, _ = game.step(action)
        if terminated or truncated:
            break
