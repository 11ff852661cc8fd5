"""What a network predicts of itself: the same in every form, and what ordinary layers compute."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from steadyq.errors import UserError
from steadyq.nets import MLP, Ensemble, Impala, Layered, MinAtarNet, Network, ResNet
from steadyq.nets.layered import cnn

MEMBERS, ACTIONS, ATOMS, STEPS, COUNT = 3, 4, 5, 3, 2
OUTPUTS = ACTIONS * ATOMS
BBF: Any = {"renormalise": True, "initial": "xavier", "dueling": True, "atoms": ATOMS, "transition": ACTIONS}
NETWORKS: dict[str, tuple[Network, tuple[int, ...]]] = {
    "impala as BBF": (Impala((4, 12, 12), OUTPUTS, 1, 8, **BBF), (4, 12, 12)),
    "impala, average, norm": (Impala((4, 12, 12), OUTPUTS, 1, 8, pooling="average", norm="layer", **BBF), (4, 12, 12)),
    "resnet": (ResNet((4, 12, 12), OUTPUTS, scale=1, head_multiple=8, transition=ACTIONS), (4, 12, 12)),
    "cnn": (Layered((4, 12, 12), OUTPUTS, cnn((4, 12, 12), 8), renormalise=True, transition=ACTIONS), (4, 12, 12)),
    "layers": (Layered((6,), OUTPUTS, ("linear 7", "linear 8"), transition=ACTIONS), (6,)),
    "minatar": (MinAtarNet((4, 10, 10), OUTPUTS, channels=8, hidden=16, transition=ACTIONS), (4, 10, 10)),
    "mlp": (MLP((6,), OUTPUTS, (16, 8), transition=ACTIONS), (6,)),
}


def drawn(network: Network, shape: tuple[int, ...]) -> tuple[Ensemble, dict[str, Tensor], Tensor, Tensor]:
    ensemble, generator = Ensemble(network, MEMBERS, ACTIONS, ATOMS), torch.Generator().manual_seed(0)
    params = ensemble.initial(generator)
    x = torch.randn(COUNT, *shape, generator=generator)
    return ensemble, params, x, torch.randint(ACTIONS, (STEPS, COUNT), generator=generator)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_forms_agree_in_predictions_projections_and_every_gradient(name: str) -> None:
    ensemble, params, x, action = drawn(*NETWORKS[name])
    pull = torch.randn(MEMBERS, STEPS, COUNT, 8 if name != "minatar" else 16)
    found = []
    for form in ("loop", "stacked", "kernels"):
        leaves = {key: p.clone().requires_grad_() for key, p in params.items()}
        one = replace(ensemble, form=form)  # type: ignore[arg-type]
        z, predicted = one.predict(leaves, x, action)
        projected = one.project(leaves, x[None])
        torch.testing.assert_close(z, one.forward(leaves, x), rtol=1e-5, atol=1e-6)
        loss = (predicted * pull).sum() + z.square().sum() + projected.square().sum()
        found.append((z, predicted, projected, *torch.autograd.grad(loss, list(leaves.values()))))
    for other in found[1:]:
        for mine, theirs in zip(found[0], other, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=3e-5)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_member_predicts_its_own_latent(name: str) -> None:
    ensemble, params, x, action = drawn(*NETWORKS[name])
    together = ensemble.predict(params, x, action)[1]
    for member in range(MEMBERS):
        own = {key: p[member : member + 1] for key, p in params.items()}
        alone = replace(ensemble, members=1).predict(own, x, action)[1]
        torch.testing.assert_close(together[member], alone[0], rtol=1e-4, atol=1e-5)


def test_a_convolutional_prediction_by_hand() -> None:
    """Planes of the action behind the channels, two convolutions with ReLU, stretched; hidden layer, predictor."""
    network = Impala((2, 5, 6), OUTPUTS, 1, 8, **BBF)
    ensemble, generator = Ensemble(network, 1, ACTIONS, ATOMS), torch.Generator().manual_seed(0)
    params = ensemble.initial(generator)
    x, action = torch.randn(COUNT, 2, 5, 6, generator=generator), torch.tensor([[3, 0], [1, 1]])
    own = {key: p[0] for key, p in params.items()}

    def layer(name: str) -> tuple[Tensor, Tensor]:
        return own[f"{name}.weight"], own[f"{name}.bias"]

    def stretched(image: Tensor) -> Tensor:
        low, high = image.flatten(1).min(1).values, image.flatten(1).max(1).values
        return (image - low[:, None, None, None]) / (high - low + 1e-5)[:, None, None, None]

    latent = x
    for stage in range(1, 4):  # the encoder, as tests/nets/test_ensemble.py holds it to be
        latent = functional.conv2d(latent, *layer(f"stage{stage}.conv"), padding=1)
        latent = same_pool(latent)
        for block in range(2):
            name = f"stage{stage}.{block}"
            inner = functional.relu(functional.conv2d(functional.relu(latent), *layer(f"{name}.conv1"), padding=1))
            latent = latent + functional.conv2d(inner, *layer(f"{name}.conv2"), padding=1)
    latent = stretched(functional.relu(latent))
    expected = []
    for step in range(2):
        planes = functional.one_hot(action[step], ACTIONS).float()[:, :, None, None].expand(-1, -1, *latent.shape[2:])
        inner = functional.relu(functional.conv2d(torch.cat((latent, planes), 1), *layer("transition.1"), padding=1))
        latent = stretched(functional.relu(functional.conv2d(inner, *layer("transition.2"), padding=1)))
        projected = functional.linear(latent.flatten(1), *layer("hidden"))
        expected.append(functional.linear(projected, *layer("predictor")))
    torch.testing.assert_close(ensemble.predict(params, x, action)[1][0], torch.stack(expected), rtol=1e-4, atol=1e-5)


def same_pool(image: Tensor) -> Tensor:
    """Max-pooling 3x3 at stride 2, padded as TensorFlow's SAME: what is odd goes behind."""
    pads = []
    for side in reversed(image.shape[2:]):
        total = max(0, 2 * ((side + 1) // 2 - 1) + 3 - side)
        pads += [total // 2, total - total // 2]
    return functional.max_pool2d(functional.pad(image, pads, value=-torch.inf), 3, 2)


def test_which_layers_a_prediction_adds_and_where_they_belong() -> None:
    plain, network = Impala((4, 84, 84), OUTPUTS), Impala((4, 84, 84), OUTPUTS, transition=18)
    added = {name: layer for name, layer in network.layers.items() if name not in plain.layers}
    assert {name: layer.weight_shape for name, layer in added.items()} == {
        "transition.1": (128, 128 + 18, 3, 3),
        "transition.2": (128, 128, 3, 3),
        "predictor": (2048, 2048),
    }
    assert [network.group(name) for name in added] == ["encoder", "encoder", "head"]  # as BBF resets them
    assert network.monitored == plain.monitored
    assert network.readers == plain.readers
    average = Impala((4, 84, 84), OUTPUTS, transition=18, pooling="average")
    assert average.layers["transition.2"].input_shape == (128, 11, 11)  # the latent before its mean
    flat = MLP((6,), OUTPUTS, (16, 8), transition=ACTIONS)
    assert flat.layers["transition.1"].weight_shape == (16, 20)


def test_a_network_without_an_encoder_cannot_predict_its_latent() -> None:
    with pytest.raises(UserError, match=r"needs a layer before the last hidden one: give network\.hidden two"):
        _ = MLP((6,), OUTPUTS, (16,), transition=ACTIONS).layers
