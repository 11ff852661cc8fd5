"""Axis 2: the losses against pure Python, term by term."""

import math
import typing

import pytest
import torch

from steadyq import build, presets
from steadyq.recipe import EstimatorSection
from steadyq.value.estimators import Categorical, Estimator, HLGauss, Implicit, Quantile, Scalar, huber, td_error


def python_huber(u: float, kappa: float) -> float:
    return u * u / 2 / kappa if abs(u) <= kappa else abs(u) - kappa / 2


def python_quantile_loss(z: list[float], y: list[float], kappa: float, taus: list[float] | None = None) -> float:
    """The mean over all pairs; the quantiles are evenly spaced where none are given."""
    total = 0.0
    for tau, predicted in zip(taus or [(i + 0.5) / len(z) for i in range(len(z))], z, strict=True):
        for target in y:
            u = target - predicted
            total += abs(tau - (1 if u < 0 else 0)) * python_huber(u, kappa)
    return total / len(z) / len(y)


def python_loss(estimator: Estimator, z: list[float], y: list[float], taus: list[float]) -> float:
    match estimator:
        case Scalar(kappa):
            return python_huber(y[0] - z[0], kappa)
        case Quantile(atoms, kappa, reduction):
            return python_quantile_loss(z, y, kappa) * (atoms if reduction == "sum" else 1)
        case Implicit(samples, _, kappa, reduction):
            return python_quantile_loss(z, y, kappa, taus) * (samples if reduction == "sum" else 1)
    total = sum(math.exp(logit) for logit in z)
    return -sum(share * math.log(math.exp(logit) / total) for share, logit in zip(y, z, strict=True))


LOSSES: list[Estimator] = [
    *(Scalar(kappa) for kappa in (0.3, 1.0, 2.0)),
    *(Quantile(atoms, kappa) for atoms in (1, 4, 51) for kappa in (0.3, 1.0, 2.0)),
    Quantile(4, reduction="sum"),
    Implicit(4, 8, 0.7),
    Implicit(4, 8, 1.0, "sum"),
    Categorical(51, -10.0, 10.0),
    HLGauss(5, -1.0, 3.0),
]


@pytest.mark.parametrize("estimator", LOSSES, ids=str)
def test_the_loss_equals_brute_force(estimator: Estimator) -> None:
    generator = torch.Generator().manual_seed(estimator.atoms)
    predicted, target = (4, 5) if isinstance(estimator, Implicit) else (estimator.atoms, estimator.atoms)
    z, y = (torch.randn(3, 5, count, generator=generator) * 2 for count in (predicted, target))
    y = y.softmax(-1) if isinstance(estimator, Categorical | HLGauss) else y + 0.5
    taus = torch.rand(5, predicted, generator=generator)
    loss = estimator.loss(z, y, taus)
    assert loss.shape == (3, 5)
    for member in range(3):
        for row in range(5):
            numbers = (part.tolist() for part in (z[member, row], y[member, row], taus[row]))
            assert float(loss[member, row]) == pytest.approx(python_loss(estimator, *numbers), rel=1e-5)


def test_every_estimator_that_recipes_know_is_above() -> None:
    known = typing.get_args(typing.get_type_hints(EstimatorSection)["kind"])
    dqn = presets.recipe_for("dqn", "CartPole-v1")
    built = {type(build.estimator_for(dqn.override({"estimator.kind": kind}))) for kind in known}
    assert len(built) == len(known)
    assert built == {type(estimator) for estimator in LOSSES} == {type(estimator) for estimator in ESTIMATORS}


def test_huber_losses_by_hand() -> None:
    z, y = torch.tensor([[[2.0], [-1.0], [0.0]]]), torch.tensor([[[2.5], [-4.0], [1.0]]])
    assert Scalar().loss(z, y).tolist() == [[0.125, 2.5, 0.5]]
    # kappa 2: quadratic up to 2 and divided by kappa, slope 1 beyond.
    assert huber(torch.tensor([1.0, 2.0, 5.0]), 2.0).tolist() == [0.25, 1.0, 4.0]
    # tau = 1/4, 3/4. z_1 = 0: u = 1, -3 -> 1/4 * 1/2 and 3/4 * 5/2; z_2 = 2: u = -1, -5 -> 1/4 * 1/2 and 1/4 * 9/2.
    loss = Quantile(2).loss(torch.tensor([[[0.0, 2.0]]]), torch.tensor([[[1.0, -3.0]]]))
    assert float(loss) == pytest.approx((0.125 + 1.875 + 0.125 + 1.125) / 4)


