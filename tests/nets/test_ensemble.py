"""All forms of the ensemble are the same function, and each is what ordinary layers compute."""

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from steadyq.errors import UserError
from steadyq.nets import MLP, Branches, Ensemble, Impala, Layered, MinAtarNet, Network, ResNet
from steadyq.nets.forms import FORMS, best_form
from steadyq.nets.layered import cnn
from steadyq.nets.layers import Conv, Executor, LayerNorm, T

MEMBERS, ACTIONS, ATOMS = 3, 4, 5
DUELING: Any = {"dueling": True, "atoms": ATOMS}


def resnet(**options: Any) -> tuple[Network, tuple[int, ...]]:
    return ResNet((4, 12, 12), ACTIONS * ATOMS, scale=1, head_multiple=8, **options), (4, 12, 12)


def impala(**options: Any) -> tuple[Network, tuple[int, ...]]:
    return Impala((4, 12, 12), ACTIONS * ATOMS, 1, 8, **options), (4, 12, 12)


NETWORKS: dict[str, tuple[Network, tuple[int, ...]]] = {
    "resnet": resnet(),
    "resnet, odd image, strides 2": (ResNet((3, 11, 13), ACTIONS * ATOMS, 1, 8, (2, 2, 2, 2)), (3, 11, 13)),
    "resnet, a shortcut at stride 1": (ResNet((3, 7, 7), ACTIONS * ATOMS, 1, 8, (1, 1, 2, 1)), (3, 7, 7)),
    "resnet, all options": resnet(norm="layer", pooling="average", renormalise=True, initial="xavier", **DUELING),
    "impala": impala(),
    "impala, odd image": (Impala((3, 11, 13), ACTIONS * ATOMS, 1, 8), (3, 11, 13)),
    "impala as BBF": impala(renormalise=True, initial="xavier", **DUELING),
    "impala, average": impala(pooling="average"),
    "impala, all options": impala(norm="layer", pooling="average", renormalise=True, initial="xavier", **DUELING),
    "nature": (Layered((4, 36, 40), ACTIONS * ATOMS, cnn((4, 36, 40), 8)), (4, 36, 40)),
    "nature, renormalised, average": (
        Layered((4, 36, 40), ACTIONS * ATOMS, cnn((4, 36, 40), 8), renormalise=True, pooling="average", **DUELING),
        (4, 36, 40),
    ),
    "minatar": (MinAtarNet((4, 10, 10), ACTIONS * ATOMS, channels=8, hidden=16), (4, 10, 10)),
    "minatar, norm": (MinAtarNet((4, 10, 10), ACTIONS * ATOMS, 8, 16, norm="layer", **DUELING), (4, 10, 10)),
    "mlp": (MLP((6,), ACTIONS * ATOMS, (16, 8)), (6,)),
    "mlp, norm": (MLP((6,), ACTIONS * ATOMS, (16, 8, 4), norm="layer", **DUELING), (6,)),
    "mlp over an image": (MLP((2, 3, 4), ACTIONS * ATOMS, (16,)), (2, 3, 4)),
    "joined": (Branches((4 + 108,), ACTIONS * ATOMS, ((4,), (3, 6, 6)), (8, 8)), (112,)),
    "joined, two images, one width, norm": (
        Branches((192,), ACTIONS * ATOMS, ((3, 5, 4), (2, 6, 6), (60,)), (8,), norm="layer", **DUELING),
        (192,),
    ),
    "mlp over a table": (MLP((3, 4), ACTIONS * ATOMS, (16,)), (3, 4)),
}


