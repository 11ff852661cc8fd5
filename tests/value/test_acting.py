"""How an ensemble acts, by hand: three members, two lanes, two actions."""

import pytest
import torch

from steadyq.value.acting import Acting, Mean, Minimum, OneMember, Optimistic

Q = torch.tensor(
    [[[1.0, 4.0], [0.0, 2.0]], [[3.0, 1.0], [5.0, 2.0]], [[5.0, 1.0], [1.0, 8.0]]]
)  # [member, lane, action]
MEMBER = torch.tensor([2, 0])
SPREAD = (8 / 3) ** 0.5  # of 1, 3, 5

RULES: list[tuple[Acting, list[list[float]], list[int]]] = [
    (Mean(), [[3.0, 2.0], [2.0, 4.0]], [0, 1]),
    (Minimum(), [[1.0, 1.0], [0.0, 2.0]], [0, 1]),
    (OneMember(), [[5.0, 1.0], [0.0, 2.0]], [0, 1]),
    # of 4, 1, 1 the spread is sqrt(2); of 0, 5, 1 sqrt(14/3); of 2, 2, 8 sqrt(8)
    (Optimistic(1.0), [[3 + SPREAD, 2 + 2**0.5], [2 + (14 / 3) ** 0.5, 4 + 8**0.5]], [0, 1]),
    (Optimistic(0.0), [[3.0, 2.0], [2.0, 4.0]], [0, 1]),
    (Optimistic(-5.0), [[3 - 5 * SPREAD, 2 - 5 * 2**0.5], [2 - 5 * (14 / 3) ** 0.5, 4 - 5 * 8**0.5]], [1, 0]),
]


@pytest.mark.parametrize(("rule", "values", "actions"), RULES, ids=[repr(rule) for rule, _, _ in RULES])
def test_rules_by_hand(rule: Acting, values: list[list[float]], actions: list[int]) -> None:
    found = rule(Q, MEMBER)
    assert found.shape == (2, 2)
    assert found.tolist() == [pytest.approx(row) for row in values]
    assert found.argmax(-1).tolist() == actions


def test_a_member_alone_acts_by_its_own_values_lane_by_lane() -> None:
    for member in range(3):
        assert torch.equal(OneMember()(Q, torch.tensor([member, member])), Q[member])
    assert OneMember()(Q, torch.tensor([0, 1])).tolist() == [[1.0, 4.0], [5.0, 2.0]]


@pytest.mark.parametrize("rule", [Mean(), Minimum(), OneMember(), Optimistic(1.0)])
def test_one_member_acts_greedily_by_every_rule(rule: Acting) -> None:
    assert torch.equal(rule(Q[:1], torch.zeros(2, dtype=torch.int64)), Q[0])
