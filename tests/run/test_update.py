"""An update's two halves: what the host draws, and a device's half that reads everything from that vector."""

from typing import Any

import numpy as np
import pytest
import torch

from steadyq import envs, presets
from steadyq.build import draw_layout, learner_for, ring_for
from steadyq.envs.vector import Step
from steadyq.recipe import Recipe
from steadyq.run.update import Draws, Learning
from steadyq.value.shapes import Batch, Draw

SMALL: dict[str, Any] = {"network.hidden": (8,), "replay.batch": 16, "replay.warmup": 64, "compute.device": "cpu"}


def recipe_of(**more: Any) -> Recipe:
    return presets.steady("CartPole-v1").override({**SMALL, **more})


def draws_of(recipe: Recipe) -> Draws:
    return Draws(recipe, envs.spec(recipe.env, recipe.protocol))


def drawn(draws: Draws, *, forbids: bool = True, step: int = 0, since: int = 0, seed: int = 0) -> Draw:
    packed = draws(np.random.default_rng(seed), forbids=forbids, step=step, since=since)
    return draws.layout.unpack(torch.from_numpy(packed))


def test_a_draw_holds_what_the_schedules_say_at_its_time() -> None:
    draws = draws_of(
        recipe_of(
            **{
                "replay.n_step": "10 -> 3 exponential 10000 updates",
                "optim.gamma": "0.97 -> 0.997 exponential 10000 updates",
                "optim.rate": "0.001 -> 0.0001 linear 900 steps after 100",
            }
        )
    )
    for since, n in ((0, 10), (426, 10), (427, 9), (1350, 8), (4965, 6), (4966, 5), (8720, 3), (10**6, 3)):
        assert int(drawn(draws, since=since).horizon) == n
    assert float(drawn(draws, since=0).gamma) == pytest.approx(0.97)
    assert float(drawn(draws, since=5000).gamma) == pytest.approx(1 - 0.03 * 0.1**0.5)
    assert float(drawn(draws, step=50).rate) == 1e-3
    assert float(drawn(draws, step=550).rate) == pytest.approx(5.5e-4)
    assert float(drawn(draws, step=5000).rate) == pytest.approx(1e-4)


@pytest.mark.parametrize(
    ("until", "n", "expected"),
    [("one_step", "1", True), ("one_step", "3", False), ("any_step", "3", True), ("any_step", "1", True)],
)
def test_the_rewarded_action_is_forbidden_while_the_bootstrap_is_one_step_away(
    until: str, n: str, expected: bool
) -> None:
    draws = draws_of(recipe_of(**{"operator.forbid_until": until, "replay.n_step": n}))
    assert bool(drawn(draws).forbid) == expected
    assert not drawn(draws, forbids=False).forbid


def test_the_constraint_comes_back_when_n_has_fallen_to_one() -> None:
    draws = draws_of(recipe_of(**{"replay.n_step": "3 -> 1 linear 10 updates"}))
    found = [(int(d.horizon), bool(d.forbid)) for d in (drawn(draws, since=since) for since in (0, 5, 7, 8, 10, 99))]
    assert found == [(3, False), (2, False), (2, False), (1, True), (1, True), (1, True)]


def test_all_or_one_of_the_members_learn_and_for_some_there_are_keys() -> None:
    many = {"ensemble.members": 5}
    assert drawn(draws_of(recipe_of(**many))).keep.shape == (5, 0)  # all from all, which needs no numbers

    one = draws_of(recipe_of(**many, **{"ensemble.learn": "one"}))
    who = [drawn(one, seed=seed).keep for seed in range(200)]
    assert all(keep.shape == (5, 1) and float(keep.sum()) == 1 for keep in who)
    np.testing.assert_allclose(torch.stack(who).mean(0).flatten().numpy(), 0.2, atol=0.09)

    some = {**many, "ensemble.learn": "some", "ensemble.share": 0.3}
    assert draws_of(recipe_of(**some)).layout.masked == 0.3
    first, later = (drawn(draws_of(recipe_of(**some)), step=seed, since=seed, seed=seed) for seed in range(2))
    assert first.keep.shape == (5, 0)  # masks become it
    assert torch.equal(first.key, later.key)  # in every update the same, after a restart too
    assert len(first.key.unique()) == 5
    assert not torch.equal(first.key, drawn(draws_of(recipe_of(**some, seed=1))).key)


