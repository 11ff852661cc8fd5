"""An environment as plain data, and back."""

import json

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from steadyq import envs
from steadyq.envs.described import from_data, space_from_data, space_to_data, to_data
from steadyq.errors import UserError

SPACES = [
    spaces.Box(-np.inf, np.inf, (3,), np.float32),
    spaces.Box(0, 255, (8, 9, 3), np.uint8),
    spaces.Box(np.array([-1.5, 0.0]), np.array([1.5, np.inf]), dtype=np.float64),
    spaces.Discrete(5, start=-2),
    spaces.MultiDiscrete([2, 3], start=np.array([1, 0])),
    spaces.MultiBinary(4),
    spaces.Dict({"a": spaces.Tuple((spaces.Discrete(2), spaces.Box(0, 1, (2,)))), "b": spaces.MultiBinary((2, 2))}),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_a_space_comes_back(space: gymnasium.Space) -> None:
    assert space_from_data(json.loads(json.dumps(space_to_data(space)))) == space


@pytest.mark.parametrize("env", ["CartPole-v1", "FrozenLake-v1", "MinAtar/Breakout", "Atari/Pong", "Blackjack-v1"])
def test_a_spec_comes_back_and_lays_out_the_same(env: str) -> None:
    env = envs.canonical(env)
    spec = envs.spec(env, envs.protocol_for(env))
    again = from_data(json.loads(json.dumps(to_data(spec))), "spec.json")
    assert again == spec
    assert (again.seen is None) == (spec.seen is None)
    if spec.seen is not None and again.seen is not None:
        shown = spec.seen.space.sample()
        np.testing.assert_array_equal(again.seen.frame(shown), spec.seen.frame(shown))
        assert again.seen.rule == spec.seen.rule


@pytest.mark.parametrize(
    "changes",
    [{"frame_shape": ["a"]}, {"frame_dtype": "code"}, {"observation_space": {"space": "Script"}}, {"stack": None}],
)
def test_what_describes_no_environment_is_named(changes: dict[str, object]) -> None:
    data = to_data(envs.spec("Gymnasium/CartPole-v1", envs.protocol_for("Gymnasium/CartPole-v1"))) | changes
    if changes == {"stack": None}:
        del data["stack"]
    with pytest.raises(UserError, match=r"spec.json is damaged: it describes no environment"):
        from_data(data, "spec.json")
