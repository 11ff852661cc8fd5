"""Axis 1, operator level: which action, and whose value of it, goes into the bootstrap target.

An operator maps `(online, target, batch, draw)` to `z_next[member, batch, atom]`. Each is built from four verbs,
so that the one-line bodies below read like the equations they implement.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, assert_never

import numpy as np
import torch
from torch import Tensor

from steadyq.value.shapes import Batch, Draw, Values


class Operator(Protocol):
    """A pure function from values at s' to what is backed up."""

    @property
    def reads_online(self) -> bool:
        """Whether the online network at s' is needed: a forward pass saved where it is not."""

    def __call__(self, online: Values, target: Values, batch: Batch, draw: Draw) -> Tensor:
        """Return z_next[member, batch, atom]."""


def greedy(q: Tensor) -> Tensor:
    """Return argmax_a q, `[..., action] -> [...]`."""
    return q.argmax(-1)


def take(z: Tensor, a: Tensor) -> Tensor:
    """Return the atoms of the given actions, `[member, batch, action, atom] -> [member, batch, atom]`."""
    return z.gather(2, a[..., None, None].expand(-1, -1, 1, z.shape[-1])).squeeze(2)


def forbid_rewarded_action(q: Tensor, action: Tensor, rewarded: Tensor, active: Tensor) -> Tensor:
    """Return q with the taken action at -inf wherever it was rewarded: a' != a if r > 0 (Eq. l.369)."""
    taken = torch.arange(q.shape[-1], device=q.device) == action[:, None]  # [batch, action]
    return q.masked_fill(taken & rewarded[:, None] & active, -torch.inf)


def permitted(q: Tensor, allowed: Tensor | None) -> Tensor:
    """Return q with what the environment does not allow at -inf, `[..., batch, action] x [batch, action]`."""
    return q if allowed is None else q.masked_fill(~allowed, -torch.inf)


def exchange(a: Tensor, order: Tensor) -> Tensor:
    """Return for each member i the actions that member order[i] selected."""
    return a[order]


@dataclass(frozen=True)
class Greedy:
    """DQN: the target network selects and values."""

    reads_online: ClassVar[bool] = False

    def __call__(self, online: Values, target: Values, batch: Batch, draw: Draw) -> Tensor:
        """Return z(s', argmax q) of the target network."""
        return take(target.z, greedy(target.q))


@dataclass(frozen=True)
class Double:
    """Double DQN: the online network selects, the target network values."""

    reads_online: ClassVar[bool] = True

    def __call__(self, online: Values, target: Values, batch: Batch, draw: Draw) -> Tensor:
        """Return z(s', argmax q_online) of the target network."""
        return take(target.z, greedy(online.q))


@dataclass(frozen=True)
class Maxmin:
    """Maxmin Q-learning: max over actions of the least value any member gives it (Lan et al. 2020)."""

    reads_online: ClassVar[bool] = False

    def __call__(self, online: Values, target: Values, batch: Batch, draw: Draw) -> Tensor:
        """Return for all members z_i(s', a*), a* = argmax_a min_j q_j, i the member whose value of a* is the least."""
        least, whose = target.q.min(0)  # [batch, action] each
        a = greedy(least)  # [batch]
        i = whose.gather(1, a[:, None]).squeeze(1)
        z = take(target.z, a.expand(len(target.z), -1))  # [member, batch, atom]
        return z[i, torch.arange(len(a), device=a.device)].expand_as(z)


@dataclass(frozen=True)
class Controlled:
    """The paper's operator (Algorithm 1): member i values the action member pi(i) selected, never the rewarded one.

    Exchange and constraint arrive as `draw.order` and `draw.forbid`; `order_for` and the host's draws decide them.
    """

    selector: Literal["target", "online"] = "target"

    @property
    def reads_online(self) -> bool:
        """Only when the online networks select."""
        return self.selector == "online"

    def __call__(self, online: Values, target: Values, batch: Batch, draw: Draw) -> Tensor:
        """Return z_i(s', a*_pi(i)) of the target networks."""
        every = target.q if self.selector == "target" else online.q
        q = forbid_rewarded_action(every, batch.action, batch.rewarded, draw.forbid)
        if batch.next_allowed is not None:  # where the rewarded action is all that the environment allows, it is taken
            q = torch.where(q.isneginf().all(-1, keepdim=True), every, q)
        return take(target.z, exchange(greedy(q), draw.order))


def order_for(
    exchange: Literal["derangement", "permutation", "none"], members: int, rng: np.random.Generator
) -> np.ndarray:
    """Draw pi over the members: without fixed points (`derangement`), uniform (`permutation`) or the identity."""
    if members == 1:
        return np.arange(1)
    match exchange:
        case "none":
            return np.arange(members)
        case "permutation":
            return rng.permutation(members)
        case "derangement":
            order = rng.permutation(members)
            while (order == np.arange(members)).any():
                order = rng.permutation(members)
            return order
    assert_never(exchange)
