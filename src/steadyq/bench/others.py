"""The same update in Stable-Baselines3: its DQN and sb3-contrib's QR-DQN on the same network, batch and quantiles."""

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch

from steadyq import envs, presets
from steadyq.bench.clock import milliseconds, side_by_side
from steadyq.bench.every import learning_of, update_of
from steadyq.bench.sheets import Row
from steadyq.bench.updates import BATCH, Case
from steadyq.build import learner_for, ring_for
from steadyq.envs.vector import EnvSpec
from steadyq.recipe import Recipe
from steadyq.run.update import Draws, Learning

ACTIONS, FILLED = 6, 1000


class Noise(gymnasium.Env[np.ndarray, np.int64]):
    """Random observations and rewards of given shapes; an update does not care."""

    def __init__(self, shape: tuple[int, ...], actions: int = ACTIONS, pixels: bool = False) -> None:
        high: Any = 255 if pixels else 1.0
        self.observation_space = gymnasium.spaces.Box(0, high, shape, np.uint8 if pixels else np.float32)
        self.action_space = gymnasium.spaces.Discrete(actions)
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
        space = self.observation_space
        assert space.shape is not None
        if space.dtype == np.uint8:
            return self.rng.integers(0, 256, space.shape, np.uint8)
        return (self.rng.random(space.shape) < 0.1).astype(np.float32)


def image_updates(shape: tuple[int, int, int], *, rounds: int = 15, budget: float = 0.4) -> dict[str, float]:
    """Milliseconds of an update of our `dqn` and of Stable-Baselines3's, and the median of their ratios round by round.

    Both as they are for images (height, width, channel) of bytes: the network of Mnih et al. 2015, one of it, the same
    batch, the target moved a little with every update, sampling included; on as many threads as PyTorch has now.
    """
    (ours, our_sizes), (theirs, their_sizes) = _ours(shape), _theirs(shape)
    if our_sizes != their_sizes:
        raise ValueError(f"the networks are not the same: {our_sizes} and {their_sizes}")
    both = {"ours": ours, "theirs": theirs}
    times = side_by_side(both, torch.device("cpu"), rounds=rounds, budget=budget)
    ratios = [ours / theirs for ours, theirs in zip(times["ours"], times["theirs"], strict=True)]
    each = {f"{name}_ms": statistics.median(found) for name, found in times.items()}
    return each | {"ratio": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)}


def _ours(shape: tuple[int, int, int]) -> tuple[Callable[[], None], list[tuple[int, ...]]]:
    """An update as training runs it (draws, samples, learns, sets priorities), and its parameters' shapes."""
    options = {"replay.batch": BATCH, "replay.capacity": FILLED, "compute.device": "cpu"}
    recipe = presets.dqn(lambda: Noise(shape, pixels=True), "tiny", **options)
    spec, device = envs.spec(recipe.env, recipe.protocol), torch.device("cpu")
    learner = learner_for(recipe, spec, torch.Generator().manual_seed(0), device)
    ring, draws, rng = ring_for(recipe, spec, device), Draws(recipe, spec), np.random.default_rng(0)
    ring.frame.random_(0, 256)
    ring.action.random_(0, ACTIONS)
    ring.reward.random_(-1, 2)
    ring.priorities.mass[:FILLED] = 1.0
    learning = Learning(learner, ring, draws.layout)
    sizes = sorted(tuple(p.shape[1:]) for p in learner.online.values())
    return lambda: learning(torch.from_numpy(draws(rng, forbids=False, step=FILLED, since=0))), sizes


def _theirs(shape: tuple[int, int, int]) -> tuple[Callable[[], None], list[tuple[int, ...]]]:
    from stable_baselines3 import DQN

    algorithm = DQN("CnnPolicy", Noise(shape, pixels=True), **COMMON)
    algorithm.learn(200)
    return partial(_update, algorithm), sorted(tuple(p.shape) for p in algorithm.q_net.parameters())


def sb3_updates(case: Case) -> dict[str, float]:
    """Milliseconds of one update of each algorithm that is installed, replay sampling included, on the CPU."""
    cpu = torch.device("cpu")
    every = (other_update(preset, case.spec, "minatar", (128,), case.atoms) for preset in ("dqn", "qr_dqn"))
    return {name: milliseconds(update, cpu) for name, update in filter(None, every)}


COMMON = {
    "buffer_size": FILLED, "learning_starts": 100, "train_freq": 200, "gradient_steps": 1, "batch_size": BATCH,
    "device": "cpu", "verbose": 0, "tau": 0.005, "target_update_interval": 1,
}  # fmt: skip


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


def other_update(
    preset: str, spec: EnvSpec, network: str, hidden: tuple[int, ...], quantiles: int
) -> tuple[str, Callable[[], None]] | None:
    """Their update on the same network, and whose it is, where they have the algorithm and it is installed."""
    policy: dict[str, Any] = {"net_arch": list(hidden)}
    if network == "minatar":
        policy = {"features_extractor_class": minatar_features(), "net_arch": [], "normalize_images": False}
    environment = Noise(spec.observation_shape, spec.num_actions)
    options: dict[str, Any] = {**COMMON, "policy_kwargs": policy, "env": environment}
    algorithm: Any
    try:
        match preset:
            case "dqn":
                from stable_baselines3 import DQN

                name, algorithm = "Stable-Baselines3 DQN", DQN("MlpPolicy", **options)
            case "qr_dqn":
                from sb3_contrib import QRDQN

                policy["n_quantiles"] = quantiles
                name, algorithm = "sb3-contrib QR-DQN", QRDQN("MlpPolicy", **options)
            case _:
                return None
    except ImportError:
        return None
    algorithm.learn(200)
    return name, partial(_update, algorithm)


def compiled_updates(recipe: Recipe, *, rounds: int = 15, budget: float = 0.3) -> Row:
    """Milliseconds of an update as it is and compiled, and of Stable-Baselines3's on the same network where it has the
    algorithm, in turn; ratios round by round, and how long compiling takes where nothing of it is kept.
    """
    import torch._inductor.config

    spec, device = envs.spec(recipe.env, recipe.protocol), torch.device("cpu")
    functions = {}
    for how in ("never", "always"):
        own = recipe.override({"compute.compile": how, "compute.device": "cpu", "replay.batch": BATCH})
        functions[how] = update_of(own, spec, learning_of(own, spec, device))
    with torch._inductor.config.patch(force_disable_caches=True):
        start = time.perf_counter()
        functions["always"]()
    row: Row = {"env": recipe.env, "preset": recipe.preset, "members": recipe.ensemble.members}
    row["compile_seconds"] = time.perf_counter() - start
    section = recipe.network
    others = other_update(recipe.preset, spec, section.kind, section.hidden, recipe.estimator.quantiles)
    row["theirs"] = None
    if others is not None:
        row["theirs"], functions["theirs"] = others
    times = side_by_side(functions, device, rounds=rounds, budget=budget)
    for name, found in times.items():
        row[f"{name}_ms"] = statistics.median(found)
        row[f"{name}_ratio"] = statistics.median(a / b for a, b in zip(found, times["always"], strict=True))
    return row
