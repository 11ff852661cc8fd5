"""Search tiles for the convolutions of a preset's network on this GPU: the fastest that computes the right thing.

python experiments/tile_search.py --preset swift --json tiles.json --write src/steadyq/device/kernels/tiles.py

Two launches run side by side, as in training, where target and online networks, or both gradients of a layer, share
the GPU: the fastest tile alone may fill it so that nothing fits beside it. Of the candidates that agree with float32 to
rounding (TOLERANCE) and repeat themselves bit for bit the fastest is taken; where it wins more than `--gain` over the
tile in use it is printed as a row of `tiles.MEASURED`, and written there if asked to.
"""

import argparse
import itertools
import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from steadyq import envs, presets
from steadyq.bench.clock import milliseconds
from steadyq.bench.layers import LAUNCHES, captured
from steadyq.build import ensemble_for
from steadyq.device.kernels import launch
from steadyq.device.kernels.tiles import MEASURED, Config, Layer, config_for, power
from steadyq.device.kernels.triton import compiling_ahead, triton
from steadyq.device.streams import Beside
from steadyq.nets.layers import Conv
from steadyq.run.provenance import provenance

TOLERANCE = 5e-3  # bf16 rounds to 2e-3 of a number, and what it multiplies was rounded before
DEVICE, DTYPE = torch.device("cuda"), torch.bfloat16


@dataclass(frozen=True)
class Pass:
    """One pass of one layer: how to launch it with a tile, and what float32 says it is."""

    layer: Layer
    run: Callable[[Config | None], Tensor]
    exact: Callable[[], Tensor]


def passes(conv: Conv, members: int, batch: int, first: bool) -> Iterator[Pass]:
    """The passes of a layer as training makes them, on noise."""
    noise = torch.Generator(DEVICE).manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, device=DEVICE, generator=noise).to(DTYPE)

    shown, stride, size = 1 if first else members, conv.stride, conv.size
    x, gate = random(shown, batch, *conv.image, conv.inputs), random(members, batch, *conv.image, conv.inputs)
    g = random(members, batch, *conv.image_out, conv.outputs)
    scale = (conv.inputs * size * size) ** -0.5
    packed = random(members, conv.outputs, size, size, conv.inputs) * scale
    weight, bias = packed.permute(0, 1, 4, 2, 3), random(members, conv.outputs)
    key = (size, stride, conv.image[0], conv.inputs, conv.outputs)
    images, slope = x.float().permute(0, 1, 4, 2, 3), g.float().permute(0, 1, 4, 2, 3)
    seen = images.expand(members, *images.shape[1:])

    def each(function: Callable[[int], Tensor]) -> Tensor:
        return torch.stack([function(m) for m in range(members)])

    def forward() -> Tensor:
        y = each(lambda m: functional.conv2d(seen[m], weight[m].float(), bias[m].float(), stride, conv.padding))
        return functional.relu(y).permute(0, 1, 3, 4, 2)

    def back(w: Tensor, m: int, padding: int) -> Tensor:
        return torch.nn.grad.conv2d_input(seen[m].shape, w[m].float(), slope[m], stride, padding)

    yield Pass(
        ("forward", *key), lambda c: launch.run_forward(x, weight, bias, stride=stride, relu=True, config=c), forward
    )
    if not first and size > 1:
        short = (random(members, conv.outputs, 1, 1, conv.inputs) * scale).permute(0, 1, 4, 2, 3)
        side = (g, short) if stride == 2 else None

        def gradient() -> Tensor:
            total = each(lambda m: back(weight, m, conv.padding) + (back(short, m, 0) if side else 0))
            return torch.where(gate > 0, total.permute(0, 1, 3, 4, 2), 0)

        yield Pass(
            ("spread", *key) if side else ("input", size, stride, conv.image[0], conv.outputs, conv.inputs),
            lambda c: launch.run_input_gradient(g, weight, conv.image, stride=stride, gate=gate, side=side, config=c),
            gradient,
        )
    yield Pass(
        ("weight", *key),
        lambda c: launch.run_weight_gradient(x, g, size, stride, c)[0],
        lambda: each(lambda m: torch.nn.grad.conv2d_weight(seen[m], weight[m].shape, slope[m], stride, conv.padding)),
    )


