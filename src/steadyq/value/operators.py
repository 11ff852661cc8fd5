"""Axis 1, operator level: which action, and whose value of it, goes into the bootstrap target.

An operator maps `(online, target, batch, draw)` to `z_next[member, batch, atom]`. Each is built from four verbs,
so that the one-line bodies below read like the equations they implement.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, assert_never

import numpy as np
import torch
from torch import Tensor

from steadyq.value.estimators import Estimator
from steadyq.value.shapes import Batch, Draw, Values


@dataclass(frozen=True)
class Operator(ABC):
    """A pure function from values at s' to what is backed up; most change nothing else of the learning step."""

    @property
    def reads_online(self) -> bool:
        """Whether the online network at s' is needed: a forward pass saved where it is not."""
        return False

    @property
    def reads_here(self) -> bool:
        """Whether the target network at s is needed, for `bonus`."""
        return False

    @abstractmethod
    def __call__(self, online: Values, target: Values, batch: Batch, draw: Draw) -> Tensor:
        """Return z_next[member, batch, atom]."""

    def bonus(self, here: Values, batch: Batch) -> Tensor:
        """What is added to the reward, [member, batch], by the target network's values at s: nothing."""
        return here.q.new_zeros(here.q.shape[:2])

    def blend(self, z: Tensor, draw: Draw) -> Tensor:
        """What is regressed out of the members' z[member, batch, atom] of the action taken."""
        return z

    def shares(self, members: int, rng: np.random.Generator) -> np.ndarray:
        """Draw each member's share in an update, the host's part: `draw.share`."""
        return np.full(members, 1 / members)


def greedy(q: Tensor) -> Tensor:
    """Return argmax_a q, `[..., action] -> [...]`."""
    return q.argmax(-1)


def take(z: Tensor, a: Tensor) -> Tensor:
    """Return the atoms of the given actions, `[member, batch, action, atom] -> [member, batch, atom]`."""
    return z.gather(2, a[..., None, None].expand(-1, -1, 1, z.shape[-1])).squeeze(2)


def forbid_rewarded_action(q: Tensor, action: Tensor, rewarded: Tensor, active: Tensor) -> Tensor:
    """Return q with the taken action at -inf wherever it was rewarded: a' != a if r > 0 (Eq. l.369)."""
    taken = torch.arange(q.shape[-1], device=q.device) == action[:, None]  # [batch, action]
    return q.masked_fill(taken & (rewarded & active)[:, None], -torch.inf)


def permitted(q: Tensor, allowed: Tensor | None) -> Tensor:
    """Return q with what the environment does not allow at -inf, `[..., batch, action] x [batch, action]`."""
    return q if allowed is None else q.masked_fill(~allowed, -torch.inf)


def exchange(a: Tensor, order: Tensor) -> Tensor:
    """Return for each member i the actions that member order[i] selected, `order[member]` or `[member, batch]`."""
    return a[order] if order.dim() == 1 else a.gather(0, order)


@dataclass(frozen=True)
class Greedy(Operator):
    """DQN: the target network selects and values."""

    def __call__(self, online: Values, target: Values, batch: Batch, draw: Draw) -> Tensor:
        """Return z(s', argmax q) of the target network."""
        return take(target.z, greedy(target.q))


@dataclass(frozen=True)
class Double(Operator):
    """Double DQN: the online network selects, the target network values."""

    reads_online: ClassVar[bool] = True

    def __call__(self, online: Values, target: Values, batch: Batch, draw: Draw) -> Tensor:
        """Return z(s', argmax q_online) of the target network."""
        return take(target.z, greedy(online.q))


@dataclass(frozen=True)
class Maxmin(Operator):
    """Maxmin Q-learning: max over actions of the least value any member gives it (Lan et al. 2020).

    With a `subset`, of so many members drawn anew for each update, as REDQ takes the least of two (Chen et al. 2021).
    """

    subset: int = 0

    def __call__(self, online: Values, target: Values, batch: Batch, draw: Draw) -> Tensor:
        """Return for all members z_i(s', a*), a* = argmax_a min_j q_j, i the member whose value of a* is the least."""
        left_out = draw.share.view(len(draw.share), -1, 1) == 0  # [member, batch or 1, 1]
        drawn = target.q.masked_fill(left_out, torch.inf)
        least, whose = drawn.min(0)  # [batch, action] each
        a = greedy(least)  # [batch]
        i = whose.gather(1, a[:, None]).squeeze(1)
        z = take(target.z, a.expand(len(target.z), -1))  # [member, batch, atom]
        return z[i, torch.arange(len(a), device=a.device)].expand_as(z)

    def shares(self, members: int, rng: np.random.Generator) -> np.ndarray:
        """Equal, of all or of those drawn."""
        if not self.subset:
            return super().shares(members, rng)
        shares = np.zeros(members)
        shares[rng.permutation(members)[: self.subset]] = 1 / self.subset
        return shares


