"""The PPO baseline trains and scores like everything else; without its extra it says what to install."""

import pytest
import torch

from steadyq.errors import UserError
from steadyq.suite.ppo import Impala, train_ppo


def test_impala_is_the_published_network() -> None:
    network = Impala(3, 64)
    assert network(torch.zeros(2, 3, 64, 64)).shape == (2, 256)
    weights = 0
    for inputs, depth in ((3, 16), (16, 32), (32, 32)):  # a convolution, then two blocks of two
        weights += 9 * inputs * depth + depth + 4 * (9 * depth * depth + depth)
    weights += 32 * 8 * 8 * 256 + 256
    assert sum(p.numel() for p in network.parameters()) == weights == 622_144


def test_without_the_extra_it_is_named() -> None:
    try:
        import stable_baselines3  # noqa: F401
    except ImportError:
        with pytest.raises(UserError, match=r"pip install 'steadyq\[sb3,procgen\]'"):
            train_ppo("Procgen/CoinRun", steps=1)
    else:
        with pytest.raises(UserError, match="is for Procgen"):
            train_ppo("MinAtar/Breakout", steps=1)


def test_a_few_steps_of_ppo_give_a_result() -> None:
    pytest.importorskip("stable_baselines3", reason="Stable-Baselines3 is not installed (the extra sb3)")
    pytest.importorskip("envpool", reason="envpool is not installed (the extra procgen)")
    result = train_ppo("Procgen/CoinRun", steps=64, lanes=4, rollout=16, episodes=2)
    assert result["steps"] == 64
    assert len(result["returns"]) == 2
    assert result["protocol"] == "procgen-easy"
