"""Logs as columns of numbers, taken from a stream of rows.

Logs can be larger than memory, and most of what they hold is text: a column keeps eight bytes for each number.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from steadyq.errors import UserError
from steadyq.run.logs import LARGEST, NOT_NUMBERS, Row

Array = NDArray[np.float64]

AT_ONCE = 1000
"""Rows that are held as they were read."""

MOST_COLUMNS = 400
"""A log of ours has a tenth of them; one with more is no log."""

_DEFINED: dict[str, tuple[str, Callable[[Array], NDArray[np.bool_]]]] = {
    "same_action_rewarded": ("rewarded", lambda share: share > 0),
    "same_action_unrewarded": ("rewarded", lambda share: share < 1),
    "q_spread": ("q_spread", lambda spread: spread > 0),
}
"""When a column means something: the share of no transitions and the spread of one member are gaps, not zero."""


class Columns(Sequence[Mapping[str, Any]]):
    """A log's numbers by column, NaN where a row has none; as a sequence, its rows."""

    def __init__(self, steps: Array, columns: Mapping[str, Array]) -> None:
        self.steps, self.columns = steps, columns

    @overload
    def __getitem__(self, at: int) -> Mapping[str, Any]: ...
    @overload
    def __getitem__(self, at: slice) -> "Columns": ...
    def __getitem__(self, at: int | slice) -> "Mapping[str, Any] | Columns":
        if isinstance(at, slice):
            return Columns(self.steps[at], {name: values[at] for name, values in self.columns.items()})
        return _Row(self, range(len(self.steps))[at])

    def __len__(self) -> int:
        return len(self.steps)

    def series(self, column: str) -> tuple[Array, Array]:
        """Steps and values of one column, without the rows that do not have it."""
        values = self.columns.get(column)
        if values is None:
            return np.zeros(0), np.zeros(0)
        there = ~np.isnan(values)
        if column in _DEFINED:
            other, means = _DEFINED[column]
            there &= means(self.columns.get(other, np.full(len(values), np.nan)))
        return self.steps[there], values[there]


class _Row(Mapping[str, Any]):
    """One row of the columns, made while it is looked at; None where it has no number."""

    __slots__ = ("at", "log")

    def __init__(self, log: Columns, at: int) -> None:
        self.log, self.at = log, at

    def __getitem__(self, name: str) -> Any:
        if name == "step":
            return int(self.log.steps.item(self.at))
        value = self.log.columns[name].item(self.at)
        return None if value != value else value

    def get(self, name: str, default: Any = None) -> Any:
        """The value; written out because verdicts ask a hundred times a row."""
        column = self.log.columns.get(name)
        if column is None:
            return self[name] if name == "step" else default
        value = column.item(self.at)
        return None if value != value else value

    def __iter__(self) -> Iterator[str]:
        yield "step"
        yield from self.log.columns

    def __len__(self) -> int:
        return 1 + len(self.log.columns)


def read_columns(file: Path, found: Iterable[Row]) -> Columns:
    """Take the numbers out of rows; text and tables within rows are left behind."""
    columns: dict[str, array[float]] = {"step": array("d")}
    count = 0
    for names, values in _alike(found):
        if len(names.keys() | columns.keys()) > MOST_COLUMNS:
            raise UserError(f"{file} is damaged: line {count + 1} has more columns than a log has")
        try:
            numbers = np.array(values, float).reshape(len(values), len(names))
        except OverflowError:
            line, row = next((i, row) for i, row in enumerate(values, count + 1) if any(map(_too_large, row)))
            name = next(name for name, place in names.items() if _too_large(row[place]))
            raise UserError(f"{file} is damaged: line {line} has too large a number for {name}") from None
        for name in names.keys() - columns.keys():
            columns[name] = array("d", [np.nan]) * count
        nothing = np.full(len(values), np.nan)
        for name, column in columns.items():
            column.frombytes((numbers[:, names[name]] if name in names else nothing).tobytes())
        count += len(values)
    arrays = {name: np.array(column) for name, column in columns.items()}
    return Columns(arrays.pop("step"), arrays)


def _too_large(value: Any) -> bool:
    return type(value) is int and abs(value) >= LARGEST


