"""How the agent acts while it learns: epsilon-greedy on the values its ensemble acts by."""

import numpy as np
import torch
from torch import Tensor

from steadyq.device.capture import to_device
from steadyq.envs.vector import EnvSpec


class FrameStack:
    """The last frames of every lane as one observation tensor; zeros before a trajectory's first frame."""

    def __init__(self, spec: EnvSpec, device: torch.device | str = "cpu") -> None:
        self.depth = spec.frame_shape[0]
        dtype = torch.uint8 if spec.frame_dtype == "uint8" else torch.float32
        self.observation = torch.zeros(spec.lanes, *spec.observation_shape, dtype=dtype, device=device)

    def push(self, frame: np.ndarray, restart: np.ndarray | None = None) -> Tensor:
        """Append one frame per lane; lanes in `restart` forget what came before."""
        keep = self.observation[:, self.depth :].clone()
        if restart is not None and restart.any():
            keep *= to_device(~restart, keep.device).view(-1, *[1] * (keep.dim() - 1))
        self.observation[:, : -self.depth] = keep
        self.observation[:, -self.depth :] = to_device(frame, keep.device)
        return self.observation


class EpsilonGreedy:
    """Per lane: a uniform action with probability epsilon, else the greedy one.

    Both numbers are drawn for every lane at every step, before the values are known, so the random stream does not
    depend on them.
    """

    def __init__(self, lanes: int, actions: int, epsilon: float, rng: np.random.Generator) -> None:
        self.random = rng.integers(actions, size=lanes)
        self.explore = rng.random(lanes) < epsilon

    def __call__(self, q: np.ndarray) -> np.ndarray:
        """Choose by the values q[lane, action]."""
        return np.where(self.explore, self.random, q.argmax(-1))
