"""Numbers that change while a run learns: constant, linear or exponential, in steps or in updates since a reset.

A schedule is written as text in a recipe: `0.99`, `1 -> 0.01 linear 2001 steps`, `10 -> 3 exponential 10000 updates`,
`1 -> 0 linear 2001 steps after 2000`. Steps are counted from the start of training, updates from the last scheduled
reset, because that is when a network has to learn anew.
"""

import re
from dataclasses import dataclass
from typing import Literal

from steadyq.errors import UserError

FORM = "a number, or such as '10 -> 3 exponential 10000 updates' or '1 -> 0.01 linear 2001 steps after 2000'"
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_TEXT = re.compile(
    rf"\s*({_NUMBER})\s*->\s*({_NUMBER})\s+(linear|exponential)\s+([\d_]+)\s+(steps|updates)(?:\s+after\s+([\d_]+))?\s*"
)


@dataclass(frozen=True)
class Schedule:
    """From `start` to `end` over so many steps or updates, beginning `after` some."""

    start: float
    end: float
    shape: Literal["constant", "linear", "exponential"] = "constant"
    over: int = 0
    unit: Literal["steps", "updates"] = "steps"
    after: int = 0

    @classmethod
    def of(cls, value: float | str, name: str = "schedule") -> "Schedule":
        """Read a number or a schedule's text; raises naming the field and the form."""
        if isinstance(value, int | float) and not isinstance(value, bool):
            return cls(float(value), float(value))
        text = str(value)
        try:
            return cls(float(text), float(text))
        except ValueError:
            pass
        found = _TEXT.fullmatch(text)
        if found is None:
            raise UserError(f"{name} must be {FORM}, got {value!r}")
        start, end, shape, over, unit, after = found.groups()
        schedule = cls(float(start), float(end), shape, int(over), unit, int(after or 0))  # type: ignore[arg-type]
        if schedule.over < 1:
            raise UserError(f"{name} must take at least 1 of {unit}, got {value!r}")
        if shape == "exponential" and (schedule.start <= 0 or schedule.end <= 0):
            raise UserError(f"{name} can only be exponential between positive numbers, got {value!r}")
        return schedule

    @property
    def constant(self) -> bool:
        """Whether it never changes."""
        return self.shape == "constant"

    @property
    def largest(self) -> float:
        """The largest value it takes."""
        return max(self.start, self.end)

    @property
    def smallest(self) -> float:
        """The smallest value it takes."""
        return min(self.start, self.end)

    def at(self, steps: int, updates: int = 0) -> float:
        """The value after so many steps of training and updates since the last scheduled reset."""
        if self.shape == "constant":
            return self.end
        time = max(0, (steps if self.unit == "steps" else updates) - self.after)
        if time >= self.over:
            return self.end
        if self.shape == "linear":
            return self.start + (self.end - self.start) * time / self.over
        return float(self.start * (self.end / self.start) ** (time / self.over))

    def at_complement(self, steps: int, updates: int = 0) -> float:
        """The value where 1 minus it is what is scheduled: a discount approaches 1 by its horizon."""
        if self.shape != "exponential" or self.end >= 1 or self.start >= 1:
            return self.at(steps, updates)
        mirrored = Schedule(1 - self.start, 1 - self.end, self.shape, self.over, self.unit, self.after)
        return 1 - mirrored.at(steps, updates)

    def __str__(self) -> str:
        """As it stands in a recipe."""
        if self.constant:
            return _digits(self.end)
        after = f" after {self.after}" if self.after else ""
        return f"{_digits(self.start)} -> {_digits(self.end)} {self.shape} {self.over} {self.unit}{after}"


def _digits(value: float) -> str:
    """As short as can be without another number coming back."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)
