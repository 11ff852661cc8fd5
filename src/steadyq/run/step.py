"""The training loop: act, store, learn, regulate, measure, record."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from steadyq import envs
from steadyq.agent import Agent
from steadyq.build import (
    acting_for,
    compiled_for,
    computing,
    device_for,
    estimator_for,
    learner_for,
    regulation_for,
    ring_for,
)
from steadyq.device.capture import Captured, Readback, to_device
from steadyq.envs.vector import Step
from steadyq.errors import UserError
from steadyq.monitor.verdict import findings
from steadyq.monitor.watch import Watch, activation_scores
from steadyq.recipe import Recipe
from steadyq.replay.episodes import fill
from steadyq.replay.minari import Dataset
from steadyq.replay.ring import Part, Ring
from steadyq.run.callbacks import FinishedGame
from steadyq.run.explore import EpsilonGreedy, Values
from steadyq.run.progress import mean_of_last
from steadyq.run.update import Draws, Learning
from steadyq.run.writer import Checkpoint, Writer
from steadyq.schedule import Schedule
from steadyq.value.ceiling import Ceiling
from steadyq.value.operators import order_for
from steadyq.value.regulation import Evidence, spike_ratios
from steadyq.value.shapes import Params

AUTO_HORIZON = 1000
"""Steps over which `operator.forbid auto` averages how often experience is rewarded."""

SCORED_STATES = 64
"""Transitions on which units are scored where a regulation reads them."""

TWICE_COPIED = 2**30
"""Bytes of a replay buffer up to which storing is compiled: it is copied twice while a program is tried."""


class Diverged(RuntimeError):
    """A loss or value stopped being finite."""


class Training:
    """All state of one run, one `step` at a time."""

    def __init__(self, recipe: Recipe, writer: Writer) -> None:
        self.recipe, self.writer = recipe, writer
        self.device = device_for(recipe)
        self.offline = bool(recipe.replay.dataset)
        self.env = envs.make(recipe.env, recipe.protocol, seed=recipe.seed, lanes=1 if self.offline else None)
        self.spec = self.env.spec
        self.generator = torch.Generator().manual_seed(recipe.seed)  # initial parameters and resets
        self.rng = np.random.default_rng(recipe.seed)  # exploration, replay draws, exchange orders
        self.learner = learner_for(recipe, self.spec, self.generator, self.device)
        ring = ring_for(recipe, self.spec, self.device)
        self.ring: Ring | Part = ring
        self.regulation = regulation_for(recipe)
        self.ceiling = Ceiling(self.spec.lanes, Schedule.of(recipe.optim.gamma).largest)
        self.watch = self._watch()
        self.diagnosed: dict[str, Any] | None = None  # the diagnostics of the last step, if they were due in it
        self.planned_reset = False  # whether something was reset as planned in the last step
        self.epsilon = Schedule.of(recipe.explore.epsilon)
        self.step_count = self.frames = self.games = self.resets = 0
        self.judged: list[dict[str, Any]] = []  # rows of diagnostics since the regulation last answered one
        self.allowed: np.ndarray | None = None  # [lane, action] what may be played now, where the environment says so
        self.pending: np.ndarray | None = None  # actions that were decided on and could not be played
        self.score = np.zeros(self.spec.lanes)
        self.game_steps = np.zeros(self.spec.lanes, np.int64)
        self.recent: deque[float] = deque(maxlen=100)  # raw returns of the last finished games
        self.finished: list[FinishedGame] = []  # games that ended in the last step
        self.best: Params | None = None  # what acted best in an evaluation on the way
        self.best_step = 0
        self.held_back = False  # whether an intervention was due at the last step, and was not made
        self.rewarded_share = 0.0
        self.draws = Draws(recipe, self.spec)
        compiled = compiled_for(recipe, self.learner.ensemble)
        self.learning = Learning(self.learner, ring, self.draws.layout, compiled)
        self.captured = self.learning.captured
        self.values = Values(recipe, self.spec, self.learner, ring)
        self.sums, self.member, self.noise = self.learning.sums, self.values.member, self.values.noise
        self._store = storing(ring, compiled)
        self.together = 1  # how many runs are trained as one program with it, itself included
        self.wall = 0.0
        self._clock = time.monotonic()

    def join(self, learning: Learning, values: Values, place: int) -> None:
        """Become a part of what learns and acts for several runs; its own is given up."""
        lanes, members = self.spec.lanes, self.learner.ensemble.members
        self.learner.join(learning.learner, place)
        self.ring, self.sums, self.captured = Part(learning.ring, place), learning.sums[place], learning.captured
        self.member = values.member[place * lanes : (place + 1) * lanes]
        self.noise = values.noise[place * members : (place + 1) * members]
        self.together = learning.learner.runs
        del self.learning, self.values, self._store

    def start(self) -> None:
        """Begin the first games."""
        frame = self.env.reset()
        self.allowed = self.env.allowed()
        if self.offline:
            return self._read_dataset()
        self.ring.begin(frame, self.allowed)
        self._draw_members(np.ones(self.spec.lanes, bool))

    def _read_dataset(self) -> None:
        """Fill the ring with the recipe's dataset: all that this run will ever learn from."""
        dataset, count = Dataset(self.recipe.replay.dataset, self.spec), 0

        def told(reward: np.ndarray, step: Step) -> None:
            nonlocal count
            count += 1
            self._saw(reward, step, count)

        signs = self.recipe.protocol.reward == "sign"
        episodes = (replace(each, reward=np.sign(each.reward)) if signs else each for each in dataset.episodes())
        fill(self.values.ring, episodes, told)
        self.writer.event("dataset", 0, steps=count, episodes=int(dataset.dataset.total_episodes))

    def _saw(self, reward: np.ndarray, step: Step, count: int) -> None:
        """Take the learner's reward of a step into what is known of returns and of how common rewards are."""
        lanes, ended = self.spec.lanes, step.terminated | step.truncated
        if self.recipe.operator.ceiling == "running_max":
            self.ceiling.add(reward, ended)
            self.learner.ceiling.fill_(self.ceiling.value)
        if self.watch:
            self.watch.returns.add(reward, step.terminated, step.truncated)
        share = np.count_nonzero(reward > 0) / lanes
        self.rewarded_share += (share - self.rewarded_share) * lanes / min(count, max(AUTO_HORIZON, lanes))

    def step(self) -> dict[str, Any] | None:
        """One step of every lane, and the learning that is due with it; returns the metrics row if one was due.

        Learning comes after the values are asked for and before the actions are taken, on what is stored by then: a GPU
        learns while the emulators play, and nothing depends on which of the two is faster.
        """
        self.begin()
        if self.offline:
            if self.learns:
                learn_watched([self], self.learn, self.recipe.replay.ratio)
            return self.end()
        action = self.pending
        if action is None:
            q = Readback(self.act_values())
            choose = self.chooser()
            if self.learns:
                learn_watched([self], self.learn, self.recipe.replay.ratio)
            action = choose(q.numpy())
        step = self.play(action)
        reward = self.reward(step)
        self._store(to_device(self.values.ring.packed(action, reward, step), self.device))
        self.played(reward, step)
        return self.end()

    def begin(self) -> None:
        """Count the step that is about to be made."""
        self.diagnosed, self.planned_reset = None, False
        self.step_count += self.spec.lanes

    @property
    def warm(self) -> bool:
        """Whether there is enough to learn from."""
        return self.offline or self.step_count > self.recipe.replay.warmup

    @property
    def learns(self) -> bool:
        """Whether updates are due in this step."""
        return self.warm and self.step_count // self.spec.lanes % self.recipe.replay.every == 0

    def draw_noise(self) -> None:
        """Draw the noise by which noisy networks act, one for all lanes."""
        if self.noise.numel():
            self.noise.copy_(to_device(self.rng.standard_normal(self.noise.shape, np.float32), self.device))

    def act_values(self) -> Tensor:
        """The value by which the ensemble acts, [lane, action]."""
        self.draw_noise()
        return self.values()

    def chooser(self) -> EpsilonGreedy:
        """What chooses by the values, once they are there."""
        share = self.share_random(self.step_count - self.spec.lanes)
        return EpsilonGreedy(self.spec.lanes, self.spec.num_actions, share, self.rng, self.allowed)

    def play(self, action: np.ndarray) -> Step:
        """Play one action in each lane."""
        try:
            step = self.env.step(action)
        except Exception:
            # The last step that was played stays the last: what was learned since is kept with the action to play.
            self.pending, self.step_count = action, self.step_count - self.spec.lanes
            raise
        self.pending, self.allowed = None, step.allowed
        return step

    def reward(self, step: Step) -> np.ndarray:
        """What the learner is told of a step's reward."""
        return np.sign(step.reward) if self.recipe.protocol.reward == "sign" else step.reward

    def played(self, reward: np.ndarray, step: Step) -> None:
        """Take a step, which is stored, into what is counted."""
        self._saw(reward, step, self.step_count)
        self.frames += int(step.frames.sum())
        self._count_games(step.score, step.game_over)

    def end(self) -> dict[str, Any] | None:
        """What is due at the end of a step: a row, which is returned, and what the regulation says."""
        recipe, before = self.recipe, self.step_count - self.spec.lanes
        row = self.record() if before // recipe.record.every != self.step_count // recipe.record.every else None
        if self.warm:
            self.regulate(measuring=self.step_count // self.spec.lanes % recipe.regulation.every == 0)
        return row

    def share_random(self, step: int) -> float:
        """Epsilon after so many steps."""
        return self.epsilon.at(step, self.learner.since_restart)

    def learn(self, updates: int = 1) -> None:
        """Update on fresh batches; what is random in all of them travels to the device at once."""
        drawn = self.drawn(updates)
        for packed in to_device(np.array(drawn), self.device) if drawn else ():
            self.learning(packed)

    def drawn(self, updates: int) -> list[np.ndarray]:
        """What is random or scheduled in the next updates."""
        since = self.learner.since_restart
        return [
            self.draws(self.rng, forbids=self.forbids, step=self.step_count, since=since + done)
            for done in range(updates)
        ]

    @property
    def forbids(self) -> bool:
        """Whether the rewarded action is forbidden now."""
        forbid = self.recipe.operator.forbid
        return forbid == "rewarded" or (forbid == "auto" and self.rewarded_share < 0.5)

    def look(self, watch: Watch) -> None:
        """Take a row of diagnostics, after the update that `watch.before` has seen coming."""
        own, since = np.random.default_rng([self.recipe.seed, self.step_count, 1]), self.learner.since_restart
        draw = self.draws.layout.plain(
            self.device,
            order=order_for(self.recipe.operator.exchange, self.recipe.ensemble.members, own),
            forbid=self.draws.forbids(self.forbids, self.step_count, since),
            horizon=self.draws.horizon(self.step_count, since),
            gamma=self.draws.gamma.at_complement(self.step_count, since),
        )
        self.diagnosed = watch.measure(self.step_count, self.learner, self.ring, draw)
        self.writer.diagnostic(self.diagnosed)

    def regulate(self, measuring: bool) -> None:
        """Measure every monitored layer's spike ratio where that is due, and intervene where the regulation says so.

        At the last step nothing is touched any more: it would be evaluated untrained. What was due is held back, until
        the run is trained longer.
        """
        learner, regulation = self.learner, self.regulation
        if regulation is not None and regulation.trigger.reads_findings and self.diagnosed is not None:
            self.judged.append(self.diagnosed)
        due = (
            regulation is not None
            and regulation.trigger.due(measuring, learner.updates, learner.since_restart)
            and (not regulation.trigger.reads_findings or (self.diagnosed is not None and len(self.found()) > 0))
        )
        self.held_back = due and self.step_count >= self.recipe.steps
        if measuring:
            layers, ratios = self.spikes()
            self.writer.event("spikes", self.step_count, layers=list(layers), ratios=_rounded(ratios))
        if due and not self.held_back:
            self.intervene()

    def spikes(self) -> tuple[tuple[str, ...], Tensor]:
        """The monitored layers and their spike ratios, [member, layer]."""
        layers = self.learner.ensemble.network.monitored
        return layers, spike_ratios(self.learner.online, layers, self.recipe.regulation.quantile).cpu()

    def intervene(self) -> None:
        """Do what the regulation says to the layers as they are."""
        learner, regulation, self.held_back = self.learner, self.regulation, False
        if regulation is None:
            return
        layers, ratios = self.spikes()
        reads_units = regulation.trigger.reads_units or regulation.intervention.reads_units
        scores = self.unit_scores() if reads_units else {}
        found = self.found() if regulation.trigger.reads_findings else ()
        for event in regulation(learner, Evidence(layers, ratios, scores, found, learner.utility), self.generator):
            self.resets += 1
            self.planned_reset = regulation.trigger.scheduled
            self.judged = []  # what stands after this must be seen anew
            self.writer.event("reset", self.step_count, **event)

    def found(self) -> tuple[str, ...]:
        """Findings about parameters that stand with the last row of diagnostics."""
        standing = findings(self.judged)
        return tuple(each.name for each in standing if each.mechanism == "parameter" and each.until is None)

    def unit_scores(self) -> Params:
        """How much each unit puts out beside its layer's others, on transitions drawn uniformly."""
        rng = np.random.default_rng([self.recipe.seed, self.step_count, 2])
        batch = self.ring.uniformly(SCORED_STATES, rng, self.draws.layout.plain(self.device))
        return activation_scores(self.learner.ensemble, self.learner.online_low, batch.observation)

    def record(self) -> dict[str, Any]:
        """Write a row of metrics: means since the last one."""
        means, same = self.means(), dict[str, float | None]()
        if means:
            rewarded = means["rewarded"]
            both = means.pop("same_action_and_rewarded")
            same["same_action_rewarded"] = both / rewarded if rewarded else None
            same["same_action_unrewarded"] = (means["same_action"] - both) / (1 - rewarded) if rewarded < 1 else None
        row: dict[str, Any] = {
            "step": self.step_count,
            "frames": self.frames,
            "updates": self.learner.updates,
            "samples": self.learner.updates * self.recipe.replay.batch,
            "games": self.games,
            "return_10": mean_of_last(10, self.recent),
            "return_100": mean_of_last(100, self.recent),
            "epsilon": self.share_random(self.step_count),
            "ceiling": self.ceiling.value if math.isfinite(self.ceiling.value) else None,
            "resets": self.resets,
            **means,
            **same,
            "seconds": round(self.seconds(), 3),
        }
        self.writer.metric(row)
        self.sums.zero_()
        return row

    def means(self) -> dict[str, float]:
        """What updates measured since the last row; raises if that, or a parameter, is not finite."""
        *totals, count = self.sums.tolist()
        named = zip(self.learner.measured, totals, strict=True)
        means = {name: total / count for name, total in named} if count else {}
        bad = [name for name, p in self.learner.online.items() if not torch.isfinite(p).all()]
        if bad or not all(math.isfinite(value) for value in means.values()):
            raise Diverged(self.diagnosis(means, bad))
        return means

    def diagnosis(self, means: dict[str, float], bad: list[str]) -> str:
        """Name what is not finite, the layer first."""
        layer = [f"parameters of layer {bad[0].rsplit('.', 1)[0]!r}"] if bad else []
        measures = ", ".join(name for name, value in means.items() if not math.isfinite(value))
        where = " and ".join([*layer, *([measures] if measures else [])])
        every = self.recipe.record.every
        return f"not finite: {where}, between steps {max(0, self.step_count - every)} and {self.step_count}"

    def seconds(self) -> float:
        """Training time so far, earlier parts of a continued run included."""
        now = time.monotonic()
        self.wall += now - self._clock
        self._clock = now
        return self.wall

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within the block time passes that is not training."""
        self.seconds()
        yield
        self._clock = time.monotonic()

    def _watch(self) -> Watch | None:
        section, gamma = self.recipe.monitor, Schedule.of(self.recipe.optim.gamma).largest
        if section.every == 0:
            return None
        return Watch(
            every=section.every, batch=section.batch, seed=self.recipe.seed, lanes=self.spec.lanes, gamma=gamma
        )

    def _count_games(self, score: np.ndarray, game_over: np.ndarray) -> None:
        self.score += score
        self.game_steps += 1
        self.finished.clear()
        if not game_over.any():
            return
        for lane in np.flatnonzero(game_over):
            self.games += 1
            game = FinishedGame(self.step_count, int(lane), float(self.score[lane]), int(self.game_steps[lane]))
            self.recent.append(game.score)
            self.finished.append(game)
            self.writer.event("game", game.step, lane=game.lane, score=game.score, steps=game.steps)
            self.score[lane], self.game_steps[lane] = 0.0, 0
        self._draw_members(game_over)

    def _draw_members(self, lanes: np.ndarray) -> None:
        """Where one member acts for a whole game, draw it for the lanes that begin one."""
        if self.recipe.ensemble.act == "member" and lanes.any():
            drawn = self.rng.integers(self.recipe.ensemble.members, size=len(lanes))
            self.member.copy_(to_device(np.where(lanes, drawn, self.member.cpu().numpy()), self.device))

    def computes(self) -> dict[str, Any]:
        """Where and how the updates run, and of how many runs together."""
        how: dict[str, Any] = dict(computing(self.learner.ensemble, self.device))
        compiled = {"compiled": True} if self.captured.compiles else {}
        together = {"together": self.together} if self.together > 1 else {}
        return how | compiled | together

    def agent(self) -> Agent:
        """The agent as it acts now."""
        learner, acting = self.learner, acting_for(self.recipe, training=False)
        return Agent(
            learner.ensemble, estimator_for(self.recipe), self._acting_params(), self.spec, self.step_count, acting
        )

    def _acting_params(self) -> Params:
        return self.learner.online if self.recipe.explore.act_with == "online" else self.learner.target

    def keep_best(self) -> None:
        """Keep a copy of the networks that act, as they are now."""
        self.best = {name: p.detach().clone() for name, p in self._acting_params().items()}
        self.best_step = self.step_count

    def checkpoint(self) -> Checkpoint:
        """Everything needed to continue bit for bit."""
        learner = self.learner
        best = {} if self.best is None else {"best": self.best}
        return Checkpoint(
            tensors={
                **best,
                "online": learner.online,
                "target": learner.target,
                "adam_first": learner.adam.first,
                "adam_second": learner.adam.second,
                "adam_step": learner.adam.step,
                **({"snapshots": learner.older} if self.recipe.operator.snapshots > 1 else {}),
                **({"utility": learner.utility.state()} if learner.utility else {}),
                **({"slow": learner.slow} if learner.slow else {}),
                "replay": self.ring.state(),
                "loop": {
                    "generator": self.generator.get_state(),
                    "score": torch.from_numpy(self.score),
                    "game_steps": torch.from_numpy(self.game_steps),
                    "sums": self.sums,
                    "member": self.member,
                },
                "env": {name: torch.from_numpy(array) for name, array in self.env.state().items()},
                "ceiling": {name: torch.from_numpy(array) for name, array in self.ceiling.state().items()},
                "monitor": {
                    name: torch.from_numpy(array) for name, array in (self.watch.state() if self.watch else {}).items()
                },
            },
            plain={
                "step": self.step_count,
                "frames": self.frames,
                "updates": learner.updates,
                "restarted": learner.restarted,
                "games": self.games,
                "resets": self.resets,
                "recent": list(self.recent),
                "rewarded_share": self.rewarded_share,
                "judged": len(self.judged),
                "pending": None if self.pending is None else self.pending.tolist(),
                "rng": self.rng.bit_generator.state,
                "wall": self.seconds(),
                **({} if self.best is None else {"best_step": self.best_step}),
                **({"held_back": True} if self.held_back else {}),
            },
        )

    def restore(self, saved: Checkpoint, ended: bool = False) -> None:
        """Continue from a checkpoint, in place; a run that has `ended` is only evaluated, without replay buffer."""
        learner, tensors, plain = self.learner, saved.tensors, saved.plain
        needed = {"online", "target", "adam_first", "adam_second", "adam_step", "loop", "env", "ceiling"}
        averaged = self.recipe.operator.snapshots > 1
        needed |= {"snapshots"} if averaged else set()
        needed |= {"slow"} if learner.slow else set()
        needed |= {"utility"} if learner.utility else set()
        if missing := needed - tensors.keys():
            newest = self.writer.folder.checkpoints()[-1]
            raise UserError(f"{newest} is damaged: it has no {min(missing)}.safetensors")
        for group, name in (
            (learner.online, "online"),
            (learner.target, "target"),
            (learner.adam.first, "adam_first"),
            (learner.adam.second, "adam_second"),
            (learner.adam.step, "adam_step"),
            *([(learner.older, "snapshots")] if averaged else []),
            *([(learner.utility.state(), "utility")] if learner.utility else []),
            *([(learner.slow, "slow")] if learner.slow else []),
        ):
            if {key: t.shape for key, t in tensors[name].items()} != {key: t.shape for key, t in group.items()}:
                newest = self.writer.folder.checkpoints()[-1]
                raise UserError(f"{newest / name}.safetensors is of another run: it does not fit this recipe")
            for key, tensor in group.items():
                tensor.copy_(tensors[name][key])
        learner.refresh()
        if "replay" in tensors:
            self.ring.restore(tensors["replay"])
        elif plain["step"] < self.recipe.steps and not ended:
            raise UserError(f"{self.writer.path} cannot go on: its checkpoint has no replay buffer any more")
        if "best" in tensors:
            self.best = {name: tensor.to(self.device) for name, tensor in tensors["best"].items()}
            self.best_step = plain["best_step"]
        loop = tensors["loop"]
        self.generator.set_state(loop["generator"])
        self.score[:] = loop["score"].numpy()
        self.game_steps[:] = loop["game_steps"].numpy()
        self.sums.copy_(loop["sums"])
        self.member.copy_(loop.get("member", torch.zeros_like(self.member)))
        known = "replay" in tensors and not self.offline
        shown = self.ring.frame[self.ring.open_slots].cpu().numpy() if known else None
        if self.ring.allowed is not None:
            self.allowed = self.ring.allowed[self.ring.open_slots].cpu().numpy()
        self.env.restore({name: t.numpy() for name, t in tensors["env"].items()}, shown)
        pending = plain.get("pending")
        self.pending = None if pending is None else np.array(pending)
        self.ceiling.restore({name: t.numpy() for name, t in tensors["ceiling"].items()})
        if self.watch and "monitor" in tensors:
            self.watch.restore({name: t.numpy() for name, t in tensors["monitor"].items()})
        self.learner.ceiling.fill_(self.ceiling.value if self.recipe.operator.ceiling != "none" else math.inf)
        self.step_count, learner.updates, self.games = plain["step"], plain["updates"], plain["games"]
        # Checkpoints of older versions did not count the frames of unseen presses.
        self.frames = plain.get("frames", self.step_count * self.spec.frames_per_step)
        self.resets, self.rewarded_share = plain["resets"], plain["rewarded_share"]
        learner.restarted, self.held_back = plain.get("restarted", 0), plain.get("held_back", False)
        count = plain.get("judged", 0)
        self.judged = self.writer.folder.diagnostics()[-count:] if count else []
        self.recent = deque(plain["recent"], self.recent.maxlen)
        self.rng.bit_generator.state = plain["rng"]
        self.wall, self._clock = plain["wall"], time.monotonic()


def storing(ring: Ring, compiled: bool) -> Captured:
    """What stores a step in the ring."""
    return Captured(ring.write, ring.device, compiled and ring.nbytes <= TWICE_COPIED)


def learn_watched(runs: Sequence[Training], learn: Callable[[int], None], updates: int) -> None:
    """Update, with every run's diagnostics around one of the last updates if they are due; they are for all at once."""
    watches = [(run, run.watch) for run in runs if run.watch is not None and run.watch.due(run.step_count)]
    if not watches:
        return learn(updates)
    # Where the last update ends in a hard copy the two networks are the same for a moment: look one update earlier.
    after = int(runs[0].learner.copies_after(updates))
    if after == updates:
        return learn(1)
    learn(updates - 1 - after)
    for run, watch in watches:
        watch.before(run.learner)
    learn(1)
    for run, watch in watches:
        run.look(watch)
    learn(after)


def _rounded(ratios: Tensor) -> list[list[float | None]]:
    """Four decimals; None where JSON has no number."""
    return [[round(value, 4) if math.isfinite(value) else None for value in row] for row in ratios.tolist()]
