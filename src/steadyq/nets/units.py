"""Units of a layer: what each puts out, which are dormant, and where their readers hold them.

The monitor measures them and the regulation redraws them; both read them here.
"""

from typing import Any, cast

import torch
from torch import Tensor

from steadyq.nets.ensemble import Ensemble, Params
from steadyq.nets.layers import Conv, Executor, Layer, Network


class Noted:
    """What a network's layers put out behind their activation, by layer; an executor in `around` is watched.

    A form that runs members one by one leaves one output for each. `paired` are layers whose units have two parts side
    by side (CReLU): to redraw or to count they are one unit.
    """

    def __init__(self) -> None:
        self.outputs: dict[str, list[Tensor]] = {}
        self.paired: set[str] = set()

    def around(self, run: Executor[Tensor]) -> Executor[Tensor]:
        """The executor, watched."""
        return cast(Executor[Tensor], _Noting(run, self))


class _Noting:
    """An executor that notes every activation's output under the layer whose units it shows."""

    def __init__(self, run: Executor[Tensor], noted: Noted) -> None:
        self.run, self.noted = run, noted

    def __getattr__(self, piece: str) -> Any:
        return getattr(self.run, piece)

    def layer(self, name: str, x: Tensor, *, relu: bool = False, residual: Tensor | None = None) -> Tensor:
        y = self.run.layer(name, x, relu=relu, residual=residual)
        return self._seen(name, y) if relu else y

    def relu(self, x: Tensor, units: str) -> Tensor:
        return self._seen(units, self.run.relu(x, units))

    def crelu(self, x: Tensor, units: str) -> Tensor:
        self.noted.paired.add(units)
        return self._seen(units, self.run.crelu(x, units))

    def _seen(self, name: str, y: Tensor) -> Tensor:
        self.noted.outputs.setdefault(name, []).append(y)
        return y


def members_first(parts: list[Tensor], ensemble: Ensemble) -> Tensor:
    """Bring a layer's output in any form to [member, batch, unit, ...]."""
    if ensemble.form == "loop":
        return torch.stack(parts)
    (y,) = parts
    if ensemble.form == "kernels":
        return y.permute(0, 1, 4, 2, 3) if y.dim() == 5 else y
    return y.reshape(len(y), ensemble.members, -1, *y.shape[2:]).transpose(0, 1) if y.dim() == 4 else y


def paired(sizes: Tensor) -> Tensor:
    """Sizes of units from those of both their parts, `[member, 2 unit] -> [member, unit]`; one is 0 at a time."""
    return sizes.view(len(sizes), -1, 2).sum(2)


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
    if rest or (each > 2 and isinstance(reader, Conv)):  # two where a unit has two parts
        raise ValueError(f"{units.shape[1]} units cannot be the {reader.inputs} inputs of {reader}")
    columns = units.repeat_interleave(each, 1)[:, None]
    return columns[..., None, None] if isinstance(reader, Conv) else columns


def parts(network: Network, name: str) -> int:
    """Numbers that are read of each of a layer's units: two of a CReLU."""
    return network.layers[network.readers[name][0]].input_shape[0] // network.layers[name].outputs


def outgoing_sizes(network: Network, name: str, params: Params) -> Tensor:
    """Mean size of the weights by which each number of a layer's units is read, `[member, unit x parts]`."""
    count = network.layers[name].outputs * parts(network, name)
    weights = [params[f"{reader}.weight"].abs() for reader in network.readers[name]]
    # A channel's positions lie together, in a kernel or in a flattened map.
    sums = [w.sum(1).reshape(len(w), count, -1).mean(2) for w in weights]
    return torch.stack(sums).sum(0) / sum(w.shape[1] for w in weights)
