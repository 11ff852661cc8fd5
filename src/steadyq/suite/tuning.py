"""A search for a better recipe: trials of several seeds each, chosen and cut short by Optuna.

A tuning is a folder: `tuning.toml` (what is searched), `trials.log` (Optuna's journal, plain JSON lines), a folder for
every trial with a run for every seed. Any number of processes work on it at once, here or on machines that share the
folder; one that is killed loses nothing, because its trial is taken up again where its runs were.
"""

import contextlib
import errno
import fcntl
import os
import statistics
import tomllib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from steadyq.errors import UserError
from steadyq.recipe import Recipe
from steadyq.run.callbacks import Callback, Evaluation, Live
from steadyq.run.files import open_plain, read_text, replace_text
from steadyq.run.loop import train
from steadyq.run.step import Diverged

EXTRA = "pip install 'steadyq[tune]'"
JOURNAL, DESCRIPTION, BEST = "trials.log", "tuning.toml", "best.toml"
LOOKS = 4
"""Evaluations on the way of each run, after which a trial may be cut short."""
CUT = "cut short: worse than half of the trials before it"


@dataclass(frozen=True)
class Range:
    """Numbers between two ends, evenly or by their logarithm."""

    low: float
    high: float
    log: bool = False

    def suggest(self, trial: Any, name: str) -> Any:
        """One of them, chosen by the sampler."""
        return trial.suggest_float(name, self.low, self.high, log=self.log)

    def text(self) -> str:
        """As in the file."""
        return f"{{ low = {self.low!r}, high = {self.high!r}, log = {str(self.log).lower()} }}"


@dataclass(frozen=True)
class Choice:
    """A few values."""

    values: tuple[Any, ...]

    def suggest(self, trial: Any, name: str) -> Any:
        """One of them, chosen by the sampler."""
        return trial.suggest_categorical(name, list(self.values))

    def text(self) -> str:
        """As in the file."""
        return f"{{ choices = [{', '.join(_toml(value) for value in self.values)}] }}"


Space = Mapping[str, Range | Choice]


def default_space(recipe: Recipe) -> Space:
    """What is worth searching in any recipe: the step sizes, how much is learned from what, how far ahead."""
    return {
        "optim.rate": Range(1e-4, 5e-3, log=True),
        "optim.tau": Range(0.002, 0.1, log=True) if not recipe.optim.hard_copy_every else Choice((recipe.optim.tau,)),
        "optim.gamma": Choice((0.97, 0.99, 0.995)),
        "replay.batch": Choice((32, 64, 128)),
        "replay.n_step": Choice((1, 3, 5)),
        "replay.ratio": Choice((1, 2)),
    }


