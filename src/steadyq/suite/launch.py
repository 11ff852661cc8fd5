"""Run a sweep: plan it, say what it costs, then keep every slot busy until each run has finished.

The run folders are the only state. A finished run is skipped, a stopped or killed one continues from its checkpoint, a
crashed one is tried again, and a folder's lock keeps a run from being trained twice, also by a second sweep into the
same folder, which then shares the work.
"""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, Protocol

import torch
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from steadyq import envs
from steadyq.agent import device_for, ensemble_for
from steadyq.drive import stop_requests
from steadyq.errors import UserError
from steadyq.progress import clock
from steadyq.recipe import within
from steadyq.runs import RunFolder, command_line, replace_text
from steadyq.suite.cost import HOURS_A_DAY, gpu_time, seconds_here
from steadyq.suite.suites import STUDY_FILE, PlannedRun, Study, sweep_study
from steadyq.suite.worker import EXIT, Ending

POLL_SECONDS, SHOW_SECONDS, PLAIN_SECONDS = 0.2, 1.0, 15.0
BUSY_SECONDS = 10.0
"""How long a run that another process trains is left alone before it is looked at again."""
TAIL_BYTES = 8192

State = Literal["waiting", "running", "elsewhere", "finished", "diverged", "failed"]


@dataclass
class Entry:
    """One run of the sweep and what has become of it."""

    run: PlannedRun
    folder: RunFolder
    cost: float = 1.0
    """Estimated seconds of learning."""
    state: State = "waiting"
    attempts: int = 0
    not_before: float = 0.0
    step: int = 0
    score: float | None = None
    message: str = ""

    @property
    def share(self) -> float:
        """How much of the run is done."""
        return 1.0 if self.state in ("finished", "diverged") else min(1.0, self.step / self.run.recipe.steps)

    def look(self) -> State:
        """Take step and score from the folder, and the state if the run has come to an end."""
        if (result := self.folder.result) is not None:
            self.state, self.score, self.step = "finished", result["mean_return"], result["steps"]
        elif (self.folder.path / "diverged").is_dir():
            self.state = "diverged"
        elif row := last_row(self.folder.path / "metrics.jsonl"):
            self.step, self.score = row["step"], row.get("return_10")
        return self.state


class Launcher(Protocol):
    """Something that trains runs: processes here, or a cluster."""

    words: str
    """What it is, for the plan."""
    parallel: int
    """Runs at the same time, as far as known."""

    def room(self) -> bool:
        """Whether one more run can be started now."""

    def start(self, entry: Entry) -> None:
        """Start or continue a run."""

    def poll(self) -> list[tuple[Entry, Ending, str]]:
        """Runs that ended since the last call: how, and with which last words."""

    def stop(self) -> None:
        """Ask all runs to save their state and end; `poll` tells when they have."""

    def close(self) -> None:
        """End whatever is left, now."""


@dataclass(frozen=True)
class Child:
    """A run's process."""

    entry: Entry
    process: subprocess.Popen[str]
    log: Path
    gpu: int | None


class LocalProcesses:
    """One process per run, as many at a time as there are CPU slots and GPU slots."""

    def __init__(self, out: Path, jobs: int, gpus_per_run: float = 0.0, gpus: int = 0) -> None:
        self.out, self.children = out, list[Child]()
        each = int(1 / gpus_per_run + 1e-9) if gpus_per_run else 0
        self.gpu_slots = {gpu: each for gpu in range(gpus)} if gpus_per_run else {}
        self.parallel = min(jobs, each * gpus) if gpus_per_run else jobs
        cards = f"{gpus} GPU{'s' * (gpus > 1)}, {gpus_per_run:g} of one for each" if gpus_per_run else "CPU"
        self.words = f"this machine ({cards}), {self.parallel} run{'s' * (self.parallel > 1)} at a time"

    def room(self) -> bool:
        """Whether a slot is free."""
        return len(self.children) < self.parallel

    def start(self, entry: Entry) -> None:
        """Start the run's process: its own session, so that Ctrl-C reaches it through the sweep alone."""
        gpu = next((gpu for gpu in self.gpu_slots if self._on(gpu) < self.gpu_slots[gpu]), None)
        log = self.out / "logs" / f"{entry.run.name}.txt"
        log.parent.mkdir(parents=True, exist_ok=True)
        threads = str(max(1, entry.run.recipe.compute.threads))
        environment = {**os.environ, "OMP_NUM_THREADS": threads, "CUDA_VISIBLE_DEVICES": _visible(gpu)}
        if (command := command_line()) is not None:
            environment.setdefault("STEADYQ_COMMAND", command)
        with open(log, "a") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "steadyq.suite.worker", str(entry.folder.path)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=environment,
                text=True,
                start_new_session=True,
            )
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # a process that died at once is seen by poll
            _send(process.stdin, entry.run.recipe.to_toml())
        self.children.append(Child(entry, process, log, gpu))

    def poll(self) -> list[tuple[Entry, Ending, str]]:
        """Collect processes that have ended."""
        ended = [child for child in self.children if child.process.poll() is not None]
        self.children = [child for child in self.children if child not in ended]
        endings = {code: ending for ending, code in EXIT.items()}
        return [(child.entry, endings.get(child.process.returncode, "crashed"), _last_words(child)) for child in ended]

    def stop(self) -> None:
        """Send SIGTERM: the run saves its state between two steps."""
        for child in self.children:
            child.process.terminate()

    def close(self) -> None:
        """Kill what is left; its last checkpoint stays."""
        for child in self.children:
            child.process.kill()
            child.process.wait()
        self.children = []

    def _on(self, gpu: int) -> int:
        return sum(child.gpu == gpu for child in self.children)


