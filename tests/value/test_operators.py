"""Axis 1 by hand: two next states, three actions, two members."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from steadyq.value.estimators import Categorical, Quantile, Scalar
from steadyq.value.operators import Controlled, Double, Greedy, Maxmin, Operator, forbid_rewarded_action, order_for
from steadyq.value.shapes import Batch, Draw, DrawLayout, Values

#                       a0 a1 a2     member 0 at the first and second next state, then member 1
TARGET = torch.tensor([[[1, 5, 3], [2, 0, 4]], [[6, 2, 4], [1, 3, 2]]], dtype=torch.float32)
ONLINE = torch.tensor([[[0, 1, 9], [0, 7, 1]], [[0, 9, 8], [5, 1, 2]]], dtype=torch.float32)
SPREAD = torch.tensor([1.0, 2.0, 3.0])  # of action a0, a1, a2: two quantiles at q - spread and q + spread

OPERATORS: dict[str, tuple[Operator, bool]] = {
    "greedy": (Greedy(), False),
    "double": (Double(), False),
    "controlled": (Controlled(), True),
    "controlled, not forbidding": (Controlled(), False),
    "controlled, online selects": (Controlled("online"), True),
    "maxmin": (Maxmin(), False),
}

# y[member][state]: reward 1 for action a1 in the first transition, reward 0 for action a2 in the second, discount 1/2.
SCALAR = {
    # m0: a1 -> 5, a2 -> 4          m1: a0 -> 6, a1 -> 3
    "greedy": [[1 + 5 / 2, 0 + 4 / 2], [1 + 6 / 2, 0 + 3 / 2]],
    # m0: a2 -> 3, a1 -> 0          m1: a1 -> 2, a0 -> 1
    "double": [[1 + 3 / 2, 0 + 0 / 2], [1 + 2 / 2, 0 + 1 / 2]],
    # selected without a1 in the first state: m0 (a2, a2), m1 (a0, a1); each values the other's
    "controlled": [[1 + 1 / 2, 0 + 0 / 2], [1 + 4 / 2, 0 + 2 / 2]],
    # m0 (a1, a2), m1 (a0, a1)
    "controlled, not forbidding": [[1 + 1 / 2, 0 + 0 / 2], [1 + 2 / 2, 0 + 2 / 2]],
    # m0 (a2, a1), m1 (a2 as a1 is forbidden, a0)
    "controlled, online selects": [[1 + 3 / 2, 0 + 2 / 2], [1 + 4 / 2, 0 + 3 / 2]],
    # least values (1, 2, 3) and (1, 0, 2): a2, valued 3 by m0 in the first state and 2 by m1 in the second, for both
    "maxmin": [[1 + 3 / 2, 0 + 2 / 2], [1 + 3 / 2, 0 + 2 / 2]],
}
QUANTILE = {
    "greedy": [[[2.5, 4.5], [0.5, 3.5]], [[3.5, 4.5], [0.5, 2.5]]],
    "double": [[[1.0, 4.0], [-1.0, 1.0]], [[1.0, 3.0], [0.0, 1.0]]],
    "controlled": [[[1.0, 2.0], [-1.0, 1.0]], [[1.5, 4.5], [-0.5, 2.5]]],
    "controlled, not forbidding": [[[1.0, 2.0], [-1.0, 1.0]], [[1.0, 3.0], [-0.5, 2.5]]],
    "controlled, online selects": [[[1.0, 4.0], [0.5, 1.5]], [[1.5, 4.5], [0.5, 2.5]]],
    "maxmin": [[[1.0, 4.0], [-0.5, 2.5]], [[1.0, 4.0], [-0.5, 2.5]]],
}


def batch(action: list[int], reward: list[float], discount: list[float]) -> Batch:
    count = len(action)
    nothing = torch.zeros(count)
    return Batch(
        observation=nothing,
        action=torch.tensor(action),
        reward=torch.tensor(reward),
        discount=torch.tensor(discount),
        next_observation=nothing,
        weight=torch.ones(count),
        index=torch.arange(count),
        stamp=torch.arange(count),
        rewarded=torch.tensor(reward) > 0,
    )


BATCH = batch([1, 2], [1.0, 0.0], [0.5, 0.5])
INFINITE = torch.tensor(torch.inf)


def drawn(forbid: bool) -> Draw:
    """Each of two members values what the other selected."""
    return DrawLayout(2, 2).plain(order=[1, 0], forbid=forbid)


def scalars(q: Tensor) -> Values:
    return Values(q[..., None], q)


GRID = Categorical(atoms=7, low=0.0, high=6.0)  # a return for every whole number


def certainties(q: Tensor) -> Values:
    """Logits of returns that are certain."""
    return Values(torch.where(q[..., None] == torch.arange(7.0), 0.0, -torch.inf), q)


def quantiles(q: Tensor) -> Values:
    z = torch.stack((q - SPREAD, q + SPREAD), -1)
    return Values(z, z.mean(-1))


@pytest.mark.parametrize("name", OPERATORS)
def test_scalar_backups_by_hand(name: str) -> None:
    operator, forbid = OPERATORS[name]
    z = operator(scalars(ONLINE), scalars(TARGET), BATCH, drawn(forbid))
    y = Scalar().backup(z, BATCH.reward, BATCH.discount, INFINITE)
    assert y.squeeze(-1).tolist() == SCALAR[name]


@pytest.mark.parametrize("name", OPERATORS)
def test_quantile_backups_by_hand(name: str) -> None:
    operator, forbid = OPERATORS[name]
    z = operator(quantiles(ONLINE), quantiles(TARGET), BATCH, drawn(forbid))
    y = Quantile(atoms=2).backup(z, BATCH.reward, BATCH.discount, INFINITE)
    assert y.tolist() == QUANTILE[name]


@pytest.mark.parametrize("name", OPERATORS)
def test_categorical_backups_by_hand(name: str) -> None:
    """A certain return of a half, such as 3.5, becomes even odds of 3 and 4."""
    operator, forbid = OPERATORS[name]
    z = operator(certainties(ONLINE), certainties(TARGET), BATCH, drawn(forbid))
    y = GRID.backup(z, BATCH.reward, BATCH.discount, INFINITE)
    assert GRID.value(y).tolist() == SCALAR[name]
    for member, states in enumerate(SCALAR[name]):
        for state, value in enumerate(states):
            odds = [0.0] * 7
            odds[math.floor(value)] += 0.5
            odds[math.ceil(value)] += 0.5
            assert y[member, state].tolist() == odds


def test_maxmin_takes_the_distribution_of_the_least_member_and_not_a_mixture() -> None:
    """The quantiles are those of one member, the one whose mean of the chosen action is the least."""
    z = torch.tensor([[[[0.0, 4.0], [5.0, 5.0]]], [[[1.0, 5.0], [2.0, 4.0]]]])  # [member, 1 state, action, quantile]
    values = Values(z, z.mean(-1))  # means (2, 5) and (3, 3): least (2, 3), so a1 by member 1
    one = batch([0], [0.0], [1.0])
    assert Maxmin()(values, values, one, drawn(False)).tolist() == [[[2.0, 4.0]], [[2.0, 4.0]]]


def test_the_constraint_looks_at_the_actions_own_reward_and_not_at_the_sum_of_n() -> None:
    """Of an n-step transition only the first reward is the action's."""
    own = replace(BATCH, rewarded=torch.tensor([False, True]))  # sums 1 and 0: the other way round
    free = Controlled()(scalars(ONLINE), scalars(TARGET), own, drawn(False))
    held = Controlled()(scalars(ONLINE), scalars(TARGET), own, drawn(True))
    assert torch.equal(held[:, 0], free[:, 0])  # the sum is positive, the action earned nothing
    # Second state without a2: m0 selects a0, m1 a1 as before; each values the other's.
    assert held[:, 1].squeeze(-1).tolist() == [0.0, 1.0]


