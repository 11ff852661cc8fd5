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

    @property
    def momentum(self) -> float:
        """How much of itself a copy of the networks, which makes the goal, keeps in an update; 0: the target networks
        make it.
        """

    def goal(self, ensemble: Ensemble, slow: Params, batch: Batch) -> Tensor:
        """What is to be predicted, by slower copies of the networks; no gradient goes there."""

    def predict(
        self, ensemble: Ensemble, params: Params, batch: Batch, taus: Tensor | None = None, noise: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """z[member, batch, action, atom] at s, and what is predicted."""

    def loss(self, predicted: Tensor, goal: Tensor, batch: Batch, runs: int = 1) -> Tensor:
        """Every member's loss of every sample, [member, batch], where the batch is that of so many runs."""


@dataclass(frozen=True)
class SelfPrediction:
    """SPR (Schwarzer et al. 2021): each member predicts what its target network will make of the next observations.

    From the latent of s the transition model goes on by the actions taken, and predictor(projection(latent)) of every
    step is compared with the target network's projection of the observation that came; as BBF has it, whose projection
    is the hidden layer that values are read through.
    """

    steps: int = 5
    weight: float = 5.0
    momentum: float = 0.0

    @torch.no_grad()
    def goal(self, ensemble: Ensemble, slow: Params, batch: Batch) -> Tensor:
        """The target networks' projections of what came, [member, step, batch, unit]."""
        return ensemble.project(slow, self.future(batch).observation)

    def predict(
        self, ensemble: Ensemble, params: Params, batch: Batch, taus: Tensor | None = None, noise: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """z[member, batch, action, atom] at s, and what is predicted of the steps after it, as `goal`."""
        return ensemble.predict(params, batch.observation, self.future(batch).action, taus, noise)

    def loss(self, predicted: Tensor, goal: Tensor, batch: Batch, runs: int = 1) -> Tensor:
        """Return the mean over steps of |p/|p| - g/|g||^2 = 2 - 2 cos(p, g), 0 beyond the end, [member, batch]."""
        p, g = (functional.normalize(x.float(), dim=-1, eps=SHORTEST) for x in (predicted, goal))
        return ((p - g).square().sum(-1) * self.future(batch).known).mean(1)

    def future(self, batch: Batch) -> Future:
        """What the replay buffer was asked to hand out with the batch."""
        if batch.future is None:
            raise ValueError("a self-predictive loss needs the steps after a batch: Ring(..., future=steps)")
        return batch.future


@dataclass(frozen=True)
class Contrastive:
    """CURL (Laskin et al. 2020): of a run's batch of states each member's query of one is to find its key of that one.

    A query is a view of s through encoder, projection and product, a key another view of it through the encoder and
    projection of a copy that follows slowly. Their products, times `scale`, are the logits of whose key it is.
    """

    weight: float = 1.0
    momentum: float = 0.999
    scale: float = 0.1

    @torch.no_grad()
    def goal(self, ensemble: Ensemble, slow: Params, batch: Batch) -> Tensor:
        """The keys, [member, batch, unit]."""
        return ensemble.contrast(slow, self.views(batch)[1], query=False)

    def predict(
        self, ensemble: Ensemble, params: Params, batch: Batch, taus: Tensor | None = None, noise: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """z[member, batch, action, atom] at s, and the queries, as `goal`."""
        z = ensemble.forward(params, batch.observation, taus=taus, noise=noise)
        return z, ensemble.contrast(params, self.views(batch)[0], query=True)

    def loss(self, predicted: Tensor, goal: Tensor, batch: Batch, runs: int = 1) -> Tensor:
        """Return -log softmax over all keys of a run, that of a sample's own, [member, batch]."""
        queries, keys = (x.float().view(len(x), runs, -1, x.shape[-1]) for x in (predicted, goal))
        logits = self.scale * queries @ keys.transpose(2, 3)  # [member, run, query, key]
        return -logits.log_softmax(-1).diagonal(dim1=2, dim2=3).flatten(1)

    def views(self, batch: Batch) -> Tensor:
        """The two looks at s: drawn ones, or what there is twice."""
        return batch.observation.expand(2, *batch.observation.shape) if batch.views is None else batch.views
