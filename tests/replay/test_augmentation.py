"""What a network is shown of one transition: shifts by hand, intensities, independent views."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from steadyq.replay.augmentation import Augmentation, augmented, moved
from steadyq.value.shapes import Batch, DrawLayout, Future

IMAGE = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
SHIFTED = {
    (0, 0): IMAGE,
    (1, 0): [[4, 5, 6], [7, 8, 9], [7, 8, 9]],  # up by a row, the last one twice
    (-1, 0): [[1, 2, 3], [1, 2, 3], [4, 5, 6]],
    (0, 1): [[2, 3, 3], [5, 6, 6], [8, 9, 9]],
    (0, -1): [[1, 1, 2], [4, 4, 5], [7, 7, 8]],
    (1, -1): [[4, 4, 5], [7, 7, 8], [7, 7, 8]],
    (2, 2): [[9, 9, 9]] * 3,
    (-2, 0): [[1, 2, 3]] * 3,
    (5, -9): [[7, 7, 7]] * 3,  # further than the image is wide: its corner
}


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("shift", SHIFTED)
def test_a_shift_by_hand_repeats_the_border(shift: tuple[int, int], dtype: torch.dtype) -> None:
    images = torch.tensor(IMAGE, dtype=dtype).expand(1, 2, 3, 3) + torch.tensor([0, 10], dtype=dtype).view(1, 2, 1, 1)
    found = moved(images, torch.tensor([shift]), torch.ones(1))
    assert found.dtype == torch.float32
    assert found[0, 0].tolist() == SHIFTED[shift]
    assert (found[0, 1] - 10).tolist() == SHIFTED[shift]  # all channels of an image move together


def test_a_shift_equals_padding_and_cropping() -> None:
    """DrQ's own words: pad by replication, crop at random."""
    images = torch.rand(6, 3, 7, 5, generator=torch.Generator().manual_seed(0))
    shift = torch.tensor([[0, 0], [4, 4], [-4, 4], [3, -2], [-1, 0], [0, -4]])
    padded = torch.nn.functional.pad(images, (4, 4, 4, 4), mode="replicate")
    for image, (down, right), found in zip(padded, shift.tolist(), moved(images, shift, torch.ones(6)), strict=True):
        assert torch.equal(found, image[:, 4 + down : 11 + down, 4 + right : 9 + right])


def test_every_image_has_its_own_shift_and_intensity() -> None:
    images = torch.tensor(IMAGE, dtype=torch.uint8).expand(3, 1, 3, 3)
    found = moved(images, torch.tensor([[0, 0], [1, 0], [0, -1]]), torch.tensor([1.0, 2.0, 0.5]))
    expected = [np.array(SHIFTED[0, 0]), 2 * np.array(SHIFTED[1, 0]), 0.5 * np.array(SHIFTED[0, -1])]
    for mine, plain in zip(found, expected, strict=True):
        assert mine[0].tolist() == plain.tolist()


def batch_of(images: Tensor) -> Batch:
    count = len(images)
    ones, index = torch.ones(count), torch.arange(count)
    return Batch(images, index, ones, ones, images.clone(), ones, index, index, ones > 0)


def test_the_two_views_of_a_transition_are_drawn_apart_and_nothing_else_changes() -> None:
    layout, batch = DrawLayout(1, 2, augmented=True), batch_of(torch.tensor(IMAGE).expand(2, 1, 3, 3).to(torch.uint8))
    shift = [[[1, 0], [0, 0]], [[0, 1], [-1, 0]]]  # of s, then of s'
    seen = augmented(batch, layout.plain(shift=shift, intensity=[[1.0, 2.0], [0.5, 1.0]]))
    assert seen.observation[:, 0].tolist() == [SHIFTED[1, 0], (2 * np.array(IMAGE)).tolist()]
    assert seen.next_observation[:, 0].tolist() == [(0.5 * np.array(SHIFTED[0, 1])).tolist(), SHIFTED[-1, 0]]
    for name in ("action", "reward", "discount", "weight", "index", "stamp", "rewarded"):
        assert getattr(seen, name) is getattr(batch, name)
    assert torch.equal(batch.observation, batch.next_observation)  # what was sampled stays as it was


