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
from steadyq.device.capture import Captured
from steadyq.envs import Protocol
from steadyq.run.explore import FrameStack, GameEpsilon

LANES = 16

Policy = Callable[[Tensor], np.ndarray]
"""Actions [lane] for observations [lane, ...]."""


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
    """Play `episodes` full games in parallel lanes, in a fixed order of games.

    Each lane plays a fixed share of the games to the end: taking whichever games finish first would favour short ones.
    With `epsilon` some of the policy's actions are replaced by uniform ones.
    """
    lanes = min(episodes, LANES)
    vector = envs.make(env, protocol, seed=seed, training=False, lanes=lanes)
    quota = [len(range(lane, episodes, lanes)) for lane in range(lanes)]
    played: list[list[Game]] = [[] for _ in range(lanes)]
    score, steps, rewarded = np.zeros(lanes), np.zeros(lanes, np.int64), np.zeros(lanes, np.int64)
    actions: list[list[int]] = [[] for _ in range(lanes)]
    shown = [0] * lanes
    stack = FrameStack(vector.spec, device)
    stray = GameEpsilon(epsilon, vector.spec.num_actions, lanes)
    try:
        frame = vector.reset()
        observation = stack.push(frame)
        seeds = vector.game_seed()
        for lane, game_seed in enumerate(seeds.tolist()):
            stray.begin(lane, game_seed)
        while any(len(games) < share for games, share in zip(played, quota, strict=True)):
            action = stray(policy(observation))
            for lane, chosen in enumerate(action.tolist()):
                shown[lane] = zlib.crc32(frame[lane], shown[lane])
                actions[lane].append(chosen)
            step = vector.step(action)
            score += step.score
            steps += 1
            rewarded += step.reward > 0
            for lane in np.flatnonzero(step.game_over).tolist():
                if len(played[lane]) < quota[lane]:
                    share = float(rewarded[lane] / steps[lane])
                    own = int(seeds[lane]), tuple(actions[lane]), shown[lane]
                    played[lane].append(Game(float(score[lane]), int(steps[lane]), share, *own))
                    if progress:
                        progress(sum(map(len, played)))
                score[lane], steps[lane], rewarded[lane], actions[lane], shown[lane] = 0.0, 0, 0, [], 0
            if step.game_over.any():
                seeds = vector.game_seed()
                for lane in np.flatnonzero(step.game_over).tolist():
                    stray.begin(lane, int(seeds[lane]))
            frame = step.frame
            observation = stack.push(frame, step.restart)
    finally:
        vector.close()
    return [played[game % lanes][game // lanes] for game in range(episodes)]


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


def scored(games: Sequence[Game], baseline: Sequence[Game]) -> dict[str, Any]:
    """What a result says of its evaluation games, and of a random policy's beside them."""
    returns = [game.score for game in games]
    return {
        "episodes": len(returns),
        "different_games": different(games),
        "returns": returns,
        "mean_return": float(np.mean(returns)),
        "standard_error": standard_error(games),
        "first_10_mean_return": float(np.mean(returns[:10])),
        "random_return": float(np.mean([game.score for game in baseline])),
        "random_episodes": len(baseline),
    }


def greedy_policy(agent: Agent) -> Policy:
    """Act by the ensemble's mean value; always on as many lanes as the first time."""
    values = Captured(agent.q, agent.device)
    return lambda observation: values(observation).argmax(-1).cpu().numpy()


def random_policy(actions: int, seed: int) -> Policy:
    """Act uniformly at random."""
    rng = np.random.default_rng(seed)
    return lambda observation: rng.integers(actions, size=observation.shape[0])
