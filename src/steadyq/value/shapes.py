"""What flows through one learning step, and the legend every tensor in `value/` follows.

    z[member, batch, action, atom]   what a network puts out: returns by their quantiles, their logits, or their mean
    q[member, batch, action]         the means of those returns
    a[member, batch]                 one action per member and transition
    y[member, batch, atom]           regression targets, in the estimator's own terms

Members come first because that is what a stacked forward pass returns; atoms come last because mean, gather
and loss run over them. `discount` already holds gamma^n and is zero where the trajectory ended.
"""

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from steadyq.nets.ensemble import Params

__all__ = ["Batch", "Draw", "DrawLayout", "Params", "Update", "Values"]


@dataclass(frozen=True)
class Future:
    """The steps after those of a batch, for losses that look ahead."""

    observation: Tensor  # [step, batch, ...] what the action led to
    action: Tensor  # [step, batch] int64, the transition's own first
    known: Tensor  # [step, batch] bool: does the trajectory go on to that observation?

    def part(self, first: int, end: int) -> "Future":
        """That of some of the transitions."""
        return Future(**{field.name: getattr(self, field.name)[:, first:end] for field in fields(self)})


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
    rewarded: Tensor  # [batch] bool: was the action itself rewarded, whatever came in the n - 1 steps after it?
    allowed: Tensor | None = None  # [batch, action] bool: what could be played at s, where an environment says so
    next_allowed: Tensor | None = None  # [batch, action] bool: the same at s'

    future: Future | None = None  # the steps after, where a loss asks for them
    views: Tensor | None = None  # [2, batch, ...] two more looks at s, where a loss compares them

    def part(self, first: int, end: int) -> "Batch":
        """Some of the transitions."""
        every: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        future = None if self.future is None else self.future.part(first, end)
        columns = {name: each[first:end] for name, each in every.items() if each is not None and name not in APART}
        return replace(self, **columns, future=future, views=None if self.views is None else self.views[:, first:end])


APART = ("future", "views")
"""What of a batch does not have its transitions first."""


@dataclass(frozen=True)
class Draw:
    """All randomness and host decisions of one update, drawn outside so that a captured step never freezes them.

    Where several runs learn together, their samples are one batch, and what differs between runs is said of every
    sample: `order`, `keep`, `key` and `share` are `[member, batch]`, `forbid` is `[batch]` (`DrawLayout.together`).
    """

    order: Tensor  # [member] whose selected action each member values
    forbid: Tensor  # [] bool: is the rewarded action forbidden in this update?
    keep: Tensor  # [member, batch] or [member, 1]: 1 where a member learns from a sample; [member, 0]: all from all
    key: Tensor  # [member] int64: by which a transition's own mask, which becomes `keep`, is known (replay/masks.py)
    rate: Tensor  # [] learning rate; [member] where those of several runs are stacked
    horizon: Tensor  # [] int64: n of the n-step return
    gamma: Tensor  # [] discount per step
    uniform: Tensor  # [batch] in [0, 1): which transitions are sampled
    shift: Tensor  # [view, batch, 2] int64: rows and columns by which images move; s, s', then those of the future
    intensity: Tensor  # [view, batch] what images are multiplied by
    share: Tensor  # [member] in what an operator mixes, summing to 1
    taus: Tensor  # [2, batch or 1, atom] quantiles that an implicit estimator is asked for: at s, at s'
    noise: Tensor  # [2, member, number] normal numbers, the noise of the online and of the target networks
    views: Tensor  # [2, batch, 2] int64: by how much two views of s are shifted that a loss compares


KINDS = {
    "order": "exact", "forbid": "truth", "keep": "real", "key": "exact", "rate": "wide", "horizon": "exact",
    "gamma": "real", "uniform": "wide", "shift": "exact", "intensity": "real", "share": "real", "taus": "real",
    "noise": "real", "views": "exact",
}  # fmt: skip
"""What the numbers of a draw become on the device: whole numbers, float32, float64 as they travel, or bool."""


SECOND = ("shift", "intensity", "taus", "noise", "views")
"""Fields of a draw whose samples, or members, come second."""


