# mypy: allow-untyped-calls
"""Launches of the member-batched convolutions: shapes, strides and grids of the kernels in `programs.py`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from steadyq.device.kernels.programs import (
    collect_kernel,
    spread_kernel,
    strip_kernel,
    tile_kernel,
    weight_strip_kernel,
    weight_tile_kernel,
)
from steadyq.device.kernels.tiles import MEASURED, Config, config_for, power, precision
from steadyq.device.kernels.triton import launch, triton
from steadyq.errors import UserError


def native(kernel: int, stride: int, padding: int) -> bool:
    """Whether the kernels are written for a convolution: an odd size padded by half of it, strided by 1; or by 2, up to
    3x3.
    """
    return kernel % 2 == 1 and padding == kernel // 2 and (stride == 1 or (stride == 2 and kernel <= 3))


def _check(kernel: int, stride: int) -> None:
    if not native(kernel, stride, kernel // 2):
        raise ValueError(f"the kernels are not written for a {kernel}x{kernel} convolution at stride {stride}")


def _out_size(size: int, kernel: int, stride: int) -> int:
    return (size + 2 * (kernel // 2) - kernel) // stride + 1


def _readable(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _matching(x: Tensor | None, like: Tensor) -> Tensor | None:
    if x is None or (x.stride() == like.stride() and x.shape == like.shape):
        return x
    return x.new_empty_strided(like.shape, like.stride()).copy_(x)


def _packed(weight: Tensor) -> Tensor:
    """Weights as `[member, out, ky, kx, in]`, each member's in that order in memory; free when kept that way."""
    packed = weight.permute(0, 1, 3, 4, 2)
    return packed if packed[0].is_contiguous() else packed.contiguous()


def _steps(x: Tensor, members: int) -> tuple[int, int, int, int]:
    """Strides of member, image, row and pixel; an input shared by the members has member stride 0."""
    if x.shape[1] * x.stride(1) >= 2**31:
        raise UserError(f"a batch of {x.shape[1]} is too large for the kernels (offsets of 32 bits): make it smaller")
    return (0 if x.shape[0] == 1 and members > 1 else x.stride(0), x.stride(1), x.stride(2), x.stride(3))


def _launch(kernel: Any, grid: tuple[int, ...], *args: Any, num_stages: int, **options: Any) -> None:
    """Launch with the deepest pipeline, up to `num_stages`, that this GPU's shared memory holds."""
    for stages in range(num_stages, 0, -1):
        try:
            launch(kernel, grid, *args, num_stages=stages, **options)
            return
        except triton.runtime.errors.OutOfResources:
            if stages == 1:
                raise


def _strip_sizes(
    config: Config, members: int, batch: int, height: int, width: int, channels: int, outputs: int
) -> tuple[int, int, dict[str, int]]:
    """Column tiles per member, strips per column, and the strip kernels' sizes."""
    padded, wide = 1 << (channels - 1).bit_length(), 1 << (outputs - 1).bit_length()
    if config.pair:
        wide = max(wide, 8)
        columns, block_k, block_n = (width + 1) // 2, power(4 * padded), 2 * wide
    else:
        wide = max(wide, 16)
        columns, block_k, block_n = width, power(channels), wide
    tiles = triton.cdiv(batch * columns, config.block_m)
    rows = max(2, min(config.rows, height, triton.cdiv(height * members * tiles, 264)))
    sizes = {
        "outputs": outputs, "padded": padded, "wide": wide, "rows": rows, "pair": config.pair,
        "block_m": config.block_m, "block_n": block_n, "block_k": block_k,
    }  # fmt: skip
    return tiles, triton.cdiv(height, rows), sizes


