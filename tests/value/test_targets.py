"""Axes 1 and 2 together, by hand: the target of every operator with every estimator.

Two members, two transitions, three actions. The first transition earned 1 with action a1, the second 0 with a2; both
are discounted by 1/2. Operators and estimators are built from recipes, and the targets are the learner's own.
"""

import math
import typing
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from steadyq import UserError, build, presets
from steadyq.nets import MLP, Ensemble
from steadyq.recipe import EstimatorSection, OperatorSection, Recipe
from steadyq.value.learner import Learner, Settings
from steadyq.value.optim import Adam
from steadyq.value.shapes import Batch, Draw, DrawLayout, Params

HERE, NEXT = [0, 1], [2, 3]
"""States of the two transitions."""
TARGET = torch.tensor([[[0, 1, 0], [1, 0, 0], [1, 5, 3], [2, 0, 4]], [[0, 0, 1], [0, 0, 1], [6, 2, 4], [1, 3, 2]]])
ONLINE = torch.tensor([[[0, 0, 0], [0, 0, 0], [0, 1, 9], [0, 7, 1]], [[0, 0, 0], [0, 0, 0], [0, 9, 8], [5, 1, 2]]])
"""Means of a0, a1, a2 in the four states, of the members m0 and m1."""
SPREAD = torch.tensor([1, 2, 3])
"""s of a0, a1, a2 in the next states: returns are q - s or q + s with even odds. Implicit ones are spread evenly from
q - 4s to q + 4s; drawn are 1/2 and 0 in the first next state, q and q - 4s, and 3/4 and 1/4, q + 2s and q - 2s, in the
second."""
TAUS = [[[0.1, 0.2], [0.3, 0.4]], [[0.5, 0.0], [0.75, 0.25]]]


def atoms(q: Tensor, s: Tensor, taus: Tensor) -> Tensor:
    return torch.stack((q - s, q + s), -1)


def logits(q: Tensor, s: Tensor, taus: Tensor) -> Tensor:
    """Of the whole numbers from -3 to 12."""
    returns = torch.arange(-3, 13)
    low, high = ((each[..., None] == returns).float() for each in (q - s, q + s))
    return ((low + high) / 2).log()


KINDS: dict[str, tuple[dict[str, float], Callable[[Tensor, Tensor, Tensor], Tensor]]] = {
    "scalar": ({}, lambda q, s, taus: q[..., None]),
    "quantile": ({"quantiles": 2}, atoms),
    "implicit": ({"samples": 2}, lambda q, s, taus: q[..., None] + s[..., None] * (8 * taus[:, None] - 4)),
    "categorical": ({"atoms": 16, "low": -3.0, "high": 12.0}, logits),
    "hl_gauss": ({"atoms": 16, "low": -3.5, "high": 12.5}, logits),
}
"""Numbers of each estimator, and how a network predicts those returns for it."""

FREE = {"exchange": "none", "forbid": "none"}
BITS = 1 / math.log(2)  # a temperature at which odds are powers of 2, and t log pi is log2 pi

OPERATORS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "greedy": ({"kind": "greedy", **FREE}, {}),
    "averaged": ({"kind": "greedy", **FREE, "snapshots": 2}, {}),  # the older copy of the target is ONLINE
    "double": ({"kind": "double", **FREE}, {}),
    "controlled": ({"kind": "controlled"}, {"forbid": True}),
    "controlled, not forbidding": ({"kind": "controlled"}, {}),
    "controlled, online selects": ({"kind": "controlled", "selector": "online"}, {"forbid": True}),
    "maxmin": ({"kind": "maxmin", **FREE}, {}),
    "maxmin of a subset": ({"kind": "maxmin", **FREE, "subset": 1}, {"share": [1.0, 0.0]}),  # REDQ's
    "rem": ({"kind": "rem", **FREE}, {"share": [0.25, 0.75]}),
    "ebql": ({"kind": "ebql", **FREE}, {}),
    "tqc": ({"kind": "tqc", **FREE, "drop": 1}, {}),
    "softmax": ({"kind": "softmax", **FREE, "temperature": BITS}, {}),
    "munchausen": ({"kind": "munchausen", **FREE, "temperature": BITS, "scale": 0.5, "least": -1.5}, {}),
}
"""Fields of the operator section, and what is drawn."""

