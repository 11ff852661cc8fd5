"""Take a recipe through its run folder: start or continue, checkpoint, stop on a signal, evaluate, finish."""

import contextlib
import gc
import math
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn
from weakref import WeakSet

import numpy as np
import torch

from steadyq import envs
from steadyq.build import (
    check_memory,
    compiled_for,
    computing,
    device_for,
    draw_layout,
    ensemble_for,
    learner_for,
    work,
)
from steadyq.device.capture import Captured
from steadyq.device.cpu import prepare_process, threads_for
from steadyq.device.kernels.triton import compiling_ahead
from steadyq.envs import AnyEnv, BadEnvironment, EnvSpec
from steadyq.envs.factories import Wrapping, network_text
from steadyq.errors import UserError, one_line, out_of_memory, shown
from steadyq.fields import flatten
from steadyq.monitor.verdict import Alarms, planned_resets
from steadyq.nets import Ensemble, ModuleEnsemble
from steadyq.presets import recipe_for
from steadyq.recipe import Recipe
from steadyq.replay.minari import Dataset
from steadyq.run.callbacks import Callback, Live
from steadyq.run.evaluate import play_games, random_policy
from steadyq.run.folder import SMALL_REPLAY, RunFolder, default_path
from steadyq.run.interim import Interim
from steadyq.run.progress import Display, Terminal
from steadyq.run.result import final_result
from steadyq.run.sinks import Sinks, check_sinks
from steadyq.run.step import Diverged, Training
from steadyq.run.writer import Busy, Checkpoint, Writer, begin
from steadyq.schedule import Schedule
from steadyq.scores.random_policy import stored
from steadyq.value.shapes import Batch, Future


class Interrupted(RuntimeError):
    """The run was stopped by a signal; its state is saved."""


def train(
    recipe: Recipe | str,
    *,
    env: AnyEnv | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[Wrapping] = (),
    network: Callable[..., Any] | Sequence[str] | None = None,
    options: Mapping[str, Any] | None = None,
    steps: int | None = None,
    seed: int | None = None,
    run: Path | str | None = None,
    callbacks: Sequence[Callback] = (),
    quiet: bool = False,
    display: Display | None = None,
    verify: bool | None = None,
) -> RunFolder:
    """Train the recipe in its run folder, continuing what is there, and evaluate it; returns the folder.

    `recipe` is a recipe, or a preset's name. `env` is an environment's name, or a function or class that makes one,
    called with `env_kwargs`, inside `wrappers` (innermost first); it takes the place of the recipe's. `network` is a
    function of the observation's shape and the number of outputs that returns a `torch.nn.Module` or a description, or
    the layers themselves: `["conv 32 8 4", "linear 128"]`. `options` are
    fields of the recipe, as on the command line: `{"optim.rate": 2e-3}`. `callbacks` are told what happens, and may
    stop the run. Progress is shown unless `quiet`, or on a `display` of your own.

    A finished run is returned as it is; `verify=False` continues without comparing what is there with its digests.
    Raises `UserError` before anything is written if the recipe or the folder cannot work, `Interrupted` after a signal
    and `Diverged` when a value stops being finite, both with the state saved.
    """
    recipe = _resolved(recipe, env, env_kwargs, wrappers)
    changes = {name: value for name, value in (("steps", steps), ("seed", seed)) if value is not None}
    recipe = recipe.override({**_network_options(network), **(options or {}), **changes})
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise UserError(f"callbacks are objects of a class that extends steadyq.Callback; got {shown(callback)}")
    folder = RunFolder(run if run is not None else default_path(recipe), verify)
    folder.check(recipe)
    introducing = display is None and not quiet
    display = display or (Display() if quiet else Terminal())
    if folder.finished(recipe):
        display.note(_finished_already(folder))
        tidy(folder, recipe)
        return folder
    if (folder.path / "diverged").is_dir():
        raise UserError(f"{folder.path} diverged in an earlier run (see its events.jsonl): choose another --run folder")
    device_for(recipe)
    check_sinks(recipe)
    spec = envs.spec(recipe.env, recipe.protocol)
    check_memory(recipe, spec)
    if not folder.checkpoints():  # which hold what was read
        check_dataset(recipe, spec)
    ensemble = ensemble_for(recipe, spec)
    compiled_for(recipe, ensemble)  # raises where it should be and cannot
    if introducing and not folder.begun:
        for line in (*introduction(recipe, spec, ensemble), never_learns(recipe), f"writing to {folder.path}"):
            if line:
                display.note(line)
    prepare_process(threads_for(work(ensemble, recipe.replay.batch), recipe.compute.threads))
    known = folder.recipe.steps if folder.begun else recipe.steps
    _refuse_without_replay(folder, recipe)
    writer = begin(folder, recipe)
    try:
        if recipe.steps > known:
            writer.lengthen(recipe.steps)
            display.note(_going_on(recipe, known))
        _run(recipe, writer, display, callbacks)
    finally:
        writer.close()
    return folder


