"""M independent networks of one description, their parameters stacked in one set of tensors.

Two forms run the same wiring and are tested equal: `loop` runs the members one after another with ordinary layers
(the reference), `stacked` runs all members at once (grouped convolutions, batched matrix products).
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from steadyq.nets.encoders import Conv, Layer, Network
from steadyq.value.shapes import Params

Form = Literal["loop", "stacked"]


@dataclass(frozen=True)
class Ensemble:
    """Runs `members` copies of `network`, predicting `[member, batch, action, atom]`."""

    network: Network
    members: int
    actions: int
    atoms: int
    pixel_max: float = 1.0
    form: Form = "stacked"

    def initial(self, generator: torch.Generator, device: torch.device | str = "cpu") -> Params:
        """Draw all members' parameters: uniform in +-1/sqrt(fan-in), PyTorch's own default for both layer kinds."""
        params: Params = {}
        for name, layer in self.network.layers.items():
            weight, bias = self.initial_layer(layer, generator)
            params[f"{name}.weight"], params[f"{name}.bias"] = weight.to(device), bias.to(device)
        return params

    def initial_layer(self, layer: Layer, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw one layer's weight and bias for all members."""
        bound = 1 / math.sqrt(math.prod(layer.weight_shape[1:]))
        weight = torch.empty(self.members, *layer.weight_shape).uniform_(-bound, bound, generator=generator)
        bias = torch.empty(self.members, layer.outputs).uniform_(-bound, bound, generator=generator)
        return weight, bias

    def forward(self, params: Params, observation: Tensor) -> Tensor:
        """Return z[member, batch, action, atom] of observations [batch, ...] shown to every member."""
        x = observation.float() / self.pixel_max if self.pixel_max != 1 else observation.float()
        flat = self._loop(params, x) if self.form == "loop" else self._stacked(params, x)
        return flat.view(self.members, x.shape[0], self.actions, self.atoms)

    def _loop(self, params: Params, x: Tensor) -> Tensor:
        def member(i: int) -> Tensor:
            def layer(name: str, x: Tensor, relu: bool = False, residual: Tensor | None = None) -> Tensor:
                weight, bias = params[f"{name}.weight"][i], params[f"{name}.bias"][i]
                kind = self.network.layers[name]
                if isinstance(kind, Conv):
                    y = functional.conv2d(x, weight, bias, kind.stride, kind.padding)
                else:
                    y = functional.linear(x.flatten(1), weight, bias)
                y = y if residual is None else y + residual
                return functional.relu(y) if relu else y

            return self.network.wire(layer, x)

        return torch.stack([member(i) for i in range(self.members)])

    def _stacked(self, params: Params, x: Tensor) -> Tensor:
        """Convolutions see members side by side in the channels, `[batch, member * channel, y, x]`.

        Linear layers see `[member, batch, feature]`. The first layer reads the one observation all members share.
        """
        members, batch = self.members, x.shape[0]
        shared = [True]

        def layer(name: str, x: Tensor, relu: bool = False, residual: Tensor | None = None) -> Tensor:
            weight, bias = params[f"{name}.weight"], params[f"{name}.bias"]
            kind = self.network.layers[name]
            if isinstance(kind, Conv):
                groups = 1 if shared[0] else members
                y = functional.conv2d(x, weight.flatten(0, 1), bias.flatten(), kind.stride, kind.padding, groups=groups)
            else:
                if shared[0]:
                    x = x.flatten(1).expand(members, -1, -1)
                elif x.dim() == 4:
                    x = x.view(batch, members, -1).transpose(0, 1)
                # W x^T rather than x W^T: its weight gradient then lies in memory as the weight does.
                y = torch.baddbmm(bias[:, :, None], weight, x.transpose(1, 2)).transpose(1, 2)
            shared[0] = False
            y = y if residual is None else y + residual
            return functional.relu(y) if relu else y

        return self.network.wire(layer, x)