# Targets y[member][transition]. A scalar target is r + q/2.
SCALAR = {
    # m0: a1 -> 5, a2 -> 4          m1: a0 -> 6, a1 -> 3
    "greedy": [[1 + 5 / 2, 0 + 4 / 2], [1 + 6 / 2, 0 + 3 / 2]],
    # means of both copies: m0 (0.5, 3, 6) and (1, 3.5, 2.5), m1 (3, 5.5, 6) and (3, 2, 2)
    "averaged": [[1 + 6 / 2, 0 + 3.5 / 2], [1 + 6 / 2, 0 + 3 / 2]],
    # m0: a2 -> 3, a1 -> 0          m1: a1 -> 2, a0 -> 1
    "double": [[1 + 3 / 2, 0 + 0 / 2], [1 + 2 / 2, 0 + 1 / 2]],
    # selected without a1 in the first state: m0 (a2, a2), m1 (a0, a1); each values the other's
    "controlled": [[1 + 1 / 2, 0 + 0 / 2], [1 + 4 / 2, 0 + 2 / 2]],
    # m0 (a1, a2), m1 (a0, a1)
    "controlled, not forbidding": [[1 + 1 / 2, 0 + 0 / 2], [1 + 2 / 2, 0 + 2 / 2]],
    # m0 (a2, a1), m1 (a2 as a1 is forbidden, a0)
    "controlled, online selects": [[1 + 3 / 2, 0 + 2 / 2], [1 + 4 / 2, 0 + 3 / 2]],
    # least values (1, 2, 3) and (1, 0, 2): a2, valued 3 by m0 in the first state and 2 by m1 in the second, for both
    "maxmin": [[1 + 3 / 2, 0 + 2 / 2]] * 2,
    # m0 alone: a1 -> 5, a2 -> 4
    "maxmin of a subset": [[1 + 5 / 2, 0 + 4 / 2]] * 2,
    # m0 / 4 + 3 m1 / 4: (4.75, 2.75, 3.75) and (1.25, 2.25, 2.5), so a0 and a2
    "rem": [[1 + 4.75 / 2, 0 + 2.5 / 2]] * 2,
    # online m0 selects (a2, a1), which m1 values 4 and 3; online m1 (a1, a0), which m0 values 5 and 2
    "ebql": [[1 + 4 / 2, 0 + 3 / 2], [1 + 5 / 2, 0 + 2 / 2]],
    # odds m0 (2, 32, 8) / 42 and (4, 1, 16) / 21, m1 (64, 4, 16) / 84 and (2, 8, 4) / 14
    "softmax": [[1 + 31 / 14, 0 + 24 / 14], [1 + 38 / 14, 0 + 17 / 14]],
    # sum pi (q - log2 pi) = log2 sum 2^q; half of log2 pi(a | s), -1, -2 and -2, -1, each at least -1.5, is added to r
    "munchausen": [
        [1 - 1 / 2 + math.log2(42) / 2, 0 - 1.5 / 2 + math.log2(21) / 2],
        [1 - 1.5 / 2 + math.log2(84) / 2, 0 - 1 / 2 + math.log2(14) / 2],
    ],
}

# Of two quantiles q - s and q + s, the actions as above.
QUANTILE = {
    "greedy": [[[2.5, 4.5], [0.5, 3.5]], [[3.5, 4.5], [0.5, 2.5]]],
    "averaged": [[[2.5, 5.5], [0.75, 2.75]], [[2.5, 5.5], [1.0, 2.0]]],
    "double": [[[1.0, 4.0], [-1.0, 1.0]], [[1.0, 3.0], [0.0, 1.0]]],
    "controlled": [[[1.0, 2.0], [-1.0, 1.0]], [[1.5, 4.5], [-0.5, 2.5]]],
    "controlled, not forbidding": [[[1.0, 2.0], [-1.0, 1.0]], [[1.0, 3.0], [-0.5, 2.5]]],
    "controlled, online selects": [[[1.0, 4.0], [0.5, 1.5]], [[1.5, 4.5], [0.5, 2.5]]],
    "maxmin": [[[1.0, 4.0], [-0.5, 2.5]]] * 2,
    "maxmin of a subset": [[[2.5, 4.5], [0.5, 3.5]]] * 2,
    "rem": [[[2.875, 3.875], [-0.25, 2.75]]] * 2,
    "ebql": [[[1.5, 4.5], [0.5, 2.5]], [[2.5, 4.5], [0.5, 1.5]]],
    # First: a0 (0, 2 | 5, 7) keeps 0, 2; a1 (3, 7 | 0, 4) keeps 0, 3, the largest mean; a2 (0, 6 | 1, 7) keeps 0, 1.
    # Second: a0 (1, 3 | 0, 2) keeps 0, 1, the largest mean; a1 (-2, 2 | 1, 5) -2, 1; a2 (1, 7 | -1, 5) -1, 1.
    "tqc": [[[1 + 0 / 2, 1 + 3 / 2], [0 + 0 / 2, 0 + 1 / 2]]] * 2,
    # the mean of s by the odds is 15/7 and 18/7, 10/7 and 15/7: that much about 31/7 and 24/7, 38/7 and 17/7
    "softmax": [[[1 + 8 / 7, 1 + 23 / 7], [3 / 7, 3]], [[1 + 2, 1 + 24 / 7], [1 / 7, 16 / 7]]],
    # half of that about the scalar targets
    "munchausen": [
        [
            [1 / 2 + (math.log2(42) - 15 / 7) / 2, 1 / 2 + (math.log2(42) + 15 / 7) / 2],
            [-3 / 4 + (math.log2(21) - 18 / 7) / 2, -3 / 4 + (math.log2(21) + 18 / 7) / 2],
        ],
        [
            [1 / 4 + (math.log2(84) - 10 / 7) / 2, 1 / 4 + (math.log2(84) + 10 / 7) / 2],
            [-1 / 2 + (math.log2(14) - 15 / 7) / 2, -1 / 2 + (math.log2(14) + 15 / 7) / 2],
        ],
    ],
}

