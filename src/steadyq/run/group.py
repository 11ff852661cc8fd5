"""Take several runs through their folders as one program, as `loop` takes one."""

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from steadyq import envs
from steadyq.build import check_memory, ensemble_for, work
from steadyq.device.cpu import prepare_process, threads_for
from steadyq.recipe import Recipe
from steadyq.run.folder import RunFolder
from steadyq.run.loop import Interrupted, Session, begin_or_go_on, prepared, stop_requests
from steadyq.run.progress import Display
from steadyq.run.sinks import Sinks, check_sinks
from steadyq.run.together import Together, alike, alone_because
from steadyq.run.writer import begin


class Apart(RuntimeError):
    """Runs cannot be trained together, or not any longer: each goes on alone, from its last checkpoint."""


def reached(folder: RunFolder) -> int:
    """The step of a run's newest checkpoint, from which it would go on."""
    checkpoints = folder.checkpoints()
    return int(checkpoints[-1].name) if checkpoints else 0


def train_together(recipes: Sequence[Recipe], folders: Sequence[Path]) -> None:
    """Train or continue runs that differ in their seed or learning rate alone, and evaluate each.

    Raises `Interrupted` after a signal, with every state saved, and `Apart` where anything else comes between, be it
    the trouble of one of them.
    """
    try:
        _train([RunFolder(folder) for folder in folders], recipes)
    except Interrupted:
        raise
    except Exception as error:
        raise Apart(f"{type(error).__name__}: {error}") from error


def _train(folders: Sequence[RunFolder], recipes: Sequence[Recipe]) -> None:
    first = recipes[0]
    if why := alone_because(first):
        raise Apart(f"a recipe with {why} is trained by itself")
    if any(alike(recipe) != alike(first) for recipe in recipes):
        raise Apart("they differ in more than seed and learning rate")
    for folder, recipe in zip(folders, recipes, strict=True):
        folder.check(recipe)
        if folder.finished(recipe) or (folder.path / "diverged").is_dir():
            raise Apart(f"{folder.path} has come to an end")
        if folder.begun and folder.recipe.steps != recipe.steps:
            raise Apart(f"{folder.path} is to be trained longer")
    if len({reached(folder) for folder in folders}) > 1:
        raise Apart("they are at different steps")
    check_sinks(first)
    spec = envs.spec(first.env, first.protocol)
    check_memory(first, spec, 2 * len(recipes))  # each begins with its own, until they join
    prepare_process(threads_for(work(ensemble_for(first, spec), first.replay.batch), first.compute.threads))
    display = Display()
    with ExitStack() as open_things:
        writers, trainings, sessions = [], [], []
        for folder, recipe in zip(folders, recipes, strict=True):
            writers.append(begin(folder, recipe))
            open_things.callback(writers[-1].close)
            trainings.append(prepared(recipe, writers[-1]))
            open_things.callback(trainings[-1].env.close)
        together = Together(trainings)
        for training, writer in zip(trainings, writers, strict=True):
            begin_or_go_on(training, writer, display)
            if training.pending is not None:
                raise Apart(f"{writer.path} waits for a step that its environment could not make")
            sinks = Sinks(training.recipe, writer.path, training.step_count)
            open_things.callback(sinks.close)
            sessions.append(Session(training, writer, display, sinks, ()))
            if sessions[-1].stopped:
                raise Apart(f"{writer.path} was stopped before its last step")
        with stop_requests() as stop:
            _loop(together, sessions, stop)
        for session in sessions:
            session.conclude()


def _loop(together: Together, sessions: Sequence[Session], stop: threading.Event) -> None:
    first, recipe = together.runs[0], together.recipe
    while first.step_count < recipe.steps:
        before = first.step_count
        for session, row in zip(sessions, together.step(), strict=True):
            session.told(row)
        every = recipe.record.checkpoint_every
        if before // every != first.step_count // every or stop.is_set():
            for session in sessions:
                session.save()
        if stop.is_set():
            raise Interrupted(f"stopped at step {first.step_count:,}, saved; run the same command to continue")
    for session in sessions:  # all of them before the first is evaluated, which takes a while
        session.save()
