"""Every diagnostic on numbers small enough to do by hand."""

import math

import pytest
import torch
from torch import Tensor

from steadyq.monitor import diagnostics as d


def q_of(*greedy: int, actions: int = 3) -> Tensor:
    """Values [batch, action] whose greedy actions are the given ones."""
    return torch.nn.functional.one_hot(torch.tensor(greedy), actions).float()


def test_same_action_share_of_members_and_of_a_part() -> None:
    action = torch.tensor([0, 1, 2, 1])
    q = torch.stack([q_of(0, 1, 2, 0), q_of(1, 1, 1, 1)])
    reward = torch.tensor([1.0, 0.0, 0.0, 2.0])
    assert d.same_action_share(q, action).tolist() == [0.75, 0.5]
    assert d.same_action_share(q, action, reward > 0).tolist() == [0.5, 0.5]
    assert d.same_action_share(q, action, reward == 0).tolist() == [1.0, 0.5]
    assert d.same_action_share(q, action, reward > 5).isnan().all()
    assert d.same_action_share(q[0], action).item() == 0.75


def test_chance_counts_a_policy_that_favours_one_action() -> None:
    action = torch.tensor([0, 0, 0, 1])  # P = 3/4, 1/4, 0
    q = torch.stack([q_of(0, 0, 0, 0), q_of(0, 1, 2, 1)])  # P* = (1, 0, 0) and (1/4, 1/2, 1/4)
    assert d.chance_of_same_action(q, action).tolist() == [0.75, 3 / 16 + 1 / 8]


def test_target_gap_absolute_and_relative() -> None:
    target = torch.tensor([[[0.0, 4.0]], [[0.0, 4.0]]])  # spread 2
    online = torch.tensor([[[3.0, 8.0]], [[0.0, 4.0]]])  # off by 3 and 4: root of 12.5
    gap, relative = d.target_gap(online, target)
    assert gap.tolist() == pytest.approx([math.sqrt(12.5), 0.0])
    assert relative.tolist() == pytest.approx([math.sqrt(12.5) / 2, 0.0])


def test_action_gap_is_between_the_best_two() -> None:
    assert d.action_gap(torch.tensor([[1.0, 5.0, 3.0], [2.0, 2.0, 0.0]])).tolist() == [2.0, 0.0]


def test_what_members_add_to_all_actions_alike_is_no_noise() -> None:
    offsets = torch.tensor([0.0, 10.0, -5.0, 3.0])[:, None, None]
    q = torch.tensor([[[1.0, 0.9, 0.0]]]) + offsets  # four members of one mind
    assert d.mean_noise(q).abs().max() < 1e-6
    assert d.flip_probability(q.mean(0), d.mean_noise(q)) < 1e-6


def test_disagreement_and_votes() -> None:
    q = torch.tensor([[[0.0, 1.0]], [[4.0, 1.0]]])  # mean (2, 1): greedy 0; the first member votes 1
    assert d.disagreement(q).item() == 1.0  # spreads 2 and 0
    assert d.vote_split(q).item() == 0.5
    assert d.mean_noise(q).tolist() == [[1.0, 1.0]]  # centred (-1/2, 1/2) and (3/2, -3/2): sqrt(2) / sqrt(2)


def test_flip_probability_is_the_gaussian_tail() -> None:
    q = torch.tensor([[1.0, 0.0]])
    noise = torch.full((1, 2), 1 / math.sqrt(2))  # the difference then has standard deviation 1
    assert d.flip_probability(q, noise).item() == pytest.approx(0.158655, abs=1e-6)
    # A third action further away but noisier is the stronger rival: 4 / sqrt(1/2 + 15.5) = 1.
    three = torch.tensor([[1.0, -10.0, -3.0]])
    noises = torch.tensor([[math.sqrt(0.5), 0.1, math.sqrt(15.5)]])
    assert d.flip_probability(three, noises).item() == pytest.approx(0.158655, abs=1e-6)
    assert d.flip_probability(q, torch.zeros(1, 2)).item() == 0.0
    assert d.flip_probability(torch.zeros(1, 2), noise).item() == 0.5


