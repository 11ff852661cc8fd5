"""Layers that have twins under other names: what a network with a prior and one with an injected head share."""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from steadyq.nets.layers import Initial, Network

N = TypeVar("N", bound=Network)


@dataclass(frozen=True)
class Twinned(Generic[N]):
    """A network beside twins of some of its layers, which never learn: all that is asked of what learns is its own."""

    network: N

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
    def monitored(self) -> tuple[str, ...]:
        """What learns."""
        return self.network.monitored

    @property
    def readers(self) -> dict[str, tuple[str, ...]]:
        """Of what learns."""
        return self.network.readers


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