def ensembles(network: Network) -> tuple[Ensemble, Ensemble, dict[str, torch.Tensor]]:
    """Stacked and looped, and parameters; normalisations moved from where they start, to be seen."""
    stacked = Ensemble(network, MEMBERS, ACTIONS, ATOMS)
    loop = Ensemble(network, MEMBERS, ACTIONS, ATOMS, form="loop")
    generator = torch.Generator().manual_seed(0)
    params = stacked.initial(generator)
    for name, p in params.items():
        if ".norm." in name:
            p += torch.randn(p.shape, generator=generator) / 3
    return stacked, loop, params


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("count", [1, 5])
def test_the_forms_agree_forward_and_in_every_gradient(name: str, count: int) -> None:
    """The kernels here through their plain text; tests/device/test_trunk.py runs the kernels themselves."""
    network, shape = NETWORKS[name]
    stacked, loop, params = ensembles(network)
    generator = torch.Generator().manual_seed(1)
    x, pull = torch.randn(count, *shape, generator=generator), torch.randn(MEMBERS, count, ACTIONS, ATOMS)
    found = []
    for ensemble in (loop, stacked, replace(stacked, form="kernels")):
        leaves = {key: p.clone().requires_grad_() for key, p in params.items()}
        z = ensemble.forward(leaves, x)
        assert z.shape == (MEMBERS, count, ACTIONS, ATOMS)
        found.append((z, torch.autograd.grad((z * pull).sum(), list(leaves.values()))))
    for z, gradient in found[1:]:
        torch.testing.assert_close(z, found[0][0], rtol=1e-4, atol=1e-5)
        for key, one, other in zip(params, gradient, found[0][1], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=2e-5, msg=lambda text, k=key: f"{k}: {text}")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NETWORKS)
def test_members_are_as_many_separate_networks(name: str, form: Any) -> None:
    network, shape = NETWORKS[name]
    stacked, loop, params = ensembles(network)
    x = torch.randn(2, *shape, generator=torch.Generator().manual_seed(1))
    z = replace(stacked, form=form).forward(params, x)
    for member in range(MEMBERS):
        own = {key: p[member : member + 1] for key, p in params.items()}
        torch.testing.assert_close(z[member], replace(loop, members=1).forward(own, x)[0], rtol=1e-4, atol=1e-5)


def test_the_fastest_form_is_the_kernels_for_convolutions_they_are_written_for() -> None:
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    best = {name: best_form(network, gpu) for name, (network, _) in NETWORKS.items()}
    written = {name for name in NETWORKS if name.startswith(("resnet", "impala", "joined"))}
    assert {name for name, form in best.items() if form == "kernels"} == written
    assert {best_form(network, cpu) for network, _ in NETWORKS.values()} == {"stacked"}


# -- implicit quantiles -----------------------------------------------------------------------------------------------

IMPLICIT: dict[str, tuple[Network, tuple[int, ...]]] = {
    "resnet": (ResNet((4, 12, 12), ACTIONS, scale=1, head_multiple=8, cosines=6), (4, 12, 12)),
    "impala, average": (Impala((4, 12, 12), ACTIONS, 1, 8, cosines=6, dueling=True, pooling="average"), (4, 12, 12)),
    "minatar": (MinAtarNet((4, 10, 10), ACTIONS, channels=8, hidden=16, cosines=6), (4, 10, 10)),
    "mlp": (MLP((6,), ACTIONS, (16, 8), cosines=6, norm="layer"), (6,)),
    "mlp of one layer over an image": (MLP((2, 3, 4), ACTIONS, (16,), cosines=6), (2, 3, 4)),
    "joined": (Branches((112,), ACTIONS, ((4,), (3, 6, 6)), (8, 8), cosines=6), (112,)),
}


@pytest.mark.parametrize("name", IMPLICIT)
def test_the_forms_agree_on_the_quantiles_that_they_are_asked_for(name: str) -> None:
    network, shape = IMPLICIT[name]
    ensemble, generator = Ensemble(network, MEMBERS, ACTIONS, 1, fixed=3), torch.Generator().manual_seed(0)
    params = ensemble.initial(generator)
    x, taus = torch.randn(2, *shape, generator=generator), torch.rand(2, 5, generator=generator)
    pull = torch.randn(MEMBERS, 2, ACTIONS, 5, generator=generator)
    found = []
    for form in FORMS:
        leaves = {key: p.clone().requires_grad_() for key, p in params.items()}
        one = replace(ensemble, form=form)
        z = one.forward(leaves, x, taus=taus)
        assert z.shape == (MEMBERS, 2, ACTIONS, 5)
        assert one.forward(params, x).shape == (MEMBERS, 2, ACTIONS, 3)
        found.append((z, *torch.autograd.grad((z * pull).sum(), list(leaves.values()))))
        for k in range(5):  # a quantile does not depend on what else is asked for, nor on whom
            alone = one.forward(params, x[1:], taus=taus[1:, k : k + 1])
            torch.testing.assert_close(alone[:, 0, :, 0], z[:, 1, :, k].detach(), rtol=1e-4, atol=1e-5)
        even = one.forward(params, x, taus=torch.tensor([[1 / 6, 3 / 6, 5 / 6]]))
        torch.testing.assert_close(even, one.forward(params, x))
    for other in found[1:]:
        for mine, theirs in zip(found[0], other, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=3e-5)