def _alike(found: Iterable[Row]) -> Iterator[tuple[dict[str, int], list[tuple[Any, ...]]]]:
    """Rows with the same columns, some at a time: the place of each column of numbers, and the rows' values."""
    last: tuple[str, ...] = ()
    names, values = dict[str, int](), list[tuple[Any, ...]]()
    take: Callable[[Row], tuple[Any, ...]] = tuple
    for row in found:
        keys = tuple(row)
        if keys != last or len(values) == AT_ONCE:
            if values:
                yield names, values
            kept = [name for name in keys if name not in NOT_NUMBERS]
            names, values, last = {name: place for place, name in enumerate(kept)}, [], keys
            take = itemgetter(*kept, kept[0])  # never a single one, which would come without its tuple
        values.append(take(row)[:-1])
    if values:
        yield names, values


class Reset(NamedTuple):
    """A layer of one member that was intervened on, or a group of layers of all members where that was planned."""

    step: int
    layer: str
    kind: str = "reinitialise"
    strength: float = 1.0
    planned: bool = False
    by_unit: bool = False


class Spikes(NamedTuple):
    """Spike ratios of every layer at every measurement: their mean over members, and the highest member's."""

    layers: tuple[str, ...]
    steps: Array  # [measurement]
    mean: Array  # [measurement, layer]
    top: Array  # [measurement, layer]


@dataclass(frozen=True)
class Events:
    """What pages and verdicts take from the events."""

    last_step: int = 0
    games: tuple[Array, Array] = (np.zeros(0), np.zeros(0))
    """Step and score of every finished training game."""
    spikes: tuple[Spikes, ...] = ()
    """By the layers that were measured; all of a run's are the same unless its network changed."""
    resets: tuple[Reset, ...] = ()
    diverged: tuple[Row, ...] = ()
    """The events as they stand in the log."""

    @property
    def planned(self) -> list[int]:
        """The steps of planned resets."""
        return sorted({reset.step for reset in self.resets if reset.planned})


def read_reset(row: Row) -> Reset:
    """A reset event; older ones name a layer and nothing else."""
    where = row.get("layer") or row.get("scope", "")
    planned = row.get("trigger") == "periodic"
    kind, strength = row.get("kind", "reinitialise"), row.get("strength", 1.0)
    return Reset(int(row["step"]), where, kind, strength, planned, "units" in row)


def read_events(found: Iterable[Row]) -> Events:
    """Take what is shown out of the events."""
    last, games = 0, (array("d"), array("d"))
    measured: dict[tuple[str, ...], _Measured] = {}
    resets, diverged = list[Reset](), list[Row]()
    for row in found:
        last = int(row["step"])
        match row["event"]:
            case "game" if row["score"] is not None:
                games[0].append(row["step"])
                games[1].append(row["score"])
            case "spikes":
                layers = tuple(row["layers"])
                if layers not in measured:
                    measured[layers] = _Measured()
                measured[layers].add(row["step"], row["ratios"])
            case "reset":
                resets.append(read_reset(row))
            case "diverged":
                diverged.append(row)
    spikes = tuple(each.spikes(layers) for layers, each in measured.items())
    return Events(last, (np.array(games[0]), np.array(games[1])), spikes, tuple(resets), tuple(diverged))


class _Measured:
    """Spike ratios of one set of layers while they are read: what is kept of them is made for many at a time."""

    def __init__(self) -> None:
        self.steps = array("d")
        self.waiting: list[list[list[float]]] = []
        self.mean, self.top = list[Array](), list[Array]()

    def add(self, step: float, ratios: list[list[float]]) -> None:
        if self.waiting and (len(self.waiting) == AT_ONCE or len(self.waiting[0]) != len(ratios)):
            self.take()
        self.steps.append(step)
        self.waiting.append(ratios)

    def take(self) -> None:
        table = np.array(self.waiting, float)  # [measurement, member, layer]
        self.mean.append(table.mean(1))
        self.top.append(np.fmax.reduce(table, axis=1))
        self.waiting = []

    def spikes(self, layers: tuple[str, ...]) -> Spikes:
        self.take()
        return Spikes(layers, np.array(self.steps), np.concatenate(self.mean), np.concatenate(self.top))
