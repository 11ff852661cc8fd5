"""Spike ratios of every layer over time, from the events of a variant's runs: one map for page and figure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from steadyq.suite.columns import Array
from steadyq.suite.runs import Run


@dataclass(frozen=True)
class SpikeMap:
    """Ratios of each layer at each step: the mean over members and seeds, and the highest single member."""

    steps: Array  # [point]
    layers: list[str]
    mean: Array  # [point, layer]
    top: Array  # [point, layer]


def spike_map(runs: Sequence[Run], points: int | None = None) -> SpikeMap | None:
    """Join what the runs measured; with `points`, neighbouring steps are joined until so many are left at most.

    A run whose layers are not those of the first is left out: its rows would be other layers.
    """
    measured = [each for run in runs for each in run.events.spikes]
    if not measured:
        return None
    layers = measured[0].layers
    measured = [each for each in measured if each.layers == layers]
    taken = np.concatenate([each.steps for each in measured])
    steps = np.unique(taken)
    count = min(len(steps), points or len(steps))
    point = np.arange(len(steps)) * count // len(steps)  # of each step
    places = point[np.searchsorted(steps, taken)]
    mean, top = np.zeros((count, len(layers))), np.zeros((count, len(layers)))
    np.add.at(mean, places, np.concatenate([each.mean for each in measured]))
    np.fmax.at(top, places, np.concatenate([each.top for each in measured]))
    mean /= np.bincount(places, minlength=count)[:, None]
    ends = steps[np.searchsorted(point, np.arange(count), "right") - 1]
    return SpikeMap(ends, list(layers), mean, top)