def test_its_gradient_is_the_slope_of_the_brute_force_loss() -> None:
    torch.manual_seed(0)
    z, y = (torch.randn(1, 1, 7) * 2).requires_grad_(), torch.randn(1, 1, 7) * 2
    (gradient,) = torch.autograd.grad(Quantile(7).loss(z, y).sum(), z)
    values, step = z.flatten().tolist(), 1e-5
    for k in range(7):
        above, below = ([v + sign * step * (i == k) for i, v in enumerate(values)] for sign in (1, -1))
        targets = y.flatten().tolist()
        slope = (python_quantile_loss(above, targets, 1.0) - python_quantile_loss(below, targets, 1.0)) / (2 * step)
        assert float(gradient[0, 0, k]) == pytest.approx(slope, abs=1e-5)


def test_mean_and_sum_reductions_differ_by_exactly_the_number_of_quantiles() -> None:
    torch.manual_seed(0)
    z, y = torch.randn(2, 6, 51), torch.randn(2, 6, 51)
    assert torch.equal(Quantile(51, reduction="sum").loss(z, y), 51 * Quantile(51, reduction="mean").loss(z, y))


def test_no_gradient_flows_into_the_target() -> None:
    z, y = torch.randn(1, 2, 3, requires_grad=True), torch.randn(1, 2, 3, requires_grad=True)
    Quantile(3).loss(z, y).sum().backward()
    assert z.grad is not None
    assert y.grad is None


def test_q_is_the_mean_over_quantiles_and_the_scalar_itself() -> None:
    assert Quantile(3).q(torch.tensor([[[[1.0, 2.0, 6.0]]]])).tolist() == [[[3.0]]]
    assert Scalar().q(torch.tensor([[[[7.0]]]])).tolist() == [[[7.0]]]
    assert (Quantile(3).atoms, Scalar().atoms) == (3, 1)


def test_the_share_held_by_the_ceiling_counts_atoms_at_it() -> None:
    y, high = torch.tensor([[[1.0, 3.0], [3.0, 2.9]], [[0.0, 0.0], [3.0, 3.0]]]), torch.tensor(3.0)
    assert Quantile(2).held(y, high).tolist() == [[0.5, 0.5], [0.0, 1.0]]
    assert Scalar().held(y[..., :1], high).tolist() == [[0.0, 1.0], [0.0, 1.0]]
    for estimator, part in ((Quantile(2), y), (Scalar(), y[..., :1])):
        assert not estimator.held(part, torch.tensor(torch.inf)).any()


def test_crossing_counts_neighbours_in_the_wrong_order() -> None:
    z = torch.tensor([[[[0.0, 1.0, 0.5]], [[1.0, 1.0, 2.0]]]])
    crossing = Quantile(3).crossing(z)
    assert crossing is not None
    assert crossing.tolist() == [0.25]
    assert Quantile(1).crossing(z[..., :1]) is None
    assert Scalar().crossing(z[..., :1]) is None


# -- categorical ------------------------------------------------------------------------------------------------------

C51 = Categorical(atoms=51, low=-10.0, high=10.0)


def python_projection(
    p: list[float], reward: float, discount: float, grid: Categorical, ceiling: float = math.inf
) -> list[float]:
    """The projection of the C51 paper (Algorithm 1), return by return; the ceiling is the first grid point above it."""
    spacing = (grid.high - grid.low) / (grid.atoms - 1)
    support = [grid.low + i * spacing for i in range(grid.atoms)]
    bound = min([point for point in support if point >= ceiling], default=math.inf)
    found = [0.0] * grid.atoms
    for mass, point in zip(p, support, strict=True):
        moved = max(grid.low, min(grid.high, bound, reward + discount * point))
        place = (moved - grid.low) / spacing
        below, above = math.floor(place + 1e-9), math.ceil(place - 1e-9)
        if below == above:
            found[below] += mass
        else:
            found[below] += mass * (above - place)
            found[above] += mass * (place - below)
    return found


