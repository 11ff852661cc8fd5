"""Carry out a plan: keep every slot busy until each run has finished.

The run folders are the only state. A finished run is skipped, a stopped or killed one continues from its checkpoint, a
crashed one is tried again, and a folder's lock keeps a run from being trained twice, also by a second sweep into the
same folder, which then shares the work.
"""

import contextlib
import math
import shlex
import time
from collections.abc import Sequence
from itertools import islice
from typing import Protocol

from rich.console import Console

from steadyq.build import wants_gpu
from steadyq.errors import UserError
from steadyq.run.files import replace_text
from steadyq.run.group import reached
from steadyq.run.loop import stop_requests, tidy
from steadyq.run.progress import plural
from steadyq.run.together import alike, alone_because
from steadyq.suite.board import Board
from steadyq.suite.local import local_launcher
from steadyq.suite.mps import Wanted
from steadyq.suite.plan import Entry, Plan
from steadyq.suite.study import STUDY_FILE
from steadyq.suite.worker import Ending

POLL_SECONDS = 0.2
BUSY_SECONDS = 10.0
"""How long a run that another process trains is left alone before it is looked at again."""


class Launcher(Protocol):
    """Something that trains runs: processes here, or a cluster."""

    words: str
    """What it is, for the plan."""
    note: str
    """What else is to be said about it; empty if nothing."""
    learning: int
    """Runs that learn at the same time at full speed, as far as known: those on one GPU share it."""
    on_gpu: bool
    """Whether runs get a share of a GPU."""
    abreast: int
    """How many runs that differ in their seed or learning rate alone it trains as one program, at most."""

    def open(self) -> str:
        """Get ready to start runs; returns what there is to say about it, or nothing."""

    def room(self) -> bool:
        """Whether one more run can be started now."""

    def start(self, entries: Sequence[Entry]) -> None:
        """Start or continue a run, or several together."""

    def poll(self) -> list[tuple[Entry, Ending, str]]:
        """Runs that ended since the last call: how, and with which last words."""

    def news(self) -> str:
        """What there is to say since the last call, or nothing."""

    def stop(self) -> None:
        """Ask all runs to save their state and end; `poll` tells when they have."""

    def close(self) -> None:
        """End whatever is left, now."""


def launcher_for(
    on: str,
    plan: Plan,
    jobs: int | None,
    gpus_per_run: float | None,
    retries: int,
    mps: Wanted = "auto",
    abreast: int = 1,
) -> Launcher:
    """What `--on` names: this machine, or a Ray cluster (the extra `cluster`)."""
    runs = [entry.run for entry in plan.entries]
    if on == "local":
        return local_launcher(runs, plan.out, jobs, gpus_per_run, mps, abreast)
    if on != "ray" and not on.startswith("ray://"):
        raise UserError(f"--on cannot be {on!r}: choose local, ray or ray://host:port")
    if jobs is not None:
        raise UserError("--jobs is for this machine: Ray places runs by CPUs and --gpus-per-run")
    if mps != "auto":
        raise UserError("--mps is for this machine: on a Ray cluster its nodes decide")
    if abreast != 1:
        raise UserError("--together is for this machine: on a Ray cluster every run is a task of its own")
    from steadyq.suite.cluster import RayCluster

    cluster = RayCluster(on, max(run.recipe.compute.threads for run in runs), gpus_per_run, retries)
    if not cluster.on_gpu and (wanting := next((run for run in runs if wants_gpu(run.recipe)), None)):
        cluster.close()
        compute = wanting.recipe.compute
        raise UserError(
            f"compute.device {compute.device}, precision {compute.precision}, form {compute.form} need a GPU: "
            "no node of the Ray cluster has one, or --gpus-per-run is 0"
        )
    return cluster


def launch(plan: Plan, launcher: Launcher, console: Console, *, retries: int = 2, minutes: float = math.inf) -> int:
    """Run the plan to its end, or for so many minutes, when runs under way save their state.

    Returns the exit code: 0 all finished, 1 some failed, 3 some diverged, 130 stopped.
    """
    until = time.monotonic() + 60 * minutes
    plan.out.mkdir(parents=True, exist_ok=True)
    replace_text(plan.out / STUDY_FILE, plan.study.to_toml())
    board = Board(plan.entries, console)
    for entry in plan.entries:
        if entry.state == "finished":
            tidy(entry.folder, entry.run.recipe)
    try:
        if words := launcher.open():
            board.say(words)
        with stop_requests() as stop, board:
            while any(entry.state in ("waiting", "running", "elsewhere") for entry in plan.entries):
                for entry, ending, words in launcher.poll():
                    _account(entry, ending, words, retries, board)
                if time.monotonic() > until:
                    board.say("the time is up")
                    stop.set()
                if stop.is_set():
                    break
                if words := launcher.news():
                    board.say(words)
                _fill(plan.entries, launcher, board)
                board.show()
                stop.wait(POLL_SECONDS)
            if stop.is_set():
                board.say("stopping: runs save their state (Ctrl-C again ends them at once)")
                _wind_down(launcher, board, retries)
    finally:
        launcher.close()
    for entry in plan.entries:
        entry.look()
    return _conclude(plan, stop.is_set(), console)