def _network_options(network: Callable[..., Any] | Sequence[str] | None) -> dict[str, Any]:
    """An own network as fields of a recipe."""
    if network is None:
        return {}
    if isinstance(network, list | tuple):
        return {"network.kind": "layers", "network.layers": tuple(network)}
    return {"network.kind": "own", "network.factory": network_text(network)}


def _resolved(
    recipe: Any,
    env: AnyEnv | None,
    env_kwargs: Mapping[str, Any] | None,
    wrappers: Sequence[Wrapping],
) -> Recipe:
    """The recipe that is meant, on the environment that is meant."""
    if isinstance(recipe, str):
        if env is None:
            raise UserError(f"train({recipe!r}) needs an environment: env='CartPole-v1', or what makes one")
        return recipe_for(recipe, envs.environment(env, env_kwargs, wrappers))
    if not isinstance(recipe, Recipe):
        said = "train takes a preset's name, or a recipe such as presets.steady('CartPole-v1')"
        raise UserError(f"{said}; got {shown(recipe)}")
    if env is None and not env_kwargs and not wrappers:
        return recipe
    own = recipe.protocol
    known = envs.Environment(recipe.env, own.kwargs, own.wrappers) if env is None else env
    made = envs.environment(known, env_kwargs, wrappers)
    name = envs.canonical(made)
    if envs.protocol_for(name).backend != own.backend:
        raise UserError(f"the recipe is for {recipe.env}, not for {name}: give a preset's name, or make it for {name}")
    return replace(recipe, env=name, protocol=replace(own, kwargs=made.kwargs, wrappers=made.wrappers))


def _finished_already(folder: RunFolder) -> str:
    result = folder.result or {}
    if why := result.get("stopped"):
        return f"already finished: {folder.path} stopped at step {result['steps']:,} ({why}); more steps change nothing"
    return f"already finished: {folder.path} (--steps above {result['steps']} trains it longer)"


def _refuse_without_replay(folder: RunFolder, recipe: Recipe) -> None:
    """Raise if the run has ended without its replay buffer, and is asked for more."""
    checkpoints = folder.checkpoints()
    if folder.result is not None and checkpoints and not (checkpoints[-1] / "replay.safetensors").exists():
        raise UserError(
            f"{folder.path} cannot be trained longer: it finished without its replay buffer, which is kept up to "
            f"{SMALL_REPLAY // 2**20} MB, or with --record.keep-replay; choose another --run folder to begin again"
        )


def _going_on(recipe: Recipe, before: int) -> str:
    """What is said of a run that is trained longer: schedules do not know how long it is."""
    names = ("explore.epsilon", "optim.rate", "optim.gamma", "replay.n_step")
    fields = flatten(recipe.to_dict())
    fixed = [f"{name} {fields[name]}" for name in names if not Schedule.of(fields[name]).constant]
    regulation = recipe.regulation
    if regulation.trigger == "periodic" and regulation.last and regulation.intervention != "none":
        fixed.append(f"planned resets until update {regulation.last:,}")
    said = f"; what is scheduled stays as it was ({', '.join(fixed)})" if fixed else ""
    return f"training longer: {recipe.steps:,} steps in place of {before:,}{said}"


