"""The fused loss and optimizer equal their plain texts: the CPU forms here, the kernels in Triton's interpreter."""

import pytest
import torch
from interpreter import outside, run_interpreted
from torch import Tensor

from steadyq.device.kernels import adam
from steadyq.device.kernels.loss import quantile_huber, quantile_huber_reference


@outside
def test_under_the_interpreter() -> None:
    run_interpreted(__file__)


def by_hand(z: Tensor, y: Tensor, kappa: float) -> tuple[Tensor, Tensor]:
    """Loss and gradient, pair by pair, in float64, from the formula's own words."""
    z, y = z.double(), y.double()
    loss, slope = torch.zeros(z.shape[:-1], dtype=torch.float64), torch.zeros_like(z)
    k, j = z.shape[-1], y.shape[-1]
    for row in torch.cartesian_prod(*(torch.arange(n) for n in z.shape[:-1])).view(-1, z.dim() - 1).tolist():
        at = tuple(row)
        for i in range(k):
            tau = (i + 0.5) / k
            for target in y[at].tolist():
                u = target - z[at][i].item()
                weight = abs(tau - (1.0 if u < 0 else 0.0))
                huber = 0.5 * u * u if abs(u) <= kappa else kappa * (abs(u) - 0.5 * kappa)
                loss[at] += weight * huber / (kappa * k * j)
                slope[at][i] -= weight * max(-kappa, min(kappa, u)) / (kappa * k * j)
    return loss, slope


def draw(name: str) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    z, y = torch.randn(2, 3, 7), torch.randn(2, 3, 7)
    if name == "tied":  # quarters are exact: u hits 0 and kappa on the nose
        z, y = (z * 4).round() / 4, (y * 4).round() / 4
        y[0] = z[0].flip(-1)
        y[1, 0] = y[1, 0, :1]
    if name == "far":
        y = y * 30
    if name == "large":  # a hundred times the spread away from zero: where naive sums of squares cancel
        z, y = z + 300, y + 300
    if name == "tight":
        z, y = z * 1e-3, y * 1e-3
    if name == "unequal":
        y = torch.randn(2, 3, 5)
    if name == "many":  # more pairs than a program holds at a time
        z, y = torch.randn(1, 2, 130), torch.randn(1, 2, 75)
    return z, y


@pytest.mark.parametrize("kappa", [1.0, 0.5, 3.0])
@pytest.mark.parametrize("name", ["random", "tied", "far", "large", "tight", "unequal", "many"])
def test_quantile_huber_equals_the_formula_pair_by_pair(name: str, kappa: float) -> None:
    z, y = draw(name)
    loss, slope = by_hand(z, y, kappa)
    for form in (quantile_huber, quantile_huber_reference):
        leaf = z.clone().requires_grad_()
        got = form(leaf, y, kappa)
        torch.testing.assert_close(got.double(), loss, rtol=2e-5, atol=1e-8)
        weight = torch.rand(got.shape)
        (grad,) = torch.autograd.grad((got * weight).sum(), leaf)
        torch.testing.assert_close(grad.double(), slope * weight.unsqueeze(-1), rtol=2e-5, atol=1e-8)


