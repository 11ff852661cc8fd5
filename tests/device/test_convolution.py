"""The convolution kernels equal plain convolutions, on a CPU through Triton's interpreter.

The interpreter must be chosen before Triton is first imported, and would slow every other test down, so these run in
a process of their own: the first test starts it, on this same file.
"""

import importlib.util
import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from steadyq.errors import UserError
from steadyq.nets import ResNet
from steadyq.nets.layers import Conv

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

if INTERPRETED:
    from steadyq.device.kernels import launch, tiles
    from steadyq.device.kernels.convolution import conv, conv_reference, trunk, trunk_reference
    from steadyq.device.kernels.tiles import Config

inside = pytest.mark.skipif(not INTERPRETED, reason="runs in the process that test_under_the_interpreter starts")


@pytest.mark.skipif(INTERPRETED, reason="already there")
def test_under_the_interpreter() -> None:
    if importlib.util.find_spec("triton") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("CI must have Triton: pip install triton")
        pytest.skip("Triton is not installed: pip install triton")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", __file__],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def close(got: Tensor, want: Tensor, tolerance: float) -> None:
    assert got.shape == want.shape
    assert not got.isnan().any()
    assert (got.double() - want.double()).norm() <= tolerance * want.double().norm() + 1e-12


def layer(
    members: int, batch: int, size: int, channels: int, outputs: int, kernel: int, stride: int, *, shared: bool = False,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    torch.manual_seed(size * 31 + channels)
    after = (size - 1) // stride + 1
    x = torch.randn(1 if shared else members, batch, size, size + 1, channels, dtype=torch.float64)
    w = (
        torch.randn(members, outputs, channels, kernel, kernel, dtype=torch.float64)
        / (kernel * kernel * channels) ** 0.5
    )
    b = torch.randn(members, outputs, dtype=torch.float64)
    r = torch.randn(members, batch, after, size // stride + 1, outputs, dtype=torch.float64)
    return x.to(dtype), w.to(dtype), b.to(dtype), r.to(dtype)


def members_inside(x: Tensor) -> Tensor:
    """The same in the memory order `[batch, y, x, member, channel]`."""
    return x.permute(1, 2, 3, 0, 4).contiguous().permute(3, 0, 1, 2, 4)


CASES = [
    pytest.param(layer(2, 2, 6, 4, 8, 3, 1, shared=True), 1, id="shared stem"),
    pytest.param(layer(2, 2, 5, 3, 16, 3, 1, shared=True), 1, id="three channels"),
    pytest.param(layer(2, 2, 7, 16, 16, 3, 1), 1, id="pairs at odd width"),
    pytest.param(layer(2, 2, 5, 32, 32, 3, 1), 1, id="strip"),
    pytest.param(layer(2, 1, 4, 64, 64, 3, 1), 1, id="tile"),
    pytest.param(layer(1, 1, 22, 64, 64, 3, 1), 1, id="a high image"),
    pytest.param(layer(1, 1, 4, 24, 40, 3, 1), 1, id="no powers of two"),
    pytest.param(layer(2, 2, 6, 16, 32, 3, 2), 2, id="stride 2, even"),
    pytest.param(layer(2, 1, 5, 32, 64, 3, 2), 2, id="stride 2, odd"),
    pytest.param(layer(2, 2, 7, 16, 32, 1, 2), 2, id="shortcut"),
    pytest.param(layer(2, 2, 5, 16, 32, 1, 1), 1, id="1x1"),
    pytest.param(layer(1, 1, 5, 16, 16, 3, 1), 1, id="one member, one image"),
]


@inside
@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize(("tensors", "stride"), CASES)
def test_conv_and_all_gradients_equal_plain_convolutions(
    tensors: tuple[Tensor, Tensor, Tensor, Tensor], stride: int, tf32: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the tiles of float32 and with those of TF32; the interpreter keeps all digits in both."""
    for module in (tiles, launch):
        monkeypatch.setattr(module, "precision", lambda _: "tf32" if tf32 else "tf32x3")
    x, w, b, r = (t.clone() for t in tensors)
    inputs = [t.requires_grad_() for t in (x, w, b, r)]
    y = conv(x, w, b, stride=stride, relu=True, residual=r)
    plain = [t.detach().double().requires_grad_() for t in inputs]
    want = conv_reference(plain[0], plain[1], plain[2], stride=stride, relu=True, residual=plain[3])
    close(y, want, 1e-6)
    dy = torch.randn(y.shape)
    for got, expected in zip(
        torch.autograd.grad(y, inputs, dy), torch.autograd.grad(want, plain, dy.double()), strict=True
    ):
        close(got, expected, 1e-6)


@inside
def test_without_bias_residual_or_relu() -> None:
    x, w, _, _ = layer(2, 2, 5, 16, 16, 3, 1)
    close(conv(x, w), conv_reference(x.double(), w.double()), 1e-6)


@inside
def test_a_residual_that_members_share_is_read_within_its_bounds() -> None:
    x, w, b, r = layer(2, 2, 5, 16, 16, 3, 1)
    want = conv_reference(x.double(), w.double(), b.double(), residual=r[:1].double())
    close(conv(x, w, b, residual=r[:1]), want, 1e-6)


@inside
def test_half_precision_accumulates_in_float32() -> None:
    x, w, b, r = layer(2, 2, 5, 32, 32, 3, 1, dtype=torch.float16)
    w.requires_grad_()
    y = conv(x, w, b, relu=True, residual=r)
    plain = w.detach().double().requires_grad_()
    want = conv_reference(x.double(), plain, b.double(), relu=True, residual=r.double())
    close(y, want, 5e-4)
    (got,), (expected,) = torch.autograd.grad(y.sum(), w), torch.autograd.grad(want.sum(), plain)
    assert got.dtype == torch.float16
    close(got, expected, 1e-3)


@inside
@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize("rows", [2, 3])
def test_strips_that_do_not_divide_the_image(rows: int, pair: bool) -> None:
    x, w, b, r = layer(2, 2, 7, 16, 16, 3, 1)
    config = Config(strip=True, rows=rows, pair=pair, block_m=16)
    want = conv_reference(x.double(), w.double(), b.double(), residual=r.double())
    close(launch.run_forward(x, w, b, residual=r, config=config), want, 1e-6)
    # what lies beyond the gradient must not be read: here it is NaN
    room = torch.full((2, 4, 9, 8, 16), float("nan"))
    g = room[:, 1:3, :7]
    g.copy_(r)
    for got, expected in zip(
        launch.run_weight_gradient(x, g, 3, 1, config), _plain_weight_gradient(x, w, b, r, 1), strict=True
    ):
        close(got, expected, 1e-6)


@inside
@pytest.mark.parametrize(("stride", "programs"), [(1, 1), (1, 48), (2, 16)])
def test_weight_gradient_split_over_pixels(stride: int, programs: int) -> None:
    x, w, b, r = layer(2, 3, 5, 16, 32, 3, stride)
    config = Config(block_m=32, block_n=16, block_k=16, programs=programs)
    for got, expected in zip(
        launch.run_weight_gradient(x, r, 3, stride, config), _plain_weight_gradient(x, w, b, r, stride), strict=True
    ):
        close(got, expected, 1e-6)


def _plain_weight_gradient(x: Tensor, w: Tensor, b: Tensor, g: Tensor, stride: int) -> tuple[Tensor, ...]:
    w, b = w.double().requires_grad_(), b.double().requires_grad_()
    return torch.autograd.grad(conv_reference(x.double(), w, b, stride=stride), (w, b), g.double())


def network(members: int, width: int) -> list[Tensor]:
    torch.manual_seed(1)
    params = [torch.randn(members, width, 4, 3, 3) / 6, torch.randn(members, width) / 9]
    channels = width
    for outputs, stride in ((width, 1), (2 * width, 2)):
        params += [
            torch.randn(members, outputs, channels, 3, 3) / (3 * channels**0.5),
            torch.randn(members, outputs) / 9,
        ]
        params += [torch.randn(members, outputs, outputs, 3, 3) / (3 * outputs**0.5), torch.randn(members, outputs) / 9]
        if stride == 2:
            params += [torch.randn(members, outputs, channels, 1, 1) / channels**0.5, torch.randn(members, outputs) / 9]
        channels = outputs
    return params


@inside
def test_trunk_and_its_gradient() -> None:
    params, x, strides = [p.requires_grad_() for p in network(2, 8)], torch.randn(1, 2, 5, 5, 4), (1, 2)
    value = trunk(x, params, strides).square().mean()
    wide = [p.detach().double().requires_grad_() for p in params]
    plain = trunk_reference(x.double(), wide, strides).square().mean()
    close(value, plain, 1e-6)
    for a, b in zip(torch.autograd.grad(value, params), torch.autograd.grad(plain, wide), strict=True):
        close(a, b, 2e-6)


@inside
def test_trunk_equals_the_chain_of_conv() -> None:
    params, x = network(1, 8), torch.randn(1, 1, 4, 4, 4).requires_grad_()
    (got,) = torch.autograd.grad(trunk(x, params, (1, 2)).sum(), x)
    (want,) = torch.autograd.grad(trunk_reference(x, params, (1, 2)).sum(), x)
    close(got, want, 1e-5)


@inside
def test_stride_2_gradient_with_a_shortcut_beside() -> None:
    x, w, _, g = layer(2, 2, 7, 16, 16, 3, 2)
    _, shortcut, _, side = layer(2, 2, 7, 16, 16, 1, 2)
    got = launch.run_input_gradient(g, w, (7, 8), stride=2, gate=x, side=(side, shortcut))
    wide = x.double().requires_grad_()
    y = conv_reference(wide, w.double(), stride=2)
    z = conv_reference(wide, shortcut.double(), stride=2)
    (want,) = torch.autograd.grad([y, z], wide, [g.double(), side.double()])
    close(got, want * (x > 0), 1e-6)


@inside
def test_activations_in_another_memory_order_are_read_as_they_are() -> None:
    x, w, b, r = layer(2, 2, 5, 16, 32, 3, 1)
    want = conv_reference(x.double(), w.double(), b.double(), residual=r.double())
    close(conv(members_inside(x), w, b, residual=members_inside(r)), want, 1e-6)
    for got, expected in zip(
        launch.run_weight_gradient(members_inside(x), members_inside(r), 3, 1),
        _plain_weight_gradient(x, w, b, r, 1),
        strict=True,
    ):
        close(got, expected, 1e-6)


@inside
def test_nan_goes_through_a_relu() -> None:
    x, w, b, _ = layer(1, 1, 5, 16, 16, 3, 1)
    b[0, 3] = float("nan")
    y = conv(x, w, b, relu=True)
    assert y[..., 3].isnan().all()
    assert not y[..., 4].isnan().any()


@inside
def test_a_batch_beyond_offsets_of_32_bits_is_refused() -> None:
    x, w, b, _ = layer(1, 1, 5, 16, 16, 3, 1)
    huge = torch.empty_strided((1, 2, *x.shape[2:]), (2**31, 2**30, *x.stride()[2:]), device="meta")
    with pytest.raises(UserError, match="a batch of 2 is too large"):
        launch.run_forward(huge, w, b)


@inside
def test_a_gradient_with_gaps_in_memory_beside_a_shortcut() -> None:
    x, w, _, g = layer(2, 2, 7, 16, 16, 3, 2)
    _, shortcut, _, side = layer(2, 2, 7, 16, 16, 1, 2)
    room = torch.full((2, 3, *g.shape[2:]), float("nan"))
    room[:, 1:] = g
    want = launch.run_input_gradient(g, w, (7, 8), stride=2, gate=x, side=(side, shortcut))
    close(launch.run_input_gradient(room[:, 1:], w, (7, 8), stride=2, gate=x, side=(side, shortcut)), want, 1e-6)


@inside
def test_the_table_names_layers_of_the_networks() -> None:
    layers = [c for s in (2, 4) for c in ResNet((4, 84, 84), 18, s).layers.values() if isinstance(c, Conv)]
    real = {(kind, c.size, c.stride, c.image[0], c.inputs, c.outputs) for c in layers for kind in ("forward", "weight")}
    real |= {("input", c.size, 1, c.image[0], c.outputs, c.inputs) for c in layers if c.stride == 1}
    assert set(tiles.MEASURED) <= real


@inside
def test_a_learners_update_through_the_kernels_equals_the_stacked_one() -> None:
    """Parameters lie in one buffer, so weights and biases of a member are a stride apart, as on a GPU."""
    from steadyq.nets import Ensemble, ResNet
    from steadyq.value.estimators import Quantile
    from steadyq.value.flat import Flat
    from steadyq.value.learner import Learner, Settings
    from steadyq.value.operators import Controlled
    from steadyq.value.optim import Adam
    from steadyq.value.shapes import Batch, DrawLayout

    network = ResNet((2, 5, 5), 3 * 4, scale=1, head_multiple=4)
    see = torch.randint(0, 256, (2, 2, 2, 5, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    ones, index = torch.ones(2), torch.arange(2)
    reward = torch.tensor([1.0, 0.0])
    batch = Batch(see[0], torch.tensor([0, 2]), reward, 0.9 * ones, see[1], ones, index, index, reward > 0)
    draw = DrawLayout(2, 2).plain(order=[1, 0], forbid=True, rate=1e-3)
    found = []
    for form in ("stacked", "kernels"):
        ensemble = Ensemble(network, 2, 3, 4, 255.0, form)  # type: ignore[arg-type]
        settings = Settings(Adam(1e-3), clip=10.0, tau=0.1, hard_copy_every=0)
        learner = Learner(ensemble, Quantile(4), Controlled(), settings, torch.Generator().manual_seed(0))
        learner.flat = flat = Flat(learner.online, settings.adam, torch.float32, ())
        learner.online = learner.online_low = flat.online
        learner.target = learner.target_low = flat.target
        update = learner.update(batch, draw)
        found.append((update, learner.online))
    close(found[1][0].priority, found[0][0].priority, 1e-5)
    close(found[1][0].measures["gradient_norm"], found[0][0].measures["gradient_norm"], 1e-4)
    for name, p in found[0][1].items():
        close(found[1][1][name], p, 1e-4)
