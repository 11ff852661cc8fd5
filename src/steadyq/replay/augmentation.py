"""Random shifts and intensities of sampled images: what a network is shown of one transition differs each time.

Shifting by replicating the border is DrQ's augmentation, scaling all pixels of an image SPR's; both as BBF uses them,
with independent draws for s, s' and the steps that a loss looks ahead. Two more views of s are shifted for a loss that
compares them (CURL). The numbers come with `Draw`.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from steadyq.device.kernels import replay
from steadyq.device.kernels.triton import available
from steadyq.value.shapes import Batch, Draw


@dataclass(frozen=True)
class Augmentation:
    """Shifts of up to `shift` pixels each way; pixels times 1 + `intensity` x a normal number cut at 2.

    Views that are compared are shifted by up to `compared`.
    """

    shift: int = 0
    intensity: float = 0.0
    compared: int = 0

    @property
    def active(self) -> bool:
        """Whether it changes what values are learned from."""
        return self.shift > 0 or self.intensity > 0

    def draw(self, batch: int, rng: np.random.Generator, future: int = 0) -> dict[str, np.ndarray | float | int]:
        """`shift` and `intensity` of a draw: views of s, of s' and of so many steps of the future of every sample; and
        `views`, the shifts of two that are compared.
        """
        drawn: dict[str, np.ndarray | float | int] = {"shift": 0, "intensity": 1.0, "views": 0}
        if self.active:
            drawn["shift"] = rng.integers(-self.shift, self.shift + 1, size=(2 + future, batch, 2))
            drawn["intensity"] = 1 + self.intensity * rng.standard_normal((2 + future, batch)).clip(-2, 2)
        if self.compared:
            drawn["views"] = rng.integers(-self.compared, self.compared + 1, size=(2, batch, 2))
        return drawn


def augmented(batch: Batch, draw: Draw) -> Batch:
    """The batch as the draw shows it; a draw without views changes nothing."""
    if len(draw.views):  # of what was sampled: the values' own views are another matter
        plain = draw.intensity.new_ones(len(batch.observation))
        batch = replace(batch, views=torch.stack([moved(batch.observation, each, plain) for each in draw.views]))
    if len(draw.shift) == 0:
        return batch
    future = batch.future
    if future is not None:
        seen = moved(future.observation.flatten(0, 1), draw.shift[2:].flatten(0, 1), draw.intensity[2:].flatten())
        future = replace(future, observation=seen.view_as(future.observation))
    both = torch.cat((batch.observation, batch.next_observation))
    here, there = moved(both, draw.shift[:2].flatten(0, 1), draw.intensity[:2].flatten()).chunk(2)
    return replace(batch, observation=here, next_observation=there, future=future)


def moved(images: Tensor, shift: Tensor, intensity: Tensor) -> Tensor:
    """Shift images[batch, channel, y, x] by shift[batch, 2] pixels, borders replicated, and scale their pixels."""
    if available(images):
        return replay.moved(images, shift, intensity)
    count, _, height, width = images.shape
    rows = (torch.arange(height, device=images.device) + shift[:, :1]).clamp(0, height - 1)  # [batch, y]
    columns = (torch.arange(width, device=images.device) + shift[:, 1:]).clamp(0, width - 1)  # [batch, x]
    which = torch.arange(count, device=images.device)[:, None, None]
    seen = images.permute(0, 2, 3, 1)[which, rows[:, :, None], columns[:, None, :]]  # [batch, y, x, channel]
    return seen.permute(0, 3, 1, 2) * intensity[:, None, None, None]
