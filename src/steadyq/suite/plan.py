"""What a sweep will run: every run with its folder and what has become of it, checked and costed before it begins."""

import dataclasses
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from steadyq import envs
from steadyq.build import check_memory, device_for, ensemble_for
from steadyq.errors import UserError
from steadyq.run.files import UNFINISHED, refuse_links
from steadyq.run.folder import RunFolder
from steadyq.run.progress import clock, plural
from steadyq.suite.cost import HOURS_A_DAY, GpuTime, gpu_time, gpus, possible_here, seconds_here
from steadyq.suite.study import STUDY_FILE, PlannedRun, Study, sweep_study

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
    rate: float = 0.0
    """Steps a second between the last two rows that were seen."""
    seconds: float = 0.0
    message: str = ""
    alone: bool = False
    """Whether it is not to be trained together with others any more."""

    @property
    def share(self) -> float:
        """How much of the run is done."""
        return 1.0 if self.state in ("finished", "diverged") else min(1.0, self.step / self.run.recipe.steps)

    @property
    def left(self) -> bool:
        """Whether there is something left to do: it is neither finished nor beyond help."""
        return self.state not in ("finished", "diverged")

    def look(self) -> State:
        """Take step and score from the folder, and the state if the run has come to an end."""
        if (result := self.folder.result) is not None and self.folder.finished(self.run.recipe):
            self.state, self.score, self.step = "finished", result["mean_return"], result["steps"]
        elif (self.folder.path / "diverged").is_dir():
            self.state = "diverged"
        elif row := last_row(self.folder.path / "metrics.jsonl"):
            self.reached(row)
        return self.state

    def reached(self, row: dict[str, Any]) -> None:
        """Take step, score and speed from the run's newest row."""
        steps, seconds = row["step"] - self.step, row["seconds"] - self.seconds
        if self.seconds and steps > 0 and seconds > 0:
            self.rate = steps / seconds
        self.step, self.score, self.seconds = row["step"], row.get("return_10"), row["seconds"]


@dataclass(frozen=True)
class Plan:
    """A sweep that can work: its study, its folder and its runs, each checked."""

    study: Study
    out: Path
    entries: tuple[Entry, ...]

    @property
    def todo(self) -> list[Entry]:
        """Runs that are neither finished nor beyond help."""
        return [entry for entry in self.entries if entry.left]


def make_plan(study: Study, out: Path, here: bool = True) -> Plan:
    """Check everything that can be wrong before anything is written; `here` where this machine will train."""
    entries = []
    tried = set()
    for run in study.runs():
        if not run.recipe.compute.threads:
            alone = dataclasses.replace(run.recipe.compute, threads=1)
            run = dataclasses.replace(run, recipe=dataclasses.replace(run.recipe, compute=alone))
        if (run.label, run.recipe.env) not in tried:
            recipe = run.recipe if here else possible_here(run.recipe)
            spec = envs.spec(recipe.env, recipe.protocol)
            device_for(recipe)
            ensemble_for(recipe, spec)
            if here:
                check_memory(recipe, spec)
            tried.add((run.label, run.recipe.env))
        entries.append(Entry(run, RunFolder(out / run.name)))
    study = joined(study, out)
    for entry in entries if out.is_dir() else ():
        refuse_links(entry.folder.path)
        entry.folder.check(entry.run.recipe)
        entry.look()
    return Plan(study, out, tuple(entries))


def joined(study: Study, out: Path) -> Study:
    """The study with what its folder holds already; raises if the folder cannot take it."""
    _check_out(out)
    refuse_links(out / "logs")
    if not (out / STUDY_FILE).is_file():
        return study
    try:
        return study.united(sweep_study(out))
    except UserError as different:
        raise UserError(f"{out} belongs to another sweep ({different}): choose another --out") from None