def test_a_member_learns_from_the_transitions_of_its_mask_and_never_from_another() -> None:
    recipe = recipe_of(**{"ensemble.members": 3, "ensemble.learn": "some", "replay.capacity": 64, "replay.alpha": 0.0})
    spec = envs.spec(recipe.env, recipe.protocol)
    learner = learner_for(recipe, spec, torch.Generator().manual_seed(0), torch.device("cpu"))
    ring, draws, rng = ring_for(recipe, spec, torch.device("cpu")), draws_of(recipe), np.random.default_rng(0)
    learning = Learning(learner, ring, draws.layout)
    seen: list[tuple[Batch, Draw]] = []
    update = learner.update
    learner.update = lambda *given: (seen.append(given), update(*given))[1]  # type: ignore[method-assign, func-returns-value]
    no, frame, one = np.zeros(1, bool), np.zeros((1, 4), np.float32), np.ones(1, np.float32)
    ring.begin(frame)
    for number in range(200):
        ring.write(torch.from_numpy(ring.packed(np.zeros(1, np.int64), one, Step(frame, one, no, no, no, frame))))
        if number > 20:
            learning(torch.from_numpy(draws(rng, forbids=True, step=0, since=0)))
    masks: dict[tuple[int, int], set[tuple[float, ...]]] = {}
    for batch, draw in seen:
        assert draw.keep.shape == (3, 16)
        for slot, stamp, mask in zip(batch.index.tolist(), batch.stamp.tolist(), draw.keep.T.tolist(), strict=True):
            masks.setdefault((slot, stamp), set()).add(tuple(mask))
    assert len(seen) * 16 > 10 * len(masks)  # most were drawn again and again
    assert {len(found) for found in masks.values()} == {1}
    assert len(set.union(*masks.values())) == 8  # every choice of three members is there
    both = [(masks[slot, stamp], masks.get((slot, stamp + 1))) for slot, stamp in masks]
    assert any(after is not None and before != after for before, after in both)  # what comes to lie there has its own


def test_an_update_reads_n_and_discount_from_its_draw_without_being_built_again() -> None:
    """CartPole rewards every step with 1: the n-step sum says which n and discount an update saw."""
    recipe = recipe_of(**{"replay.n_step": "3 -> 1 linear 10 updates", "optim.gamma": 0.5})
    spec = envs.spec(recipe.env, recipe.protocol)
    learner = learner_for(recipe, spec, torch.Generator().manual_seed(0), torch.device("cpu"))
    ring = ring_for(recipe, spec, torch.device("cpu"))
    assert ring.n == 3
    no, frame, one = np.zeros(1, bool), np.zeros((1, 4), np.float32), np.ones(1, np.float32)
    ring.begin(frame)
    for _ in range(40):
        ring.write(torch.from_numpy(ring.packed(np.zeros(1, np.int64), one, Step(frame, one, no, no, no, frame))))
    learning, layout = Learning(learner, ring, draw_layout(recipe, spec)), draw_layout(recipe, spec)
    seen: list[Batch] = []
    update = learner.update
    learner.update = lambda batch, draw: (seen.append(batch), update(batch, draw))[1]  # type: ignore[method-assign, func-returns-value]
    rng, storage = np.random.default_rng(0), torch.zeros(layout.size, dtype=torch.float64)
    cases = [(3, 0.5, 1.75, 0.125), (2, 0.5, 1.5, 0.25), (1, 0.5, 1.0, 0.5), (3, 0.1, 1.11, 0.001), (2, 1.0, 2.0, 1.0)]
    for n, gamma, _, _ in cases:
        given = {"uniform": rng.random(16), "order": [1, 2, 3, 0], "forbid": False, "keep": 1.0, "key": 0, "rate": 1e-3}
        packed = layout.pack(
            **given, horizon=n, gamma=gamma, shift=0, intensity=1.0, share=1.0, taus=0.5, noise=0, views=0
        )
        storage.copy_(torch.from_numpy(packed))  # as a captured graph is fed: one address, new numbers
        learning(storage)
    for batch, (_, _, reward, discount) in zip(seen, cases, strict=True):
        assert batch.reward.tolist() == pytest.approx([reward] * 16)
        assert batch.discount.tolist() == pytest.approx([discount] * 16)
        assert batch.rewarded.all()
    assert learner.updates == 5
    assert float(learning.sums[-1]) == 5


