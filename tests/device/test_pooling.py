"""Max-pooling equals PyTorch's on a padded image: here by its plain text, and the kernels through the interpreter."""

import math

import pytest
import torch
from interpreter import INTERPRETED, outside, run_interpreted
from torch import Tensor
from torch.nn import functional

from steadyq.device.kernels.pooling import max_pool, max_pool_reference
from steadyq.device.kernels.triton import available


@outside
def test_under_the_interpreter() -> None:
    run_interpreted(__file__)


def test_it_is_the_kernels_that_are_tested() -> None:
    assert available(torch.zeros(1)) == INTERPRETED


def padded(x: Tensor) -> Tensor:
    """TensorFlow's SAME by hand: the row that is missing goes to the end, of two one to each side."""
    around: list[int] = []
    for n in (x.shape[3], x.shape[2]):
        missing = (math.ceil(n / 2) - 1) * 2 + 3 - n
        around += [missing // 2, missing - missing // 2]
    images = functional.pad(x.flatten(0, 1).permute(0, 3, 1, 2), around, value=-math.inf)
    return functional.max_pool2d(images, 3, 2).permute(0, 2, 3, 1).unflatten(0, x.shape[:2])


@pytest.mark.parametrize("channels", [1, 3, 16, 40, 130])
@pytest.mark.parametrize("image", [(6, 6), (7, 7), (5, 8), (2, 1), (1, 1), (3, 2)])
def test_values_and_gradients(image: tuple[int, int], channels: int) -> None:
    torch.manual_seed(sum(image) + channels)
    x = torch.randn(2, 3, *image, channels).requires_grad_()
    want = padded(x)
    dy = torch.randn(want.shape)
    for pool in (max_pool, max_pool_reference):
        y = pool(x)
        assert torch.equal(y, want)
        (got,), (expected,) = torch.autograd.grad(y, x, dy), torch.autograd.grad(padded(x), x, dy)
        torch.testing.assert_close(got, expected)


def test_of_equals_the_first_wins_and_nan_wins_over_all() -> None:
    torch.manual_seed(0)
    x = torch.randint(0, 2, (1, 2, 9, 8, 20)).float()
    x[0, 0, 4, 5, ::2] = math.nan
    x[0, 1, 2:4, 3, :5] = math.nan
    x[0, 1, 6, :, 7] = -math.inf
    x.requires_grad_()
    y, want = max_pool(x), padded(x)
    assert torch.equal(y.isnan(), want.isnan())
    assert y.isnan().any()
    torch.testing.assert_close(y, want, equal_nan=True)
    dy = torch.randn(want.shape)
    (got,), (expected,) = torch.autograd.grad(y, x, dy), torch.autograd.grad(want, x, dy)
    torch.testing.assert_close(got, expected)


def test_a_window_of_nothing_but_minus_infinity_passes_its_gradient_to_its_first_position() -> None:
    x = torch.full((1, 1, 3, 3, 1), -math.inf).requires_grad_()
    (got,) = torch.autograd.grad(max_pool(x).sum(), x)
    assert got[0, 0, ..., 0].tolist() == [[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]


def test_low_precision_and_memory_with_gaps() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 6, 7, 7, 24)[:, ::2, ..., :16].bfloat16().requires_grad_()
    y, want = max_pool(x), padded(x)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, want)
    dy = torch.randn(*want.shape[:4], 32)[..., ::2].bfloat16()
    (got,), (expected,) = torch.autograd.grad(y, x, dy), torch.autograd.grad(want.float(), x, dy.float())
    torch.testing.assert_close(got, expected, rtol=1e-2, atol=1e-2)
