"""Axis 2, estimator level: how a return is represented, averaged, backed up and regressed.

What the numbers of a network mean is known here alone: everybody else asks for values, errors and shares.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from steadyq.device.kernels.loss import quantile_huber


class Estimator(Protocol):
    """A way to represent values; holds no parameters."""

    @property
    def atoms(self) -> int:
        """Numbers predicted per action."""

    def q(self, z: Tensor) -> Tensor:
        """Mean of the predicted return, `[..., atom] -> [...]`."""

    def backup(self, z: Tensor, reward: Tensor, discount: Tensor, ceiling: Tensor) -> Tensor:
        """Bellman backup y[member, batch, atom] of z_next[member, batch, atom], held below the ceiling."""

    def loss(self, z: Tensor, y: Tensor) -> Tensor:
        """Regression loss of z towards y, `[member, batch, atom] x 2 -> [member, batch]`."""

    def value(self, y: Tensor) -> Tensor:
        """Mean return that a target stands for, `[member, batch, atom] -> [member, batch]`."""

    def held(self, y: Tensor, ceiling: Tensor) -> Tensor:
        """How much of a target the ceiling holds, in [0, 1], `[member, batch, atom] -> [member, batch]`."""

    def crossing(self, z: Tensor) -> Tensor | None:
        """Share of neighbouring quantiles in the wrong order, `[member, ...] -> [member]`; None without quantiles."""


def td_error(estimator: Estimator, z: Tensor, y: Tensor) -> Tensor:
    """Return the target's mean minus the prediction's, `[member, batch, atom] x 2 -> [member, batch]`."""
    return estimator.value(y) - estimator.q(z)


@dataclass(frozen=True)
class Scalar:
    """One number per action, regressed with the Huber loss."""

    kappa: float = 1.0

    @property
    def atoms(self) -> int:
        """One."""
        return 1

    def q(self, z: Tensor) -> Tensor:
        """Drop the atom dimension."""
        return z.squeeze(-1)

    def backup(self, z: Tensor, reward: Tensor, discount: Tensor, ceiling: Tensor) -> Tensor:
        """Return r + discount z, at most the ceiling."""
        return torch.minimum(reward[:, None] + discount[:, None] * z, ceiling)

    def loss(self, z: Tensor, y: Tensor) -> Tensor:
        """Huber loss of the single atom."""
        return huber(y - z, self.kappa).squeeze(-1)

    def value(self, y: Tensor) -> Tensor:
        """Drop the atom dimension."""
        return y.squeeze(-1)

    def held(self, y: Tensor, ceiling: Tensor) -> Tensor:
        """1 where the target is the ceiling."""
        return (y >= ceiling).float().squeeze(-1)

    def crossing(self, z: Tensor) -> Tensor | None:
        """Nothing to cross."""
        return None


@dataclass(frozen=True)
class Quantile:
    """K quantiles per action at tau_k = (k + 1/2) / K, regressed with the quantile Huber loss (Eq. l.408).

    `reduction="mean"` is the 1/K^2 the paper prints; `"sum"` sums over predicted quantiles as QR-DQN does,
    K times as large: Adam hardly notices, clipping and priorities do.
    """

    atoms: int = 51
    kappa: float = 1.0
    reduction: Literal["mean", "sum"] = "mean"

    def q(self, z: Tensor) -> Tensor:
        """Return the mean over quantiles."""
        return z.mean(-1)

    def backup(self, z: Tensor, reward: Tensor, discount: Tensor, ceiling: Tensor) -> Tensor:
        """Return r + discount z_k, each quantile at most the ceiling."""
        return torch.minimum(reward[:, None] + discount[:, None] * z, ceiling)

    def loss(self, z: Tensor, y: Tensor) -> Tensor:
        """Return sum or mean over k of mean over k' of |tau_k - 1{u < 0}| Huber(u), u = y_k' - z_k."""
        mean = quantile_huber(z, y, self.kappa)
        return mean if self.reduction == "mean" else self.atoms * mean

    def value(self, y: Tensor) -> Tensor:
        """Return the mean over quantiles."""
        return y.mean(-1)

    def held(self, y: Tensor, ceiling: Tensor) -> Tensor:
        """Share of quantiles at the ceiling."""
        return (y >= ceiling).float().mean(-1)

    def crossing(self, z: Tensor) -> Tensor | None:
        """Share of neighbours in the wrong order; a single quantile has none."""
        if self.atoms == 1:
            return None
        return (z[..., 1:] < z[..., :-1]).double().flatten(1).mean(1)


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
        moved = torch.minimum(reward[:, None] + discount[:, None] * support, self.bound(ceiling))  # [batch, atom]
        moved = moved.clamp(self.low, self.high)
        hat = (1 - (moved[:, None, :] - support[:, None]).abs() / spacing).clamp_min(0)  # [batch, atom, next atom]
        return torch.einsum("bij,mbj->mbi", hat, z.softmax(-1))

    def loss(self, z: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy between the target's probabilities and the logits."""
        return -(y * z.log_softmax(-1)).sum(-1)

    def value(self, y: Tensor) -> Tensor:
        """Return the expected return of a target's probabilities."""
        return (y * self.support(y)).sum(-1)

    def held(self, y: Tensor, ceiling: Tensor) -> Tensor:
        """Probability at the ceiling's grid point."""
        return (y * (self.support(y) >= self.bound(ceiling))).sum(-1)

    def crossing(self, z: Tensor) -> Tensor | None:
        """Probabilities have no order."""
        return None

    def bound(self, ceiling: Tensor) -> Tensor:
        """The first grid point at or above the ceiling, infinite above the grid."""
        support = self.support(ceiling)
        return torch.where(support >= ceiling, support, torch.inf).min()


def huber(u: Tensor, kappa: float) -> Tensor:
    """Return u^2/2 up to |u| = kappa, linear beyond, divided by kappa so that the tail's slope is 1."""
    size = u.abs()
    return torch.where(size <= kappa, 0.5 * u * u, kappa * (size - 0.5 * kappa)) / kappa