def _run_product(
    x: Tensor, packed: Tensor, bias: Tensor | None, add: Tensor | None, gate: Tensor | None, out: Tensor,
    stride: int, relu: bool, flip: bool, config: Config | None, gate_alone: bool = False,
) -> None:  # fmt: skip
    members, outputs, kernel, _, channels = packed.shape
    w_sm, w_so, w_sy, w_sx, w_si = packed.stride()
    if flip:
        packed = packed[0, 0, -1, -1]  # the last tap is the first
        channels, outputs = outputs, channels
        w_strides = (w_sm, w_si, w_so, -w_sy, -w_sx)
    else:
        w_strides = (w_sm, w_so, w_si, w_sy, w_sx)
    batch, in_h, in_w = x.shape[1:4]
    out_h, out_w = out.shape[2:4]
    config = config or config_for("input" if flip else "forward", kernel, stride, in_h, channels, outputs, x.dtype)
    bias_sm = 0 if bias is None else bias.stride(0)
    pointers = (
        x,
        packed,
        out if bias is None else bias,
        out if add is None else add,
        out if gate is None else gate,
        out,
    )
    strides = (*_steps(x, members), *w_strides, *_steps(out, members))
    flags: dict[str, Any] = {
        "relu": relu, "has_bias": bias is not None, "has_add": add is not None, "has_gate": gate is not None,
        "gate_alone": gate_alone, "precision": precision(x.dtype),
        "num_warps": config.warps, "num_stages": config.stages,
    }  # fmt: skip
    if config.strip:
        tiles, strips, sizes = _strip_sizes(config, members, batch, in_h, in_w, channels, outputs)
        _launch(
            strip_kernel, (members * tiles * strips,), *pointers,
            batch, bias_sm, *strides, in_h, in_w, channels, **sizes, **flags
        )  # fmt: skip
    else:
        block_n = min(config.block_n, power(outputs))
        grid = (members * triton.cdiv(batch * out_h * out_w, config.block_m) * triton.cdiv(outputs, block_n),)
        _launch(
            tile_kernel, grid, *pointers,
            batch, bias_sm, *strides, in_h, in_w, out_h, out_w, channels, outputs, kernel, stride,
            block_m=config.block_m, block_n=block_n, block_k=min(config.block_k, power(channels)), **flags,
        )  # fmt: skip


def run_forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, *, stride: int = 1, relu: bool = False,
    residual: Tensor | None = None, config: Config | None = None,
) -> Tensor:  # fmt: skip
    """Launch the forward pass; `config` overrides the table."""
    _check(weight.shape[-1], stride)
    x = _readable(x)
    out = x.new_empty(_shape(x, weight, stride))
    _run_product(x, _packed(weight), bias, _matching(residual, out), None, out, stride, relu, False, config)
    return out