def test_images_are_shown_as_drawn_and_stored_as_they_were() -> None:
    recipe = presets.dqn("MinAtar/Breakout").override(
        {"network.channels": 2, "network.hidden": (8,), "replay.batch": 4, "replay.shift": 2, "compute.device": "cpu"}
    )
    spec = envs.spec(recipe.env, recipe.protocol)
    learner = learner_for(recipe, spec, torch.Generator().manual_seed(0), torch.device("cpu"))
    ring, draws = ring_for(recipe, spec, torch.device("cpu")), Draws(recipe, spec)
    rng, no, one = np.random.default_rng(0), np.zeros(1, bool), np.ones(1, np.float32)
    frames = rng.integers(0, 2, (41, 1, *spec.frame_shape)).astype(spec.frame_dtype)
    ring.begin(frames[0])
    for frame in frames[1:]:
        ring.write(torch.from_numpy(ring.packed(np.zeros(1, np.int64), one, Step(frame, one, no, no, no, frame))))
    stored, seen = ring.frame.clone(), []
    update = learner.update
    learner.update = lambda batch, draw: (seen.append((batch, draw)), update(batch, draw))[1]  # type: ignore[method-assign, func-returns-value]
    Learning(learner, ring, draws.layout)(torch.from_numpy(draws(rng, forbids=False, step=0, since=0)))
    (batch, draw) = seen[0]
    assert draw.shift.shape == (2, 4, 2)
    assert draw.shift.abs().max() <= 2
    plain = ring.observation(batch.index)
    for row, (down, right) in enumerate(draw.shift[0].tolist()):
        rows, columns = (np.clip(np.arange(10) + by, 0, 9) for by in (down, right))
        expected = plain[row].numpy()[:, rows][:, :, columns]
        np.testing.assert_array_equal(batch.observation[row].numpy(), expected)
    assert torch.equal(ring.frame, stored)


def test_noise_is_drawn_anew_for_each_update_member_and_network_and_only_where_there_is_any() -> None:
    noisy = recipe_of(**{"network.noisy": 0.5, "ensemble.members": 3})
    spec = envs.spec(noisy.env, noisy.protocol)
    size = (4 + 8) + (8 + spec.num_actions * 21)
    draws, rng = draws_of(noisy), np.random.default_rng(0)
    found = [draws.layout.unpack(torch.from_numpy(draws(rng, forbids=True, step=0, since=0))).noise for _ in range(200)]
    noise = torch.stack(found)
    assert noise.shape == (200, 2, 3, size)
    assert noise.unique().numel() > 0.98 * noise.numel()  # updates, networks and members differ, but for rounding
    assert float(noise.mean()) == pytest.approx(0, abs=0.01)
    assert float(noise.std()) == pytest.approx(1, abs=0.01)
    each = noise.flatten(0, 1).flatten(1)
    assert np.corrcoef(each.T.numpy())[~np.eye(3 * size, dtype=bool)].max() < 0.3
    none = recipe_of(**{"ensemble.members": 3})
    assert drawn(draws_of(none)).noise.shape == (2, 3, 0)
    assert draws.layout.plain().noise.eq(0).all()  # whoever only looks sees the means


def test_two_views_are_compared_of_what_was_sampled_while_values_see_their_own() -> None:
    recipe = presets.curl("MinAtar/Breakout").override(
        {
            "network.channels": 2, "network.hidden": (8,), "replay.batch": 4, "replay.shift": 1, "auxiliary.shift": 3,
            "replay.n_step": 1, "compute.device": "cpu",
        }
    )  # fmt: skip
    spec = envs.spec(recipe.env, recipe.protocol)
    learner = learner_for(recipe, spec, torch.Generator().manual_seed(0), torch.device("cpu"))
    ring, draws = ring_for(recipe, spec, torch.device("cpu")), Draws(recipe, spec)
    rng, no, one = np.random.default_rng(0), np.zeros(1, bool), np.ones(1, np.float32)
    frames = rng.integers(0, 2, (41, 1, *spec.frame_shape)).astype(spec.frame_dtype)
    ring.begin(frames[0])
    for frame in frames[1:]:
        ring.write(torch.from_numpy(ring.packed(np.zeros(1, np.int64), one, Step(frame, one, no, no, no, frame))))
    seen: list[tuple[Batch, Draw]] = []
    update = learner.update
    learner.update = lambda batch, draw: (seen.append((batch, draw)), update(batch, draw))[1]  # type: ignore[method-assign, func-returns-value]
    Learning(learner, ring, draws.layout)(torch.from_numpy(draws(rng, forbids=False, step=0, since=0)))
    ((batch, draw),) = seen
    assert draw.views.shape == (2, 4, 2)
    assert 1 < draw.views.abs().max() <= 3
    assert batch.views is not None
    plain = ring.observation(batch.index)
    for shifts, shown in (
        (draw.views[0], batch.views[0]),
        (draw.views[1], batch.views[1]),
        (draw.shift[0], batch.observation),
    ):
        for row, (down, right) in enumerate(shifts.tolist()):
            rows, columns = (np.clip(np.arange(10) + by, 0, 9) for by in (down, right))
            np.testing.assert_array_equal(shown[row].numpy(), plain[row].numpy()[:, rows][:, :, columns])
    assert not torch.equal(batch.views[0], batch.views[1])
    part = batch.part(1, 3)
    assert part.views is not None
    assert torch.equal(part.views, batch.views[:, 1:3])
