"""Adam over stacked members equals PyTorch's own, member by member."""

from dataclasses import replace

import pytest
import torch

from steadyq.value.optim import Adam, AdamState, member_norm, polyak_
from steadyq.value.shapes import Params

ADAM = Adam(rate=3e-3, betas=(0.8, 0.95), epsilon=1e-6)


def stacked(members: int = 3, seed: int = 0) -> Params:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"conv.weight": (4, 2, 3, 3), "conv.bias": (4,), "head.weight": (5, 7), "head.bias": (5,)}
    return {name: torch.randn(members, *shape, generator=generator) for name, shape in shapes.items()}


def copied(params: Params) -> Params:
    return {name: p.clone() for name, p in params.items()}


@pytest.mark.parametrize("form", ["plain_", "fused_", "step_"])
def test_every_form_equals_torch_adam_per_member_with_its_clip_scale(form: str) -> None:
    params, state = stacked(), AdamState.zeros(stacked())
    scale = torch.tensor([1.0, 0.25, 0.7])
    separate = [{name: p[i].clone().requires_grad_() for name, p in params.items()} for i in range(3)]
    optimizers = [torch.optim.Adam(member.values(), 3e-3, (0.8, 0.95), 1e-6) for member in separate]
    for step in range(6):
        gradient = stacked(seed=100 + step)
        for i, (member, optimizer) in enumerate(zip(separate, optimizers, strict=True)):
            for name, p in member.items():
                p.grad = gradient[name][i] * scale[i]
            optimizer.step()
        with torch.no_grad():
            getattr(ADAM, form)(params, gradient, state, scale)
    for i, (member, optimizer) in enumerate(zip(separate, optimizers, strict=True)):
        for name, p in member.items():
            expected = optimizer.state[p]
            torch.testing.assert_close(params[name][i], p.detach(), rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(state.first[name][i], expected["exp_avg"], rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(state.second[name][i], expected["exp_avg_sq"], rtol=1e-5, atol=1e-6)
            assert float(state.step[name][i]) == 6


@pytest.mark.parametrize("form", ["plain_", "fused_"])
def test_each_member_and_tensor_counts_its_own_steps(form: str) -> None:
    """A member whose layer was cleared moves as a new optimizer would; the others do not notice."""
    params, state = stacked(), AdamState.zeros(stacked())
    one = torch.ones(3)
    with torch.no_grad():
        for step in range(50):
            getattr(ADAM, form)(params, stacked(seed=step), state, one)
        for moments in (state.first, state.second, state.step):
            moments["head.weight"][1] = 0
        fresh_params, fresh = copied(params), AdamState.zeros(params)
        gradient = stacked(seed=99)
        getattr(ADAM, form)(params, copied(gradient), state, one)
        getattr(ADAM, form)(fresh_params, copied(gradient), fresh, one)
    assert state.step["head.weight"].tolist() == [51, 1, 51]
    torch.testing.assert_close(params["head.weight"][1], fresh_params["head.weight"][1])
    assert not torch.allclose(params["head.weight"][0], fresh_params["head.weight"][0])
    assert not torch.allclose(params["head.bias"][1], fresh_params["head.bias"][1])


def test_steps_are_taken_in_place_at_fixed_addresses() -> None:
    params, state = stacked(), AdamState.zeros(stacked())
    groups = (params, state.first, state.second, state.step)
    before = [p.data_ptr() for group in groups for p in group.values()]
    ADAM.step_(params, stacked(seed=1), state, torch.ones(3))
    polyak_(params, stacked(seed=2), 0.5)
    assert [p.data_ptr() for group in groups for p in group.values()] == before


def test_the_norm_is_each_members_own_over_all_its_parameters() -> None:
    gradient = {"a": torch.tensor([[3.0, 0.0], [1.0, 0.0]]), "b": torch.tensor([[[4.0]], [[0.0]]])}
    assert member_norm(gradient).tolist() == [5.0, 1.0]


def test_polyak_by_hand() -> None:
    target, online = {"p": torch.tensor([1.0, -2.0])}, {"p": torch.tensor([3.0, 2.0])}
    polyak_(target, online, 0.25)
    assert target["p"].tolist() == [1.5, -1.0]
    polyak_(target, online, 1.0)
    assert torch.equal(target["p"], online["p"])


DECAYING = replace(ADAM, decay=0.3)


@pytest.mark.parametrize("by_unit", [False, True])
@pytest.mark.parametrize("form", ["plain_", "fused_", "step_"])
def test_decay_is_adamws_on_weights_and_leaves_biases_alone(form: str, by_unit: bool) -> None:
    if form == "fused_" and by_unit:
        pytest.skip("the fused pass counts steps by member")
    params, state = stacked(), AdamState.zeros(stacked(), by_unit)
    separate = [{name: p[i].clone().requires_grad_() for name, p in params.items()} for i in range(3)]
    optimizers = [
        torch.optim.AdamW(
            [
                {"params": [p for name, p in member.items() if name.endswith("weight")], "weight_decay": 0.3},
                {"params": [p for name, p in member.items() if name.endswith("bias")], "weight_decay": 0.0},
            ],
            3e-3,
            (0.8, 0.95),
            1e-6,
        )
        for member in separate
    ]
    for step in range(6):
        gradient = stacked(seed=100 + step)
        for i, (member, optimizer) in enumerate(zip(separate, optimizers, strict=True)):
            for name, p in member.items():
                p.grad = gradient[name][i].clone()
            optimizer.step()
        with torch.no_grad():
            getattr(DECAYING, form)(params, gradient, state, torch.ones(3))
    for i, member in enumerate(separate):
        for name, p in member.items():
            torch.testing.assert_close(params[name][i], p.detach(), rtol=1e-5, atol=1e-6)
    # Without any gradient weights shrink by rate x decay and biases stay.
    still, before = stacked(), stacked()
    zero = {name: torch.zeros_like(p) for name, p in still.items()}
    with torch.no_grad():
        getattr(DECAYING, form)(still, zero, AdamState.zeros(still, by_unit), torch.ones(3))
    torch.testing.assert_close(still["head.weight"], (1 - 3e-3 * 0.3) * before["head.weight"])
    assert torch.equal(still["head.bias"], before["head.bias"])


@pytest.mark.parametrize("active", [[1, 0, 1], [0, 1, 0], [0, 0, 0], [1, 1, 1]])
@pytest.mark.parametrize("form", ["plain_", "fused_", "step_"])
def test_members_that_do_not_learn_stay_as_they_are(form: str, active: list[int]) -> None:
    params, state = stacked(), AdamState.zeros(stacked())
    alone, own = stacked(), AdamState.zeros(stacked())
    with torch.no_grad():
        for step in range(3):  # moments that would go on moving a member without any gradient
            getattr(DECAYING, form)(params, stacked(seed=step), state, torch.ones(3))
            getattr(DECAYING, form)(alone, stacked(seed=step), own, torch.ones(3))
        before = [copied(part) for part in (params, state.first, state.second, state.step)]
        getattr(DECAYING, form)(
            params, stacked(seed=9), state, torch.ones(3), torch.tensor(active, dtype=torch.float32)
        )
        getattr(DECAYING, form)(alone, stacked(seed=9), own, torch.ones(3))
    after, all_of_them = (params, state.first, state.second, state.step), (alone, own.first, own.second, own.step)
    for now, old, everyone in zip(after, before, all_of_them, strict=True):
        for name, p in now.items():
            for member, moved in enumerate(active):
                same = everyone if moved else old
                torch.testing.assert_close(p[member], same[name][member], rtol=0, atol=0, msg=f"{name} {member}")


def test_a_rate_given_with_the_step_replaces_the_settings() -> None:
    slow, fast = stacked(), stacked()
    with torch.no_grad():
        ADAM.step_(slow, stacked(seed=1), AdamState.zeros(slow), torch.ones(3), rate=torch.tensor(1e-5))
        replace(ADAM, rate=1e-5).step_(fast, stacked(seed=1), AdamState.zeros(fast), torch.ones(3))
    assert all(torch.equal(slow[name], fast[name]) for name in slow)
    assert not torch.equal(slow["head.bias"], stacked()["head.bias"])


def test_steps_counted_by_unit_learn_what_steps_counted_by_member_learn() -> None:
    mine, theirs = stacked(), stacked()
    by_unit, by_member = AdamState.zeros(mine, by_unit=True), AdamState.zeros(theirs)
    with torch.no_grad():
        for step in range(4):
            DECAYING.step_(mine, stacked(seed=step), by_unit, torch.ones(3))
            DECAYING.step_(theirs, stacked(seed=step), by_member, torch.ones(3))
    for name, p in mine.items():
        torch.testing.assert_close(p, theirs[name], rtol=1e-5, atol=1e-6)
        assert by_unit.step[name].shape == p.shape
        assert (by_unit.step[name] == 4).all()


def test_a_cleared_unit_moves_as_a_new_optimizer_would() -> None:
    params, state = stacked(), AdamState.zeros(stacked(), by_unit=True)
    where = torch.zeros(3, 5, 7, dtype=torch.bool)
    where[1, 2] = True
    with torch.no_grad():
        for step in range(50):
            ADAM.step_(params, stacked(seed=step), state, torch.ones(3))
        state.clear_("head.weight", where)
        fresh, new = copied(params), AdamState.zeros(params, by_unit=True)
        ADAM.step_(params, stacked(seed=99), state, torch.ones(3))
        ADAM.step_(fresh, stacked(seed=99), new, torch.ones(3))
    assert torch.equal(params["head.weight"][where], fresh["head.weight"][where])
    assert not (params["head.weight"][~where] == fresh["head.weight"][~where]).any()
    assert torch.equal(state.step["head.weight"], torch.where(where, 1.0, 51.0))
    assert (state.step["head.bias"] == 51).all()


def test_clearing_single_parameters_needs_steps_of_their_own() -> None:
    state = AdamState.zeros(stacked())
    with pytest.raises(ValueError, match=r"head.weight counts its steps by member"):
        state.clear_("head.weight", torch.ones(3, 5, 7, dtype=torch.bool))
    state.step["head.weight"].fill_(7.0)
    state.clear_("head.weight", torch.tensor([False, True, False]))
    assert state.step["head.weight"].tolist() == [7, 0, 7]
