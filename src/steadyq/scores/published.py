"""Scores: ours, one per game and seed, and the published ones, one per game and algorithm, with their sources."""

import csv
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from steadyq.errors import UserError, nearest

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Scores:
    """One score per seed for each game, `{game: {seed: score}}`, kept sorted so that file order changes nothing.

    A seed is the only unit of replication. Episodes of one seed share one set of weights, so treating them as
    replicates makes intervals too narrow; the mapping leaves no place to put them.
    """

    by_seed: Mapping[str, Mapping[int, float]]

    def __post_init__(self) -> None:
        if not self.by_seed:
            raise UserError("no scores: at least one game with one seed is needed")
        kept: dict[str, Mapping[int, float]] = {}
        for game in sorted(self.by_seed):
            column = self.by_seed[game]
            if not isinstance(column, Mapping):
                raise UserError(
                    f"{game}: scores come as {{seed: score}}, one per seed; average a seed's episodes first"
                )
            if not column:
                raise UserError(f"{game}: no seed has a score")
            checked = {_seed(game, seed): _score(game, seed, score) for seed, score in column.items()}
            kept[game] = MappingProxyType(dict(sorted(checked.items())))
        object.__setattr__(self, "by_seed", MappingProxyType(kept))

    @property
    def games(self) -> tuple[str, ...]:
        """The games, sorted."""
        return tuple(self.by_seed)

    def seeds(self, game: str) -> tuple[int, ...]:
        """Return the seeds of one game, sorted."""
        return tuple(self._column(game))

    def __getitem__(self, game: str) -> Array:
        return np.array(list(self._column(game).values()), dtype=np.float64)

    def __len__(self) -> int:
        return len(self.by_seed)

    def columns(self) -> list[Array]:
        """Return one array [seed] per game; games may have different numbers of seeds."""
        return [self[game] for game in self.games]

    def means(self) -> Array:
        """Return each game's mean over seeds, [game]."""
        return np.array([column.mean() for column in self.columns()])

    def balanced(self) -> "Scores":
        """Keep the seeds that every game has, as a sweep that is still running needs for pooled statistics."""
        shared = set.intersection(*(set(column) for column in self.by_seed.values()))
        if not shared:
            raise UserError("no seed has a score in every game")
        return Scores({game: {s: v for s, v in column.items() if s in shared} for game, column in self.by_seed.items()})

    def apply(self, change: Callable[[str, Array], Array]) -> "Scores":
        """Return the scores after `change(game, scores[seed])`, for instance a normalisation."""
        changed = {game: change(game, self[game]).tolist() for game in self.games}
        return Scores({game: dict(zip(self.seeds(game), values, strict=True)) for game, values in changed.items()})

    def _column(self, game: str) -> Mapping[int, float]:
        if game not in self.by_seed:
            raise UserError(f"no scores for {game!r}; {nearest(game, self.by_seed)}")
        return self.by_seed[game]


def _seed(game: str, seed: object) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise UserError(f"{game}: a seed is a whole number, not {seed!r}")
    return int(seed)


def _score(game: str, seed: object, score: object) -> float:
    if isinstance(score, bool) or not isinstance(score, int | float | np.integer | np.floating):
        raise UserError(f"{game}, seed {seed}: one number per seed is needed; average its episodes first")
    if not math.isfinite(score):
        raise UserError(f"{game}, seed {seed}: the score is {score}")
    return float(score)


@dataclass(frozen=True)
class Source:
    """Where a published column comes from, what it really is, and how far it was checked."""

    column: str
    printed_name: str
    name: str
    what: str
    source: str
    seeds: str
    verified: Literal["yes", "partly", "no"]
    note: str


