"""A sweep folder as it is read: its study, and the runs that have begun, by environment, variant and seed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from steadyq.errors import UserError
from steadyq.run.folder import RunFolder
from steadyq.scores.published import Scores
from steadyq.suite.archive import split, unpacked
from steadyq.suite.runs import Run, read
from steadyq.suite.study import STUDY_FILE, Study, run_name, sweep_study

Measure = Literal["mean_return", "training_return_10"]
"""What of a result counts as the score: the evaluation, or the paper's last 10 training games."""


@dataclass(frozen=True)
class Sweep:
    """A sweep, read once."""

    path: Path
    """Its folder or archive."""
    study: Study
    cells: Mapping[str, Mapping[str, tuple[Run, ...]]]

    @property
    def runs(self) -> list[Run]:
        """Every run that has begun."""
        return [run for variants in self.cells.values() for runs in variants.values() for run in runs]

    @property
    def names(self) -> dict[Path, str]:
        """The variant of every run, by its path."""
        return {run.path: label for variants in self.cells.values() for label, runs in variants.items() for run in runs}

    @property
    def planned(self) -> int:
        """Runs of the whole study."""
        return len(self.study.games) * len(self.study.labels) * len(self.study.seeds)

    @property
    def finished(self) -> int:
        """Runs with a result."""
        return sum(run.result is not None for run in self.runs)

    def scores(self, label: str, envs: Sequence[str] | None = None, of: Measure = "mean_return") -> Scores | None:
        """One variant's evaluation means (or another result) by game and seed; None before a run has finished."""
        found = {
            env: {
                run.seed: float(run.result[of])
                for run in variants.get(label, ())
                if run.result and run.result.get(of) is not None
            }
            for env, variants in self.cells.items()
            if envs is None or env in envs
        }
        found = {env: column for env, column in found.items() if column}
        return Scores(found) if found else None

    @property
    def complete(self) -> list[str]:
        """Games on which every variant has a finished seed: only there can variants be compared."""
        return [
            env
            for env in self.study.games
            if all(any(run.result for run in self.cells.get(env, {}).get(label, ())) for label in self.study.labels)
        ]


def is_sweep(path: Path) -> bool:
    """Whether this is a sweep folder, or an archive of one."""
    if (inside := split(path)) is None:
        return (path / STUDY_FILE).is_file()
    if inside[1] != "*":
        return False
    with unpacked(inside[0]) as place:
        return _top(place) is not None


def read_sweep(path: Path | str, logs: bool = True) -> Sweep:
    """Read a sweep folder, or an archive of one; without `logs` no more than recipes and results."""
    path = Path(path)
    if split(path) is None:
        return _read(path, path, None, logs)
    with unpacked(path) as place:
        return _read(_top(place) or place, path, path, logs)


def _top(place: Path) -> Path | None:
    """Where in an unpacked archive the sweep is: at its top, or in the one folder there."""
    return next((each for each in (place, *place.iterdir()) if (each / STUDY_FILE).is_file()), None)


def _read(folder: Path, path: Path, archive: Path | None, logs: bool) -> Sweep:
    study = sweep_study(folder)
    cells: dict[str, dict[str, tuple[Run, ...]]] = {}
    for env in study.games:
        for label in study.labels:
            names = [run_name(env, label if study.variants else "", seed) for seed in study.seeds]
            runs = tuple(
                replace(read(folder / name, logs), path=path / name, archive=archive)
                for name in names
                if RunFolder(folder / name).begun
            )
            if runs:
                cells.setdefault(env, {})[label] = runs
    if not cells:
        raise UserError(f"{path} has no runs yet: `steadyq sweep` starts them")
    return Sweep(path, study, cells)


def state(sweep: Sweep) -> str:
    """What a table of it rests on: games, seeds, protocol, and how much of the sweep has finished."""
    runs = sweep.runs
    protocols = ", ".join(dict.fromkeys(run.recipe.protocol.label for run in runs))
    presets = ", ".join(dict.fromkeys(run.made_by for run in runs))
    return (
        f"{len(sweep.cells)} game{'s' * (len(sweep.cells) > 1)}, {which_seeds(runs)}, protocol {protocols}, preset "
        f"{presets}, {max(run.recipe.steps for run in runs):,} steps; {sweep.finished} of {sweep.planned} runs "
        "finished."
    )


def which_seeds(runs: Iterable[Run]) -> str:
    """The seeds of some runs in words: `seed 0`, `seeds 0, 1`, `seeds 0 to 4`."""
    spans: list[list[int]] = []
    for seed in sorted({run.seed for run in runs}):
        if spans and seed == spans[-1][-1] + 1:
            spans[-1].append(seed)
        else:
            spans.append([seed])
    words = [f"{span[0]} to {span[-1]}" if len(span) > 2 else ", ".join(map(str, span)) for span in spans]
    several = len(spans) > 1 or len(spans[0]) > 1
    return f"seed{'s' * several} {', '.join(words)}"
