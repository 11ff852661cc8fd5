"""M independent networks of one description, their parameters stacked in one set of tensors."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, assert_never, cast

import torch
from torch import Tensor

from steadyq.nets.forms import Form, Kernels, Loop, Noises, Stacked, beside, check, own_parts
from steadyq.nets.layers import FIXED, SIGMA, Encoding, Executor, Layer, LayerNorm, Network, Noise, Wiring
from steadyq.nets.packing import Packing
from steadyq.nets.prediction import Contrast, Projection, Rollout
from steadyq.nets.spectral import SETTLING, VECTORS, divided, iterated

Params = dict[str, Tensor]
"""Parameters by name, each stacked over members in its first dimension."""


@dataclass(frozen=True)
class Ensemble:
    """Runs `members` copies of `network`, predicting `[member, batch, action, atom]` in float32.

    Where several `runs` share the stack, the batch is theirs one after another, and the members predicted are those of
    one run: `[member of a run, batch of all runs, action, atom]`.

    All layers but the outputs compute in `dtype`, whatever the parameters are kept in; the outputs stay in float32,
    because values are read off them.
    """

    network: Network
    members: int
    actions: int
    atoms: int
    pixel_max: float = 1.0
    form: Form = "stacked"
    dtype: torch.dtype = torch.float32
    packing: Packing | None = None  # of observations that are several things at once
    fixed: int = 32  # quantiles that a network with `cosines` is asked for where nobody says which
    runs: int = 1  # that share the stack: the members of each, one run after another, see that run's part of a batch

    @property
    def exact(self) -> tuple[str, ...]:
        """Parameters that compute in float32 whatever `dtype` is: those of the outputs, and singular vectors."""
        names = (name for name in self.network.layers if name.removesuffix(SIGMA) in self.network.heads)
        return (*(f"{name}.{part}" for name in names for part in ("weight", "bias")), *self.vectors)

    @property
    def vectors(self) -> tuple[str, ...]:
        """The singular vectors of normalised weights."""
        return tuple(f"{name}.{part}" for name in self.network.spectral_layers for part in VECTORS)

    @cached_property
    def still(self) -> frozenset[str]:
        """What neither gradients nor penalties nor decay move."""
        fixed = [name for name in self.network.layers if self.network.group(name) in FIXED]
        return frozenset((*self.vectors, *(f"{name}.{part}" for name in fixed for part in ("weight", "bias"))))

    def initial(self, generator: torch.Generator, device: torch.device | str = "cpu") -> Params:
        """Draw all members' parameters."""
        params: Params = {}
        for name, layer in self.network.layers.items():
            if self.network.group(name) == "kept":
                weight, bias = torch.zeros(self.members, *layer.weight_shape), torch.zeros(self.members, layer.outputs)
            else:
                weight, bias = self.initial_layer(layer, generator)
            params[f"{name}.weight"], params[f"{name}.bias"] = weight.to(device), bias.to(device)
        shapes = self.shapes()
        for name in self.vectors:
            params[name] = torch.randn(shapes[name], generator=generator).to(device)
        for name in self.network.spectral_layers:
            self.iterate_(params, name, SETTLING)
        return params

    @torch.no_grad()
    def iterate_(self, params: Params, name: str, times: int = 1, members: Tensor | None = None) -> None:
        """Power iterations of a normalised layer's singular vectors in place, of the given members or of all."""
        left, right = (params[f"{name}.{part}"] for part in VECTORS)
        for old, new in zip((left, right), iterated(params[f"{name}.weight"], left, right, times), strict=True):
            old.copy_(new if members is None else torch.where(members.to(old.device)[:, None], new, old))

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of all parameters, members first."""
        found: dict[str, tuple[int, ...]] = {}
        for name, layer in self.network.layers.items():
            found[f"{name}.weight"] = (self.members, *layer.weight_shape)
            found[f"{name}.bias"] = (self.members, layer.outputs)
        for name in self.network.spectral_layers:
            rows, *columns = self.network.layers[name].weight_shape
            found |= {f"{name}.left": (self.members, rows), f"{name}.right": (self.members, math.prod(columns))}
        return found

    def initial_layer(self, layer: Layer, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw one layer's weight and bias for all members; a normalisation starts as none, gains 1 and biases 0, noise
        at one size everywhere.
        """
        weight, bias = torch.ones(self.members, *layer.weight_shape), torch.zeros(self.members, layer.outputs)
        if isinstance(layer, LayerNorm):
            return weight, bias
        fan_in = math.prod(layer.weight_shape[1:])
        if isinstance(layer, Noise):
            return weight * (layer.spread / math.sqrt(fan_in)), bias + layer.spread / math.sqrt(fan_in)
        if self.network.initial == "xavier":
            bound = math.sqrt(6 / (fan_in + layer.outputs * math.prod(layer.weight_shape[2:])))
            return weight.uniform_(-bound, bound, generator=generator), bias
        bound = 1 / math.sqrt(fan_in)
        weight.uniform_(-bound, bound, generator=generator)
        return weight, bias.uniform_(-bound, bound, generator=generator)

    def forward(
        self,
        params: Params,
        observation: Tensor,
        around: Callable[[Executor[Tensor]], Executor[Tensor]] | None = None,
        taus: Tensor | None = None,
        noise: Tensor | None = None,
    ) -> Tensor:
        """Return z[member, batch, action, atom] of observations [batch, ...] shown to every member.

        `around` may wrap what executes the pieces, to look at what lies between them. `taus[batch or 1, atom]` are the
        quantiles that a network with `cosines` is asked for; without them evenly spaced ones. `noise[member, number]`
        are `noise_size` normal numbers for each member of a noisy network; without them it is run at its means.
        """
        (z,) = self._run(self.network, params, observation, around=around, taus=taus, noise=noise)
        return self._values(z, observation.shape[0])

    def predict(
        self,
        params: Params,
        observation: Tensor,
        action: Tensor,
        taus: Tensor | None = None,
        noise: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return z, and what every member predicts of its own projections after the actions [step, batch]:
        [member, step, batch, unit].
        """
        chosen = (action[..., None] == torch.arange(self.network.transition, device=action.device)).to(self.dtype)
        rollout = Rollout(self.encoding, len(action))
        z, predicted = self._run(rollout, params, observation, chosen, taus=taus, noise=noise)
        return self._values(z, observation.shape[0]), self._by_step(predicted, len(action))

    def project(self, params: Params, observation: Tensor) -> Tensor:
        """Return the last hidden units of observations [step, batch, ...] before their ReLU, [member, step, batch,
        unit].
        """
        steps, _, *shape = observation.shape
        rows = observation.reshape(steps, self.runs, -1, *shape).transpose(0, 1).flatten(0, 2)
        return self._by_step(self._run(Projection(self.encoding), params, rows)[0], steps)

    def contrast(self, params: Params, observation: Tensor, *, query: bool) -> Tensor:
        """Return what a contrastive loss compares of observations [batch, ...], [member, batch, unit]."""
        return self._of_all(self._run(Contrast(self.encoding, query), params, observation)[0], 1)

    @property
    def noise_size(self) -> int:
        """Normal numbers that make a member's noise: one for each input and output of a noisy layer."""
        return sum(layer.inputs + layer.outputs for layer in self.network.layers.values() if isinstance(layer, Noise))

    def noises(self, noise: Tensor) -> Noises:
        """f(in) and f(out) of each noisy layer, `[member, feature]`, from normal numbers: f(x) = sign(x) sqrt(|x|)."""
        layers = {name: layer for name, layer in self.network.layers.items() if isinstance(layer, Noise)}
        sizes = [size for layer in layers.values() for size in (layer.inputs, layer.outputs)]
        parts = iter(torch.split(noise.sign() * noise.abs().sqrt(), sizes, dim=1))
        return {name.removesuffix(SIGMA): (next(parts), next(parts)) for name in layers}

    @property
    def encoding(self) -> Encoding:
        """The network, as one that has an encoder."""
        if not hasattr(self.network, "latent"):
            raise TypeError(f"{self.network} does not say what its encoder is")
        return cast(Encoding, self.network)

    def seen(self, observation: Tensor) -> Tensor:
        """Observations as the networks see them: unpacked, scaled, in `dtype`."""
        if self.packing is not None:
            return self.packing.unpacked(observation).to(self.dtype)
        x = observation.to(self.dtype)
        return x / self.pixel_max if self.pixel_max != 1 else x

    def _values(self, z: Tensor, count: int) -> Tensor:
        each = count // self.runs
        if self.network.cosines:
            z = z.view(self.members, each, -1, self.actions).transpose(2, 3)
        else:
            z = z.view(self.members, each, self.actions, self.atoms)
        return self._of_all(z, 1)

    def _by_step(self, x: Tensor, steps: int) -> Tensor:
        """Units of every member's rows, those of one step after another, `[member, step, batch, unit]`."""
        return self._of_all(x.reshape(len(x), steps, -1, x.shape[-1]), 2)

    def _of_all(self, x: Tensor, place: int) -> Tensor:
        """Every member's part of a batch, which lies in this dimension, as the whole batch of the members of a run."""
        if self.runs == 1:
            return x
        return x.view(self.runs, -1, *x.shape[1:]).movedim(0, place).flatten(place, place + 1)

    def _run(
        self,
        wiring: Wiring,
        params: Params,
        observation: Tensor,
        actions: Tensor | None = None,
        around: Callable[[Executor[Tensor]], Executor[Tensor]] | None = None,
        taus: Tensor | None = None,
        noise: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """What the wiring makes of the observations, members first."""
        check(wiring, self.form)
        x = self.seen(observation)
        layers, wrapped = partial(self.layer, params), around or _itself
        given: dict[str, Any] = {"actions": actions, "runs": self.runs}
        if self.network.cosines:
            taus = (torch.arange(self.fixed, device=x.device)[None] + 0.5) / self.fixed if taus is None else taus
            given["taus"] = taus.expand(x.shape[0], -1)
        if noise is not None and noise.shape[1]:
            given["noises"] = self.noises(noise)
        match self.form:
            case "loop":
                runs = [Loop(layers, member, **given) for member in range(self.members)]
                found = [_several(wiring.wire(wrapped(run), x)) for run in runs]
                return tuple(torch.stack(parts) for parts in zip(*found, strict=True))
            case "stacked":
                seen = x if x.dim() == 4 else x.flatten(1)
                if self.runs > 1:
                    seen = beside(seen, self.runs) if x.dim() == 4 else own_parts(seen, self.runs, self.members)
                return _several(wiring.wire(wrapped(Stacked(layers, self.members, **given)), seen))
            case "kernels":
                run, seen = Kernels(layers, self.members, **given), _channels_last(x)
                if self.runs > 1:
                    seen = own_parts(seen[0], self.runs, self.members)
                return run.whole(wiring, seen) if around is None else _several(wiring.wire(around(run), seen))
        assert_never(self.form)

    def layer(self, params: Params, name: str) -> tuple[Layer, Tensor, Tensor]:
        """A layer with its weight and bias as it computes."""
        layer, dtype, weight_name, bias_name, spectral, kept = self._layers[name]
        weight, bias = params[weight_name], params[bias_name]
        if spectral:
            weight = divided(weight, *(params[f"{name}.{part}"] for part in VECTORS))
        if kept:
            weight, bias = weight.detach(), bias.detach()
        if weight.dtype != dtype:  # asked first: `to` takes a microsecond where there is nothing to do
            weight, bias = weight.to(dtype), bias.to(dtype)
        return layer, weight, bias

    @cached_property
    def _layers(self) -> dict[str, tuple[Layer, torch.dtype, str, str, bool, bool]]:
        """Each layer, what it computes in, its parameters' names, whether it is normalised and whether it is kept."""
        network = self.network
        return {
            name: (
                layer,
                torch.float32 if name.removesuffix(SIGMA) in network.heads else self.dtype,
                f"{name}.weight",
                f"{name}.bias",
                name in network.spectral_layers,
                network.group(name) == "kept",
            )
            for name, layer in network.layers.items()
        }


def _several(found: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return found if isinstance(found, tuple) else (found,)


def _itself(run: Executor[Tensor]) -> Executor[Tensor]:
    return run


def _channels_last(observation: Tensor) -> Tensor:
    """Observations as the kernels form reads them, of one member that stands for all: `[1, batch, y, x, channel]`."""
    x = observation.permute(0, 2, 3, 1).contiguous() if observation.dim() == 4 else observation.flatten(1)
    return x[None]
