"""Axis 3, parameter dynamics: when a layer needs intervention, and which.

Measuring is a pure function that works without any intervention. An intervention writes in place (captured graphs
keep their addresses) to the named member and layer only, followed by the fixed tail: clear Adam's moments and step
counts of that layer, and synchronise that member's whole target network (the paper's "synchronized", l.1093).
"""

import math

import torch
from torch import Tensor

from steadyq.nets.ensemble import Ensemble
from steadyq.value.optim import AdamState
from steadyq.value.shapes import Params


@torch.no_grad()
def spike_ratio(weight: Tensor, quantile: float = 0.99) -> Tensor:
    """Return max|W| / quantile(|W|) of each member of weight[member, ...] (Eq. l.297), [member].

    Linear interpolation as in `torch.quantile`, which itself refuses more than 2^24 elements.
    """
    size = weight.abs().flatten(1)
    count = size.shape[1]
    position = quantile * (count - 1)
    below, above = math.floor(position), math.ceil(position)
    top = size.topk(count - below, dim=1).values  # descending: top[:, 0] is the maximum
    low, high = top[:, count - 1 - below], top[:, count - 1 - above]
    bulk = torch.lerp(low, high, position - below)
    return top[:, 0] / bulk.clamp_min(torch.finfo(bulk.dtype).tiny)


@torch.no_grad()
def spike_ratios(params: Params, layers: tuple[str, ...], quantile: float = 0.99) -> Tensor:
    """Return the spike ratio of every monitored layer's weights, [member, layer]."""
    return torch.stack([spike_ratio(params[f"{name}.weight"], quantile) for name in layers], dim=1)


@torch.no_grad()
def reinitialise_(
    mask: Tensor,
    layers: tuple[str, ...],
    ensemble: Ensemble,
    online: Params,
    target: Params,
    adam: AdamState,
    generator: torch.Generator,
) -> None:
    """Redraw weight and bias of every (member, layer) in mask[member, layer], then the tail.

    The whole layer is drawn for all members and copied under the mask, so the random stream does not depend on
    which members spiked.
    """
    for column, name in enumerate(layers):
        hit = mask[:, column].to("cpu")
        if not hit.any():
            continue
        fresh = ensemble.initial_layer(ensemble.network.layers[name], generator)
        for part, value in zip(("weight", "bias"), fresh, strict=True):
            key = f"{name}.{part}"
            online[key][hit] = value.to(online[key].device)[hit]
            for moments in (adam.first, adam.second, adam.step):
                moments[key][hit] = 0
    synchronise_(mask.any(1).to("cpu"), target, online)


@torch.no_grad()
def synchronise_(members: Tensor, target: Params, online: Params) -> None:
    """Copy the online network of the given members over their target network."""
    for name, p in target.items():
        p[members] = online[name][members]
