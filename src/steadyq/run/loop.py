"""Take a recipe through its run folder: start or continue, checkpoint, stop on a signal, evaluate, finish."""

import contextlib
import gc
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from steadyq import envs
from steadyq.build import check_memory, device_for, draw_layout, ensemble_for, learner_for, work
from steadyq.device.capture import Captured
from steadyq.device.cpu import prepare_process, threads_for
from steadyq.envs import BadEnvironment, EnvSpec
from steadyq.errors import UserError, one_line, out_of_memory
from steadyq.fields import flatten
from steadyq.monitor.verdict import Alarms
from steadyq.recipe import Recipe
from steadyq.run.evaluate import play_games, random_policy
from steadyq.run.folder import RunFolder, default_path
from steadyq.run.progress import Display
from steadyq.run.sinks import Sinks, wandb_module
from steadyq.run.step import Diverged, Training, final_result
from steadyq.run.writer import Busy, Checkpoint, Writer, begin
from steadyq.scores.random_policy import stored
from steadyq.value.shapes import Batch, Future


class Interrupted(RuntimeError):
    """The run was stopped by a signal; its state is saved."""


def train(
    recipe: Recipe,
    *,
    steps: int | None = None,
    seed: int | None = None,
    run: Path | str | None = None,
    display: Display | None = None,
    verify: bool | None = None,
) -> RunFolder:
    """Train the recipe in its run folder, continuing what is there, and evaluate it; returns the folder.

    A finished run is returned as it is; `verify=False` continues without comparing what is there with its digests.
    Raises `UserError` before anything is written if the recipe or the folder cannot work, `Interrupted` after a signal
    and `Diverged` when a value stops being finite, both with the state saved.
    """
    if not isinstance(recipe, Recipe):
        raise UserError(f"train takes a recipe, such as presets.steady('CartPole-v1'), got {recipe!r}")
    changes = {name: value for name, value in (("steps", steps), ("seed", seed)) if value is not None}
    recipe = recipe.override(changes)
    folder = RunFolder(run if run is not None else default_path(recipe), verify)
    folder.check(recipe)
    display = display or Display()
    if folder.result is not None:
        display.note(f"already finished: {folder.path} (result.json is there; remove the folder to train again)")
        tidy(folder, recipe)
        return folder
    if (folder.path / "diverged").is_dir():
        raise UserError(f"{folder.path} diverged in an earlier run (see its events.jsonl): choose another --run folder")
    device_for(recipe)
    if recipe.record.wandb:
        wandb_module()
    spec = envs.spec(recipe.env, recipe.protocol)
    check_memory(recipe, spec)
    ensemble = ensemble_for(recipe, spec)
    prepare_process(threads_for(work(ensemble, recipe.replay.batch), recipe.compute.threads))
    writer = begin(folder, recipe)
    try:
        _run(recipe, writer, display)
    finally:
        writer.close()
    return folder


def _run(recipe: Recipe, writer: Writer, display: Display) -> None:
    saved = writer.load()
    gc.collect()  # replay and graphs of an earlier run in this process
    training = Training(recipe, writer)
    how = training.computes()
    with ExitStack() as open_things:
        open_things.callback(training.env.close)
        if saved is None:
            training.start()
            writer.event("start", 0, **how)
        else:
            _restore(training, saved, writer)
            writer.event("resume", training.step_count, **how)
            display.note(f"continuing at step {training.step_count:,} of {recipe.steps:,}")
            if lost := training.env.abandoned():
                writer.event("abandoned", training.step_count, lanes=lost)
                display.note(
                    f"{recipe.env} does not show again what it showed, from the same seed and actions: the running "
                    f"game is cut and another begins, so the run is not what it would have been uninterrupted (all "
                    f"that is random must come from reset(seed=...))"
                )
        sinks = Sinks(recipe, writer.path, training.step_count)
        open_things.callback(sinks.close)
        with stop_requests() as stop, display.live(recipe.steps):
            _loop(training, writer, display, sinks, stop)
        writer.save(training.checkpoint(), training.step_count)
        with display.evaluating(recipe.evaluation.episodes) as progress:
            try:
                result = final_result(training, progress)
            except BadEnvironment as error:
                raise BadEnvironment(
                    f"{error}; all {recipe.steps:,} steps are trained and saved: mend it and run the same command to "
                    f"evaluate"
                ) from error
        sinks.finish(result)
    writer.finish(result)
    if not recipe.record.keep_replay:
        writer.drop_replay()
    display.finished(result)