@dataclass(frozen=True)
class Published:
    """Published per-game scores of one benchmark with its two normalisation constants per game."""

    benchmark: str
    low: Mapping[str, float]
    high: Mapping[str, float]
    scores: Mapping[str, Mapping[str, float]]  # column -> game -> score
    sources: Mapping[str, Source]
    quantum: Mapping[str, float]  # step of an episode's score, where known
    bold: Mapping[str, str] = field(default_factory=dict)  # game -> the column printed in bold

    @property
    def games(self) -> tuple[str, ...]:
        """The games in the paper's order."""
        return tuple(self.low)

    def raw(self, column: str) -> Array:
        """Return one column's scores, [game]."""
        if column not in self.scores:
            raise UserError(f"no published column {column!r}; {nearest(column, self.scores)}")
        return np.array([self.scores[column][game] for game in self.games])

    def normalised(self, column: str, clip: bool = False) -> Array:
        """Return (score - low) / (high - low) per game; `clip` limits it to [0, 1]."""
        low, high = np.array(list(self.low.values())), np.array(list(self.high.values()))
        values: Array = (self.raw(column) - low) / (high - low)
        return np.clip(values, 0.0, 1.0) if clip else values

    def game(self, name: str) -> str:
        """Return the benchmark's spelling of a game, ignoring case and underscores (`ms_pacman` is `MsPacman`)."""
        folded = {game.lower(): game for game in self.games}
        if (key := name.replace("_", "").lower()) not in folded:
            raise UserError(f"{name!r} is no game of {self.benchmark}; {nearest(name, self.games)}")
        return folded[key]


@dataclass(frozen=True)
class RunAggregates:
    """Aggregates of a public per-run file: what the per-game means alone cannot give."""

    runs: str
    mean: float
    median: float
    iqm: float  # pooled over runs x games
    source: str


@cache
def published_rows(name: str) -> tuple[Mapping[str, str], ...]:
    """Read one CSV of the package's scores."""
    return package_rows("steadyq.scores", "data", name)


@cache
def package_rows(package: str, folder: str, name: str) -> tuple[Mapping[str, str], ...]:
    """Read one CSV that comes with the package."""
    path = resources.files(package).joinpath(folder, f"{name}.csv")
    lines = path.read_text(encoding="utf-8").splitlines()
    return tuple(MappingProxyType(row) for row in csv.DictReader(lines))


def sources(benchmark: str) -> dict[str, Source]:
    """Return every published column of a benchmark with its origin."""
    found = {}
    for row in published_rows("sources"):
        if row["benchmark"] == benchmark:
            fields = {key: value for key, value in row.items() if key != "benchmark"}
            found[row["column"]] = Source(**fields)  # type: ignore[arg-type]  # the file's `verified` is checked in tests
    return found


@cache
def atari100k(corrected: bool = False) -> Published:
    """Return Atari-100K as printed, or with the cells that contradict their public source corrected."""
    rows = published_rows("atari100k")
    columns = [name for name in rows[0] if name not in ("game", "quantum", "bold", "random", "human")]
    scores = {column: {row["game"]: float(row[column]) for row in rows} for column in columns}
    if corrected:
        for fix in published_rows("corrections"):
            scores[fix["column"]][fix["game"]] = float(fix["corrected"])
    return Published(
        benchmark="atari100k",
        low={row["game"]: float(row["random"]) for row in rows},
        high={row["game"]: float(row["human"]) for row in rows},
        scores=scores,
        sources=sources("atari100k"),
        quantum={row["game"]: float(row["quantum"]) for row in rows},
        bold={row["game"]: row["bold"] for row in rows},
    )


@cache
def procgen(constants: Literal["appendix", "code"] = "appendix") -> Published:
    """Return Procgen (easy); `constants` are those of the benchmark's appendix C or of its authors' code."""
    if constants not in ("appendix", "code"):
        raise UserError(f"constants are 'appendix' or 'code', not {constants!r}")
    rows = published_rows("procgen")
    suffix = "_in_code" if constants == "code" else ""
    return Published(
        benchmark="procgen",
        low={row["game"]: float(row["min" + suffix]) for row in rows},
        high={row["game"]: float(row["max" + suffix]) for row in rows},
        scores={column: {row["game"]: float(row[column]) for row in rows} for column in ("ppo", "ours")},
        sources=sources("procgen"),
        quantum={row["game"]: float(row["quantum"]) for row in rows if row["quantum"]},
    )


@cache
def public_runs(corrected: bool = False) -> Mapping[str, RunAggregates]:
    """Return the Atari-100K aggregates computed from public per-run files, by column."""
    wanted = ("", "yes" if corrected else "no")
    return {
        row["column"]: RunAggregates(
            row["runs"], float(row["mean"]), float(row["median"]), float(row["iqm"]), row["source"]
        )
        for row in published_rows("runs")
        if row["corrected"] in wanted
    }
