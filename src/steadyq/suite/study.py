"""Suites and studies: which games, seeds and variants a sweep runs, declared in small TOML files.

A study is a file such as this one (all of `studies/*.toml` are), which a user can copy, change and pass by its path:

    title = "Decoupling"
    question = "Does forbidding the rewarded action help?"
    games = ["MinAtar/Breakout", "ablation4"]   # environments, or another suite's games
    preset = "steady"                           # optional, like scale
    seeds = 5                                   # 0 to 4; a list names them
    [settings]                                  # changes to every run, as dotted options of `steadyq train`
    replay.capacity = 50_000
    [variants."forbid none"]                    # what the study compares; without variants it is a suite
    operator.forbid = "none"
    [needs]                                     # what a recipe must have for the study to mean something
    operator.kind = "controlled"
    [figure]                                    # columns of metrics.jsonl to draw, or kind = "spikes" or "remedies"
    columns = ["return_10", "q_taken"]
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from steadyq import envs
from steadyq.errors import UserError, nearest, shown
from steadyq.fields import flatten, read_toml, toml, within
from steadyq.presets import recipe_for
from steadyq.recipe import Recipe
from steadyq.run.files import read_text

STUDY_FILE = "sweep.toml"
"""A sweep folder's study, in that folder."""
DRAWN = (
    "return_10", "return_100", "resets_per_check", "frames", "updates", "samples", "games", "epsilon", "ceiling",
    "resets", "loss", "q_taken", "q_max", "q_spread", "target", "clipped", "same_action", "rewarded",
    "same_action_rewarded", "same_action_unrewarded", "gradient_norm", "gradient_clipped", "auxiliary", "seconds",
)  # fmt: skip
"""Columns that a figure can have, of metrics.jsonl; besides these `diagnostics.` and a column of the other file."""

FIGURES = ("curves", "spikes", "remedies")
_KEYS = ("name", "title", "question", "games", "preset", "scale", "seeds", "settings", "variants", "needs", "figure")
MOST_RUNS = 100_000
NO_REMEDY = "none"
"""The variant that remedies are compared with."""
_RESERVED = {"env": "--games", "seed": "--seeds"}


