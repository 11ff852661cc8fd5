"""Unit scores by hand, and where a unit's readers hold it in every form."""

import pytest
import torch

from steadyq.nets import MLP, Ensemble, Impala, MinAtarNet, Network, ResNet
from steadyq.nets.forms import Form
from steadyq.nets.layers import Conv, Linear
from steadyq.nets.units import dormant_fraction, reading_columns, unit_scores, unit_sizes


def test_dormant_units_by_score() -> None:
    hidden = torch.tensor([[[1.0, 0.0, 0.05], [1.0, 0.0, 0.05]]])  # means 1, 0, 0.05: layer mean 0.35
    scores = unit_scores(unit_sizes(hidden))
    assert scores.tolist() == [pytest.approx([1 / 0.35, 0, 0.05 / 0.35], rel=1e-6)]
    assert dormant_fraction(scores, 0.1).tolist() == [pytest.approx(1 / 3)]
    assert dormant_fraction(scores, 0.15).tolist() == [pytest.approx(2 / 3)]
    assert dormant_fraction(unit_scores(unit_sizes(torch.zeros(2, 4, 3))), 0.0).tolist() == [1.0, 1.0]


def test_unit_scores_of_a_convolution_average_over_positions() -> None:
    maps = torch.zeros(1, 1, 2, 2, 2)
    maps[0, 0, 0] = torch.tensor([[-4.0, 0.0], [0.0, 0.0]])  # mean size 1
    maps[0, 0, 1] = 3.0
    assert unit_scores(unit_sizes(maps)).tolist() == [[0.5, 1.5]]


def test_columns_of_a_unit_by_hand() -> None:
    marked = torch.tensor([[True, False], [False, True]])
    assert reading_columns(marked, Linear(2, 3)).tolist() == [[[True, False]], [[False, True]]]
    flat = reading_columns(marked, Linear(2 * 3, 5, flattens=(2, 1, 3)))
    assert flat.tolist() == [[[True] * 3 + [False] * 3], [[False] * 3 + [True] * 3]]
    assert reading_columns(marked, Conv(2, 3)).shape == (2, 1, 2, 1, 1)
    with pytest.raises(ValueError, match="2 units cannot be the 5 inputs"):
        reading_columns(marked, Linear(5, 3))
    assert reading_columns(marked, Conv(4, 3))[..., 0, 0].tolist() == [  # two parts of each unit, as of a CReLU
        [[True, True, False, False]],
        [[False, False, True, True]],
    ]
    with pytest.raises(ValueError, match="2 units cannot be the 6 inputs"):
        reading_columns(marked, Conv(6, 3))


NETWORKS: dict[str, tuple[Network, tuple[int, ...]]] = {
    "resnet": (ResNet((2, 8, 8), 6, 1, 4), (2, 8, 8)),
    "resnet, average": (ResNet((2, 8, 8), 6, 1, 4, pooling="average", dueling=True, atoms=3), (2, 8, 8)),
    "impala": (Impala((2, 9, 9), 6, 1, 4, renormalise=True), (2, 9, 9)),
    "minatar": (MinAtarNet((3, 5, 5), 6, 4, 6), (3, 5, 5)),
    "mlp": (MLP((4,), 6, (7, 5)), (4,)),
}


@pytest.mark.parametrize("form", ["loop", "stacked", "kernels"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_unit_whose_readers_columns_are_zero_is_read_by_nothing(name: str, form: Form) -> None:
    """Its incoming weights then change nothing in that member, and everything in a member that still reads it."""
    network, shape = NETWORKS[name]
    ensemble = Ensemble(network, 2, 2, 3, form=form)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, *shape, generator=generator)
    assert network.readers
    for layer, readers in network.readers.items():
        params = ensemble.initial(generator)
        unit = torch.zeros(2, network.layers[layer].outputs, dtype=torch.bool)
        unit[0, 1] = True
        for reader in readers:
            params[f"{reader}.weight"].masked_fill_(reading_columns(unit, network.layers[reader]), 0.0)
        before = ensemble.forward(params, x)
        params[f"{layer}.bias"][:, 1] += 5.0
        after = ensemble.forward(params, x)
        assert torch.equal(after[0], before[0]), layer
        assert not torch.equal(after[1], before[1]), layer
