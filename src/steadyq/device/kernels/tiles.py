"""Which tile walks which convolution: chosen by measurement where layers were measured, by rule elsewhere."""

from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True)
class Config:
    """How one convolution is walked; see `programs.py` for `tile` and `strip`."""

    strip: bool = False
    block_m: int = 128  # pixels (weight tile: rows of the weight)
    block_n: int = 64  # outputs
    block_k: int = 64  # channels (weight tile: pixels)
    rows: int = 42  # strip: image rows per program, fewer where that would leave multiprocessors idle
    pair: bool = False  # strip: two neighbouring pixels and their taps as one product, for 32 channels and fewer
    programs: int = 528  # weight tile: how many to aim at, by splitting the pixels into ranges summed apart
    warps: int = 4
    stages: int = 3


Layer = tuple[str, int, int, int, int, int]
"""Pass (forward, input, spread, weight), kernel size, stride, input height, channels summed over (weight,
spread: in), channels made (out).
"""

MEASURED: dict[Layer, Config] = {
    ("forward", 3, 2, 84, 32, 32): Config(block_m=256, block_n=32, block_k=32, stages=4),
    ("forward", 3, 1, 42, 32, 32): Config(strip=True, block_m=64, rows=14),
    ("input", 3, 1, 42, 32, 32): Config(strip=True, block_m=64, rows=21),
    ("weight", 3, 1, 42, 32, 32): Config(strip=True, block_m=64, rows=21, pair=True),
    ("forward", 3, 2, 42, 32, 64): Config(block_m=256, block_k=32, warps=8),
    ("weight", 3, 2, 42, 32, 64): Config(programs=132),
    ("weight", 3, 1, 21, 64, 64): Config(block_m=64, block_k=128, programs=264),
    ("weight", 3, 2, 21, 64, 128): Config(block_k=128, programs=132),
    ("forward", 3, 1, 84, 32, 32): Config(strip=True, block_m=64, rows=14, warps=4, stages=3),
    ("input", 3, 1, 84, 32, 32): Config(strip=True, block_m=64, rows=21, warps=4, stages=3),
    ("forward", 3, 1, 42, 64, 64): Config(strip=True, block_m=128, rows=14, warps=8, stages=3),
    ("input", 3, 1, 42, 64, 64): Config(strip=True, block_m=128, rows=14, warps=8, stages=3),
    ("weight", 3, 1, 84, 4, 32): Config(block_m=64, block_n=32, block_k=128, warps=4, stages=2),
    ("forward", 3, 2, 84, 32, 64): Config(block_m=128, block_k=32, warps=4, stages=4),
    ("weight", 3, 1, 42, 64, 64): Config(strip=True, block_m=64, warps=8, stages=3),
    ("forward", 3, 1, 21, 128, 128): Config(block_n=128, block_k=32, warps=8, stages=4),
    ("forward", 1, 2, 42, 64, 128): Config(block_m=64, block_n=128, warps=4, stages=3),
    ("weight", 1, 2, 42, 64, 128): Config(block_m=64, block_n=128, programs=256, warps=4, stages=3),
    ("forward", 1, 2, 21, 128, 256): Config(block_m=128, block_n=128, warps=4, stages=3),
    ("weight", 1, 2, 21, 128, 256): Config(block_m=128, programs=256, warps=4, stages=3),
    ("forward", 3, 1, 84, 4, 16): Config(strip=True, block_m=128, rows=7, pair=True, warps=8, stages=2),
    ("weight", 3, 1, 84, 4, 16): Config(block_m=64, block_n=16, block_k=128, programs=256, warps=4, stages=2),
    ("weight", 3, 1, 84, 16, 16): Config(strip=True, block_m=64, rows=21, pair=True, warps=4, stages=3),
    ("weight", 3, 2, 84, 16, 32): Config(block_m=64, block_n=32, programs=768, warps=4, stages=3),
    ("forward", 3, 1, 21, 64, 64): Config(block_m=128, warps=8, stages=3),
    ("input", 3, 1, 21, 64, 64): Config(block_m=128, warps=8, stages=3),
    ("forward", 3, 1, 11, 128, 128): Config(block_n=128, block_k=32, warps=8, stages=4),
    ("weight", 3, 1, 11, 128, 128): Config(block_n=128, programs=264, warps=8, stages=3),
    ("forward", 1, 2, 42, 32, 64): Config(block_m=64, block_k=32, warps=4, stages=3),
    ("forward", 1, 2, 21, 64, 128): Config(block_m=64, warps=4, stages=3),
    ("weight", 1, 2, 21, 64, 128): Config(block_m=64, programs=264, warps=4, stages=3),
    ("forward", 3, 1, 84, 4, 32): Config(strip=True, block_m=64, rows=14, pair=True, stages=2),
    ("spread", 3, 2, 42, 32, 64): Config(block_n=32, block_k=32, stages=2),
    ("spread", 3, 2, 21, 64, 128): Config(block_n=32, block_k=32, stages=2),
    ("forward", 3, 2, 11, 128, 256): Config(block_m=64, stages=4),
    ("weight", 3, 2, 11, 128, 256): Config(block_m=64, programs=132),
    ("forward", 3, 1, 6, 256, 256): Config(block_n=128, warps=8, stages=4),
    ("input", 3, 1, 6, 256, 256): Config(block_m=64, block_n=256, warps=8, stages=4),
    ("weight", 3, 1, 6, 256, 256): Config(programs=132),
    ("forward", 1, 2, 11, 128, 256): Config(block_m=64, block_k=128, stages=4),
    ("weight", 1, 2, 11, 128, 256): Config(block_n=32, block_k=128, programs=132),
}
"""Configurations chosen by measurement on an H200; other layers follow `_default`."""


