"""Spectral normalisation: weights divided by their largest singular value, which power iteration follows as they learn.

A normalised layer has two more tensors, each member's left and right singular vector so far. One iteration an update is
enough because weights move little (Miyato et al. 2018); the vectors get no gradient.
"""

import torch
from torch import Tensor
from torch.nn import functional

VECTORS = ("left", "right")
SETTLING = 15
"""Iterations after a weight was drawn."""
LEAST = 1e-12


def divided(weight: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """weight[member, out, ...] over left^T W right, through which its gradient passes."""
    matrix = weight.flatten(2).float()
    value = (left.detach() * (matrix @ right.detach()[..., None])[..., 0]).sum(1)
    return weight / value.clamp_min(LEAST).to(weight.dtype).view(-1, *[1] * (weight.dim() - 1))


@torch.no_grad()
def iterated(weight: Tensor, left: Tensor, right: Tensor, times: int) -> tuple[Tensor, Tensor]:
    """The vectors after so many more power iterations."""
    matrix = weight.flatten(2).float()
    for _ in range(times):
        left = functional.normalize((matrix @ right[..., None])[..., 0], dim=1, eps=LEAST)
        right = functional.normalize((matrix.mT @ left[..., None])[..., 0], dim=1, eps=LEAST)
    return left, right
