"""Procgen's PPO row, rerun: Stable-Baselines3's PPO with the IMPALA network on this library's Procgen (extra `sb3`).

Settings are those of the benchmark authors' training script (Cobbe et al. 2020, train-procgen): 64 environments, 256
steps, 3 epochs of 8 minibatches, rewards normalised by the running deviation of returns. Scores come from
`evaluate.play_games`, on unseen levels and by the same rules as every other score; actions are sampled.
"""

import dataclasses
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from steadyq import envs
from steadyq.errors import UserError
from steadyq.evaluate import play_games

LANES, STEPS, EPOCHS, MINIBATCHES, DEPTHS = 64, 256, 3, 8, (16, 32, 32)


def train_ppo(
    env: str, *, steps: int = 25_000_000, seed: int = 0, episodes: int = 100, lanes: int = LANES, rollout: int = STEPS
) -> dict[str, Any]:
    """Train PPO on a Procgen game and return its evaluation as a run's result.json has it."""
    sb3 = _stable_baselines()
    name = envs.canonical(env)
    if not name.startswith("Procgen/"):
        raise UserError(f"the PPO baseline is for Procgen, {name} is not")
    protocol = dataclasses.replace(envs.protocol_for(name), lanes=lanes, reward="raw")
    vector = sb3.common.vec_env.VecNormalize(_adapter(sb3, name, protocol, seed), norm_obs=False, gamma=0.999)
    model = sb3.PPO(
        "CnnPolicy",
        vector,
        n_steps=rollout,
        batch_size=lanes * rollout // MINIBATCHES,
        n_epochs=EPOCHS,
        learning_rate=5e-4,
        gamma=0.999,
        gae_lambda=0.95,
        clip_range=0.2,
        ent_coef=0.01,
        vf_coef=0.5,
        max_grad_norm=0.5,
        seed=seed,
        policy_kwargs={"features_extractor_class": _impala(sb3), "net_arch": [], "share_features_extractor": True},
    )
    try:
        model.learn(total_timesteps=steps)
    finally:
        vector.close()

    def policy(observation: Tensor) -> np.ndarray:
        actions, _ = model.predict(observation.cpu().numpy().astype(np.uint8), deterministic=False)
        return np.asarray(actions)

    returns = [game.score for game in play_games(policy, name, protocol, episodes=episodes, seed=seed)]
    return {
        "env": name,
        "preset": "ppo",
        "seed": seed,
        "steps": int(model.num_timesteps),
        "protocol": protocol.name,
        "episodes": len(returns),
        "returns": returns,
        "mean_return": float(np.mean(returns)),
    }


class Impala(nn.Module):
    """The IMPALA network of Espeholt et al. 2018: three stages of a convolution, a pool and two residual blocks."""

    def __init__(self, channels: int, size: int, features: int = 256) -> None:
        super().__init__()
        stages: list[nn.Module] = []
        for depth in DEPTHS:
            stages += [nn.Conv2d(channels, depth, 3, padding=1), nn.MaxPool2d(3, 2, padding=1)]
            stages += [Residual(depth), Residual(depth)]
            channels, size = depth, (size + 1) // 2
        self.layers = nn.Sequential(
            *stages, nn.ReLU(), nn.Flatten(), nn.Linear(channels * size**2, features), nn.ReLU()
        )

    def forward(self, image: Tensor) -> Tensor:
        """Features of images in [0, 1]."""
        features: Tensor = self.layers(image)
        return features


class Residual(nn.Module):
    """Two convolutions, each after a ReLU, added to their input."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(depth, depth, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """The input plus what the convolutions make of it."""
        out: Tensor = self.second(torch.relu(self.first(torch.relu(x))))
        return x + out


def _impala(sb3: Any) -> Any:
    class Extractor(sb3.common.torch_layers.BaseFeaturesExtractor):  # type: ignore[misc]
        def __init__(self, space: Any, features: int = 256) -> None:
            super().__init__(space, features)
            self.network = Impala(space.shape[0], space.shape[1], features)

        def forward(self, image: Tensor) -> Tensor:
            features: Tensor = self.network(image)
            return features

    return Extractor


def _adapter(sb3: Any, name: str, protocol: envs.Protocol, seed: int) -> Any:
    """This library's games as Stable-Baselines3's vector of environments."""
    from gymnasium import spaces

    class Adapter(sb3.common.vec_env.VecEnv):  # type: ignore[misc]
        def __init__(self) -> None:
            self.games = envs.make(name, protocol, seed=seed)
            spec = self.games.spec
            image = spaces.Box(0, 255, spec.frame_shape, np.uint8)
            super().__init__(spec.lanes, image, spaces.Discrete(spec.num_actions))
            self.chosen = np.zeros(spec.lanes, np.int64)

        def reset(self) -> Any:
            return self.games.reset()

        def step_async(self, actions: Any) -> None:
            self.chosen = actions

        def step_wait(self) -> Any:
            step = self.games.step(self.chosen)
            infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
            for lane in np.flatnonzero(step.game_over):
                cut = bool(step.truncated[lane])
                infos[lane] = {"terminal_observation": step.final_frame[lane], "TimeLimit.truncated": cut}
            return step.frame, step.reward, step.game_over, infos

        def close(self) -> None:
            self.games.close()

        def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
            return [None] * self.num_envs

        def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
            raise NotImplementedError

        def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
            raise NotImplementedError

        def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
            return [False] * self.num_envs

    return Adapter()


def _stable_baselines() -> Any:
    try:
        import stable_baselines3
        import stable_baselines3.common.torch_layers
        import stable_baselines3.common.vec_env
    except ImportError:
        raise UserError("the PPO baseline needs Stable-Baselines3: pip install 'steadyq[sb3,procgen]'") from None
    return stable_baselines3
