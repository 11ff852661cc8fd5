"""Spike ratios of every layer over time, from the events of a variant's runs: one map for page and figure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from steadyq.report.curves import Array, Run


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
    measured = [
        (float(event["step"]), list(event["layers"]), np.array(event["ratios"], float))
        for run in runs
        for event in run.of("spikes")
    ]
    if not measured:
        return None
    layers = measured[0][1]
    measured = [entry for entry in measured if entry[1] == layers]
    steps = np.array(sorted({step for step, _, _ in measured}))
    count = min(len(steps), points or len(steps))
    point = np.arange(len(steps)) * count // len(steps)  # of each step
    places = point[np.searchsorted(steps, [step for step, _, _ in measured])]
    mean, top = np.zeros((count, len(layers))), np.zeros((count, len(layers)))
    for place, (_, _, ratios) in zip(places, measured, strict=True):
        mean[place] += ratios.mean(0)
        top[place] = np.fmax(top[place], np.fmax.reduce(ratios, axis=0))
    mean /= np.bincount(places, minlength=count)[:, None]
    ends = steps[np.searchsorted(point, np.arange(count), "right") - 1]
    return SpikeMap(ends, layers, mean, top)