@dataclass(frozen=True)
class Mixture(Operator):
    """REM: the members are one network, a convex mixture drawn anew for each update (Agarwal et al. 2020)."""

    estimator: Estimator

    def __call__(self, online: Values, target: Values, batch: Batch, draw: Draw) -> Tensor:
        """Return for all members z(s', argmax q) of the mixture of the target networks."""
        z = self.blend(target.z, draw)  # [1, batch, action, atom]
        q = permitted(self.estimator.q(z), batch.next_allowed)
        return take(z, greedy(q)).expand(len(target.z), -1, -1)

    def blend(self, z: Tensor, draw: Draw) -> Tensor:
        """Return sum_i share_i z_i, [1, ...]."""
        share = draw.share.view(len(draw.share), -1).T  # [batch or 1, member]
        return self.estimator.mix(z.movedim(0, -2), share.view(-1, *[1] * (z.dim() - 3), len(z)))[None]

    def shares(self, members: int, rng: np.random.Generator) -> np.ndarray:
        """Uniform numbers over their sum."""
        drawn: np.ndarray = rng.random(members)
        drawn /= drawn.sum()
        return drawn


@dataclass(frozen=True)
class Others(Operator):
    """EBQL: each member selects, and all others together value (Peer et al. 2021)."""

    estimator: Estimator
    reads_online: ClassVar[bool] = True

    def __call__(self, online: Values, target: Values, batch: Batch, draw: Draw) -> Tensor:
        """Return the mean over j != i of z_j(s', argmax q_i), i online and j target networks."""
        members = len(target.z)
        others = 1 - torch.eye(members, device=target.z.device)
        z = torch.stack([take(target.z, a.expand(members, -1)) for a in greedy(online.q)])  # [i, j, batch, atom]
        return self.estimator.mix(z.movedim(1, -2), others[:, None] / max(1, members - 1))


@dataclass(frozen=True)
class Pooled(Operator):
    """TQC's: quantiles of all members together, without the largest `drop` a member (Kuznetsov et al. 2020)."""

    drop: int = 2

    def __call__(self, online: Values, target: Values, batch: Batch, draw: Draw) -> Tensor:
        """Return for all members the pooled and truncated quantiles of the action whose mean of them is the largest."""
        members, _, _, atoms = target.z.shape
        pooled = target.z.movedim(0, -2).flatten(-2).sort(-1).values  # [batch, action, member * atom]
        kept = pooled[..., : members * (atoms - self.drop)]
        q = permitted(kept.mean(-1), batch.next_allowed)
        return take(kept[None], greedy(q)[None]).expand(members, -1, -1)


@dataclass(frozen=True)
class Softmax(Operator):
    """The softmax operator: actions by their odds instead of the best alone (Song et al. 2019)."""

    estimator: Estimator
    temperature: float = 0.03

    def __call__(self, online: Values, target: Values, batch: Batch, draw: Draw) -> Tensor:
        """Return sum_a pi(a) z(s', a), pi = softmax(q / temperature), of the target network."""
        return self.estimator.mix(target.z, (target.q / self.temperature).softmax(-1))


@dataclass(frozen=True)
class Munchausen(Operator):
    """Munchausen DQN: rewarded for the log-probability of the action, entropy-regularised (Vieillard et al. 2020)."""

    temperature: float = 0.03
    scale: float = 0.9
    least: float = -1.0
    reads_here: ClassVar[bool] = True

    def __call__(self, online: Values, target: Values, batch: Batch, draw: Draw) -> Tensor:
        """Return sum_a pi(a) (z(s', a) - t log pi(a)), pi = softmax(q / t), t the temperature, of the target."""
        log_pi = (target.q / self.temperature).log_softmax(-1)[..., None]
        return (log_pi.exp() * (target.z - self.temperature * log_pi.clamp_min(-1e30))).sum(2)  # odds of 0 add nothing

    def bonus(self, here: Values, batch: Batch) -> Tensor:
        """Return scale x temperature log pi(a | s), held between `least` and 0 before the scale."""
        log_pi = (here.q / self.temperature).log_softmax(-1)
        taken = log_pi.gather(2, batch.action.expand(len(log_pi), -1)[..., None]).squeeze(2)
        return self.scale * (self.temperature * taken).clamp(self.least, 0)


@dataclass(frozen=True)
class Controlled(Operator):
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
            own = np.arange(members)
            while ((order := rng.permutation(members)) == own).any():
                pass
            return order
    assert_never(exchange)