def test_the_future_has_views_of_its_own() -> None:
    layout, batch = DrawLayout(1, 1, augmented=True, future=2), batch_of(torch.tensor(IMAGE)[None, None].byte())
    ahead = torch.tensor(IMAGE, dtype=torch.uint8).expand(2, 1, 1, 3, 3)
    future = Future(ahead, torch.zeros(2, 1, dtype=torch.int64), torch.ones(2, 1) > 0)
    shift = [[[0, 0]], [[0, 0]], [[1, 0]], [[0, -1]]]
    draw = layout.plain(shift=shift, intensity=[[1.0], [1.0], [1.0], [0.5]])
    seen = augmented(replace(batch, future=future), draw).future
    assert seen is not None
    assert seen.observation[:, 0, 0].tolist() == [SHIFTED[1, 0], (0.5 * np.array(SHIFTED[0, -1])).tolist()]
    assert seen.action is future.action
    assert seen.known is future.known
    drawn = Augmentation(shift=2, intensity=0.1).draw(8, np.random.default_rng(0), future=2)
    assert [np.shape(part) for part in drawn.values()] == [(4, 8, 2), (4, 8), ()]


def test_a_draw_without_views_leaves_the_batch_alone() -> None:
    batch = batch_of(torch.zeros(2, 1, 3, 3, dtype=torch.uint8))
    assert augmented(batch, DrawLayout(1, 2).plain()) is batch
    flat = replace(batch, observation=torch.zeros(2, 4))
    assert augmented(flat, DrawLayout(1, 2).plain()) is flat


def test_draws_stay_within_their_bounds_and_reach_them() -> None:
    drawn = Augmentation(shift=4, intensity=0.05).draw(5000, np.random.default_rng(0))
    shift, intensity = np.asarray(drawn["shift"]), np.asarray(drawn["intensity"])
    assert shift.shape == (2, 5000, 2)
    assert np.unique(shift).tolist() == list(range(-4, 5))
    share = np.bincount(shift.ravel() + 4) / shift.size
    np.testing.assert_allclose(share, 1 / 9, atol=0.01)
    assert intensity.shape == (2, 5000)
    assert intensity.min() == 0.9  # cut at two standard deviations
    assert intensity.max() == 1.1
    assert intensity.std() == pytest.approx(0.05 * 0.959, abs=0.001)  # a normal number's, the tails brought in
    assert np.corrcoef(shift[0].ravel(), shift[1].ravel())[0, 1] == pytest.approx(0, abs=0.05)  # two views, two draws
    assert np.corrcoef(intensity)[0, 1] == pytest.approx(0, abs=0.05)


def test_each_kind_works_alone_and_none_draws_nothing() -> None:
    rng = np.random.default_rng(0)
    before = rng.bit_generator.state
    assert Augmentation().draw(8, rng) == {"shift": 0, "intensity": 1.0, "views": 0}
    assert rng.bit_generator.state == before  # runs without it keep their random stream
    assert not Augmentation().active
    only_shift, only_intensity = Augmentation(shift=2), Augmentation(intensity=0.1)
    assert only_shift.active
    assert only_intensity.active
    assert (np.asarray(only_shift.draw(8, rng)["intensity"]) == 1).all()
    assert not np.asarray(only_intensity.draw(8, rng)["shift"]).any()


def test_views_to_compare_are_two_more_looks_at_s_by_shifts_of_their_own() -> None:
    layout, batch = DrawLayout(1, 2, compared=True), batch_of(torch.tensor(IMAGE).expand(2, 1, 3, 3).to(torch.uint8))
    seen = augmented(batch, layout.plain(views=[[[1, 0], [0, 0]], [[0, 1], [-1, 0]]]))
    assert seen.views is not None
    assert seen.views[:, :, 0].tolist() == [[SHIFTED[1, 0], IMAGE], [SHIFTED[0, 1], SHIFTED[-1, 0]]]
    assert seen.observation is batch.observation  # values are learned from what was sampled
    alone = Augmentation(compared=2)
    assert not alone.active
    drawn = alone.draw(5000, np.random.default_rng(0))
    views = np.asarray(drawn["views"])
    assert views.shape == (2, 5000, 2)
    assert np.unique(views).tolist() == [-2, -1, 0, 1, 2]
    assert np.corrcoef(views[0].ravel(), views[1].ravel())[0, 1] == pytest.approx(0, abs=0.05)
    assert (drawn["shift"], drawn["intensity"]) == (0, 1.0)
