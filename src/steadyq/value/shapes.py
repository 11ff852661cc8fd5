"""What flows through one learning step, and the legend every tensor in `value/` follows.

    z[member, batch, action, atom]   predicted return distributions (a scalar estimate has one atom)
    q[member, batch, action]         their means
    a[member, batch]                 one action per member and transition
    y[member, batch, atom]           regression targets

Members come first because that is what a stacked forward pass returns; atoms come last because mean, gather
and loss run over them. `discount` already holds gamma^n and is zero where the trajectory ended.
"""

from dataclasses import dataclass

from torch import Tensor

from steadyq.nets.ensemble import Params

__all__ = ["Batch", "Draw", "Params", "Update", "Values"]


@dataclass(frozen=True)
class Batch:
    """Transitions sampled from replay, shared by all members."""

    observation: Tensor  # [batch, ...]
    action: Tensor  # [batch] int64
    reward: Tensor  # [batch] n-step sum of the learner's rewards
    discount: Tensor  # [batch] gamma^n, 0 after termination
    next_observation: Tensor  # [batch, ...]
    weight: Tensor  # [batch] importance weights, 1 under uniform sampling
    index: Tensor  # [batch] where in the ring they lie
    stamp: Tensor  # [batch] which write put them there: a later update must not hit a newer transition


@dataclass(frozen=True)
class Draw:
    """All randomness and host decisions of one update, drawn outside so that a captured step never freezes them."""

    order: Tensor  # [member] whose selected action each member values
    forbid: Tensor  # [] bool: is the rewarded action forbidden in this update?


@dataclass(frozen=True)
class Values:
    """Distributions at one set of states and their means."""

    z: Tensor  # [member, batch, action, atom]
    q: Tensor  # [member, batch, action]


@dataclass(frozen=True)
class Update:
    """What one update leaves behind; tensors, so that nothing waits for the device."""

    priority: Tensor  # [batch] mean over members of the unweighted loss
    measures: dict[str, Tensor]  # [] each, averaged between rows of metrics; names as in `learner.MEASURES`