def test_quantile_huber_gradient_is_exact_at_ties() -> None:
    z = torch.zeros(1, 1, 4)
    y = torch.zeros(1, 1, 4)
    leaf = z.requires_grad_()
    (grad,) = torch.autograd.grad(quantile_huber(leaf, y).sum(), leaf)
    assert grad.abs().max() == 0
    # u = +kappa: weight tau; u = -kappa: weight 1 - tau
    for shift in (1.0, -1.0):
        (grad,) = torch.autograd.grad(quantile_huber(leaf, y + shift).sum(), leaf)
        tau = torch.tensor([0.125, 0.375, 0.625, 0.875])
        torch.testing.assert_close(grad[0, 0], -tau / 4 if shift > 0 else (1 - tau) / 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_quantile_huber_with_extreme_values_stays_finite_and_near_the_formula(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    z, y = torch.randn(1, 2, 9, dtype=dtype) * 1e4, torch.randn(1, 2, 9, dtype=dtype) * 1e4
    loss, slope = by_hand(z, y, 1.0)
    leaf = z.clone().requires_grad_()
    got = quantile_huber(leaf, y)
    (grad,) = torch.autograd.grad(got.sum(), leaf)
    torch.testing.assert_close(got.double(), loss, rtol=1e-5, atol=0)
    torch.testing.assert_close(grad.double(), slope, rtol=1e-5, atol=1e-7)


def test_no_loss_is_below_zero_where_sums_of_squares_cancel() -> None:
    z = 1e5 + torch.randn(2, 64, 21, generator=torch.Generator().manual_seed(0)).sort(-1).values * 1e-3
    assert quantile_huber(z, z.clone()).min() >= 0


def test_targets_get_no_gradient() -> None:
    z, y = torch.randn(2, 3, 5, requires_grad=True), torch.randn(2, 3, 5, requires_grad=True)
    quantile_huber(z, y).sum().backward()
    assert z.grad is not None
    assert y.grad is None


def test_quantile_huber_divides_by_both_counts() -> None:
    z, y = torch.randn(1, 1, 6), torch.randn(1, 1, 6)
    u = y.unsqueeze(-2) - z.unsqueeze(-1)
    tau = (torch.arange(6) + 0.5) / 6
    each = (tau[:, None] - (u < 0).float()).abs() * torch.nn.functional.huber_loss(
        u, torch.zeros_like(u), reduction="none"
    )
    torch.testing.assert_close(quantile_huber(z, y), each.sum((-2, -1)) / 36)


def state(members: int, size: int, dtype: torch.dtype) -> dict[str, Tensor]:
    torch.manual_seed(2)
    wide = {n: torch.randn(members, size) for n in ("param", "mean", "target")}
    return {
        **wide,
        "square": torch.rand(members, size),
        "grad": torch.randn(members, size).to(dtype),
        "shadow": torch.zeros(members, size, dtype=dtype),
        "target_shadow": torch.zeros(members, size, dtype=dtype),
        "scale": torch.rand(members),
        "lr": torch.full((members,), 0.01),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("segments", [False, True])
def test_adam_equals_its_plain_text(segments: bool, dtype: torch.dtype) -> None:
    size = 3 * adam.BLOCK if segments else 1500
    mine, plain = (state(2, size, dtype) | {"lr": torch.tensor([0.01, 0.02])} for _ in range(2))
    step = torch.tensor([[1, 5], [7, 2]]) if segments else torch.tensor([[1], [9]])
    segment = torch.tensor([0, 1, 1], dtype=torch.int32) if segments else None
    addresses = {n: t.data_ptr() for n, t in mine.items()}
    for s, run in ((mine, adam.adam_), (plain, adam.adam_reference_)):
        run(**s, step=step, segment=segment)
    for name, tensor in mine.items():
        assert tensor.data_ptr() == addresses[name]
        torch.testing.assert_close(tensor, plain[name], rtol=2e-6 if tensor.dtype == torch.float32 else 2e-3, atol=1e-6)
    assert not torch.equal(mine["target_shadow"], torch.zeros_like(mine["target_shadow"]))


@pytest.mark.parametrize("betas", [(0.9, 0.999999), (0.99999, 0.5), (0.0, 0.0)])
def test_adam_keeps_its_digits_whatever_the_betas(betas: tuple[float, float]) -> None:
    s = state(2, 40, torch.float32)
    s["mean"].zero_()
    s["square"].zero_()
    wide = {name: t.double() for name, t in s.items() if name in ("param", "grad", "scale")}
    mean = square = torch.zeros(2, 40, dtype=torch.float64)
    for t in range(1, 4):
        adam.adam_(**s, step=torch.full((2, 1), t), betas=betas)
        g = wide["grad"] * wide["scale"][:, None]
        mean, square = betas[0] * mean + (1 - betas[0]) * g, betas[1] * square + (1 - betas[1]) * g * g
        root = (square / (1 - betas[1] ** t)).sqrt() + 1e-8
        wide["param"] -= 0.01 * mean / (1 - betas[0] ** t) / root
        torch.testing.assert_close(s["param"].double(), wide["param"], rtol=0, atol=3e-7)


def test_adam_is_the_published_rule_per_member() -> None:
    """Against torch.optim, each member alone, with its own step count and clip scale."""
    s = state(2, 40, torch.float32)
    start, target = s["param"].clone(), s["target"].clone()
    mean, square = torch.zeros(2, 40), torch.zeros(2, 40)
    grads = [torch.randn(2, 40) for _ in range(4)]
    late = 2  # the second member's moments are cleared before this update
    for t, grad in enumerate(grads):
        if t == late:
            mean[1], square[1] = 0, 0
            middle = s["param"][1].clone()
        step = torch.tensor([[t + 1], [t + 1 if t < late else t + 1 - late]])
        adam.adam_(s["param"], mean, square, grad, step=step, scale=s["scale"], lr=s["lr"], target=s["target"], tau=0.1)
        target.lerp_(s["param"], 0.1)
    torch.testing.assert_close(s["target"], target)
    for member, begin, used in ((0, start[0], grads), (1, middle, grads[late:])):
        leaf = begin.clone().requires_grad_()
        theirs = torch.optim.Adam([leaf], lr=0.01)
        for grad in used:
            leaf.grad = grad[member] * s["scale"][member]
            theirs.step()
        torch.testing.assert_close(s["param"][member], leaf.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("steps", ["by tensor", "by parameter"])
@pytest.mark.parametrize("decaying", [False, True])
@pytest.mark.parametrize("active", [None, [1.0, 0.0], [0.0, 0.0], [1.0, 1.0]])
def test_adam_with_members_at_rest_decay_and_steps_of_each_parameter_equals_its_plain_text(
    active: list[float] | None, decaying: bool, steps: str, dtype: torch.dtype
) -> None:
    size = 3 * adam.BLOCK
    mine, plain = (state(2, size, dtype) for _ in range(2))
    before = {name: t.clone() for name, t in mine.items()}
    step = torch.tensor([[1.0, 5.0], [7.0, 2.0]])
    if steps == "by parameter":
        step = torch.randint(1, 9, (2, size), generator=torch.Generator().manual_seed(0)).float()
    extra = {
        "step": step,
        "segment": torch.tensor([0, 1, 1], dtype=torch.int32),
        "active": None if active is None else torch.tensor(active),
        "decay": torch.tensor([0.3, 0.0]) if decaying else None,
    }
    for s, run in ((mine, adam.adam_), (plain, adam.adam_reference_)):
        run(**s, **extra)  # type: ignore[arg-type]
    for name, tensor in mine.items():
        torch.testing.assert_close(tensor, plain[name], rtol=2e-6 if tensor.dtype == torch.float32 else 2e-3, atol=1e-6)
    for member in range(2):
        rests = active is not None and active[member] == 0
        for name in ("param", "mean", "square"):
            assert torch.equal(mine[name][member], before[name][member]) == rests, (name, member)
        # The target follows either way, and both copies show what they are copies of.
        torch.testing.assert_close(
            mine["target"][member], before["target"][member].lerp(mine["param"][member], 0.005), rtol=1e-5, atol=1e-6
        )
        torch.testing.assert_close(mine["shadow"][member], mine["param"][member].to(dtype))
        torch.testing.assert_close(mine["target_shadow"][member], mine["target"][member].to(dtype))


@pytest.mark.parametrize("own", [False, True])
def test_adam_with_decay_is_adamw_per_tensor(own: bool) -> None:
    """Two tensors of one buffer, the first of which decays, against torch.optim.AdamW."""
    size, half = 2 * adam.BLOCK, adam.BLOCK
    s = state(1, size, torch.float32)
    s["mean"].zero_()
    s["square"].zero_()
    leaves = [s["param"][0, :half].clone().requires_grad_(), s["param"][0, half:].clone().requires_grad_()]
    groups = [{"params": leaves[:1], "weight_decay": 0.3}, {"params": leaves[1:], "weight_decay": 0.0}]
    theirs = torch.optim.AdamW(groups, lr=0.01)
    segment, decay = torch.tensor([0, 1], dtype=torch.int32), torch.tensor([0.3, 0.0])
    for t in range(1, 5):
        s["grad"] = torch.randn(1, size, generator=torch.Generator().manual_seed(t))
        step = torch.full((1, size if own else 2), float(t))
        adam.adam_(**s, step=step, segment=segment, decay=decay)
        for leaf, part in zip(leaves, (s["grad"][0, :half], s["grad"][0, half:]), strict=True):
            leaf.grad = part * s["scale"][0]
        theirs.step()
    torch.testing.assert_close(s["param"][0], torch.cat([leaf.detach() for leaf in leaves]), rtol=1e-5, atol=2e-6)
