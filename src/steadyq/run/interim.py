"""Evaluations on the way: when one is due, which was the best, and when they say that it is enough.

What is known comes from the run's events alone, so that a run that was killed decides as if it had not been.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from steadyq.agent import Agent
from steadyq.recipe import Recipe
from steadyq.run.callbacks import Evaluation
from steadyq.run.evaluate import greedy_policy, play_games, standard_error


class Interim:
    """The evaluations of one run so far."""

    def __init__(self, recipe: Recipe, events: Iterable[Mapping[str, Any]]) -> None:
        self.recipe, self.section = recipe, recipe.evaluation
        self.last = self.best_step = self.count = self.worse = 0
        self.best = -math.inf
        for event in events:
            if event["event"] == "evaluation":
                self.take(event["step"], event["mean_return"])

    def take(self, step: int, mean_return: float) -> bool:
        """Count an evaluation; returns whether it is the best so far."""
        self.last, self.count, self.worse = step, self.count + 1, self.worse + 1
        if better := mean_return > self.best:
            self.best, self.best_step, self.worse = mean_return, step, 0
        return better

    def due(self, step: int) -> bool:
        """Whether the next one should have been made by now."""
        every = self.section.every
        return every > 0 and step // every > self.last // every

    @property
    def enough(self) -> str | None:
        """Why the run need not go on, if that is so."""
        section = self.section
        if self.best >= section.target:
            return (
                f"mean return {self.best:.2f} reached evaluation.target {section.target:g} at step {self.best_step:,}"
            )
        if section.patience and self.worse >= section.patience:
            return f"no better evaluation than {self.best:.2f} at step {self.best_step:,} in the last {self.worse}"
        return None

    def play(self, agent: Agent, step: int, progress: Callable[[int], None] | None = None) -> Evaluation:
        """Play the games of an evaluation: the same every time, and others than those at the run's end."""
        games = play_games(
            greedy_policy(agent),
            self.recipe.env,
            self.recipe.protocol,
            episodes=self.section.interim_episodes,
            seed=interim_seed(self.recipe.seed),
            epsilon=self.section.epsilon,
            device=str(agent.device),
            progress=progress,
        )
        mean = float(np.mean([game.score for game in games]))
        return Evaluation(step, mean, standard_error(games), len(games), self.take(step, mean))

    def summary(self) -> dict[str, Any]:
        """What a result says of them."""
        if not self.count:
            return {}
        return {"evaluations": self.count, "best_return": self.best, "best_step": self.best_step}


def interim_seed(seed: int) -> int:
    """Of the games between, from a run's seed: choosing the best of them must not choose for the games at the end."""
    return int(np.random.SeedSequence([seed, 1]).generate_state(1)[0]) % 2**31