@pytest.mark.parametrize("estimator", [Scalar(), Quantile(atoms=1)])
def test_a_terminal_transition_backs_up_its_reward_alone(estimator: Scalar | Quantile) -> None:
    ended = batch([1, 2], [1.0, -3.0], [0.0, 0.0])
    z = Greedy()(scalars(ONLINE), scalars(TARGET), ended, drawn(False))
    y = estimator.backup(z, ended.reward, ended.discount, INFINITE)
    assert y.squeeze(-1).tolist() == [[1.0, -3.0], [1.0, -3.0]]


@pytest.mark.parametrize(("estimator", "values"), [(Scalar(), scalars), (Quantile(atoms=2), quantiles)])
def test_the_ceiling_clips_from_above_only(estimator: Scalar | Quantile, values: object) -> None:
    assert callable(values)
    z = Greedy()(values(ONLINE), values(TARGET), BATCH, drawn(False))
    free = estimator.backup(z, BATCH.reward, BATCH.discount, INFINITE)
    low = estimator.backup(z - 100, BATCH.reward, BATCH.discount, torch.tensor(3.0))
    held = estimator.backup(z, BATCH.reward, BATCH.discount, torch.tensor(3.0))
    assert (free > 3).any()
    assert (free < 3).any()
    assert torch.equal(held, torch.where(free > 3, torch.tensor(3.0), free))  # each quantile by itself
    assert torch.equal(low, free - 50)  # discount 1/2: far below, nothing is touched


