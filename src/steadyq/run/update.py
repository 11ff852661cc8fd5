"""The device's part of an update, captured once: sample, learn, set priorities, add up what was measured."""

import torch
from torch import Tensor

from steadyq.device.capture import Captured
from steadyq.replay.ring import Ring
from steadyq.value.learner import MEASURES, Learner
from steadyq.value.shapes import Draw


class Learning:
    """Calls with `drawn[batch + member + 1]`: one uniform number per sample, the order of exchange, whether to forbid.

    Everything random or decided by the host comes in through that vector, so that a captured graph never repeats it.
    """

    def __init__(self, learner: Learner, ring: Ring, batch: int) -> None:
        self.learner, self.ring, self.batch = learner, ring, batch
        self.sums = torch.zeros(len(MEASURES) + 1, device=learner.device)  # of what updates measured, and their number
        self.captured = Captured(self.on_device, learner.device)

    def __call__(self, drawn: Tensor) -> None:
        """One update."""
        self.captured(drawn)
        self.learner.count()

    def on_device(self, drawn: Tensor) -> Tensor:
        """What is captured."""
        draw = Draw(order=drawn[self.batch : -1].long(), forbid=drawn[-1] > 0)
        batch = self.ring.sample(drawn[: self.batch])
        update = self.learner.update(batch, draw)
        self.ring.priorities.update(batch.index, batch.stamp, update.priority)
        self.sums[:-1] += torch.stack([update.measures[name] for name in MEASURES])
        self.sums[-1] += 1
        return self.sums
