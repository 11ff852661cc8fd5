"""Stable-Baselines3 DQN and sb3-contrib QR-DQN: `model.learn(10_000, callback=StabilityCallback("runs/sb3"))`."""

import inspect
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from torch import Tensor, nn

from steadyq.errors import UserError
from steadyq.fields import within
from steadyq.monitor.attach import StabilityMonitor

try:
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv
except ImportError:
    raise UserError("the Stable-Baselines3 callback needs the extra: pip install 'steadyq[sb3]'") from None


EVALUATION = 1_000_000
"""Added to a run's seed where its evaluation begins."""


class StabilityCallback(BaseCallback):  # type: ignore[misc]  # Stable-Baselines3 is untyped where it is missing
    """Writes diagnostics of a DQN or QR-DQN model while it learns, on its own batch from the model's replay buffer.

    The model learns exactly as without it: the batch is drawn with its own random numbers. The run is called by the
    parameters in which the model departs from its class, unless it has a `name`. A model that was loaded and learns on
    (`reset_num_timesteps=False`) goes on in the same folder. With `evaluate_on`, an environment's id or an environment
    like the model's own, it plays `episodes` games there at the end of every `learn`, greedily, and as many at random:
    `steadyq compare` then sets the run beside others.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        every: int = 1000,
        batch: int = 128,
        name: str = "",
        env: str = "",
        seed: int = 0,
        evaluate_on: Any = None,
        episodes: int = 20,
    ) -> None:
        super().__init__()
        within("every", every, 1)
        within("batch", batch, 2)
        within("episodes", episodes, 1)
        self.evaluate_on, self.episodes = evaluate_on, episodes
        self.path, self.every, self.batch, self.env_name, self.seed = path, every, batch, env, seed
        self.run_name = name
        self.monitor: StabilityMonitor | None = None
        self.watched: Any = None

    def _init_callback(self) -> None:
        model: Any = self.model
        if self.monitor is not None and self.watched is model:
            return  # another `learn` of the same model goes on in the same folder
        if not hasattr(model, "quantile_net") and not hasattr(model, "q_net"):
            raise UserError(
                f"StabilityCallback watches DQN and QR-DQN, not {type(model).__name__}: it has no Q-network"
            )
        if isinstance(model.observation_space, spaces.Dict):
            raise UserError("StabilityCallback watches networks of one tensor; this model's observations are a Dict")
        self.watched = model
        quantile = hasattr(model, "quantile_net")
        online, target = (
            (model.quantile_net, model.quantile_net_target) if quantile else (model.q_net, model.q_net_target)
        )
        envs = self.training_env
        spec = envs.get_attr("spec")[0]
        settings = parameters(model)
        self.monitor = StabilityMonitor(
            online,
            target,
            model.policy.optimizer,
            path=self.path,
            gamma=model.gamma,
            every=self.every,
            lanes=envs.num_envs,
            values=_quantiles_last if quantile else None,
            quantiles=quantile,
            parameters=settings,
            name=self.run_name or _called(model, settings),
            env=self.env_name or (spec.id if spec else type(envs).__name__),
            seed=self.seed if model.seed is None else model.seed,
            resume=model.num_timesteps or None,
        )

    def _on_step(self) -> bool:
        monitor, model = self.monitor, self.model
        assert monitor is not None
        done = np.asarray(self.locals["dones"], bool)
        cut = np.array([bool(info.get("TimeLimit.truncated", False)) for info in self.locals["infos"]])
        monitor.step(self.locals["rewards"], done & ~cut, done & cut)
        if monitor.due and monitor.before is not None:
            monitor.update(*self._sample(model))
        monitor.updates = model._n_updates
        return True

    def _on_training_end(self) -> None:
        if self.evaluate_on is None or self.monitor is None:
            return
        seed = self.seed if self.model.seed is None else self.model.seed
        env = _vectorised(self.evaluate_on)
        state = np.random.get_state()
        try:
            scores = [_played(policy, env, self.episodes, seed) for policy in (self.model, _Random(env, seed))]
        finally:
            np.random.set_state(state)
            if env is not self.evaluate_on:
                env.close()
        self.monitor.finish(*scores)

    def _sample(self, model: Any) -> tuple[Tensor, ...]:
        """Transitions from the model's replay buffer, leaving NumPy's global random state as it was."""
        state = np.random.get_state()
        try:
            np.random.seed((self.seed + 7919 * self.num_timesteps) % 2**32)
            data = model.replay_buffer.sample(self.batch, env=model._vec_normalize_env)
        finally:
            np.random.set_state(state)
        return data.observations, data.actions, data.rewards, data.next_observations, data.dones


class _Random:
    """A policy that plays anything, for evaluate_policy."""

    def __init__(self, env: Any, seed: int) -> None:
        self.env, self.rng = env, np.random.default_rng(seed)

    def predict(self, observation: Any, state: Any = None, **_: Any) -> tuple[np.ndarray, Any]:
        space = self.env.action_space
        return space.start + self.rng.integers(space.n, size=self.env.num_envs), state


def _vectorised(env: Any) -> Any:
    """What evaluate_policy plays on; whole games are counted, whatever wrappers do to rewards."""
    if isinstance(env, VecEnv):
        return env
    return DummyVecEnv([lambda: Monitor(gymnasium.make(env) if isinstance(env, str) else env)])


def _played(policy: Any, env: Any, episodes: int, seed: int) -> list[float]:
    env.seed(EVALUATION + seed)  # the same games for every policy, and others than in training
    scores, _ = evaluate_policy(policy, env, episodes, return_episode_rewards=True, warn=False)
    return [float(score) for score in scores]


PARAMETERS = (
    *("learning_rate", "buffer_size", "learning_starts", "batch_size", "tau", "gamma", "train_freq", "gradient_steps"),
    *("target_update_interval", "exploration_fraction", "exploration_initial_eps", "exploration_final_eps"),
    "max_grad_norm",
)


def parameters(model: Any) -> dict[str, Any]:
    """The model's parameters by the names of its class; of a learning rate that changes, the present one."""
    found = {name: getattr(model, name) for name in PARAMETERS if hasattr(model, name)}
    if callable(found.get("learning_rate")):
        found["learning_rate"] = float(model.policy.optimizer.param_groups[0]["lr"])
    every = found["train_freq"]
    if not isinstance(every, int):
        unit = every.unit.value
        found["train_freq"] = every.frequency if unit == "step" else f"{every.frequency} {unit}"
    return found


def _called(model: Any, settings: dict[str, Any]) -> str:
    """The class and what departs from its defaults."""
    usual = {name: each.default for name, each in inspect.signature(type(model).__init__).parameters.items()}
    changes = (f"{name} {value}" for name, value in settings.items() if name in usual and usual[name] != value)
    return ", ".join([f"sb3 {type(model).__name__}", *changes])


def _quantiles_last(network: nn.Module, observation: Tensor) -> Tensor:
    """QR-DQN of sb3-contrib puts out [batch, quantile, action]."""
    z: Tensor = network(observation)
    return z.transpose(1, 2)
