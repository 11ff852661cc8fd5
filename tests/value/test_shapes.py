"""How a draw travels: everything random or decided in an update as one vector, and back."""

import itertools

import numpy as np
import pytest
import torch

from steadyq.value.shapes import Batch, DrawLayout, Future


def everything(layout: DrawLayout, seed: int = 0) -> dict[str, np.ndarray]:
    """A different number in every place, of each field's own kind."""
    rng = np.random.default_rng(seed)
    whole = {"order", "horizon", "shift", "key"}
    drawn = {
        name: rng.integers(-4, 90, shape) if name in whole else rng.random(shape)
        for name, shape in layout.shapes.items()
    }
    drawn["forbid"] = np.asarray(seed % 2)
    return drawn


LAYOUTS = [
    DrawLayout(members, batch, keep, augmented)
    for members, batch, augmented in itertools.product((1, 3), (2, 5), (False, True))
    for keep in (0, 1, batch)
] + [DrawLayout(3, 5, masked=0.5)]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_draw_comes_back_as_it_was_packed(layout: DrawLayout, seed: int) -> None:
    given = everything(layout, seed)
    packed = layout.pack(**given)
    assert packed.shape == (layout.size,)
    assert packed.dtype == np.float64
    draw = layout.unpack(torch.from_numpy(packed))
    for name, shape in layout.shapes.items():
        found = getattr(draw, name)
        assert found.shape == shape, name
        np.testing.assert_allclose(found.double().numpy(), given[name], rtol=1e-7, err_msg=name)
    assert draw.order.dtype == draw.horizon.dtype == draw.shift.dtype == torch.int64  # they index
    assert draw.forbid.dtype == torch.bool
    assert draw.rate.dtype == draw.uniform.dtype == torch.float64  # not rounded on the way
    assert draw.keep.shape == (layout.members, layout.keep)
    assert draw.key.shape == ((layout.members,) if layout.masked else (0,))
    assert len(draw.shift) == len(draw.intensity) == (2 if layout.augmented else 0)


def test_numbers_are_spread_over_the_field() -> None:
    layout = DrawLayout(2, 3, keep=3, augmented=True)
    draw = layout.plain(keep=0.5, shift=4, intensity=1.5)
    assert draw.keep.tolist() == [[0.5] * 3] * 2
    assert draw.shift.tolist() == [[[4, 4]] * 3] * 2
    assert draw.intensity.tolist() == [[1.5] * 3] * 2


def test_a_plain_draw_decides_nothing() -> None:
    draw = DrawLayout(3, 4).plain()
    assert draw.order.tolist() == [0, 1, 2]
    assert not draw.forbid
    assert draw.keep.shape == (3, 0)  # all learn from all
    assert int(draw.horizon) == 1
    assert draw.uniform.tolist() == [1 / 8, 3 / 8, 5 / 8, 7 / 8]


@pytest.mark.parametrize("name", DrawLayout(2, 3).shapes)
def test_a_missing_field_raises(name: str) -> None:
    layout = DrawLayout(2, 3)
    given = everything(layout)
    del given[name]
    with pytest.raises(ValueError, match="a draw has"):
        layout.pack(**given)


def test_an_unknown_field_and_a_wrong_shape_raise() -> None:
    layout = DrawLayout(2, 3)
    with pytest.raises(ValueError, match="a draw has"):
        layout.plain(order=[1, 0], ordr=[0, 1])
    with pytest.raises(ValueError, match="broadcast"):
        layout.plain(order=[1, 0, 2])


def test_a_part_of_a_batch_keeps_all_its_fields_together() -> None:
    columns = [torch.arange(10 * i, 10 * i + 6) for i in range(11)]
    part = Batch(*columns).part(2, 5)
    assert [getattr(part, name).tolist() for name in ("observation", "rewarded")] == [[2, 3, 4], [82, 83, 84]]
    unmasked = Batch(*columns[:9]).part(2, 5)
    assert unmasked.allowed is unmasked.next_allowed is None
    assert all(len(value) == 3 for name, value in vars(part).items() if name not in ("future", "views"))
    assert part.future is part.views is None
    looks = Batch(*columns, views=torch.arange(12).view(2, 6)).part(2, 5).views
    assert looks is not None
    assert looks.tolist() == [[2, 3, 4], [8, 9, 10]]
    ahead = Future(*(torch.arange(12).view(2, 6) + 100 * i for i in range(3)))
    later = Batch(*columns, future=ahead).part(2, 5).future
    assert later is not None
    assert later.observation.tolist() == [[2, 3, 4], [8, 9, 10]]
    assert later.known.tolist() == [[202, 203, 204], [208, 209, 210]]


@pytest.mark.parametrize("keep", [0, 1, 4])
def test_the_draws_of_several_runs_are_one_for_all_their_samples(keep: int) -> None:
    layout = DrawLayout(3, 4, keep=keep, augmented=True, future=1, samples=2, noise=5, compared=True, masked=0.5)
    rng = np.random.default_rng(keep)
    packed = rng.random((2, layout.size)) * 10
    packed[:, layout.places["forbid"][0]] = [[1], [0]]
    for name in ("horizon", "gamma"):  # schedules but for the rate are the same for all
        packed[1, layout.places[name][0]] = packed[0, layout.places[name][0]]
    found = layout.together(torch.from_numpy(packed))
    for run in range(2):
        own, rows = layout.unpack(torch.from_numpy(packed[run])), slice(4 * run, 4 * run + 4)
        assert torch.equal(found.uniform[rows], own.uniform)
        assert found.forbid[rows].tolist() == 4 * [bool(own.forbid)]
        for name in ("order", "share", "key", "keep") if keep else ("order", "share", "key"):
            each = getattr(own, name)
            assert torch.equal(getattr(found, name)[:, rows], each.view(3, -1).expand(3, 4)), name
        for name in ("shift", "intensity", "taus", "views"):
            assert torch.equal(getattr(found, name)[:, rows], getattr(own, name)), name
        assert torch.equal(found.noise[:, 3 * run : 3 * run + 3], own.noise)
        assert found.rate[3 * run : 3 * run + 3].tolist() == 3 * [float(own.rate)]  # of every member
        for name in ("horizon", "gamma"):
            assert torch.equal(getattr(found, name), getattr(own, name)), name
    assert found.keep.shape == (3, 8 if keep else 0)