@dataclass(frozen=True)
class DrawLayout:
    """A draw as one vector of float64, to travel to the device at once."""

    members: int
    batch: int
    keep: int = 0  # columns of `keep`: one for each sample, one for all, or none
    augmented: bool = False  # whether images are shifted and scaled
    future: int = 0  # steps of the future that are shown too
    samples: int = 0  # quantiles drawn for each sample
    noise: int = 0  # normal numbers that make the noise of a network
    compared: bool = False  # whether a loss compares two views of s
    masked: float = 0.0  # share of transitions from which a member learns, by their own masks; 0 for no masks

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of each field of `Draw`, in their order in the vector."""
        views = (2 + self.future) * self.augmented
        return {
            "order": (self.members,),
            "forbid": (),
            "keep": (self.members, self.keep),
            "key": (self.members * (self.masked > 0),),
            "rate": (),
            "horizon": (),
            "gamma": (),
            "uniform": (self.batch,),
            "shift": (views, self.batch, 2),
            "intensity": (views, self.batch),
            "share": (self.members,),
            "taus": (2, self.batch, self.samples),
            "noise": (2, self.members, self.noise),
            "views": (2 * self.compared, self.batch, 2),
        }

    @cached_property
    def places(self) -> dict[str, tuple[slice, tuple[int, ...]]]:
        """Where each field lies in the vector, and its shape."""
        found: dict[str, tuple[slice, tuple[int, ...]]] = {}
        start = 0
        for name, shape in self.shapes.items():
            end = start + math.prod(shape)
            found[name] = slice(start, end), shape
            start = end
        return found

    @cached_property
    def size(self) -> int:
        """Numbers in the vector."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    def pack(self, **values: Any) -> np.ndarray:
        """One vector out of all fields."""
        if values.keys() != self.shapes.keys():
            raise ValueError(f"a draw has {list(self.shapes)}, not {list(values)}")
        packed = np.empty(self.size)
        for name, place, shape in self._filled:
            packed[place].reshape(shape)[...] = values[name]
        return packed

    @cached_property
    def _filled(self) -> list[tuple[str, slice, tuple[int, ...]]]:
        """The places of fields that hold anything: every update packs a vector, most without most of the fields."""
        return [(name, place, shape) for name, (place, shape) in self.places.items() if math.prod(shape)]

    def unpack(self, packed: Tensor) -> Draw:
        """The draw that was packed."""
        return Draw(**self._fields(packed))

    def _fields(self, packed: Tensor) -> dict[str, Tensor]:
        """The fields of one vector, or of each of several."""
        kinds = {"exact": packed.long(), "real": packed.float(), "wide": packed, "truth": packed > 0}
        several = packed.shape[:-1]
        return {
            name: kinds[KINDS[name]][..., place].view((*several, *shape))
            for name, (place, shape) in self.places.items()
        }

    def together(self, packed: Tensor) -> Draw:
        """The draws of several runs, `[run, number]`, as one for all their samples: rates are their own, the other
        schedules those of the first.
        """
        parts = self._fields(packed)

        def each(part: Tensor) -> Tensor:
            """`[run, member]` or `[run, member, batch or 1]`, said of every sample: `[member, run * batch]`."""
            part = part.expand(-1, -1, self.batch) if part.dim() == 3 else part[..., None].expand(-1, -1, self.batch)
            return part.transpose(0, 1).flatten(1)

        return Draw(
            order=each(parts["order"]),
            forbid=parts["forbid"].repeat_interleave(self.batch),
            keep=each(parts["keep"]) if self.keep else parts["keep"][0],
            key=each(parts["key"]),
            rate=parts["rate"].repeat_interleave(self.members),
            horizon=parts["horizon"][0],
            gamma=parts["gamma"][0],
            share=each(parts["share"]),
            uniform=parts["uniform"].flatten(),
            **{name: parts[name].transpose(0, 1).flatten(1, 2) for name in SECOND},
        )

    def plain(self, device: torch.device | str = "cpu", **values: Any) -> Draw:
        """A draw that decides nothing, but for what is given: own order, nothing forbidden, all learn from all.

        It fits a batch of any size in what an operator or estimator reads of it.
        """
        draw = self.unpack(torch.from_numpy(self.pack(**self.nothing | values)).to(device))
        return draw if "taus" in values else replace(draw, taus=draw.taus[:, :1])

    @property
    def nothing(self) -> dict[str, Any]:
        """Values that decide nothing."""
        return {
            "order": np.arange(self.members), "forbid": False, "keep": 1.0, "key": 0, "rate": 1e-4, "horizon": 1,
            "gamma": 0.99, "uniform": (np.arange(self.batch) + 0.5) / self.batch, "shift": 0, "intensity": 1.0,
            "share": 1 / self.members, "taus": (np.arange(self.samples) + 0.5) / max(1, self.samples),
            "noise": 0.0, "views": 0,
        }  # fmt: skip


@dataclass(frozen=True)
class Values:
    """What networks say at one set of states, and the means of it."""

    z: Tensor  # [member, batch, action, atom]
    q: Tensor  # [member, batch, action]


@dataclass(frozen=True)
class Update:
    """What one update leaves behind; tensors, so that nothing waits for the device."""

    priority: Tensor  # [batch] mean over members of the unweighted loss
    measures: dict[str, Tensor]  # [] each, averaged between rows of metrics; names as in `Learner.measured`
