"""Each convolution of the ensemble through the kernels, beside what the device could do at best."""

import math
from collections.abc import Callable
from typing import Any

import torch

from steadyq.bench.clock import milliseconds
from steadyq.bench.updates import BATCH, Case, Rates
from steadyq.device.capture import Captured
from steadyq.device.kernels import launch
from steadyq.nets.layers import Conv

LAUNCHES = 20


def layer_times(case: Case, rates: Rates, device: torch.device) -> list[dict[str, Any]]:
    """Milliseconds of each pass over each kind of convolution, all members together, in bf16; one row a kind."""
    kinds: dict[Conv, list[str]] = {}
    for name, layer in case.network.layers.items():
        if isinstance(layer, Conv):
            kinds.setdefault(layer, []).append(name)
    rows = []
    for first, (conv, names) in enumerate(kinds.items()):
        shown = case.members if first else 1  # all members see the one observation
        passes = _passes(conv, case.members, shown, device)
        if not first or conv.size == 1:  # nobody wants the observation's; a shortcut's is part of its neighbour's
            del passes["input gradient"]
        times = {
            name: milliseconds(captured(run, device), device, budget=0.2) / LAUNCHES for name, run in passes.items()
        }
        floor = floor_ms(conv, case.members, shown, rates)
        rows.append({"layers": names, "shape": _shape(conv), "ms": times, "floor_ms": floor})
    return rows


def _shape(conv: Conv) -> str:
    return f"{conv.size}x{conv.size} {conv.inputs}->{conv.outputs} @{conv.image[0]}" + (
        "/2" if conv.stride == 2 else ""
    )


def floor_ms(conv: Conv, members: int, shown: int, rates: Rates) -> float:
    """Arithmetic at the best rate, or reading the input and writing the output once in bf16, whichever takes longer.

    `shown` inputs are read by the members: one each, or one by all.
    """
    arithmetic = 2 * conv.multiplications * members * BATCH / rates.bf16_flops
    read = conv.inputs * math.prod(conv.image_out if conv.size < conv.stride else conv.image)
    numbers = BATCH * (shown * read + members * conv.written) + members * math.prod(conv.weight_shape)
    return 1e3 * max(arithmetic, 2 * numbers / rates.bytes_per_second)


def _passes(conv: Conv, members: int, shown: int, device: torch.device) -> dict[str, Callable[[], Any]]:
    """The launches as training makes them: ReLU, gate and, at stride 2, the shortcut's input gradient ride along."""
    noise = torch.Generator(device).manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device, generator=noise).to(torch.bfloat16)

    x = random(shown, BATCH, *conv.image, conv.inputs)
    g = random(members, BATCH, *conv.image_out, conv.outputs)
    packed = random(members, conv.outputs, conv.size, conv.size, conv.inputs)
    weight, bias = packed.permute(0, 1, 4, 2, 3), random(members, conv.outputs)
    relu, stride = conv.size > 1, conv.stride
    side = (g, random(members, conv.outputs, 1, 1, conv.inputs).permute(0, 1, 4, 2, 3)) if stride == 2 else None
    return {
        "forward": lambda: launch.run_forward(x, weight, bias, stride=stride, relu=relu),
        "input gradient": lambda: launch.run_input_gradient(g, weight, conv.image, stride=stride, gate=x, side=side),
        "weight gradient": lambda: launch.run_weight_gradient(x, g, conv.size, stride)[0],
    }


def captured(function: Callable[[], Any], device: torch.device) -> Callable[[], Any]:
    """Many launches in one graph, as in an update: the host's time to start one would hide the small ones."""
    nothing = torch.zeros((), device=device)

    def launches(unused: torch.Tensor) -> Any:
        for _ in range(LAUNCHES - 1):
            function()
        return function()

    run = Captured(launches, device)
    return lambda: run(nothing)