def introduction(recipe: Recipe, spec: EnvSpec, ensemble: Ensemble) -> list[str]:
    """What is going to be trained, where and on what, in lines."""
    size = sum(math.prod(shape[1:]) for shape in ensemble.shapes().values())
    masks = ", of which the environment says what may be played" * spec.masked
    where, operator = computing(ensemble, device_for(recipe)), recipe.operator
    noise = f", noisy {recipe.network.noisy:g}" if recipe.network.noisy else ""
    compiled = ", compiled (the first time takes half a minute)" if compiled_for(recipe, ensemble) else ""
    seen = (
        [f"  {spec.seen.rule}; {spec.num_actions} actions{spec.actions.rule if spec.actions else ''}{masks}"]
        if spec.seen
        else []
    )
    return [
        f"{recipe.env}  preset {recipe.preset}, scale {recipe.scale}, seed {recipe.seed}",
        *(f"  {line}" for line in recipe.protocol.lines()),
        *seen,
        *([f"  learns from {recipe.replay.dataset} and plays nothing"] if recipe.replay.dataset else []),
        f"network {recipe.network.kind}: {recipe.ensemble.members} x {size:,} parameters{noise}; "
        f"operator {operator.kind}, exchange {operator.exchange}, forbid {operator.forbid}, "
        f"ceiling {operator.ceiling}; estimator {recipe.estimator.kind}; auxiliary loss {recipe.auxiliary.kind}; "
        f"resets {recipe.regulation.intervention}",
        f"computing on {where['device']}: form {where['form']}, {where['precision']}{compiled}",
        *([_one_by_one(recipe, spec)] if isinstance(ensemble, ModuleEnsemble) and recipe.ensemble.members > 1 else []),
    ]


def never_learns(recipe: Recipe) -> str:
    """What is said of a run that is too short to learn anything; nothing where it is not."""
    if recipe.updates:
        return ""
    warmup, steps = recipe.replay.warmup, recipe.steps
    return f"note: nothing will be learned: learning begins after {warmup:,} steps (replay.warmup), of {steps:,}"


def check_dataset(recipe: Recipe, spec: EnvSpec) -> None:
    """Raise if the recipe's dataset does not fit the environment, or the replay buffer."""
    if not recipe.replay.dataset:
        return
    dataset, replay = Dataset(recipe.replay.dataset, spec), recipe.replay
    if dataset.slots > replay.capacity:
        raise UserError(
            f"{replay.dataset} has {dataset.steps:,} steps: make replay.capacity at least {dataset.slots} for them"
        )
    if dataset.steps < replay.batch + replay.largest_n:
        raise UserError(f"{replay.dataset} has {dataset.steps:,} steps, and replay.batch is {replay.batch}")


def _one_by_one(recipe: Recipe, spec: EnvSpec) -> str:
    """What it costs that the members of a module run one after another."""
    one, every = (
        seconds_per_update(recipe.override({"ensemble.members": members}), spec)
        for members in (1, recipe.ensemble.members)
    )
    return (
        f"{recipe.network.factory} is a module: its {recipe.ensemble.members} members run one after another, "
        f"{every * 1e3:.1f} ms an update where one takes {one * 1e3:.1f}; described in layers they run together"
    )


_EARLIER: WeakSet[Training] = WeakSet()
"""Runs of this process that are still in memory."""


def _run(recipe: Recipe, writer: Writer, display: Display, callbacks: Sequence[Callback]) -> None:
    training = prepared(recipe, writer)
    with ExitStack() as open_things:
        open_things.callback(training.env.close)
        begin_or_go_on(training, writer, display)
        sinks = Sinks(recipe, writer.path, training.step_count)
        open_things.callback(sinks.close)
        session = Session(training, writer, display, sinks, callbacks)
        with stop_requests() as stop, display.live(recipe.steps):
            session.loop(stop)
        session.conclude()