def _fill(entries: Sequence[Entry], launcher: Launcher, board: Board) -> None:
    """Start what can be started; look again at what another process was training."""
    now = time.monotonic()
    for entry in entries:
        if entry.state == "elsewhere" and now >= entry.not_before:
            entry.state = "waiting"
            if entry.look() == "finished":
                board.say(f"finished elsewhere  {entry.run.name}")
        if entry.state == "waiting" and now >= entry.not_before and launcher.room():
            group = [entry, *companions(entry, entries, launcher.abreast - 1)]
            for each in group:
                each.state = "running"
            launcher.start(group)


def companions(entry: Entry, entries: Sequence[Entry], most: int) -> list[Entry]:
    """Up to so many waiting runs that differ from a run in seed or learning rate alone, and go on from its step."""
    if not most or entry.alone or alone_because(entry.run.recipe):
        return []
    recipe, step = alike(entry.run.recipe), reached(entry.folder)
    others = (
        other
        for other in entries
        if other is not entry
        and other.state == "waiting"
        and not other.alone
        and alike(other.run.recipe) == recipe
        and reached(other.folder) == step
    )
    return list(islice(others, most))


def _account(entry: Entry, ending: Ending, words: str, retries: int, board: Board) -> None:
    """Decide what follows from how a run ended."""
    entry.message, entry.not_before = words, time.monotonic()
    if ending == "busy":
        entry.state, entry.not_before = "elsewhere", time.monotonic() + BUSY_SECONDS
        board.say(f"trained elsewhere  {entry.run.name} (its folder is locked)")
        return
    entry.state = "waiting"
    now = entry.look()
    if now == "finished":
        score = f"{entry.score:.2f}" if entry.score is not None else "-"
        board.say(f"finished  {entry.run.name}  mean return {score}")
    elif "diverged" in (ending, now):
        entry.state = "diverged"
        board.say(f"diverged  {entry.run.name}: {words}")
    elif ending == "apart":
        entry.alone = True
        board.say(f"goes on alone  {entry.run.name}: {words}")
    elif ending == "refused":
        entry.state = "failed"
        board.say(f"failed  {entry.run.name}: {words}")
    elif ending != "stopped":
        entry.alone, entry.attempts = True, entry.attempts + 1
        entry.state = "waiting" if entry.attempts <= retries else "failed"
        what = f"again, {entry.attempts} of {retries}" if entry.state == "waiting" else "no more retries"
        board.say(f"crashed ({what})  {entry.run.name}: {words}")


def _wind_down(launcher: Launcher, board: Board, retries: int) -> None:
    """Let the runs save their state; a second Ctrl-C arrives as KeyboardInterrupt and ends them."""
    launcher.stop()
    with contextlib.suppress(KeyboardInterrupt):
        while any(entry.state == "running" for entry in board.entries):
            for entry, _, words in launcher.poll():
                _account(entry, "stopped", words, retries, board)
            board.show()
            time.sleep(POLL_SECONDS)


def _conclude(plan: Plan, stopped: bool, console: Console) -> int:
    count = {state: sum(e.state == state for e in plan.entries) for state in ("finished", "diverged", "failed")}
    for entry in plan.entries:
        if entry.state == "failed":
            console.print(f"failed: {entry.run.name}: {entry.message} (see {plan.out}/logs)", soft_wrap=True)
    told = ", ".join(f"{number} {state}" for state, number in count.items() if number) or "none finished"
    console.print(f"{told} of {plural(len(plan.entries), 'run')}")
    if stopped:
        console.print("stopped: the same command continues where it was")
        return 130
    console.print(f"next     steadyq report {shlex.quote(str(plan.out))}", soft_wrap=True)
    return 1 if count["failed"] else 3 if count["diverged"] else 0