@pytest.mark.parametrize("ceiling", [math.inf, 4.0, 3.9, 0.1, -3.0, 25.0, -25.0])
@pytest.mark.parametrize(
    ("reward", "discount"),
    [
        (0.0, 1.0),
        (1.0, 0.99),
        (-1.3, 0.9),
        (2.4, 0.0),
        (-10.0, 0.0),
        (10.0, 0.0),
        (15.0, 0.99),
        (-15.0, 0.99),
        (3.0, 0.0),
    ],
    ids=["as it is", "between", "down", "terminal", "low end", "high end", "above", "below", "terminal, between"],
)
def test_the_projection_equals_brute_force(reward: float, discount: float, ceiling: float) -> None:
    z = torch.randn(2, 1, 51, generator=torch.Generator().manual_seed(0))
    y = C51.backup(z, torch.tensor([reward]), torch.tensor([discount]), torch.tensor(ceiling))
    for member in range(2):
        p = z[member, 0].double().softmax(-1).tolist()
        assert y[member, 0].tolist() == pytest.approx(python_projection(p, reward, discount, C51, ceiling), abs=2e-6)
    assert y.sum(-1).tolist() == [[pytest.approx(1.0, abs=1e-5)]] * 2


def test_a_projection_by_hand() -> None:
    """Returns 0, 1, 2 with odds 1/4, 1/2, 1/4; r + z/2 with r = 1/2 lies at 1/2, 1, 3/2."""
    grid, z = Categorical(3, 0.0, 2.0), torch.tensor([[[1.0, 2.0, 1.0]]]).log()
    one, half, free = torch.tensor([0.5]), torch.tensor([0.5]), torch.tensor(math.inf)
    y = grid.backup(z, one, half, free)
    assert y.flatten().tolist() == pytest.approx([1 / 8, 1 / 8 + 1 / 2 + 1 / 8, 1 / 8])
    assert float(grid.value(y)) == pytest.approx(1.0)  # = 1/2 + 1/2 of the mean 1
    # Held below 1: what lay at 3/2 lies at 1. Held below 0.4: the grid point above it is 1 again.
    for ceiling in (1.0, 0.4):
        y = grid.backup(z, one, half, torch.tensor(ceiling))
        assert y.flatten().tolist() == pytest.approx([1 / 8, 7 / 8, 0])
        assert float(grid.held(y, torch.tensor(ceiling))) == pytest.approx(7 / 8)
    assert float(grid.held(y, free)) == 0
    assert float(grid.held(y, torch.tensor(5.0))) == 0  # above the grid nothing is held


def test_the_gradient_of_a_cross_entropy_is_the_difference_of_probabilities() -> None:
    generator = torch.Generator().manual_seed(1)
    z = torch.randn(3, 4, 51, generator=generator).requires_grad_()
    y = torch.randn(3, 4, 51, generator=generator).softmax(-1)
    (mine,) = torch.autograd.grad(C51.loss(z, y).sum(), z)
    torch.testing.assert_close(mine, z.detach().softmax(-1) - y)


def test_a_categorical_value_is_an_expected_return_and_no_mean_of_probabilities() -> None:
    logits = torch.full((1, 1, 51), -torch.inf)
    logits[..., 40] = 0.0  # certain of -10 + 40 x 0.4 = 6
    assert float(C51.q(logits)) == pytest.approx(6.0)
    y = logits.softmax(-1)
    assert float(C51.value(y)) == pytest.approx(6.0)
    assert float(y.mean()) == pytest.approx(1 / 51)  # what a mean over atoms would have called the target
    assert C51.crossing(logits) is None
    assert C51.atoms == 51


# -- HL-Gauss ---------------------------------------------------------------------------------------------------------


def normal_share(low: float, high: float, mean: float, deviation: float) -> float:
    """Of a normal distribution between two numbers, by the sum of many thin slices."""
    slices = 20_000
    width = (high - low) / slices
    middle = (low + (i + 0.5) * width for i in range(slices))
    return sum(math.exp(-0.5 * ((x - mean) / deviation) ** 2) for x in middle) * width / deviation


@pytest.mark.parametrize("value", [0.0, 0.3, -1.9, 5.0, -7.0], ids=["middle", "between", "edge", "above", "below"])
def test_a_number_is_smeared_into_the_shares_of_a_normal_distribution(value: float) -> None:
    """Four intervals of width 1 from -2 to 2; what would lie outside is shared out, a number outside is at the end."""
    estimator = HLGauss(atoms=4, low=-2.0, high=2.0, smoothing=0.75)
    held = min(max(value, -2.0), 2.0)
    shares = [normal_share(left, left + 1, held, 0.75) for left in (-2, -1, 0, 1)]
    expected = [share / sum(shares) for share in shares]
    assert estimator.smeared(torch.tensor(value)).tolist() == pytest.approx(expected, abs=1e-5)


