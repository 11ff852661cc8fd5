"""Networks described in words: convolutions and linear layers one after another, each followed by a ReLU."""

import math
from dataclasses import dataclass
from functools import cached_property

from steadyq.errors import UserError, shown
from steadyq.nets.encoders import Convolutional
from steadyq.nets.layers import Conv, Executor, Layer, Linear, T

NATURE = ("conv 32 8 4", "conv 64 4 2", "conv 64 3 1")
"""Convolutions of Mnih et al. 2015, for images of at least 36 pixels a side."""
SMALL = ("conv 32 3 2 1", "conv 64 3 2 1", "conv 64 3 1 1")
"""The same channels for smaller ones."""
DATA_EFFICIENT = ("conv 32 5 5", "conv 64 5 5")
"""Convolutions of van Hasselt et al. 2019, for images of at least 25 pixels a side."""


def cnn(observation: tuple[int, int, int], hidden: int) -> tuple[str, ...]:
    """A small convolutional network for images of this size."""
    return (*(NATURE if min(observation[1:]) >= 36 else SMALL), f"linear {hidden}")


def data_efficient(observation: tuple[int, int, int], hidden: int) -> tuple[str, ...]:
    """Data-efficient Rainbow's network of two convolutions, for images of this size."""
    return (*(DATA_EFFICIENT if min(observation[1:]) >= 25 else SMALL[:2]), f"linear {hidden}")


@dataclass(frozen=True)
class Layered(Convolutional):
    """Layers as `conv CHANNELS SIZE STRIDE [PADDING]` and `linear UNITS`, the last of them linear; then the outputs."""

    plan: tuple[str, ...] = ()

    @cached_property
    def body(self) -> dict[str, Layer]:
        """conv1, conv2, ..., fc1, ..."""
        shape, found = self.observation, dict[str, Layer]()
        for text in self.plan:
            kind, *numbers = _parsed(text)
            if kind == "linear":
                flattens = shape if len(shape) == 3 else ()
                found[f"fc{_count(found, Linear)}"] = Linear(math.prod(shape), numbers[0], flattens=flattens)
                shape = (self.wide(numbers[0]),)
                continue
            if len(shape) != 3:
                raise UserError(f"network.layers: {text!r} needs an image, and comes after a vector of {shape[0]}")
            channels, size, stride, padding = numbers
            conv = Conv(shape[0], channels, size, stride, padding, (shape[1], shape[2]))
            if min(conv.image_out) < 1:
                raise UserError(f"network.layers: {text!r} does not fit an image of {shape[1]}x{shape[2]}")
            found[f"conv{_count(found, Conv)}"] = conv
            shape = (self.wide(channels), *conv.image_out)
        if len(shape) == 3 or not found:
            raise UserError("network.layers must be given, and end in a linear layer, such as 'linear 128'")
        return found

    def encode(self, run: Executor[T], x: T) -> T:
        """ReLU after each layer but the last."""
        for name in list(self.body)[:-1]:
            x = self.units(run, name, x)
        return x


def _parsed(text: str) -> tuple[str, int, int, int, int] | tuple[str, int]:
    kind, *words = text.split() or [""]
    numbers = [int(word) for word in words if word.isdecimal() and len(word) < 6]
    if len(numbers) == len(words) and all(numbers[:3]):
        if kind == "linear" and len(numbers) == 1:
            return kind, numbers[0]
        if kind == "conv" and len(numbers) in (3, 4):
            channels, size, stride, padding = (*numbers, 0)[:4]
            return kind, channels, size, stride, padding
    raise UserError(
        f"network.layers: {shown(text)} is no layer; write 'conv CHANNELS SIZE STRIDE [PADDING]' or 'linear UNITS'"
    )


def _count(found: dict[str, Layer], kind: type) -> int:
    return 1 + sum(isinstance(layer, kind) for layer in found.values())
