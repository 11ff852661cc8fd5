# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls, allow-incomplete-defs, no-warn-return-any
"""What replay does to a few numbers or images, in one launch each: as plain PyTorch it is some hundred kernels of a
microsecond, one after another, before an update can begin. The plain texts are where they are used (`replay/`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from steadyq.device.kernels.tiles import power
from steadyq.device.kernels.triton import jit, launch, only_compiling, tl, triton

SLOTS, POSITIONS = 32, 256
"""Transitions and pixels per program."""


@jit
def _search_kernel(
    prefix, mass, stamp, uniform, index, weight, written, slots, count, beta, steps: tl.constexpr, block: tl.constexpr
):  # fmt: skip
    run = tl.program_id(0).to(tl.int64)
    i = run * count + tl.arange(0, block)
    real = tl.arange(0, block) < count
    first, end = run * slots, run * slots + slots
    before = tl.load(prefix + first - 1, mask=run > 0, other=0.0)
    total = tl.load(prefix + end - 1) - before
    point = (tl.arange(0, block).to(tl.float64) + tl.load(uniform + i, mask=real, other=0.0)) / count * total
    point = tl.minimum(point, total - total * 1e-12)
    low = tl.zeros((block,), tl.int64) + first
    high = tl.zeros((block,), tl.int64) + end
    for _ in range(steps):
        middle = (low + high) // 2
        below = (low < high) & (tl.load(prefix + middle, mask=middle < end, other=0.0) - before <= point)
        low = tl.where(below, middle + 1, low)
        high = tl.where(below, high, middle)
    own = tl.load(mass + low, mask=real, other=1e300)
    ratio = tl.where(real, own / tl.min(own, 0), 1.0).to(tl.float32)
    tl.store(index + i, low, mask=real)
    tl.store(weight + i, tl.exp(-beta * tl.log(ratio)), mask=real)
    tl.store(written + i, tl.load(stamp + low, mask=real), mask=real)


def search(
    prefix: Tensor, mass: Tensor, stamp: Tensor, uniform: Tensor, beta: float, runs: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """One slot per stratum of the masses whose sums `prefix` holds, its importance weight, and its stamp; of several
    runs, each of its own part of the slots.
    """
    slots, count = len(prefix) // runs, len(uniform) // runs
    index, written, weight = (
        _slots(uniform, len(uniform)),
        _slots(uniform, len(uniform)),
        uniform.new_empty(len(uniform), dtype=torch.float32),
    )
    block = power(count, 2)
    launch(
        _search_kernel, (runs,), prefix, mass, stamp, uniform, index, weight, written, slots, count, beta,
        steps=slots.bit_length(), block=block, num_warps=max(1, min(8, block // 64)),
    )  # fmt: skip
    return index, weight, written


@jit
def _window_kernel(
    index, end, reward, gamma, horizon, total, discount, after, count, length,
    n: tl.constexpr, overlap: tl.constexpr, terminated: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0) * block + tl.arange(0, block)
    real = i < count
    first = tl.load(index + i, mask=real, other=0)
    lane = first // length * length
    rate = tl.load(gamma)
    steps = tl.load(horizon)
    power = tl.zeros((block,), tl.float32) + 1.0
    found = tl.zeros((block,), tl.float32)
    factor = tl.zeros((block,), tl.float32)
    taken = tl.zeros((block,), tl.int64)
    slot = first
    ended = tl.zeros((block,), tl.int32)
    goes = real
    for k in range(n):
        here = lane + (first - lane + k) % length
        counts = goes
        if n > 1:
            counts = goes & (k < steps)
        state = tl.load(end + here, mask=real, other=0).to(tl.int32)
        found += tl.where(counts, tl.load(reward + here, mask=real, other=0.0) * power, 0.0)
        power *= rate
        factor = tl.where(counts, power, factor)
        taken += counts.to(tl.int64)
        slot = tl.where(counts, here, slot)
        ended = tl.where(counts, state, ended)
        goes = goes & (state == 0)
    over = ended == terminated
    if overlap and n > 1:
        over = over & (taken < steps)
    tl.store(total + i, found, mask=real)
    tl.store(discount + i, tl.where(over, 0.0, factor), mask=real)
    if not overlap:
        slot = lane + (slot - lane + 1) % length
    tl.store(after + i, slot, mask=real)


def window(
    index: Tensor, end: Tensor, reward: Tensor, gamma: Tensor, horizon: Tensor, *, length: int, n: int,
    overlap: bool, terminated: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Discounted reward of up to n steps from the given slots, what multiplies the bootstrap, and the slot of s'."""
    total, discount, after = reward.new_empty(len(index)), reward.new_empty(len(index)), _slots(index, len(index))
    launch(
        _window_kernel, (triton.cdiv(len(index), SLOTS),), index, end, reward, gamma, horizon, total, discount, after,
        len(index), length, n=n, overlap=overlap, terminated=terminated, block=SLOTS, num_warps=1,
    )  # fmt: skip
    return total, discount, after


