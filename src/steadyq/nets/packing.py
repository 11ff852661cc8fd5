"""Frames that hold several things at once, numbers and images, in one row of bytes: replay has one for each pixel.

A frame is all numbers in float32, then all images of bytes, then zeros up to a multiple of four.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Packing:
    """What lies in a frame: shapes of the parts that are numbers, and of the images that are bytes."""

    numbers: tuple[tuple[int, ...], ...]
    pixels: tuple[tuple[int, ...], ...]
    stack: int = 1

    @cached_property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of the parts as a network sees them, frames stacked along the first dimension."""
        return tuple((self.stack * shape[0], *shape[1:]) for shape in (*self.numbers, *self.pixels))

    @cached_property
    def values(self) -> int:
        """Of all parts together."""
        return sum(map(math.prod, self.shapes))

    @property
    def names(self) -> tuple[str, ...]:
        """Of the parts."""
        return names_of(self.shapes)

    def unpacked(self, frames: Tensor) -> Tensor:
        """Bytes `[batch, stack * byte]` as float32 `[batch, value]`, part after part, pixels divided by 255."""
        each = frames.view(len(frames), self.stack, -1)
        counts, sizes = ([math.prod(shape) for shape in shapes] for shapes in (self.numbers, self.pixels))
        floats, end = each[..., : 4 * sum(counts)].view(torch.float32), 4 * sum(counts) + sum(sizes)
        pixels = each[..., 4 * sum(counts) : end]
        parts = [*torch.split(floats, counts, -1), *(part.float() / 255 for part in torch.split(pixels, sizes, -1))]
        return torch.cat([part.flatten(1) for part in parts], 1)


def names_of(shapes: tuple[tuple[int, ...], ...]) -> tuple[str, ...]:
    """image and vector, numbered where there are several."""
    kinds = ["image" if len(shape) == 3 else "vector" for shape in shapes]
    return tuple(
        kind if kinds.count(kind) == 1 else f"{kind}{kinds[: place + 1].count(kind)}"
        for place, kind in enumerate(kinds)
    )
