"""What a network's layers and activations put out, whoever wrote it: as modules or as functions, in any order."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

LAYERS = {functional.linear, functional.conv1d, functional.conv2d, functional.conv3d}
ACTIVATIONS = {
    torch.relu, torch.relu_, Tensor.relu, Tensor.relu_, functional.relu, functional.relu6, functional.leaky_relu,
    functional.leaky_relu_, functional.prelu, functional.elu, functional.elu_, functional.selu, functional.selu_,
    functional.celu, functional.celu_, functional.gelu, functional.silu, functional.mish, functional.softplus,
    functional.softsign, functional.hardtanh, functional.hardswish, functional.hardsigmoid, functional.tanh, torch.tanh,
    torch.tanh_, Tensor.tanh, Tensor.tanh_, functional.sigmoid, torch.sigmoid, torch.sigmoid_, Tensor.sigmoid,
    Tensor.sigmoid_,
}  # fmt: skip
CLAMPS = {torch.clamp, torch.clamp_, torch.clamp_min, Tensor.clamp, Tensor.clamp_, Tensor.clamp_min, Tensor.clamp_min_}
"""A ReLU where they hold values at 0."""


@dataclass(eq=False)
class Call:
    """One pass through one layer."""

    name: str
    """The layer's in the network; empty where its weight is no parameter of it (a computed one)."""
    linear: bool
    read: Tensor
    output: Tensor
    fired: Tensor | None = None
    """What the first activation after it puts out, with whatever normalises or pools in between."""

    def units(self, values: Tensor) -> Tensor:
        """Values of its units as [row, unit, ...]: a linear layer's are last, a convolution's second."""
        return values.flatten(0, -2) if self.linear and values.shape[-1] == self.output.shape[-1] else values

    def features(self) -> Tensor:
        """What it reads as [row, feature]."""
        return self.read.flatten(0, -2) if self.linear else self.read.flatten(1)


class Tape(TorchFunctionMode):
    """Within its block, keeps what the layers of a network read and put out, and what their activations make of it.

    Which activation belongs to which layer, and which layers are the last, is read from the graph of the gradient, not
    from the order of the calls: streams of a dueling network may be computed in any.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.names = {id(p): name.rpartition(".")[0] for name, p in network.named_parameters()}
        self.calls: dict[Any, Call] = {}  # by the node of the graph that stands for what was passed on

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in LAYERS:
            return self._layer(function(*args, **kwargs), function is functional.linear, *_two(args, kwargs))
        if function in ACTIVATIONS or (function in CLAMPS and _rectifies(args, kwargs)):
            behind = self.behind(args[0] if args else kwargs["input"])  # before the call, which may be in place
            output: Tensor = function(*args, **kwargs)
            if behind and behind[-1].fired is None:
                behind[-1].fired = output.detach().clone()
            return output
        return function(*args, **kwargs)

    def behind(self, values: Tensor) -> list[Call]:
        """Layers from which these values come without another layer in between, in the order they were called."""
        return self._walk(values, through=False)

    def hidden(self, values: Tensor) -> list[Call]:
        """Layers of the network that have a part in these values, besides the last ones."""
        last = {call.name for call in self.behind(values)}
        return [call for call in self._walk(values, through=True) if call.name and call.name not in last]

    def _walk(self, values: Tensor, *, through: bool) -> list[Call]:
        found, seen, waiting = set[Call](), set[Any](), [values.grad_fn]
        while waiting:
            node = waiting.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            if (call := self.calls.get(node)) is not None:
                found.add(call)
            if call is None or through:
                waiting += [before for before, _ in node.next_functions]
        return [call for call in self.calls.values() if call in found]

    def _layer(self, output: Tensor, linear: bool, read: Tensor, weight: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return output
        if not output.requires_grad:  # frozen weights on an observation
            output.requires_grad_()
        passed = output.clone()  # an activation in place must not overwrite what is kept
        self.calls[passed.grad_fn] = Call(self.names.get(id(weight), ""), linear, read.detach(), output)
        return passed


def features(heads: list[Call]) -> Tensor:
    """What the last layers read, side by side, [row, feature]; what two of them read counts once."""
    parts = {(part.data_ptr(), part.shape): part for part in (head.features() for head in heads)}
    rows = len(heads[-1].features())
    return torch.cat([part for part in parts.values() if len(part) == rows], 1)


def _two(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Input and weight of a layer's call."""
    return args[0] if args else kwargs["input"], args[1] if len(args) > 1 else kwargs["weight"]


def _rectifies(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    low = args[1] if len(args) > 1 else kwargs.get("min")
    return isinstance(low, int | float) and low == 0 and len(args) < 3 and kwargs.get("max") is None
