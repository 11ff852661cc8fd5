"""Runs killed at random moments, at random steps and in the middle of file operations; all end as if nothing had been.

A run is trained in a forked child, killed, and trained again, until it has finished; then every file that it left is
compared with those of a run that nobody killed. A sweep is killed as a whole, and its runs one by one.
"""

import itertools
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from counting import SMALL, Count, fork, small, wait

from steadyq import RunFolder
from steadyq.recipe import Recipe
from steadyq.run import writer
from steadyq.run.loop import train
from steadyq.run.progress import Display, SafeConsole
from steadyq.run.step import Training
from steadyq.suite.launch import launch
from steadyq.suite.local import LocalProcesses
from steadyq.suite.plan import make_plan
from steadyq.suite.study import Study, read_study

EVERY = 37
"""Steps between checkpoints: neither the rows' nor the games' pace."""

OPERATIONS = ("fsync", "replace", "unlink", "rmdir", "mkdir", "open", "chmod", "truncate")


def kill_runs(backend: str, kills: int, seed: int, place: Path) -> Count:
    """Kill runs of a backend so many times."""
    count, rng = Count(f"kills, {backend}"), random.Random(f"{seed} {backend}")
    recipe = small(backend, **{"record.checkpoint_every": EVERY})
    whole, words = place / f"{backend}-whole", place / f"{backend}.txt"
    began = time.monotonic()
    if wait(fork(lambda: train_counted(recipe, whole), words)):
        count.fail(f"{backend} does not train: {words.read_text()[-300:]}")
        return count
    seconds, operations = time.monotonic() - began, int((place / f"{whole.name}.operations").read_text())
    killed = 0
    for number in itertools.count():
        path = place / f"{backend}-{number}"
        while True:
            how = rng.choice(("moment", "step", "operation", "after operation")) if killed < kills else "none"
            code, at = _one_life(recipe, path, how, rng, seconds, operations, words)
            if code == -signal.SIGKILL:
                killed += 1
                count.add(how)
                try:
                    _read(path)
                except Exception as error:
                    count.fail(f"{backend} killed ({how} {at}), reading: {error!r}")
                continue
            if code:
                count.fail(f"{backend} after kills, the last ({how} {at}): {words.read_text()[-300:]}")
            elif different := differences(whole, path):
                count.fail(f"{backend} continued to another end: {different}")
            break
        shutil.rmtree(path)
        if killed >= kills:
            return count


def _one_life(
    recipe: Recipe, path: Path, how: str, rng: random.Random, seconds: float, operations: int, words: Path
) -> tuple[int, float]:
    """Train until the kill, or to the end; returns the exit code and when the kill was to be."""
    at = {"moment": rng.uniform(0, seconds), "step": rng.randrange(1, recipe.steps), "none": 0}.get(how)
    if at is None:
        at = rng.randrange(operations)

    def work() -> None:
        display = KillAt(int(at)) if how == "step" else Display()
        if "operation" in how:
            watch_operations(dying(int(at), after="after" in how))
        train(recipe, run=path, display=display)

    child = fork(work, words)
    if how == "moment":
        time.sleep(at)
        os.kill(child, signal.SIGKILL)
    return wait(child), at


def train_counted(recipe: Recipe, path: Path) -> None:
    """Train to the end and note how many file operations that took."""
    numbers = itertools.count()
    watch_operations(lambda operate: (next(numbers), operate())[1])
    train(recipe, run=path)
    path.with_name(f"{path.name}.operations").write_text(str(next(numbers)))


def dying(fatal: int, after: bool) -> Callable[[Callable[[], Any]], Any]:
    """Operate, until the fatal operation, at or right after which this process is gone."""
    numbers = itertools.count()

    def watch(operate: Callable[[], Any]) -> Any:
        number = next(numbers)
        if number == fatal and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        done = operate()
        if number == fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    return watch


def watch_operations(watch: Callable[[Callable[[], Any]], Any]) -> None:
    """Let every file operation of this process go through `watch`."""
    for module, name in [(os, name) for name in OPERATIONS] + [(writer, "save_file")]:
        operation = getattr(module, name)

        def watched(*args: Any, operation: Callable[..., Any] = operation, **options: Any) -> Any:
            return watch(lambda: operation(*args, **options))

        setattr(module, name, watched)


class KillAt(Display):
    """Kills its own process at a step."""

    def __init__(self, step: int) -> None:
        self.at = step

    def step(self, training: Training, row: dict[str, Any] | None) -> None:
        if training.step_count >= self.at:
            os.kill(os.getpid(), signal.SIGKILL)


def _read(path: Path) -> None:
    """What a page is made of can be read of a run that was killed."""
    folder = RunFolder(path)
    if folder.begun:
        _ = folder.recipe, folder.metrics(), folder.events(), folder.diagnostics(), folder.result
        if folder.checkpoints():
            folder.weights()


