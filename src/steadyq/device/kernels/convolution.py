# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""Differentiable member-batched convolution through `launch.py`, layer by layer; `trunk.py` joins them.

Where there is no Triton the same functions run as plain convolutions, the text to compare with.
"""

import torch
from torch import Tensor
from torch.nn import functional

from steadyq.device.kernels.launch import native, run_forward, run_input_gradient, run_weight_gradient
from steadyq.device.kernels.triton import available


def conv(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, stride: int = 1, padding: int | None = None,
    relu: bool = False, residual: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Convolve each member's activations with its own weights: `y = relu(conv(x) + bias + residual)`.

    `x[member, batch, y, x, channel]`, or `[1, batch, ...]` shared by all members; `weight[member, out, in, k, k]`;
    `bias[member, out]`; padding k // 2 unless told. Differentiable in x, weight, bias and residual. What the kernels
    are not written for (`launch.native`: even sizes, other paddings and strides, such as the 8x8 at stride 4 of the
    Nature DQN) runs as PyTorch's grouped convolution.
    """
    padding = weight.shape[-1] // 2 if padding is None else padding
    if not native(weight.shape[-1], stride, padding):
        return conv_grouped(x, weight, bias, stride=stride, padding=padding, relu=relu, residual=residual)
    if not available(x):
        return conv_reference(x, weight, bias, stride=stride, relu=relu, residual=residual)
    y: Tensor = _Conv.apply(x, weight, bias, residual, stride, relu)
    return y


def conv_reference(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, stride: int = 1, padding: int | None = None,
    relu: bool = False, residual: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """What `conv` computes, as one plain convolution per member."""
    images = x.permute(0, 1, 4, 2, 3).contiguous()  # PyTorch 2.13's channels-last backward on a CPU breaks its memory
    images = images.expand(weight.shape[0], *images.shape[1:])
    padding = weight.shape[-1] // 2 if padding is None else padding
    y = torch.stack(
        [
            functional.conv2d(images[m], w, None if bias is None else bias[m], stride, padding)
            for m, w in enumerate(weight)
        ]
    ).permute(0, 1, 3, 4, 2)
    if residual is not None:
        y = y + residual
    return functional.relu(y) if relu else y


def conv_grouped(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, stride: int, padding: int, relu: bool = False,
    residual: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The same as one grouped convolution."""
    members, shown = weight.shape[0], x.shape[0]
    side = x.permute(1, 0, 4, 2, 3).flatten(1, 2).contiguous()
    shift = None if bias is None else bias.flatten()
    groups = 1 if shown == 1 else members
    y = functional.conv2d(side, weight.flatten(0, 1), shift, stride, padding, groups=groups)
    y = y.unflatten(1, (members, -1)).permute(1, 0, 3, 4, 2)
    if residual is not None:
        y = y + residual
    return functional.relu(y) if relu else y


class _Conv(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, residual, stride: int, relu: bool) -> Tensor:
        y = run_forward(x, weight, bias, stride=stride, relu=relu, residual=residual)
        ctx.save_for_backward(x, weight, y if relu else None)
        ctx.stride, ctx.has_bias, ctx.has_residual = stride, bias is not None, residual is not None
        return y

    @staticmethod
    def backward(ctx, dy):
        x, weight, y = ctx.saved_tensors
        g = dy if y is None else torch.ops.aten.threshold_backward(dy, y, 0)
        dx = dw = db = None
        if ctx.needs_input_grad[0]:
            dx = run_input_gradient(g, weight, x.shape[2:4], stride=ctx.stride)
            dx = dx if x.shape[0] == dx.shape[0] else dx.sum(0, keepdim=True)
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            dw, db = run_weight_gradient(x, g, weight.shape[-1], ctx.stride)
        return dx, dw, db if ctx.has_bias else None, g if ctx.has_residual else None, None, None
