# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls, allow-incomplete-defs, no-warn-return-any
"""Max-pooling, 3x3 at every second position, padded as TensorFlow's SAME: n rows become ceil(n / 2).

An even side is padded by one row at its end, an odd side by one at both. Of equal numbers the first wins, NaN wins
over all, both as in PyTorch.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from steadyq.device.kernels.triton import available, jit, launch, tl, triton

BLOCK = 1024
"""Numbers per program."""


def max_pool(x: Tensor) -> Tensor:
    """Pool `x[member, batch, y, x, channel]` over positions; differentiable."""
    if not available(x):
        return max_pool_reference(x)
    y: Tensor = _MaxPool.apply(x)
    return y


def max_pool_reference(x: Tensor) -> Tensor:
    """What `max_pool` computes, by PyTorch's own."""
    images = x.flatten(0, 1).permute(0, 3, 1, 2)
    return max_pool_images(images).permute(0, 2, 3, 1).unflatten(0, x.shape[:2])


def max_pool_images(x: Tensor) -> Tensor:
    """The same over `[image, channel, y, x]`: no padding before an even side, and a last window cut short."""
    height, width = x.shape[2:]
    return functional.max_pool2d(x, 3, 2, padding=(height % 2, width % 2), ceil_mode=True)


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        y, tap = run_max_pool(x)
        ctx.save_for_backward(tap)
        ctx.size = x.shape[2:4]
        return y

    @staticmethod
    def backward(ctx, dy):
        (tap,) = ctx.saved_tensors
        return run_max_pool_gradient(dy, tap, ctx.size)


@jit
def _pool_kernel(
    x, out, out_tap, pixels,
    in_h: tl.constexpr, in_w: tl.constexpr, out_h: tl.constexpr, out_w: tl.constexpr, channels: tl.constexpr,
    block_p: tl.constexpr, block_c: tl.constexpr,
):  # fmt: skip
    p = tl.program_id(0) * block_p + tl.arange(0, block_p)
    c = tl.program_id(1) * block_c + tl.arange(0, block_c)
    mask = (p < pixels)[:, None] & (c < channels)[None, :]
    y0 = (p // out_w) % out_h * 2 - in_h % 2
    x0 = p % out_w * 2 - in_w % 2
    image = (p // (out_w * out_h)).to(tl.int64)
    at = x + (image * (in_h * in_w * channels) + (y0 * in_w + x0) * channels)[:, None] + c[None, :]
    best = tl.full((block_p, block_c), float("-inf"), tl.float32)
    tap = tl.zeros((block_p, block_c), tl.int32) + (tl.where(y0 < 0, 3, 0) + tl.where(x0 < 0, 1, 0))[:, None]
    for ky in tl.static_range(3):
        for kx in tl.static_range(3):
            inside = (y0 + ky >= 0) & (y0 + ky < in_h) & (x0 + kx >= 0) & (x0 + kx < in_w)
            here = mask & inside[:, None]
            value = tl.load(at + (ky * in_w + kx) * channels, mask=here, other=float("-inf")).to(tl.float32)
            better = (value > best) | (value != value)
            best = tl.where(better, value, best)
            tap = tl.where(better, ky * 3 + kx, tap)
    to = (p.to(tl.int64) * channels)[:, None] + c[None, :]
    tl.store(out + to, best.to(out.dtype.element_ty), mask=mask)
    tl.store(out_tap + to, tap.to(tl.uint8), mask=mask)


@jit
def _pool_gradient_kernel(
    g, tap, out, pixels,
    in_h: tl.constexpr, in_w: tl.constexpr, out_h: tl.constexpr, out_w: tl.constexpr, channels: tl.constexpr,
    block_p: tl.constexpr, block_c: tl.constexpr,
):  # fmt: skip
    p = tl.program_id(0) * block_p + tl.arange(0, block_p)
    c = tl.program_id(1) * block_c + tl.arange(0, block_c)
    mask = (p < pixels)[:, None] & (c < channels)[None, :]
    y = (p // in_w) % in_h + in_h % 2
    x = p % in_w + in_w % 2
    image = (p // (in_w * in_h)).to(tl.int64)
    total = tl.zeros((block_p, block_c), tl.float32)
    for back_y in tl.static_range(2):  # a position lies in the window that begins at or before it, and in the one above
        for back_x in tl.static_range(2):
            oy = y // 2 - back_y
            ox = x // 2 - back_x
            ky = y - 2 * oy
            kx = x - 2 * ox
            seen = (oy >= 0) & (oy < out_h) & (ky < 3) & (ox >= 0) & (ox < out_w) & (kx < 3)
            here = mask & seen[:, None]
            at = (image * (out_h * out_w * channels) + (oy * out_w + ox) * channels)[:, None] + c[None, :]
            chosen = tl.load(tap + at, mask=here, other=9).to(tl.int32) == (ky * 3 + kx)[:, None]
            total += tl.where(chosen, tl.load(g + at, mask=here, other=0.0).to(tl.float32), 0.0)
    tl.store(out + (p.to(tl.int64) * channels)[:, None] + c[None, :], total.to(out.dtype.element_ty), mask=mask)


def run_max_pool(x: Tensor) -> tuple[Tensor, Tensor]:
    """Launch the forward pass; returns also which of the nine taps won, as uint8."""
    members, batch, height, width, channels = x.shape
    out = x.new_empty((members, batch, (height + 1) // 2, (width + 1) // 2, channels))
    tap = torch.empty_like(out, dtype=torch.uint8)
    _launch(_pool_kernel, (x.contiguous(), out, tap), out, x)
    return out, tap


def run_max_pool_gradient(g: Tensor, tap: Tensor, size: tuple[int, int]) -> Tensor:
    """Launch the gradient of an input of height and width `size`."""
    out = g.new_empty((*g.shape[:2], *size, g.shape[4]))
    _launch(_pool_gradient_kernel, (g.contiguous(), tap, out), out, out)
    return out


def _launch(kernel, tensors, walked: Tensor, image: Tensor) -> None:
    """A program for each block of `walked`, whose pixels are those of `image` or of what it is pooled to."""
    height, width, channels = image.shape[2:]
    block_c = min(triton.next_power_of_2(channels), 128)
    block_p = BLOCK // block_c
    pixels = walked.numel() // channels
    grid = (triton.cdiv(pixels, block_p), triton.cdiv(channels, block_c))
    pooled = ((height + 1) // 2, (width + 1) // 2)
    launch(kernel, grid, *tensors, pixels, height, width, *pooled, channels, block_p=block_p, block_c=block_c)
