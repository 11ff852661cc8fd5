"""Watches our own learner while it trains, without touching it: own random numbers, own batch, copies only."""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from steadyq.monitor.returns import Returns
from steadyq.monitor.rows import Snapshot, row
from steadyq.nets.ensemble import Ensemble
from steadyq.nets.layers import FIXED
from steadyq.nets.units import Noted, members_first, paired, unit_scores, unit_sizes
from steadyq.replay.ring import Part, Ring
from steadyq.value.learner import Learner
from steadyq.value.shapes import Batch, Draw, Params

PIECE = {"cuda": 2**31, "cpu": 2**28}
"""Bytes of layers' outputs kept together, roughly: those of all a row's states would take more memory than an update.
Pieces cost a GPU's host time; on a CPU smaller ones are faster.
"""


class Watch:
    """Measures a learner every so many steps, on transitions drawn uniformly from replay.

    `before` keeps the parameters as they were just before the step's last update, so that churn and update sizes are
    those of one update. The draw depends on seed and step alone: there is no random state to save.
    """

    def __init__(self, *, every: int, batch: int, seed: int, lanes: int, gamma: float) -> None:
        self.every, self.batch, self.seed = every, batch, seed
        self.returns = Returns(lanes, gamma)
        self.measured = 0  # the step of the last measurement
        self.previous: Params | None = None

    def due(self, step: int) -> bool:
        """Whether a measurement is due with the next update."""
        return step // self.every != self.measured // self.every

    def before(self, learner: Learner) -> None:
        """Keep the online parameters."""
        self.previous = {name: p.clone() for name, p in learner.online.items()}

    def measure(self, step: int, learner: Learner, ring: Ring | Part, draw: Draw) -> dict[str, Any]:
        """One row of diagnostics."""
        start = time.perf_counter()
        self.measured = step
        batch = ring.uniformly(self.batch, np.random.default_rng([self.seed, step]), draw)
        shot = snapshot(learner, batch, draw, self.previous)
        self.previous = None
        measured = row(shot)
        returns = self.returns.columns()
        return {"step": step, **returns, **measured, "seconds": round(time.perf_counter() - start, 5)}

    def state(self) -> dict[str, np.ndarray]:
        """Everything needed to continue."""
        return {**self.returns.state(), "measured": np.array([self.measured], np.int64)}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from `state()`."""
        self.returns.restore(dict(state))
        self.measured = int(state["measured"][0])


def snapshot(learner: Learner, batch: Batch, draw: Draw, previous: Params | None) -> Snapshot:
    """Look at the learner on a batch, piece by piece: values, targets, one loss gradient, and the units on the way."""
    leaves = {name: p.detach().requires_grad_() for name, p in learner.online_low.items()}
    gradients = {name: torch.zeros_like(p) for name, p in learner.online.items()}
    sizes: Params = {}
    gradient_sizes: Params = {}
    looks: list[dict[str, Tensor]] = []
    count = len(batch.action)
    together = states_together(learner.ensemble, count, learner.device.type)
    for first in range(0, count, together):
        piece = batch.part(first, first + together)
        look = _values(learner, piece, draw, previous)
        tap = Tap()
        with torch.enable_grad():
            z = learner.ensemble.forward(leaves, piece.observation, tap.around, draw.taus[0])
            each = learner.each(z, piece, look["y"], draw)
            with tap.measuring(learner.ensemble):
                found = torch.autograd.grad(each.sum() / count, list(leaves.values()), materialize_grads=True)
        for name, gradient in zip(leaves, found, strict=True):
            gradients[name] += gradient
        share = len(piece.action) / count
        for total, own in ((sizes, tap.sizes), (gradient_sizes, tap.gradient_sizes)):
            total |= {name: share * size + total.get(name, 0) for name, size in own.items()}
        outputs = list(tap.outputs.values())
        if outputs:
            features = members_first(outputs[-1], learner.ensemble).detach().flatten(2)
        else:  # a network of one layer reads its values off what it sees
            features = piece.observation.float().flatten(1).expand(learner.ensemble.members, -1, -1)
        features = features.reshape(len(features), len(piece.action), -1, features.shape[-1]).mean(2)  # over quantiles
        q = _among_allowed(learner.estimator.q(z.detach()), piece.allowed)
        looks.append({**look, "z": z.detach(), "q": q, "features": features})
    return Snapshot(
        action=batch.action,
        rewarded=batch.rewarded,
        estimator=learner.estimator,
        **{name: torch.cat([look[name] for look in looks], 1) for name in looks[0]},
        weights={name: p.detach() for name, p in learner.online.items() if name not in learner.ensemble.still},
        gradients=gradients,
        layers=learner.ensemble.network.monitored,
        weights_before=previous,
        ceiling=learner.ceiling,
        scores={name: unit_scores(size) for name, size in sizes.items()},
        gradient_scores={name: unit_scores(size) for name, size in gradient_sizes.items()},
    )


def states_together(ensemble: Ensemble, count: int, device: str) -> int:
    """How many of `count` states to look at together: all of them, or a share whose outputs take about `PIECE`."""
    outputs = ensemble.members * sum(layer.written for layer in ensemble.network.layers.values())
    pieces = min(max(1, round(count * outputs * ensemble.dtype.itemsize / PIECE[device])), count)
    return math.ceil(count / pieces)


@torch.no_grad()
def _values(learner: Learner, batch: Batch, draw: Draw, previous: Params | None) -> dict[str, Tensor]:
    """Targets, and the values that are compared with the online network's, as `Snapshot` names them."""
    y, target, _ = learner.targets(batch, draw)

    def now(params: Params) -> Tensor:
        return _among_allowed(learner.values(params, batch.observation).q, batch.allowed)

    found = {"q_next": target.q, "y": y, "q_target": now(learner.target_low)}
    return found if previous is None else {**found, "q_before": now(previous)}


