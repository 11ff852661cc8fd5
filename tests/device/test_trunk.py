"""Programs of convolutions, ReLUs and poolings equal plain PyTorch in values and every gradient, through Triton's
interpreter; and so do whole networks and a learner's update.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from interpreter import INTERPRETED, close, inside, outside, run_interpreted
from torch import Tensor

from steadyq.nets import MLP, Branches, Ensemble, Impala, MinAtarNet, Network, ResNet

if INTERPRETED:
    from steadyq.device.kernels import launch, tiles
    from steadyq.device.kernels import trunk as module
    from steadyq.device.kernels.triton import available
    from steadyq.device.kernels.trunk import Program, Step, trunk, trunk_reference
    from steadyq.nets.joining import Joined, parts
    from steadyq.nets.prediction import Rollout


@pytest.mark.slow
@outside
def test_under_the_interpreter() -> None:
    run_interpreted(__file__)


@pytest.fixture(autouse=True)
def tiles_of_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs are the same with all tiles, which test_convolution compares; these take the interpreter half the time,
    and it keeps all digits.
    """
    if INTERPRETED:
        for part in (tiles, launch):
            monkeypatch.setattr(part, "precision", lambda _: "tf32")


@inside
def test_it_is_the_kernels_that_are_tested() -> None:
    assert available(torch.zeros(1))


def programs() -> dict[str, tuple[Any, list[int], list[tuple[int, int, int]]]]:
    """Program, channels of its inputs, and (outputs, inputs, size) of its convolutions."""
    if not INTERPRETED:
        return {}
    conv, relu, pool = (lambda *a, **k: Step("conv", *a, **k)), (lambda s: Step("relu", s)), lambda s: Step("pool", s)
    three = (8, 8, 3)
    return {
        "one convolution": (Program(1, (conv(0),), (1,)), [8], [three]),
        "post-activation, stride 1 shortcut": (
            Program(1, (conv(0), conv(0, None, True), conv(2, 1, True)), (3,)), [4], [(8, 4, 1), (8, 4, 3), three]
        ),
        "post-activation, stride 2 shortcut": (
            Program(1, (conv(0, None, True), conv(1, None, False, 2), conv(1, None, True, 2), conv(3, 2, True)), (4,)),
            [4], [(8, 4, 3), (16, 8, 1), (16, 8, 3), (16, 16, 3)],
        ),
        "pre-activation": (
            Program(1, (conv(0), relu(1), conv(2, None, True), conv(3, 1), relu(4)), (5,)),
            [4], [(8, 4, 3), three, three],
        ),
        "pre-activation with a shortcut behind the ReLU": (
            Program(1, (relu(0), conv(1, None, False, 2), conv(1, None, True, 2), conv(3, 2)), (4,)),
            [8], [(16, 8, 1), (16, 8, 3), (16, 16, 3)],
        ),
        "a ReLU of a ReLU": (Program(1, (conv(0, None, True), relu(1), relu(2), conv(3)), (4,)), [8], [three, three]),
        "a ReLU read by a convolution, a sum and outside": (
            Program(1, (conv(0), relu(1), conv(2, 2)), (2, 3)), [8], [three, three]
        ),
        "pools": (Program(1, (conv(0), pool(1), conv(2, None, True), pool(3), relu(4)), (5,)), [4], [(8, 4, 3), three]),
        "a pool of the input": (Program(1, (pool(0), conv(1)), (2,)), [8], [three]),
        "two inputs, one added": (Program(2, (conv(0, 1, True), conv(2, 1)), (3,)), [8, 8], [three, three]),
        "one value read by three convolutions": (
            Program(1, (conv(0, None, True), conv(1), conv(1, 2), conv(1, 3, True)), (4,)),
            [8], [three, (8, 8, 1), three, three],
        ),
        "a shortcut that is read twice": (
            Program(1, (conv(0), conv(1), conv(2, 1)), (3,)), [8], [three, three, three]
        ),
        "two outputs": (Program(1, (conv(0, None, True), conv(1, None, True)), (1, 2)), [8], [three, three]),
        "only ReLU and pool": (Program(1, (relu(0), pool(1)), (2,)), [8], []),
    }  # fmt: skip


PROGRAMS = programs()


def drawn(name: str, shared: bool) -> tuple[Any, list[Tensor], list[Tensor]]:
    program, channels, convolutions = PROGRAMS[name]
    torch.manual_seed(0)
    inputs = [torch.randn(1 if shared and i == 0 else 2, 2, 4, 5, c) for i, c in enumerate(channels)]
    params = []
    for outs, ins, size in convolutions:
        params += [torch.randn(2, outs, ins, size, size) / (size * ins**0.5), torch.randn(2, outs) / 3]
    return program, [t.requires_grad_() for t in inputs], [t.requires_grad_() for t in params]