def test_the_rewarded_action_is_never_selected_again_and_only_then() -> None:
    torch.manual_seed(0)
    q = torch.randn(4, 500, 3)
    action, reward = torch.randint(3, (500,)), torch.randint(-1, 2, (500,)).float()
    chosen = forbid_rewarded_action(q, action, reward > 0, torch.tensor(True)).argmax(-1)
    rewarded = reward > 0
    assert (chosen != action)[:, rewarded].all()
    assert torch.equal(chosen[:, ~rewarded], q.argmax(-1)[:, ~rewarded])  # r = 0 and r < 0 change nothing
    assert (chosen == action)[:, ~rewarded].any()
    # Where the greedy action was another one anyway, it stays.
    other = rewarded & (q.argmax(-1) != action)
    assert torch.equal(chosen[other], q.argmax(-1)[other])
    off = forbid_rewarded_action(q, action, reward > 0, torch.tensor(False))
    assert torch.equal(off, q)


@pytest.mark.parametrize("members", range(2, 17))
def test_under_a_derangement_no_member_selects_for_itself(members: int) -> None:
    rng = np.random.default_rng(members)
    orders = torch.tensor(np.array([order_for("derangement", members, rng) for _ in range(300)]))
    assert torch.equal(orders.sort(1).values, torch.arange(members).expand(300, -1))  # a permutation each time
    assert not (orders == torch.arange(members)).any()
    if members > 2:
        # Each other member is the selector equally often: 300 / (members - 1) times, give or take.
        share = torch.bincount(orders[:, 0], minlength=members)[1:] / 300
        expected = 1 / (members - 1)
        assert (share - expected).abs().max() < 5 * (expected / 300) ** 0.5


def test_a_uniform_permutation_has_fixed_points_and_none_is_the_identity() -> None:
    rng = np.random.default_rng(0)
    orders = torch.tensor(np.array([order_for("permutation", 4, rng) for _ in range(4000)]))
    fixed = (orders == torch.arange(4)).float().mean()
    assert abs(float(fixed) - 1 / 4) < 0.02  # 1/m of the members select for themselves
    assert order_for("none", 5, rng).tolist() == [0, 1, 2, 3, 4]
    assert order_for("derangement", 1, rng).tolist() == [0]  # alone, a member has only itself


def test_only_operators_that_select_online_ask_for_online_values() -> None:
    assert [operator.reads_online for operator, _ in OPERATORS.values()] == [False, True, False, False, True, False]
