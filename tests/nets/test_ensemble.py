"""All forms of the ensemble are the same function, and each is what ordinary layers compute."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from steadyq.nets import MLP, Ensemble, MinAtarNet, Network, ResNet
from steadyq.nets.encoders import Conv

MEMBERS, ACTIONS, ATOMS = 3, 4, 5
NETWORKS: dict[str, tuple[Network, tuple[int, ...]]] = {
    "resnet": (ResNet((4, 12, 12), ACTIONS * ATOMS, scale=1, head_multiple=8), (4, 12, 12)),
    "resnet, odd image, strides 2": (ResNet((3, 11, 13), ACTIONS * ATOMS, 1, 8, (2, 2, 2, 2)), (3, 11, 13)),
    "minatar": (MinAtarNet((4, 10, 10), ACTIONS * ATOMS, channels=8, hidden=16), (4, 10, 10)),
    "mlp": (MLP((6,), ACTIONS * ATOMS, (16, 8)), (6,)),
    "mlp over an image": (MLP((2, 3, 4), ACTIONS * ATOMS, (16,)), (2, 3, 4)),
}


def ensembles(network: Network) -> tuple[Ensemble, Ensemble, dict[str, torch.Tensor]]:
    stacked = Ensemble(network, MEMBERS, ACTIONS, ATOMS)
    loop = Ensemble(network, MEMBERS, ACTIONS, ATOMS, form="loop")
    return stacked, loop, stacked.initial(torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("count", [1, 5])
def test_stacked_and_loop_agree_forward_and_in_every_gradient(name: str, count: int) -> None:
    network, shape = NETWORKS[name]
    stacked, loop, params = ensembles(network)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, *shape, generator=generator)
    z = stacked.forward(params, x)
    assert z.shape == (MEMBERS, count, ACTIONS, ATOMS)
    torch.testing.assert_close(z, loop.forward(params, x), rtol=1e-4, atol=1e-5)
    pull = torch.randn(z.shape, generator=generator)
    one, other = (
        torch.func.grad(lambda p, e=ensemble: (e.forward(p, x) * pull).sum())(params) for ensemble in (stacked, loop)
    )
    for key in params:
        torch.testing.assert_close(one[key], other[key], rtol=1e-3, atol=1e-5, msg=lambda text, k=key: f"{k}: {text}")


@pytest.mark.parametrize("name", ["resnet", "resnet, odd image, strides 2"])
def test_the_kernels_form_is_wired_like_the_others(name: str) -> None:
    """Here through the kernels' plain text; tests/nets/test_kernels.py runs the kernels themselves."""
    network, shape = NETWORKS[name]
    stacked, _, params = ensembles(network)
    form = replace(stacked, form="kernels")
    x = torch.randint(0, 256, (5, *shape), dtype=torch.uint8)
    pull = torch.randn(MEMBERS, 5, ACTIONS, ATOMS)
    found = []
    for ensemble in (replace(stacked, pixel_max=255.0), replace(form, pixel_max=255.0)):
        leaves = {key: p.clone().requires_grad_() for key, p in params.items()}
        z = ensemble.forward(leaves, x)
        found.append((z, torch.autograd.grad((z * pull).sum(), list(leaves.values()))))
    torch.testing.assert_close(found[1][0], found[0][0], rtol=1e-4, atol=1e-5)
    for one, other in zip(found[1][1], found[0][1], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_low_precision_computes_in_it_but_for_the_last_layer() -> None:
    network, shape = NETWORKS["mlp"]
    stacked, _, params = ensembles(network)
    x = torch.randn(5, *shape)
    seen: dict[str, torch.dtype] = {}

    class Spy(Ensemble):
        def layer(self, params: dict[str, torch.Tensor], name: str) -> Any:
            found = super().layer(params, name)
            seen[name] = found[1].dtype
            return found

    half = Spy(network, MEMBERS, ACTIONS, ATOMS, dtype=torch.float16)
    z = half.forward(params, x)
    assert z.dtype == torch.float32
    assert seen == {"fc1": torch.float16, "fc2": torch.float16, "head": torch.float32}
    torch.testing.assert_close(z, stacked.forward(params, x), rtol=1e-2, atol=1e-2)


class Block(nn.Module):
    """The paper's block in ordinary PyTorch: ReLU(conv2(ReLU(conv1(x))) + shortcut(x))."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1)
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        short = self.shortcut(x) if hasattr(self, "shortcut") else x
        return functional.relu(self.conv2(functional.relu(self.conv1(x))) + short)


def test_the_resnet_is_the_papers_as_ordinary_modules() -> None:
    network = ResNet((4, 12, 12), ACTIONS * ATOMS, scale=1, head_multiple=8)
    _, _, params = ensembles(network)
    x = torch.randint(0, 256, (2, 4, 12, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    z = Ensemble(network, MEMBERS, ACTIONS, ATOMS, pixel_max=255.0).forward(params, x)
    modules = {"stem": nn.Sequential(nn.Conv2d(4, 8, 3, 1, 1), nn.ReLU())}
    width = 8
    for stage, stride in enumerate((1, 2, 2, 2), start=1):
        outputs = 8 * 2 ** (stage - 1)
        modules[f"l{stage}"] = nn.Sequential(Block(width, outputs, stride), Block(outputs, outputs, 1))
        width = outputs
    modules["head"] = nn.Sequential(nn.Flatten(), nn.Linear(64 * 2 * 2, 8), nn.ReLU())
    modules["quantile head"] = nn.Linear(8, ACTIONS * ATOMS)
    whole = nn.ModuleDict(modules)
    for member in range(MEMBERS):
        assert set(whole.state_dict()) == set(params)  # the paper's names are PyTorch's
        whole.load_state_dict({name: p[member] for name, p in params.items()})
        y = x.float() / 255
        for module in whole.values():
            y = module(y)
        torch.testing.assert_close(z[member], y.view(2, ACTIONS, ATOMS), rtol=1e-4, atol=1e-5)


def test_actions_are_rows_and_atoms_columns_of_the_outputs() -> None:
    ensemble = Ensemble(MLP((1,), ACTIONS * ATOMS, (1,)), 2, ACTIONS, ATOMS)
    params = {name: torch.zeros_like(p) for name, p in ensemble.initial(torch.Generator()).items()}
    params["head.bias"] += torch.arange(float(ACTIONS * ATOMS))
    z = ensemble.forward(params, torch.zeros(1, 1))
    assert z[1, 0, 2].tolist() == [10.0, 11.0, 12.0, 13.0, 14.0]


def test_pixels_are_divided_by_their_maximum() -> None:
    network = MLP((2,), ACTIONS * ATOMS, (8,))
    _, _, params = ensembles(network)
    pixels = Ensemble(network, MEMBERS, ACTIONS, ATOMS, pixel_max=255.0)
    plain = Ensemble(network, MEMBERS, ACTIONS, ATOMS)
    x = torch.tensor([[0, 255]], dtype=torch.uint8)
    assert torch.equal(pixels.forward(params, x), plain.forward(params, torch.tensor([[0.0, 1.0]])))


@pytest.mark.parametrize("name", NETWORKS)
def test_parameters_start_as_pytorch_would_draw_them_and_members_differ(name: str) -> None:
    network, _ = NETWORKS[name]
    _, _, params = ensembles(network)
    for layer, kind in network.layers.items():
        weight, bias = params[f"{layer}.weight"], params[f"{layer}.bias"]
        assert weight.shape == (MEMBERS, *kind.weight_shape)
        assert bias.shape == (MEMBERS, kind.outputs)
        twin = (
            nn.Conv2d(kind.inputs, kind.outputs, kind.size) if isinstance(kind, Conv)
            else nn.Linear(kind.inputs, kind.outputs)
        )  # fmt: skip
        bound = 1 / math.sqrt(math.prod(kind.weight_shape[1:]))
        for mine in (weight, twin.weight.detach(), bias):
            assert float(mine.abs().max()) <= bound * (1 + 1e-6)
        if weight[0].numel() >= 100:
            assert float(weight.abs().max()) > 0.95 * bound
            assert abs(float(weight.std()) - bound / math.sqrt(3)) < 0.1 * bound
        assert not torch.equal(weight[0], weight[1])
