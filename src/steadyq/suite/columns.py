"""Logs as columns of numbers, taken from a stream of rows.

Logs can be larger than memory, and most of what they hold is text: a column keeps eight bytes for each number.
"""

import math
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from steadyq.errors import UserError
from steadyq.run.logs import Row

Array = NDArray[np.float64]

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

    def __iter__(self) -> Iterator[str]:
        yield "step"
        yield from self.log.columns

    def __len__(self) -> int:
        return 1 + len(self.log.columns)


def read_columns(file: Path, found: Iterator[Row]) -> Columns:
    """Take the numbers out of rows; text and tables within rows are left behind."""
    columns: dict[str, array[float]] = {"step": array("d")}
    for count, row in enumerate(found):
        taken = 0
        for name, value in row.items():
            if value is None:
                value = math.nan
            elif type(value) is not float and type(value) is not int:
                continue
            if name not in columns:
                if len(columns) > MOST_COLUMNS:
                    raise UserError(f"{file} is damaged: line {count + 1} has more columns than a log has")
                columns[name] = array("d", [math.nan]) * count
            columns[name].append(value)
            taken += 1
        if taken < len(columns):
            for values in columns.values():
                if len(values) == count:
                    values.append(math.nan)
    arrays = {name: np.array(values) for name, values in columns.items()}
    return Columns(arrays.pop("step"), arrays)


class Reset(NamedTuple):
    """A layer of one member that was intervened on, or a group of layers of all members where that was planned."""

    step: int
    layer: str
    kind: str = "reinitialise"
    strength: float = 1.0
    planned: bool = False


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


def read_reset(row: Row) -> Reset:
    """A reset event; older ones name a layer and nothing else."""
    where = row.get("layer") or row.get("scope", "")
    planned = row.get("trigger") == "periodic"
    return Reset(int(row["step"]), where, row.get("kind", "reinitialise"), row.get("strength", 1.0), planned)


def read_events(found: Iterator[Row]) -> Events:
    """Take what is shown out of the events."""
    last, games = 0, (array("d"), array("d"))
    measured: dict[tuple[str, ...], tuple[array[float], array[float], array[float]]] = {}
    resets, diverged = list[Reset](), list[Row]()
    for row in found:
        last = int(row["step"])
        match row["event"]:
            case "game" if row["score"] is not None:
                games[0].append(row["step"])
                games[1].append(row["score"])
            case "spikes":
                layers = tuple(row["layers"])
                ratios = np.array(row["ratios"], float)
                steps, mean, top = measured.setdefault(layers, (array("d"), array("d"), array("d")))
                steps.append(row["step"])
                mean.extend(ratios.mean(0))
                top.extend(np.fmax.reduce(ratios, axis=0))
            case "reset":
                resets.append(read_reset(row))
            case "diverged":
                diverged.append(row)
    spikes = tuple(
        Spikes(layers, np.array(steps), *(np.array(each).reshape(len(steps), -1) for each in (mean, top)))
        for layers, (steps, mean, top) in measured.items()
    )
    return Events(last, (np.array(games[0]), np.array(games[1])), spikes, tuple(resets), tuple(diverged))
