"""Replay's kernels, in Triton's interpreter, equal the plain texts that a CPU runs."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from interpreter import close, inside, outside, run_interpreted

from steadyq.envs.vector import EnvSpec, Step
from steadyq.replay import augmentation, priority, ring
from steadyq.replay.priority import Priorities, Sampling
from steadyq.replay.ring import Ring
from steadyq.value.shapes import Batch, DrawLayout


@outside
def test_under_the_interpreter() -> None:
    run_interpreted(__file__)


@contextmanager
def plainly() -> Iterator[None]:
    """Without kernels."""
    with ExitStack() as patches:
        for module in (ring, priority, augmentation):
            patches.enter_context(patch.object(module, "available", never))
        yield


def never(_: torch.Tensor) -> bool:
    return False


def filled(
    lanes: int, n: int, *, channels: int = 1, dtype: Any = "uint8", overlap: bool = False, future: int = 0
) -> Ring:
    """A ring that has gone round, of short trajectories that end in every way."""
    names = tuple(f"action {i}" for i in range(3))
    spec = EnvSpec(
        name="noise", frame_shape=(channels, 5, 7), frame_dtype=dtype, pixel_max=255.0, stack=4, num_actions=3,
        lanes=lanes, action_names=names, frames_per_step=1,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    made = Ring(spec, 40 * lanes, steps=n, overlap=overlap, future=future, sampling=Sampling())

    def frame() -> np.ndarray:
        return rng.integers(1, 255, (lanes, channels, 5, 7)).astype(dtype)

    made.begin(frame())
    for _ in range(70):
        over = rng.random(lanes) < 0.2
        cut = ~over & (rng.random(lanes) < 0.1)
        step = Step(
            frame=frame(), reward=np.zeros(lanes, np.float32), terminated=over, truncated=cut,
            game_over=over | cut, final_frame=frame(),
        )  # fmt: skip
        made.write(torch.from_numpy(made.packed(rng.integers(3, size=lanes), rng.normal(size=lanes), step)))
    mass = made.priorities.mass
    mass.copy_(torch.where(mass > 0, torch.from_numpy(rng.uniform(0.1, 2, len(mass))), 0.0))
    return made


@inside
@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
@pytest.mark.parametrize(("slots", "count"), [(1, 1), (7, 5), (100, 32), (1000, 33)])
@pytest.mark.parametrize("runs", [1, 3])
def test_slots_are_searched_as_in_plain_pytorch(slots: int, count: int, beta: float, runs: int) -> None:
    torch.manual_seed(slots)
    found = Priorities(runs * slots, Sampling(beta=beta), runs=runs)
    found.mass.copy_(torch.rand(runs * slots, dtype=torch.float64) * (torch.rand(runs * slots) < 0.6))
    found.mass[slots // 2 :: slots] = 0.5
    found.stamp.random_(0, 9)
    random = torch.rand(runs * count, dtype=torch.float64)
    for uniform in (random, torch.full((runs * count,), 1 - 1e-16, dtype=torch.float64)):
        index, weight, stamp = found.sample(uniform)
        assert (found.mass[index] > 0).all()
        assert torch.equal(index // slots, torch.arange(runs).repeat_interleave(count))
        with plainly():
            same, weights, stamps = found.sample(uniform)
        assert torch.equal(index, same)
        assert torch.equal(stamp, stamps)
        close(weight, weights, 1e-6)


@inside
@pytest.mark.parametrize(("lanes", "n", "horizon"), [(1, 1, 1), (1, 10, 10), (1, 10, 3), (3, 4, 4), (2, 3, 1)])
@pytest.mark.parametrize("overlap", [False, True])
def test_transitions_are_gathered_as_in_plain_pytorch(lanes: int, n: int, horizon: int, overlap: bool) -> None:
    made = filled(lanes, n, overlap=overlap)
    draw = DrawLayout(2, 24).plain(horizon=horizon, gamma=0.9)
    got = made.sample(draw)
    with plainly():
        want = made.sample(draw)
    same(got, want)
    assert (want.discount == 0).any() != (overlap and n > horizon == 1)  # there the end is never seen
    assert (want.discount > 0).any()


@inside
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_stacked_and_moved_as_in_plain_pytorch(channels: int, dtype: str) -> None:
    made = filled(2, 1, channels=channels, dtype=dtype)
    drawn = augmentation.Augmentation(shift=3, intensity=0.1).draw(16, np.random.default_rng(0))
    draw = DrawLayout(2, 16, augmented=True).plain(**drawn)
    got = augmentation.augmented(made.sample(draw), draw)
    with plainly():
        want = augmentation.augmented(made.sample(draw), draw)
    same(got, want)
    assert (want.observation == 0).any()  # stacks that reach before a trajectory


@inside
def test_the_future_and_compared_views_are_shown_as_in_plain_pytorch() -> None:
    made = filled(2, 1, future=3)
    drawn = augmentation.Augmentation(shift=3, intensity=0.1, compared=2).draw(16, np.random.default_rng(0), 3)
    draw = DrawLayout(2, 16, augmented=True, future=3, compared=True).plain(**drawn)
    got = augmentation.augmented(made.sample(draw), draw)
    with plainly():
        want = augmentation.augmented(made.sample(draw), draw)
    same(got, want)
    assert got.views is not None
    assert want.views is not None
    assert torch.equal(got.views, want.views)
    for one, other in zip(vars(got.future).values(), vars(want.future).values(), strict=True):
        assert torch.equal(one, other)


def same(got: Batch, want: Batch) -> None:
    """Whole numbers and images exactly, others to rounding."""
    for name in ("index", "stamp", "action", "observation", "next_observation", "rewarded"):
        assert torch.equal(getattr(got, name), getattr(want, name)), name
    for name in ("reward", "discount", "weight"):
        close(getattr(got, name), getattr(want, name), 1e-6)
