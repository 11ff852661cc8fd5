"""Three ways to run a network's pieces for all members, tested equal.

`Loop` runs one member with ordinary layers (the reference), `Stacked` all members at once (grouped convolutions,
batched matrix products), `Kernels` all members through the GPU kernels of `device/kernels`, which is where a GPU's
time is won.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from steadyq.device.kernels import convolution, pooling
from steadyq.device.kernels.launch import native
from steadyq.device.kernels.triton import compiles
from steadyq.device.kernels.trunk import trunk
from steadyq.errors import UserError
from steadyq.nets.joining import Joined, parts
from steadyq.nets.layers import SIGMA, Conv, Layer, Network, Wiring
from steadyq.nets.trace import pieces, trace

Form = Literal["loop", "stacked", "kernels"]
LayerOf = Callable[[str], tuple[Layer, Tensor, Tensor]]
"""A layer by name, with all members' weights and biases as they compute."""
Noises = dict[str, tuple[Tensor, Tensor]]
"""f(in) and f(out) of each noisy layer, `[member, feature]`."""


@dataclass(frozen=True)
class _Anywhere(ABC):
    """The pieces that are the same text in every form."""

    layers: LayerOf
    actions: Tensor | None = field(default=None, kw_only=True)  # [step, batch, action] of zeros and ones
    taus: Tensor | None = field(default=None, kw_only=True)  # [batch, quantile]
    noises: Noises | None = field(default=None, kw_only=True)  # where layers have noise and are to be run with it
    runs: int = field(default=1, kw_only=True)  # that share the members, each with its own part of the batch

    def taken(self, step: int) -> Tensor:
        """The actions of a step, [batch, action]."""
        if self.actions is None:
            raise ValueError("a network that acts in its latent must be told the actions")
        return self.actions[step]

    def waves(self, count: int) -> Tensor:
        """Cosines of all quantiles, [batch * quantile, count]."""
        if self.taus is None:
            raise ValueError("a network of implicit quantiles must be told which")
        i = torch.arange(count, device=self.taus.device)
        return torch.cos(torch.pi * i * self.taus.flatten()[:, None])

    @abstractmethod
    def layer(self, name: str, x: Tensor, *, relu: bool = False, residual: Tensor | None = None) -> Tensor:
        """A convolution or linear layer."""

    @abstractmethod
    def features(self, x: Tensor, size: int) -> Tensor:
        """What a linear layer of so many inputs reads of x."""

    @abstractmethod
    def own(self, noise: Tensor) -> Tensor:
        """Of noise[member, feature] what is to be multiplied with features."""

    def noisy(self, name: str, x: Tensor) -> Tensor:
        """W x + b + f(out) (sigma_W (f(in) x) + sigma_b): every weight has its noise, and none is written down."""
        y = self.layer(name, x)
        if self.noises is None:
            return y
        inner, outer = (self.own(part) for part in self.noises[name])
        x = self.features(x, inner.shape[-1])
        spread = self.layer(name + SIGMA, x * inner.to(x.dtype))
        return y + outer.to(y.dtype) * spread

    def relu(self, x: Tensor, units: str) -> Tensor:
        """ReLU by itself."""
        return functional.relu(x)

    def crelu(self, x: Tensor, units: str) -> Tensor:
        """Side by side, so that members stay apart where they share a dimension."""
        place = self.unit_dim(x)
        return torch.stack((functional.relu(x), functional.relu(-x)), place + 1).flatten(place, place + 1)

    def unit_dim(self, x: Tensor) -> int:
        """The dimension of channels or features."""
        return x.dim() - 1

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """The sum."""
        return x + y

    def offset(self, x: Tensor, by: Tensor, scale: float) -> Tensor:
        """x + scale x by."""
        return x + scale * by.detach()

    def join(self, *units: Tensor) -> Tensor:
        """Features come last."""
        return torch.cat(units, -1)

    def dueling(self, value: Tensor, advantage: Tensor) -> Tensor:
        """V + A - mean of A over actions."""
        each = advantage.view(*advantage.shape[:-1], -1, value.shape[-1])
        return (value[..., None, :] + each - each.mean(-2, keepdim=True)).flatten(-2)


