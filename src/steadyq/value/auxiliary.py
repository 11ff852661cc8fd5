"""Losses beside the values': what else the encoder is asked to know."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from steadyq.nets.ensemble import Ensemble
from steadyq.value.shapes import Batch, Future, Params

SHORTEST = 1e-4
"""A vector's length below which it is not stretched to 1: its direction says nothing."""


class Auxiliary(Protocol):
    """A loss beside the values' that shares their forward pass, and has targets of its own."""

    @property
    def weight(self) -> float:
        """What it is multiplied by."""

    def goal(self, ensemble: Ensemble, target: Params, batch: Batch) -> Tensor:
        """What is to be predicted, by the target networks; no gradient goes there."""

    def predict(
        self, ensemble: Ensemble, params: Params, batch: Batch, taus: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """z[member, batch, action, atom] at s, and what is predicted."""

    def loss(self, predicted: Tensor, goal: Tensor, batch: Batch) -> Tensor:
        """Every member's loss of every sample, [member, batch]."""


@dataclass(frozen=True)
class SelfPrediction:
    """SPR (Schwarzer et al. 2021): each member predicts what its target network will make of the next observations.

    From the latent of s the transition model goes on by the actions taken, and predictor(projection(latent)) of every
    step is compared with the target network's projection of the observation that came; as BBF has it, whose projection
    is the hidden layer that values are read through.
    """

    steps: int = 5
    weight: float = 5.0

    @torch.no_grad()
    def goal(self, ensemble: Ensemble, target: Params, batch: Batch) -> Tensor:
        """The target networks' projections of what came, [member, step, batch, unit]."""
        future = self.future(batch)
        seen = ensemble.project(target, future.observation.flatten(0, 1))
        return seen.reshape(len(seen), *future.action.shape, -1)

    def predict(
        self, ensemble: Ensemble, params: Params, batch: Batch, taus: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """z[member, batch, action, atom] at s, and what is predicted of the steps after it, as `goal`."""
        return ensemble.predict(params, batch.observation, self.future(batch).action, taus)

    def loss(self, predicted: Tensor, goal: Tensor, batch: Batch) -> Tensor:
        """Return the mean over steps of |p/|p| - g/|g||^2 = 2 - 2 cos(p, g), 0 beyond the end, [member, batch]."""
        p, g = (functional.normalize(x.float(), dim=-1, eps=SHORTEST) for x in (predicted, goal))
        return ((p - g).square().sum(-1) * self.future(batch).known).mean(1)

    def future(self, batch: Batch) -> Future:
        """What the replay buffer was asked to hand out with the batch."""
        if batch.future is None:
            raise ValueError("a self-predictive loss needs the steps after a batch: Ring(..., future=steps)")
        return batch.future
