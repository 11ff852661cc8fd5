"""Typed fields of nested sections: checked ranges, from text, Python or TOML to their types, and back to TOML."""

import dataclasses
import json
import shlex
import tomllib
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from steadyq.errors import UserError, nearest, one_line, shown
from steadyq.schedule import Schedule

T = TypeVar("T")

MOST = 10**15
"""Of anything that is counted and has no limit of its own: more is a slip of the finger."""
MOST_GAMES = 10**6

Scheduled = float | str
"""A number, or a schedule's text: `10 -> 3 exponential 10000 updates` (see `schedule.py`)."""

Owners = dict[str, tuple[str, tuple[str, ...]]]
"""For a field that not every kind has: the switch that decides, and its values that have the field."""


def within(name: str, value: float, low: float, high: float = float("inf")) -> None:
    """Raise unless low <= value <= high."""
    if high == float("inf") and value > MOST and isinstance(value, int):
        raise UserError(f"{name} must be at most {MOST:.15g}, got {shown(value)}")
    if not low <= value <= high:
        span = f"at least {low:.15g}" if high == float("inf") else f"between {low:.15g} and {high:.15g}"
        given = f"{value:.15g}" if abs(value) < 1e300 else shown(value)  # Python writes no larger integer as a float
        raise UserError(f"{name} must be {span}, got {given}")


def within_schedule(section: Any, prefix: str, field: str, low: float, high: float = float("inf")) -> None:
    """Raise unless the field is a schedule that stays within low and high; keep it in its one form, however written."""
    name = f"{prefix}.{field}"
    value = _scheduled(getattr(section, field), name)
    object.__setattr__(section, field, value)
    schedule = Schedule.of(value, name)
    within(name, schedule.smallest, low, high)
    within(name, schedule.largest, low, high)


def has(section: Any, name: str) -> bool:
    """Whether the section's kind has the field."""
    switch, kinds = section.owners.get(name, ("", ()))
    return not switch or getattr(section, switch) in kinds


def refuse_foreign(section: Any, prefix: str) -> None:
    """Raise if a field is set that the section's kind does not have: it would be ignored."""
    for name, (switch, kinds) in section.owners.items():
        value, chosen = getattr(section, name), getattr(section, switch)
        if not has(section, name) and value != default_of(section, name):
            *more, last = kinds
            have = f"{', '.join(more)} and {last} have" if more else f"{last} has"
            raise UserError(f"{prefix}.{name} {value} contradicts {prefix}.{switch} {chosen}: only {have} it")


def default_of(section: Any, name: str) -> Any:
    """A field's value in a section that nobody has changed."""
    return next(f.default for f in dataclasses.fields(section) if f.name == name)


def read_toml(text: str, wrong: str) -> dict[str, Any]:
    """The tables of a TOML text; what is none raises with the words that say what it should have been."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise UserError(f"{wrong}: tables within tables without end") from None
    except ValueError as error:  # besides what TOML says: a whole number of thousands of digits
        raise UserError(f"{wrong}: {one_line(error)}") from None


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested sections as dotted names."""
    flat: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def merge(section: T, changes: Mapping[str, Any], prefix: str) -> T:
    """The section with fields changed, nested ones too; unknown and ill-typed ones raise naming the nearest."""
    hints = typing.get_type_hints(type(section))
    known = {f.name for f in dataclasses.fields(section)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for name, value in changes.items():
        if name not in known:
            raise UserError(f"unknown option {prefix}{name}: {nearest(name, known)}")
        current = getattr(section, name)
        if dataclasses.is_dataclass(current):
            if not isinstance(value, Mapping):
                raise UserError(
                    f"{prefix}{name} is a section: set one of its fields, such as {prefix}{name}."
                    f"{dataclasses.fields(current)[0].name}"
                )
            values[name] = merge(current, value, f"{prefix}{name}.")
        else:
            values[name] = coerce(value, hints[name], prefix + name)
    for name, (switch, kinds) in getattr(section, "owners", {}).items():
        if switch in values and values[switch] not in kinds and name not in values:
            values[name] = default_of(section, name)  # a new kind leaves behind what only the old one had
    return dataclasses.replace(section, **values)  # type: ignore[type-var]


def coerce(value: Any, kind: Any, name: str) -> Any:
    """Return value as the field's type, from TOML, Python or command-line text; raise naming what would be right."""
    origin = typing.get_origin(kind)
    if origin is Literal:
        choices = typing.get_args(kind)
        if value not in choices:
            # 'gpu' is no misspelt 'cpu', nor 'float32' a misspelt 'tf32'.
            raise UserError(f"{name} cannot be {shown(value)}: {nearest(str(value), map(str, choices), cutoff=0.75)}")
        return value
    if origin is tuple:
        inner = typing.get_args(kind)
        parts = (
            (_words(value) if inner[0] is str else value.replace(",", " ").split()) if isinstance(value, str) else value
        )
        if not isinstance(parts, list | tuple) or (inner[-1] is not Ellipsis and len(parts) != len(inner)):
            count = "one or more" if inner[-1] is Ellipsis else len(inner)
            raise UserError(
                f"{name} needs {count} {'texts' if inner[0] is str else 'whole numbers'}, got {shown(value)}"
            )
        return tuple(coerce(part, inner[0], name) for part in parts)
    if kind == Scheduled:
        return _scheduled(value, name)
    if isinstance(kind, types.UnionType):
        return value
    try:
        if kind is bool:
            if isinstance(value, bool):
                return value
            return {"true": True, "false": False}[str(value).lower()]
        if kind is int:
            if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
                raise ValueError
            return int(value.replace("_", "")) if isinstance(value, str) else int(value)
        if kind is float:
            if isinstance(value, bool):
                raise ValueError
            return float(value)
    except (ValueError, TypeError, KeyError, OverflowError):
        words = {bool: "true or false", int: "a whole number", float: "a number"}
        raise UserError(f"{name} must be {words[kind]}, got {shown(value)}") from None
    if not isinstance(value, str):
        raise UserError(f"{name} must be text, got {shown(value)}")
    return value


def _words(text: str) -> list[str]:
    """Texts with spaces between them, quoted as in a shell."""
    try:
        return shlex.split(text)
    except ValueError as wrong:
        raise UserError(f"{shown(text)} cannot be taken apart: {wrong}") from None


def _scheduled(value: Any, name: str) -> float | int | str:
    """A number as it is, a schedule's text in its one form."""
    if isinstance(value, bool):
        raise UserError(f"{name} must be a number or a schedule, got {value!r}")
    schedule = Schedule.of(value, name)
    if not schedule.constant:
        return str(schedule)
    return value if isinstance(value, int | float) else int(schedule.end) if value.isdigit() else schedule.end


def toml(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # the one that JSON leaves as it is
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return repr(value)
