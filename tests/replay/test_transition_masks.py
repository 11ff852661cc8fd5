"""Masks of transitions: fair coins that nothing else has to do with, and that do not change while one is kept."""

import numpy as np
import pytest
import torch

from steadyq.envs.vector import EnvSpec, Step
from steadyq.replay.masks import WHOLE, kept
from steadyq.replay.priority import Sampling
from steadyq.replay.ring import Ring
from steadyq.value.shapes import DrawLayout

SLOTS = 20_000
KEYS = torch.from_numpy(np.random.default_rng([0, 3]).integers(WHOLE, size=6))


def masks(share: float, stamp: int = 1, key: torch.Tensor = KEYS) -> torch.Tensor:
    slot = torch.arange(SLOTS)
    return kept(key, slot, torch.full_like(slot, stamp), share)


def related(one: torch.Tensor, other: torch.Tensor) -> float:
    return float(np.corrcoef(one.numpy(), other.numpy())[0, 1])


@pytest.mark.parametrize("share", [0.05, 0.3, 0.5, 0.9])
def test_every_member_learns_from_its_share_whatever_the_others_do(share: float) -> None:
    found = masks(share)
    assert found.unique().tolist() == [0.0, 1.0]
    five = 5 * (share * (1 - share) / SLOTS) ** 0.5  # standard errors
    assert float((found.mean(1) - share).abs().max()) < five
    between = [related(one, other) for i, one in enumerate(found) for other in found[:i]]
    neighbours = [related(one[:-back], one[back:]) for one in found for back in (1, 2, 4, 7, 64, 1000)]
    rewritten = [related(one, other) for one, other in zip(found, masks(share, stamp=2), strict=True)]
    assert max(map(abs, (*between, *neighbours, *rewritten))) < 5 / SLOTS**0.5
    again = masks(share, key=KEYS + 1)  # of a key that differs in one bit or few
    assert max(abs(related(one, other)) for one, other in zip(found, again, strict=True)) < 5 / SLOTS**0.5


def test_a_share_of_one_is_everything_and_keys_may_be_given_for_each_sample() -> None:
    assert bool((masks(1.0) == 1).all())
    slot, stamp = torch.arange(4), torch.tensor([3, 3, 9, 9])
    each = KEYS[:2, None].expand(2, 4)
    assert torch.equal(kept(each, slot, stamp, 0.5), kept(KEYS[:2], slot, stamp, 0.5))
    largest = torch.tensor([2**31 - 1])
    assert kept(torch.tensor([WHOLE - 1]), largest, largest, 0.5).shape == (1, 1)


def test_masks_are_the_same_everywhere_and_for_good() -> None:
    """A run is continued by other versions and on other machines: these bits are part of what it is."""
    found = masks(0.5)[:2, :24].int().tolist()
    assert ["".join(map(str, row)) for row in found] == [
        "010011110100011011111101",
        "001011101100101001010110",
    ]


def test_a_transition_keeps_its_mask_until_it_is_overwritten() -> None:
    """Through truncations, which take a slot more, and through a checkpoint."""
    spec = EnvSpec(
        name="counting", frame_shape=(1,), frame_dtype="float32", pixel_max=1.0, stack=2, num_actions=2, lanes=2,
        action_names=("a", "b"), frames_per_step=1,
    )  # fmt: skip
    made = {"steps": 2, "sampling": Sampling(alpha=0.0)}
    ring, rng = Ring(spec, 40, **made), np.random.default_rng(0)  # type: ignore[arg-type]
    ring.begin(np.array([[0], [0.5]], np.float32))
    draw, known, changed = DrawLayout(3, 8).plain(), dict[float, list[float]](), 0
    for number in range(1, 200):
        frame = np.array([[number], [number + 0.5]], np.float32)
        truncated = rng.random(2) < 0.1
        no = np.zeros(2, bool)
        step = Step(frame, np.ones(2, np.float32), no, truncated, truncated, frame + 0.25)
        ring.write(torch.from_numpy(ring.packed(np.zeros(2, np.int64), np.ones(2, np.float32), step)))
        if number == 100:
            state, ring = ring.state(), Ring(spec, 40, **made)  # type: ignore[arg-type]
            ring.restore(state)
        if number < 4:
            continue
        batch = ring.uniformly(30, rng, draw)
        found = kept(KEYS[:3], batch.index, batch.stamp, 0.5).T.tolist()
        for newest, mask in zip(batch.observation[:, 1].flatten().tolist(), found, strict=True):
            changed += known.setdefault(newest, mask) != mask
    assert len(known) > 300
    assert changed == 0
    assert len({tuple(mask) for mask in known.values()}) == 8
