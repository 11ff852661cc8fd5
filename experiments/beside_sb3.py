"""`dqn` and `qr_dqn` beside Stable-Baselines3's DQN and sb3-contrib's QR-DQN at the same hyper-parameters.

python experiments/beside_sb3.py             judges results/beside-sb3.tar.xz: table of docs/compared.md
python experiments/beside_sb3.py --runs DIR  trains what is missing in DIR, packs what has finished, and does the same
python experiments/beside_sb3.py --runs DIR --only CartPole --seeds 3    one game and one seed of it: several processes
                                                                         may share the work in one folder

All four play this library's environments (the same seeds of games) on one CPU thread and are scored by the same 100 or
20 games. Theirs are set through their own constructor from our recipe, so that nothing is written down twice; what
cannot be set is in `DIFFERENCES`.
"""

import argparse
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

import steadyq as sq
from steadyq import envs
from steadyq.bench.others import minatar_features
from steadyq.device.cpu import prepare_process
from steadyq.recipe import Recipe
from steadyq.run.evaluate import play_games, random_baseline, scored
from steadyq.run.folder import RunFolder
from steadyq.run.progress import mean_of_last
from steadyq.run.provenance import provenance
from steadyq.run.writer import Writer, begin_meta
from steadyq.schedule import Schedule
from steadyq.scores import statistics
from steadyq.scores.published import Scores
from steadyq.suite.archive import pack
from steadyq.suite.comparing import interval_of, intervals_possible
from steadyq.suite.runs import Run, read_runs
from steadyq.suite.study import run_name

ROOT = Path(__file__).parents[1]
ARCHIVE, PAGE = ROOT / "results" / "beside-sb3.tar.xz", ROOT / "docs" / "compared.md"
BEGIN, END = "<!-- experiments/beside_sb3.py -->\n", "<!-- end of experiments/beside_sb3.py -->\n"

STEPS = {"Gymnasium/CartPole-v1": 20_000, "MinAtar/Breakout": 30_000}
SEEDS = (0, 1, 2, 3, 4)
PRESETS = {"dqn": "sb3 DQN", "qr_dqn": "sb3-contrib QR-DQN"}
COMMON = {"compute.device": "cpu", "compute.threads": 1, "record.tensorboard": False, "monitor.every": 0}

DIFFERENCES = (
    "ours learns before it acts, theirs after: an update of theirs sees one transition more",
    "ours draws one transition from each of 32 equal parts of the replay buffer, theirs 32 independent ones",
    "theirs acts at random until learning begins, ours by the exploration schedule, which is at 0.80 or 0.90 by then",
)
"""What the constructors do not offer to set."""


def recipe_for(preset: str, env: str, seed: int) -> Recipe:
    """Our preset; the loss of QR-DQN summed over quantiles, as theirs always is."""
    changes = {"estimator.reduction": "sum"} if preset == "qr_dqn" else {}
    return sq.presets.recipe_for(preset, env).override({**COMMON, **changes, "steps": STEPS[env], "seed": seed})


def settings_for(recipe: Recipe) -> dict[str, Any]:
    """The recipe as arguments of Stable-Baselines3's DQN and sb3-contrib's QR-DQN."""
    epsilon, optim, replay = Schedule.of(recipe.explore.epsilon), recipe.optim, recipe.replay
    assert (replay.alpha, replay.n_step, optim.decay, optim.hard_copy_every) == (0.0, 1, 0.0, 0)
    image = recipe.network.kind == "minatar"
    last = recipe.steps  # the schedule is linear: it has ended at the first step whose value is the last
    policy: dict[str, Any] = {
        "net_arch": [] if image else list(recipe.network.hidden),
        "activation_fn": torch.nn.ReLU,
        "optimizer_class": torch.optim.Adam,
        "optimizer_kwargs": {"eps": optim.epsilon, "betas": (optim.beta1, optim.beta2)},
        "normalize_images": False,
    }
    if image:
        policy["features_extractor_class"] = minatar_features()
    if recipe.estimator.kind == "quantile":
        policy["n_quantiles"] = recipe.estimator.quantiles
    return {
        "learning_rate": optim.rate,
        "gamma": optim.gamma,
        "tau": optim.tau,
        "target_update_interval": 1,
        "max_grad_norm": optim.clip,
        "buffer_size": replay.capacity,
        "learning_starts": replay.warmup,
        "batch_size": replay.batch,
        "train_freq": replay.every,
        "gradient_steps": replay.ratio,
        "exploration_initial_eps": epsilon.at(0, 0),
        "exploration_final_eps": epsilon.at(last, 0),
        "exploration_fraction": decay_steps(epsilon, last) / last,
        "policy_kwargs": policy,
    }