# Means of what is drawn, first state: m0 (-1, 1, -3), m1 (4, -2, -2), online m0 (-2, -3, 3), m1 (-2, 5, 2); second: q.
IMPLICIT = {
    # m0: a1 5, -3 and a2 10, -2          m1: a0 6, 2 and a1 7, -1
    "greedy": [[[3.5, -0.5], [5.0, -1.0]], [[4.0, 2.0], [3.5, -0.5]]],
    # means of both copies in the first state: m0 (-1.5, -1, 0), m1 (1, 1.5, 0)
    "averaged": [[[4.0, -2.0], [3.75, -0.25]], [[3.75, -0.25], [2.5, 0.5]]],
    # m0: a2 3, -9 and a1 4, -4          m1: a1 2, -6 and a0 3, -1
    "double": [[[2.5, -3.5], [2.0, -2.0]], [[2.0, -2.0], [1.5, -0.5]]],
    # m0 selects (a0 as a1 is forbidden, a2), m1 (a0, a1)
    "controlled": [[[1.5, -0.5], [2.0, -2.0]], [[4.0, 2.0], [4.0, -2.0]]],
    # m0 (a1, a2)
    "controlled, not forbidding": [[[1.5, -0.5], [2.0, -2.0]], [[2.0, -2.0], [4.0, -2.0]]],
    # m0 (a2, a1), m1 (a2 as a1 is forbidden, a0)
    "controlled, online selects": [[[2.5, -3.5], [2.0, 0.0]], [[3.0, -3.0], [3.5, -0.5]]],
    # least means (-1, -2, -3) and (1, 0, 2): m0's a0, then m1's a2
    "maxmin": [[[1.5, -0.5], [4.0, -2.0]]] * 2,
    "maxmin of a subset": [[[3.5, -0.5], [5.0, -1.0]]] * 2,
    # a0 of means (2.75, -1.25, -2.25): 4.75, 0.75; a2: 8.5, -3.5
    "rem": [[[3.375, 1.375], [4.25, -1.75]]] * 2,
    # m1's a2 4, -8 and a1 7, -1          m0's a1 5, -3 and a0 4, 0
    "ebql": [[[3.0, -3.0], [3.5, -0.5]], [[3.5, -0.5], [2.0, 0.0]]],
    # First: a0 (1, -3 | 6, 2) keeps -3, 1, the largest mean; a1 (5, -3 | 2, -6) -6, -3; a2 (3, -9 | 4, -8) -9, -8.
    # Second: a0 (4, 0 | 3, -1) keeps -1, 0, the largest mean; a1 (4, -4 | 7, -1) -4, -1; a2 (10, -2 | 8, -4) -4, -2.
    "tqc": [[[1 - 3 / 2, 1 + 1 / 2], [0 - 1 / 2, 0 + 0 / 2]]] * 2,
    # odds in the first state: m0 (4, 16, 1) / 21, m1 (64, 1, 1) / 66
    "softmax": [
        [[1 + 29 / 14, 1 - 23 / 14], [30 / 7, -6 / 7]],
        [[1 + 65 / 22, 1 + 19 / 22], [47 / 14, -13 / 14]],
    ],
    # log2 sum 2^q of those means, plus and minus half of what lies between the two above
    "munchausen": [
        [
            [1 / 2 + (math.log2(21 / 8) + 26 / 7) / 2, 1 / 2 + (math.log2(21 / 8) - 26 / 7) / 2],
            [-3 / 4 + (math.log2(21) + 36 / 7) / 2, -3 / 4 + (math.log2(21) - 36 / 7) / 2],
        ],
        [
            [1 / 4 + (math.log2(33 / 2) + 23 / 11) / 2, 1 / 4 + (math.log2(33 / 2) - 23 / 11) / 2],
            [-1 / 2 + (math.log2(14) + 30 / 7) / 2, -1 / 2 + (math.log2(14) - 30 / 7) / 2],
        ],
    ],
}


