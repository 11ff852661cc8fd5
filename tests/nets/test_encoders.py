"""The paper's layer table and its arithmetic come out of the built network."""

import math
from typing import Any

import pytest
import torch
from torch.nn import functional

from steadyq import envs
from steadyq.build import network_for
from steadyq.errors import UserError
from steadyq.nets import MLP, Impala, MinAtarNet, ResNet
from steadyq.nets.layers import Conv
from steadyq.paper.settings import layer_rows
from steadyq.presets import steady

# Table 3 (l.835), every row as printed, with s = 4, |A| = 18 (Alien) and K = 51.
S, A, K = 4, 18, 51
TABLE = [
    ("stem.0", (4, 84, 84), (8 * S, 4, 3, 3)),
    ("l1.0.conv1", (8 * S, 84, 84), (8 * S, 8 * S, 3, 3)),
    ("l1.0.conv2", (8 * S, 84, 84), (8 * S, 8 * S, 3, 3)),
    ("l1.1.conv1", (8 * S, 84, 84), (8 * S, 8 * S, 3, 3)),
    ("l1.1.conv2", (8 * S, 84, 84), (8 * S, 8 * S, 3, 3)),
    ("l2.0.conv1", (8 * S, 84, 84), (16 * S, 8 * S, 3, 3)),
    ("l2.0.conv2", (16 * S, 42, 42), (16 * S, 16 * S, 3, 3)),
    ("l2.1.conv1", (16 * S, 42, 42), (16 * S, 16 * S, 3, 3)),
    ("l2.1.conv2", (16 * S, 42, 42), (16 * S, 16 * S, 3, 3)),
    ("l3.0.conv1", (16 * S, 42, 42), (32 * S, 16 * S, 3, 3)),
    ("l3.0.conv2", (32 * S, 21, 21), (32 * S, 32 * S, 3, 3)),
    ("l3.1.conv1", (32 * S, 21, 21), (32 * S, 32 * S, 3, 3)),
    ("l3.1.conv2", (32 * S, 21, 21), (32 * S, 32 * S, 3, 3)),
    ("l4.0.conv1", (32 * S, 21, 21), (64 * S, 32 * S, 3, 3)),
    ("l4.0.conv2", (64 * S, 11, 11), (64 * S, 64 * S, 3, 3)),
    ("l4.1.conv1", (64 * S, 11, 11), (64 * S, 64 * S, 3, 3)),
    ("l4.1.conv2", (64 * S, 11, 11), (64 * S, 64 * S, 3, 3)),
    ("head.1", (64 * S, 11, 11), (128 * S, 64 * S * 11 * 11)),
    ("quantile head", (128 * S,), (A * K, 128 * S)),
]


def test_the_papers_layer_table_comes_out_of_the_paper_preset() -> None:
    assert len(TABLE) == 19
    assert layer_rows(steady("Atari/Alien", "paper")) == TABLE


def test_parameters_and_multiply_adds_of_one_member() -> None:
    layers = ResNet((4, 84, 84), A * K, scale=S).layers
    assert sum(math.prod(layer.weight_shape) + layer.outputs for layer in layers.values()) == 19_124_086
    assert sum(layer.multiplications for layer in layers.values()) == 1_000_748_032


def test_the_head_of_the_papers_text_is_a_switch() -> None:
    layers = ResNet((4, 84, 84), A * K, scale=S, head_multiple=512).layers  # l.1037 against l.935
    assert sum(math.prod(layer.weight_shape) + layer.outputs for layer in layers.values()) == 68_114_806


def test_procgen_strides_give_the_papers_sizes() -> None:
    network = ResNet((3, 64, 64), 15 * K, scale=S, strides=(2, 2, 2, 2))
    sizes = [network.layers[f"l{stage}.0.conv1"].input_shape[1:] for stage in range(1, 5)]
    assert [*sizes, network.layers["head.1"].input_shape[1:]] == [(64, 64), (32, 32), (16, 16), (8, 8), (4, 4)]
    layers = network.layers.values()
    assert sum(math.prod(layer.weight_shape) + layer.outputs for layer in layers) == 5_283_805


