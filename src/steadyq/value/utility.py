"""How much each hidden unit is of use, followed through every update, and how many are due to be replaced.

Continual backprop (Dohare et al. 2024): a unit's utility is a running mean of what it puts out times the size of the
weights that read it. Of the units older than `maturity` updates a share `rate` falls due with every update, the least
useful first; `regulation.Replace` redraws them when its trigger says so.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from steadyq.nets.ensemble import Ensemble
from steadyq.nets.units import Noted, members_first, outgoing_sizes, parts
from steadyq.value.shapes import Params


@dataclass(frozen=True)
class Replacement:
    """How units are judged."""

    rate: float = 1e-4  # share of the mature units that falls due with every update
    maturity: int = 10_000  # updates that a unit has to prove itself
    decay: float = 0.99  # of the running means


class Utility:
    """Running means of every unit, in place at fixed addresses: `add_` is part of a captured update.

    By layer: `value[member, unit]` utility, `mean[member, unit x parts]` what is read of it, `age[member, unit]`
    updates since it was drawn, `owed[member]` units that are due. Layers are those whose readers are known.
    """

    def __init__(self, settings: Replacement, ensemble: Ensemble, device: torch.device | str = "cpu") -> None:
        self.settings, self.ensemble = settings, ensemble
        network, members = ensemble.network, ensemble.members
        units = {name: network.layers[name].outputs for name in network.readers}
        self.value = {name: torch.zeros(members, count, device=device) for name, count in units.items()}
        self.mean = {
            name: torch.zeros(members, count * parts(network, name), device=device) for name, count in units.items()
        }
        self.age = {name: torch.zeros(members, count, device=device) for name, count in units.items()}
        self.owed = {name: torch.zeros(members, device=device, dtype=torch.float64) for name in units}

    def state(self) -> Params:
        """Every tensor by name, as it lies."""
        groups = {"value": self.value, "mean": self.mean, "age": self.age, "owed": self.owed}
        return {f"{name}:{kind}": p for kind, group in groups.items() for name, p in group.items()}

    @torch.no_grad()
    def put_out(self, params: Params, observation: Tensor) -> Params:
        """What every unit puts out on average, by a pass of its own so that any loss may come beside."""
        noted = Noted()
        self.ensemble.forward(params, observation, noted.around)
        found: Params = {}
        for name in self.value:
            y = members_first(noted.outputs[name], self.ensemble)
            found[name] = y.float().mean((1, *range(3, y.dim())))
        return found

    @torch.no_grad()
    def add_(self, put_out: Params, params: Params) -> None:
        """Take an update into account: what units put out before it, and the weights that read them after it."""
        settings, network = self.settings, self.ensemble.network
        for name, mean in put_out.items():
            contribution = mean * outgoing_sizes(network, name, params)
            shape = (*self.value[name].shape, -1)
            self.value[name].lerp_(contribution.view(shape).sum(2), 1 - settings.decay)
            self.mean[name].lerp_(mean, 1 - settings.decay)
            self.age[name] += 1
            self.owed[name].add_(settings.rate * self.mature(name).sum(1)).clamp_max_(len(self.age[name][0]))

    def mature(self, name: str) -> Tensor:
        """Units that are old enough to be judged, [member, unit]."""
        return self.age[name] > self.settings.maturity

    def risen(self, name: str) -> Tensor:
        """What running means that began at 0 have to be divided by, [member, unit]."""
        return (1 - self.settings.decay ** self.age[name].double()).clamp_min(1e-12).float()

    def due(self, name: str) -> Tensor:
        """How many units of each member's layer are due, [member]."""
        return torch.minimum(self.owed[name].floor(), self.mature(name).sum(1)).long()

    def least(self, name: str) -> Tensor:
        """The units that are due: the least useful mature ones, [member, unit] bool."""
        mature = self.mature(name)
        value = torch.where(mature, self.value[name] / self.risen(name), torch.inf)
        place = value.argsort(dim=1, stable=True).argsort(dim=1)
        found: Tensor = mature & (place < self.due(name)[:, None])
        return found

    def usual(self, name: str) -> Tensor:
        """What is read of each unit on average, [member, unit x parts]."""
        mean = self.mean[name]
        return (mean.view(*self.age[name].shape, -1) / self.risen(name)[..., None]).view_as(mean)

    @torch.no_grad()
    def renew_(self, name: str, units: Tensor) -> None:
        """Begin anew with the given units, [member, unit] bool."""
        for kind in (self.value[name], self.age[name]):
            kind.masked_fill_(units, 0)
        self.mean[name].view(*units.shape, -1).masked_fill_(units[..., None], 0)
        self.owed[name] -= units.sum(1)