def tidy(folder: RunFolder, recipe: Recipe) -> None:
    """Drop the replay buffer of a finished run, if a kill between its result and this left it there."""
    left = any((checkpoint / "replay.safetensors").exists() for checkpoint in folder.checkpoints())
    if left and not recipe.record.keep_replay:
        with contextlib.suppress(Busy), contextlib.closing(begin(folder, recipe)) as writer:
            writer.drop_replay()


def _restore(training: Training, saved: Checkpoint, writer: Writer) -> None:
    """Put the state back; where files without digests hold something else, that is one line."""
    try:
        for name in ("step", "updates", "games", "resets"):
            if type(saved.plain[name]) is not int:
                raise TypeError(f"{name} is no whole number")
        training.restore(saved)
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        if out_of_memory(error):
            raise
        newest, why = writer.folder.checkpoints()[-1], one_line(f"{type(error).__name__}: {error}")
        raise UserError(f"{newest} is damaged, or of another run: its state cannot be put back ({why})") from error


def _loop(training: Training, writer: Writer, display: Display, sinks: Sinks, stop: threading.Event) -> None:
    recipe = training.recipe
    every = recipe.record.checkpoint_every
    alarms = Alarms(writer.folder.diagnostics(), settings=flatten(recipe.to_dict()))
    while training.step_count < recipe.steps:
        before = training.step_count
        try:
            row = training.step()
            due = before // every != training.step_count // every
            if due or stop.is_set() or training.step_count >= recipe.steps:
                training.means()  # what is saved is finite
        except Diverged as error:
            writer.event("diverged", training.step_count, message=str(error))
            writer.save(training.checkpoint(), training.step_count, into="diverged")
            raise Diverged(f"{error}; state saved in {writer.path}/diverged") from None
        except BadEnvironment as error:
            training.means()  # what is saved is finite
            writer.event("environment", training.step_count, message=str(error))
            writer.save(training.checkpoint(), training.step_count)
            raise BadEnvironment(
                f"{error}; saved at step {training.step_count:,}: mend it and run the same command to continue"
            ) from error
        if row is not None:
            sinks.write(row)
        display.step(training, row)
        for finding in alarms.add(training.diagnosed) if training.diagnosed else ():
            display.note(f"alarm at step {training.step_count:,}: {finding.words()}; {finding.advice()}")
        if due:
            writer.save(training.checkpoint(), training.step_count)
        if stop.is_set() or display.gone:
            writer.save(training.checkpoint(), training.step_count)
            raise Interrupted(f"stopped at step {training.step_count:,}, saved; run the same command to continue")


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
        observation = torch.randint(0, 2, (batch_size, *spec.observation_shape), device=device).float()
        zeros = torch.zeros(batch_size, dtype=torch.int64, device=device)
        ones = torch.ones(batch_size, device=device)
        batch = Batch(observation, zeros, ones, ones, observation, ones, zeros, zeros, ones > 0)
        if steps := recipe.auxiliary.future:
            ahead = (part.expand(steps, *part.shape) for part in (observation, zeros, ones > 0))
            batch = replace(batch, future=Future(*ahead))
        layout = replace(draw_layout(recipe, spec), members=members, batch=batch_size, keep=0, augmented=False)
        draw = layout.plain(device)
        update = Captured(lambda _: learner.update(batch, draw).priority, device)
        best = float("inf")
        for _ in range(3 if device.type == "cpu" else Captured.warm_calls + 3):
            start = time.perf_counter()
            float(update(ones).sum())
            best = min(best, time.perf_counter() - start)
        return best

    members, batch_size = recipe.ensemble.members, recipe.replay.batch
    part = min(batch_size, 4)
    guess = timed(1, part) * members * batch_size / part
    return timed(members, batch_size) if guess < 1.0 else guess