def test_shortcuts_are_trained_but_not_monitored() -> None:
    network = ResNet((4, 84, 84), A * K, scale=1)
    assert set(network.layers) - set(network.monitored) == {"l2.0.shortcut", "l3.0.shortcut", "l4.0.shortcut"}
    assert network.layers["l2.0.shortcut"].weight_shape == (16, 8, 1, 1)


def test_small_networks_monitor_every_layer() -> None:
    assert MinAtarNet((4, 10, 10), 6, 16, 128).layers["hidden"].weight_shape == (128, 16 * 8 * 8)
    assert MinAtarNet((4, 10, 10), 6).monitored == ("conv", "hidden", "head")
    assert MLP((4,), 6, (8, 9)).monitored == ("fc1", "fc2", "head")
    assert [layer.weight_shape for layer in MLP((4,), 6, (8, 9)).layers.values()] == [(8, 4), (9, 8), (6, 9)]


@pytest.mark.parametrize("image", [(84, 84), (11, 13), (5, 5)])
def test_declared_shapes_are_those_convolutions_produce(image: tuple[int, int]) -> None:
    for size, stride, padding in ((3, 1, 1), (3, 2, 1), (1, 2, 0), (3, 1, 0)):
        conv = Conv(2, 3, size, stride, padding, image)
        y = functional.conv2d(torch.zeros(1, 2, *image), torch.zeros(conv.weight_shape), None, stride, padding)
        assert conv.image_out == tuple(y.shape[2:])


def test_who_reads_whom() -> None:
    resnet = ResNet((4, 84, 84), A * K, scale=1)
    blocks = [f"l{stage}.{block}" for stage in range(1, 5) for block in range(2)]
    wanted = {f"{block}.conv1": (f"{block}.conv2",) for block in blocks}
    assert resnet.readers == {**wanted, "head.1": ("quantile head",)}
    assert MinAtarNet((4, 10, 10), 6).readers == {"conv": ("hidden",), "hidden": ("head",)}
    assert MLP((4,), 6, (8, 9)).readers == {"fc1": ("fc2",), "fc2": ("head",)}


def test_the_head_is_the_last_hidden_layer_and_the_outputs() -> None:
    resnet = ResNet((4, 84, 84), A * K, scale=1)
    assert [name for name in resnet.layers if resnet.group(name) == "head"] == ["head.1", "quantile head"]
    assert resnet.group("l2.0.shortcut") == resnet.group("stem.0") == "encoder"
    for small, head in ((MinAtarNet((4, 10, 10), 6), {"hidden", "head"}), (MLP((4,), 6, (8, 9)), {"fc2", "head"})):
        assert {name for name in small.layers if small.group(name) == "head"} == head


def test_the_impala_of_bbf_has_its_size() -> None:
    """Breakout: 4 actions, 51 atoms. recipes.md says 34.0M with SPR's small parts."""
    network = Impala((4, 84, 84), 4 * K, width=4, hidden=2048, dueling=True, atoms=K, renormalise=True)
    layers = network.layers
    assert [layers[f"stage{i}.0.conv1"].input_shape for i in (1, 2, 3)] == [(64, 42, 42), (128, 21, 21), (128, 11, 11)]
    assert layers["hidden"].weight_shape == (2048, 128 * 11 * 11)
    convolutions = 2_368 + 4 * 36_928 + 73_856 + 4 * 147_584 + 147_584 + 4 * 147_584
    heads = 2049 * (4 * K + K)
    counted = sum(math.prod(layer.weight_shape) + layer.outputs for layer in layers.values())
    assert counted == convolutions + 15_489 * 2048 + heads == 33_796_159
    average = Impala((4, 84, 84), 4 * K, pooling="average").layers["hidden"]
    assert average.weight_shape == (2048, 128)


def test_normalisation_follows_every_layer_but_shortcuts_and_outputs() -> None:
    network = ResNet((4, 84, 84), A * K, scale=1, norm="layer", dueling=True, atoms=K)
    plain = ResNet((4, 84, 84), A * K, scale=1).layers
    followed = {name for name in plain if not name.endswith("shortcut")} - {"quantile head"}
    assert {name.removesuffix(".norm") for name in network.layers if name.endswith(".norm")} == followed
    assert network.layers["l2.0.conv2.norm"].input_shape == (16, 42, 42)
    assert not any(name.endswith(".norm") for name in network.monitored)
    assert network.heads == network.monitored[-2:] == ("value", "advantage")
    assert network.readers["head.1"] == ("value", "advantage")
    assert network.group("head.1.norm") == network.group("value") == "head"
    assert network.group("stem.0.norm") == "encoder"


