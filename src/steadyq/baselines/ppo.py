"""Procgen's PPO row, rerun: Stable-Baselines3's PPO with the IMPALA network on this library's Procgen (extra `sb3`).

Settings are those of the benchmark authors' own training script (Cobbe et al. 2020, train-procgen): 64 environments,
256 steps, 3 epochs of 8 minibatches, rewards normalised by the running deviation of returns. Scores come from
`evaluate.play_games`, on unseen levels and by the same rules as every other score; actions are sampled.

A run has a run's folder, with meta.json in place of a recipe. Its state is saved after every rollout and its update;
all randomness is a function of seed and step, so that a killed run continues to the same end, bit for bit on a CPU.
"""

import contextlib
import dataclasses
import io
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from steadyq import envs
from steadyq.device.cpu import prepare_process
from steadyq.errors import UserError
from steadyq.fields import MOST_GAMES, within
from steadyq.run.evaluate import play_games, random_baseline, scored
from steadyq.run.files import replace_text
from steadyq.run.folder import RunFolder
from steadyq.run.loop import Interrupted, stop_requests
from steadyq.run.progress import clock, mean_of_last
from steadyq.run.provenance import provenance
from steadyq.run.writer import Busy, Checkpoint, Writer, begin_meta
from steadyq.suite.plan import joined
from steadyq.suite.study import STUDY_FILE, Study, find_study, run_name

DEPTHS = (16, 32, 32)
SAY_SECONDS = 15.0

MEASURES = {
    "policy_loss": "train/policy_gradient_loss",
    "value_loss": "train/value_loss",
    "entropy_loss": "train/entropy_loss",
    "approx_kl": "train/approx_kl",
    "clip_fraction": "train/clip_fraction",
    "explained_variance": "train/explained_variance",
}
"""Columns of metrics.jsonl, and what Stable-Baselines3 calls them."""