def even(*returns: float) -> dict[float, float]:
    return dict.fromkeys(returns, 1 / len(returns))


# The odds of r + return/2, before a return between two whole numbers is split among them.
CATEGORICAL = {
    # one prediction as it is: the two returns of above
    **{name: [[even(*y) for y in ys] for ys in QUANTILE[name]]
       for name in ("greedy", "double", "controlled", "controlled, not forbidding", "controlled, online selects",
                    "maxmin", "maxmin of a subset", "ebql")},
    # m0: a2 0, 6 or 6, 12 and a1 -2, 2 or 5, 9          m1: a2 1, 7 or 5, 11 and a0 0, 2 or 4, 6
    "averaged": [
        [{1.0: 1 / 4, 4.0: 1 / 2, 7.0: 1 / 4}, even(-1.0, 1.0, 2.5, 4.5)],
        [even(1.5, 4.5, 3.5, 6.5), even(0.0, 1.0, 2.0, 3.0)],
    ],
    # a0: 0, 2 with odds 1/4 or 5, 7 with 3/4; a2: 1, 7 or -1, 5
    "rem": [[{1.0: 1 / 8, 2.0: 1 / 8, 3.5: 3 / 8, 4.5: 3 / 8}, {0.5: 1 / 8, 3.5: 1 / 8, -0.5: 3 / 8, 2.5: 3 / 8}]] * 2,
    # in the order of actions, two returns each, with half of their odds; the same return twice is added up
    "softmax": [
        [
            {1.0: 5 / 42, 2.0: 1 / 42, 2.5: 16 / 42, 4.5: 16 / 42, 4.0: 4 / 42},
            {0.5: 20 / 42, 1.5: 4 / 42, -1.0: 1 / 42, 1.0: 1 / 42, 3.5: 16 / 42},
        ],
        [
            {3.5: 16 / 42, 4.5: 20 / 42, 1.0: 1 / 42, 3.0: 1 / 42, 1.5: 4 / 42},
            {0.0: 1 / 14, 1.0: 1 / 14, 0.5: 4 / 14, 2.5: 6 / 14, -0.5: 2 / 14},
        ],
    ],
}  # fmt: skip

HL_GAUSS = {name: SCALAR[name] for name in CATEGORICAL}  # a target is one number, whatever the distribution of returns

TARGETS: dict[str, dict[str, Any]] = {
    "scalar": SCALAR, "quantile": QUANTILE, "implicit": IMPLICIT, "categorical": CATEGORICAL, "hl_gauss": HL_GAUSS,
}  # fmt: skip

POOLS = "it pools quantiles (use quantile or implicit)"
ADDS = "it is added to values, and there they are logits (use scalar, quantile or implicit)"
REFUSED = {
    ("tqc", "scalar"): POOLS,
    ("tqc", "categorical"): POOLS,
    ("tqc", "hl_gauss"): POOLS,
    ("munchausen", "categorical"): ADDS,
    ("munchausen", "hl_gauss"): ADDS,
}


def kinds(section: type) -> tuple[str, ...]:
    return typing.get_args(typing.get_type_hints(section)["kind"])


def recipe_of(name: str, kind: str) -> Recipe:
    fields = {f"operator.{field}": value for field, value in OPERATORS[name][0].items()}
    fields |= {f"estimator.{field}": value for field, value in {"kind": kind, **KINDS[kind][0]}.items()}
    base = presets.recipe_for("dqn", "CartPole-v1", "tiny")
    return base.override({"ensemble.members": 2, "optim.hard_copy_every": 1, **fields})


