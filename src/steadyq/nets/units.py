"""Units of a layer: how much each puts out, which are dormant, and where their readers hold them.

The monitor measures them and the regulation recycles them; both read them here.
"""

import torch
from torch import Tensor

from steadyq.nets.layers import Conv, Layer


def unit_sizes(values: Tensor) -> Tensor:
    """Mean size of each unit over the batch and positions, `[member, batch, unit, ...] -> [member, unit]`."""
    size, positions = values.abs(), tuple(range(3, values.dim()))
    if positions:  # in float32, for a copy of a layer in double would take more memory than the layer
        size = size.mean(positions, dtype=torch.promote_types(size.dtype, torch.float32))
    return size.double().mean(1)


def unit_scores(sizes: Tensor) -> Tensor:
    """Each unit's size over its layer's mean, `[member, unit]`; a layer that is all zero scores zero everywhere.

    Of activations this is ReDo's score, of the gradients that reach the units GraMa's.
    """
    return sizes / sizes.mean(1, keepdim=True).clamp_min(1e-300)


def dormant_fraction(scores: Tensor, threshold: float) -> Tensor:
    """Share of units whose score is at most the threshold, `[member, unit] -> [member]`."""
    return (scores <= threshold).double().mean(1)


def reading_columns(units: Tensor, reader: Layer) -> Tensor:
    """Spread what is said of each unit, `[member, unit]`, over the columns of a reader's weight that read it.

    The result broadcasts against the reader's stacked weight: `[member, 1, column]` for a linear layer, `[member, 1,
    column, 1, 1]` for a convolution. A channel read by a linear layer that flattens the map covers height x width
    neighbouring columns, because every form flattens `[channel, y, x]`, channels outermost.
    """
    each, rest = divmod(reader.inputs, units.shape[1])
    if rest or (each > 1 and isinstance(reader, Conv)):
        raise ValueError(f"{units.shape[1]} units cannot be the {reader.inputs} inputs of {reader}")
    columns = units.repeat_interleave(each, 1)[:, None]
    return columns[..., None, None] if isinstance(reader, Conv) else columns