def prepared(recipe: Recipe, writer: Writer) -> Training:
    """A run's state before it begins or goes on, with the memory of earlier runs given back."""
    if device_for(recipe).type == "cuda" or sum(earlier.ring.nbytes for earlier in _EARLIER) > SMALL_REPLAY:
        gc.collect()  # replay and graphs of earlier runs in this process
    training = Training(recipe, writer)
    _EARLIER.add(training)
    return training


def begin_or_go_on(training: Training, writer: Writer, display: Display) -> None:
    """Begin the run, or go on from its newest checkpoint."""
    log, recipe, how = writer.path / "events.jsonl", training.recipe, training.computes()
    begun = log.is_file() and log.stat().st_size > 0
    saved = writer.load()
    if saved is None:
        if begun:
            display.note("stopped before its first checkpoint: from the beginning")
        training.start()
        writer.event("start", 0, **how)
        return
    _restore(training, saved, writer)
    writer.event("resume", training.step_count, **how)
    display.note(f"continuing at step {training.step_count:,} of {recipe.steps:,}")
    if training.held_back and training.step_count < recipe.steps:
        training.intervene()  # as it would have been, had the run been asked for all its steps at first
    if lost := training.env.abandoned():
        writer.event("abandoned", training.step_count, lanes=lost)
        display.note(
            f"{recipe.env} does not show again what it showed, from the same seed and actions: the running "
            f"game is cut and another begins, so the run is not what it would have been uninterrupted (all "
            f"that is random must come from reset(seed=...))"
        )


def tidy(folder: RunFolder, recipe: Recipe) -> None:
    """Drop the replay buffer of a finished run, if a kill between its result and this left it there."""
    if folder.large_replays() and not recipe.record.keep_replay:
        with contextlib.suppress(Busy), contextlib.closing(begin(folder, recipe)) as writer:
            writer.drop_replay()


def _restore(training: Training, saved: Checkpoint, writer: Writer) -> None:
    """Put the state back; where files without digests hold something else, that is one line."""
    try:
        for name in ("step", "updates", "games", "resets"):
            if type(saved.plain[name]) is not int:
                raise TypeError(f"{name} is no whole number")
        training.restore(saved, ended=stopped_early(writer.folder.events()) is not None)
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        if out_of_memory(error):
            raise
        newest, why = writer.folder.checkpoints()[-1], one_line(f"{type(error).__name__}: {error}")
        raise UserError(f"{newest} is damaged, or of another run: its state cannot be put back ({why})") from error


def stopped_early(events: Iterable[Mapping[str, Any]]) -> str | None:
    """Why a run ended before its last step, if it did."""
    return next((str(event["message"]) for event in events if event["event"] == "stopped"), None)


