"""Axis 2, estimator level: how a return is represented, averaged, backed up and regressed.

What the numbers of a network mean is known here alone: everybody else asks for values, errors and shares.
"""

import math
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from steadyq.device.kernels.loss import quantile_huber


class Estimator(Protocol):
    """A way to represent values; holds no parameters."""

    @property
    def atoms(self) -> int:
        """Numbers predicted per action."""

    def q(self, z: Tensor) -> Tensor:
        """Mean of the predicted return, `[..., atom] -> [...]`."""

    def backup(self, z: Tensor, reward: Tensor, discount: Tensor, ceiling: Tensor) -> Tensor:
        """Bellman backup y[member, batch, atom] of z_next[member, batch, atom], held below a ceiling [] or [batch]."""

    def loss(self, z: Tensor, y: Tensor, tau: Tensor | None = None) -> Tensor:
        """Regression loss of z towards y, `[member, batch, atom] x 2 -> [member, batch]`.

        `tau[batch, atom]` says which quantiles z holds, where an estimator is asked for any.
        """

    def mix(self, z: Tensor, weight: Tensor) -> Tensor:
        """One prediction out of several whose mean is the means' weighted mean, `[..., k, atom] x [..., k]`."""

    def value(self, y: Tensor) -> Tensor:
        """Mean return that a target stands for, `[member, batch, atom] -> [member, batch]`."""

    def held(self, y: Tensor, ceiling: Tensor) -> Tensor:
        """How much of a target the ceiling holds, in [0, 1], `[member, batch, atom] -> [member, batch]`."""

    def crossing(self, z: Tensor) -> Tensor | None:
        """Share of neighbouring quantiles in the wrong order, `[member, ...] -> [member]`; None without quantiles."""


def td_error(estimator: Estimator, z: Tensor, y: Tensor) -> Tensor:
    """Return the target's mean minus the prediction's, `[member, batch, atom] x 2 -> [member, batch]`."""
    return estimator.value(y) - estimator.q(z)


class Returns:
    """What holds wherever atoms are returns themselves: a single one, or quantiles."""

    def q(self, z: Tensor) -> Tensor:
        """Return the mean over atoms."""
        return z.mean(-1)

    def backup(self, z: Tensor, reward: Tensor, discount: Tensor, ceiling: Tensor) -> Tensor:
        """Return r + discount z_k, each atom at most the ceiling."""
        return torch.minimum(reward[..., None] + discount[:, None] * z, ceiling[..., None])

    def mix(self, z: Tensor, weight: Tensor) -> Tensor:
        """Return the weighted mean of the atoms, each with its like."""
        return mean_of(z, weight)

    def value(self, y: Tensor) -> Tensor:
        """Return the mean over atoms."""
        return y.mean(-1)

    def held(self, y: Tensor, ceiling: Tensor) -> Tensor:
        """Share of atoms at the ceiling."""
        return (y >= ceiling[..., None]).float().mean(-1)

    def crossing(self, z: Tensor) -> Tensor | None:
        """Share of neighbours in the wrong order; a single atom has none."""
        return (z[..., 1:] < z[..., :-1]).double().flatten(1).mean(1) if z.shape[-1] > 1 else None


@dataclass(frozen=True)
class Scalar(Returns):
    """One number per action, regressed with the Huber loss."""

    kappa: float = 1.0

    @property
    def atoms(self) -> int:
        """One."""
        return 1

    def q(self, z: Tensor) -> Tensor:
        """Drop the atom dimension."""
        return z.squeeze(-1)

    def loss(self, z: Tensor, y: Tensor, tau: Tensor | None = None) -> Tensor:
        """Huber loss of the single atom."""
        return huber(y - z, self.kappa).squeeze(-1)

    def value(self, y: Tensor) -> Tensor:
        """Drop the atom dimension."""
        return y.squeeze(-1)


