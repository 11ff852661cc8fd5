"""Which tiles can be chosen at all."""

import itertools

import pytest
import torch

from steadyq.bench.updates import backends
from steadyq.device.kernels.tiles import config_for
from steadyq.nets import Impala, ResNet
from steadyq.nets.layers import Conv

NETWORKS = [
    *(ResNet((4, 84, 84), 18, scale) for scale in (1, 2, 4, 8)),
    *(ResNet((3, 64, 64), 15, scale, strides=(2, 2, 2, 2)) for scale in (1, 2, 4, 8)),
    *(Impala((4, 84, 84), 18, scale) for scale in (1, 2, 4, 8)),
]
REAL = {
    (conv.size, conv.stride, conv.image[0], conv.inputs, conv.outputs)
    for network in NETWORKS
    for conv in network.layers.values()
    if isinstance(conv, Conv) and conv.stride == 2
}
OTHERS = itertools.product((1, 3), (2,), (5, 21, 84), (3, 24, 64, 130, 512), (7, 40, 64, 256, 512))


@pytest.mark.parametrize("precision", ["bf16", "tf32", "fp32"])
def test_no_stride_2_gradient_reaches_more_than_32_channels_at_a_time(precision: str) -> None:
    """A tile that reached 64 gave numbers 30% off on a GPU (`test_gpu.py` looks for it)."""
    backends(precision == "tf32", search=False)
    try:
        depths = {
            config_for("spread", *layer, torch.bfloat16 if precision == "bf16" else torch.float32).block_k
            for layer in (*REAL, *OTHERS)
        }
    finally:
        backends(False, search=False)
    assert len(REAL) > 10
    assert max(depths) <= 32