@dataclass(frozen=True)
class Ppo:
    """One PPO run: a game, a seed, and the settings of train-procgen."""

    env: str
    seed: int = 0
    steps: int = 25_000_000
    episodes: int = 100
    """Full games of the evaluation."""
    lanes: int = 64
    rollout: int = 256
    """Steps of each lane between updates."""
    epochs: int = 3
    minibatches: int = 8
    rate: float = 5e-4
    gamma: float = 0.999
    gae_lambda: float = 0.95
    clip: float = 0.2
    entropy: float = 0.01
    value: float = 0.5
    max_gradient: float = 0.5

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        object.__setattr__(self, "env", envs.canonical(self.env))
        if not self.env.startswith("Procgen/"):
            raise UserError(f"the PPO baseline is for Procgen, {self.env} is not")
        within("--steps", self.steps, 1)
        within("--episodes", self.episodes, 1, MOST_GAMES)
        within("--lanes", self.lanes, 1, 4096)
        within("--rollout", self.rollout, 2, 1 << 16)

    @property
    def whole_steps(self) -> int:
        """The steps in whole rollouts."""
        each = self.lanes * self.rollout
        return -(-self.steps // each) * each

    @property
    def protocol(self) -> envs.Protocol:
        """Procgen's own rules, with PPO's lanes and raw rewards."""
        return dataclasses.replace(envs.protocol_for(self.env), lanes=self.lanes, reward="raw")

    @property
    def meta(self) -> dict[str, Any]:
        """What the run says of itself."""
        said = {"name": "ppo", "evaluation": "actions are sampled", **dataclasses.asdict(self)}
        return {**said, "protocol": dataclasses.asdict(self.protocol)}


def train_ppo(ppo: Ppo, run: Path | str, say: Callable[[str], None] = lambda line: None) -> RunFolder:
    """Train PPO in a run folder, continuing what is there, and evaluate it; a finished run is returned as it is.

    Raises `UserError` before anything is written if it cannot work, and `Interrupted` after a signal.
    """
    folder = RunFolder(run)
    folder.check_meta(ppo.meta)
    if folder.result is not None:
        say(f"already finished: {folder.path}")
        return folder
    sb3 = stable_baselines()
    prepare_process(len(os.sched_getaffinity(0)))  # sums depend on how many threads share them
    writer = begin_meta(folder, ppo.meta)
    try:
        training = _Training(sb3, ppo, writer)
        try:
            with stop_requests() as stop:
                _loop(training, writer, say, stop)
            writer.finish(training.result())
        finally:
            training.vector.close()
    finally:
        writer.close()
    return folder


def train_row(
    games: Sequence[str], seeds: int, out: Path, say: Callable[[str], None], **settings: Any
) -> dict[str, RunFolder]:
    """Train every game and seed one after another in a sweep folder; finished runs and those of others are skipped."""
    found = find_study("procgen").changed(games=games, seeds=seeds)
    runs = {run_name(game, "", seed): Ppo(game, seed, **settings) for seed in found.seeds for game in found.games}
    study = Study(
        name="ppo",
        title="PPO on Procgen",
        question="How does PPO generalise to unseen levels (the paper's PPO row, Tables 2 and 7)?",
        games=found.games,
        preset="ppo",
        seeds=found.seeds,
        settings=settings,
    )
    study = joined(study, out)
    for name, ppo in runs.items():
        RunFolder(out / name).check_meta(ppo.meta)
    stable_baselines()
    first = next(iter(runs.values()))
    envs.make(first.env, first.protocol, seed=0, lanes=1).close()
    out.mkdir(parents=True, exist_ok=True)
    replace_text(out / STUDY_FILE, study.to_toml())
    say(
        f"{len(runs)} run{'s' * (len(runs) > 1)} of PPO, {first.whole_steps:,} steps each in {first.lanes} lanes; "
        f"folder: {out}"
    )
    for line in first.protocol.lines():
        say(f"  {line}")
    folders = {}
    for number, (name, ppo) in enumerate(runs.items(), 1):
        say(f"run {number} of {len(runs)}: {name}")
        try:
            folders[name] = train_ppo(ppo, out / name, say)
        except Busy:
            say(f"trained elsewhere: {name} (its folder is locked)")
            continue
        result = folders[name].result or {}
        say(
            f"{ppo.env}, seed {ppo.seed}: mean return {result['mean_return']:.2f} over {result['episodes']} full games "
            f"on unseen levels (random policy: {result['random_return']:.2f})"
        )
    return folders


def _loop(training: "_Training", writer: Writer, say: Callable[[str], None], stop: threading.Event) -> None:
    ppo, device = training.ppo, str(training.model.device)
    saved = writer.load()
    if saved is None:
        writer.event("start", 0, device=device)
    else:
        training.restore(saved)
        writer.event("resume", training.step, device=device)
        say(f"continuing at step {training.step:,} of {ppo.whole_steps:,}")
    began, start, shown = training.step, time.monotonic(), 0.0
    while training.step < ppo.whole_steps:
        at = training.step
        if not training.learn(stop):
            raise Interrupted(f"stopped at step {at:,}, saved; run the same command to continue")
        writer.save(training.checkpoint(), training.step)
        now = time.monotonic()
        if now - shown > SAY_SECONDS or training.step >= ppo.whole_steps:
            shown, rate = now, (training.step - began) / (now - start)
            recent = mean_of_last(10, training.recent)
            mean = f"return {recent:.1f} (last 10 games) · " if recent is not None else ""
            left = clock(max(0, ppo.whole_steps - training.step) / rate)
            say(f"{training.step:,} of {ppo.whole_steps:,} steps · {mean}{rate:,.0f} steps/s · {left} left")


class _Training:
    """Stable-Baselines3's PPO, one rollout and update at a time."""

    def __init__(self, sb3: Any, ppo: Ppo, writer: Writer) -> None:
        self.sb3, self.ppo, self.writer = sb3, ppo, writer
        self.games = _adapter(sb3, ppo)
        self.vector = sb3.common.vec_env.VecNormalize(self.games, norm_obs=False, gamma=ppo.gamma)
        self.model = sb3.PPO(
            "CnnPolicy",
            self.vector,
            n_steps=ppo.rollout,
            batch_size=max(1, ppo.lanes * ppo.rollout // ppo.minibatches),
            n_epochs=ppo.epochs,
            learning_rate=ppo.rate,
            gamma=ppo.gamma,
            gae_lambda=ppo.gae_lambda,
            clip_range=ppo.clip,
            ent_coef=ppo.entropy,
            vf_coef=ppo.value,
            max_grad_norm=ppo.max_gradient,
            seed=ppo.seed,
            policy_kwargs={"features_extractor_class": _impala(sb3), "net_arch": [], "share_features_extractor": True},
        )
        self.played, self.recent = 0, deque[float](maxlen=100)
        self.wall, self.clock = 0.0, time.monotonic()

    @property
    def step(self) -> int:
        """Environment steps, all lanes together."""
        return int(self.model.num_timesteps)

    def learn(self, stop: threading.Event) -> bool:
        """One rollout and its update, and their row; False if a stop came first: the last checkpoint then stands."""
        self._seed()
        before = self.model._n_updates
        self.model.learn(
            self.ppo.lanes * self.ppo.rollout,
            callback=lambda names, _: not stop.is_set(),
            log_interval=None,
            reset_num_timesteps=False,
        )
        if self.model._n_updates == before:
            return False
        for step, lane, score, length in self.games.take_finished():
            self.played += 1
            self.recent.append(score)
            self.writer.event("game", step, lane=lane, score=score, steps=length)
        measured = self.model.logger.name_to_value
        row = {
            "step": self.step,
            "frames": self.step,
            "updates": self.updates,
            "games": self.played,
            "return_10": mean_of_last(10, self.recent),
            "return_100": mean_of_last(100, self.recent),
            **{name: float(measured[theirs]) for name, theirs in MEASURES.items() if theirs in measured},
            "seconds": round(self.seconds(), 3),
        }
        self.writer.metric(row)
        return True

    @property
    def updates(self) -> int:
        """Gradient updates: minibatches of all epochs."""
        return int(self.model._n_updates * self.ppo.minibatches)

    def seconds(self) -> float:
        """Training time so far, earlier parts of a continued run included."""
        now = time.monotonic()
        self.wall, self.clock = self.wall + now - self.clock, now
        return self.wall

    def checkpoint(self) -> Checkpoint:
        """Everything needed to continue from the end of an update."""
        optimizer = self.model.policy.optimizer.state_dict()["state"]
        rewards = self.vector.ret_rms
        return Checkpoint(
            tensors={
                "policy": dict(self.model.policy.named_parameters()),
                "optimizer": {f"{number}.{key}": t for number, each in optimizer.items() for key, t in each.items()},
                "env": {name: torch.from_numpy(array) for name, array in self.games.state().items()},
                "loop": {
                    "starts": torch.from_numpy(self.model._last_episode_starts),
                    "returns": torch.from_numpy(self.vector.returns),
                    "rewards": torch.tensor([rewards.mean, rewards.var, rewards.count], dtype=torch.float64),
                },
            },
            plain={
                "step": self.step,
                "updates": self.model._n_updates,
                "games": self.played,
                "recent": list(self.recent),
                "wall": self.seconds(),
            },
        )

    @torch.no_grad()
    def restore(self, saved: Checkpoint) -> None:
        """Continue from a checkpoint, in place."""
        model, tensors, plain = self.model, saved.tensors, saved.plain
        for name, parameter in model.policy.named_parameters():
            parameter.copy_(tensors["policy"][name])
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in tensors["optimizer"].items():
            number, _, key = name.partition(".")
            state.setdefault(int(number), {})[key] = tensor
        optimizer = model.policy.optimizer
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
        loop = tensors["loop"]
        model._last_obs = self.games.restore({name: t.numpy() for name, t in tensors["env"].items()}, plain["step"])
        model._last_episode_starts = loop["starts"].numpy()
        self.vector.returns = loop["returns"].numpy()
        rewards = self.vector.ret_rms
        rewards.mean, rewards.var, rewards.count = loop["rewards"].tolist()
        model.num_timesteps, model._n_updates = plain["step"], plain["updates"]
        self.played, self.wall, self.clock = plain["games"], plain["wall"], time.monotonic()
        self.recent.extend(plain["recent"])

    def result(self) -> dict[str, Any]:
        """Evaluate the final weights and a random policy, as every run does."""
        ppo, protocol, wall = self.ppo, self.ppo.protocol, self.seconds()
        self._seed()

        def policy(observation: Tensor, allowed: np.ndarray | None) -> np.ndarray:
            actions, _ = self.model.predict(observation.cpu().numpy().astype(np.uint8), deterministic=False)
            return np.asarray(actions)

        played = play_games(policy, ppo.env, protocol, episodes=ppo.episodes, seed=ppo.seed)
        baseline = random_baseline(ppo.env, protocol, episodes=ppo.episodes, seed=ppo.seed)
        return {
            "env": ppo.env,
            "preset": "ppo",
            "seed": ppo.seed,
            "protocol": protocol.name,
            "steps": self.step,
            "frames": self.step,
            "updates": self.updates,
            "games": self.played,
            **scored(played, baseline),
            "training_return_10": mean_of_last(10, self.recent),
            "device": str(self.model.device),
            "wall_seconds": round(wall, 1),
            **provenance(),
        }

    def _seed(self) -> None:
        drawn = np.random.SeedSequence((self.ppo.seed, self.step)).generate_state(1)[0]
        self.sb3.common.utils.set_random_seed(int(drawn), using_cuda=self.model.device.type == "cuda")


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


def _adapter(sb3: Any, ppo: Ppo) -> Any:
    """This library's games as Stable-Baselines3's vector of environments."""
    from gymnasium import spaces

    class Adapter(sb3.common.vec_env.VecEnv):  # type: ignore[misc]
        """All lanes are one object: what Stable-Baselines3 asks of a single environment is asked of that."""

        def __init__(self) -> None:
            self.games = envs.make(ppo.env, ppo.protocol, seed=ppo.seed)
            spec = self.games.spec
            image = spaces.Box(0, 255, spec.frame_shape, np.uint8)
            super().__init__(spec.lanes, image, spaces.Discrete(spec.num_actions))
            self.chosen = np.zeros(spec.lanes, np.int64)
            self.score, self.length = np.zeros(spec.lanes), np.zeros(spec.lanes, np.int64)
            self.steps, self.finished = 0, list[tuple[int, int, float, int]]()

        def reset(self) -> Any:
            return self.games.reset()

        def step_async(self, actions: Any) -> None:
            self.chosen = actions

        def step_wait(self) -> Any:
            step = self.games.step(self.chosen)
            infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
            self.steps += self.num_envs
            self.score += step.reward
            self.length += 1
            for lane in np.flatnonzero(step.game_over):
                cut = bool(step.truncated[lane])
                infos[lane] = {"terminal_observation": step.final_frame[lane], "TimeLimit.truncated": cut}
                self.finished.append((self.steps, int(lane), float(self.score[lane]), int(self.length[lane])))
                self.score[lane], self.length[lane] = 0.0, 0
            return step.frame, step.reward, step.game_over, infos

        def take_finished(self) -> list[tuple[int, int, float, int]]:
            """Step, lane, score and length of each game that ended since the last call."""
            finished, self.finished = self.finished, []
            return finished

        def state(self) -> dict[str, Any]:
            return {**self.games.state(), "adapter.score": self.score, "adapter.length": self.length}

        def restore(self, state: dict[str, Any], steps: int) -> Any:
            self.score, self.length, self.steps = state.pop("adapter.score"), state.pop("adapter.length"), steps
            return self.games.restore(state)

        def close(self) -> None:
            self.games.close()

        def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
            return [getattr(self.games, attr_name, None)] * self.num_envs

        def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
            setattr(self.games, attr_name, value)

        def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
            return [getattr(self.games, method_name)(*args, **kwargs)] * self.num_envs

        def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
            return [False] * self.num_envs

    return Adapter()


def stable_baselines() -> Any:
    """Stable-Baselines3, or what to install."""
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # where the dead `gym` is installed, it prints about itself
            import stable_baselines3
            import stable_baselines3.common.torch_layers
            import stable_baselines3.common.utils
            import stable_baselines3.common.vec_env
    except ImportError:
        raise UserError("the PPO baseline needs Stable-Baselines3: pip install 'steadyq[sb3,procgen]'") from None
    return stable_baselines3
