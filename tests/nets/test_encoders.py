"""The paper's layer table and its arithmetic come out of the built network."""

import math

import pytest
import torch
from torch.nn import functional

from steadyq.nets import MLP, MinAtarNet, ResNet
from steadyq.nets.encoders import Conv
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
