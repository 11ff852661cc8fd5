"""A run as tables and pages read it: recipe, result and logs, each checked once, so that readers rely on types."""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from steadyq import envs
from steadyq.envs import Protocol
from steadyq.envs.modules import somebodys
from steadyq.errors import UserError
from steadyq.fields import flatten
from steadyq.monitor.verdict import Thresholds, Verdict, judge
from steadyq.presets import HIDDEN, recipe_for
from steadyq.recipe import Recipe
from steadyq.run.folder import RunFolder
from steadyq.run.logs import is_number, rows, shown
from steadyq.suite.archive import run_folders, split, unpacked
from steadyq.suite.columns import Columns, Events, read_columns, read_events
from steadyq.suite.study import STUDY_FILE

COUNTED = {
    "step": "steps",
    "frames": "frames",
    "updates": "updates",
    "games": "games",
    "resets": "resets",
    "seconds": "wall_seconds",
}
"""What says how far a run has come, in a row and in a result."""

_NOT_LEARNING = ("record.", "evaluation.", "monitor.")


@dataclass(frozen=True)
class Run:
    """One run folder, read once."""

    path: Path
    recipe: Recipe
    metrics: Columns
    events: Events
    result: dict[str, Any] | None
    diagnostics: Columns = field(default_factory=lambda: Columns(np.zeros(0), {}))
    meta: dict[str, Any] | None = None
    """What another learner's run says of itself; its recipe then holds nothing but what every run has."""
    archive: Path | None = None
    """The archive it lay in; its path is then the archive's with its name, where no file is."""

    @property
    def seed(self) -> int:
        """The run's seed."""
        return self.recipe.seed

    @property
    def watched(self) -> bool:
        """Whether it is somebody's own loop that the stability monitor watched: it has no end that is known before."""
        return self.meta is not None and "steps" not in self.meta

    @property
    def made_by(self) -> str:
        """Preset and scale, or the name of another learner."""
        return f"{self.recipe.preset} {self.recipe.scale}".strip()

    @property
    def evaluated(self) -> str:
        """How its evaluation differs from ours, in words."""
        said = (self.meta or {}).get("evaluation")
        return f"{self.made_by}: {said}." if said else ""

    @property
    def counts(self) -> dict[str, float]:
        """How far it has come: step, frames, updates, games, resets and seconds, those that are known.

        Rows are written now and then: the result of a finished run and the events of another know better.
        """
        row = self.metrics[-1] if len(self.metrics) else {}
        known: dict[str, float] = {name: row[name] for name in COUNTED if row.get(name) is not None}
        events, result = self.events, self.result or {}
        counted = {"step": events.last_step, "games": len(events.games[0]), "resets": len(events.resets)}
        for name, value in counted.items():
            if name != "resets" or "resets" in known:
                known[name] = max(value, known.get(name, 0))
        return known | {name: result[key] for name, key in COUNTED.items() if result.get(key) is not None}

    @property
    def last_step(self) -> int:
        """How many steps it has made."""
        return int(self.counts["step"])

    @property
    def lost_rows(self) -> bool:
        """Whether a finished run has fewer rows than it must have written."""
        if self.result is None or self.meta is not None:
            return False
        last = self.metrics.steps[-1] if len(self.metrics) else 0
        return self.last_step - last >= self.recipe.record.every + self.recipe.protocol.lanes

    @cached_property
    def changes(self) -> dict[str, Any]:
        """Fields in which the recipe departs from its preset; where it computes does not count, its precision does."""
        if self.meta is not None:
            return {}
        mine = flatten(self.recipe.to_dict())
        protocol = self.recipe.protocol
        own = somebodys(self.recipe.env, protocol.wrappers)
        env = envs.Environment("CartPole-v1" if own else self.recipe.env, () if own else protocol.kwargs)
        try:
            base = flatten(recipe_for(self.recipe.preset, env, self.recipe.scale).to_dict())
        except UserError:  # a preset of another version, or an environment that is not installed here
            base = {}
        if own and HIDDEN.get(mine["network.kind"]) == tuple(mine["network.hidden"]):
            # What it shows chose its network, and nobody but its module knows what that is.
            base |= {name: mine[name] for name in ("network.kind", "network.hidden")}
        ignored = ("seed", "env", "preset", "scale", "compute.device", "compute.threads", "compute.form")
        return {name: v for name, v in mine.items() if not name.startswith(ignored) and base.get(name) != v}

    @property
    def learning_changes(self) -> tuple[tuple[str, Any], ...]:
        """The changes that matter to learning, as hashable pairs."""
        return tuple(
            (name, tuple(value) if isinstance(value, list) else value)
            for name, value in sorted(self.changes.items())
            if not name.startswith(_NOT_LEARNING)
        )

    def verdict(self, thresholds: Thresholds | None = None) -> Verdict:
        """What is unstable in it, if it was measured."""
        return judge(
            self.diagnostics,
            self.events.diverged,
            thresholds=thresholds,
            recipe=self.recipe if self.meta is None else None,
            planned=self.events.planned,
            parameters=(self.meta or {}).get("parameters"),
        )


def read(path: Path | str, logs: bool = True) -> Run:
    """Read a run folder, or that of another learner: it has a meta.json instead of a recipe.

    Without `logs` it takes no time, and says no more than recipe and result do.
    """
    folder = RunFolder(path)
    meta = folder.meta
    recipe = folder.recipe if meta is None else _stand_in(meta, folder.path / "meta.json")
    result = folder.result
    if result is not None:
        result = {name: value for name, value in result.items() if value is not None}
        _check_result(result, folder.path / "result.json")
        result.setdefault("episodes", len(result["returns"]))
    metrics, diagnostics, events = (folder.path / f"{name}.jsonl" for name in ("metrics", "diagnostics", "events"))
    return Run(
        Path(path),
        recipe,
        read_columns(metrics, rows(metrics, "metrics") if logs else ()),
        read_events(rows(events, "events") if logs else ()),
        result,
        read_columns(diagnostics, rows(diagnostics, "diagnostics") if logs else ()),
        meta,
    )