@dataclass(frozen=True)
class Quantile(Returns):
    """K quantiles per action at tau_k = (k + 1/2) / K, regressed with the quantile Huber loss (Eq. l.408).

    `reduction="mean"` is the 1/K^2 the paper prints; `"sum"` sums over predicted quantiles as QR-DQN does,
    K times as large: Adam hardly notices, clipping and priorities do.
    """

    atoms: int = 51
    kappa: float = 1.0
    reduction: Literal["mean", "sum"] = "mean"

    def loss(self, z: Tensor, y: Tensor, tau: Tensor | None = None) -> Tensor:
        """Return sum or mean over k of mean over k' of |tau_k - 1{u < 0}| Huber(u), u = y_k' - z_k."""
        mean = quantile_huber(z, y, self.kappa)
        return mean if self.reduction == "mean" else self.atoms * mean


@dataclass(frozen=True)
class Categorical:
    """C51: logits of `atoms` returns evenly spaced from `low` to `high`, regressed with the cross-entropy.

    A target is the distribution of r + discount x return, each point split between its two neighbours on the grid
    (the hat-function projection). The ceiling is the first grid point at or above the bound.
    """

    atoms: int = 51
    low: float = -10.0
    high: float = 10.0

    def support(self, like: Tensor) -> Tensor:
        """The returns, [atom]."""
        return torch.linspace(self.low, self.high, self.atoms, device=like.device)

    def q(self, z: Tensor) -> Tensor:
        """Return the expected return under the softmax of the logits."""
        return (z.softmax(-1) * self.support(z)).sum(-1)

    def backup(self, z: Tensor, reward: Tensor, discount: Tensor, ceiling: Tensor) -> Tensor:
        """Return probabilities: the next distribution, moved, held below the ceiling, and projected on the grid."""
        support, spacing = self.support(z), (self.high - self.low) / (self.atoms - 1)
        bound = self.bound(ceiling)[..., None]
        moved = torch.minimum(reward[:, None] + discount[:, None] * support, bound)  # [batch, atom]
        moved = moved.clamp(self.low, self.high)
        hat = (1 - (moved[:, None, :] - support[:, None]).abs() / spacing).clamp_min(0)  # [batch, atom, next atom]
        return torch.einsum("bij,mbj->mbi", hat, z.softmax(-1))

    def loss(self, z: Tensor, y: Tensor, tau: Tensor | None = None) -> Tensor:
        """Cross-entropy between the target's probabilities and the logits."""
        return -(y * z.log_softmax(-1)).sum(-1)

    def mix(self, z: Tensor, weight: Tensor) -> Tensor:
        """Return logits of the mixture of the probabilities: their mean is no mean of logits."""
        return mean_of(z.softmax(-1), weight).clamp_min(torch.finfo(z.dtype).tiny).log()

    def value(self, y: Tensor) -> Tensor:
        """Return the expected return of a target's probabilities."""
        return (y * self.support(y)).sum(-1)

    def held(self, y: Tensor, ceiling: Tensor) -> Tensor:
        """Probability at the ceiling's grid point."""
        return (y * (self.support(y) >= self.bound(ceiling)[..., None])).sum(-1)

    def crossing(self, z: Tensor) -> Tensor | None:
        """Probabilities have no order."""
        return None

    def bound(self, ceiling: Tensor) -> Tensor:
        """The first grid point at or above the ceiling, infinite above the grid."""
        support = self.support(ceiling)
        return torch.where(support >= ceiling[..., None], support, torch.inf).amin(-1)


