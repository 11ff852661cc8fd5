"""Discounted returns the learner really got, to hold its values against."""

import math
from collections import deque

import numpy as np

from steadyq.value.trajectories import OpenTrajectories, discounted_returns

KEEP = 20
"""Most recent trajectories that count: enough to be calm, few enough to follow a policy that changes."""

UNSEEN = 0.1
"""A step of a truncated trajectory counts if at most this share of its discounted horizon was cut off."""


class Returns:
    """Returns of the last finished trajectories, from the learner's rewards; one open trajectory per lane."""

    def __init__(self, lanes: int, gamma: float, keep: int = KEEP) -> None:
        self.gamma = gamma
        self.open = OpenTrajectories(lanes)
        self.finished: deque[tuple[float, float, int]] = deque(maxlen=keep)  # sum and maximum of G_t, number of steps
        self.best = -math.inf

    def add(self, reward: np.ndarray, terminated: np.ndarray, truncated: np.ndarray) -> None:
        """Take one step of every lane."""
        for lane, rewards in self.open.add(reward, terminated | truncated):
            returns = discounted_returns(rewards, self.gamma)
            if not terminated[lane]:
                returns = returns[self.gamma ** np.arange(len(returns), 0, -1) <= UNSEEN]
            if len(returns):
                self.finished.append((float(returns.sum()), float(returns.max()), len(returns)))
                self.best = max(self.best, self.finished[-1][1])

    def columns(self) -> dict[str, float | None]:
        """`return_mean` over the states of the last trajectories, `return_best` over all; None before one finished."""
        if not self.finished:
            return {"return_mean": None, "return_best": None}
        steps = sum(count for _, _, count in self.finished)
        return {"return_mean": sum(total for total, _, _ in self.finished) / steps, "return_best": self.best}

    def state(self) -> dict[str, np.ndarray]:
        """Everything needed to continue."""
        return {
            "best": np.array([self.best], np.float64),
            "finished": np.array(self.finished, np.float64).reshape(-1, 3),
            **self.open.state(),
        }

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Continue from `state()`."""
        self.best = float(state["best"][0])
        self.finished.clear()
        self.finished.extend((total, top, int(count)) for total, top, count in state["finished"].tolist())
        self.open.restore(state)