def read_space(text: str, where: object, recipe: Recipe) -> Space:
    """A search space from TOML: dotted options, each with `low` and `high` (and `log`), or `choices`."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{where}: {error}") from None
    space: dict[str, Range | Choice] = {}
    for name, found in _dotted(table):
        said = f"{where}: {name} should be {{ low = 0.1, high = 1.0 }}, log = true or not, or {{ choices = [1, 2] }}"
        if not isinstance(found, dict):
            raise UserError(said)
        match found:
            case {"choices": [_, *_] as values, **rest} if not rest:
                space[name] = Choice(tuple(values))
            case {"low": int() | float() as low, "high": int() | float() as high, **rest} if rest.keys() <= {"log"}:
                log = bool(rest.get("log", False))
                if not low < high or (log and low <= 0):
                    raise UserError(f"{where}: {name} must have low < high" + ", and above 0 with log = true" * log)
                space[name] = Range(float(low), float(high), log)
            case _:
                raise UserError(said)
    if not space:
        raise UserError(f"{where}: names nothing to search")
    check_space(space, recipe)
    return space


def check_space(space: Space, recipe: Recipe) -> None:
    """Raise if an option does not exist, or one of its ends is not allowed."""
    for name, part in space.items():
        if name == "seed" or "." not in name:
            raise UserError(f"{name} cannot be searched: name options with a dot, such as optim.rate")
        for value in (part.low, part.high) if isinstance(part, Range) else part.values:
            recipe.override({name: value})


def dearest(space: Space, recipe: Recipe) -> Recipe:
    """The recipe with each number of the space at the end where learning costs more, where it may be there."""
    for name, part in space.items():
        values = (part.low, part.high) if isinstance(part, Range) else part.values
        if all(isinstance(value, int | float) for value in values):
            with contextlib.suppress(UserError):
                recipe = recipe.override({name: min(values) if name == "replay.every" else max(values)})
    return recipe


@dataclass
class Tuning:
    """What is searched, where, and how long."""

    recipe: Recipe
    space: Space
    out: Path
    trials: int
    seeds: int
    say: Callable[[str], None] = print

    def __post_init__(self) -> None:
        """Look at the recipe with everything that a trial adds to it."""
        every = max(1, self.recipe.steps // LOOKS)
        changes = {"evaluation.every": every, "record.tensorboard": False, "record.checkpoint_every": every}
        self.recipe = self.recipe.override(changes)

    def begin(self) -> Any:
        """Make the folder or find it as it was left; returns Optuna's study."""
        optuna = optuna_module()
        text = self.to_toml()
        file = self.out / DESCRIPTION
        if self.out.exists() and any(self.out.iterdir()) and not file.is_file():
            raise UserError(f"--out {self.out}: there is something else; name a new folder")
        if file.is_file() and (before := read_text(file)) != text:
            lines = zip(before.splitlines(), text.splitlines(), strict=False)
            was, now = next(((a, b) for a, b in lines if a != b), ("", ""))
            was, now = (line.lstrip("# ") or "nothing" for line in (was, now))
            raise UserError(f"{self.out} searches something else ({was}, not {now}); name another folder with --out")
        self.out.mkdir(parents=True, exist_ok=True)
        replace_text(file, text)
        return open_study(self.out, optuna)

    def ended(self) -> int:
        """Trials that came to an end before."""
        if not (self.out / JOURNAL).is_file():
            return 0
        trials = open_study(self.out, optuna_module()).get_trials(deepcopy=False)
        return sum(trial.state.is_finished() for trial in trials)

    def to_toml(self) -> str:
        """What makes this search the same search, as a file."""
        space = "".join(f'"{name}" = {part.text()}\n' for name, part in self.space.items())
        return f"seeds = {self.seeds}\n\n[space]\n{space}\n# the recipe that trials change\n{_commented(self.recipe)}"

    def work(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Carry out trials until there are enough, together with whoever else works on them."""
        study = self.begin()
        while not stop():
            with self._next(study) as trial:
                if trial is None:
                    return
                self._attempt(study, trial)

    @contextlib.contextmanager
    def _next(self, study: Any) -> Iterator[Any]:
        """A trial that nobody works on: one that was left, or a new one; None where there are enough."""
        optuna = optuna_module()
        held: IO[str] | None = None
        trial = None
        with _locked(self.out / "lock", wait=True):
            known = study.get_trials(deepcopy=False)
            for left in (t for t in known if t.state == optuna.trial.TrialState.RUNNING):
                if (held := _lock(self._folder(left.number) / "lock")) is not None:
                    trial = optuna.trial.Trial(study, left._trial_id)
                    break
            if trial is None and len(known) < self.trials:
                trial = study.ask()
                held = _lock(self._folder(trial.number) / "lock")
        try:
            yield trial
        finally:
            if held is not None:
                held.close()

    def _folder(self, number: int) -> Path:
        folder = self.out / "trials" / f"{number:04d}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _attempt(self, study: Any, trial: Any) -> None:
        """Train every seed of a trial; a seed that is finished already is read."""
        state = optuna_module().trial.TrialState
        changes = {name: part.suggest(trial, name) for name, part in self.space.items()}
        said = ", ".join(f"{name} {_short(value)}" for name, value in changes.items())
        scores: list[float] = []
        try:
            recipe = self.recipe.override(changes)
            for seed in range(self.seeds):
                looking = _Looking(trial, scores)
                folder = train(
                    recipe.override({"seed": seed}), run=self._folder(trial.number) / f"seed{seed}", quiet=True,
                    callbacks=[looking],
                )  # fmt: skip
                result = folder.result or {}
                if result.get("stopped") == CUT:
                    study.tell(trial.number, state=state.PRUNED)
                    self.say(f"trial {trial.number}: cut short with seed {seed} ({said})")
                    return
                scores.append(float(result["mean_return"]))
        except (Diverged, UserError) as error:
            study.tell(trial.number, state=state.FAIL)
            self.say(f"trial {trial.number}: failed, {error} ({said})")
            return
        study.tell(trial.number, statistics.mean(scores))
        best = study.best_trial
        marked = f"; best {best.value:.2f} of trial {best.number}"
        marked = ", the best so far" if best.number == trial.number else marked
        self.say(f"trial {trial.number}: mean return {statistics.mean(scores):.2f} ({said}){marked}")

    def best(self, study: Any) -> tuple[Recipe, dict[str, Any], float]:
        """The best recipe, what it changes, and what it scored in the search."""
        if not any(trial.value is not None for trial in study.get_trials(deepcopy=False)):
            raise UserError(f"{self.out} has no trial that came to its end: search longer, or something narrower")
        best = study.best_trial
        quiet = {"evaluation.every": 0, "record.tensorboard": True, "record.checkpoint_every": 10_000}
        return self.recipe.override({**quiet, **best.params}), dict(best.params), float(best.value)


class _Looking(Callback):
    """Reports evaluations on the way to the search, and ends what is worse than half of what was seen before."""

    def __init__(self, trial: Any, before: Sequence[float]) -> None:
        self.trial, self.before = trial, tuple(before)

    def on_evaluation(self, run: Live, evaluation: Evaluation) -> None:
        place = len(self.before) * (LOOKS + 1) + round(LOOKS * evaluation.step / run.steps)
        self.trial.report(statistics.mean((*self.before, evaluation.mean_return)), place)
        if evaluation.step < run.steps and self.trial.should_prune():
            run.stop(CUT)


def optuna_module() -> Any:
    """Optuna, quiet; raises a line that says how to get it."""
    try:
        import optuna
    except ImportError:
        raise UserError(f"tuning needs the package optuna: {EXTRA}") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def open_study(out: Path, optuna: Any) -> Any:
    """Optuna's study in a tuning's folder, made where there is none."""
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock, JournalStorage

    file = str(out / JOURNAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        storage = JournalStorage(JournalFileBackend(file, lock_obj=JournalFileOpenLock(file)))
        return optuna.create_study(
            study_name="tuning", storage=storage, direction="maximize", load_if_exists=True,
            sampler=optuna.samplers.TPESampler(n_startup_trials=8, multivariate=True, constant_liar=True),
            pruner=optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=1),
        )  # fmt: skip


def importances(study: Any) -> dict[str, float]:
    """Share of the differences between trials' ranks that each option alone explains, most first, chance taken off.

    A range counts by its thirds. A trial that was cut short counts with what it had by then: it shows what not to
    choose. Nothing where too few were tried to say.
    """
    ended = [trial for trial in study.get_trials(deepcopy=False) if trial.value is not None]
    if len(ended) < 4 or len({trial.value for trial in ended}) < 2:
        return {}
    _, place, count = np.unique([trial.value for trial in ended], return_inverse=True, return_counts=True)
    rank = (np.cumsum(count) - (count - 1) / 2)[place]  # ties share one
    found = {
        name: _explained(rank, [trial.params[name] for trial in ended], thirds=not hasattr(kind, "choices"))
        for name, kind in ended[0].distributions.items()
    }
    return dict(sorted(found.items(), key=lambda each: -each[1]))


def _explained(rank: np.ndarray, values: Sequence[Any], thirds: bool) -> float:
    """Epsilon squared: the variance between groups of like values, in all variance, less what chance would give."""
    if thirds:
        group = np.argsort(np.argsort(values)) * 3 // len(values)
    else:
        group = np.unique([str(value) for value in values], return_inverse=True)[1]
    kinds = np.unique(group)
    if len(kinds) == len(rank):
        return 0.0
    within = sum(float(np.var(rank[group == kind]) * np.sum(group == kind)) for kind in kinds)
    return max(0.0, 1 - within / (len(rank) - len(kinds)) / float(np.var(rank, ddof=1)))


def _lock(file: Path) -> IO[str] | None:
    """The file, locked until it is closed; None where another process has it."""
    handle = open(open_plain(file, os.O_RDWR | os.O_CREAT))  # noqa: SIM115 held until its owner closes it
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        handle.close()
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return None
        raise UserError(f"{file.parent} is on a file system that keeps no locks: choose a folder elsewhere") from None
    return handle


@contextlib.contextmanager
def _locked(file: Path, wait: bool) -> Iterator[None]:
    with open(open_plain(file, os.O_RDWR | os.O_CREAT)) as handle:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def _dotted(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Options by their whole name, whether written as "optim.rate" or under [optim]."""
    for name, value in table.items():
        leaf = not isinstance(value, dict) or {"low", "high", "choices"} & value.keys()
        if leaf:
            yield f"{before}{name}", value
        else:
            yield from _dotted(value, f"{before}{name}.")


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _commented(recipe: Recipe) -> str:
    return "".join(f"# {line}".rstrip() + "\n" for line in recipe.to_toml().splitlines())