def local_launcher(study_runs: Sequence[PlannedRun], out: Path, jobs: int | None, share: float | None) -> Launcher:
    """Slots of this machine: by default a GPU for each run where there is one, else a core for each."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    wants_cpu = all(run.recipe.compute.device == "cpu" for run in study_runs)
    if share is None:
        share = 0.0 if wants_cpu or not gpus else 1.0
    within("--gpus-per-run", share, 0, 1)
    if share and not gpus:
        raise UserError("--gpus-per-run: no GPU is visible to PyTorch here")
    if not share and any(run.recipe.compute.device == "cuda" for run in study_runs):
        raise UserError("compute.device cuda needs --gpus-per-run above 0")
    if jobs is None:
        threads = max(max(1, run.recipe.compute.threads) for run in study_runs)
        jobs = max(1, len(os.sched_getaffinity(0)) // threads) if not share else int(1 / share + 1e-9) * gpus
    within("--jobs", jobs, 1)
    return LocalProcesses(out, jobs, share, gpus)


def launcher_for(on: str, plan: "Plan", jobs: int | None, gpus_per_run: float | None, retries: int) -> Launcher:
    """What `--on` names: this machine, or a Ray cluster (the extra `cluster`)."""
    runs = [entry.run for entry in plan.entries]
    if on == "local":
        return local_launcher(runs, plan.out, jobs, gpus_per_run)
    if on != "ray" and not on.startswith("ray://"):
        raise UserError(f"--on cannot be {on!r}: choose local, ray or ray://host:port")
    if jobs is not None:
        raise UserError("--jobs is for this machine: Ray places runs by CPUs and --gpus-per-run")
    from steadyq.suite.cluster import RayCluster

    return RayCluster(on, max(run.recipe.compute.threads for run in runs), gpus_per_run, retries)


@dataclass(frozen=True)
class Plan:
    """A sweep that can work: its study, its folder and its runs, each checked."""

    study: Study
    out: Path
    entries: tuple[Entry, ...]

    @property
    def todo(self) -> list[Entry]:
        """Runs that are neither finished nor beyond help."""
        return [entry for entry in self.entries if entry.state not in ("finished", "diverged")]


def plan(study: Study, out: Path, here: bool = True) -> Plan:
    """Check everything that can be wrong before anything is written; `here` where this machine will train."""
    entries = []
    tried = set()
    for run in study.runs():
        if not run.recipe.compute.threads:
            run = dataclasses.replace(run, recipe=run.recipe.override({"compute.threads": 1}))
        if (run.label, run.recipe.env) not in tried:
            ensemble_for(run.recipe, envs.spec(run.recipe.env, run.recipe.protocol))
            if here:
                device_for(run.recipe)
            tried.add((run.label, run.recipe.env))
        entries.append(Entry(run, RunFolder(out / run.name)))
    _check_out(out)
    if (out / STUDY_FILE).is_file():
        before = sweep_study(out)
        try:
            study = study.united(before)
        except UserError as different:
            raise UserError(f"{out} belongs to another sweep ({different}): choose another --out") from None
    for entry in entries:
        entry.folder.check(entry.run.recipe)
        entry.look()
    return Plan(study, out, tuple(entries))


def describe(plan: Plan, launcher: Launcher, console: Console, *, gpu: bool) -> None:
    """Print what will run and what it costs; `gpu` adds the time on a GPU whose updates were measured."""
    study, entries = plan.study, plan.entries
    first = entries[0].run.recipe
    games, seeds = len({e.run.recipe.env for e in entries}), len({e.run.recipe.seed for e in entries})
    labels = list(dict.fromkeys(entry.run.label for entry in entries))
    console.print(f"[bold]{study.title}[/]  {study.question}", soft_wrap=True)
    console.print(
        f"{games} game{'s' * (games > 1)} x {len(labels)} variant{'s' * (len(labels) > 1)} x {seeds} "
        f"seed{'s' * (seeds > 1)} = {len(entries)} runs (preset {study.preset}, scale {first.scale}, "
        f"protocol {first.protocol.name})",
        soft_wrap=True,
    )
    todo = plan.todo
    costs = seconds_here([entry.run for entry in todo])
    for entry in todo:
        entry.cost = max(costs[entry.run.name], 1e-3)
    table = Table(box=None, pad_edge=False)
    table.add_column("variant", no_wrap=True)
    for name in ("runs", "finished", "steps each", "updates each", "updates to do", "ms/update here", "hours here"):
        table.add_column(name, justify="right")
    for label in labels:
        own = [entry for entry in entries if entry.run.label == label]
        left = [entry for entry in own if entry in todo]
        updates = sum(entry.run.updates for entry in left)
        seconds = sum(costs[entry.run.name] for entry in left)
        table.add_row(
            label,
            f"{len(own)}",
            f"{len(own) - len(left)}",
            f"{own[0].run.recipe.steps:,}",
            f"{own[0].run.updates:,}",
            f"{updates:,}",
            f"{1e3 * seconds / updates:,.1f}" if updates else "-",
            f"{seconds / 3600:,.2f}",
        )
    console.print(table)
    updates, seconds = sum(entry.run.updates for entry in todo), sum(costs.values())
    console.print(
        f"total: {len(todo)} runs to do, {updates:,} updates, {seconds / 3600:,.2f} hours of learning one after "
        f"another; {launcher.words}: about {clock(seconds / max(1, min(launcher.parallel, len(todo))))}",
        soft_wrap=True,
    )
    if gpu:
        _describe_gpu(todo, console)
    console.print(f"folder: {plan.out}", soft_wrap=True)


def _describe_gpu(todo: Sequence[Entry], console: Console) -> None:
    known = [found for entry in todo if (found := gpu_time(entry.run)) is not None]
    if not known:
        kinds = sorted({entry.run.recipe.network.kind for entry in todo})
        console.print(f"on a GPU: no measured time of an update of network {', '.join(kinds)}")
        return
    hours = sum(each.seconds for each in known) / 3600
    for row in dict.fromkeys(each.measured for each in known):
        scaled = sorted({f"{each.factor:.3g}" for each in known if each.measured == row and each.factor != 1.0})
        console.print(
            f"on one {row.gpu}: {row.update_ms:g} ms an update of {row.members} members, s={row.scale}, batch "
            f"{row.batch} ({row.form}; {row.source})"
            + (f"; times {', '.join(scaled)} for other sizes, by arithmetic" if scaled else ""),
            soft_wrap=True,
        )
    machines = max(1, -(-int(hours * 3600) // (HOURS_A_DAY * 3600)))
    longest = max(each.seconds for each in known) / 3600
    console.print(
        f"{known[0].measured.gpu}: {hours:,.1f} GPU-hours of learning and acting (environments and evaluation not "
        f"included), {hours / len(known):.2f} a run; {machines} machine{'s' * (machines > 1)} with one such GPU would "
        f"finish in a day" + ("" if longest <= HOURS_A_DAY else f", but for a single run of {longest:.0f} h"),
        soft_wrap=True,
    )


def launch(plan: Plan, launcher: Launcher, console: Console, *, retries: int = 2) -> int:
    """Run the plan to its end; returns the exit code: 0 all finished, 1 some failed, 3 some diverged, 130 stopped."""
    plan.out.mkdir(parents=True, exist_ok=True)
    replace_text(plan.out / STUDY_FILE, plan.study.to_toml())
    board = Board(plan.entries, console)
    try:
        with stop_requests() as stop, board:
            while any(entry.state in ("waiting", "running", "elsewhere") for entry in plan.entries):
                for entry, ending, words in launcher.poll():
                    _settle(entry, ending, words, retries, board)
                if stop.is_set():
                    break
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


def _fill(entries: Sequence[Entry], launcher: Launcher, board: "Board") -> None:
    """Start what can be started; look again at what another process was training."""
    now = time.monotonic()
    for entry in entries:
        if entry.state == "elsewhere" and now >= entry.not_before:
            entry.state = "waiting"
            if entry.look() == "finished":
                board.say(f"finished elsewhere  {entry.run.name}")
        if entry.state == "waiting" and now >= entry.not_before and launcher.room():
            entry.state = "running"
            launcher.start(entry)


def _settle(entry: Entry, ending: Ending, words: str, retries: int, board: "Board") -> None:
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
    elif ending == "refused":
        entry.state = "failed"
        board.say(f"failed  {entry.run.name}: {words}")
    elif ending != "stopped":
        entry.attempts += 1
        entry.state = "waiting" if entry.attempts <= retries else "failed"
        what = f"again, {entry.attempts} of {retries}" if entry.state == "waiting" else "no more retries"
        board.say(f"crashed ({what})  {entry.run.name}: {words}")


def _wind_down(launcher: Launcher, board: "Board", retries: int) -> None:
    """Let the runs save their state; a second Ctrl-C arrives as KeyboardInterrupt and ends them."""
    launcher.stop()
    with contextlib.suppress(KeyboardInterrupt):
        while any(entry.state == "running" for entry in board.entries):
            for entry, _, words in launcher.poll():
                _settle(entry, "stopped", words, retries, board)
            board.show()
            time.sleep(POLL_SECONDS)


def _conclude(plan: Plan, stopped: bool, console: Console) -> int:
    count = {state: sum(e.state == state for e in plan.entries) for state in ("finished", "diverged", "failed")}
    for entry in plan.entries:
        if entry.state == "failed":
            console.print(f"failed: {entry.run.name}: {entry.message} (see {plan.out}/logs)", soft_wrap=True)
    told = ", ".join(f"{number} {state}" for state, number in count.items() if number) or "none finished"
    console.print(f"{told} of {len(plan.entries)} runs")
    if stopped:
        console.print("stopped: the same command continues where it was")
        return 130
    console.print(f"next     steadyq report {plan.out}", soft_wrap=True)
    return 1 if count["failed"] else 3 if count["diverged"] else 0


class Board:
    """One table of progress: live in a terminal, elsewhere a line for each change and one now and then."""

    def __init__(self, entries: Sequence[Entry], console: Console) -> None:
        self.entries, self.console = entries, console
        self.began, self.shown = time.monotonic(), 0.0
        self.done_before = self._done()
        self.live: Live | None = None

    def __enter__(self) -> "Board":
        if self.console.is_terminal:
            self.live = Live(self._table(), console=self.console, auto_refresh=False, transient=True)
            self.live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self.live is not None:
            self.live.__exit__(*error)

    def say(self, text: str) -> None:
        """Print one line above the table."""
        self.console.print(Text(text), soft_wrap=True)

    def show(self) -> None:
        """Refresh the table, at most once a second."""
        now = time.monotonic()
        if now - self.shown < (SHOW_SECONDS if self.live else PLAIN_SECONDS):
            return
        self.shown = now
        for entry in self.entries:
            if entry.state == "running" and (row := last_row(entry.folder.path / "metrics.jsonl")):
                entry.step, entry.score = row["step"], row.get("return_10")
        if self.live:
            self.live.update(self._table(), refresh=True)
        else:
            self.console.print(self._summary())

    def _done(self) -> float:
        return sum(entry.cost * entry.share for entry in self.entries)

    def _summary(self) -> str:
        states = [entry.state for entry in self.entries]
        parts = [f"{states.count('finished')} of {len(states)} runs finished", f"{states.count('running')} running"]
        for state in ("elsewhere", "diverged", "failed"):
            parts += [f"{states.count(state)} {state}"] * (state in states)
        gained = self._done() - self.done_before
        if gained > 0:
            left = sum(entry.cost * (1 - entry.share) for entry in self.entries if entry.state != "failed")
            parts.append(f"about {clock((time.monotonic() - self.began) * left / gained)} left")
        return " · ".join(parts)

    def _table(self) -> Group:
        table = Table("run", "steps", "", "return of last 10 games", box=None, pad_edge=False)
        for entry in self.entries:
            if entry.state == "running":
                steps = entry.run.recipe.steps
                score = f"{entry.score:.2f}" if entry.score is not None else ""
                table.add_row(entry.run.name, f"{entry.step:,} of {steps:,}", f"{entry.share:.0%}", score)
        return Group(table, Text(self._summary()))


def last_row(file: Path) -> dict[str, Any] | None:
    """The last whole row of a JSONL file, without reading all of it."""
    try:
        with open(file, "rb") as stream:
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = stream.read().split(b"\n")[:-1]
        row: dict[str, Any] = json.loads(lines[-1])
        return row
    except (OSError, IndexError, json.JSONDecodeError):
        return None


def _check_out(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file: --out needs a folder")
    if out.is_dir() and not (out / STUDY_FILE).is_file() and any(out.iterdir()):
        raise UserError(f"{out} is not empty and not a sweep folder: choose another --out")
    parent = out
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise UserError(f"cannot write to {parent}: choose another --out")


def _visible(gpu: int | None) -> str:
    """CUDA_VISIBLE_DEVICES for one slot, within what this process may see itself."""
    if gpu is None:
        return ""
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return given.split(",")[gpu].strip() if given else str(gpu)


def _send(stream: IO[str], text: str) -> None:
    with stream:
        stream.write(text)


def _last_words(child: Child) -> str:
    code = child.process.returncode
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    lines = child.log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if code and lines else ""