@dataclass(frozen=True)
class Study:
    """What to run: every variant on every game with every seed."""

    name: str
    title: str
    question: str
    games: tuple[str, ...]
    preset: str = "steady"
    scale: str = ""
    """Empty for each environment's own."""
    seeds: tuple[int, ...] = (0,)
    settings: Mapping[str, Any] = field(default_factory=dict)
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Dotted changes by name; `preset` and `scale` may vary too."""
    needs: Mapping[str, Any] = field(default_factory=dict)
    figure: Literal["curves", "spikes", "remedies"] = "curves"
    columns: tuple[str, ...] = ("return_10",)

    @property
    def varied(self) -> tuple[str, ...]:
        """Dotted options in which variants differ."""
        return tuple(dict.fromkeys(name for changes in self.variants.values() for name in changes))

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the variants; a suite has one, named by its preset."""
        return tuple(self.variants) or (self.preset,)

    def changed(
        self,
        *,
        preset: str = "",
        scale: str = "",
        seeds: int | None = None,
        games: Sequence[str] = (),
        variants: Sequence[str] = (),
        settings: Mapping[str, Any] | None = None,
    ) -> "Study":
        """Return the study with what a command line asks for; what the study itself varies cannot be set."""
        settings = dict(settings or {})
        given = [*settings, *(["preset"] if preset else []), *(["scale"] if scale else [])]
        for name in given:
            if name in self.varied:
                raise UserError(f"{name} is what the study {self.name!r} varies: it cannot be set for all of its runs")
            if name in _RESERVED:
                raise UserError(f"a sweep has many of them: use {_RESERVED[name]} instead of --{name}")
        if seeds is not None:
            within("--seeds", seeds, 1)
            _check_number(seeds, self.name)
        return replace(
            self,
            preset=preset or self.preset,
            scale=scale or self.scale,
            seeds=tuple(range(seeds)) if seeds is not None else self.seeds,
            games=tuple(dict.fromkeys(found for game in games for found in _games(game, self.games))) or self.games,
            settings={**self.settings, **settings},
            variants=self._chosen(variants) if variants else self.variants,
        )

    def _chosen(self, patterns: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        """The variants that any of some patterns names, each of which must name one."""
        if not self.variants:
            raise UserError(f"{self.name} has no variants to choose from: --preset sets what all of its runs train")
        for pattern in patterns:
            if not any(fnmatchcase(label, pattern) for label in self.variants):
                raise UserError(f"{pattern!r} is none of this study's variants: {nearest(pattern, self.variants)}")
        return {
            label: changes
            for label, changes in self.variants.items()
            if any(fnmatchcase(label, pattern) for pattern in patterns)
        }

    def united(self, other: "Study") -> "Study":
        """Return both in one, as a folder that gains games, seeds or variants; anything else that differs raises."""
        for name in ("name", "preset", "scale", "needs"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                raise UserError(f"{name}: {mine!r} != {theirs!r}")
        for option in sorted({*self.settings, *other.settings}):
            mine, theirs = self.settings.get(option), other.settings.get(option)
            if mine != theirs and not option.startswith("compute."):
                raise UserError(f"{option}: {_given(mine)} != {_given(theirs)}")
        for label in self.variants:
            if label in other.variants and self.variants[label] != other.variants[label]:
                raise UserError(f"variant {label!r}: {self.variants[label]} != {other.variants[label]}")
        if bool(self.variants) != bool(other.variants):
            raise UserError("one has variants, the other has none")
        return replace(
            self,
            games=tuple(dict.fromkeys((*other.games, *self.games))),
            seeds=tuple(sorted({*other.seeds, *self.seeds})),
            variants={**other.variants, **self.variants},
        )

    def recipe(self, label: str, env: str, seed: int) -> Recipe:
        """Return the recipe of one run."""
        changes = {**self.settings, **self.variants.get(label, {}), "seed": seed}
        preset, scale = changes.pop("preset", self.preset), changes.pop("scale", self.scale)
        try:
            recipe = recipe_for(preset, env, scale).override(changes)
        except UserError as error:
            where = f"study {self.name}" + (f", variant {label!r}" if self.variants else "")
            raise UserError(f"{where}: {error}") from None
        have = flatten(recipe.to_dict())
        for name, value in self.needs.items():
            if have.get(name) != value:
                raise UserError(f"{self.name} needs {name} {value}, {env} has {have.get(name)}: choose other --games")
        return recipe

    def runs(self) -> tuple["PlannedRun", ...]:
        """Expand into runs: first seeds of everything first, so that an unfinished sweep can be compared."""
        _check_number(len(self.seeds) * len(self.games) * len(self.labels), self.name)
        firsts = {(env, label): self.recipe(label, env, self.seeds[0]) for env in self.games for label in self.labels}
        planned = [
            PlannedRun(run_name(env, label if self.variants else "", seed), label, replace(first, seed=seed))
            for seed in self.seeds
            for (env, label), first in firsts.items()
        ]
        seen: dict[str, PlannedRun] = {}
        for run in planned:
            if run.name in seen:
                raise UserError(f"variants {seen[run.name].label!r} and {run.label!r} have the same folder name")
            seen[run.name] = run
        return tuple(planned)

    def to_toml(self) -> str:
        """The study as a file that `read_study` reads back."""
        top: dict[str, Any] = {"name": self.name, "title": self.title, "question": self.question}
        top |= {"games": list(self.games), "preset": self.preset, "scale": self.scale, "seeds": list(self.seeds)}
        figure: dict[str, Any] = {"kind": self.figure, "columns": list(self.columns)}
        tables = {"settings": self.settings, "needs": self.needs, "figure": figure}
        tables |= {f"variants.{toml(label)}": changes for label, changes in self.variants.items()}
        lines = _toml_lines(top)
        for name, table in tables.items():
            if table or name.startswith("variants."):
                lines += ["", f"[{name}]", *_toml_lines(table)]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep: its folder's name, its variant and its recipe."""

    name: str
    label: str
    recipe: Recipe


def suite_names() -> tuple[str, ...]:
    """Every suite and study that comes with the package."""
    folder = resources.files("steadyq.suite").joinpath("studies")
    return tuple(sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml")))


def find_study(name: str) -> Study:
    """Return a suite or study by its name, from the file at a path, or of one environment; an unknown name raises and
    says the nearest.
    """
    if name.endswith(".toml"):
        path = Path(name)
        if not path.is_file():
            raise UserError(f"no study file {name}")
        return read_study(_study_text(path), path.stem)
    if re.search(r"[/:]|-v\d+$", name):
        env = envs.canonical(name)
        return Study(file_name(env), env, "How well does it play, over seeds?", (env,))
    if name not in suite_names():
        raise UserError(
            f"unknown suite {name!r}: {nearest(name, suite_names())} (or an environment such as CartPole-v1, or the "
            "path of a .toml file)"
        )
    file = resources.files("steadyq.suite").joinpath("studies", f"{name}.toml")
    return read_study(file.read_text(encoding="utf-8"), name)


def read_study(text: str, name: str) -> Study:
    """Read a study; unknown keys, games, presets and options raise with the nearest that exists."""
    table = read_toml(text, f"study {name}")
    for key in table:
        if key not in _KEYS:
            raise UserError(f"study {name}: unknown key {shown(key)}: {nearest(key, _KEYS)}")
    name = _name(_text(table, "name", name, name))
    games = table.get("games")
    if not isinstance(games, list) or not games or not all(isinstance(game, str) for game in games):
        raise UserError(f'study {name}: games must be a list such as ["MinAtar/Breakout"]')
    variants = _table(table, "variants", name)
    for label, changes in variants.items():
        if not isinstance(changes, dict):
            raise UserError(f"study {name}: variant {label!r} must be a table of options, empty for the preset itself")
    figure = _table(table, "figure", name)
    for key in figure:
        if key not in ("kind", "columns"):
            raise UserError(f"study {name}: unknown key figure.{key}: {nearest(key, ('kind', 'columns'))}")
    kind, columns = figure.get("kind", "curves"), figure.get("columns", ["return_10"])
    if kind not in FIGURES:
        raise UserError(f"study {name}: figure.kind cannot be {kind!r}: {nearest(str(kind), FIGURES)}")
    if not isinstance(columns, list) or not columns or not all(isinstance(column, str) for column in columns):
        raise UserError(f'study {name}: figure.columns must be a list such as ["return_10", "q_taken"]')
    for column in columns:
        if not column.startswith("diagnostics.") and column not in DRAWN:
            raise UserError(f"study {name}: figure.columns has no {column!r}: {nearest(column, DRAWN)}")
    study = Study(
        name=name,
        title=_text(table, "title", name, name),
        question=_text(table, "question", "", name),
        games=tuple(dict.fromkeys(found for game in games for found in _games(game))),
        preset=_text(table, "preset", "steady", name),
        scale=_text(table, "scale", "", name),
        seeds=_seeds(table.get("seeds", 1), name),
        settings=flatten(_table(table, "settings", name)),
        variants={label: flatten(changes) for label, changes in variants.items()},
        needs=flatten(_table(table, "needs", name)),
        figure=kind,
        columns=tuple(columns),
    )
    if study.figure == "remedies":
        _check_remedies(study)
    for option in (*study.settings, *study.varied):
        if option in _RESERVED:
            key = _RESERVED[option].removeprefix("--")
            raise UserError(f"study {name}: {option} cannot be set, a sweep has many (use {key} of the study)")
    return study


def sweep_study(out: Path) -> Study:
    """The study a sweep folder belongs to."""
    file = out / STUDY_FILE
    if not file.is_file():
        raise UserError(f"{out} is not a sweep folder: it has no {STUDY_FILE}")
    return read_study(_study_text(file), out.name)


def _study_text(file: Path) -> str:
    try:
        return read_text(file)
    except UnicodeDecodeError:
        raise UserError(f"{file} is damaged: it is not text in UTF-8") from None


def run_name(env: str, label: str, seed: int) -> str:
    """A run's folder in its sweep, such as Atari-Alien-forbid-none-seed0."""
    return file_name(env, label, f"seed{seed}")


def file_name(*words: str) -> str:
    """Words joined into a name that is one on every system, and leads to no other folder."""
    return "-".join(re.sub(r"[^A-Za-z0-9.]+", "-", word).strip("-") for word in words if word)


def _games(name: str, known: Sequence[str] = ()) -> Iterable[str]:
    """What a name in a list of games stands for: a suite's games, one of `known` without backend, or an environment."""
    if name in suite_names():
        return find_study(name).games
    if "/" not in name and known:
        short = {env.partition("/")[2].lower(): env for env in known}
        if name.lower() in short:
            return (short[name.lower()],)
        if not re.search(r"-v\d+$", name):
            raise UserError(f"{name!r} is none of this study's games: {nearest(name, [*short.values()])}")
    return (envs.canonical(name),)


def _seeds(value: Any, name: str) -> tuple[int, ...]:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        _check_number(value, name)
        return tuple(range(value))
    if isinstance(value, list) and value and all(type(seed) is int and seed >= 0 for seed in value):
        return tuple(sorted(set(value)))
    raise UserError(f"study {name}: seeds must be a number of seeds or a list of them, got {shown(value)}")


def parted(label: str) -> tuple[str, str]:
    """The setup and the remedy of a variant that a study of remedies names `setup: remedy`."""
    setup, found, remedy = label.rpartition(": ")
    if not found:
        raise UserError(f"a study of remedies names its variants 'setup: remedy', not {label!r}")
    return setup, remedy


def _check_remedies(study: Study) -> None:
    """Raise unless every variant is a remedy of a setup that is there without one."""
    for setup in dict.fromkeys(parted(label)[0] for label in study.labels):
        if f"{setup}: {NO_REMEDY}" not in study.labels:
            raise UserError(f"study {study.name}: a variant '{setup}: {NO_REMEDY}' is needed to compare remedies with")


def _check_number(runs: int, name: str) -> None:
    """Raise if no sweep could ever run so many: their plan alone would take all memory."""
    if runs > MOST_RUNS:
        number = f"{runs:,}" if runs < 10**15 else shown(runs)
        raise UserError(f"study {name}: {number} runs are too many, a sweep has at most {MOST_RUNS:,}")


def _name(name: str) -> str:
    """A study's name, which is also that of its folder and figures: one that stays where they are."""
    if not name or len(name) > 100 or name[0] in ".- " or not name.isprintable() or re.search(r"[/\\]", name):
        raise UserError(
            f"a study's name cannot be {shown(name)}: it names files, so use letters and figures, without / or \\"
        )
    return name


def _text(table: Mapping[str, Any], key: str, default: str, name: str) -> str:
    value = table.get(key, default)
    if not isinstance(value, str):
        raise UserError(f"study {name}: {key} must be text, got {shown(value)}")
    return value


def _table(table: Mapping[str, Any], key: str, name: str) -> dict[str, Any]:
    value = table.get(key, {})
    if not isinstance(value, dict):
        raise UserError(f"study {name}: [{key}] must be a table")
    return value


def _toml_lines(table: Mapping[str, Any]) -> list[str]:
    return [f"{key} = {toml(value)}" for key, value in table.items()]


def _given(value: Any) -> str:
    return "not set" if value is None else repr(value)
