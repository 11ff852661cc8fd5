"""What keeps parameters in shape in every update, beside interventions: pulls on the gradient, a projection after it.

Each acts on every member alone; none is part of the loss that is logged.
"""

from collections.abc import Container
from dataclasses import dataclass

import torch
from torch import Tensor

from steadyq.nets.layers import FIXED, Linear, Network
from steadyq.value.optim import along
from steadyq.value.shapes import Params


@dataclass(frozen=True)
class Penalties:
    """Weights of each; 0 and False do nothing."""

    pull: float = 0.0
    parseval: float = 0.0
    project: bool = False

    @property
    def active(self) -> bool:
        """Whether any of them does anything."""
        return self.pull > 0 or self.parseval > 0 or self.project

    def gradient(self, online: Params, initial: Params, network: Network, still: Container[str] = ()) -> Params:
        """The slopes of pull x |p - p_0|^2 (L2 towards the initial weights, Kumar et al. 2023) and of
        parseval x |W W^T - I|^2 for hidden linear layers (Chung et al. 2024), where they are not 0.
        """
        found: Params = {}
        if self.pull:
            found = {name: 2 * self.pull * (p - initial[name]) for name, p in online.items() if name not in still}
        for name in orthogonal(network) if self.parseval else ():
            w = online[f"{name}.weight"]  # [member, out, in]
            slope = 4 * self.parseval * (w @ w.transpose(1, 2) - torch.eye(w.shape[1], device=w.device)) @ w
            found[f"{name}.weight"] = found[f"{name}.weight"] + slope if f"{name}.weight" in found else slope
        return found

    @torch.no_grad()
    def project_(self, online: Params, initial: Params, network: Network) -> None:
        """Bring weights that a LayerNorm follows back to their initial size (normalise-and-project, Lyle et al. 2024):
        it is lost in the norm, but large weights learn slowly.
        """
        for name in normalised(network):
            w, first = online[f"{name}.weight"], initial[f"{name}.weight"]
            w.mul_(along(size(first) / size(w).clamp_min(1e-12), w))


def orthogonal(network: Network) -> list[str]:
    """Linear layers that learn, but outputs."""
    return [
        name
        for name, layer in network.layers.items()
        if isinstance(layer, Linear) and name not in network.heads and network.group(name) not in FIXED
    ]


def normalised(network: Network) -> list[str]:
    """Layers that learn and that a LayerNorm follows."""
    return [name for name in network.layers if f"{name}.norm" in network.layers and network.group(name) not in FIXED]


def size(p: Tensor) -> Tensor:
    """Each member's norm, [member]."""
    found: Tensor = torch.linalg.vector_norm(p.flatten(1), dim=1)
    return found
