"""Noisy layers: by hand, as weights with noise of their own, the same in every form, and where they begin."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from steadyq.nets import MLP, Ensemble, Impala, Layered, MinAtarNet, Network, ResNet
from steadyq.nets.forms import FORMS, best_form
from steadyq.nets.layered import cnn, data_efficient

MEMBERS, ACTIONS, ATOMS, COUNT = 3, 4, 5, 3
OUTPUTS = ACTIONS * ATOMS
NOISY: Any = {"dueling": True, "atoms": ATOMS, "noisy": 0.5}
NETWORKS: dict[str, tuple[Network, tuple[int, ...]]] = {
    "resnet": (ResNet((4, 12, 12), OUTPUTS, scale=1, head_multiple=8, noisy=0.5), (4, 12, 12)),
    "impala, norm, average": (
        Impala((4, 12, 12), OUTPUTS, 1, 8, norm="layer", pooling="average", **NOISY),
        (4, 12, 12),
    ),
    "nature": (Layered((4, 36, 40), OUTPUTS, cnn((4, 36, 40), 8), renormalise=True, **NOISY), (4, 36, 40)),
    "data-efficient": (Layered((4, 30, 26), OUTPUTS, data_efficient((4, 30, 26), 8), **NOISY), (4, 30, 26)),
    "minatar": (MinAtarNet((4, 10, 10), OUTPUTS, channels=8, hidden=16, **NOISY), (4, 10, 10)),
    "mlp": (MLP((6,), OUTPUTS, (16, 8), norm="layer", **NOISY), (6,)),
    "mlp of one layer over an image": (MLP((2, 3, 4), OUTPUTS, (16,), noisy=0.5), (2, 3, 4)),
}


def drawn(network: Network, shape: tuple[int, ...]) -> tuple[Ensemble, dict[str, Tensor], Tensor, Tensor]:
    """Parameters of which no two are alike, observations, noise."""
    ensemble, generator = Ensemble(network, MEMBERS, ACTIONS, ATOMS), torch.Generator().manual_seed(0)
    params = ensemble.initial(generator)
    for name, p in params.items():
        if ".sigma." in name or ".norm." in name:
            p += torch.randn(p.shape, generator=generator) / 5
    x = torch.randn(COUNT, *shape, generator=generator)
    return ensemble, params, x, torch.randn(MEMBERS, ensemble.noise_size, generator=generator)


def with_noise_written_down(params: dict[str, Tensor], ensemble: Ensemble, noise: Tensor) -> dict[str, Tensor]:
    """W + sigma_W x f(out) f(in)^T and b + sigma_b x f(out), the layer by its definition."""
    found, start = dict(params), 0
    for name in [name for name in ensemble.network.layers if name.endswith(".sigma")]:
        layer, own = ensemble.network.layers[name], name.removesuffix(".sigma")
        inner, outer = noise[:, start:][:, : layer.inputs], noise[:, start + layer.inputs :][:, : layer.outputs]
        inner, outer = (part.sign() * part.abs().sqrt() for part in (inner, outer))
        start += layer.inputs + layer.outputs
        found[f"{own}.weight"] = params[f"{own}.weight"] + params[f"{name}.weight"] * torch.einsum(
            "mo,mi->moi", outer, inner
        )
        found[f"{own}.bias"] = params[f"{own}.bias"] + params[f"{name}.bias"] * outer
    assert start == noise.shape[1]
    return found


def test_a_noisy_network_and_all_its_slopes_by_hand() -> None:
    """Two inputs, two hidden units, one output; noise whose roots are whole numbers."""
    ensemble = Ensemble(MLP((2,), 1, (2,), noisy=0.5), 1, 1, 1)
    numbers: dict[str, Any] = {
        "fc1.weight": [[1.0, 0.0], [0.0, 1.0]], "fc1.bias": [0.0, 0.0],
        "head.weight": [[1.0, -1.0]], "head.bias": [0.25],
        "fc1.sigma.weight": [[0.1, 0.2], [0.3, 0.4]], "fc1.sigma.bias": [0.5, 0.6],
        "head.sigma.weight": [[0.1, 0.1]], "head.sigma.bias": [0.2],
    }  # fmt: skip
    assert ensemble.shapes() == {name: (1, *torch.tensor(p).shape) for name, p in numbers.items()}
    params = {name: torch.tensor([p]).requires_grad_() for name, p in numbers.items()}
    # f: fc1 in (2, -1), out (1, 3); head in (1, 2), out -2
    noise = torch.tensor([[4.0, -1.0, 1.0, 9.0, 1.0, 4.0, -4.0]])
    z = ensemble.forward(params, torch.ones(1, 2), noise=noise)
    # hidden: weights (1.2, -0.2), (1.8, -0.2), biases 0.5, 1.8: 1.5 and 3.4; outputs: weights 0.8, -1.4, bias -0.15
    assert float(z.detach()) == pytest.approx(0.8 * 1.5 - 1.4 * 3.4 - 0.15)
    slopes = dict(zip(params, torch.autograd.grad(z.sum(), list(params.values())), strict=True))
    expected: dict[str, Any] = {
        "fc1.weight": [[0.8, 0.8], [-1.4, -1.4]], "fc1.bias": [0.8, -1.4],
        "head.weight": [[1.5, 3.4]], "head.bias": [1.0],
        "fc1.sigma.weight": [[1.6, -0.8], [-8.4, 4.2]], "fc1.sigma.bias": [0.8, -4.2],
        "head.sigma.weight": [[-3.0, -13.6]], "head.sigma.bias": [-2.0],
    }  # fmt: skip
    for name, slope in expected.items():
        torch.testing.assert_close(slopes[name][0], torch.tensor(slope), msg=lambda text, n=name: f"{n}: {text}")
    assert float(ensemble.forward(params, torch.ones(1, 2)).detach()) == pytest.approx(
        0.25
    )  # at its means: 1 - 1 + 0.25


@pytest.mark.parametrize("name", NETWORKS)
def test_every_form_is_a_network_whose_weights_have_their_noise_and_so_are_the_gradients(name: str) -> None:
    ensemble, params, x, noise = drawn(*NETWORKS[name])
    pull = torch.randn(MEMBERS, COUNT, ACTIONS, ATOMS, generator=torch.Generator().manual_seed(2))
    plain = replace(ensemble, form="loop", network=replace(ensemble.network, noisy=0.0))  # type: ignore[type-var]

    def gradients(z: Tensor, leaves: dict[str, Tensor]) -> tuple[Tensor, ...]:
        return torch.autograd.grad((z * pull).sum(), list(leaves.values()))

    leaves = {key: p.clone().requires_grad_() for key, p in params.items()}
    z = plain.forward(with_noise_written_down(leaves, ensemble, noise), x)
    expected = z, *gradients(z, leaves)
    for form in FORMS:
        leaves = {key: p.clone().requires_grad_() for key, p in params.items()}
        z = replace(ensemble, form=form).forward(leaves, x, noise=noise)
        for key, mine, theirs in zip(("z", *leaves), (z, *gradients(z, leaves)), expected, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=5e-5, msg=lambda text, k=key: f"{k}: {text}")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NETWORKS)
def test_noise_is_one_for_all_samples_each_members_own_and_none_where_none_is_given(name: str, form: Any) -> None:
    ensemble, params, x, noise = drawn(*NETWORKS[name])
    ensemble = replace(ensemble, form=form)
    z = ensemble.forward(params, x, noise=noise)
    for sample in range(COUNT):
        alone = ensemble.forward(params, x[sample : sample + 1], noise=noise)
        torch.testing.assert_close(alone[:, 0], z[:, sample], rtol=1e-4, atol=1e-5)
    for member in range(MEMBERS):
        own = {key: p[member : member + 1] for key, p in params.items()}
        one = replace(ensemble, members=1).forward(own, x, noise=noise[member : member + 1])
        torch.testing.assert_close(one[0], z[member], rtol=1e-4, atol=1e-5)
    other = noise.clone()
    other[1] *= -2
    moved = (ensemble.forward(params, x, noise=other) - z).abs().amax((1, 2, 3))
    assert moved[1] > 0.01
    assert moved[[0, 2]].max() < 1e-6
    means = ensemble.forward(params, x)
    torch.testing.assert_close(ensemble.forward(params, x, noise=torch.zeros_like(noise)), means)
    assert (means - z).abs().max() > 0.01


def test_noise_begins_at_its_spread_over_the_root_of_the_inputs() -> None:
    ensemble = Ensemble(MinAtarNet((4, 10, 10), OUTPUTS, channels=8, hidden=16, noisy=0.5), MEMBERS, ACTIONS, ATOMS)
    params = ensemble.initial(torch.Generator().manual_seed(0))
    noisy = {name for name in ensemble.network.layers if name.endswith(".sigma")}
    assert noisy == {"hidden.sigma", "head.sigma"}
    for name, inputs in (("hidden", 8 * 8 * 8), ("head", 16)):
        for part in ("weight", "bias"):
            torch.testing.assert_close(
                params[f"{name}.sigma.{part}"], torch.full_like(params[f"{name}.{part}"], 0.5 / inputs**0.5)
            )
        assert params[f"{name}.weight"].abs().max() <= 1 / inputs**0.5
    assert ensemble.noise_size == (512 + 16) + (16 + OUTPUTS)
    without = Ensemble(MinAtarNet((4, 10, 10), OUTPUTS, channels=8, hidden=16), MEMBERS, ACTIONS, ATOMS)
    assert without.noise_size == 0
    for name, p in without.initial(torch.Generator().manual_seed(0)).items():
        assert torch.equal(p, params[name])  # the means are what they would be without


def test_noise_is_of_the_head_is_not_watched_for_spikes_and_reads_the_hidden_units() -> None:
    network = MLP((6,), OUTPUTS, (16, 8), **NOISY)
    assert network.monitored == ("fc1", "fc2", "value", "advantage")
    assert {network.group(name) for name in network.layers if name.endswith(".sigma")} == {"head"}
    assert network.readers["fc2"] == ("value", "advantage", "value.sigma", "advantage.sigma")
    assert network.readers["fc1"] == ("fc2", "fc2.sigma")
    resnet = NETWORKS["resnet"][0]
    assert resnet.readers["l1.0.conv1"] == ("l1.0.conv2",)
    assert resnet.readers["head.1"] == ("quantile head", "quantile head.sigma")


def test_the_outputs_noise_computes_in_float32_where_all_else_does_not() -> None:
    ensemble = Ensemble(NETWORKS["impala, norm, average"][0], MEMBERS, ACTIONS, ATOMS, dtype=torch.bfloat16)
    assert set(ensemble.exact) == {
        f"{name}.{part}"
        for name in ("value", "advantage", "value.sigma", "advantage.sigma")
        for part in ("weight", "bias")
    }
    params = ensemble.initial(torch.Generator().manual_seed(0))
    assert ensemble.layer(params, "value.sigma")[1].dtype == torch.float32
    assert ensemble.layer(params, "hidden.sigma")[1].dtype == torch.bfloat16
    noise = torch.randn(MEMBERS, ensemble.noise_size, generator=torch.Generator().manual_seed(1))
    x = torch.rand(2, 4, 12, 12, generator=torch.Generator().manual_seed(2))
    z = ensemble.forward(params, x, noise=noise)
    assert z.dtype == torch.float32
    exact = replace(ensemble, dtype=torch.float32).forward(params, x, noise=noise)
    assert (z - exact).abs().max() < 0.05 * exact.abs().max()


def test_noise_leaves_a_gpu_its_kernels() -> None:
    gpu = torch.device("cuda")
    for name, (network, _) in NETWORKS.items():
        assert best_form(network, gpu) == best_form(replace(network, noisy=0.0), gpu), name  # type: ignore[type-var]


def test_what_a_self_predictive_loss_reads_of_the_hidden_layer_has_no_noise() -> None:
    network = MLP((6,), OUTPUTS, (16, 8), transition=ACTIONS, **NOISY)
    ensemble, params, x, noise = drawn(network, (6,))
    action = torch.zeros(2, COUNT, dtype=torch.int64)
    z, predicted = ensemble.predict(params, x, action, noise=noise)
    quiet, same = ensemble.predict(params, x, action)
    assert torch.equal(predicted, same)
    assert (z - quiet).abs().max() > 0.01
    torch.testing.assert_close(z, ensemble.forward(params, x, noise=noise))
    hidden = functional.relu(functional.linear(x, params["fc1.weight"][0], params["fc1.bias"][0]))
    found = functional.linear(hidden, params["fc2.weight"][0], params["fc2.bias"][0])
    torch.testing.assert_close(ensemble.project(params, x[None])[0, 0], found)