SHARED = ("pools", "a pool of the input", "pre-activation with a shortcut behind the ReLU")


@inside
@pytest.mark.parametrize(
    ("name", "shared"), [*((name, False) for name in PROGRAMS), *((name, True) for name in SHARED)]
)
def test_programs_and_all_their_gradients(name: str, shared: bool) -> None:
    program, inputs, params = drawn(name, shared)
    wide = [[t.detach().double().requires_grad_() for t in part] for part in (inputs, params)]
    got, want = trunk(program, inputs, params), trunk_reference(program, wide[0], wide[1])
    pulls = [torch.randn(y.shape) for y in got]
    for y, expected in zip(got, want, strict=True):
        close(y, expected, 1e-6)
    mine = torch.autograd.grad(got, [*inputs, *params], pulls)
    plain = torch.autograd.grad(want, [*wide[0], *wide[1]], [pull.double() for pull in pulls])
    for one, other in zip(mine, plain, strict=True):
        close(one, other, 3e-6)


@inside
def test_an_output_that_nobody_uses_and_an_input_without_gradient() -> None:
    program, (x,), params = drawn("two outputs", False)
    first, _ = trunk(program, [x.detach()], params)
    found = torch.autograd.grad(first.sum(), params, allow_unused=True)
    wide = [p.detach().double().requires_grad_() for p in params]
    want = torch.autograd.grad(trunk_reference(program, [x.detach().double()], wide)[0].sum(), wide[:2])
    assert found[2] is found[3] is None
    for one, other in zip(found[:2], want, strict=True):
        close(one, other, 3e-6)


@inside
@pytest.mark.parametrize("name", ["pools", "post-activation, stride 2 shortcut"])
def test_nothing_is_kept_without_learning(name: str) -> None:
    program, inputs, params = drawn(name, False)
    with torch.no_grad():
        got = trunk(program, inputs, params)
    assert all(y.grad_fn is None for y in got)
    for y, expected in zip(got, trunk_reference(program, inputs, params), strict=True):
        close(y, expected, 1e-5)