def _check_out(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file: --out needs a folder")
    if out.is_dir() and not (out / STUDY_FILE).is_file() and any(path.suffix != UNFINISHED for path in out.iterdir()):
        raise UserError(f"{out} is not empty and not a sweep folder: choose another --out")
    parent = out
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise UserError(f"cannot write to {parent}: choose another --out")


def describe(plan: Plan, console: Console, *, where: str, learning: int, on_gpu: bool, gpu_hours: bool) -> None:
    """Print what will run, where, and what it costs with `learning` runs at a time.

    `gpu_hours` adds the time on a GPU whose updates were measured.
    """
    study, entries = plan.study, plan.entries
    first = entries[0].run.recipe
    games, seeds = len({e.run.recipe.env for e in entries}), len({e.run.recipe.seed for e in entries})
    labels = list(dict.fromkeys(entry.run.label for entry in entries))
    console.print(Text.assemble((study.title, "bold"), f"  {study.question}"), soft_wrap=True)
    console.print(
        f"{plural(games, 'game')} x {plural(len(labels), 'variant')} x {plural(seeds, 'seed')} = "
        f"{plural(len(entries), 'run')} (preset {study.preset}, scale {first.scale}, "
        f"protocol {first.protocol.label})",
        soft_wrap=True,
    )
    todo = plan.todo
    alike = {(entry.run.label, entry.run.recipe.env): entry.run for entry in todo}  # seeds cost the same
    costs = seconds_here(list(alike.values()), on_gpu=on_gpu)
    for entry in todo:
        entry.cost = max(costs[alike[entry.run.label, entry.run.recipe.env].name], 1e-3)
    rows: list[tuple[str, ...]] = []
    for label in labels:
        own = [entry for entry in entries if entry.run.label == label]
        left = [entry for entry in own if entry.left]
        updates = sum(entry.run.recipe.updates for entry in left)
        seconds = sum(entry.cost for entry in left)
        row = (
            label,
            f"{len(own)}",
            f"{len(own) - len(left)}",
            f"{own[0].run.recipe.steps:,}",
            f"{own[0].run.recipe.updates:,}",
            f"{updates:,}",
            f"{1e3 * seconds / updates:,.1f}" if updates else "-",
            f"{seconds / 3600:,.2f}",
        )
        rows.append(row)
    console.print(_plan_table(rows))
    updates, seconds = sum(entry.run.recipe.updates for entry in todo), sum(entry.cost for entry in todo)
    console.print(
        f"total: {plural(len(todo), 'run')} to do, {updates:,} updates, {seconds / 3600:,.2f} hours of learning one "
        f"after another; {where}: about {clock(seconds / max(1, min(learning, len(todo))))}",
        soft_wrap=True,
    )
    if gpu_hours:
        _describe_gpu(todo, console)
    console.print(f"folder: {plan.out}", soft_wrap=True)


def _plan_table(rows: Sequence[tuple[str, ...]]) -> Table:
    """In a narrow terminal names and headers are folded, figures are whole."""
    names = (
        "variant",
        "runs",
        "finished",
        "steps each",
        "updates each",
        "updates to do",
        "ms/update here",
        "hours here",
    )
    table = Table(box=None, pad_edge=False)
    for i, name in enumerate(names):
        longest = max(len(row[i]) for row in rows) if i else 10
        table.add_column(name, justify="right" if i else "left", overflow="fold", min_width=longest)
    for row in rows:
        table.add_row(*row)
    return table


def _describe_gpu(todo: Sequence[Entry], console: Console) -> None:
    """Hours on each GPU whose updates were measured, with the measurements and their sources."""
    told = False
    for gpu in gpus():
        known = [found for entry in todo if (found := gpu_time(entry.run, gpu)) is not None]
        if known:
            _describe_times(gpu, known, len(known) == len(todo), console)
            told = True
        if known and len(known) < len(todo):
            console.print(f"not counted: {plural(len(todo) - len(known), 'run')} computing in a way not timed on it")
    if todo and not told:
        sections = [(entry.run.recipe.network.kind, entry.run.recipe.compute.precision) for entry in todo]
        kinds = sorted({f"{kind} in {precision}" if precision != "auto" else kind for kind, precision in sections})
        console.print(f"on a GPU: no measured time of an update of network {', '.join(kinds)}")


def _describe_times(gpu: str, known: Sequence[GpuTime], whole: bool, console: Console) -> None:
    for row in dict.fromkeys(each.measured for each in known):
        scaled = sorted({f"{each.factor:.3g}" for each in known if each.measured == row and each.factor != 1.0})
        width = f"{row.scale} channels" if row.network == "minatar" else f"s={row.scale}"
        console.print(
            f"on one {gpu}: {row.update_ms:g} ms an update of {row.members} members, {width}, batch {row.batch} "
            f"({row.form}; {row.source})"
            + (f"; times {', '.join(scaled)} for other sizes, by arithmetic" if scaled else ""),
            soft_wrap=True,
        )
    hours = sum(each.seconds for each in known) / 3600
    machines = max(1, -(-int(hours * 3600) // (HOURS_A_DAY * 3600)))
    longest = max(each.seconds for each in known) / 3600
    console.print(
        f"{gpu}: {hours:,.1f} GPU-hours of learning and acting (environments and evaluation not included), "
        f"{hours / len(known):.2f} a run"
        + (f"; {plural(machines, 'machine')} with one such GPU would finish in a day" if whole else "")
        + ("" if longest <= HOURS_A_DAY else f", but for a single run of {longest:.0f} h"),
        soft_wrap=True,
    )


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
