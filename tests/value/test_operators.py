"""Axis 1: whose value of which action. Targets of every operator with every estimator are in test_targets.py."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from steadyq.value.estimators import Categorical, Estimator, Implicit, Quantile, Scalar
from steadyq.value.operators import (
    Controlled,
    Double,
    Greedy,
    Maxmin,
    Mixture,
    Munchausen,
    Operator,
    Others,
    Pooled,
    Softmax,
    forbid_rewarded_action,
    order_for,
    permitted,
)
from steadyq.value.shapes import Batch, Draw, DrawLayout, Values

#                       a0 a1 a2     member 0 at the first and second next state, then member 1
TARGET = torch.tensor([[[1, 5, 3], [2, 0, 4]], [[6, 2, 4], [1, 3, 2]]], dtype=torch.float32)
ONLINE = torch.tensor([[[0, 1, 9], [0, 7, 1]], [[0, 9, 8], [5, 1, 2]]], dtype=torch.float32)
SPREAD = torch.tensor([1.0, 2.0, 3.0])  # of action a0, a1, a2: two quantiles at q - spread and q + spread

EVERY: dict[str, Callable[[Estimator], Operator]] = {
    "greedy": lambda _: Greedy(),
    "double": lambda _: Double(),
    "controlled": lambda _: Controlled(),
    "controlled, online selects": lambda _: Controlled("online"),
    "maxmin": lambda _: Maxmin(),
    "rem": Mixture,
    "ebql": Others,
    "tqc": lambda _: Pooled(1),
    "softmax": lambda estimator: Softmax(estimator, 2.0),
    "munchausen": lambda _: Munchausen(2.0),
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


def drawn(forbid: bool = False, **more: Any) -> Draw:
    """Each of two members values what the other selected."""
    return DrawLayout(2, 2).plain(order=[1, 0], forbid=forbid, **more)


def scalars(q: Tensor) -> Values:
    return Values(q[..., None], q)


GRID = Categorical(atoms=7, low=0.0, high=6.0)  # a return for every whole number


def certainties(q: Tensor) -> Values:
    """Logits of returns that are certain."""
    return Values(torch.where(q[..., None] == torch.arange(7.0), 0.0, -torch.inf), q)


def quantiles(q: Tensor) -> Values:
    z = torch.stack((q - SPREAD, q + SPREAD), -1)
    return Values(z, z.mean(-1))


def test_maxmin_takes_the_distribution_of_the_least_member_and_not_a_mixture() -> None:
    """The quantiles are those of one member, the one whose mean of the chosen action is the least."""
    z = torch.tensor([[[[0.0, 4.0], [5.0, 5.0]]], [[[1.0, 5.0], [2.0, 4.0]]]])  # [member, 1 state, action, quantile]
    values = Values(z, z.mean(-1))  # means (2, 5) and (3, 3): least (2, 3), so a1 by member 1
    one = batch([0], [0.0], [1.0])
    assert Maxmin()(values, values, one, drawn(False)).tolist() == [[[2.0, 4.0]], [[2.0, 4.0]]]


def test_maxmin_of_some_members_looks_at_no_other() -> None:
    """Of the first and the last the least are 1 and 2, and a1 is the last's; with the second they would be 1 and 0."""
    q = torch.tensor([[[1.0, 5.0]], [[4.0, 0.0]], [[3.0, 2.0]]])
    some = DrawLayout(3, 1).plain(share=[0.5, 0.0, 0.5])
    assert Maxmin(2)(scalars(q), scalars(q), batch([0], [0.0], [1.0]), some).flatten().tolist() == [2.0] * 3


def test_the_constraint_looks_at_the_actions_own_reward_and_not_at_the_sum_of_n() -> None:
    """Of an n-step transition only the first reward is the action's."""
    own = replace(BATCH, rewarded=torch.tensor([False, True]))  # sums 1 and 0: the other way round
    free = Controlled()(scalars(ONLINE), scalars(TARGET), own, drawn(False))
    held = Controlled()(scalars(ONLINE), scalars(TARGET), own, drawn(True))
    assert torch.equal(held[:, 0], free[:, 0])  # the sum is positive, the action earned nothing
    # Second state without a2: m0 selects a0, m1 a1 as before; each values the other's.
    assert held[:, 1].squeeze(-1).tolist() == [0.0, 1.0]


@pytest.mark.parametrize("estimator", [Scalar(), Quantile(atoms=1), Implicit()])
def test_a_terminal_transition_backs_up_its_reward_alone(estimator: Estimator) -> None:
    ended = batch([1, 2], [1.0, -3.0], [0.0, 0.0])
    z = Greedy()(scalars(ONLINE), scalars(TARGET), ended, drawn(False))
    y = estimator.backup(z, ended.reward, ended.discount, INFINITE)
    assert y.squeeze(-1).tolist() == [[1.0, -3.0], [1.0, -3.0]]