def candidates(layer: Layer) -> Iterator[Config]:
    """Tiles that could be good, and strips where strips are written for."""
    kind, kernel, stride, _, channels, outputs = layer
    if kind == "spread":
        for m, n, warps in itertools.product((64, 128), (32, 64), (4, 8)):
            if m * n * 4 <= 32 * warps * 256 and n <= power(channels):
                yield Config(block_m=m, block_n=n, block_k=min(32, power(outputs)), warps=warps, stages=2)
        return
    sizes = [(m, n) for m in (64, 128, 256) for n in (32, 64, 128, 256) if n <= power(outputs) and m * n <= 128 * 128]
    if kind == "weight":
        for (m, n), k, programs in itertools.product(sizes, (64, 128), (132, 264, 528)):
            if m <= power(kernel * kernel * channels, 32) and m < 256 and n < 256:
                yield Config(block_m=m, block_n=n, block_k=k, programs=programs, warps=4 + 4 * (m * n > 64 * 128))
    elif channels >= 16:
        depths = (64,) if channels >= 128 else (32, 64) if channels >= 64 else (power(channels),)
        for (m, n), k, stages in itertools.product(sizes, depths, (3, 4)):
            yield Config(block_m=m, block_n=n, block_k=k, warps=4 + 4 * (m * n > 64 * 128), stages=stages)
    if kernel == 3 and stride == 1 and max(channels, outputs) <= 64:
        pairs = (True, False) if max(channels, outputs) <= 32 else (False,)
        for m, rows, pair, warps in itertools.product((64, 128), (7, 14, 21), pairs, (4, 8)):
            yield Config(strip=True, block_m=m, rows=rows, pair=pair, warps=warps, stages=2 if channels < 16 else 3)


def right(one: Pass, config: Config, exact: Tensor) -> bool:
    """Whether a tile gives float32's numbers, rounded, and the same at each launch."""
    found = one.run(config)
    error = ((found.float() - exact).norm() / exact.norm()).item()
    return error < TOLERANCE and torch.equal(found, one.run(config))


def searched(one: Pass, wanted: list[Config]) -> dict[Config, float]:
    """Microseconds of every candidate that this GPU can hold, two launches side by side."""
    found = dict[Config, float]()
    for config in wanted:
        with suppress(triton.runtime.errors.OutOfResources):
            ms = milliseconds(captured(lambda c=config: paired(one, c), DEVICE), DEVICE, budget=0.02, warm=4)
            found[config] = 1e3 * ms / LAUNCHES / 2
    return dict(sorted(found.items(), key=lambda item: item[1]))


def paired(one: Pass, config: Config) -> Tensor:
    """Two launches that may run at a time."""
    beside = Beside(DEVICE)
    with beside.reading():
        other = one.run(config)
    found = one.run(config)
    beside.join()
    del other
    return found


def row(layer: Layer, config: Config) -> str:
    """As it stands in `tiles.MEASURED`."""
    plain = asdict(Config())
    said = ", ".join(f"{name}={value}" for name, value in asdict(config).items() if value != plain[name])
    return f"    {layer!r}: Config({said}),".replace("'", '"')


def main() -> None:
    """Search layer by layer; print, and write if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="swift")
    parser.add_argument("--env", default="Atari/Alien")
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--gain", type=float, default=0.05, help="share of the time in use that must be won")
    parser.add_argument("--again", action="store_true", help="layers that were measured too")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--write", type=Path, help="the file that has MEASURED")
    args = parser.parse_args()
    limit = time.monotonic() + 60 * args.minutes
    recipe = presets.PRESETS[args.preset](args.env)
    ensemble = ensemble_for(recipe, envs.spec(recipe.env, recipe.protocol))
    kinds = dict.fromkeys(layer for layer in ensemble.network.layers.values() if isinstance(layer, Conv))
    work = []
    for first, conv in enumerate(kinds):
        for one in passes(conv, ensemble.members, recipe.replay.batch, first == 0):
            if one.layer[1] > 1 and (args.again or one.layer not in MEASURED):  # shortcuts take next to no time
                own = config_for(*one.layer, torch.bfloat16)
                work.append((one, [own, *(c for c in candidates(one.layer) if c != own)]))
    print(f"{len(work)} passes, {sum(len(c) for _, c in work)} candidates", flush=True)
    start = time.monotonic()
    with compiling_ahead(DEVICE):
        for one, configs in work:
            for config in configs:
                one.run(config)
    print(f"compiled in {time.monotonic() - start:.0f} s", flush=True)
    found, rows = [], []
    for one, configs in work:
        if time.monotonic() > limit:
            break
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        times, exact = searched(one, configs), one.exact()
        best = next((config for config in times if right(one, config, exact)), None)
        if best is None:
            print(f"{one.layer}: none of {len(times)} tiles agrees with float32", flush=True)
            continue
        own = times.get(configs[0], math.inf)
        print(f"{one.layer}: {own:.1f} -> {times[best]:.1f} us, {len(times)} tiles", flush=True)
        found.append({"layer": one.layer, "us": [[asdict(config), us] for config, us in times.items()]})
        if times[best] < (1 - args.gain) * own:
            rows.append(row(one.layer, best))
        if args.json:
            args.json.write_text(json.dumps({"tiles": found, "machine": provenance()}) + "\n")
    print("\n".join(rows))
    if args.write and rows:
        old = tuple(row.split(":")[0] for row in rows)
        kept = [line for line in args.write.read_text().splitlines() if not line.startswith(old)]
        place = kept.index("MEASURED: dict[Layer, Config] = {") + 1
        args.write.write_text("\n".join([*kept[:place], *rows, *kept[place:]]) + "\n")


if __name__ == "__main__":
    main()
