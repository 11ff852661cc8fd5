"""How an ensemble acts: one value of every action out of all members' values."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Acting(Protocol):
    """Maps `q[member, lane, action]` to the values `[lane, action]` whose largest is chosen."""

    def __call__(self, q: Tensor, member: Tensor) -> Tensor:
        """Join the members; `member[lane]` is the one drawn for each lane's episode."""


@dataclass(frozen=True)
class Mean:
    """The ensemble's mean, as the paper acts."""

    def __call__(self, q: Tensor, member: Tensor) -> Tensor:
        """Return the mean over members."""
        return q.mean(0)


@dataclass(frozen=True)
class Minimum:
    """The least value of any member, as Maxmin Q-learning acts."""

    def __call__(self, q: Tensor, member: Tensor) -> Tensor:
        """Return the minimum over members."""
        return q.min(0).values


@dataclass(frozen=True)
class OneMember:
    """One member for a whole episode, as Bootstrapped DQN explores."""

    def __call__(self, q: Tensor, member: Tensor) -> Tensor:
        """Return the drawn member's values."""
        return q[member, torch.arange(q.shape[1], device=q.device)]


@dataclass(frozen=True)
class Optimistic:
    """Mean plus `bonus` standard deviations between members, as SUNRISE explores."""

    bonus: float = 1.0

    def __call__(self, q: Tensor, member: Tensor) -> Tensor:
        """Return mean + bonus x spread."""
        return q.mean(0) + self.bonus * q.std(0, correction=0)
