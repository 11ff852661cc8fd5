"""Axis 3: what a reset touches, what it leaves alone, and how large the next step is."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from steadyq.nets import MLP, Ensemble
from steadyq.value.estimators import Quantile
from steadyq.value.learner import Learner, Settings
from steadyq.value.operators import Controlled
from steadyq.value.optim import Adam
from steadyq.value.regulation import Evidence, Regulation, Reinitialise, Spike, spike_ratio, spike_ratios
from steadyq.value.shapes import Batch, DrawLayout, Params

RATE, MEMBERS = 1e-3, 3
LAYERS = ("fc1", "fc2", "head")


def trained(updates: int = 30) -> Learner:
    settings = Settings(adam=Adam(rate=RATE), clip=10.0, tau=0.05, hard_copy_every=0)
    ensemble = Ensemble(MLP((4,), 2 * 5, (16, 16)), MEMBERS, actions=2, atoms=5)
    learner = Learner(ensemble, Quantile(5), Controlled(), settings, torch.Generator().manual_seed(0))
    for step in range(updates):
        update(learner, step)
    return learner


def update(learner: Learner, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    count = 16
    batch = Batch(
        observation=torch.randn(count, 4, generator=generator),
        action=torch.randint(2, (count,), generator=generator),
        reward=(reward := torch.randn(count, generator=generator)),
        discount=torch.full((count,), 0.9),
        next_observation=torch.randn(count, 4, generator=generator),
        weight=torch.ones(count),
        index=torch.arange(count),
        stamp=torch.zeros(count, dtype=torch.int64),
        rewarded=reward > 0,
    )
    learner.update(batch, DrawLayout(MEMBERS, count).plain(order=[1, 2, 0], forbid=True, rate=RATE))


def copied(params: Params) -> Params:
    return {name: p.clone() for name, p in params.items()}


def reset(learner: Learner, mask: Tensor, seed: int = 7) -> None:
    evidence = Evidence(LAYERS, torch.where(mask, 7.0, 1.0))
    Regulation(Spike(6.0), Reinitialise())(learner, evidence, torch.Generator().manual_seed(seed))


def only(member: int, layer: str) -> Tensor:
    mask = torch.zeros(MEMBERS, len(LAYERS), dtype=torch.bool)
    mask[member, LAYERS.index(layer)] = True
    return mask


def test_a_reset_touches_the_named_member_and_layer_only() -> None:
    learner = trained()
    groups = (learner.online, learner.adam.first, learner.adam.second, learner.adam.step)
    before, target = [copied(group) for group in groups], copied(learner.target)
    reset(learner, only(1, "fc2"))
    for group, old in zip(groups, before, strict=True):
        for name, p in group.items():
            for member in range(MEMBERS):
                hit = member == 1 and name in ("fc2.weight", "fc2.bias")
                assert torch.equal(p[member], old[name][member]) != hit, (name, member)
    # Its moments and step counts are cleared; its whole target network is the online one; others' targets stay.
    for name in ("fc2.weight", "fc2.bias"):
        for moments in (learner.adam.first, learner.adam.second, learner.adam.step):
            assert not moments[name][1].any()
    for name, p in learner.target.items():
        assert torch.equal(p[1], learner.online[name][1])
        assert not torch.equal(p[1], target[name][1])
        for member in (0, 2):
            assert torch.equal(p[member], target[name][member])


def test_a_reset_layer_is_drawn_as_at_the_start() -> None:
    learner = trained()
    with torch.no_grad():
        learner.online["fc2.weight"][1] *= 100
    reset(learner, only(1, "fc2"))
    bound = 1 / math.sqrt(16)
    for part in ("weight", "bias"):
        size = learner.online[f"fc2.{part}"][1].abs()
        assert 0.7 * bound < float(size.max()) <= bound
    assert float(spike_ratio(learner.online["fc2.weight"])[1]) < 1.1


def test_a_reset_keeps_every_address() -> None:
    learner = trained(3)
    groups = (learner.online, learner.target, learner.adam.first, learner.adam.second, learner.adam.step)
    before = [p.data_ptr() for group in groups for p in group.values()]
    reset(learner, torch.ones(MEMBERS, len(LAYERS), dtype=torch.bool))
    assert [p.data_ptr() for group in groups for p in group.values()] == before


def test_the_random_stream_does_not_depend_on_which_members_spiked() -> None:
    one, other = trained(3), trained(3)
    reset(one, only(0, "fc2"))
    reset(other, only(0, "fc2") | only(2, "fc2"))
    assert torch.equal(one.online["fc2.weight"][0], other.online["fc2.weight"][0])


def test_an_empty_mask_changes_nothing() -> None:
    learner = trained(3)
    before, target = copied(learner.online), copied(learner.target)
    reset(learner, torch.zeros(MEMBERS, len(LAYERS), dtype=torch.bool))
    for name, p in learner.online.items():
        assert torch.equal(p, before[name])
        assert torch.equal(learner.target[name], target[name])


def largest_step(learner: Learner, name: str, member: int) -> float:
    before = learner.online[name][member].clone()
    update(learner, seed=1000)
    return float((learner.online[name][member] - before).abs().max())


def test_the_first_update_after_a_reset_is_at_most_one_rate() -> None:
    learner = trained()
    reset(learner, only(1, "fc2"))
    assert 0.5 * RATE < largest_step(learner, "fc2.weight", 1) < 1.001 * RATE


def test_keeping_the_step_count_would_make_it_several_times_the_rate() -> None:
    """Why the count is cleared with the moments: bias corrections that have faded leave v far too small."""
    learner = trained()
    for name in ("fc2.weight", "fc2.bias"):
        learner.adam.step[name].fill_(10_000)
    reset(learner, only(1, "fc2"))
    for name in ("fc2.weight", "fc2.bias"):
        learner.adam.step[name][1] = 10_000
    assert largest_step(learner, "fc2.weight", 1) > 3 * RATE


def test_the_spike_ratio_by_hand() -> None:
    # |W| = 0, 1, ..., 100: the 0.99-quantile is exactly the 100th value, 99. Signs do not matter.
    weight = torch.arange(101.0).mul(torch.tensor([1.0, -1.0]).repeat(51)[:101])[None]
    assert float(spike_ratio(weight)) == pytest.approx(100 / 99)
    # Position 0.9 * 4 = 3.6 lies between 4 and 10: 4 + 0.6 * 6 = 7.6. The second member has no spike.
    two = torch.tensor([[10.0, -2.0, 3.0, 1.0, 4.0], [2.0, 2.0, -2.0, 2.0, 2.0]])
    assert spike_ratio(two, 0.9).tolist() == pytest.approx([10 / 7.6, 1.0])
    assert spike_ratio(two, 1.0).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("shape", [(3, 1152), (2, 8, 4, 3, 3), (1, 7), (2, 1)])
def test_the_spike_ratio_equals_torch_quantile(shape: tuple[int, ...]) -> None:
    weight = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    size = weight.abs().flatten(1)
    expected = size.max(1).values / torch.quantile(size, 0.99, dim=1)
    torch.testing.assert_close(spike_ratio(weight), expected)


def test_the_spike_ratio_works_above_the_limit_of_torch_quantile() -> None:
    weight = torch.rand(1, 2**24 + 5, generator=torch.Generator().manual_seed(0))
    with pytest.raises(RuntimeError, match="too large"):
        torch.quantile(weight, 0.99)
    sizes = weight.numpy()[0]
    position = 0.99 * (len(sizes) - 1)
    low, high = np.partition(sizes, [math.floor(position), math.ceil(position)])[
        [math.floor(position), math.ceil(position)]
    ]
    expected = sizes.max() / (low + (position - math.floor(position)) * (high - low))
    assert float(spike_ratio(weight)) == pytest.approx(float(expected), rel=1e-6)


def test_ratios_come_per_member_and_layer_from_weights_alone() -> None:
    learner = trained(0)
    with torch.no_grad():
        learner.online["fc2.weight"][1, 0, 0] = 50.0
        learner.online["fc1.bias"][0, 0] = 50.0  # biases are not measured
    ratios = spike_ratios(learner.online, LAYERS)
    assert ratios.shape == (MEMBERS, 3)
    assert (ratios > 6).nonzero().tolist() == [[1, 1]]
    assert float(spike_ratio(torch.zeros(1, 10))) == 0.0  # a dead layer has no spike, and no division by zero