def power(value: int, least: int = 16) -> int:
    """The next power of two."""
    return max(least, 1 << (value - 1).bit_length())


def _default(kind: str, kernel: int, stride: int, height: int, channels: int, outputs: int) -> Config:
    """A sound configuration for any layer: what was measured for the nearest one."""
    strips = kernel == 3 and stride == 1 and max(channels, outputs) <= 64
    narrow = strips and max(channels, outputs) <= 32
    high = strips and height > 21 and min(channels, outputs) >= 32  # as 64 -> 64 at 42
    stem = strips and channels < 16 and outputs > 32  # as 4 -> 32 at 84, with as many numbers in a tile
    if kind == "weight":
        if narrow and channels >= 16:
            return Config(strip=True, pair=True, block_m=64, rows=84, warps=8, stages=3)
        if high:
            return Config(strip=True, block_m=64, warps=8)
        if stem:
            return Config(block_m=64, block_k=128, stages=2)
        block_m, block_n = min(power(kernel * kernel * channels), 128), min(power(outputs), 128)
        return Config(block_m=block_m, block_n=block_n, warps=8 if block_n == 128 else 4)
    if kind == "spread":  # four accumulators: narrow tiles keep two programs on a multiprocessor
        return Config(block_m=64, block_n=32, block_k=32, stages=2)
    if narrow:
        return Config(strip=True, pair=channels <= 16, block_m=64, rows=21, warps=4, stages=4 if channels >= 16 else 2)
    if high:
        return Config(strip=True, rows=14, warps=8)
    if stem:
        return Config(strip=True, pair=True, block_m=32, rows=21, stages=2)
    block_n = min(power(outputs), 256)
    return Config(block_n=block_n, block_k=min(power(channels), 64), warps=8 if block_n > 64 else 4)


def _tf32(kind: str, kernel: int, stride: int, height: int, channels: int, outputs: int) -> Config:
    """The same for products in TF32, by measurement on an H200: numbers are twice as large, and products of columns
    with columns (both gradients) are slow, so that strips, which make fewer, pay up to 64 channels.
    """
    strips = kernel == 3 and stride == 1 and max(channels, outputs) <= 64
    narrow = strips and max(channels, outputs) <= 32
    if kind == "spread":
        return Config(block_n=32, block_k=32, warps=8, stages=2)
    if kind == "weight":
        if channels <= 16 and narrow:
            return Config(strip=True, pair=True, block_m=32, stages=2)
        if strips:
            return Config(strip=True, block_m=64 if narrow else 128, rows=21, warps=4 if narrow else 8)
        block_n = min(power(outputs), 128)
        return Config(block_m=min(2 * block_n, 128), block_n=block_n, block_k=32, warps=8 if block_n > 32 else 4)
    if narrow:
        return Config(strip=True, block_m=64, rows=14)
    if kind == "forward":
        block_n = min(power(outputs), 256)
        return Config(block_n=block_n, block_k=32, warps=8 if block_n > 32 else 4, stages=4)
    if strips and height > 21:
        return Config(strip=True, rows=14, warps=8)
    return Config(block_m=256, block_k=32, warps=8, stages=4)


def config_for(
    kind: str, kernel: int, stride: int, height: int, channels: int, outputs: int, dtype: torch.dtype
) -> Config:
    """The configuration of one pass of a layer."""
    key = (kind, kernel, stride, height, channels, outputs)
    config = MEASURED.get(key) or _default(*key)
    if dtype != torch.float32:
        return config
    if channels >= 16 and precision(dtype) == "tf32":
        return _tf32(*key)
    if channels > 16 and kind != "spread":  # a strip's weights, each split in two for TF32, are many registers
        return Config(block_m=64, block_k=32, programs=1056) if kind == "weight" else Config(block_k=16)
    return replace(config, block_m=min(config.block_m, 64), block_k=min(config.block_k, 32), stages=2)


def precision(dtype: torch.dtype) -> str:
    """How products of float32 are made: in three TF32 products that together keep float32's digits, or in one."""
    return "tf32" if dtype != torch.float32 or torch.backends.cuda.matmul.allow_tf32 else "tf32x3"