def test_an_implicit_quantile_by_hand() -> None:
    """fc2(relu(fc1 x) * relu(tau(cos(pi i tau)))), then the outputs."""
    network = MLP((6,), ACTIONS, (16, 8), cosines=4)
    ensemble, generator = Ensemble(network, 1, ACTIONS, 1), torch.Generator().manual_seed(0)
    params = ensemble.initial(generator)
    x, tau = torch.randn(1, 6, generator=generator), 0.3

    def layer(name: str, y: torch.Tensor) -> torch.Tensor:
        return functional.linear(y, params[f"{name}.weight"][0], params[f"{name}.bias"][0])

    waves = torch.tensor([[math.cos(math.pi * i * tau) for i in range(4)]])
    product = functional.relu(layer("fc1", x)) * functional.relu(layer("tau", waves))
    expected = layer("head", functional.relu(layer("fc2", product)))
    found = ensemble.forward(params, x, taus=torch.tensor([[tau]]))
    torch.testing.assert_close(found[0, 0, :, 0], expected[0])
    assert network.group("tau") == "head"
    assert "tau" in network.monitored


@dataclass(frozen=True)
class Attentive(MLP):
    """With a piece that no form has."""

    def wire(self, run: Executor[T], x: T) -> T:
        return self.values(run, run.attend(self.units(run, "fc1", x)))  # type: ignore[attr-defined, no-any-return]


def test_a_piece_that_a_form_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    network, x = Attentive((3,), ACTIONS * ATOMS, (4,)), torch.zeros(1, 3)
    ensemble = Ensemble(network, MEMBERS, ACTIONS, ATOMS, form="kernels")
    params = ensemble.initial(torch.Generator())
    with pytest.raises(UserError, match=r"form kernels cannot run the piece 'attend' of Attentive: no form can"):
        ensemble.forward(params, x)
    monkeypatch.setattr(FORMS["loop"], "attend", lambda self, x: 2 * x, raising=False)
    with pytest.raises(UserError, match="cannot run the piece 'attend' of Attentive: use loop"):
        ensemble.forward(params, x)
    assert replace(ensemble, form="loop").forward(params, x).shape == (MEMBERS, 1, ACTIONS, ATOMS)


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


