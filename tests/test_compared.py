"""What docs/compared.md says of Stable-Baselines3 and spaces, tried on it; ours is tried in run/test_table.py."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

VECTOR, IMAGE = spaces.Box(-1, 1, (2,)), spaces.Box(0, 255, (40, 40, 3), np.uint8)
TWO = spaces.Discrete(2)


class Shows(gymnasium.Env[Any, Any]):
    """Random observations of a space."""

    def __init__(self, seen: spaces.Space[Any], actions: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space = seen, actions

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 0.0, False, False, {}


@pytest.mark.parametrize(
    ("policy", "seen", "actions", "works"),
    [
        ("MlpPolicy", spaces.Discrete(4), TWO, True),
        ("MlpPolicy", spaces.MultiDiscrete([2, 3]), TWO, True),
        ("MlpPolicy", spaces.MultiBinary(3), TWO, True),
        ("MultiInputPolicy", spaces.Dict(eye=IMAGE, speed=VECTOR), TWO, True),
        ("MultiInputPolicy", spaces.Dict(body=spaces.Dict(speed=VECTOR)), TWO, False),
        ("MultiInputPolicy", spaces.Tuple([VECTOR, VECTOR]), TWO, False),
        ("CnnPolicy", spaces.Box(0, 255, (20, 20, 3), np.uint8), TWO, False),
        ("MlpPolicy", VECTOR, spaces.MultiDiscrete([2, 2]), False),
        ("MlpPolicy", VECTOR, spaces.Discrete(2, start=1), False),
    ],
)
def test_spaces_of_stable_baselines3(
    policy: str, seen: spaces.Space[Any], actions: spaces.Space[Any], works: bool
) -> None:
    sb3 = pytest.importorskip("stable_baselines3", reason="not installed: pip install 'steadyq[sb3]'")

    def learn() -> None:
        sb3.DQN(policy, Shows(seen, actions), learning_starts=4, buffer_size=20, seed=0, device="cpu").learn(8)

    if works:
        learn()
    else:
        with pytest.raises((NotImplementedError, AssertionError, RuntimeError, IndexError)):
            learn()
