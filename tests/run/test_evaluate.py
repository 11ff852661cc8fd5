"""Full games as they are scored: what the agent is shown, which games they are, what is said of them."""

import dataclasses

import numpy as np
import torch

from steadyq import envs
from steadyq.run.evaluate import play_games
from steadyq.run.explore import FrameStack

BREAKOUT = dataclasses.replace(envs.protocol_for("Atari/Breakout"), noop_max=0)  # every game begins alike


def test_evaluation_shows_what_training_shows_after_a_lost_life() -> None:
    draw = np.random.default_rng(0)
    actions = draw.integers(4, size=3000)
    shown: list[torch.Tensor] = []

    def policy(observation: torch.Tensor) -> np.ndarray:
        shown.append(observation.clone())
        return actions[len(shown) - 1 : len(shown)]

    play_games(policy, "Atari/Breakout", BREAKOUT, episodes=1, seed=0)
    training = envs.make("Atari/Breakout", BREAKOUT, seed=0)
    stack = FrameStack(training.spec)
    observation = stack.push(training.reset())
    lives = 0
    for action, seen in zip(actions, shown, strict=False):
        assert torch.equal(observation, seen)
        step = training.step(np.array([action]))
        observation = stack.push(step.frame, step.terminated | step.truncated)
        lives += int(step.terminated[0])
    training.close()
    assert lives == 5