@pytest.mark.parametrize(
    ("estimator", "values"), [(Scalar(), scalars), (Quantile(atoms=2), quantiles), (Implicit(), quantiles)]
)
def test_the_ceiling_clips_from_above_only(estimator: Estimator, values: Callable[[Tensor], Values]) -> None:
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


def test_other_values_are_asked_for_only_by_operators_that_read_them() -> None:
    reading = {name for name, operator in EVERY.items() if operator(Scalar()).reads_online}
    assert reading == {"double", "controlled, online selects", "ebql"}
    assert {name for name, operator in EVERY.items() if operator(Scalar()).reads_here} == {"munchausen"}


# -- pooled, soft and mixed -------------------------------------------------------------------------------------------


def test_pooled_quantiles_are_all_of_them_where_none_is_dropped() -> None:
    everything = Pooled(0)(quantiles(ONLINE), quantiles(TARGET), BATCH, drawn())
    assert everything.shape == (2, 2, 4)
    assert everything[0, 0].tolist() == [0.0, 2.0, 5.0, 7.0]  # a0, the first of three whose mean is 3.5


def test_a_cold_softmax_is_the_greedy_operator_whatever_the_estimator() -> None:
    for estimator, values in ((Scalar(), scalars), (Quantile(2), quantiles), (GRID, certainties)):
        soft = Softmax(estimator, 1e-3)(values(ONLINE), values(TARGET), BATCH, drawn())
        hard = Greedy()(values(ONLINE), values(TARGET), BATCH, drawn())
        torch.testing.assert_close(estimator.q(soft), estimator.q(hard))
    cold = Munchausen(1e-3)(scalars(ONLINE), scalars(TARGET), BATCH, drawn())
    torch.testing.assert_close(cold, Greedy()(scalars(ONLINE), scalars(TARGET), BATCH, drawn()), rtol=0, atol=1e-5)


def test_of_several_others_the_mean_is_taken() -> None:
    q = torch.tensor([[[1.0, 5.0]], [[2.0, 0.0]], [[9.0, 4.0]]])  # three members select a1, a0, a0
    z = Others(Scalar())(scalars(q), scalars(q), batch([0], [0.0], [1.0]), DrawLayout(3, 1).plain())
    assert z.flatten().tolist() == [(0 + 4) / 2, (1 + 9) / 2, (1 + 2) / 2]


def test_a_mixture_is_regressed_as_one_network() -> None:
    z = torch.tensor([[[1.0]], [[5.0]]])
    assert Mixture(Scalar()).blend(z, drawn(share=[0.25, 0.75])).tolist() == [[[4.0]]]
    assert Greedy().blend(z, drawn()) is z


def test_shares_are_drawn_where_an_operator_mixes_and_nowhere_else() -> None:
    rng = np.random.default_rng(0)
    before = rng.bit_generator.state
    for operator in (Greedy(), Double(), Controlled(), Maxmin(), Others(Scalar()), Pooled(), Munchausen()):
        assert operator.shares(4, rng).tolist() == [0.25] * 4
    assert rng.bit_generator.state == before  # runs without it keep their random stream
    shares = np.array([Mixture(Scalar()).shares(4, rng) for _ in range(2000)])
    np.testing.assert_allclose(shares.sum(1), 1)
    np.testing.assert_allclose(shares.mean(0), 0.25, atol=0.01)
    subsets = np.array([Maxmin(2).shares(5, rng) for _ in range(2000)])
    assert set(np.unique(subsets)) == {0.0, 0.5}
    assert ((subsets > 0).sum(1) == 2).all()
    np.testing.assert_allclose((subsets > 0).mean(0), 2 / 5, atol=0.04)


# -- actions that the environment does not allow -----------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
def test_no_operator_bootstraps_from_an_action_that_is_not_allowed(name: str) -> None:
    """Whatever that action were worth, it changes nothing; and where it alone was the best, something else is taken."""
    operator, allowed = EVERY[name](Quantile(2)), torch.tensor([[True, False, True], [False, True, True]])
    found = []
    for value in (-50.0, 50.0):
        sets = []
        for q in (ONLINE, TARGET):
            values = quantiles(torch.where(allowed, q, value))
            sets.append(Values(values.z, permitted(values.q, allowed)))  # as the learner hands them over
        masked = replace(BATCH, next_allowed=allowed, allowed=allowed)
        found.append(operator(*sets, masked, drawn()))
    assert found[0].isfinite().all()
    torch.testing.assert_close(found[0], found[1])
    assert found[0].abs().max() < 20


def test_the_munchausen_reward_knows_what_was_allowed() -> None:
    allowed = torch.tensor([[False, True, True], [True, True, True]])
    values = scalars(ONLINE)
    masked = Values(values.z, permitted(values.q, allowed))
    bonus = Munchausen(1.0, 1.0, -100.0).bonus(masked, BATCH)
    q = ONLINE[0, 0].tolist()  # without a0: log(e^q1 / (e^q1 + e^q2))
    assert float(bonus[0, 0]) == pytest.approx(q[1] - math.log(math.exp(q[1]) + math.exp(q[2])), abs=1e-5)
    assert bonus.isfinite().all()
