"""Randomised prior functions: each member's outputs are its own plus those of a fixed random network of its kind.

What no data has said anything about stays different between members, so that they explore (Osband et al. 2018).
"""

from dataclasses import dataclass
from functools import cached_property
from typing import cast

from steadyq.nets.layers import Executor, Group, Layer, Network, T
from steadyq.nets.twins import Twin, Twinned

NAME = "prior."


@dataclass(frozen=True)
class WithPrior(Twinned[Network]):
    """A network whose outputs are its own plus `scale` times those of its prior, which never learns."""

    scale: float

    @cached_property
    def layers(self) -> dict[str, Layer]:
        """The network's, and their twins in the prior."""
        return self.network.layers | {NAME + name: layer for name, layer in self.network.layers.items()}

    @property
    def heads(self) -> tuple[str, ...]:
        """Both networks' output layers: values are read off the sum."""
        return (*self.network.heads, *(NAME + name for name in self.network.heads))

    @property
    def spectral_layers(self) -> tuple[str, ...]:
        """Of what learns."""
        return self.network.spectral_layers

    def group(self, name: str) -> Group:
        """The network's groups, and the prior's own."""
        return "prior" if name.startswith(NAME) else self.network.group(name)

    def wire(self, run: Executor[T], x: T) -> T:
        """Network + scale x prior."""
        prior = self.network.wire(cast(Executor[T], Twin(run, NAME)), x)
        return run.offset(self.network.wire(run, x), prior, self.scale)