def test_an_hl_gauss_target_is_the_mean_backed_up_and_its_value_comes_back() -> None:
    estimator, free = HLGauss(), torch.tensor(math.inf)
    z = torch.randn(2, 3, 51, generator=torch.Generator().manual_seed(0))
    reward, discount = torch.tensor([1.0, -0.5, 2.0]), torch.tensor([0.9, 0.5, 0.0])
    y = estimator.backup(z, reward, discount, free)
    torch.testing.assert_close(y.sum(-1), torch.ones(2, 3))
    mean = (z.softmax(-1) * estimator.centres(z)).sum(-1)
    torch.testing.assert_close(estimator.q(z), mean)
    # Symmetric around the target away from the ends: the smeared mean is the target, up to the intervals' width.
    torch.testing.assert_close(estimator.value(y), reward + discount * mean, rtol=0, atol=2e-3)
    assert estimator.centres(z)[[0, 25, 50]].tolist() == pytest.approx([-10 + 10 / 51, 0.0, 10 - 10 / 51], abs=1e-6)


def test_the_ceiling_holds_an_hl_gauss_target_as_a_number() -> None:
    estimator = HLGauss(atoms=8, low=-4.0, high=4.0)
    z = torch.zeros(1, 3, 8)  # means 0
    reward, one, ceiling = torch.tensor([1.0, 2.0, 3.0]), torch.ones(3), torch.tensor(2.0)
    y = estimator.backup(z, reward, one, ceiling)
    torch.testing.assert_close(y[0, 1], y[0, 2])
    assert estimator.held(y, ceiling).tolist() == [[0.0, 1.0, 1.0]]
    assert estimator.held(y, torch.tensor(math.inf)).tolist() == [[0.0, 0.0, 0.0]]


# -- implicit quantiles -----------------------------------------------------------------------------------------------


def test_without_drawn_quantiles_the_implicit_loss_is_the_quantile_loss() -> None:
    z, y = torch.randn(2, 3, 2, 7, generator=torch.Generator().manual_seed(0)).unbind(2)
    torch.testing.assert_close(Implicit().loss(z, y), Quantile(7).loss(z, y))
    for name in ("q", "value"):
        assert torch.equal(getattr(Implicit(), name)(z), z.mean(-1))
    assert float(Implicit().held(torch.tensor([[[1.0, 2.0, 3.0, 3.0]]]), torch.tensor(3.0))) == 0.5
    crossing = Implicit().crossing(torch.tensor([[[1.0, 2.0, 1.5]]]))
    assert crossing is not None
    assert crossing.tolist() == [0.5]


# -- mixtures ---------------------------------------------------------------------------------------------------------

ESTIMATORS: list[Estimator] = [Scalar(), Quantile(4), Categorical(5, -1.0, 3.0), HLGauss(5, -1.0, 3.0), Implicit()]


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda estimator: type(estimator).__name__)
def test_a_mixtures_mean_is_the_weighted_mean_of_means(estimator: Estimator) -> None:
    generator = torch.Generator().manual_seed(0)
    z, weight = torch.randn(2, 3, 4, estimator.atoms, generator=generator), torch.rand(2, 3, 4, generator=generator)
    weight = weight / weight.sum(-1, keepdim=True)
    mixed = estimator.mix(z, weight)
    assert mixed.shape == (2, 3, estimator.atoms)
    torch.testing.assert_close(estimator.q(mixed), (estimator.q(z) * weight).sum(-1), rtol=1e-5, atol=1e-6)


def test_certain_returns_mix_into_odds() -> None:
    z = torch.tensor([[0.0, -torch.inf, -torch.inf], [-torch.inf, -torch.inf, 0.0]])  # certain of -10, of 10
    mixed = Categorical(3).mix(z, torch.tensor([0.25, 0.75]))
    assert mixed.softmax(-1).tolist() == pytest.approx([0.25, 0.0, 0.75])


@pytest.mark.parametrize("estimator", [Scalar(), Quantile(4), Categorical(5, -1.0, 3.0)], ids=["1", "4", "5"])
def test_the_td_error_is_in_units_of_return(estimator: Estimator) -> None:
    """A target built from the prediction itself, one reward further: the error is that reward, whatever the atoms."""
    z = 0.1 * torch.randn(2, 3, estimator.atoms, generator=torch.Generator().manual_seed(0))
    free = torch.tensor(math.inf)
    y = estimator.backup(z, torch.full((3,), 0.25), torch.full((3,), 1.0), free)
    held = (estimator.q(z) + 0.25).clamp(max=3.0) if isinstance(estimator, Categorical) else estimator.q(z) + 0.25
    if isinstance(estimator, Categorical):  # what lay at the highest return stays there
        held = held - 0.25 * z.softmax(-1)[..., -1]
    torch.testing.assert_close(td_error(estimator, z, y), held - estimator.q(z))
