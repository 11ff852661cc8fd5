"""Axis 2: the losses against pure Python, term by term."""

import pytest
import torch

from steadyq.value.estimators import Quantile, Scalar, huber


def python_huber(u: float, kappa: float) -> float:
    return u * u / 2 / kappa if abs(u) <= kappa else abs(u) - kappa / 2


def python_quantile_loss(z: list[float], y: list[float], kappa: float) -> float:
    total = 0.0
    for i, predicted in enumerate(z):
        tau = (i + 0.5) / len(z)
        for target in y:
            u = target - predicted
            total += abs(tau - (1 if u < 0 else 0)) * python_huber(u, kappa)
    return total / len(z) ** 2


@pytest.mark.parametrize("kappa", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("atoms", [1, 4, 51])
def test_the_quantile_loss_equals_brute_force(atoms: int, kappa: float) -> None:
    torch.manual_seed(atoms)
    z, y = torch.randn(3, 5, atoms) * 2, torch.randn(3, 5, atoms) * 2 + 0.5
    loss = Quantile(atoms, kappa).loss(z, y)
    assert loss.shape == (3, 5)
    for member in range(3):
        for row in range(5):
            expected = python_quantile_loss(z[member, row].tolist(), y[member, row].tolist(), kappa)
            assert float(loss[member, row]) == pytest.approx(expected, rel=1e-5)


def test_the_quantile_loss_by_hand() -> None:
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


def test_the_scalar_loss_is_huber_by_hand() -> None:
    z, y = torch.tensor([[[0.0], [0.0], [0.0]]]), torch.tensor([[[0.5], [-3.0], [1.0]]])
    assert Scalar().loss(z, y).tolist() == [[0.125, 2.5, 0.5]]
    # kappa 2: quadratic up to 2 and divided by kappa, slope 1 beyond.
    assert huber(torch.tensor([1.0, 2.0, 5.0]), 2.0).tolist() == [0.25, 1.0, 4.0]


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
