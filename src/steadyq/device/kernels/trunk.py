# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls
"""Convolutions, ReLUs, residual sums and max-pooling as one autograd node over a static program.

One node pays because of its backward pass: what reaches a value from all its readers is known before the first of it is
computed, so that sums and ReLU gates ride in the epilogue of the last kernel that contributes, and weight gradients,
which lie off the chain, run on a second stream. Equal to the same chain of single layers (`trunk_reference`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from steadyq.device.kernels.convolution import conv_reference
from steadyq.device.kernels.launch import run_forward, run_input_gradient, run_weight_gradient
from steadyq.device.kernels.pooling import max_pool_reference, run_max_pool, run_max_pool_gradient
from steadyq.device.kernels.triton import available
from steadyq.device.streams import Beside


@dataclass(frozen=True)
class Step:
    """One piece: values are read by number, the program's inputs first, then what each step makes."""

    kind: Literal["conv", "relu", "pool"]
    source: int
    residual: int | None = None  # of a convolution: added to what it makes
    relu: bool = False  # of a convolution: applied after the sum
    stride: int = 1


@dataclass(frozen=True)
class Program:
    """Steps over `inputs` values, and the numbers of the values wanted from it."""

    inputs: int
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]

    @cached_property
    def made(self) -> dict[int, Step]:
        """The step behind each value that is no input."""
        return dict(enumerate(self.steps, start=self.inputs))

    @cached_property
    def convolutions(self) -> dict[int, int]:
        """Which convolution, counted from 0, makes a value."""
        return {value: i for i, value in enumerate(v for v, step in self.made.items() if step.kind == "conv")}

    @cached_property
    def kept(self) -> tuple[int, ...]:
        """Values that the backward pass reads: what convolutions read, and what gates a ReLU."""
        read = {step.source for step in self.steps if step.kind == "conv"}
        gates = {value for value, step in self.made.items() if step.kind == "relu" or step.relu}
        return tuple(sorted(read | gates))

    @cached_property
    def spent(self) -> dict[int, tuple[int, ...]]:
        """By step, numbered as its value, the values that nothing reads after it."""
        last = dict.fromkeys(range(self.inputs + len(self.steps)), 0)
        for value, step in self.made.items():
            last[step.source] = value
            if step.residual is not None:
                last[step.residual] = value
        return {
            value: tuple(v for v, reader in last.items() if reader == value and v not in self.outputs)
            for value in self.made
        }

    @cached_property
    def beside(self) -> dict[int, int]:
        """By convolution whose residual is a plain convolution that nothing else reads: that one.

        The gradients at both are one tensor, and their weight gradients can start together.
        """
        reads = [step.source for step in self.steps] + [r for step in self.steps if (r := step.residual) is not None]
        return {
            value: step.residual
            for value, step in self.made.items()
            if step.residual in self.convolutions
            and not self.made[step.residual].relu
            and self.made[step.residual].residual is None
            and (*reads, *self.outputs).count(step.residual) == 1
        }


