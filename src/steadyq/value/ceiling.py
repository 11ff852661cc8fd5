"""The return bound B on targets (section 4.1.3), from trajectories that finished during training.

The paper derives B(T) = max_t G_t on a greedy trajectory and leaves its use open. Here B is the running maximum
over finished training trajectories (life-loss segments, the learner's rewards), infinite until one has finished,
and never below the largest reward seen, which would otherwise be clipped away until its own episode ends.
It is a heuristic: a better policy exceeds any return realised so far, and B then rises with it. A truncated
trajectory counts for what it collected: where all are cut while gamma^length is not small, B is lower than what
bootstrapping beyond the cut would reach.
"""

import numpy as np

from steadyq.value.trajectories import OpenTrajectories, discounted_returns


class Ceiling:
    """Running maximum of discounted returns over finished trajectories, one open trajectory per lane."""

    def __init__(self, lanes: int, gamma: float) -> None:
        self.gamma = gamma
        self.best_return = -np.inf
        self.best_reward = -np.inf
        self.open = OpenTrajectories(lanes)

    def add(self, reward: np.ndarray, ended: np.ndarray) -> None:
        """Take one step of every lane; where the trajectory ended, fold its returns into the bound."""
        self.best_reward = max(self.best_reward, *reward.tolist())
        for _, rewards in self.open.add(reward, ended):
            self.best_return = max(self.best_return, float(discounted_returns(rewards, self.gamma).max()))

    @property
    def value(self) -> float:
        """B: infinite before the first finished trajectory."""
        return np.inf if self.best_return == -np.inf else max(self.best_return, self.best_reward)

    def state(self) -> dict[str, np.ndarray]:
        """Return everything needed to continue."""
        return {
            "best": np.array([self.best_return, self.best_reward], np.float64),
            **self.open.state(),
        }

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Continue from `state()`."""
        self.best_return, self.best_reward = state["best"].tolist()
        self.open.restore(state)