@dataclass(frozen=True)
class Loop(_Anywhere):
    """One member: `[batch, channel, y, x]` and `[batch, feature]`."""

    member: int

    def unit_dim(self, x: Tensor) -> int:
        """Channels come before positions."""
        return 1

    def layer(self, name: str, x: Tensor, *, relu: bool = False, residual: Tensor | None = None) -> Tensor:
        """An ordinary layer."""
        kind, weights, biases = self.layers(name)
        weight, bias = weights[self.member], biases[self.member]
        if isinstance(kind, Conv):
            y = functional.conv2d(x, weight, bias, kind.stride, kind.padding)
        else:
            y = functional.linear(self.features(x, kind.inputs).to(weight.dtype), weight, bias)
        return _finished(y, relu, residual)

    def features(self, x: Tensor, size: int) -> Tensor:
        """What a linear layer reads, `[batch, feature]`."""
        return x.flatten(1)

    def own(self, noise: Tensor) -> Tensor:
        """The member's."""
        return noise[self.member]

    def norm(self, name: str, x: Tensor) -> Tensor:
        """As a group norm of one group: statistics over the sample, gains by channel."""
        _, weight, bias = self.layers(name)
        return functional.group_norm(x, 1, weight[self.member], bias[self.member])

    def max_pool(self, x: Tensor) -> Tensor:
        """Over positions."""
        return pooling.max_pool_images(x)

    def average(self, x: Tensor) -> Tensor:
        """Over positions."""
        return x.mean((2, 3))

    def renormalise(self, x: Tensor) -> Tensor:
        """Over all features."""
        return _stretched(x.flatten(1)).view_as(x)

    def acted(self, x: Tensor, step: int) -> Tensor:
        """Behind the channels or units."""
        a = self.taken(step)
        return torch.cat((x, a[..., None, None].expand(-1, -1, *x.shape[2:]) if x.dim() == 4 else a), 1)

    def together(self, *batches: Tensor) -> Tensor:
        """One after another."""
        return torch.cat(batches)

    def part(self, x: Tensor, first: int, shape: tuple[int, ...]) -> Tensor:
        """Some of the columns."""
        return _part(x, first, shape)

    def cosines(self, count: int) -> Tensor:
        """Sample by sample."""
        return self.waves(count)

    def asked(self, x: Tensor, quantiles: Tensor) -> Tensor:
        """Sample by sample."""
        return (x.flatten(1)[:, None] * quantiles.view(x.shape[0], -1, quantiles.shape[-1])).flatten(0, 1)


