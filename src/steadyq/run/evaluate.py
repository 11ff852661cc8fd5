"""Full games with stored weights: the numbers a run reports."""

import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from steadyq import envs
from steadyq.agent import Agent
from steadyq.device.capture import Captured, to_device
from steadyq.envs import Protocol
from steadyq.run.explore import FrameStack, GameEpsilon, uniform_among
from steadyq.scores import random_policy as random_policy_scores
from steadyq.value.operators import permitted

LANES = 32
"""Games played side by side: on 16 cores and a GPU, more only wait for each other."""
PROCGEN_LANES = 16
"""envpool draws levels lane by lane: other lanes would be other games."""

Policy = Callable[[Tensor, np.ndarray | None], np.ndarray]
"""Actions [lane] for observations [lane, ...], among what is allowed[lane, action] where the environment says so."""


@dataclass(frozen=True)
class Game:
    """One full game: its raw return, its agent steps, and the share of them that was rewarded."""

    score: float
    steps: int
    rewarded: float
    seed: int = 0
    """The game's own: with the actions, all that `envs.render` needs."""
    actions: tuple[int, ...] = ()
    shown: int = 0
    """Checksum of all frames the agent was shown."""


def play_games(
    policy: Policy,
    env: str,
    protocol: Protocol,
    *,
    episodes: int,
    seed: int,
    epsilon: float = 0.0,
    device: str = "cpu",
    progress: Callable[[int], None] | None = None,
) -> list[Game]:
    """Play games 0 to episodes - 1 in parallel lanes, each to its end, and return them in that order.

    Which games they are follows from the seed alone; counting whichever finish first would favour short ones. With
    `epsilon` some of the policy's actions are replaced by uniform ones.
    """
    lanes = min(episodes, PROCGEN_LANES if protocol.backend == "procgen" else LANES)
    vector = envs.make(env, protocol, seed=seed, training=False, lanes=lanes, episodes=episodes)
    played: dict[int, Game] = {}
    score, steps, rewarded = np.zeros(lanes), np.zeros(lanes, np.int64), np.zeros(lanes, np.int64)
    actions: list[list[int]] = [[] for _ in range(lanes)]
    shown = [0] * lanes
    stack = FrameStack(vector.spec, device)
    stray = GameEpsilon(epsilon, vector.spec.num_actions, lanes)
    try:
        frame = vector.reset()
        observation = stack.push(frame)
        playing, seeds = vector.playing(), vector.game_seed()
        for lane in range(lanes):
            stray.begin(lane, int(seeds[lane]))
        while len(played) < episodes:
            allowed = vector.allowed()
            action = stray(policy(observation, allowed), allowed)
            for lane in np.flatnonzero(playing >= 0).tolist():
                shown[lane] = zlib.crc32(frame[lane], shown[lane])
                actions[lane].append(int(action[lane]))
            step = vector.step(action)
            frame = step.frame
            score += step.score
            steps += 1
            rewarded += step.reward > 0
            observation = stack.push(frame, step.restart)
            if not step.game_over.any():
                continue
            for lane in np.flatnonzero(step.game_over).tolist():
                share = float(rewarded[lane] / steps[lane])
                own = int(seeds[lane]), tuple(actions[lane]), shown[lane]
                played[int(playing[lane])] = Game(float(score[lane]), int(steps[lane]), share, *own)
                score[lane], steps[lane], rewarded[lane], actions[lane], shown[lane] = 0.0, 0, 0, [], 0
                if progress:
                    progress(len(played))
            playing, seeds = vector.playing(), vector.game_seed()
            for lane in np.flatnonzero(step.game_over).tolist():
                stray.begin(lane, int(seeds[lane]))
    finally:
        vector.close()
    return [played[number] for number in range(episodes)]


def different(games: Sequence[Game]) -> int:
    """How many games are not another one over again: a deterministic emulator repeats itself, frame by frame."""
    return len(_repeats(games))


def standard_error(games: Sequence[Game]) -> float | None:
    """Of the mean score, by what was really sampled: a repeated game is one game with a larger weight.

    Weights w sum to one: the variance is sum w (x - mean)^2 / (1 - sum w^2), over 1 / sum w^2 games. None for one game.
    """
    repeats = _repeats(games)
    if len(repeats) < 2:
        return None
    score = np.array([key[0] for key in repeats])
    weight = np.array(list(repeats.values())) / len(games)
    spread = float((weight * (score - weight @ score) ** 2).sum())
    concentrated = float((weight**2).sum())
    return float(np.sqrt(spread / (1 - concentrated) * concentrated))


def _repeats(games: Sequence[Game]) -> Counter[tuple[float, int, int]]:
    return Counter((game.score, game.steps, game.shown) for game in games)


@dataclass(frozen=True)
class Baseline:
    """What a uniformly random policy scores, and where that is from."""

    mean_return: float
    episodes: int
    source: str


def random_baseline(env: str, protocol: Protocol, *, episodes: int, seed: int) -> Baseline:
    """Look up the random policy's score where it is stored, over at least as many games; play them otherwise."""
    known = random_policy_scores.stored(env, protocol.rules)
    if known is not None and known.episodes >= episodes:
        return Baseline(known.mean_return, known.episodes, known.source)
    actions = envs.spec(env, protocol).num_actions
    games = play_games(random_policy(actions, seed), env, protocol, episodes=episodes, seed=seed)
    return Baseline(float(np.mean([game.score for game in games])), len(games), "played")


def scored(games: Sequence[Game], baseline: Baseline) -> dict[str, Any]:
    """What a result says of its evaluation games, and of a random policy's beside them."""
    returns = [game.score for game in games]
    return {
        "episodes": len(returns),
        "different_games": different(games),
        "returns": returns,
        "mean_return": float(np.mean(returns)),
        "standard_error": standard_error(games),
        "first_10_mean_return": float(np.mean(returns[:10])),
        "random_return": baseline.mean_return,
        "random_episodes": baseline.episodes,
        "random_source": baseline.source,
    }


def greedy_policy(agent: Agent) -> Policy:
    """Act by the ensemble's mean value; always on as many lanes as the first time."""
    values = Captured(agent.q, agent.device)

    def act(observation: Tensor, allowed: np.ndarray | None) -> np.ndarray:
        mask = None if allowed is None else to_device(allowed, agent.device)
        return permitted(values(observation), mask).argmax(-1).cpu().numpy()

    return act


def random_policy(actions: int, seed: int) -> Policy:
    """Act uniformly at random."""
    rng = np.random.default_rng(seed)

    def act(observation: Tensor, allowed: np.ndarray | None) -> np.ndarray:
        return rng.integers(actions, size=observation.shape[0]) if allowed is None else uniform_among(allowed, rng)

    return act