BESIDE_RUNS = (STUDY_FILE, "logs", "report")
"""What a sweep's folder holds that is no run."""


def read_runs(paths: Iterable[Path | str | Run], logs: bool = True) -> list[Run]:
    """Read run folders, and what archives of them hold; the same one twice counts once, a run is taken as it is."""
    found: dict[Path, Run] = {}
    several = list(paths)
    for each in several:
        path = each.path if isinstance(each, Run) else Path(each)
        if len(several) > 1 and path.name in BESIDE_RUNS and (path.parent / STUDY_FILE).is_file():
            continue  # SWEEP/* names them too
        if isinstance(each, Run):
            found[path.resolve()] = each
        elif (inside := split(path)) is not None:
            found |= {run.path.resolve(): run for run in read_archive(*inside, logs)}
        elif path.resolve() not in found:
            found[path.resolve()] = read(path, logs)
    return list(found.values())


def read_archive(archive: Path, pattern: str = "*", logs: bool = True) -> list[Run]:
    """Read the runs of an archive whose names are like the pattern."""
    with unpacked(archive) as place:
        folders = run_folders(place, pattern)
        if not folders:
            known = [folder.name for folder in run_folders(place)]
            if not known:
                raise UserError(f"{archive} has no run folder in it")
            more = " ..." * (len(known) > 3)
            raise UserError(f"{archive} has no run like {pattern}: it has {', '.join(known[:3])}{more}")
        return [
            dataclasses.replace(read(folder, logs), path=archive / folder.relative_to(place), archive=archive)
            for folder in folders
        ]


_NUMBERS = (
    "mean_return",
    "random_return",
    "training_return_10",
    "first_10_mean_return",
    "wall_seconds",
    "evaluation_seconds",
    "evaluation_epsilon",
)
_COUNTS = (
    *("steps", "frames", "updates", "games", "resets", "episodes", "random_episodes", "different_games", "seed"),
    "together",
)
_TEXTS = (
    *("command", "commit", "device", "form", "precision"),
    *("env", "preset", "scale", "protocol", "evaluated_networks"),
)
_TABLES = ("versions", "hardware")


def _check_result(result: Mapping[str, Any], file: Path) -> None:
    """Raise if a value is not of the kind that its readers rely on; what is not known here is not read."""
    for names, fits, kind in (
        (_NUMBERS, _finite, "number"),
        (_COUNTS, _is_count, "whole number"),
        (_TEXTS, _is_text, "text"),
        (_TABLES, lambda value: isinstance(value, dict) and all(map(_simple, value.values())), "table of words"),
    ):
        for name in names:
            needed = name in ("mean_return", "random_return")
            if (name in result or needed) and not fits(result.get(name)):
                but = f" but {shown(result[name])}" if name in result else ""
                raise UserError(f"{file} is damaged: {name} is no {kind}{but}")
    returns = result.get("returns")
    if not isinstance(returns, list) or not returns or not all(map(_finite, returns)):
        raise UserError(f"{file} is damaged: returns is no list of scores")


def _finite(value: Any) -> bool:
    return is_number(value) and math.isfinite(value)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _simple(value: Any) -> bool:
    return value is None or isinstance(value, str) or type(value) is int


def _plain(value: Any) -> bool:
    return isinstance(value, str | bool) or is_number(value)


def _stand_in(meta: Mapping[str, Any], file: Path) -> Recipe:
    """A recipe that carries the few things every run has."""
    for names, fits, kind in (
        (("env", "name", "evaluation"), _is_text, "text"),
        (("seed", "steps", "actions"), _is_count, "whole number"),
        (("protocol",), lambda value: isinstance(value, dict), "table"),
        (("parameters",), lambda value: isinstance(value, dict) and all(map(_plain, value.values())), "table of words"),
    ):
        for name in names:
            if meta.get(name) is not None and not fits(meta[name]):
                raise UserError(f"{file} is damaged: {name} is no {kind} but {shown(meta[name])}")
    rules = dict(meta.get("protocol") or {"name": "gymnasium"})
    if not isinstance(name := rules.pop("name", None), str):
        raise UserError(f"{file} is damaged: protocol.name is no text but {shown(name)}")
    try:
        recipe = Recipe(
            env=_known(meta.get("env") or "unknown"),
            protocol=Protocol(name),
            preset=meta.get("name") or "monitored",
            scale="",
            steps=max(1, meta.get("steps") or 1),
            seed=meta.get("seed") or 0,
        )
        return recipe.override({f"protocol.{key}": value for key, value in rules.items()})
    except UserError as error:
        raise UserError(f"{file}: {error}") from None


def _known(env: str) -> str:
    """The environment's name as our own runs write it, if it is one we know."""
    try:
        return envs.canonical(env)
    except UserError:
        return env


def actions(run: Run) -> int | None:
    """How many actions the environment has, if the run says so or it is one that this package itself brings."""
    recipe = run.recipe
    if run.meta is not None:
        return run.meta.get("actions")
    if somebodys(recipe.env, recipe.protocol.wrappers):
        return None
    try:
        return envs.spec(recipe.env, recipe.protocol).num_actions
    except UserError:
        return None