def decay_steps(epsilon: Schedule, steps: int) -> int:
    """The first step at which exploration has its last value."""
    return next(step for step in range(steps + 1) if epsilon.at(step, 0) == epsilon.at(steps, 0))


class Lane(gymnasium.Env[np.ndarray, np.int64]):
    """One lane of this library's environment as Gymnasium shows it, every finished game written down."""

    def __init__(self, recipe: Recipe, writer: Writer) -> None:
        self.games = envs.make(recipe.env, recipe.protocol, seed=recipe.seed)
        spec = self.games.spec
        bounds = (0, 255) if spec.frame_dtype == "uint8" else (-np.inf, np.inf)
        self.observation_space = spaces.Box(*bounds, spec.observation_shape, np.dtype(spec.frame_dtype).type)
        self.action_space = spaces.Discrete(spec.num_actions)
        self.writer, self.steps, self.played, self.score, self.length = writer, 0, 0, 0.0, 0
        self.recent = deque[float](maxlen=100)
        self.next: np.ndarray | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Show the next game, which began when the last one ended."""
        frame = self.games.reset() if self.next is None else self.next
        return frame[0], {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Play one action."""
        step = self.games.step(np.array([action]))
        self.next, reward = step.frame, float(step.reward[0])
        self.steps, self.score, self.length = self.steps + 1, self.score + float(step.score[0]), self.length + 1
        if step.game_over[0]:
            self.played += 1
            self.recent.append(self.score)
            self.writer.event("game", self.steps, lane=0, score=self.score, steps=self.length)
            self.score, self.length = 0.0, 0
        return step.final_frame[0], reward, bool(step.terminated[0]), bool(step.truncated[0]), {}


def train_theirs(recipe: Recipe, path: Path) -> None:
    """Train the other library's algorithm in a run folder of its own, unless it has finished."""
    from sb3_contrib import QRDQN
    from stable_baselines3 import DQN
    from stable_baselines3.common.callbacks import BaseCallback

    folder = RunFolder(path)
    if folder.result is not None:
        return
    settings = settings_for(recipe)
    rules = asdict(recipe.protocol).items()
    meta = {
        "name": PRESETS[recipe.preset],
        "env": recipe.env,
        "seed": recipe.seed,
        "steps": recipe.steps,
        "parameters": {name: value for name, value in settings.items() if name != "policy_kwargs"},
        "protocol": {name: list(rule) if isinstance(rule, tuple) else rule for name, rule in rules},
    }
    prepare_process(1)
    writer = begin_meta(folder, meta)
    writer.load()  # what an interrupted run wrote is cut off: it begins again
    lane, started = Lane(recipe, writer), time.monotonic()
    model = (DQN if recipe.preset == "dqn" else QRDQN)("MlpPolicy", lane, seed=recipe.seed, device="cpu", **settings)

    class Rows(BaseCallback):  # type: ignore[misc]
        """A row of metrics as often as ours."""

        def _on_step(self) -> bool:
            if self.num_timesteps % recipe.record.every == 0:
                writer.metric(
                    {
                        "step": self.num_timesteps,
                        "frames": self.num_timesteps,
                        "updates": model._n_updates,
                        "games": lane.played,
                        "return_10": mean_of_last(10, lane.recent),
                        "return_100": mean_of_last(100, lane.recent),
                        "epsilon": float(model.exploration_rate),
                        "seconds": round(time.monotonic() - started, 3),
                    }
                )
            return True

    model.learn(recipe.steps, callback=Rows(), log_interval=10**9)
    wall = time.monotonic() - started

    def policy(observation: torch.Tensor, allowed: np.ndarray | None) -> np.ndarray:
        return np.asarray(model.predict(observation.numpy(), deterministic=True)[0])

    section = recipe.evaluation
    played = play_games(policy, recipe.env, recipe.protocol, episodes=section.episodes, seed=recipe.seed)
    baseline = random_baseline(recipe.env, recipe.protocol, episodes=section.random_episodes, seed=recipe.seed)
    result = {
        "env": recipe.env,
        "preset": PRESETS[recipe.preset],
        "seed": recipe.seed,
        "protocol": recipe.protocol.name,
        "steps": recipe.steps,
        "frames": recipe.steps,
        "updates": model._n_updates,
        "games": lane.played,
        **scored(played, baseline),
        "evaluation_epsilon": 0.0,
        "training_return_10": mean_of_last(10, lane.recent),
        "device": "cpu",
        "wall_seconds": round(wall, 1),
        **provenance(),
    }
    writer.finish(result)
    writer.close()