class Session:
    """The loop of one process over a run: steps, what is due between them, and what ends it."""

    def __init__(
        self, training: Training, writer: Writer, display: Display, sinks: Sinks, callbacks: Sequence[Callback]
    ) -> None:
        self.training, self.writer, self.display, self.sinks = training, writer, display, sinks
        self.recipe, self.callbacks = training.recipe, callbacks
        events = writer.folder.events()
        self.interim = Interim(self.recipe, events)
        self.alarms = Alarms(writer.folder.diagnostics(), recipe=self.recipe, planned=planned_resets(events))
        self.live = Live(training, writer.path)
        self.stopped = stopped_early(events)

    def said(self) -> dict[str, Any]:
        """What the result says of evaluations on the way and of an early end."""
        return {**self.interim.summary(), **({"stopped": self.stopped} if self.stopped else {})}

    def loop(self, stop: threading.Event) -> None:
        """Train until all steps are made or something says that it is enough; raises when asked to stop for now."""
        training, every = self.training, self.recipe.record.checkpoint_every
        self._between(stop)  # what was due when the run was stopped
        while not self.stopped and training.step_count < self.recipe.steps:
            before = training.step_count
            self._step()
            self._between(stop)
            due = before // every != training.step_count // every
            if due or self.stopped or stop.is_set() or self.display.gone:
                self.save()
            if (stop.is_set() or self.display.gone) and not self.stopped:
                raise Interrupted(f"stopped at step {training.step_count:,}, saved; run the same command to continue")
        self._finite()

    def save(self) -> None:
        """Write a checkpoint, of what is finite."""
        self._finite()
        self.writer.save(self.training.checkpoint(), self.training.step_count)

    def conclude(self) -> None:
        """Save and evaluate what the loop has trained, and write the result."""
        training, writer, display, recipe = self.training, self.writer, self.display, self.recipe
        writer.save(training.checkpoint(), training.step_count)
        if self.stopped:
            display.note(f"stopped at step {training.step_count:,} of {recipe.steps:,}: {self.stopped}")
        with display.evaluating(recipe.evaluation.episodes) as progress:
            try:
                result = final_result(training, self.said(), progress)
            except BadEnvironment as error:
                raise BadEnvironment(
                    f"{error}; all {training.step_count:,} steps are trained and saved: mend it and run the same "
                    f"command to evaluate"
                ) from error
        self.sinks.finish(result)
        writer.finish(result)
        if not recipe.record.keep_replay:
            writer.drop_replay()
        display.finished(result)

    def _step(self) -> None:
        """One step, and everybody is told."""
        training, writer = self.training, self.writer
        try:
            row = training.step()
        except Diverged as error:
            self._diverged(error)
        except BadEnvironment as error:
            self._finite()
            writer.event("environment", training.step_count, message=str(error))
            writer.save(training.checkpoint(), training.step_count)
            raise BadEnvironment(
                f"{error}; saved at step {training.step_count:,}: mend it and run the same command to continue"
            ) from error
        self.told(row)

    def told(self, row: dict[str, Any] | None) -> None:
        """Tell everybody of a step that was made."""
        training = self.training
        if row is not None:
            self.sinks.write(row)
        if training.diagnosed is not None:
            self.sinks.diagnosed(training.diagnosed)
        self.display.step(training, row)
        if training.planned_reset:
            self.alarms.planned.append(training.step_count)
        for finding in self.alarms.add(training.diagnosed) if training.diagnosed else ():
            self.display.note(f"alarm at step {training.step_count:,}: {finding.words()}; {finding.advice()}")
        if self.callbacks:
            self._tell(row)

    def _tell(self, row: dict[str, Any] | None) -> None:
        """Tell the callbacks of a step."""
        with self._saving():
            for callback in self.callbacks:
                callback.on_step(self.live)
                for game in self.training.finished:
                    callback.on_game(self.live, game)
                if row is not None:
                    callback.on_row(self.live, row)

    @contextmanager
    def _saving(self) -> Iterator[None]:
        """Within the block somebody's callbacks are called: what one of them raises loses nothing."""
        try:
            yield
        except Exception:
            self._finite()
            self.writer.save(self.training.checkpoint(), self.training.step_count)
            raise

    def _between(self, stop: threading.Event) -> None:
        """Evaluate if that is due, and write down why the run ends early if it does."""
        training = self.training
        if self.interim.due(training.step_count) and not self.stopped and not training.held_back:
            self._evaluate(stop)
        why = self.live.stopped or self.interim.enough
        if why and not self.stopped:
            self.stopped = why
            self.writer.event("stopped", training.step_count, message=why)

    def _evaluate(self, stop: threading.Event) -> None:
        training, games = self.training, self.recipe.evaluation.interim_episodes

        def asked_to_stop(played: int) -> None:
            if stop.is_set():
                raise _StopNow

        self._finite()
        try:
            with training.paused():
                found = self.interim.play(training.agent(), training.step_count, asked_to_stop)
        except (_StopNow, BadEnvironment) as reason:
            self.writer.save(training.checkpoint(), training.step_count)
            if isinstance(reason, BadEnvironment):
                raise BadEnvironment(
                    f"{reason}; saved at step {training.step_count:,}: mend it and run the same command to continue"
                ) from reason
            raise Interrupted(
                f"stopped at step {training.step_count:,}, saved; run the same command to continue"
            ) from None
        if found.best:
            training.keep_best()
        words = {name: value for name, value in found._asdict().items() if name != "step"}
        self.writer.event("evaluation", found.step, **words)
        self.sinks.write({"step": found.step, "evaluation/mean_return": found.mean_return})
        self.display.note(
            f"evaluation at step {found.step:,}: mean return {found.mean_return:.2f} over {games} games"
            + (", the best so far" if found.best else f" (best {self.interim.best:.2f})")
        )
        with self._saving():
            for callback in self.callbacks:
                callback.on_evaluation(self.live, found)

    def _finite(self) -> None:
        """What is saved or evaluated is finite, or the run has diverged."""
        try:
            self.training.means()
        except Diverged as error:
            self._diverged(error)

    def _diverged(self, error: Diverged) -> NoReturn:
        training, writer = self.training, self.writer
        writer.event("diverged", training.step_count, message=str(error))
        writer.save(training.checkpoint(), training.step_count, into="diverged")
        raise Diverged(f"{error}; state saved in {writer.path}/diverged") from None


