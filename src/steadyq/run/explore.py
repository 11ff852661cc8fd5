"""How the agent acts while it learns: epsilon-greedy on the values its ensemble acts by."""

import numpy as np
import torch
from torch import Tensor

from steadyq.build import acting_for, compiled_for, draw_layout
from steadyq.device.capture import Captured, to_device
from steadyq.envs.vector import EnvSpec
from steadyq.recipe import Recipe
from steadyq.replay.ring import Ring
from steadyq.value.learner import Learner
from steadyq.value.operators import permitted


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


class GameEpsilon:
    """Evaluation's epsilon: now and then a uniform action, drawn for each game from a generator of its own.

    Its seed is the game's, so that a game follows from its seed and the agent alone, whatever is played beside it.
    """

    def __init__(self, epsilon: float, actions: int, lanes: int) -> None:
        self.epsilon, self.actions = epsilon, actions
        self._draw = [np.random.default_rng(0) for _ in range(lanes)]

    def begin(self, lane: int, seed: int) -> None:
        """Begin the game of this seed in a lane."""
        self._draw[lane] = np.random.default_rng([seed, 1])

    def __call__(self, action: np.ndarray, allowed: np.ndarray | None = None) -> np.ndarray:
        """Return the actions [lane] that are played in place of the agent's, among those that are `allowed`."""
        if self.epsilon == 0:
            return action
        played = action.copy()
        for lane, draw in enumerate(self._draw):
            if draw.random() < self.epsilon:
                if allowed is None:
                    played[lane] = draw.integers(self.actions)
                else:
                    played[lane] = uniform_among(allowed[lane : lane + 1], draw)[0]
        return played


def uniform_among(allowed: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw one of the allowed actions in each lane, `[lane, action] -> [lane]`, with one number a lane."""
    wanted = np.floor(rng.random(len(allowed)) * allowed.sum(1))  # how many allowed actions come before it
    drawn: np.ndarray = (allowed.cumsum(1) > wanted[:, None]).argmax(1)
    return drawn


class Values:
    """The values by which lanes act, [lane, action], of the observations that are open in the ring; captured."""

    def __init__(self, recipe: Recipe, spec: EnvSpec, learner: Learner, ring: Ring) -> None:
        self.learner, self.ring, self.online = learner, ring, recipe.explore.act_with == "online"
        self.acting, device = acting_for(recipe, training=True), learner.device
        self.member = torch.zeros(ring.lanes, dtype=torch.int64, device=device)  # that each lane's game drew
        noise = draw_layout(recipe, spec).noise
        self.noise = torch.zeros(learner.ensemble.members, noise, device=device)  # by which networks act
        self.captured = Captured(self.on_device, device, compiled_for(recipe, learner.ensemble))

    def __call__(self) -> Tensor:
        """What the networks say now."""
        return self.captured(self.ring.open_slots)

    @torch.no_grad()
    def on_device(self, slots: Tensor) -> Tensor:
        """What is captured."""
        learner, observation = self.learner, self.ring.observation(slots)
        params = learner.online_low if self.online else learner.target_low
        q = self.acting(learner.values(params, observation, noise=self.noise).q, self.member)
        return permitted(q, None if self.ring.allowed is None else self.ring.allowed[slots])


class EpsilonGreedy:
    """Per lane: a uniform action with probability epsilon, else the greedy one.

    Both numbers are drawn for every lane at every step, before the values are known, so the random stream does not
    depend on them. Where an environment says what is `allowed[lane, action]`, the uniform action is one of those.
    """

    def __init__(
        self,
        lanes: int,
        actions: int,
        epsilon: float,
        rng: np.random.Generator,
        allowed: np.ndarray | None = None,
    ) -> None:
        self.random = rng.integers(actions, size=lanes) if allowed is None else uniform_among(allowed, rng)
        self.explore = rng.random(lanes) < epsilon

    def __call__(self, q: np.ndarray) -> np.ndarray:
        """Choose by the values q[lane, action]."""
        return np.where(self.explore, self.random, q.argmax(-1))