@dataclass(frozen=True)
class HLGauss:
    """HL-Gauss (Farebrother et al. 2024): logits of `atoms` intervals from `low` to `high`, regressed with the
    cross-entropy towards a normal distribution around the target's mean.

    The distribution is a device of the loss and no distribution of returns: a target is a number, the mean of what is
    backed up, smeared by `smoothing` times an interval's width.
    """

    atoms: int = 51
    low: float = -10.0
    high: float = 10.0
    smoothing: float = 0.75

    def edges(self, like: Tensor) -> Tensor:
        """Where the intervals begin and end, [atom + 1]."""
        return torch.linspace(self.low, self.high, self.atoms + 1, device=like.device)

    def centres(self, like: Tensor) -> Tensor:
        """The middle of each interval, [atom]."""
        edges = self.edges(like)
        return (edges[1:] + edges[:-1]) / 2

    def smeared(self, value: Tensor) -> Tensor:
        """Share of each interval in a normal distribution around the value, cut at the ends, `[...] -> [..., atom]`."""
        width = self.smoothing * (self.high - self.low) / self.atoms
        below = torch.erf((self.edges(value) - value.clamp(self.low, self.high)[..., None]) / (math.sqrt(2) * width))
        return below.diff() / (below[..., -1:] - below[..., :1])

    def q(self, z: Tensor) -> Tensor:
        """Return the expected centre under the softmax of the logits."""
        return (z.softmax(-1) * self.centres(z)).sum(-1)

    def backup(self, z: Tensor, reward: Tensor, discount: Tensor, ceiling: Tensor) -> Tensor:
        """Return r + discount q, at most the ceiling, smeared."""
        return self.smeared(torch.minimum(reward + discount * self.q(z), ceiling))

    def loss(self, z: Tensor, y: Tensor, tau: Tensor | None = None) -> Tensor:
        """Cross-entropy between the target's probabilities and the logits."""
        return -(y * z.log_softmax(-1)).sum(-1)

    def mix(self, z: Tensor, weight: Tensor) -> Tensor:
        """Return logits of the mixture of the probabilities: their mean is no mean of logits."""
        return mean_of(z.softmax(-1), weight).clamp_min(torch.finfo(z.dtype).tiny).log()

    def value(self, y: Tensor) -> Tensor:
        """Return the expected centre of a target's probabilities."""
        return (y * self.centres(y)).sum(-1)

    def held(self, y: Tensor, ceiling: Tensor) -> Tensor:
        """1 where the target is the ceiling."""
        return (self.value(y) >= self.value(self.smeared(ceiling)) - 1e-5).float() * ceiling.isfinite()

    def crossing(self, z: Tensor) -> Tensor | None:
        """Probabilities have no order."""
        return None


@dataclass(frozen=True)
class Implicit(Returns):
    """IQN (Dabney et al. 2018): the network is asked for whichever quantiles tau; an update draws `samples` of them.

    Where none are drawn, in acting and measuring, it is asked for `fixed` ones, evenly spaced.
    """

    samples: int = 64
    fixed: int = 32
    kappa: float = 1.0
    reduction: Literal["mean", "sum"] = "mean"

    @property
    def atoms(self) -> int:
        """One for each tau."""
        return 1

    def loss(self, z: Tensor, y: Tensor, tau: Tensor | None = None) -> Tensor:
        """Return sum or mean over tau of mean over targets of |tau - 1{u < 0}| Huber(u), u = y_k' - z_tau."""
        tau = evenly(z.shape[-1], z) if tau is None else tau
        u = y.detach()[..., None, :] - z[..., :, None]  # [member, batch, tau, target]
        each = ((tau[..., None] - (u < 0).to(z.dtype)).abs() * huber(u, self.kappa)).mean(-1)
        return each.mean(-1) if self.reduction == "mean" else each.sum(-1)


def evenly(count: int, like: Tensor) -> Tensor:
    """The quantiles (k + 1/2) / K, [k]."""
    return (torch.arange(count, device=like.device, dtype=torch.float32) + 0.5) / count


def mean_of(z: Tensor, weight: Tensor) -> Tensor:
    """Return sum_k weight_k z_k, `[..., k, atom] x [..., k] -> [..., atom]`."""
    return (z * weight[..., None]).sum(-2)


def huber(u: Tensor, kappa: float) -> Tensor:
    """Return u^2/2 up to |u| = kappa, linear beyond, divided by kappa so that the tail's slope is 1."""
    return functional.huber_loss(u, u.new_zeros(()).expand_as(u), reduction="none", delta=kappa) / kappa