class _StopNow(Exception):
    """An evaluation on the way is broken off."""


@contextmanager
def stop_requests() -> Iterator[threading.Event]:
    """Turn Ctrl-C, SIGTERM and SIGHUP into a request that the loop answers between steps; a second is immediate.

    SIGHUP, which says that the terminal was closed, stays ignored where `nohup` has it ignored.
    """
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def request(number: int, frame: Any) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    heard = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, request) for number in heard}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def rewarded_share(recipe: Recipe, games: int = 2) -> float:
    """Share of rewarded steps under a random policy: where it is near one, forbidding dictates the bootstrap."""
    if (known := stored(recipe.env, recipe.protocol.rules)) is not None:
        return known.rewarded
    spec = envs.spec(recipe.env, recipe.protocol)
    policy = random_policy(spec.num_actions, recipe.seed)
    played = play_games(policy, recipe.env, recipe.protocol, episodes=games, seed=recipe.seed)
    return float(np.average([game.rewarded for game in played], weights=[game.steps for game in played]))


def seconds_per_update(recipe: Recipe, spec: EnvSpec) -> float:
    """Time a throw-away update on random data: one member on a small batch first, all of it only if that is quick."""
    device = device_for(recipe)
    ensemble = ensemble_for(recipe, spec)
    prepare_process(threads_for(work(ensemble, recipe.replay.batch), recipe.compute.threads))

    def timed(members: int, batch_size: int) -> float:
        learner = learner_for(recipe, spec, torch.Generator().manual_seed(0), device, members)
        dtype = torch.float32 if spec.parts is None else torch.uint8
        observation = torch.randint(0, 2, (batch_size, *spec.observation_shape), device=device).to(dtype)
        zeros = torch.zeros(batch_size, dtype=torch.int64, device=device)
        ones = torch.ones(batch_size, device=device)
        batch = Batch(observation, zeros, ones, ones, observation, ones, zeros, zeros, ones > 0)
        if steps := recipe.auxiliary.future:
            ahead = (part.expand(steps, *part.shape) for part in (observation, zeros, ones > 0))
            batch = replace(batch, future=Future(*ahead))
        layout = replace(
            draw_layout(recipe, spec), members=members, batch=batch_size, keep=0, augmented=False, compared=False
        )
        draw = layout.plain(device)
        if device.type == "cuda":
            with compiling_ahead(device):
                learner.update(batch, draw)
                learner.values(learner.online_low, observation[:1])  # what acts
        update = Captured(lambda _: learner.update(batch, draw).priority, device)
        best = float("inf")
        for _ in range(3 if device.type == "cpu" else Captured.warm_calls + 3):
            start = time.perf_counter()
            float(update(ones).sum())
            best = min(best, time.perf_counter() - start)
        return best

    members, batch_size = recipe.ensemble.members, recipe.replay.batch
    if device.type == "cuda":  # quick whatever it is, and every size is kernels to compile
        return timed(members, batch_size)
    part = min(batch_size, 4)
    guess = (
        timed(1, part) * batch_size / part
    )  # of one member; too much, for its weights move once however many samples
    if guess * members < 1.0:
        return timed(members, batch_size)
    return members * (timed(1, batch_size) if guess < 2.0 else guess)
