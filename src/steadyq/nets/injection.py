"""Plasticity injection: a network whose head can be given a fresh start without a change in what it says.

The outputs are head(x) + kept(x) - stopgrad(copy(x)). Until the injection `kept` and `copy` are zero; then `kept`
becomes the head that was learned, and the head and `copy` one fresh draw, of which the head alone goes on learning
(Nikishin et al. 2023). The same tensors learn before and after, so that addresses and optimizer stay.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import cast

from steadyq.nets.layers import Encoding, Executor, Group, Layer, T
from steadyq.nets.twins import Twin, Twinned

KEPT, COPY = "kept.", "copy."


@dataclass(frozen=True)
class Injected(Twinned[Encoding]):
    """A network, and two twins of its head that never learn by themselves."""

    @cached_property
    def head(self) -> tuple[str, ...]:
        """Layers that have twins."""
        return tuple(name for name in self.network.layers if self.network.group(name) == "head")

    @cached_property
    def layers(self) -> dict[str, Layer]:
        """The network's, and the twins'."""
        twins = {twin + name: self.network.layers[name] for twin in (KEPT, COPY) for name in self.head}
        return self.network.layers | twins

    @property
    def heads(self) -> tuple[str, ...]:
        """All output layers: values are read off their sum."""
        return tuple(twin + name for twin in ("", KEPT, COPY) for name in self.network.heads)

    @property
    def spectral_layers(self) -> tuple[str, ...]:
        """The network's, and their twins."""
        own = self.network.spectral_layers
        return (*own, *(twin + name for twin in (KEPT, COPY) for name in own if name in self.head))

    def group(self, name: str) -> Group:
        """The network's groups, and the twins' own."""
        return "kept" if name.startswith((KEPT, COPY)) else self.network.group(name)

    def wire(self, run: Executor[T], x: T) -> T:
        """One pass of the encoder, three of heads."""
        network, kept, copy = self.network, *(cast(Executor[T], Twin(run, twin)) for twin in (KEPT, COPY))
        x = network.latent(run, x)
        both = run.add(network.outputs_of(run, x), network.outputs_of(kept, x))
        return run.offset(both, network.outputs_of(copy, x), -1.0)