def _among_allowed(q: Tensor, allowed: Tensor | None) -> Tensor:
    """Values with those of actions that are not allowed, which nothing is learned of, as low as the lowest allowed."""
    if allowed is None:
        return q
    lowest = q.masked_fill(~allowed, torch.inf).amin(-1, keepdim=True)
    return torch.where(allowed, q, lowest)


@torch.no_grad()
def activation_scores(ensemble: Ensemble, params: Params, observation: Tensor) -> Params:
    """Score of every hidden layer's units by what they put out, `[member, unit]` (ReDo's)."""
    tap = Tap()
    ensemble.forward(params, observation, tap.around)
    outputs = learning(tap.outputs, ensemble)
    return {name: unit_scores(tap.of_units(name, parts, ensemble)) for name, parts in outputs.items()}


def learning(outputs: dict[str, list[Tensor]], ensemble: Ensemble) -> dict[str, list[Tensor]]:
    """Those of layers that learn: the units of a fixed prior say nothing of how learning goes."""
    return {name: parts for name, parts in outputs.items() if ensemble.network.group(name) not in FIXED}


class Tap(Noted):
    """Keeps what a network's layers put out behind their activation, and measures the units."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: Params = {}
        self.gradient_sizes: Params = {}

    def of_units(self, name: str, outputs: list[Tensor], ensemble: Ensemble) -> Tensor:
        """Mean size of a layer's units, [member, unit]; a unit of two parts is as large as both."""
        sizes = torch.cat([_sizes(y, ensemble) for y in outputs])
        return paired(sizes) if name in self.paired else sizes

    @contextmanager
    def measuring(self, ensemble: Ensemble) -> Iterator[None]:
        """Measure the units by their outputs, and by the gradients of a backward pass inside the block.

        Gradients are measured as they pass and not kept: those of all layers together would take more memory than
        training does.
        """
        self.outputs = learning(self.outputs, ensemble)
        slopes: dict[str, dict[int, Tensor]] = {name: {} for name in self.outputs}

        def measure(name: str, place: int, y: Tensor, slope: Tensor) -> None:
            # Before the ReLU, where the unit's own weights receive it: a unit that is off learns nothing.
            slopes[name][place] = _sizes(slope * (y > 0), ensemble)

        places = [(name, place, y) for name, parts in self.outputs.items() for place, y in enumerate(parts)]
        hooks = [
            y.register_hook(partial(measure, name, place, y.detach()))  # type: ignore[no-untyped-call]
            for name, place, y in places
        ]
        yield
        for hook in hooks:
            hook.remove()
        self.sizes = {
            name: self.of_units(name, [y.detach() for y in parts], ensemble) for name, parts in self.outputs.items()
        }
        found = {name: torch.cat([own[place] for place in range(len(own))]) for name, own in slopes.items()}
        self.gradient_sizes = {name: paired(own) if name in self.paired else own for name, own in found.items()}


def _sizes(part: Tensor, ensemble: Ensemble) -> Tensor:
    return unit_sizes(part[None] if ensemble.form == "loop" else members_first([part], ensemble))
