"""M independent networks of one description, their parameters stacked in one set of tensors.

Three forms run the same wiring and are tested equal: `loop` runs the members one after another with ordinary layers
(the reference), `stacked` runs all members at once (grouped convolutions, batched matrix products), `kernels` runs
convolutions through `convolution.py` and its GPU kernels, which is where a GPU's time is won: `best_form` says when.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from steadyq.device.kernels import convolution
from steadyq.device.kernels.triton import compiles
from steadyq.nets.encoders import Conv, Layer, Network, ResNet

Form = Literal["loop", "stacked", "kernels"]
Params = dict[str, Tensor]
"""Parameters by name, each stacked over members in its first dimension."""


def best_form(network: Network, device: torch.device) -> Form:
    """The fastest form measured by `steadyq bench` (docs/performance.md), in every precision."""
    return "kernels" if compiles(device) and isinstance(network, ResNet) else "stacked"


@dataclass(frozen=True)
class Ensemble:
    """Runs `members` copies of `network`, predicting `[member, batch, action, atom]` in float32.

    All layers but the last compute in `dtype`, whatever the parameters are kept in; the last stays in float32, because
    values are read off it.
    """

    network: Network
    members: int
    actions: int
    atoms: int
    pixel_max: float = 1.0
    form: Form = "stacked"
    dtype: torch.dtype = torch.float32

    @property
    def last(self) -> str:
        """Name of the output layer."""
        return next(reversed(self.network.layers))

    def initial(self, generator: torch.Generator, device: torch.device | str = "cpu") -> Params:
        """Draw all members' parameters: uniform in +-1/sqrt(fan-in), PyTorch's own default for both layer kinds."""
        params: Params = {}
        for name, layer in self.network.layers.items():
            weight, bias = self.initial_layer(layer, generator)
            params[f"{name}.weight"], params[f"{name}.bias"] = weight.to(device), bias.to(device)
        return params

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of all parameters, members first."""
        found: dict[str, tuple[int, ...]] = {}
        for name, layer in self.network.layers.items():
            found[f"{name}.weight"] = (self.members, *layer.weight_shape)
            found[f"{name}.bias"] = (self.members, layer.outputs)
        return found

    def initial_layer(self, layer: Layer, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw one layer's weight and bias for all members."""
        bound = 1 / math.sqrt(math.prod(layer.weight_shape[1:]))
        weight = torch.empty(self.members, *layer.weight_shape).uniform_(-bound, bound, generator=generator)
        bias = torch.empty(self.members, layer.outputs).uniform_(-bound, bound, generator=generator)
        return weight, bias

    def forward(self, params: Params, observation: Tensor) -> Tensor:
        """Return z[member, batch, action, atom] of observations [batch, ...] shown to every member."""
        x = observation.to(self.dtype)
        x = x / self.pixel_max if self.pixel_max != 1 else x
        run = {"loop": self._loop, "stacked": self._stacked, "kernels": self._kernels}[self.form]
        return run(params, x).view(self.members, x.shape[0], self.actions, self.atoms)

    def layer(self, params: Params, name: str) -> tuple[Layer, Tensor, Tensor]:
        """A layer with its weight and bias as it computes."""
        dtype = torch.float32 if name == self.last else self.dtype
        return self.network.layers[name], params[f"{name}.weight"].to(dtype), params[f"{name}.bias"].to(dtype)

    def _loop(self, params: Params, x: Tensor) -> Tensor:
        def member(i: int) -> Tensor:
            def layer(name: str, x: Tensor, relu: bool = False, residual: Tensor | None = None) -> Tensor:
                kind, weight, bias = self.layer(params, name)
                if isinstance(kind, Conv):
                    y = functional.conv2d(x, weight[i], bias[i], kind.stride, kind.padding)
                else:
                    y = functional.linear(x.flatten(1).to(weight.dtype), weight[i], bias[i])
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
            kind, weight, bias = self.layer(params, name)
            if isinstance(kind, Conv):
                groups = 1 if shared[0] else members
                y = functional.conv2d(x, weight.flatten(0, 1), bias.flatten(), kind.stride, kind.padding, groups=groups)
            else:
                if shared[0]:
                    x = x.flatten(1).expand(members, -1, -1)
                elif x.dim() == 4:
                    x = x.reshape(batch, members, -1).transpose(0, 1)  # cuDNN may answer channels-last
                y = _linear(x, weight, bias)
            shared[0] = False
            y = y if residual is None else y + residual
            return functional.relu(y) if relu else y

        return self.network.wire(layer, x)

    def _kernels(self, params: Params, x: Tensor) -> Tensor:
        """Activations are `[member, batch, y, x, channel]`; stem and blocks of a ResNet run as one piece."""
        x = x.permute(0, 2, 3, 1).contiguous()[None]

        def layer(name: str, x: Tensor, relu: bool = False, residual: Tensor | None = None) -> Tensor:
            kind, weight, bias = self.layer(params, name)
            if isinstance(kind, Conv):
                return convolution.conv(x, weight, bias, stride=kind.stride, relu=relu, residual=residual)
            x = x.permute(0, 1, 4, 2, 3).flatten(2) if x.dim() == 5 else x
            y = _linear(x, weight, bias)
            return functional.relu(y) if relu else y

        if not isinstance(self.network, ResNet):
            return self.network.wire(layer, x)
        *trunk, hidden, last = self.network.layers
        flat = [part for name in trunk for part in self.layer(params, name)[1:]]
        features = convolution.trunk(x, flat, self.network.block_strides)
        return layer(last, layer(hidden, features, relu=True))


def _linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Every member's linear map, x[member, batch, feature]."""
    # W x^T rather than x W^T: its weight gradient then lies in memory as the weight does.
    return torch.baddbmm(bias[:, :, None], weight, x.to(weight.dtype).transpose(1, 2)).transpose(1, 2)