def test_flip_probability_matches_sampling() -> None:
    q, noise = torch.tensor([[0.3, 0.0]]), torch.tensor([[0.4, 0.2]])
    draws = q + noise * torch.randn(200_000, 2, generator=torch.Generator().manual_seed(0))
    assert d.flip_probability(q, noise).item() == pytest.approx((draws.argmax(-1) == 1).float().mean().item(), abs=4e-3)


def test_update_noise_ignores_what_actions_share() -> None:
    before = torch.zeros(1, 2, 2)
    assert d.update_noise(before, before + 7).abs().max().item() == 0
    after = torch.tensor([[[2.0, 0.0], [0.0, 0.0]]])  # centred: +-1 in one of two states
    assert d.update_noise(before, after).flatten().tolist() == pytest.approx([math.sqrt(0.5)] * 4)


def test_churn_per_member() -> None:
    before = torch.stack([q_of(0, 1, 2, 0), q_of(0, 0, 0, 0)])
    after = torch.stack([q_of(0, 1, 0, 1), q_of(0, 0, 0, 0)])
    assert d.churn(before, after).tolist() == [0.5, 0.0]


def test_tails() -> None:
    coin = torch.tensor([[1.0, -1.0, 1.0, -1.0]])
    assert d.tails(coin).item() == 1.0  # the smallest kurtosis there is
    outlier = torch.tensor([[0.0, 0.0, 0.0, 4.0]])  # centred -1 -1 -1 3: fourth moment 21, variance 3
    assert d.tails(outlier).item() == pytest.approx(21 / 9)
    ramp = torch.arange(101.0)[None] * torch.tensor([1.0, -1.0]).repeat(51)[:101]
    assert d.tail_ratio(ramp).item() == pytest.approx(99 / 50)


def test_ranks_of_a_known_spectrum() -> None:
    features = torch.diag(torch.tensor([4.0, 2.0, 0.05]))[None]
    singular = d.singular_values(features)
    assert singular.tolist() == [pytest.approx([4, 2, 0.05])]
    assert d.stable_rank(singular).item() == pytest.approx((16 + 4 + 0.0025) / 16)
    assert d.effective_rank(singular).item() == 2  # 6 of 6.05 is 99.2%
    assert d.effective_rank(singular, 0.001).item() == 3
    assert d.effective_rank(singular, 0.5).item() == 1
    assert d.effective_rank(d.singular_values(torch.eye(5)[None])).item() == 5


def test_layers_are_weighted_by_their_units() -> None:
    assert d.by_layer([torch.tensor([1.0, 0.0]), torch.tensor([0.0, 0.5])], [30, 10]).tolist() == [0.75, 0.125]


def test_probe_tells_a_dead_network_from_a_fresh_one() -> None:
    generator = torch.Generator().manual_seed(0)
    observation = torch.randn(16, 4, generator=generator)
    params = {
        "in": torch.randn(2, 32, 4, generator=generator),
        "bias": torch.zeros(2, 32, 1),
        "out": torch.randn(2, 3, 32, generator=generator) / 6,
    }
    params["bias"][1] = -100.0  # the second member's units never fire: no gradient reaches anything

    def forward(parts: dict[str, Tensor], x: Tensor) -> Tensor:
        return (parts["out"] @ torch.relu(parts["in"] @ x.T + parts["bias"])).transpose(1, 2)

    kept = {name: p.clone() for name, p in params.items()}
    left = d.plasticity_probe(forward, params, observation, generator=generator, steps=200, rate=1e-2)
    assert left[0] < 0.2
    assert left[1] == pytest.approx(1.0)
    assert all(torch.equal(kept[name], p) for name, p in params.items())  # a copy was fitted
