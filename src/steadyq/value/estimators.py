"""Axis 2, estimator level: how a return is represented, averaged, backed up and regressed."""

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
        """Mean of a distribution, `[..., atom] -> [...]`."""

    def backup(self, z: Tensor, reward: Tensor, discount: Tensor, ceiling: Tensor) -> Tensor:
        """Bellman backup of z_next[member, batch, atom], held below the ceiling."""

    def loss(self, z: Tensor, y: Tensor) -> Tensor:
        """Regression loss of z towards y, `[member, batch, atom] x 2 -> [member, batch]`."""


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


def huber(u: Tensor, kappa: float) -> Tensor:
    """Return u^2/2 up to |u| = kappa, linear beyond, divided by kappa so that the tail's slope is 1."""
    size = u.abs()
    return torch.where(size <= kappa, 0.5 * u * u, kappa * (size - 0.5 * kappa)) / kappa
