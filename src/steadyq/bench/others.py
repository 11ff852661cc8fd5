"""The same update in Stable-Baselines3: its DQN and sb3-contrib's QR-DQN on the same network, batch and quantiles."""

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch

from steadyq.bench.clock import milliseconds
from steadyq.bench.updates import BATCH, Case


class Noise(gymnasium.Env[np.ndarray, np.int64]):
    """Random observations and rewards of a case's shapes; an update does not care."""

    def __init__(self, case: Case) -> None:
        shape = case.spec.observation_shape
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, shape, np.float32)
        self.action_space = gymnasium.spaces.Discrete(case.spec.num_actions)
        self.rng = np.random.default_rng(0)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin again."""
        return self._see(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Show something else."""
        return self._see(), float(self.rng.integers(-1, 2)), bool(self.rng.random() < 0.01), False, {}

    def _see(self) -> np.ndarray:
        shape = self.observation_space.shape
        assert shape is not None
        return (self.rng.random(shape) < 0.1).astype(np.float32)


def sb3_updates(case: Case) -> dict[str, float]:
    """Milliseconds of one update of each algorithm that is installed, replay sampling included, on the CPU."""
    found: dict[str, float] = {}
    for name, make in (("Stable-Baselines3 DQN", _dqn), ("sb3-contrib QR-DQN", _qr_dqn)):
        try:
            algorithm = make(case)
        except ImportError:
            continue
        algorithm.learn(200)
        found[name] = milliseconds(partial(_update, algorithm), torch.device("cpu"))
    return found


def _update(algorithm: Any) -> None:
    """One gradient step, and the step of the target network that these libraries take with the environment's."""
    algorithm.train(1, BATCH)
    algorithm._on_step()


def minatar_features() -> type[torch.nn.Module]:
    """Stable-Baselines3's features extractor that is our MinAtar network up to its hidden layer."""
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

    class MinAtarFeatures(BaseFeaturesExtractor):  # type: ignore[misc]
        """The MinAtar network up to its hidden layer."""

        def __init__(self, space: gymnasium.spaces.Box) -> None:
            super().__init__(space, 128)
            channels, height, width = space.shape
            self.layers = torch.nn.Sequential(
                torch.nn.Conv2d(channels, 16, 3),
                torch.nn.ReLU(),
                torch.nn.Flatten(),
                torch.nn.Linear(16 * (height - 2) * (width - 2), 128),
                torch.nn.ReLU(),
            )

        def forward(self, observation: torch.Tensor) -> Any:
            """Features of observations."""
            return self.layers(observation)

    return MinAtarFeatures


def _options(case: Case) -> dict[str, Any]:
    policy = {"features_extractor_class": minatar_features(), "net_arch": [], "normalize_images": False}
    return {
        "policy_kwargs": policy, "buffer_size": 1000, "learning_starts": 100, "train_freq": 200, "gradient_steps": 1,
        "batch_size": BATCH, "device": "cpu", "verbose": 0, "env": Noise(case), "tau": 0.005,
        "target_update_interval": 1,
    }  # fmt: skip


def _dqn(case: Case) -> Any:
    from stable_baselines3 import DQN

    return DQN("MlpPolicy", **_options(case))


def _qr_dqn(case: Case) -> Any:
    from sb3_contrib import QRDQN

    options = _options(case)
    options["policy_kwargs"] = options["policy_kwargs"] | {"n_quantiles": case.atoms}
    return QRDQN("MlpPolicy", **options)
