"""The learning step: where the three axes meet.

`Learner.update` runs inside a captured graph on a GPU (`capture.py`): all randomness comes in through `Draw`, all state
changes in place, and nothing waits for the device.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import torch
from torch import Tensor

from steadyq.device.streams import Beside
from steadyq.nets.ensemble import Ensemble
from steadyq.value.auxiliary import Auxiliary
from steadyq.value.estimators import Estimator
from steadyq.value.flat import Flat
from steadyq.value.operators import Operator, permitted, take
from steadyq.value.optim import Adam, AdamState, clip_scale, member_norm, polyak_
from steadyq.value.penalties import Penalties
from steadyq.value.shapes import Batch, Draw, Params, Update, Values
from steadyq.value.utility import Replacement, Utility


@dataclass(frozen=True)
class Settings:
    """Plain numbers of the learning step."""

    adam: Adam
    clip: float
    tau: float
    hard_copy_every: int
    snapshots: int = 1  # copies of the target whose mean is its value, where it is copied
    certainty: float = 0.0  # how much a sample weighs less where members' targets differ
    penalties: Penalties = field(default_factory=Penalties)
    unit_steps: bool = False  # whether Adam counts the steps of every parameter alone, so that units can be reset
    replacement: Replacement | None = None  # how units that are of little use are found, where they are replaced


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
"""What every update measures, averaged between rows of metrics; docs/metrics.md defines each. An auxiliary loss comes
on top (`Learner.measured`).
"""


class Learner:
    """Online and target parameters, the optimizer, and the update that moves them.

    Forward passes read `online_low` and `target_low`: the parameters themselves, or copies of lower precision. Whoever
    writes `online` or `target` from outside calls `refresh` afterwards.

    Where the ensemble's stack is that of several runs, a batch holds the samples of all of them, one run after another:
    every run learns from its own, at the pace of all, and `Learner.join` makes its own learner a part of this one.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        estimator: Estimator,
        operator: Operator,
        settings: Settings,
        generator: torch.Generator,
        device: torch.device | str = "cpu",
        auxiliary: Auxiliary | None = None,
    ) -> None:
        self.ensemble, self.runs = ensemble, ensemble.runs
        self.estimator = estimator
        self.operator = operator
        self.settings = settings
        self.auxiliary = auxiliary
        self.measured = MEASURES if auxiliary is None else (*MEASURES, "auxiliary")
        self.device = torch.device(device)
        initial = ensemble.initial(generator, device)
        # Drawn again alike where a run is continued, so that it need not be saved.
        self.initial: Params = {name: p.clone() for name, p in initial.items()} if settings.penalties.active else {}
        self.flat: Flat | None = None
        if self.device.type == "cpu" and ensemble.dtype == torch.float32:
            self.online = self.online_low = initial
            self.target = self.target_low = {name: p.clone() for name, p in initial.items()}
            self.adam = AdamState.zeros(self.online, settings.unit_steps)
        else:
            exact, still = ensemble.exact, ensemble.still
            self.flat = flat = Flat(initial, settings.adam, ensemble.dtype, exact, settings.unit_steps, still)
            self.online, self.target, self.adam = flat.online, flat.target, flat.adam
            self.online_low, self.target_low = flat.online_low, flat.target_low
        older = settings.snapshots - 1
        kept = 0.0 if auxiliary is None else auxiliary.momentum
        self.slow: Params = {name: p.detach().clone() for name, p in self.online.items()} if kept else {}
        self.older: Params = {name: self.several(p, older) for name, p in self.target_low.items()}
        self.earlier = replace(ensemble, members=older * ensemble.members)
        replacement = settings.replacement
        self.utility = None if replacement is None else Utility(replacement, ensemble, self.device)
        self.ceiling = torch.full((self.runs,) if self.runs > 1 else (), torch.inf, device=device)
        self.whole: Learner | None = None  # that this one is a part of
        self.updates = self.restarted = 0  # gradient steps, and their number at the last scheduled reset

    @property
    def since_restart(self) -> int:
        """Updates since the last scheduled reset."""
        return self.updates - self.restarted

    def restart(self) -> None:
        """Let schedules begin again."""
        self.restarted = self.updates

    def several(self, each: Tensor, count: int) -> Tensor:
        """So many copies of what every member has, those of one run before those of the next."""
        own = each.view(self.runs, 1, len(each) // self.runs, *each.shape[1:])
        return own.repeat(1, count, *[1] * each.dim()).flatten(0, 2)

    @property
    def followers(self) -> tuple[Params, ...]:
        """Networks that follow the online ones: the target, and the copy that makes an auxiliary loss's goal."""
        return (self.target, self.slow) if self.slow else (self.target,)

    def values(
        self, params: Params, observation: Tensor, taus: Tensor | None = None, noise: Tensor | None = None
    ) -> Values:
        """Distributions and means at the observations; noisy networks are at their means unless noise is given."""
        z = self.ensemble.forward(params, observation, taus=taus, noise=noise)
        return Values(z, self.estimator.q(z))

    def target_values(self, observation: Tensor, taus: Tensor | None = None, noise: Tensor | None = None) -> Values:
        """What the target networks say: their newest copy, or the mean of the last few (Averaged DQN)."""
        now, count = self.values(self.target_low, observation, taus, noise), self.settings.snapshots
        if count == 1:
            return now
        again = None if noise is None else self.several(noise, count - 1)
        older = self.earlier.forward(self.older, observation, taus=taus, noise=again)
        every = torch.cat((now.z, older)).view(count, *now.z.shape)
        z = self.estimator.mix(every.movedim(0, -2), every.new_full((count,), 1 / count))
        return Values(z, self.estimator.q(z))

    def candidates(self, values: Values, batch: Batch) -> Values:
        """Values at s', those of actions that the environment does not allow there at -inf."""
        return Values(values.z, permitted(values.q, batch.next_allowed))

    @torch.no_grad()
    def targets(self, batch: Batch, draw: Draw) -> tuple[Tensor, Values, Tensor]:
        """Return what predictions are regressed towards, y[member, batch, atom], the target networks at s', and how
        much every sample weighs.
        """
        after, taus, noise = batch.next_observation, draw.taus[1], draw.noise[1]
        target = self.candidates(self.target_values(after, taus, noise), batch)
        online = target
        if self.operator.reads_online:
            online = self.candidates(self.values(self.online_low, after, taus, draw.noise[0]), batch)
        z_next = self.operator(online, target, batch, draw)
        reward = batch.reward
        if self.operator.reads_here:
            here = self.target_values(batch.observation, taus, noise)
            here = Values(here.z, permitted(here.q, batch.allowed))
            reward = reward + self.operator.bonus(here, batch)
        y = self.estimator.backup(z_next, reward, batch.discount, self.bound(batch))
        return y, target, self.weight(z_next, batch)

    def bound(self, batch: Batch) -> Tensor:
        """The ceiling, of each sample where samples are of several runs."""
        return self.ceiling if self.runs == 1 else self.ceiling.repeat_interleave(len(batch.action) // self.runs)

    def weight(self, z_next: Tensor, batch: Batch) -> Tensor:
        """Importance weights, times sigmoid(-certainty x spread of the members' bootstraps) + 1/2 as in SUNRISE."""
        if not self.settings.certainty:
            return batch.weight
        spread = self.estimator.q(z_next).std(0, correction=0)
        return batch.weight * (torch.sigmoid(-self.settings.certainty * spread) + 0.5)

    def loss(self, now: Values, batch: Batch, y: Tensor, draw: Draw) -> tuple[Tensor, Tensor]:
        """Return the weighted loss summed over members that keep a sample, and all losses `[member, batch]`."""
        each = self.each(now.z, batch, y, draw)
        return weighted(each, batch, draw.keep, self.runs), each

    def each(self, z: Tensor, batch: Batch, y: Tensor, draw: Draw) -> Tensor:
        """Return every member's loss of every sample `[member, batch]`; of one mixture of them, `[1, batch]`."""
        taken = self.operator.blend(take(z, batch.action.expand(len(z), -1)), draw)
        return self.estimator.loss(taken, y[: len(taken)], draw.taus[0])

    def update(self, batch: Batch, draw: Draw) -> Update:
        """One gradient step of every member that learns, and the targets' step towards the online networks."""
        beside, auxiliary = Beside(self.device), self.auxiliary
        with beside.reading(batch, draw):
            y, target, weight = self.targets(batch, draw)
            goal = None if auxiliary is None else auxiliary.goal(self.ensemble, self.slow or self.target_low, batch)
        leaves = {name: p.detach().requires_grad_() for name, p in self.online_low.items()}
        if auxiliary is None:
            now, predicted = self.values(leaves, batch.observation, draw.taus[0], draw.noise[0]), None
        else:
            z, predicted = auxiliary.predict(self.ensemble, leaves, batch, draw.taus[0], draw.noise[0])
            now = Values(z, self.estimator.q(z))
        beside.join()
        batch = replace(batch, weight=weight)
        loss, each = self.loss(now, batch, y, draw)
        further: dict[str, Tensor] = {}
        if auxiliary is not None and predicted is not None and goal is not None:
            beyond = auxiliary.loss(predicted, goal, batch, self.runs)  # [member, batch]
            loss = loss + auxiliary.weight * weighted(beyond, batch, draw.keep, self.runs)
            further["auxiliary"] = batch.weight * beyond.detach()
        slopes = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
        gradient = dict(zip(leaves, slopes, strict=True))
        each, q = each.detach(), now.q.detach()
        with torch.no_grad():
            with beside.reading(target, y, each, q, further):
                measures = self.measure(batch, target, y, each, q, **further)
            ensemble, penalties = self.ensemble, self.settings.penalties
            pulls = penalties.gradient(self.online, self.initial, ensemble.network, ensemble.still)
            put_out = self.utility.put_out(self.online_low, batch.observation) if self.utility else {}
            norm = self.step_(gradient | {name: gradient[name] + pull for name, pull in pulls.items()}, draw)
            if self.utility:
                self.utility.add_(put_out, self.online)
            beside.join()
            norm = norm.view(self.runs, -1)
            clipped = (norm > self.settings.clip).float()
            measures |= {"gradient_norm": norm.mean(1).squeeze(), "gradient_clipped": clipped.mean(1).squeeze()}
        return Update(priority=each.mean(0), measures=measures)

    def step_(self, gradient: Params, draw: Draw) -> Tensor:
        """Move online and target parameters; returns each member's gradient norm."""
        settings, active = self.settings, None
        if draw.keep.shape[1]:
            active = draw.keep.view(len(draw.keep), self.runs, -1).amax(2).T.flatten()
        tau = None if settings.hard_copy_every else settings.tau
        if self.flat is not None:
            norm = self.flat.step_(gradient, settings.clip, tau, active, draw.rate)
        else:
            norm = member_norm(gradient)
            scale = clip_scale(norm, settings.clip)
            learning = {name: p for name, p in self.online.items() if name not in self.ensemble.still}
            settings.adam.step_(learning, gradient, self.adam, scale, active, draw.rate)
            if tau is not None:
                polyak_(self.target, self.online, tau)
        if self.auxiliary is not None and self.slow:
            polyak_(self.slow, self.online, 1 - self.auxiliary.momentum)
        if settings.penalties.project:
            settings.penalties.project_(self.online, self.initial, self.ensemble.network)
            self.refresh()
        for name in self.ensemble.network.spectral_layers:
            for params in (self.online, self.target):
                self.ensemble.iterate_(params, name)
        return norm

    def refresh(self) -> None:
        """Bring what forward passes read up to date with `online` and `target`."""
        learner = self if self.whole is None else self.whole
        if learner.flat is not None:
            learner.flat.refresh_()

    def join(self, whole: "Learner", run: int) -> None:
        """Become a run's part of a learner of several, which begins with what this one has."""

        def part(params: Params) -> Params:
            return {name: p.tensor_split(whole.runs)[run] for name, p in params.items()}

        def moved(params: Params, into: Params) -> Params:
            found = part(into)
            for name, p in found.items():
                p.copy_(params[name])
            return found

        self.initial = moved(self.initial, whole.initial)
        self.online, self.target = moved(self.online, whole.online), moved(self.target, whole.target)
        self.online_low, self.target_low = part(whole.online_low), part(whole.target_low)
        self.older, self.slow = moved(self.older, whole.older), moved(self.slow, whole.slow)
        adam = whole.adam
        self.adam = AdamState(part(adam.first), part(adam.second), part(adam.step))
        self.ceiling, self.flat, self.whole = whole.ceiling[run], None, whole
        self.refresh()

    def copies_after(self, updates: int) -> bool:
        """Whether so many updates from now end in a copy of the target, where not every update does."""
        every = self.settings.hard_copy_every
        return every > 1 and (self.updates + updates) % every == 0

    def count(self) -> None:
        """Count an update, and copy the target network where hard copies are due: the host's part of a step."""
        self.updates += 1
        every = self.settings.hard_copy_every
        if every and self.updates % every == 0:
            self.keep_snapshot()
            polyak_(self.target, self.online, 1.0)
            self.refresh()

    @torch.no_grad()
    def keep_snapshot(self) -> None:
        """Keep the target that is about to be replaced in place of the oldest kept."""
        older = self.settings.snapshots - 1
        if older:
            place = self.updates // self.settings.hard_copy_every % older
            for name, p in self.target_low.items():
                kept = self.older[name].view(self.runs, older, -1, *p.shape[1:])
                kept[:, place].copy_(p.view(self.runs, -1, *p.shape[1:]))

    def measure(
        self, batch: Batch, target: Values, y: Tensor, each: Tensor, q: Tensor, **further: Tensor
    ) -> dict[str, Tensor]:
        """Summarise the update and what else is to be averaged; `same_action` is the paper's Fig. 1 statistic, before
        any masking.
        """
        taken = q.gather(2, batch.action.expand(q.shape[0], -1)[..., None])
        rewarded = batch.rewarded
        same = target.q.mean(0).argmax(-1) == batch.action
        flags = torch.stack((same, rewarded, same & rewarded)).float()  # a GPU joins what is of one kind at once
        every = {
            "loss": batch.weight * each,
            "q_taken": taken[..., 0],
            "q_max": permitted(q, batch.allowed).max(-1).values,
            "q_spread": q.std(0, correction=0).T,
            "target": self.estimator.value(y),
            "clipped": self.estimator.held(y, self.bound(batch)),
            "same_action": flags[0],
            "rewarded": flags[1],
            "same_action_and_rewarded": flags[2],
            **further,
        }  # the batch comes last
        return dict(zip(every, means(list(every.values()), self.runs), strict=True))


def means(several: Sequence[Tensor], runs: int = 1) -> tuple[Tensor, ...]:
    """The mean of each tensor: four launches, however many there are.

    Where the last dimension is the samples of several runs, one run after another, the mean of each run, `[run]`.
    """
    own, share = _shares(tuple(each.numel() // runs for each in several), several[0].device)
    if runs == 1:
        joined = torch.cat([each.flatten() for each in several])
    else:
        own, share = own[:, None], share[:, None]
        parts = [each.reshape(*each.shape[:-1], runs, -1).movedim(-2, 0) for each in several]
        joined = torch.cat([part.flatten(1) for part in parts], 1)
    return (torch.where(own, joined, 0.0).sum(-1) * share).unbind()  # where, so that what is infinite stays alone


@cache
def _shares(sizes: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Whose each number is, one tensor behind the other, `[tensor, number]`, and what it counts in its mean."""
    which = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    own, share = which == torch.arange(len(sizes))[:, None], 1 / torch.tensor(sizes, dtype=torch.float32)
    return own.to(device), share.to(device)


def weighted(each: Tensor, batch: Batch, keep: Tensor, runs: int = 1) -> Tensor:
    """Return the loss summed over members that keep a sample, weighted, and averaged over the batch of a run."""
    kept = each * keep[: len(each)] if keep.shape[1] else each
    loss = (batch.weight * kept.sum(0)).mean()
    return loss if runs == 1 else runs * loss
