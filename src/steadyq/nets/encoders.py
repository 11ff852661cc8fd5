"""Network descriptions: named layers, and the wiring between them written once.

A description holds no parameters. `wire(layer, x)` runs the network through whatever executes one layer
(`layer(name, x, relu=..., residual=...)`): a loop over members, grouped tensors, or GPU kernels.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal, Protocol

from torch import Tensor


@dataclass(frozen=True)
class Conv:
    """A square convolution with bias."""

    inputs: int
    outputs: int
    size: int = 3
    stride: int = 1
    padding: int = 1
    image: tuple[int, int] = (0, 0)  # input height and width, for shape tables and cost

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Shape of one member's weight."""
        return (self.outputs, self.inputs, self.size, self.size)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return (self.inputs, *self.image)

    @property
    def image_out(self) -> tuple[int, int]:
        """Output height and width."""
        height, width = ((side + 2 * self.padding - self.size) // self.stride + 1 for side in self.image)
        return height, width

    @property
    def written(self) -> int:
        """Numbers put out per input."""
        return self.outputs * math.prod(self.image_out)

    @property
    def multiplications(self) -> int:
        """Multiply-adds per input."""
        return math.prod(self.weight_shape) * math.prod(self.image_out)


@dataclass(frozen=True)
class Linear:
    """A linear map with bias."""

    inputs: int
    outputs: int
    flattens: tuple[int, ...] = ()  # the feature map it flattens, where it does

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Shape of one member's weight."""
        return (self.outputs, self.inputs)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return self.flattens or (self.inputs,)

    @property
    def written(self) -> int:
        """Numbers put out per input."""
        return self.outputs

    @property
    def multiplications(self) -> int:
        """Multiply-adds per input."""
        return self.inputs * self.outputs


Layer = Conv | Linear
Group = Literal["encoder", "head"]
"""Which part of a network a layer belongs to: the last hidden layer and the outputs are the head, all before it the
encoder.
"""
Execute = Callable[..., Tensor]
"""`execute(name, x, relu=False, residual=None) -> y`, one layer with what follows it."""


class Network(Protocol):
    """A network: its layers by name, which are watched for spikes, who reads whom, and how they are wired."""

    @property
    def layers(self) -> dict[str, Layer]:
        """All layers, in the order they run."""

    @property
    def monitored(self) -> tuple[str, ...]:
        """Layers whose spike ratio is measured."""

    @property
    def readers(self) -> dict[str, tuple[str, ...]]:
        """Hidden layers whose units are read by the named layers and by nothing else: units that can be recycled.

        Layers that add to a residual stream are not among them.
        """

    def group(self, name: str) -> Group:
        """The part of the network that a layer belongs to."""

    def wire(self, layer: Execute, x: Tensor) -> Tensor:
        """Run the network on x with `layer` executing each named layer; returns the flat outputs."""


@dataclass(frozen=True)
class ResNet:
    """The paper's encoder (layer table l.835): a stem and four stages of two post-activation blocks, no normalisation.

    Stage widths are (8, 16, 32, 64) x `scale`. Atari strides are (1, 2, 2, 2); Procgen's (2, 2, 2, 2).
    Where a block changes shape its shortcut is a strided 1x1 convolution: trainable, but not among the 19 layers
    the paper's table monitors.
    """

    observation: tuple[int, int, int]
    outputs: int
    scale: int = 4
    head_multiple: int = 128
    strides: tuple[int, int, int, int] = (1, 2, 2, 2)

    @cached_property
    def layers(self) -> dict[str, Layer]:
        """Stem, blocks, head and outputs under the paper's names."""
        channels, *image = self.observation
        size = (image[0], image[1])
        width = 8 * self.scale
        layers: dict[str, Layer] = {"stem.0": Conv(channels, width, image=size)}
        for stage, stride in enumerate(self.strides, start=1):
            wider = 8 * self.scale * 2 ** (stage - 1)
            for block in range(2):
                first = Conv(width, wider, stride=stride if block == 0 else 1, image=size)
                name = f"l{stage}.{block}"
                layers[f"{name}.conv1"] = first
                layers[f"{name}.conv2"] = Conv(wider, wider, image=first.image_out)
                if first.stride != 1 or width != wider:
                    layers[f"{name}.shortcut"] = Conv(width, wider, size=1, stride=first.stride, padding=0, image=size)
                width, size = wider, first.image_out
        features = self.head_multiple * self.scale
        layers["head.1"] = Linear(width * math.prod(size), features, flattens=(width, *size))
        layers["quantile head"] = Linear(features, self.outputs)
        return layers

    @cached_property
    def monitored(self) -> tuple[str, ...]:
        """The 19 rows of the paper's table."""
        return tuple(name for name in self.layers if not name.endswith("shortcut"))

    @cached_property
    def readers(self) -> dict[str, tuple[str, ...]]:
        """Each block's first convolution and the hidden layer; stem and second convolutions feed the shortcuts."""
        found: dict[str, tuple[str, ...]] = {
            name: (name.replace("conv1", "conv2"),) for name in self.layers if name.endswith("conv1")
        }
        return {**found, "head.1": ("quantile head",)}

    def group(self, name: str) -> Group:
        """The hidden layer and the outputs are the head."""
        return "head" if name in ("head.1", "quantile head") else "encoder"

    @property
    def block_strides(self) -> tuple[int, ...]:
        """Stride of each of the eight blocks."""
        return tuple(each for stride in self.strides for each in (stride, 1))

    def wire(self, layer: Execute, x: Tensor) -> Tensor:
        """Block(x) = ReLU(conv2(ReLU(conv1(x))) + shortcut(x))."""
        x = layer("stem.0", x, relu=True)
        for stage in range(1, 5):
            for block in range(2):
                name = f"l{stage}.{block}"
                short = layer(f"{name}.shortcut", x) if f"{name}.shortcut" in self.layers else x
                x = layer(f"{name}.conv1", x, relu=True)
                x = layer(f"{name}.conv2", x, relu=True, residual=short)
        return layer("quantile head", layer("head.1", x, relu=True))


@dataclass(frozen=True)
class MinAtarNet:
    """The network of the MinAtar paper: one 3x3 convolution and one hidden layer."""

    observation: tuple[int, int, int]
    outputs: int
    channels: int = 16
    hidden: int = 128

    @cached_property
    def layers(self) -> dict[str, Layer]:
        """conv, hidden, head."""
        inputs, height, width = self.observation
        conv = Conv(inputs, self.channels, padding=0, image=(height, width))
        features = (self.channels, *conv.image_out)
        return {
            "conv": conv,
            "hidden": Linear(math.prod(features), self.hidden, flattens=features),
            "head": Linear(self.hidden, self.outputs),
        }

    @cached_property
    def monitored(self) -> tuple[str, ...]:
        """Every layer."""
        return tuple(self.layers)

    @cached_property
    def readers(self) -> dict[str, tuple[str, ...]]:
        """Each layer is read by the next."""
        return {name: (reader,) for name, reader in pairwise(self.layers)}

    def group(self, name: str) -> Group:
        """The last two layers are the head."""
        return "head" if name in tuple(self.layers)[-2:] else "encoder"

    def wire(self, layer: Execute, x: Tensor) -> Tensor:
        """ReLU after each layer but the last."""
        return layer("head", layer("hidden", layer("conv", x, relu=True), relu=True))


@dataclass(frozen=True)
class MLP:
    """Fully connected layers over a flat observation."""

    observation: tuple[int, ...]
    outputs: int
    hidden: tuple[int, ...] = (128, 128)

    @cached_property
    def layers(self) -> dict[str, Layer]:
        """fc1, fc2, ..., head."""
        sizes = (math.prod(self.observation), *self.hidden)
        layers: dict[str, Layer] = {
            f"fc{i}": Linear(inputs, outputs) for i, (inputs, outputs) in enumerate(pairwise(sizes), start=1)
        }
        layers["head"] = Linear(sizes[-1], self.outputs)
        return layers

    @cached_property
    def monitored(self) -> tuple[str, ...]:
        """Every layer."""
        return tuple(self.layers)

    @cached_property
    def readers(self) -> dict[str, tuple[str, ...]]:
        """Each layer is read by the next."""
        return {name: (reader,) for name, reader in pairwise(self.layers)}

    def group(self, name: str) -> Group:
        """The last two layers are the head."""
        return "head" if name in tuple(self.layers)[-2:] else "encoder"

    def wire(self, layer: Execute, x: Tensor) -> Tensor:
        """ReLU after each layer but the last."""
        for name in list(self.layers)[:-1]:
            x = layer(name, x, relu=True)
        return layer("head", x)
