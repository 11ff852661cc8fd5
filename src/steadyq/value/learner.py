"""The learning step: where the three axes meet.

`Learner.update` runs inside a captured graph on a GPU (`capture.py`): all randomness comes in through `Draw`, all state
changes in place, and nothing waits for the device.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from steadyq.device.streams import Beside
from steadyq.nets.ensemble import Ensemble
from steadyq.value.estimators import Estimator
from steadyq.value.flat import Flat
from steadyq.value.operators import Operator, permitted, take
from steadyq.value.optim import Adam, AdamState, clip_scale, member_norm, polyak_
from steadyq.value.shapes import Batch, Draw, Params, Update, Values


@dataclass(frozen=True)
class Settings:
    """Plain numbers of the learning step."""

    adam: Adam
    clip: float
    tau: float
    hard_copy_every: int
    unit_steps: bool = False  # whether Adam counts the steps of every parameter alone, so that units can be reset


MEASURES = (
    "loss",
    "q_taken",
    "q_max",
    "q_spread",
    "target",
    "clipped",
    "same_action",
    "rewarded",
    "same_action_and_rewarded",
    "gradient_norm",
    "gradient_clipped",
)
"""What every update measures, averaged between rows of metrics; docs/metrics.md defines each."""


class Learner:
    """Online and target parameters, the optimizer, and the update that moves them.

    Forward passes read `online_low` and `target_low`: the parameters themselves, or copies of lower precision. Whoever
    writes `online` or `target` from outside calls `refresh` afterwards.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        estimator: Estimator,
        operator: Operator,
        settings: Settings,
        generator: torch.Generator,
        device: torch.device | str = "cpu",
    ) -> None:
        self.ensemble = ensemble
        self.estimator = estimator
        self.operator = operator
        self.settings = settings
        self.device = torch.device(device)
        initial = ensemble.initial(generator, device)
        self.flat: Flat | None = None
        if self.device.type == "cpu" and ensemble.dtype == torch.float32:
            self.online = self.online_low = initial
            self.target = self.target_low = {name: p.clone() for name, p in initial.items()}
            self.adam = AdamState.zeros(self.online, settings.unit_steps)
        else:
            self.flat = flat = Flat(initial, settings.adam, ensemble.dtype, ensemble.exact, settings.unit_steps)
            self.online, self.target, self.adam = flat.online, flat.target, flat.adam
            self.online_low, self.target_low = flat.online_low, flat.target_low
        self.ceiling = torch.full((), torch.inf, device=device)
        self.updates = self.restarted = 0  # gradient steps, and their number at the last scheduled reset

    @property
    def since_restart(self) -> int:
        """Updates since the last scheduled reset."""
        return self.updates - self.restarted

    def restart(self) -> None:
        """Let schedules begin again."""
        self.restarted = self.updates

    def values(self, params: Params, observation: Tensor) -> Values:
        """Distributions and means at the observations."""
        z = self.ensemble.forward(params, observation)
        return Values(z, self.estimator.q(z))

    def candidates(self, params: Params, batch: Batch) -> Values:
        """Values at s', those of actions that the environment does not allow there at -inf."""
        values = self.values(params, batch.next_observation)
        return Values(values.z, permitted(values.q, batch.next_allowed))

    @torch.no_grad()
    def targets(self, batch: Batch, draw: Draw) -> tuple[Tensor, Values]:
        """Return what predictions are regressed towards, y[member, batch, atom], and the target networks at s'."""
        target = self.candidates(self.target_low, batch)
        online = self.candidates(self.online_low, batch) if self.operator.reads_online else target
        z_next = self.operator(online, target, batch, draw)
        return self.estimator.backup(z_next, batch.reward, batch.discount, self.ceiling), target

    def loss(self, now: Values, batch: Batch, y: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weighted loss summed over members that keep a sample, and all losses `[member, batch]`."""
        action = batch.action.expand(now.z.shape[0], -1)
        each = self.estimator.loss(take(now.z, action), y)
        kept = each * keep if keep.shape[1] else each
        return (batch.weight * kept.sum(0)).mean(), each

    def update(self, batch: Batch, draw: Draw) -> Update:
        """One gradient step of every member that learns, and the targets' step towards the online networks."""
        beside = Beside(self.device)
        with beside.reading(batch, draw):
            y, target = self.targets(batch, draw)
        leaves = {name: p.detach().requires_grad_() for name, p in self.online_low.items()}
        now = self.values(leaves, batch.observation)
        beside.join()
        loss, each = self.loss(now, batch, y, draw.keep)
        gradient = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))
        each, q = each.detach(), now.q.detach()
        with torch.no_grad():
            with beside.reading(target, y, each, q):
                measures = self.measure(batch, target, y, each, q)
            norm = self.step_(gradient, draw)
            beside.join()
            measures |= {"gradient_norm": norm.mean(), "gradient_clipped": (norm > self.settings.clip).float().mean()}
        return Update(priority=each.mean(0), measures=measures)

    def step_(self, gradient: Params, draw: Draw) -> Tensor:
        """Move online and target parameters; returns each member's gradient norm."""
        settings, active = self.settings, draw.keep.amax(1) if draw.keep.shape[1] else None
        tau = None if settings.hard_copy_every else settings.tau
        if self.flat is not None:
            return self.flat.step_(gradient, settings.clip, tau, active, draw.rate)
        norm = member_norm(gradient)
        scale = clip_scale(norm, settings.clip)
        settings.adam.step_(self.online, gradient, self.adam, scale, active, draw.rate)
        if tau is not None:
            polyak_(self.target, self.online, tau)
        return norm

    def refresh(self) -> None:
        """Bring what forward passes read up to date with `online` and `target`."""
        if self.flat is not None:
            self.flat.refresh_()

    def copies_after(self, updates: int) -> bool:
        """Whether so many updates from now end in a copy of the target, where not every update does."""
        every = self.settings.hard_copy_every
        return every > 1 and (self.updates + updates) % every == 0

    def count(self) -> None:
        """Count an update, and copy the target network where hard copies are due: the host's part of a step."""
        self.updates += 1
        every = self.settings.hard_copy_every
        if every and self.updates % every == 0:
            polyak_(self.target, self.online, 1.0)
            self.refresh()

    def measure(self, batch: Batch, target: Values, y: Tensor, each: Tensor, q: Tensor) -> dict[str, Tensor]:
        """Summarise the update; `same_action` is the paper's Fig. 1 statistic, before any masking."""
        taken = q.gather(2, batch.action.expand(q.shape[0], -1)[..., None])
        rewarded = batch.rewarded
        same = target.q.mean(0).argmax(-1) == batch.action
        return {
            "loss": (batch.weight * each).mean(),
            "q_taken": taken.mean(),
            "q_max": permitted(q, batch.allowed).max(-1).values.mean(),
            "q_spread": q.std(0, correction=0).mean(),
            "target": self.estimator.value(y).mean(),
            "clipped": self.estimator.held(y, self.ceiling).mean(),
            "same_action": same.float().mean(),
            "rewarded": rewarded.float().mean(),
            "same_action_and_rewarded": (same & rewarded).float().mean(),
        }
