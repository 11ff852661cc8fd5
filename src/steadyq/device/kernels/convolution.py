# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""Differentiable member-batched convolution through `launch.py`: single layers, and a ResNet's stem and blocks whole.

Where there is no Triton the same functions run as plain convolutions, the text to compare with.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from steadyq.device.kernels.launch import native, run_forward, run_input_gradient, run_weight_gradient
from steadyq.device.kernels.triton import available
from steadyq.device.streams import Beside


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


def trunk(x: Tensor, params: Sequence[Tensor], strides: tuple[int, ...]) -> Tensor:
    """Stem and residual blocks: `Block(x) = relu(conv2(relu(conv1(x))) + shortcut(x))`, conv1 and shortcut with the
    block's stride.

    `params` is flat: weight and bias of the stem (ReLU), then of each block's conv1, conv2 and, where it has one, 1x1
    shortcut. Equal to the same chain of `conv`, with fewer passes over memory in the backward pass.
    """
    if not available(x):
        return trunk_reference(x, params, strides)
    y: Tensor = _Trunk.apply(strides, x, *params)
    return y


def trunk_reference(x: Tensor, params: Sequence[Tensor], strides: tuple[int, ...]) -> Tensor:
    """What `trunk` computes, in plain convolutions."""
    y = conv_reference(x, params[0], params[1], relu=True)
    for stride, (w1, b1, w2, b2, *shortcut) in _blocks(strides, params):
        middle = conv_reference(y, w1, b1, stride=stride, relu=True)
        short = conv_reference(y, *shortcut, stride=stride) if shortcut else y
        y = conv_reference(middle, w2, b2, relu=True, residual=short)
    return y


def _blocks(strides: tuple[int, ...], params: Sequence[Tensor]) -> Iterator[tuple[int, Sequence[Tensor]]]:
    """Split the flat parameters, stem first, into blocks: a 1x1 shortcut's weight and bias follow where the shape
    changes.
    """
    at = 2
    for stride in strides:
        size = 6 if at + 4 < len(params) and params[at + 4].shape[-1] == 1 else 4
        yield stride, params[at : at + size]
        at += size


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


class _Trunk(torch.autograd.Function):
    """Stem and residual blocks as one node: every ReLU gate and residual sum rides in some kernel's epilogue."""

    @staticmethod
    def forward(ctx, strides: tuple[int, ...], x: Tensor, *params: Tensor) -> Tensor:
        learns = any(ctx.needs_input_grad)
        y = run_forward(x, params[0], params[1], relu=True)
        kept = [y] if learns else []
        for stride, (w1, b1, w2, b2, *shortcut) in _blocks(strides, params):
            short = run_forward(y, shortcut[0], shortcut[1], stride=stride) if shortcut else y
            middle = run_forward(y, w1, b1, stride=stride, relu=True)
            y = run_forward(middle, w2, b2, relu=True, residual=short)
            if learns:
                kept += [middle, y]
        ctx.strides, ctx.count = strides, len(params)
        ctx.save_for_backward(x, *params, *kept)
        return y

    @staticmethod
    def backward(ctx, dy):
        x, *saved = ctx.saved_tensors
        params, kept = saved[: ctx.count], saved[ctx.count :]
        blocks = list(_blocks(ctx.strides, params))
        beside = Beside(dy.device)  # weight gradients lie off the chain of input gradients
        grads: list[Any] = []
        g = torch.ops.aten.threshold_backward(dy, kept[-1], 0)
        for i, (stride, (w1, _, w2, _, *shortcut)) in reversed(list(enumerate(blocks))):
            below, middle = kept[2 * i], kept[2 * i + 1]
            with beside.reading(g):
                second = run_weight_gradient(middle, g, 3, 1)
                sides = run_weight_gradient(below, g, 1, stride) if shortcut else ()
            dm = run_input_gradient(g, w2, middle.shape[2:4], gate=middle)
            beside.join(leave=1)
            with beside.reading(dm):
                first = run_weight_gradient(below, dm, 3, stride)
            grads = [*first, *second, *sides, *grads]
            size = below.shape[2:4]
            if shortcut and stride == 2:
                g = run_input_gradient(dm, w1, size, stride=2, gate=below, side=(g, shortcut[0]))
            else:
                if shortcut:
                    g = run_input_gradient(g, shortcut[0], size, stride=stride)
                g = run_input_gradient(dm, w1, size, stride=stride, add=g, gate=below)
            beside.join(leave=1)
        dx = None
        if ctx.needs_input_grad[1]:
            dx = run_input_gradient(g, params[0], x.shape[2:4])
            dx = dx if x.shape[0] == dx.shape[0] else dx.sum(0, keepdim=True)
        stem = run_weight_gradient(x, g, params[0].shape[-1], 1)
        beside.join()
        return None, dx, *stem, *grads
