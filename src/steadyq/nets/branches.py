"""The network for an image beside other things: every part through an encoder of its own, then joined."""

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from steadyq.nets.encoders import Described
from steadyq.nets.layered import cnn, layers_of
from steadyq.nets.layers import Executor, Layer, Linear, T
from steadyq.nets.packing import names_of


@dataclass(frozen=True)
class Branches(Described):
    """Images through the convolutions of `cnn` and a hidden layer, vectors through a hidden layer, all `hidden[0]` wide
    so that neither drowns the other; side by side they are read by hidden layers of the other widths, at least one.

    `parts` are shapes, in the order in which their values lie in the observation.
    """

    parts: tuple[tuple[int, ...], ...] = ()
    hidden: tuple[int, ...] = (256, 256)

    @cached_property
    def branches(self) -> tuple[dict[str, Layer], ...]:
        """Each part's own layers."""
        found: list[dict[str, Layer]] = []
        for name, shape in zip(names_of(self.parts), self.parts, strict=True):
            image, width = len(shape) == 3, self.hidden[0]
            plan = cnn((shape[0], shape[1], shape[2]), width) if image else (f"linear {width}",)
            found.append({f"{name}.{layer}": described for layer, described in layers_of(shape, plan).items()})
        return tuple(found)

    @cached_property
    def joined(self) -> dict[str, Layer]:
        """fc1, ..., behind the join."""
        sizes = (len(self.parts) * self.hidden[0], *(self.hidden[1:] or self.hidden))
        return {f"fc{i}": Linear(inputs, outputs) for i, (inputs, outputs) in enumerate(pairwise(sizes), start=1)}

    @cached_property
    def body(self) -> dict[str, Layer]:
        """Branch after branch, then what is behind the join."""
        return {name: layer for layers in (*self.branches, self.joined) for name, layer in layers.items()}

    @cached_property
    def readers(self) -> dict[str, tuple[str, ...]]:
        """Each layer is read by the next of its branch; the last, read by a share of a layer, is not among them."""
        pairs = [pair for layers in (*self.branches, self.joined) for pair in pairwise(layers)]
        return {
            **{name: self.noise_too(reader) for name, reader in pairs},
            self.hidden_layer: self.noise_too(*self.heads),
        }

    def latent(self, run: Executor[T], x: T) -> T:
        """Every part's units side by side, and all hidden layers but the last over them."""
        units, first = list[T](), 0
        for shape, layers in zip(self.parts, self.branches, strict=True):
            y = run.part(x, first, shape)
            for name in layers:
                y = self.units(run, name, y)
            units.append(y)
            first += math.prod(shape)
        y = run.join(*units)
        for name in list(self.joined)[:-1]:
            y = self.units(run, name, y)
        return y