def train_all(runs: Path, only: str, seeds: Sequence[int]) -> None:
    """Train what is missing, one game after the other."""
    for env in STEPS:
        for seed in seeds:
            for preset, theirs in PRESETS.items() if only in env else ():
                print(f"{env}, {preset}, seed {seed}", flush=True)
                recipe = recipe_for(preset, env, seed)
                sq.train(recipe, run=runs / run_name(env, preset, seed), quiet=True)
                train_theirs(recipe, runs / run_name(env, theirs, seed))
                pack(runs, ARCHIVE, "beside-sb3")


def by_learner(runs: list[Run], env: str) -> dict[str, list[Run]]:
    """Finished runs of an environment by who learned; each of our presets stands beside its counterpart."""
    names = [name for pair in PRESETS.items() for name in pair]
    own = [run for run in runs if run.recipe.env == env and run.result is not None]
    found = {name: [run for run in own if run.recipe.preset == name] for name in names}
    return {name: each for name, each in found.items() if each}


def table(runs: list[Run]) -> str:
    """Both games as Markdown: the evaluation at the end, and the mean over all training games."""
    lines = ["| game | learner | seeds | evaluation | interval | mean of training | interval | beats ours |"]
    lines.append("|" + "---|" * 8)
    for env in STEPS:
        learners = by_learner(runs, env)
        partner = {theirs: ours for ours, theirs in PRESETS.items()}
        for name, own in learners.items():
            final = Scores({env: {run.seed: run.result["mean_return"] for run in own if run.result}})
            whole = Scores({env: {run.seed: float(np.mean(run.events.games[1])) for run in own}})
            chance = "-"
            if name in partner and partner[name] in learners:
                ours = Scores({env: {r.seed: r.result["mean_return"] for r in learners[partner[name]] if r.result}})
                found = statistics.improvement_interval(final, ours) if intervals_possible(ours) else None
                chance = f"{statistics.probability_of_improvement(final, ours):.2f}"
                chance += f" ({found.low:.2f} to {found.high:.2f})" if found else ""
            cells = [f"{statistics.mean(each):.3g} | {span(each)}" for each in (final, whole)]
            steps = f"{env.partition('/')[2]}, {STEPS[env]:,} steps"
            lines.append(f"| {steps} | `{name}` | {len(own)} | {' | '.join(cells)} | {chance} |")
    return "\n".join(lines) + "\n"


def span(scores: Scores) -> str:
    """The interval of the mean over seeds."""
    found = interval_of(scores, statistics.mean)
    return "-" if found is None else f"{found.low:.3g} to {found.high:.3g}"


def main(arguments: list[str] | None = None) -> None:
    """Train what is missing, if a folder is given; write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, help="folder of the runs; without it, the archive")
    parser.add_argument("--only", default="", help="train games with this in their name alone")
    parser.add_argument("--seeds", type=int, nargs="*", default=SEEDS, help="train these seeds alone")
    args = parser.parse_args(arguments)
    if args.runs:
        train_all(args.runs, args.only, args.seeds)
    runs = read_runs([ARCHIVE])
    page = PAGE.read_text()
    notes = "".join(f"- {each}\n" for each in DIFFERENCES)
    PAGE.write_text(page.split(BEGIN)[0] + BEGIN + table(runs) + "\nWhat could not be set equal:\n\n" + notes + END
                    + page.split(END)[1])  # fmt: skip


if __name__ == "__main__":
    main()