class PreBlock(nn.Module):
    """IMPALA's block: x + conv2(ReLU(conv1(ReLU(x))))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(width, width, 3, 1, 1), nn.Conv2d(width, width, 3, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.conv2(functional.relu(self.conv1(functional.relu(x))))


def test_the_impala_network_is_bbfs_as_ordinary_modules() -> None:
    """Renormalised latent, dueling: spr_networks.py of BBF."""
    network, shape = NETWORKS["impala as BBF"]
    _, _, params = ensembles(network)
    x = torch.rand(2, *shape, generator=torch.Generator().manual_seed(1))
    z = Ensemble(network, MEMBERS, ACTIONS, ATOMS).forward(params, x)
    modules = nn.ModuleDict()
    width = 4
    for stage, outputs in enumerate((16, 32, 32), start=1):
        blocks = {"conv": nn.Conv2d(width, outputs, 3, 1, 1), "0": PreBlock(outputs), "1": PreBlock(outputs)}
        modules[f"stage{stage}"] = nn.ModuleDict(blocks)
        width = outputs
    modules["hidden"], modules["value"] = nn.Linear(32 * 2 * 2, 8), nn.Linear(8, ATOMS)
    modules["advantage"] = nn.Linear(8, ACTIONS * ATOMS)
    assert set(modules.state_dict()) == set(params)
    for member in range(MEMBERS):
        modules.load_state_dict({name: p[member] for name, p in params.items()})
        y = x
        for size, stage in ((12, 1), (6, 2), (3, 3)):
            layers = modules[f"stage{stage}"]
            y = layers["conv"](y)
            around = (1, 1, 1, 1) if size % 2 else (0, 1, 0, 1)  # TensorFlow's SAME
            y = functional.max_pool2d(functional.pad(y, around, value=-math.inf), 3, 2)
            y = layers["1"](layers["0"](y))
        y = functional.relu(y).flatten(1)
        low, high = y.min(1, keepdim=True).values, y.max(1, keepdim=True).values
        y = functional.relu(modules["hidden"]((y - low) / (high - low + 1e-5)))
        advantage = modules["advantage"](y).view(2, ACTIONS, ATOMS)
        want = modules["value"](y)[:, None] + advantage - advantage.mean(1, keepdim=True)
        torch.testing.assert_close(z[member], want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_dueling_renormalisation_and_norm_by_hand(form: Any) -> None:
    """Two actions, two atoms, one member doubled: every number is the form's."""
    network = MLP((2,), 4, (2,), atoms=2, dueling=True, norm="layer")
    ensemble = Ensemble(network, 2, 2, 2, form=form)
    params = {name: torch.zeros_like(p) for name, p in ensemble.initial(torch.Generator()).items()}
    params["fc1.weight"] += torch.eye(2)
    params["fc1.norm.weight"] += torch.tensor([1.0, 3.0])
    params["fc1.norm.bias"] += torch.tensor([0.5, 0.0])
    params["advantage.weight"] += torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [2.0, 0.0]])
    params["value.weight"] += torch.tensor([[10.0, 0.0], [0.0, 10.0]])
    z = ensemble.forward(params, torch.tensor([[5.0, 1.0], [1.0, 5.0]]))
    # Sample 1: mean 3, deviation 2: (1, -1), gains and biases (1.5, -3), ReLU (1.5, 0). Sample 2: (-0.5, 3), (0, 3).
    # A = [[1.5, 0], [0, 3]] with mean (0.75, 1.5), V = (15, 0); A = [[0, 3], [0, 0]] with mean (0, 1.5), V = (0, 30).
    want = torch.tensor([[[15.75, -1.5], [14.25, 1.5]], [[0.0, 31.5], [0.0, 28.5]]])
    torch.testing.assert_close(z, want.expand(2, -1, -1, -1), rtol=1e-4, atol=1e-4)


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
    params = Ensemble(network, MEMBERS, ACTIONS, ATOMS).initial(torch.Generator().manual_seed(0))
    for layer, kind in network.layers.items():
        weight, bias = params[f"{layer}.weight"], params[f"{layer}.bias"]
        assert weight.shape == (MEMBERS, *kind.weight_shape)
        assert bias.shape == (MEMBERS, kind.outputs)
        if isinstance(kind, LayerNorm):
            assert torch.all(weight == 1)
            assert torch.all(bias == 0)
            continue
        twin = (
            nn.Conv2d(kind.inputs, kind.outputs, kind.size) if isinstance(kind, Conv)
            else nn.Linear(kind.inputs, kind.outputs)
        )  # fmt: skip
        bound = 1 / math.sqrt(math.prod(kind.weight_shape[1:]))
        if network.initial == "xavier":
            assert torch.all(bias == 0)
            nn.init.xavier_uniform_(twin.weight)
            bound *= math.sqrt(6 / (1 + twin.weight[:, 0].numel() / twin.weight[0].numel()))
        for mine in (weight, twin.weight.detach(), bias):
            assert float(mine.abs().max()) <= bound * (1 + 1e-6)
        if weight[0].numel() >= 100:
            assert float(weight.abs().max()) > 0.95 * bound
            assert abs(float(weight.std()) - bound / math.sqrt(3)) < 0.1 * bound
        assert not torch.equal(weight[0], weight[1])