def test_who_reads_whom_in_impala() -> None:
    network = Impala((4, 84, 84), A * K, 1, 16)
    blocks = [f"stage{stage}.{block}" for stage in (1, 2, 3) for block in range(2)]
    assert network.readers == {**{f"{b}.conv1": (f"{b}.conv2",) for b in blocks}, "hidden": ("head",)}
    assert [name for name in network.layers if network.group(name) == "head"] == ["hidden", "head"]
    assert network.monitored == tuple(network.layers)


def built(env: str, **changes: Any) -> Any:
    recipe = steady(env, "tiny", **{"estimator.quantiles": K}, **{f"network.{k}": v for k, v in changes.items()})
    return network_for(recipe, envs.spec(recipe.env, recipe.protocol))


def test_a_recipe_builds_every_network_with_its_options() -> None:
    options: Any = {"dueling": True, "norm": "layer", "initial": "xavier"}
    latent: Any = {"pooling": "average", "renormalise": True}
    more: Any = {**options, "atoms": K}
    assert built("Atari/Breakout", kind="impala", width=2, hidden=(64,), **latent, **options) == Impala(
        (4, 84, 84), 4 * K, 2, 64, **latent, **more
    )
    assert built("Atari/Breakout", scale=2, **latent, **options) == ResNet((4, 84, 84), 4 * K, 2, **latent, **more)
    assert built("MinAtar/Breakout", **options) == MinAtarNet((4, 10, 10), 3 * K, **more)
    assert built("CartPole-v1", **options) == MLP((4,), 2 * K, (128, 128), **more)
    assert built("CartPole-v1") == MLP((4,), 2 * K, atoms=K)
    assert built("CartPole-v1", noisy=0.4).noisy == 0.4


def test_the_encoders_of_dqn_and_of_data_efficient_rainbow() -> None:
    """Layer by layer as Mnih et al. 2015 and van Hasselt et al. 2019 have them; smaller images get smaller ones."""
    nature = built("Atari/Breakout", kind="cnn", hidden=(512,), dueling=True)
    assert {name: (layer.weight_shape, layer.written) for name, layer in nature.body.items()} == {
        "conv1": ((32, 4, 8, 8), 32 * 20 * 20),
        "conv2": ((64, 32, 4, 4), 64 * 9 * 9),
        "conv3": ((64, 64, 3, 3), 64 * 7 * 7),
        "fc1": ((512, 3136), 512),
    }
    small = built("Atari/Breakout", kind="der", hidden=(256,), dueling=True, noisy=0.1)
    assert {name: (layer.weight_shape, layer.written) for name, layer in small.body.items()} == {
        "conv1": ((32, 4, 5, 5), 32 * 16 * 16),
        "conv2": ((64, 32, 5, 5), 64 * 3 * 3),
        "fc1": ((256, 576), 256),
    }
    assert list(small.layers)[3:] == ["value", "advantage", "fc1.sigma", "value.sigma", "advantage.sigma"]
    tiny = built("MinAtar/Breakout", kind="der", hidden=(8,))
    assert [layer.weight_shape for layer in tiny.body.values()] == [(32, 4, 3, 3), (64, 32, 3, 3), (8, 64 * 3 * 3)]


def test_options_that_a_network_does_not_have_are_refused() -> None:
    with pytest.raises(UserError, match=r"network.pooling average contradicts network.kind mlp"):
        built("CartPole-v1", pooling="average")
    with pytest.raises(UserError, match=r"network.renormalise True contradicts network.kind minatar"):
        built("MinAtar/Breakout", renormalise=True)
    with pytest.raises(UserError, match=r"impala needs image observations, Gymnasium/CartPole-v1 has shape \(4,\)"):
        built("CartPole-v1", kind="impala")
    with pytest.raises(UserError, match=r"network.width must be between 1 and 16, got 0"):
        built("Atari/Breakout", kind="impala", width=0)
