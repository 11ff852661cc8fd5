"""Randomised prior functions: each member's outputs are its own plus those of a fixed random network of its kind.

What no data has said anything about stays different between members, so that they explore (Osband et al. 2018).
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from steadyq.nets.layers import Executor, Group, Initial, Layer, Network, T

NAME = "prior."


@dataclass(frozen=True)
class WithPrior:
    """A network whose outputs are its own plus `scale` times those of its prior, which never learns."""

    network: Network
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
    def initial(self) -> Initial:
        """As the network's."""
        return self.network.initial

    @property
    def cosines(self) -> int:
        """As the network's."""
        return self.network.cosines

    @property
    def transition(self) -> int:
        """As the network's."""
        return self.network.transition

    @property
    def spectral_layers(self) -> tuple[str, ...]:
        """Of what learns."""
        return self.network.spectral_layers

    @property
    def monitored(self) -> tuple[str, ...]:
        """What learns."""
        return self.network.monitored

    @property
    def readers(self) -> dict[str, tuple[str, ...]]:
        """Of what learns."""
        return self.network.readers

    def group(self, name: str) -> Group:
        """The network's groups, and the prior's own."""
        return "prior" if name.startswith(NAME) else self.network.group(name)

    def wire(self, run: Executor[T], x: T) -> T:
        """Network + scale x prior."""
        prior = self.network.wire(cast(Executor[T], Twin(run, NAME)), x)
        return run.offset(self.network.wire(run, x), prior, self.scale)


class Twin:
    """An executor under which layers are those whose names begin so."""

    def __init__(self, run: Any, name: str) -> None:
        self.run, self.name = run, name

    def __getattr__(self, piece: str) -> Any:
        return getattr(self.run, piece)

    def layer(self, name: str, x: Any, **options: Any) -> Any:
        """The twin's layer."""
        return self.run.layer(self.name + name, x, **options)

    def norm(self, name: str, x: Any) -> Any:
        """The twin's normalisation."""
        return self.run.norm(self.name + name, x)

    def relu(self, x: Any, units: str) -> Any:
        """ReLU of the twin's units."""
        return self.run.relu(x, self.name + units)

    def crelu(self, x: Any, units: str) -> Any:
        """Both parts of the twin's units."""
        return self.run.crelu(x, self.name + units)