def launches(network: Network, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a forward and backward pass of the network's program would launch, in order; only written down."""
    seen: list[str] = []
    beside: list[str] = []

    def note(kind: str, w: Any, stride: int, *extras: str) -> None:
        seen.append(" ".join([kind, *beside, f"{w[-1]}x{w[2]}->{w[1]}/{stride}", *extras]))

    def forward(x: Tensor, w: Tensor, b: Tensor, *, stride: int, relu: bool, residual: Tensor | None) -> Tensor:
        note("forward", w.shape, stride, *["+"] * (residual is not None))
        height, width = ((n - 1) // stride + 1 for n in x.shape[2:4])
        return x.new_zeros(len(w), x.shape[1], height, width, w.shape[1])

    def input_gradient(g: Tensor, w: Tensor, size: Any, *, stride: int, gate_alone: bool, **more: Any) -> Tensor:
        extras = [name for name in ("add", "gate", "side") if more[name] is not None]
        note("input", w.shape, stride, *extras, *["alone"] * gate_alone)
        return g.new_zeros(len(w), g.shape[1], *size, w.shape[2])

    def weight_gradient(x: Tensor, g: Tensor, size: int, stride: int) -> tuple[Tensor, Tensor]:
        shape = (len(g), g.shape[4], x.shape[4], size, size)
        note("weight", shape, stride)
        return g.new_zeros(shape), g.new_zeros(shape[:2])

    def pool_gradient(g: Tensor, tap: Tensor, size: Any) -> Tensor:
        seen.append("pool gradient")
        return g.new_zeros(*g.shape[:2], *size, g.shape[4])

    class Marked(module.Beside):
        @contextmanager
        def reading(self, *kept: Any) -> Iterator[None]:
            beside.append("beside")
            with super().reading(*kept):
                yield
            beside.pop()

    monkeypatch.setattr(module, "Beside", Marked)
    monkeypatch.setattr(module, "run_forward", forward)
    monkeypatch.setattr(module, "run_input_gradient", input_gradient)
    monkeypatch.setattr(module, "run_weight_gradient", weight_gradient)
    monkeypatch.setattr(module, "run_max_pool_gradient", pool_gradient)
    ensemble = Ensemble(network, 2, 2, 3, form="kernels")
    leaves = {name: p.requires_grad_() for name, p in ensemble.initial(torch.Generator().manual_seed(0)).items()}
    torch.autograd.grad(ensemble.forward(leaves, torch.rand(1, 2, 3, 3)).sum(), list(leaves.values()))
    return seen


@inside
def test_a_resnets_launches_and_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The speed of docs/performance.md was measured with these and no others."""

    def forwards(inputs: int, outputs: int, stride: int, shortcut: bool) -> list[str]:
        short = [f"forward 1x{inputs}->{outputs}/{stride}"] * shortcut
        return [*short, f"forward 3x{inputs}->{outputs}/{stride}", f"forward 3x{outputs}->{outputs}/1 +"]

    def backwards(inputs: int, outputs: int, stride: int, shortcut: bool) -> list[str]:
        second, first = f"3x{outputs}->{outputs}/1", f"3x{inputs}->{outputs}/{stride}"
        short = [f"1x{inputs}->{outputs}/{stride}"] * shortcut
        below = [f"input {first} gate side"] if shortcut and stride == 2 else [f"input {first} add gate"]
        return [
            f"weight beside {second}",
            *(f"weight beside {each}" for each in short),
            f"input {second} gate",
            f"weight beside {first}",
            *(f"input {each}" for each in short if stride == 1),
            *below,
        ]

    blocks = [(8, 8, 1, False), (8, 8, 1, False), (8, 16, 2, True), (16, 16, 1, False)]
    blocks += [(16, 32, 1, True), (32, 32, 1, False), (32, 64, 2, True), (64, 64, 1, False)]
    assert launches(ResNet((2, 3, 3), 6, 1, 4, (1, 2, 1, 2)), monkeypatch) == [
        "forward 3x2->8/1",
        *(line for block in blocks for line in forwards(*block)),
        *(line for block in reversed(blocks) for line in backwards(*block)),
        "weight 3x2->8/1",
    ]


@inside
def test_an_impalas_launches_and_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block's ReLU gates what comes through its convolutions, and the stream's gradient rides along ungated."""
    seen, conv = launches(Impala((2, 3, 3), 6, 1, 4), monkeypatch), "3x16->16/1"
    assert seen[:5] == ["forward 3x2->16/1", *[f"forward {conv}", f"forward {conv} +"] * 2]
    block = [f"weight beside {conv}", f"input {conv} gate", f"weight beside {conv}", f"input {conv} add gate alone"]
    assert seen[-11:] == ["input 3x16->32/1", *block, *block, "pool gradient", "weight 3x2->16/1"]


ACTIONS, ATOMS = 2, 3
OPTIONS: Any = {"norm": "layer", "pooling": "average", "renormalise": True, "dueling": True, "atoms": ATOMS}
BBF: Any = {"renormalise": True, "dueling": True, "atoms": ATOMS}
NETWORKS: dict[str, tuple[Network, tuple[int, ...]]] = {
    "resnet": (ResNet((2, 3, 3), ACTIONS * ATOMS, 1, 4), (2, 3, 3)),
    "resnet, all options": (ResNet((2, 3, 3), ACTIONS * ATOMS, 1, 4, (2, 2, 1, 1), **OPTIONS), (2, 3, 3)),
    "impala as BBF": (Impala((2, 5, 4), ACTIONS * ATOMS, 1, 4, **BBF), (2, 5, 4)),
    "impala, all options": (Impala((2, 3, 4), ACTIONS * ATOMS, 1, 4, **OPTIONS), (2, 3, 4)),
    "impala, noisy": (Impala((2, 3, 4), ACTIONS * ATOMS, 1, 4, noisy=0.5, **BBF), (2, 3, 4)),
    "minatar": (MinAtarNet((2, 5, 5), ACTIONS * ATOMS, 4, 6, norm="layer"), (2, 5, 5)),
    "mlp": (MLP((4,), ACTIONS * ATOMS, (6, 5), norm="layer"), (4,)),
    "joined": (Branches((15,), ACTIONS * ATOMS, ((3,), (2, 2, 3)), (4,)), (15,)),
}


@inside
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_through_the_kernels_equal_the_loop_whole_and_piece_by_piece(name: str) -> None:
    network, shape = NETWORKS[name]
    ensemble = Ensemble(network, 2, ACTIONS, ATOMS, form="kernels")
    generator = torch.Generator().manual_seed(0)
    params = ensemble.initial(generator)
    x, pull = torch.randn(2, *shape, generator=generator), torch.randn(2, 2, ACTIONS, ATOMS, generator=generator)
    noise = torch.randn(2, ensemble.noise_size, generator=generator)
    found = []
    for form, around in (
        ("loop", None),
        ("kernels", None),
        *[("kernels", lambda run: run)] * (name == "impala as BBF"),
    ):
        leaves = {key: p.clone().requires_grad_() for key, p in params.items()}
        z = replace(ensemble, form=form).forward(leaves, x, around, noise=noise)
        found.append((z, torch.autograd.grad((z * pull).sum(), list(leaves.values()))))
    for z, gradient in found[1:]:
        close(z, found[0][0], 1e-5)
        for key, one, other in zip(params, gradient, found[0][1], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=2e-5, msg=lambda text, k=key: f"{k}: {text}")


@inside
def test_a_networks_predictions_through_the_kernels_equal_the_loop() -> None:
    """Encoder and transition model are programs; the latent is read by the values and by the first transition."""
    network = Impala((2, 3, 4), ACTIONS * ATOMS, 1, 4, renormalise=True, transition=ACTIONS)
    ensemble, generator = Ensemble(network, 2, ACTIONS, ATOMS, form="kernels"), torch.Generator().manual_seed(0)
    params = ensemble.initial(generator)
    x, action = torch.randn(2, 2, 3, 4, generator=generator), torch.tensor([[0, 1], [1, 1]])
    pull = torch.randn(2, 2, 2, 4, generator=generator)
    found = []
    for form in ("loop", "kernels"):
        leaves = {key: p.clone().requires_grad_() for key, p in params.items()}
        z, predicted = replace(ensemble, form=form).predict(leaves, x, action)
        loss = (predicted * pull).sum() + z.square().sum()
        found.append((z, predicted, *torch.autograd.grad(loss, list(leaves.values()))))
    for one, other in zip(found[1], found[0], strict=True):
        close(one, other, 1e-4)
    joined = [part for part in parts(Rollout(network, 2)) if isinstance(part, Joined)]
    assert [len(part.convolutions) for part in joined] == [15, 2, 2]


@inside
def test_predictions_of_two_runs_through_the_kernels_equal_those_of_each_through_the_loop() -> None:
    network = Impala((2, 3, 4), ACTIONS * ATOMS, 1, 4, renormalise=True, transition=ACTIONS)
    both, generator = Ensemble(network, 2, ACTIONS, ATOMS, form="kernels", runs=2), torch.Generator().manual_seed(0)
    params = both.initial(generator)
    x, action = torch.randn(2, 4, 2, 3, 4, generator=generator), torch.randint(ACTIONS, (2, 4), generator=generator)
    z, predicted = both.predict(params, x[0], action)
    projected = both.project(params, x)
    for run, rows in enumerate((slice(0, 2), slice(2, 4))):
        alone, own = replace(both, members=1, form="loop", runs=1), {key: p[run : run + 1] for key, p in params.items()}
        own_z, own_predicted = alone.predict(own, x[0, rows], action[:, rows])
        close(z[:, rows], own_z, 1e-4)
        close(predicted[:, :, rows], own_predicted, 1e-4)
        close(projected[:, :, rows], alone.project(own, x[:, rows]), 1e-4)


@inside
def test_all_convolutions_of_a_network_without_norm_are_one_program() -> None:
    for network in (ResNet((4, 84, 84), 6, 2), Impala((4, 84, 84), 6, 4, renormalise=True)):
        joined = [part for part in parts(network) if isinstance(part, Joined)]
        assert len(joined) == 1
        assert isinstance(parts(network)[0], Joined)
    small = parts(MinAtarNet((4, 10, 10), 6))
    assert not any(isinstance(part, Joined) for part in small)


@inside
@pytest.mark.parametrize("name", ["resnet", "impala as BBF"])
def test_a_learners_update_through_the_kernels_equals_the_stacked_one(name: str) -> None:
    """Parameters lie in one buffer, so weights and biases of a member are a stride apart, as on a GPU."""
    from steadyq.value.estimators import Quantile
    from steadyq.value.flat import Flat
    from steadyq.value.learner import Learner, Settings
    from steadyq.value.operators import Controlled
    from steadyq.value.optim import Adam
    from steadyq.value.shapes import Batch, DrawLayout

    network, shape = NETWORKS[name]
    see = torch.randint(0, 256, (2, 2, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    ones, index = torch.ones(2), torch.arange(2)
    reward = torch.tensor([1.0, 0.0])
    batch = Batch(see[0], torch.tensor([0, 1]), reward, 0.9 * ones, see[1], ones, index, index, reward > 0)
    draw = DrawLayout(2, 2).plain(order=[1, 0], forbid=True, rate=1e-3)
    found = []
    for form in ("stacked", "kernels"):
        ensemble = Ensemble(network, 2, ACTIONS, ATOMS, 255.0, form)  # type: ignore[arg-type]
        settings = Settings(Adam(1e-3), clip=10.0, tau=0.1, hard_copy_every=0)
        learner = Learner(ensemble, Quantile(ATOMS), Controlled(), settings, torch.Generator().manual_seed(0))
        learner.flat = flat = Flat(learner.online, settings.adam, torch.float32, ())
        learner.online = learner.online_low = flat.online
        learner.target = learner.target_low = flat.target
        update = learner.update(batch, draw)
        found.append((update, learner.online))
    close(found[1][0].priority, found[0][0].priority, 1e-5)
    close(found[1][0].measures["gradient_norm"], found[0][0].measures["gradient_norm"], 1e-4)
    for key, p in found[0][1].items():
        close(found[1][1][key], p, 1e-4)
