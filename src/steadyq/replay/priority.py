"""Proportional prioritisation over the ring's slots: who is sampled, and with which importance weight.

One vector of masses serves both kinds of sampling: uniform replay is the same thing with every mass one. A prefix sum
and a binary search over 100,000 slots cost less than the host round trip of a tree, and can be captured in a graph.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from steadyq.device.kernels import replay
from steadyq.device.kernels.triton import available


@dataclass(frozen=True)
class Sampling:
    """Exponents of prioritised replay; `alpha=0` is uniform and makes every importance weight one."""

    alpha: float = 0.6
    beta: float = 0.4
    epsilon: float = 1e-6


class Priorities:
    """Sampling masses p^alpha per slot; a slot with mass zero is never drawn."""

    def __init__(self, slots: int, sampling: Sampling, device: torch.device | str = "cpu", runs: int = 1) -> None:
        self.sampling, self.runs, self.each = sampling, runs, slots // runs
        self.mass = torch.zeros(slots, dtype=torch.float64, device=device)
        self.stamp = torch.zeros(slots, dtype=torch.int64, device=device)
        self.largest = torch.ones(runs, dtype=torch.float64, device=device)  # running maximum of p, starts at 1

    def enable(self, slots: Tensor, which: Tensor) -> None:
        """Make freshly written slots, those marked in `which`, sampleable at the largest priority seen."""
        largest = self.largest if self.runs == 1 else self.largest[slots // self.each]
        self.mass[slots] = torch.where(which, largest**self.sampling.alpha, self.mass[slots])

    def disable(self, slots: Tensor) -> None:
        """Take slots out of sampling and mark them rewritten, so that an update still under way misses them."""
        # Not `mass[slots] = 0`, which copies the number to the device and waits for whatever runs there.
        self.mass.index_fill_(0, slots, 0)
        self.stamp.index_add_(0, slots, torch.ones_like(slots))

    def sample(self, uniform: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Draw one slot per stratum from `uniform[batch]` in [0, 1): indices, importance weights, stamps.

        Where several runs share the slots, each has its part of the batch, and draws from its own.
        """
        count = uniform.shape[0] // self.runs
        prefix = self.mass.cumsum(0)  # over all runs: a GPU adds up one row fast, and several slowly
        if available(prefix):
            return replay.search(prefix, self.mass, self.stamp, uniform, self.sampling.beta, self.runs)
        prefix = prefix.view(self.runs, -1)
        if self.runs > 1:
            prefix = prefix - functional.pad(prefix[:-1, -1:], (0, 0, 1, 0))
        strata = torch.arange(count, device=uniform.device, dtype=torch.float64)
        total = prefix[:, -1:]
        point = (strata + uniform.view(self.runs, -1).double()) / count * total
        # Rounding may land on the total itself, past the last slot that has mass.
        point = torch.minimum(point, total * (1 - 1e-12))
        index = torch.searchsorted(prefix, point, right=True)
        if self.runs > 1:
            index = index + self.each * torch.arange(self.runs, device=index.device)[:, None]
        # (N p)^-beta over its maximum in the batch: N and the total cancel.
        mass = self.mass[index]
        weight = (mass / mass.amin(1, keepdim=True)) ** -self.sampling.beta
        index = index.flatten()
        return index, weight.float().flatten(), self.stamp[index]

    def update(self, index: Tensor, stamp: Tensor, priority: Tensor) -> None:
        """Set p of the sampled slots, skipping any rewritten since they were sampled.

        A loss that is not finite is skipped too: the loop reports it, and must be able to sample until it does.
        """
        if not index.shape == stamp.shape == priority.shape:
            raise ValueError(f"one priority per sampled slot: {len(index)} slots, {len(priority)} priorities")
        if self.sampling.alpha == 0:
            return
        p = priority.double() + self.sampling.epsilon
        fresh = (self.stamp[index] == stamp) & (self.mass[index] > 0) & p.isfinite()
        self.mass[index] = torch.where(fresh, p**self.sampling.alpha, self.mass[index])
        found = torch.where(fresh, p, 0).view(self.runs, -1).amax(1)
        self.largest.copy_(torch.maximum(self.largest, found))
