# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls, allow-incomplete-defs, no-warn-return-any
"""The two hot elementwise passes of an update, each as one pass over its data, beside the plain text it must equal.

`quantile_huber` compares every quantile with every target: K^2 terms of which neither memory nor a CPU should see
each one. `adam_` reads and writes 38 bytes per parameter, once: clip, Adam, Polyak and the low-precision copies in
one sweep.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from steadyq.value.optim import log, risen

try:
    import triton
    import triton.language as tl
except ImportError:  # Triton ships with the CUDA builds of PyTorch only
    triton = None
    tl = None

jit: Any = (lambda f: f) if triton is None else triton.jit
BLOCK = 1024
"""Parameters per program of `adam_`; the grain of its `segment` map."""
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
    ordered = y.to(z.dtype).sort(-1).values
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
    _quantile_kernel[(loss.numel(),)](z, y, loss, slope, atoms, targets, float(kappa), block_k, block_j)
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


def available(x: Tensor) -> bool:
    """Whether the kernels can take `x`: Triton is there, and a GPU, or Triton's interpreter."""
    return triton is not None and (x.is_cuda or type(_quantile_kernel).__name__ == "InterpretedFunction")


def quantile_huber(z: Tensor, y: Tensor, kappa: float = 1.0) -> Tensor:
    """Quantile Huber loss `[member, batch]` of `z[member, batch, atom]` against `y[member, batch, atom]`, in z alone.

    Equal to `quantile_huber_reference`, gradient included, without its K x K intermediate: pairs stay in registers on
    a GPU, and on a CPU sorting the targets replaces them.
    """
    loss: Tensor = _QuantileHuber.apply(z, y.detach(), kappa)
    return loss


@jit
def _risen(x):
    """1 - exp(x) for x < 0; near 0 by its series, where the difference would have few digits."""
    return tl.where(x > -0.01, -x * (1.0 + x / 2 * (1.0 + x / 3)), 1.0 - tl.exp(x))


@jit
def _adam_kernel(
    param, mean, square, grad, target, shadow, target_shadow, step, scale, lr, segment,
    size, count, start, tensors, rest1, rest2, log1, log2, eps, tau,
    has_target: tl.constexpr, has_shadow: tl.constexpr, has_target_shadow: tl.constexpr, has_segment: tl.constexpr,
    block: tl.constexpr,
):  # fmt: skip
    chunk = tl.program_id(0)
    m = tl.program_id(1).to(tl.int64)
    i = chunk.to(tl.int64) * block + tl.arange(0, block)
    mask = i < count
    at = m * size + start + i
    which = 0
    if has_segment:
        which = tl.load(segment + start // block + chunk)
    t = tl.load(step + m * tensors + which).to(tl.float32)
    rate = tl.load(lr).to(tl.float32)
    g = tl.load(grad + m * count + i, mask=mask, other=0.0).to(tl.float32) * tl.load(scale + m).to(tl.float32)
    p = tl.load(param + at, mask=mask, other=0.0)
    a = tl.load(mean + at, mask=mask, other=0.0)
    b = tl.load(square + at, mask=mask, other=0.0)
    a += rest1 * (g - a)
    b += rest2 * (g * g - b)
    p -= (rate / _risen(t * log1)) * a / (tl.sqrt(b) / tl.sqrt(_risen(t * log2)) + eps)
    tl.store(param + at, p, mask=mask)
    tl.store(mean + at, a, mask=mask)
    tl.store(square + at, b, mask=mask)
    if has_shadow:
        tl.store(shadow + at, p.to(shadow.dtype.element_ty), mask=mask)
    if has_target:
        q = tl.load(target + at, mask=mask, other=0.0)
        q += tau * (p - q)
        tl.store(target + at, q, mask=mask)
        if has_target_shadow:
            tl.store(target_shadow + at, q.to(target_shadow.dtype.element_ty), mask=mask)


def adam_(
    param: Tensor, mean: Tensor, square: Tensor, grad: Tensor, *, step: Tensor, scale: Tensor, lr: Tensor,
    betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
    target: Tensor | None = None, tau: float = 0.005, shadow: Tensor | None = None, target_shadow: Tensor | None = None,
    segment: Tensor | None = None, start: int = 0,
) -> None:  # fmt: skip
    """One optimizer step of every member in place: clip scale, Adam, Polyak target and low-precision copies.

    `param`, `mean`, `square`, `target` are float32 `[member, n]`, contiguous; `grad` and the shadows any float type.
    `grad[member, count]` may be that of a part: of the parameters from `start`, a multiple of BLOCK, on.
    `scale[member]` multiplies the gradient. `step[member, tensor]` counts updates of that member's tensor since its
    moments were last cleared, this one included; with more than one tensor, `segment[n / BLOCK]` (int32) names the
    tensor of each run of BLOCK parameters.
    """
    if not available(param):
        adam_reference_(
            param, mean, square, grad, step=step, scale=scale, lr=lr, betas=betas, eps=eps, target=target,
            tau=tau, shadow=shadow, target_shadow=target_shadow, segment=segment, start=start,
        )  # fmt: skip
        return
    members, count = grad.shape
    _adam_kernel[(triton.cdiv(count, BLOCK), members)](
        param, mean, square, grad, param if target is None else target, param if shadow is None else shadow,
        param if target_shadow is None else target_shadow, step, scale, lr, step if segment is None else segment,
        param.shape[1], count, start, step.numel() // members,
        1 - betas[0], 1 - betas[1], log(betas[0]), log(betas[1]), eps, tau,
        has_target=target is not None, has_shadow=shadow is not None, has_target_shadow=target_shadow is not None,
        has_segment=segment is not None, block=BLOCK, num_warps=4,
    )  # fmt: skip


def adam_reference_(
    param: Tensor, mean: Tensor, square: Tensor, grad: Tensor, *, step: Tensor, scale: Tensor, lr: Tensor,
    betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
    target: Tensor | None = None, tau: float = 0.005, shadow: Tensor | None = None, target_shadow: Tensor | None = None,
    segment: Tensor | None = None, start: int = 0,
) -> None:  # fmt: skip
    """What `adam_` computes, in plain PyTorch."""
    members, count = grad.shape
    param, mean, square = (part[:, start : start + count] for part in (param, mean, square))
    target, shadow, target_shadow = (
        None if part is None else part[:, start : start + count] for part in (target, shadow, target_shadow)
    )
    t = step.view(members, -1).to(torch.float32)
    if segment is not None:
        t = t[:, segment[start // BLOCK :].long()].repeat_interleave(BLOCK, 1)[:, :count]
    g = grad.to(torch.float32) * scale[:, None]
    mean.lerp_(g, 1 - betas[0])
    square.mul_(betas[1]).addcmul_(g, g, value=1 - betas[1])
    param.sub_(lr / risen(betas[0], t) * mean / (square.sqrt() / risen(betas[1], t).sqrt() + eps))
    if shadow is not None:
        shadow.copy_(param)
    if target is not None:
        target.lerp_(param, tau)
        if target_shadow is not None:
            target_shadow.copy_(target)
