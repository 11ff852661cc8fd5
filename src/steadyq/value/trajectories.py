"""Rewards of trajectories that have not ended yet, one of each lane, and what a finished one returned."""

from collections.abc import Iterable, Iterator

import numpy as np


class OpenTrajectories:
    """The rewards so far of one open trajectory per lane; hands out those that end."""

    def __init__(self, lanes: int) -> None:
        self.rewards: list[list[float]] = [[] for _ in range(lanes)]

    def add(self, reward: np.ndarray, ended: np.ndarray) -> Iterator[tuple[int, list[float]]]:
        """Take one step of every lane; yields lane and rewards of each trajectory that ended with it."""
        for lane, (r, over) in enumerate(zip(np.asarray(reward, float).tolist(), ended.tolist(), strict=True)):
            self.rewards[lane].append(r)
            if over:
                finished, self.rewards[lane] = self.rewards[lane], []
                yield lane, finished

    def state(self) -> dict[str, np.ndarray]:
        """Everything needed to continue."""
        return {
            "open": np.array([r for lane in self.rewards for r in lane], np.float64),
            "lengths": np.array([len(lane) for lane in self.rewards], np.int64),
        }

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Continue from `state()`."""
        parts = np.split(state["open"], np.cumsum(state["lengths"])[:-1])
        self.rewards = [part.tolist() for part in parts]


def discounted_returns(rewards: Iterable[float], gamma: float) -> np.ndarray:
    """G_t = r_t + gamma G_{t+1} of every step of one finished trajectory."""
    returns: list[float] = []
    g = 0.0
    for reward in reversed(list(rewards)):
        g = reward + gamma * g
        returns.append(g)
    return np.array(returns[::-1])