@jit
def _stack_kernel(
    frame, age, index, out, length, positions, stack: tl.constexpr, channels: tl.constexpr,
    block: tl.constexpr, wide: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0).to(tl.int64)
    p = tl.program_id(1) * block + tl.arange(0, block)
    c = tl.arange(0, wide)
    slot = tl.load(index + image)
    lane = slot // length * length
    back = stack - 1 - c // channels
    used = c < stack * channels
    source = lane + (slot - lane - back + stack * length) % length
    inside = (p < positions)[:, None] & used[None, :]
    known = inside & (back <= tl.load(age + slot))[None, :]
    pixel = tl.load(frame + (source * channels + c % channels)[None, :] * positions + p[:, None], mask=known, other=0)
    tl.store(out + (image * positions + p)[:, None] * (stack * channels) + c[None, :], pixel, mask=inside)


def stacked(frame: Tensor, age: Tensor, index: Tensor, *, stack: int, length: int) -> Tensor:
    """The last `stack` frames[slot, channel, y, x] of every index, zeros before a trajectory's first: images of
    `[index, stack * channel, y, x]`, channels last in memory.
    """
    _, channels, height, width = frame.shape
    out = frame.new_empty(len(index), height, width, stack * channels)
    grid = len(index), triton.cdiv(height * width, POSITIONS)
    launch(
        _stack_kernel, grid, frame, age, index, out, length, height * width,
        stack=stack, channels=channels, block=POSITIONS, wide=power(stack * channels, 2),
    )  # fmt: skip
    return out.permute(0, 3, 1, 2)


@jit
def _moved_kernel(
    images, shift, intensity, out, s_image, s_channel, s_y, s_x, height, width,
    channels: tl.constexpr, block: tl.constexpr, wide: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0).to(tl.int64)
    p = tl.program_id(1) * block + tl.arange(0, block)
    c = tl.arange(0, wide)
    y = tl.minimum(tl.maximum(p // width + tl.load(shift + 2 * image), 0), height - 1)
    x = tl.minimum(tl.maximum(p % width + tl.load(shift + 2 * image + 1), 0), width - 1)
    inside = (p < height * width)[:, None] & (c < channels)[None, :]
    at = images + image * s_image + (y * s_y + x * s_x)[:, None] + (c * s_channel)[None, :]
    pixel = tl.load(at, mask=inside, other=0).to(tl.float32) * tl.load(intensity + image)
    tl.store(out + (image * height * width + p)[:, None] * channels + c[None, :], pixel, mask=inside)


def moved(images: Tensor, shift: Tensor, intensity: Tensor) -> Tensor:
    """Shift images[batch, channel, y, x] by shift[batch, 2] pixels, borders replicated, and scale their pixels."""
    count, channels, height, width = images.shape
    out = intensity.new_empty(count, height, width, channels)
    grid = count, triton.cdiv(height * width, POSITIONS)
    launch(
        _moved_kernel, grid, images, shift.contiguous(), intensity.contiguous(), out, *images.stride(), height, width,
        channels=channels, block=POSITIONS, wide=power(channels, 2),
    )  # fmt: skip
    return out.permute(0, 3, 1, 2)


def _slots(like: Tensor, count: int) -> Tensor:
    """Room for slots, which others look up: they must be such even while nothing writes them."""
    made = torch.zeros if only_compiling() else torch.empty
    return made(count, dtype=torch.int64, device=like.device)
