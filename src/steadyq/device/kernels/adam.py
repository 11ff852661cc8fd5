# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls, allow-incomplete-defs, no-warn-return-any
"""The optimizer's pass over all parameters: clip, Adam, Polyak and the low-precision copies in one sweep.

It reads and writes 38 bytes per parameter, once; beside it the plain text that it must equal.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from steadyq.device.kernels.triton import available, jit, launch, tl, triton

BLOCK = 1024
"""Parameters per program of `adam_`; the grain of its `segment` map."""


def risen(beta: float, steps: Tensor) -> Tensor:
    """How much of a gradient's size a moment shows after `steps`: 1 - beta^steps, exact also for beta close to 1."""
    return -torch.expm1(steps * log(beta))


def log(beta: float) -> float:
    """Natural logarithm, of 0 as well."""
    return math.log(beta) if beta else -math.inf


@jit
def _risen(x):
    """1 - exp(x) for x < 0; near 0 by its series, where the difference would have few digits."""
    return tl.where(x > -0.01, -x * (1.0 + x / 2 * (1.0 + x / 3)), 1.0 - tl.exp(x))


@jit
def _adam_kernel(
    param, mean, square, grad, target, shadow, target_shadow, step, scale, lr, active, decay, segment,
    size, count, start, tensors, rest1, rest2, log1, log2, eps, tau,
    has_target: tl.constexpr, has_shadow: tl.constexpr, has_target_shadow: tl.constexpr, has_segment: tl.constexpr,
    has_active: tl.constexpr, has_decay: tl.constexpr, own_steps: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    chunk = tl.program_id(0)
    m = tl.program_id(1).to(tl.int64)
    i = chunk.to(tl.int64) * block + tl.arange(0, block)
    mask = i < count
    at = m * size + start + i
    which = 0
    if has_segment:
        which = tl.load(segment + start // block + chunk)
    if own_steps:
        t = tl.load(step + at, mask=mask, other=1.0).to(tl.float32)
    else:
        t = tl.load(step + m * tensors + which).to(tl.float32)
    rate = tl.load(lr + m).to(tl.float32)
    moves = mask
    if has_active:
        moves = i < tl.where(tl.load(active + m) > 0, count, 0)
    g = tl.load(grad + m * count + i, mask=mask, other=0.0).to(tl.float32) * tl.load(scale + m).to(tl.float32)
    p = tl.load(param + at, mask=mask, other=0.0)
    a = tl.load(mean + at, mask=mask, other=0.0)
    b = tl.load(square + at, mask=mask, other=0.0)
    a += rest1 * (g - a)
    b += rest2 * (g * g - b)
    new = p
    if has_decay:
        new = p * (1.0 - rate * tl.load(decay + which))
    new -= (rate / _risen(t * log1)) * a / (tl.sqrt(b) / tl.sqrt(_risen(t * log2)) + eps)
    p = tl.where(moves, new, p) if has_active else new
    tl.store(param + at, p, mask=mask)
    tl.store(mean + at, a, mask=moves)
    tl.store(square + at, b, mask=moves)
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
    betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, active: Tensor | None = None,
    decay: Tensor | None = None, target: Tensor | None = None, tau: float = 0.005, shadow: Tensor | None = None,
    target_shadow: Tensor | None = None, segment: Tensor | None = None, start: int = 0,
) -> None:  # fmt: skip
    """One optimizer step of every member in place: clip scale, Adam, Polyak target and low-precision copies.

    `param`, `mean`, `square`, `target` are float32 `[member, n]`, contiguous; `grad` and the shadows any float type.
    `grad[member, count]` may be that of a part: of the parameters from `start`, a multiple of BLOCK, on.
    `scale[member]` multiplies the gradient, `lr[member]` is the learning rate. `step[member, tensor]` counts updates of
    that member's tensor since its moments were last cleared, this one included; with more than one tensor,
    `segment[n / BLOCK]` (int32) names the tensor of each run of BLOCK parameters. `step[member, n]` counts for each
    parameter alone. Members whose `active[member]` is 0 stay as they are, but for their targets. `decay[tensor]`
    shrinks parameters by that share of the rate, apart from the gradient (AdamW).
    """
    if not available(param):
        adam_reference_(
            param, mean, square, grad, step=step, scale=scale, lr=lr, betas=betas, eps=eps, active=active,
            decay=decay, target=target, tau=tau, shadow=shadow, target_shadow=target_shadow, segment=segment,
            start=start,
        )  # fmt: skip
        return
    members, count = grad.shape
    launch(
        _adam_kernel, (triton.cdiv(count, BLOCK), members),
        param, mean, square, grad, param if target is None else target, param if shadow is None else shadow,
        param if target_shadow is None else target_shadow, step, scale, lr, scale if active is None else active,
        scale if decay is None else decay, step if segment is None else segment,
        param.shape[1], count, start, step.numel() // members,
        1 - betas[0], 1 - betas[1], log(betas[0]), log(betas[1]), eps, tau,
        has_target=target is not None, has_shadow=shadow is not None, has_target_shadow=target_shadow is not None,
        has_segment=segment is not None, has_active=active is not None, has_decay=decay is not None,
        own_steps=step.shape == param.shape, block=BLOCK, num_warps=4,
    )  # fmt: skip


def adam_reference_(
    param: Tensor, mean: Tensor, square: Tensor, grad: Tensor, *, step: Tensor, scale: Tensor, lr: Tensor,
    betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, active: Tensor | None = None,
    decay: Tensor | None = None, target: Tensor | None = None, tau: float = 0.005, shadow: Tensor | None = None,
    target_shadow: Tensor | None = None, segment: Tensor | None = None, start: int = 0,
) -> None:  # fmt: skip
    """What `adam_` computes, in plain PyTorch."""
    members, count = grad.shape
    own_steps = step.shape == param.shape
    param, mean, square = (part[:, start : start + count] for part in (param, mean, square))
    target, shadow, target_shadow = (
        None if part is None else part[:, start : start + count] for part in (target, shadow, target_shadow)
    )

    def spread(by_tensor: Tensor) -> Tensor:
        """From one number per tensor to one per parameter."""
        if segment is None:
            return by_tensor
        return by_tensor[..., segment[start // BLOCK :].long()].repeat_interleave(BLOCK, -1)[..., :count]

    t = (step[:, start : start + count] if own_steps else spread(step.view(members, -1))).to(torch.float32)
    g = grad.to(torch.float32) * scale[:, None]
    moves = torch.ones(members, 1, dtype=torch.bool, device=param.device) if active is None else active[:, None] > 0
    new_mean = mean.lerp(g, 1 - betas[0])
    new_square = (square * betas[1]).addcmul_(g, g, value=1 - betas[1])
    kept = param if decay is None else param * (1 - lr[:, None] * spread(decay[None]))
    new = kept - lr[:, None] / risen(betas[0], t) * new_mean / (new_square.sqrt() / risen(betas[1], t).sqrt() + eps)
    for old, moved in ((mean, new_mean), (square, new_square), (param, new)):
        old.copy_(torch.where(moves, moved, old))
    if shadow is not None:
        shadow.copy_(param)
    if target is not None:
        target.lerp_(param, tau)
        if target_shadow is not None:
            target_shadow.copy_(target)
