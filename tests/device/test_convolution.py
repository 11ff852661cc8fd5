"""The convolution kernels equal plain convolutions, on a CPU through Triton's interpreter."""

import pytest
import torch
from interpreter import INTERPRETED, close, inside, outside, run_interpreted
from torch import Tensor

from steadyq.errors import UserError
from steadyq.nets import ResNet
from steadyq.nets.layers import Conv

if INTERPRETED:
    from steadyq.device.kernels import launch, tiles
    from steadyq.device.kernels.convolution import conv, conv_reference
    from steadyq.device.kernels.tiles import Config


@pytest.mark.slow
@outside
def test_under_the_interpreter() -> None:
    run_interpreted(__file__)


def layer(
    members: int, batch: int, size: int, channels: int, outputs: int, kernel: int, stride: int, *, shared: bool = False,
    dtype: torch.dtype = torch.float32, width: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Input, weight, bias and residual; one column wider than high unless told otherwise."""
    torch.manual_seed(size * 31 + channels)
    width = width or size + 1
    x = torch.randn(1 if shared else members, batch, size, width, channels, dtype=torch.float64)
    w = (
        torch.randn(members, outputs, channels, kernel, kernel, dtype=torch.float64)
        / (kernel * kernel * channels) ** 0.5
    )
    b = torch.randn(members, outputs, dtype=torch.float64)
    after = ((n - 1) // stride + 1 for n in (size, width))
    r = torch.randn(members, batch, *after, outputs, dtype=torch.float64)
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
    pytest.param(layer(1, 1, 22, 64, 64, 3, 1, width=4), 1, id="a high image"),
    pytest.param(layer(1, 1, 4, 24, 40, 3, 1), 1, id="no powers of two"),
    pytest.param(layer(2, 2, 6, 16, 32, 3, 2), 2, id="stride 2, even"),
    pytest.param(layer(2, 1, 5, 32, 64, 3, 2), 2, id="stride 2, odd"),
    pytest.param(layer(2, 2, 7, 16, 32, 1, 2), 2, id="shortcut"),
    pytest.param(layer(2, 2, 5, 16, 32, 1, 1), 1, id="1x1"),
    pytest.param(layer(1, 1, 5, 16, 16, 3, 1), 1, id="one member, one image"),
]


@inside
@pytest.mark.parametrize(
    ("tensors", "stride", "tf32"),
    [
        pytest.param(*case.values, tf32, id=f"{case.id}-{'tf32' if tf32 else 'fp32'}")
        for case in CASES
        for tf32 in (False, True)
        if tf32 or case.id != "a high image"  # in float32 its tiles are those of "tile"
    ],
)
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
@pytest.mark.parametrize(("channels", "outputs"), [(4, 64), (3, 48), (32, 64), (64, 40)])
def test_tiles_by_rule_for_high_images(channels: int, outputs: int) -> None:
    """IMPALA's first layers, in half precision: their tiles are those of bf16."""
    x, w, b, r = layer(1, 1, 22, channels, outputs, 3, 1, dtype=torch.float16, width=5)
    kinds = {("forward", channels, outputs), ("input", outputs, channels), ("weight", channels, outputs)}
    strips = {kind for kind, ins, outs in kinds if tiles.config_for(kind, 3, 1, 22, ins, outs, x.dtype).strip}
    assert strips == ({"forward"} if channels < 16 else {"forward", "input", "weight"})
    wide = [t.double().requires_grad_() for t in (x, w, b)]
    want = conv_reference(*wide)
    close(launch.run_forward(x, w, b, residual=r), want + r, 1e-3)
    dx, dw, db = torch.autograd.grad(want, wide, r.double())
    got = (launch.run_input_gradient(r, w, x.shape[2:4]), *launch.run_weight_gradient(x, r, 3, 1))
    for mine, plain in zip(got, (dx, dw, db), strict=True):
        close(mine, plain, 1e-3)


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


@inside
@pytest.mark.parametrize("stride", [1, 2])
def test_a_gate_for_the_gradient_alone(stride: int) -> None:
    """As behind a pre-activation, whose residual goes around the ReLU."""
    x, w, _, g = layer(2, 2, 7, 16, 16, 3, stride)
    add = torch.randn_like(x)
    wide = x.double().requires_grad_()
    (want,) = torch.autograd.grad(conv_reference(wide, w.double(), stride=stride), wide, g.double())
    got = launch.run_input_gradient(g, w, (7, 8), stride=stride, gate=x, gate_alone=True, add=add)
    close(got, want * (x > 0) + add, 1e-6)
    close(launch.run_input_gradient(g, w, (7, 8), stride=stride, gate=x, add=add), (want + add) * (x > 0), 1e-6)


OTHERS = [(5, 1, 2), (5, 2, 2), (3, 1, 0), (3, 3, 1), (3, 4, 1), (4, 2, 0), (4, 2, 1), (8, 4, 0), (7, 2, 3), (1, 3, 0)]


@inside
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("size", "stride", "padding"), OTHERS)
def test_any_other_convolution_is_right_too(size: int, stride: int, padding: int, shared: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(1 if shared else 2, 2, 9, 8, 6).requires_grad_()
    w, b = (torch.randn(2, 8, 6, size, size) / size).requires_grad_(), torch.randn(2, 8).requires_grad_()
    plain = [t.detach().double().requires_grad_() for t in (x, w, b)]
    want = conv_reference(*plain, stride=stride, padding=padding, relu=True)
    y = conv(x, w, b, stride=stride, padding=padding, relu=True, residual=torch.zeros(want.shape))
    close(y, want, 1e-6)
    dy = torch.randn(y.shape)
    for got, expected in zip(
        torch.autograd.grad(y, (x, w, b), dy), torch.autograd.grad(want, plain, dy.double()), strict=True
    ):
        close(got, expected, 2e-6)


@inside
@pytest.mark.parametrize(("size", "stride"), [(5, 2), (3, 3), (4, 1), (1, 4)])
def test_launches_refuse_what_they_are_not_written_for(size: int, stride: int) -> None:
    x, w = torch.zeros(1, 1, 8, 8, 4), torch.zeros(1, 4, 4, size, size)
    with pytest.raises(ValueError, match=f"not written for a {size}x{size} convolution at stride {stride}"):
        launch.run_forward(x, w, None, stride=stride)
    with pytest.raises(ValueError, match="not written for"):
        launch.run_input_gradient(x, w, (8, 8), stride=stride)
    with pytest.raises(ValueError, match="not written for"):
        launch.run_weight_gradient(x, x, size, stride)


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
    networks = (*(ResNet((4, 84, 84), 18, s) for s in (2, 4)), ResNet((4, 84, 84), 18, 4, strides=(2, 2, 2, 2)))
    layers = [c for network in networks for c in network.layers.values() if isinstance(c, Conv)]
    real = {(kind, c.size, c.stride, c.image[0], c.inputs, c.outputs) for c in layers for kind in ("forward", "weight")}
    real |= {("input", c.size, 1, c.image[0], c.outputs, c.inputs) for c in layers if c.stride == 1}
    real |= {("spread", c.size, 2, c.image[0], c.inputs, c.outputs) for c in layers if c.stride == 2}
    assert set(tiles.MEASURED) <= real
