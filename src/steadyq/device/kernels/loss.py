# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls, allow-incomplete-defs, no-warn-return-any
"""The quantile Huber loss, which compares every quantile with every target: K^2 terms of which neither memory nor a CPU
should see each one. Beside it the plain text that it must equal.
"""

from __future__ import annotations

import torch
from torch import Tensor

from steadyq.device.kernels.triton import available, jit, launch, tl

TILE = 64 * 64
"""Pairs of quantiles that a program holds at a time: more would not fit into registers."""


def quantile_huber_reference(z: Tensor, y: Tensor, kappa: float = 1.0) -> Tensor:
    """The quantile Huber loss as printed, all pairs at once: `z[..., k]` predicted, `y[..., j]` target, `[...]` out.

    With u = y_j - z_k and tau_k = (k + 1/2) / K, the mean over pairs of |tau_k - 1{u < 0}| Huber_kappa(u) / kappa.
    """
    k = z.shape[-1]
    tau = (torch.arange(k, device=z.device, dtype=z.dtype) + 0.5) / k
    u = y.detach().unsqueeze(-2) - z.unsqueeze(-1)  # [..., k, j]
    size = u.abs()
    huber = torch.where(size <= kappa, 0.5 * u * u, kappa * (size - 0.5 * kappa))
    return ((tau.unsqueeze(-1) - (u < 0).to(z.dtype)).abs() * huber).mean((-2, -1)) / kappa


def _sorted_quantile_huber(z: Tensor, y: Tensor, kappa: float) -> tuple[Tensor, Tensor]:
    """Loss and its gradient in z, exactly, in O(K log K).

    Sorted targets fall into four runs around z_k, cut at z_k - kappa, z_k and z_k + kappa; on each the loss is a
    polynomial in z_k whose coefficients are the run's count, sum and sum of squares. Prefix sums are in float64: a
    run's sum of squares is a difference of large numbers.
    """
    atoms = z.shape[-1]
    ordered = y.to(z.dtype).flatten(0, -2).sort(-1).values.view_as(y)  # row by row, however y lies in memory
    count = torch.searchsorted(
        ordered, torch.cat((z - kappa, z, z + kappa), -1)
    )  # continuous at the outer cuts: rounding is free
    wide, targets = z.double(), ordered.double()
    prefix = targets.new_zeros((2, *targets.shape[:-1], targets.shape[-1] + 1))
    torch.cumsum(torch.stack((targets, targets * targets)), -1, out=prefix[..., 1:])
    sums = prefix.gather(-1, count.expand(2, *count.shape)).unflatten(-1, (3, atoms))
    (s_low, s_mid, s_high), (q_low, q_mid, q_high) = sums[0].unbind(-2), sums[1].unbind(-2)
    n_low, n_mid, n_high = count.unflatten(-1, (3, atoms)).to(wide.dtype).unbind(-2)
    last = prefix[..., -1:]
    total = last[0]
    n_far = targets.shape[-1] - n_high
    tau = (torch.arange(atoms, device=z.device, dtype=torch.float64) + 0.5) / atoms
    # per unit of weight, below z (weight 1 - tau) and at or above it (weight tau): slope in z, then value
    n_near, s_near = n_mid - n_low, s_mid - s_low
    m_near, t_near = n_high - n_mid, s_high - s_mid
    slope_under = kappa * n_low + (wide * n_near - s_near)
    slope_over = kappa * n_far + (t_near - wide * m_near)
    under = kappa * (wide * n_low - s_low - 0.5 * kappa * n_low) + 0.5 * (
        q_mid - q_low - wide * (2 * s_near - wide * n_near)
    )
    over = kappa * (total - s_high - wide * n_far - 0.5 * kappa * n_far) + 0.5 * (
        q_high - q_mid - wide * (2 * t_near - wide * m_near)
    )
    scale = 1.0 / (kappa * atoms * targets.shape[-1])
    loss = (under + tau * (over - under)).sum(-1) * scale
    slope = (slope_under - tau * (slope_over + slope_under)) * scale
    return loss.clamp_min(0).to(z.dtype), slope.to(z.dtype)  # sums of large squares may cancel to just below zero


@jit
def _quantile_kernel(
    z, y, loss, slope, atoms, targets, kappa, block_k: tl.constexpr, block_j: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, block_k)
    a = tl.load(z + row * atoms + k, mask=k < atoms, other=0.0).to(tl.float32)
    tau = (k.to(tl.float32) + 0.5) / atoms
    total = tl.zeros((block_k,), tl.float32)
    pull = tl.zeros((block_k,), tl.float32)
    for first in range(0, targets, block_j):
        j = first + tl.arange(0, block_j)
        b = tl.load(y + row * targets + j, mask=j < targets, other=0.0).to(tl.float32)
        u = b[None, :] - a[:, None]
        size = tl.abs(u)
        pair = (k < atoms)[:, None] & (j < targets)[None, :]
        weight = tl.where(pair, tl.where(u < 0, 1.0 - tau[:, None], tau[:, None] + 0.0 * u), 0.0)
        huber = tl.where(size <= kappa, 0.5 * u * u, kappa * (size - 0.5 * kappa))
        push = tl.where(size <= kappa, u, tl.where(u < 0, -kappa, kappa))
        total += tl.sum(weight * huber, 1)
        pull -= tl.sum(weight * push, 1)
    scale = 1.0 / (kappa * atoms * targets)
    tl.store(loss + row, (tl.sum(total, 0) * scale).to(loss.dtype.element_ty))
    tl.store(slope + row * atoms + k, (pull * scale).to(slope.dtype.element_ty), mask=k < atoms)


def _quantile_huber(z: Tensor, y: Tensor, kappa: float) -> tuple[Tensor, Tensor]:
    if not available(z):
        return _sorted_quantile_huber(z, y, kappa)
    z, y = z.contiguous(), y.contiguous()
    loss, slope = z.new_empty(z.shape[:-1]), torch.empty_like(z)
    atoms, targets = z.shape[-1], y.shape[-1]
    block_k, whole = (max(16, 1 << (n - 1).bit_length()) for n in (atoms, targets))
    block_j = min(whole, max(1, TILE // block_k))
    launch(_quantile_kernel, (loss.numel(),), z, y, loss, slope, atoms, targets, float(kappa), block_k, block_j)
    return loss, slope


class _QuantileHuber(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z, y, kappa: float) -> Tensor:
        loss, slope = _quantile_huber(z, y, kappa)
        ctx.save_for_backward(slope)
        return loss

    @staticmethod
    def backward(ctx, grad):
        (slope,) = ctx.saved_tensors
        return grad.unsqueeze(-1) * slope, None, None


def quantile_huber(z: Tensor, y: Tensor, kappa: float = 1.0) -> Tensor:
    """Quantile Huber loss `[member, batch]` of `z[member, batch, atom]` against `y[member, batch, atom]`, in z alone.

    Equal to `quantile_huber_reference`, gradient included, without its K x K intermediate: pairs stay in registers on
    a GPU, and on a CPU sorting the targets replaces them.
    """
    loss: Tensor = _QuantileHuber.apply(z, y.detach(), kappa)
    return loss
