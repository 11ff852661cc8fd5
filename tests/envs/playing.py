"""Helpers that several environment tests share."""

import dataclasses

import numpy as np

from steadyq.envs import Step, VectorEnv


def play(env: VectorEnv, steps: int, seed: int = 0) -> list[Step]:
    draw = np.random.default_rng(seed)
    return [env.step(draw.integers(0, env.spec.num_actions, env.spec.lanes)) for _ in range(steps)]


def same(one: list[Step], other: list[Step]) -> bool:
    names = [field.name for field in dataclasses.fields(Step)]
    return all(
        np.array_equal(getattr(a, name), getattr(b, name)) for a, b in zip(one, other, strict=True) for name in names
    )