@dataclass(frozen=True)
class Stacked(_Anywhere):
    """Members side by side in the channels, `[batch, member * channel, y, x]`, or first, `[member, batch, feature]`.

    What all members share, an observation or a part of it, is there once: `[batch, channel, y, x]`, `[batch, feature]`.
    """

    members: int

    def unit_dim(self, x: Tensor) -> int:
        """Channels come before positions, features last."""
        return 1 if x.dim() == 4 else 2

    def layer(self, name: str, x: Tensor, *, relu: bool = False, residual: Tensor | None = None) -> Tensor:
        """A grouped convolution or a batched matrix product."""
        kind, weight, bias = self.layers(name)
        if isinstance(kind, Conv):
            groups = x.shape[1] // kind.inputs  # 1 where all members share the image, or one for each run
            y = functional.conv2d(x, weight.flatten(0, 1), bias.flatten(), kind.stride, kind.padding, groups=groups)
        else:
            y = _linear(self.features(x, kind.inputs), weight, bias)
        return _finished(y, relu, residual)

    def features(self, x: Tensor, size: int) -> Tensor:
        """What a linear layer reads, `[member, batch, feature]`: made of images, their channels' means, and what all
        members share.
        """
        if x.dim() == 3:
            return x
        if math.prod(x.shape[1:]) == self.runs * size:  # one part for each run
            return own_parts(x.reshape(len(x), self.runs, size).transpose(0, 1).flatten(0, 1), self.runs, self.members)
        return x.reshape(len(x), self.members, -1).transpose(0, 1)  # cuDNN may answer channels-last

    def own(self, noise: Tensor) -> Tensor:
        """Every member's, for all of its samples."""
        return noise[:, None]

    def norm(self, name: str, x: Tensor) -> Tensor:
        """A group for each member."""
        _, weight, bias = self.layers(name)
        if x.dim() == 4:
            return functional.group_norm(x, self.members, weight.flatten(), bias.flatten())
        return functional.layer_norm(x, x.shape[2:]) * weight[:, None] + bias[:, None]

    def max_pool(self, x: Tensor) -> Tensor:
        """Over positions."""
        return pooling.max_pool_images(x)

    def average(self, x: Tensor) -> Tensor:
        """Over positions."""
        return self.features(x.mean((2, 3)), x.shape[1] // self.members)

    def renormalise(self, x: Tensor) -> Tensor:
        """Over all features of a member."""
        return _stretched(x.reshape(len(x), self.members, -1) if x.dim() == 4 else x).view_as(x)

    def acted(self, x: Tensor, step: int) -> Tensor:
        """Behind each member's channels or units."""
        a = own_parts(self.taken(step), self.runs, self.members)  # [member, batch, action]
        if x.dim() == 3:
            return torch.cat((x, a), 2)
        each = x.reshape(len(x), self.members, -1, *x.shape[2:])
        planes = a.transpose(0, 1)[..., None, None].expand(-1, -1, -1, *x.shape[2:])
        return torch.cat((each, planes), 2).flatten(1, 2)

    def together(self, *batches: Tensor) -> Tensor:
        """One after another."""
        return torch.cat(batches, 0 if batches[0].dim() == 4 else 1)

    def part(self, x: Tensor, first: int, shape: tuple[int, ...]) -> Tensor:
        """Some of the columns, for all members."""
        return _part(x, first, shape)

    def cosines(self, count: int) -> Tensor:
        """The same for all members of a run."""
        return own_parts(self.waves(count), self.runs, self.members)

    def asked(self, x: Tensor, quantiles: Tensor) -> Tensor:
        """Sample by sample, members first."""
        return _asked(self.features(x, quantiles.shape[-1]), quantiles)


@dataclass(frozen=True)
class Kernels(_Anywhere):
    """Members first and channels last, `[member, batch, y, x, channel]`, or `[member, batch, feature]`.

    Convolutions that `launch.native` says the kernels are written for run through them, others as grouped ones.
    """

    members: int

    def layer(self, name: str, x: Tensor, *, relu: bool = False, residual: Tensor | None = None) -> Tensor:
        """A convolution with what follows in one launch, or a batched matrix product."""
        kind, weight, bias = self.layers(name)
        if isinstance(kind, Conv):
            size = {"stride": kind.stride, "padding": kind.padding}
            return convolution.conv(x, weight, bias, relu=relu, residual=residual, **size)
        return _finished(_linear(self.features(x, kind.inputs), weight, bias), relu, residual)

    def features(self, x: Tensor, size: int) -> Tensor:
        """What a linear layer reads, `[member, batch, feature]`."""
        x = x.permute(0, 1, 4, 2, 3).flatten(2) if x.dim() == 5 else x
        return x.expand(self.members, -1, -1)

    def own(self, noise: Tensor) -> Tensor:
        """Every member's, for all of its samples."""
        return noise[:, None]

    def norm(self, name: str, x: Tensor) -> Tensor:
        """Over all but member and batch."""
        _, weight, bias = self.layers(name)
        gain, shift = (part.view(len(part), *(1 for _ in x.shape[2:]), -1) for part in (weight, bias))
        return functional.layer_norm(x, x.shape[2:]) * gain + shift

    def max_pool(self, x: Tensor) -> Tensor:
        """Over positions."""
        return pooling.max_pool(x)

    def average(self, x: Tensor) -> Tensor:
        """Over positions."""
        return x.mean((2, 3))

    def renormalise(self, x: Tensor) -> Tensor:
        """Over all features."""
        return _stretched(x.flatten(2)).view_as(x)

    def acted(self, x: Tensor, step: int) -> Tensor:
        """Behind the channels or units."""
        a = own_parts(self.taken(step), self.runs, self.members)  # [member, batch, action]
        a = a[:, :, None, None] if x.dim() == 5 else a
        return torch.cat((x, a.expand(*x.shape[:-1], -1)), -1)

    def together(self, *batches: Tensor) -> Tensor:
        """One after another."""
        return torch.cat(batches, 1)

    def part(self, x: Tensor, first: int, shape: tuple[int, ...]) -> Tensor:
        """Some of the columns, an image's channels moved last."""
        found = _part(x, first, shape)
        return found.permute(0, 1, 3, 4, 2).contiguous() if len(shape) == 3 else found

    def cosines(self, count: int) -> Tensor:
        """The same for all members of a run."""
        return own_parts(self.waves(count), self.runs, self.members)

    def asked(self, x: Tensor, quantiles: Tensor) -> Tensor:
        """Sample by sample."""
        return _asked(x.permute(0, 1, 4, 2, 3).flatten(2) if x.dim() == 5 else x, quantiles)

    def whole(self, network: Wiring, x: Tensor) -> tuple[Tensor, ...]:
        """A `wire`, with neighbouring convolutions, ReLUs and poolings joined into one autograd node."""
        values: dict[int, Any] = {0: x}
        for part in parts(network):
            if isinstance(part, Joined):
                params = [tensor for name in part.convolutions for tensor in self.layers(name)[1:]]
                found = trunk(part.program, [values[number] for number in part.inputs], params)
                values |= zip(part.outputs, found, strict=True)
            else:
                number, piece = part
                values[number] = piece.run(self, values)
        return tuple(values[number] for number in trace(network)[1])


def own_parts(x: Tensor, runs: int, members: int) -> Tensor:
    """Every member's part of x[row, ...], whose rows are those of one run after another: `[member, row, ...]`."""
    parts = x.reshape(runs, 1, -1, *x.shape[1:])
    return parts.expand(-1, members // runs, *parts.shape[2:]).flatten(0, 1)


def beside(images: Tensor, runs: int) -> Tensor:
    """Images of one run after another with the runs side by side in their channels, `[row, run * channel, y, x]`."""
    return images.reshape(runs, -1, *images.shape[1:]).transpose(0, 1).flatten(1, 2)


FORMS: dict[Form, type[_Anywhere]] = {"loop": Loop, "stacked": Stacked, "kernels": Kernels}


def best_form(network: Network, device: torch.device) -> Form:
    """The fastest form measured by `steadyq bench` (docs/performance.md), in every precision.

    The kernels, where they can be compiled and are written for all of the network's convolutions, if it has any.
    """
    convolutions = [layer for layer in network.layers.values() if isinstance(layer, Conv)]
    written = all(native(conv.size, conv.stride, conv.padding) for conv in convolutions)
    return "kernels" if compiles(device) and convolutions and written else "stacked"


@cache
def check(network: Wiring, form: Form) -> None:
    """Raise if the form lacks one of the network's pieces, naming it."""
    for piece in pieces(network):
        if not hasattr(FORMS[form], piece.kind):
            able = [name for name, kind in FORMS.items() if hasattr(kind, piece.kind)]
            raise UserError(
                f"compute.form {form} cannot run the piece '{piece.kind}' of {type(network).__name__}: "
                f"{f'use {able[0]}' if able else 'no form can'}"
            )


def _finished(y: Tensor, relu: bool, residual: Tensor | None) -> Tensor:
    y = y if residual is None else y + residual
    return functional.relu(y) if relu else y


def _linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Every member's linear map, x[member, batch, feature]."""
    # W x^T rather than x W^T: its weight gradient then lies in memory as the weight does.
    return torch.baddbmm(bias[:, :, None], weight, x.to(weight.dtype).transpose(1, 2)).transpose(1, 2)


def _part(x: Tensor, first: int, shape: tuple[int, ...]) -> Tensor:
    return x[..., first : first + math.prod(shape)].reshape(*x.shape[:-1], *shape)


def _asked(x: Tensor, quantiles: Tensor) -> Tensor:
    """Products of `[member, batch, feature]` with `[member, batch * quantile, feature]`, as many rows as the latter."""
    each = quantiles.view(len(quantiles), x.shape[1], -1, x.shape[2])
    return (x[:, :, None] * each).flatten(1, 2)


def _stretched(x: Tensor) -> Tensor:
    """To between 0 and 1 along the last dimension."""
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    return (x - low) / (high - low + 1e-5)
