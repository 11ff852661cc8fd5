"""Adam over stacked members equals PyTorch's own, member by member."""

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
