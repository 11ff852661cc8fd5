"""The return bound B on targets (section 4.1.3), from trajectories that finished during training.

The paper derives B(T) = max_t G_t on a greedy trajectory and leaves its use open. Here B is the running maximum
over finished training trajectories (life-loss segments, the learner's rewards), infinite until one has finished,
and never below the largest reward seen, which would otherwise be clipped away until its own episode ends.
It is a heuristic: a better policy exceeds any return realised so far, and B then rises with it. A truncated
trajectory counts for what it collected: where all are cut while gamma^length is not small, B is lower than what
bootstrapping beyond the cut would reach.
"""

import numpy as np


class Ceiling:
    """Running maximum of discounted returns over finished trajectories, one open trajectory per lane."""

    def __init__(self, lanes: int, gamma: float) -> None:
        self.gamma = gamma
        self.best_return = -np.inf
        self.best_reward = -np.inf
        self.open: list[list[float]] = [[] for _ in range(lanes)]

    def add(self, reward: np.ndarray, ended: np.ndarray) -> None:
        """Take one step of every lane; where the trajectory ended, fold its returns into the bound."""
        for lane, (r, over) in enumerate(zip(reward.tolist(), ended.tolist(), strict=True)):
            self.open[lane].append(r)
            self.best_reward = max(self.best_reward, r)
            if over:
                self.best_return = max(self.best_return, max_return(self.open[lane], self.gamma))
                self.open[lane] = []

    @property
    def value(self) -> float:
        """B: infinite before the first finished trajectory."""
        return np.inf if self.best_return == -np.inf else max(self.best_return, self.best_reward)

    def state(self) -> dict[str, np.ndarray]:
        """Return everything needed to continue."""
        return {
            "best": np.array([self.best_return, self.best_reward], np.float64),
            "open": np.array([r for lane in self.open for r in lane], np.float64),
            "lengths": np.array([len(lane) for lane in self.open], np.int64),
        }

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Continue from `state()`."""
        self.best_return, self.best_reward = state["best"].tolist()
        parts = np.split(state["open"], np.cumsum(state["lengths"])[:-1])
        self.open = [part.tolist() for part in parts]


def max_return(rewards: list[float], gamma: float) -> float:
    """Return max_t G_t with G_t = r_t + gamma G_{t+1}."""
    best, g = -np.inf, 0.0
    for r in reversed(rewards):
        g = r + gamma * g
        best = max(best, g)
    return best