def differences(one: Path, other: Path) -> list[str]:
    """In what two finished runs of one recipe differ, but for clocks and what tells of the interruptions."""
    found = []
    mine, theirs = (RunFolder(path).checkpoints() for path in (one, other))
    if [path.name for path in mine] != [path.name for path in theirs]:
        return [f"checkpoints {[path.name for path in theirs]}"]
    names = {file.name for file in mine[-1].iterdir()} | {file.name for file in theirs[-1].iterdir()}
    for name in sorted(names - {"state.json"}):
        files = [folder[-1] / name for folder in (mine, theirs)]
        if not all(file.exists() for file in files) or files[0].read_bytes() != files[1].read_bytes():
            found.append(name)
    for name in ("metrics", "diagnostics", "events"):
        rows = [getattr(RunFolder(path), name)() for path in (one, other)]
        if _plain(rows[0]) != _plain(rows[1]):
            found.append(f"{name}.jsonl")
    results = [RunFolder(path).result or {} for path in (one, other)]
    kept = ("returns", "random_return", "games", "resets", "updates", "steps", "training_return_10")
    found += [f"result: {name}" for name in kept if results[0].get(name) != results[1].get(name)]
    states = [json.loads((folder[-1] / "state.json").read_text()) for folder in (mine, theirs)]
    clocks = ("wall", "files", "sha256")
    found += [f"state: {name}" for name in states[0] if name not in clocks and states[0][name] != states[1].get(name)]
    strays = {path.name for path in other.iterdir()} - {path.name for path in one.iterdir()}
    return found + sorted(strays)


def _plain(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    kept = [row for row in rows if row.get("event") != "resume"]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in kept]


SWEEP = f"""
games = ["CartPole-v1"]
seeds = 3
[settings]
steps = 800
network.hidden = [8]
record.checkpoint_every = 100
{chr(10).join(f"{name} = {json.dumps(value)}" for name, value in SMALL.items())}
"""


def kill_sweeps(kills: int, seed: int, place: Path) -> Count:
    """Kill a sweep's own process or one of its runs' at random moments, importing included."""
    count, rng = Count("kills, sweep"), random.Random(f"{seed} sweep")
    study = read_study(SWEEP, "sweep")
    alone, words = place / "alone", place / "sweep.txt"
    for entry in make_plan(study, alone).entries:
        if wait(fork(lambda entry=entry: train(entry.run.recipe, run=entry.folder.path) and None, words)):
            count.fail(f"{entry.run.name} does not train: {words.read_text()[-300:]}")
            return count
    killed, names = 0, [run.name for run in study.runs()]
    for number in itertools.count():
        out = place / f"sweep-{number}"
        while True:
            code, how = _sweep_life(study, out, killed < kills, rng, words)
            killed += how.count("killed")
            if code == -signal.SIGKILL:
                finished = {name for name in names if (out / name / "result.json").exists()}
                _wait_for_workers(out, count)
                late = {name for name in names if (out / name / "result.json").exists()} - finished
                count.fail(f"{sorted(late)} went on without its sweep") if late else count.add("sweep")
                continue
            count.endings["run of a sweep"] += how.count("killed")
            if code:
                count.fail(f"the sweep ended with {code}: {words.read_text()[-300:]}")
            for name in names:
                if different := differences(alone / name, out / name):
                    count.fail(f"{name} continued to another end: {different}")
            break
        shutil.rmtree(out)
        if killed >= kills:
            return count


def _sweep_life(study: Study, out: Path, kill: bool, rng: random.Random, words: Path) -> tuple[int, list[str]]:
    """Sweep until the kill, or to the end; returns the exit code and what happened."""

    def work() -> int:
        return launch(make_plan(study, out), LocalProcesses(out, 2), SafeConsole(), retries=1000)

    child, how = fork(work, words), []
    whole = rng.random() < 0.7
    end = time.monotonic() + rng.uniform(0, 6)
    while kill:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status), how
        if time.monotonic() >= end:
            victims = [child] if whole else workers(out)
            if victims:
                os.kill(rng.choice(victims), signal.SIGKILL)
                how.append("killed")
                break
        time.sleep(0.01)
    return wait(child), how


def workers(out: Path) -> list[int]:
    """Processes that were started to train in a folder of the sweep."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if "steadyq.suite.worker" in (line := (process / "cmdline").read_text()) and f"{out}/" in line:
                found.append(int(process.name))
        except OSError:
            continue
    return found


def _wait_for_workers(out: Path, count: Count, seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while left := workers(out):
        if time.monotonic() > end:
            count.fail(f"{len(left)} runs trained on without their sweep")
            for process in left:
                os.kill(process, signal.SIGKILL)
        time.sleep(0.05)


def kill(backend: str, kills: int, seed: int, place: Path) -> Count:
    """Kill runs of a backend, or a sweep, so many times."""
    return kill_sweeps(kills, seed, place) if backend == "sweep" else kill_runs(backend, kills, seed, place)
