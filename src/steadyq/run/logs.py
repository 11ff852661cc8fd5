"""Rows of a run's logs, one at a time: what is wrong in them is named by file, line and column.

A log may be larger than memory and may come from a stranger, so a reader never holds more than one row of text, and
whoever reads the rows may rely on their types.
"""

import json
import math
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

from steadyq.errors import UserError
from steadyq.run.files import open_plain

LONGEST = 1 << 26
"""Bytes of the longest row that is read."""

LARGEST = 10**300
"""Whole numbers beyond it do not fit a float."""

Log = Literal["metrics", "diagnostics", "events"]
Row = dict[str, Any]


def rows(file: Path, log: Log) -> Iterator[Row]:
    """Every row of a log, checked; the half line of a killed run is left out, and no file is no rows."""
    check, before = _CHECKS[log], 0.0
    for number, line, last in _lines(file):
        try:
            row = _parsed(line)
        except (ValueError, RecursionError):
            if last:
                return
            raise UserError(f"{file} is damaged: line {number} is not JSON") from None
        step: Any = row.get("step") if isinstance(row, dict) else None
        of = type(step)
        if not ((of is int and 0 <= step < LARGEST) or (of is float and 0 <= step < math.inf)):
            raise UserError(f"{file} is damaged: line {number} is not a row with a step")
        if step < before:
            raise UserError(
                f"{file} is damaged: line {number} goes back from step {before:,} to {step:,}; are there rows of two "
                "runs, or twice the same?"
            )
        before = step
        if (wrong := check(row)) is not None:
            name, kind = wrong
            found = f"{shown(row[name])} for {name}, which is no {kind}" if name in row else f"no {name}"
            raise UserError(f"{file} is damaged: line {number} has {found}")
        yield row


_decode = json.JSONDecoder().raw_decode


def _parsed(line: bytes) -> Any:
    """As `json.loads`, sooner for a line as ours are: in UTF-8, nothing but the value before its end."""
    try:
        text = line.decode()
        value, end = _decode(text)
        if end + 1 == len(text) and text[end] == "\n":
            return value
    except ValueError:
        pass
    return json.loads(line)


def shown(value: Any) -> str:
    """A value from a file in a message: short, and without anything a terminal would obey."""
    text = ascii(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def is_number(value: Any) -> bool:
    """Whether this is a number that fits a float; true and false are none."""
    kind = type(value)
    return kind is float or (kind is int and -LARGEST < value < LARGEST)


def _lines(file: Path) -> Iterator[tuple[int, bytes, bool]]:
    """Lines of a file with their number, and whether it is the last."""
    try:
        with open(open_plain(file), "rb") as stream:
            line, number = stream.readline(LONGEST), 1
            while line:
                if len(line) == LONGEST:
                    raise UserError(f"{file} is damaged: line {number} has no end")
                following = stream.readline(LONGEST)
                yield number, line, not following
                line, number = following, number + 1
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror or error}") from None


_NUMBERS = frozenset((float, int, bool, type(None)))


def _metrics(row: Row) -> tuple[str, str] | None:
    if _NUMBERS.issuperset(map(type, row.values())):
        return None
    return next((name, "number") for name, value in row.items() if type(value) not in _NUMBERS)


NOT_NUMBERS: dict[str, tuple[type, str]] = {
    "spike_layer": (str, "text"),
    "members": (dict, "table"),
    "layers": (dict, "table"),
}
"""Columns of diagnostics.jsonl that hold something else."""


def _diagnostics(row: Row) -> tuple[str, str] | None:
    for name, (kind, word) in NOT_NUMBERS.items():
        if name in row and not isinstance(row[name], kind):
            return name, word
    return _metrics({name: value for name, value in row.items() if name not in NOT_NUMBERS})


def _names(value: Any, row: Row) -> bool:
    return isinstance(value, list) and {*map(type, value)} <= {str}


def _ratios(value: Any, row: Row) -> bool:
    if not isinstance(value, list) or {*map(type, value)} != {list}:
        return False
    if {*map(len, value)} != {len(row["layers"])}:
        return False
    return _REAL.issuperset(map(type, chain.from_iterable(value))) or all(
        _number(ratio, row) for each in value for ratio in each
    )


def _number(value: Any, row: Row) -> bool:
    return value is None or is_number(value)


def _text(value: Any, row: Row) -> bool:
    return isinstance(value, str)


_REAL = frozenset((float, type(None)))


class _Field(NamedTuple):
    """A field of an event, what fits it, and whether every event of the kind has it."""

    name: str
    fits: Callable[[Any, Row], bool]
    word: str
    needed: bool = True


_EVENTS: dict[str, tuple[_Field, ...]] = {
    "game": (_Field("score", _number, "number"),),
    "evaluation": (_Field("mean_return", lambda value, row: is_number(value), "number"),),
    "stopped": (_Field("message", _text, "text"),),
    "diverged": (_Field("message", _text, "text"),),
    "spikes": (
        _Field("layers", _names, "list of names"),
        _Field("ratios", _ratios, "list of one number for each layer, for each member"),
    ),
    "reset": (
        *(_Field(name, _text, "text", needed=False) for name in ("layer", "scope", "kind", "trigger")),
        _Field("strength", lambda value, row: is_number(value), "number", needed=False),
    ),
}
"""What readers take from an event of each kind; of other kinds they take nothing."""


def _events(row: Row) -> tuple[str, str] | None:
    kind = row.get("event")
    if not isinstance(kind, str):
        return "event", "text"
    for field in _EVENTS.get(kind, ()):
        if not field.fits(row[field.name], row) if field.name in row else field.needed:
            return field.name, field.word
    return None


_CHECKS: dict[Log, Callable[[Row], tuple[str, str] | None]] = {
    "metrics": _metrics,
    "diagnostics": _diagnostics,
    "events": _events,
}