@dataclass(frozen=True)
class Told(Ensemble):
    """Networks that predict what they were told, for the estimator of that kind."""

    kind: str = "scalar"

    def initial(self, generator: torch.Generator, device: torch.device | str = "cpu") -> Params:
        return {"means": TARGET.float()}

    def forward(
        self, params: Params, observation: Tensor, around: Any = None, taus: Any = None, noise: Any = None
    ) -> Tensor:
        q = params["means"][:, observation]
        s = (SPREAD * (observation >= NEXT[0])[:, None]).expand_as(q)
        return KINDS[self.kind][1](q, s, taus)


def learner_of(name: str, kind: str, certainty: float = 0.0) -> Learner:
    recipe = recipe_of(name, kind)
    settings = Settings(Adam(1e-3), 10.0, 0.0, 1, snapshots=recipe.operator.snapshots, certainty=certainty)
    estimator, operator = build.estimator_for(recipe), build.operator_for(recipe)
    told = Told(MLP((1,), 3), 2, 3, estimator.atoms, kind=kind)
    learner = Learner(told, estimator, operator, settings, torch.Generator())
    for params in (learner.online, learner.older):
        params.update(means=ONLINE.float())
    return learner


BATCH = Batch(
    observation=torch.tensor(HERE),
    action=torch.tensor([1, 2]),
    reward=torch.tensor([1.0, 0.0]),
    discount=torch.tensor([0.5, 0.5]),
    next_observation=torch.tensor(NEXT),
    weight=torch.tensor([1.0, 0.5]),
    index=torch.arange(2),
    stamp=torch.arange(2),
    rewarded=torch.tensor([True, False]),
)


def drawn(name: str) -> Draw:
    """Each of the two members values what the other selected."""
    return DrawLayout(2, 2, samples=2).plain(order=[1, 0], taus=TAUS, **OPERATORS[name][1])


def on_the_grid(odds: dict[float, float]) -> list[float]:
    """Halves are split evenly between their neighbours, of the whole numbers from -3 to 12."""
    return [
        sum(odd / 2 * ((math.floor(value) == point) + (math.ceil(value) == point)) for value, odd in odds.items())
        for point in range(-3, 13)
    ]


def smeared(mean: float) -> list[float]:
    """A normal distribution of deviation 3/4, cut at -3.5 and 12.5, in intervals around the same whole numbers."""
    below = [math.erf((edge - 0.5 - mean) / (0.75 * math.sqrt(2))) for edge in range(-3, 14)]
    return [(right - left) / (below[-1] - below[0]) for left, right in pairwise(below)]


WRITTEN: dict[str, Callable[[Any], list[float]]] = {
    "scalar": lambda y: [y], "quantile": list, "implicit": list, "categorical": on_the_grid, "hl_gauss": smeared,
}  # fmt: skip
"""The numbers that stand for a target of the tables."""


@pytest.mark.parametrize("kind", kinds(EstimatorSection))
@pytest.mark.parametrize("name", OPERATORS)
def test_the_target_of_every_pair_by_hand_or_why_there_is_none(name: str, kind: str) -> None:
    operator = OPERATORS[name][0]["kind"]
    if (operator, kind) in REFUSED:
        with pytest.raises(UserError) as error:
            recipe_of(name, kind)
        said = f"operator.kind {operator} contradicts estimator.kind {kind}: {REFUSED[operator, kind]}"
        assert str(error.value) == said
        return
    y, _, weight = learner_of(name, kind).targets(BATCH, drawn(name))
    expected = [[WRITTEN[kind](each) for each in member] for member in TARGETS[kind][name]]
    torch.testing.assert_close(y, torch.tensor(expected), rtol=1e-5, atol=1e-6)
    assert weight is BATCH.weight


def test_every_operator_that_recipes_know_is_above() -> None:
    """Every estimator is, because the test above asks recipes which there are."""
    assert {fields["kind"] for fields, _ in OPERATORS.values()} == set(kinds(OperatorSection))


@pytest.mark.parametrize("kind", kinds(EstimatorSection))
def test_what_members_disagree_on_weighs_less_by_hand(kind: str) -> None:
    """SUNRISE's sigmoid(-T spread) + 1/2: e^T is 9, and the controlled operator's bootstraps are 1, 4 and 0, 2, of
    standard deviations 1.5 and 1; the means of implicit ones in the first state -1, 4."""
    first = 9**2.5 if kind == "implicit" else 9**1.5
    _, _, weight = learner_of("controlled", kind, certainty=math.log(9)).targets(BATCH, drawn("controlled"))
    assert weight.tolist() == pytest.approx([1 / (1 + first) + 1 / 2, (1 / (1 + 9) + 1 / 2) / 2], rel=1e-5)