def trunk(program: Program, inputs: Sequence[Tensor], params: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Run the program on `[member, batch, y, x, channel]`, or `[1, batch, ...]` where members share an input.

    `params` is flat: weight and bias of each convolution, of sizes and strides that `launch.native` allows.
    """
    if not available(inputs[0]):
        return trunk_reference(program, inputs, params)
    found: tuple[Tensor, ...] = _Trunk.apply(program, *inputs, *params)
    return found


def trunk_reference(program: Program, inputs: Sequence[Tensor], params: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """What `trunk` computes, step by step in plain PyTorch."""
    values = dict(enumerate(inputs))
    for value, step in program.made.items():
        x = values[step.source]
        match step.kind:
            case "conv":
                weight, bias = _own(params, program.convolutions[value])
                residual = None if step.residual is None else values[step.residual]
                y = conv_reference(x, weight, bias, stride=step.stride, relu=step.relu, residual=residual)
            case "relu":
                y = functional.relu(x)
            case "pool":
                y = max_pool_reference(x)
        values[value] = y
    return tuple(values[value] for value in program.outputs)


def _own(params: Sequence[Tensor], convolution: int) -> tuple[Tensor, Tensor]:
    return params[2 * convolution], params[2 * convolution + 1]


class _Trunk(torch.autograd.Function):
    @staticmethod
    def forward(ctx, program: Program, *tensors: Tensor) -> tuple[Tensor, ...]:
        params, values = tensors[program.inputs :], dict(enumerate(tensors[: program.inputs]))
        shapes = {value: x.shape for value, x in values.items()}
        learns, kept, taps = any(ctx.needs_input_grad), dict[int, Tensor](values), dict[int, Tensor]()
        for value, step in program.made.items():
            x = values[step.source]
            if step.kind == "conv":
                weight, bias = _own(params, program.convolutions[value])
                residual = None if step.residual is None else values[step.residual]
                values[value] = run_forward(x, weight, bias, stride=step.stride, relu=step.relu, residual=residual)
            elif step.kind == "relu":
                values[value] = functional.relu(x)
            else:
                values[value], tap = run_max_pool(x)
                if learns:
                    taps[value] = tap
            shapes[value] = values[value].shape
            if learns and value in program.kept:
                kept[value] = values[value]
            for old in program.spent[value]:
                del values[old]
        ctx.set_materialize_grads(False)
        ctx.program, ctx.count, ctx.pools, ctx.shapes = program, len(params), tuple(taps), shapes
        if learns:
            ctx.save_for_backward(*params, *(kept[value] for value in program.kept), *taps.values())
        return tuple(values[value] for value in program.outputs)

    @staticmethod
    def backward(ctx, *gradients):
        params, rest = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        count = len(ctx.program.kept)
        kept, taps = (
            dict(zip(names, part, strict=True))
            for names, part in ((ctx.program.kept, rest[:count]), (ctx.pools, rest[count:]))
        )
        wanted = ctx.needs_input_grad[1 : 1 + ctx.program.inputs]
        return (None, *_Backward(ctx.program, params, kept, taps, ctx.shapes).run(gradients, wanted))


@dataclass(frozen=True, eq=False)
class _Reader:
    """A convolution that reads a value, by what it will contribute to the value's gradient."""

    gradient: Tensor  # at its output
    weight: Tensor
    stride: int
    gate: Tensor | None = None  # of a ReLU between the value and the convolution

    @property
    def kernel(self) -> int:
        """Its size."""
        return self.weight.shape[-1]


@dataclass
class _Backward:
    """One backward pass: values' gradients from the last to the first, launched when all their readers are known."""

    program: Program
    params: Sequence[Tensor]
    kept: dict[int, Tensor]
    taps: dict[int, Tensor]
    shapes: dict[int, Any]
    parts: dict[int, list[Tensor | _Reader]] = field(default_factory=dict)

    def run(self, gradients: Sequence[Tensor | None], wanted: Sequence[bool]) -> list[Tensor | None]:
        """Gradients of inputs, where wanted, and parameters."""
        program = self.program
        device = self.params[0].device if self.params else next(g.device for g in gradients if g is not None)
        beside = Beside(device)  # weight gradients lie off the chain of input gradients
        found: dict[int, tuple[Tensor, Tensor]] = {}
        for value, gradient in zip(program.outputs, gradients, strict=True):
            if gradient is not None:
                self.give(value, gradient)
        first = min(program.convolutions, default=None)
        last: Tensor | None = None
        for value, step in reversed(program.made.items()):
            if value in found or value not in self.parts:
                continue
            if step.kind == "relu":
                self.through_relu(value, step)
                continue
            g = self.total(value, self.kept[value] if step.relu else None)
            beside.join(leave=1)
            if step.kind == "pool":
                self.give(step.source, run_max_pool_gradient(g, self.taps[value], self.shapes[step.source][2:4]))
                continue
            short = program.beside.get(value)
            if value == first:  # nothing is left to run beside
                last = g
            else:
                with beside.reading(g):
                    found[value] = self.weight_gradient(value, g)
                    if short is not None:
                        found[short] = self.weight_gradient(short, g)
            if short is not None:
                self.read(short, g)
            elif step.residual is not None:
                self.give(step.residual, g)
            self.read(value, g)
        inputs = [self.total(i, None) if want and i in self.parts else None for i, want in enumerate(wanted)]
        if first is not None and last is not None:
            found[first] = self.weight_gradient(first, last)
        beside.join()
        nothing = (None, None)
        return [*inputs, *(part for value in program.convolutions for part in found.get(value, nothing))]

    def give(self, value: int, part: Tensor | _Reader) -> None:
        """Add to what reaches a value."""
        self.parts.setdefault(value, []).append(part)

    def read(self, value: int, g: Tensor) -> None:
        """Give a convolution's source what reaches it from the gradient at the convolution's output."""
        step, (weight, _) = self.program.made[value], _own(self.params, self.program.convolutions[value])
        self.give(step.source, _Reader(g, weight, step.stride))

    def weight_gradient(self, value: int, g: Tensor) -> tuple[Tensor, Tensor]:
        """Of the convolution that makes the value."""
        step, (weight, _) = self.program.made[value], _own(self.params, self.program.convolutions[value])
        return run_weight_gradient(self.kept[step.source], g, weight.shape[-1], step.stride)

    def through_relu(self, value: int, step: Step) -> None:
        """Pass on what reaches a ReLU: one reader's input gradient with the gate, to be computed later, or the sum."""
        gate, (part, *more) = self.kept[value], self.parts[value]
        if more or not isinstance(part, _Reader) or part.gate is not None:
            self.give(step.source, self.total(value, gate))
        else:
            del self.parts[value]
            self.give(step.source, replace(part, gate=gate))

    def total(self, value: int, gate: Tensor | None) -> Tensor:
        """Add up what reaches a value, times `gate > 0`: as few launches as there are convolutions that read it."""
        shape, parts = self.shapes[value], self.parts.pop(value)
        readers = sorted((part for part in parts if isinstance(part, _Reader)), key=lambda reader: reader.gate is None)
        add: Any = None
        for part in parts:
            if not isinstance(part, _Reader):
                add = part if add is None else add + part
        side = _side(readers)
        if side is not None:
            readers.remove(side)
        for reader in readers:
            own = reader.gate is not None
            closing = reader is readers[-1] and not own
            beside = None
            if side is not None and _takes_side(reader):
                beside, side = (side.gradient, side.weight), None
            add = run_input_gradient(
                reader.gradient, reader.weight, shape[2:4], stride=reader.stride, add=add, side=beside,
                gate=gate if closing else reader.gate, gate_alone=own,
            )  # fmt: skip
            gate = None if closing else gate
        total: Tensor = add if gate is None else torch.ops.aten.threshold_backward(add, gate, 0)
        return total if total.shape[0] == shape[0] else total.sum(0, keepdim=True)


def _takes_side(reader: _Reader) -> bool:
    return reader.stride == 2 and reader.gate is None and reader.kernel == 3


def _side(readers: list[_Reader]) -> _Reader | None:
    """A 1x1 shortcut at stride 2 whose input gradient can ride along with that of a 3x3 convolution beside it."""
    shorts = [reader for reader in readers if reader.stride == 2 and reader.gate is None and reader.kernel == 1]
    wide = [reader for reader in readers if _takes_side(reader)]
    fits = shorts and wide and shorts[0].gradient.shape == wide[0].gradient.shape
    return shorts[0] if fits else None