def run_input_gradient(
    g: Tensor, weight: Tensor, size: Sequence[int], *, stride: int = 1, add: Tensor | None = None,
    gate: Tensor | None = None, gate_alone: bool = False, side: tuple[Tensor, Tensor] | None = None,
    config: Config | None = None,
) -> Tensor:  # fmt: skip
    """Launch the gradient of an input of height and width `size`: `(gradient + add) * (gate > 0)`, or, where the gate
    is for the gradient alone, `gradient * (gate > 0) + add`.

    At stride 2, `side` adds that of a 1x1 shortcut over the same input: the gradient at its output, and its weight.
    """
    packed = _packed(weight)
    members, outputs, kernel, _, channels = packed.shape
    _check(kernel, stride)
    g = _readable(g)
    height, width = size
    out = g.new_empty((members, g.shape[1], height, width, channels))
    add, gate = _matching(add, out), _matching(gate, out)
    if stride == 1:
        if side is not None:
            raise ValueError("at stride 1 the shortcut's input gradient is a convolution of its own: pass it as `add`")
        _run_product(g, packed, None, add, gate, out, 1, False, True, config, gate_alone)
        return out
    half = ((height + 1) // 2) * ((width + 1) // 2)
    if config is None:
        config = config_for("spread", kernel, stride, height, channels, outputs, g.dtype)
        many = members * g.shape[1] * half * triton.cdiv(channels, 32) > 2**17
        if many and g.dtype != torch.float32 and ("spread", kernel, stride, height, channels, outputs) not in MEASURED:
            config = replace(config, block_m=128)  # enough programs are left
    short, short_weight = (g, packed) if side is None else (_matching(side[0], g), _packed(side[1]))
    block_n = min(config.block_n, power(channels))
    grid = (members * triton.cdiv(g.shape[1] * half, config.block_m) * triton.cdiv(channels, block_n),)
    w_sm, w_so, w_sy, w_sx, w_si = packed.stride()
    _launch(
        spread_kernel, grid, g, packed, short, short_weight,
        out if add is None else add, out if gate is None else gate, out, g.shape[1],
        short_weight.stride(0), *_steps(g, members),
        w_sm, w_si, w_so, w_sy, w_sx, *_steps(out, members),
        height, width, g.shape[2], g.shape[3], channels, outputs, kernel,
        has_side=side is not None, has_add=add is not None, has_gate=gate is not None, gate_alone=gate_alone,
        block_m=config.block_m, block_n=block_n, block_k=min(config.block_k, power(outputs)),
        precision=precision(g.dtype), num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
    return out


def run_weight_gradient(
    x: Tensor, g: Tensor, kernel: int, stride: int, config: Config | None = None
) -> tuple[Tensor, Tensor]:
    """Launch the weight and bias gradients, `[member, out, in, ky, kx]` and `[member, out]`."""
    _check(kernel, stride)
    x, g = _readable(x), _readable(g)
    members, batch, out_h, out_w, outputs = g.shape
    in_h, in_w, channels = x.shape[2:]
    config = config or config_for("weight", kernel, stride, in_h, channels, outputs, x.dtype)
    taps = kernel * kernel * channels
    weight, bias = x.new_empty((members, outputs, kernel, kernel, channels)), x.new_empty((members, outputs))
    strides = (*_steps(x, members), *_steps(g, members))
    options: dict[str, Any] = {"precision": precision(x.dtype), "num_warps": config.warps, "num_stages": config.stages}
    if config.strip:
        *tiles, sizes = _strip_sizes(config, members, batch, in_h, in_w, channels, outputs)
        grid = (*tiles, members)
        slots = tiles[0] * tiles[1] * (2 if config.pair else 1)
    else:
        images = min(1 << (batch - 1).bit_length(), config.block_k)
        steps = triton.cdiv(batch, images) * out_h * triton.cdiv(out_w, config.block_k // images)
        block_m, block_n = min(config.block_m, power(taps)), min(config.block_n, power(outputs))
        tiles_n = triton.cdiv(taps, block_m) * triton.cdiv(outputs, block_n)
        slots = max(1, min(round(config.programs / (tiles_n * members)), 64, steps))
        grid = (tiles_n, slots, members)
    if slots == 1:
        part, part_bias = weight, bias
    else:
        part = x.new_empty((members, slots, outputs, taps), dtype=torch.float32)
        part_bias = x.new_empty((members, slots, outputs), dtype=torch.float32)
    if config.strip:
        _launch(
            weight_strip_kernel, grid, x, g, part, part_bias,
            batch, *strides, in_h, in_w, channels, **sizes, **options
        )  # fmt: skip
    else:
        _launch(
            weight_tile_kernel, grid, x, g, part, part_bias,
            batch, *strides, in_h, in_w, out_h, out_w, channels, outputs,
            kernel, stride, images=images, splits=slots, block_m=block_m, block_n=block_n, block_k=config.block_k,
            **options,
        )  # fmt: skip
    if slots > 1:
        size, block = outputs * taps, 32 if slots > 8 else 512
        grid = (triton.cdiv(size, block) + triton.cdiv(outputs, block), members)
        block_s = min(64, 1 << (slots - 1).bit_length())
        launch(collect_kernel, grid, part, part_bias, weight, bias, slots, size, outputs, block_s=block_s, block=block)
    return weight.permute(0, 1, 4, 2, 3), bias


def _shape(x: Tensor, weight: Tensor, stride: int) -> tuple[int, int, int, int, int]:
    members, outputs, _, kernel, _ = weight.shape
    height, width = (_out_size(s, kernel, stride) for s in x.shape[2:4])
    return members, x.shape[1], height, width, outputs
