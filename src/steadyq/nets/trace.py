"""The pieces of a network as a list: what a form is asked before it runs one, and what the GPU kernels join."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from steadyq.nets.layers import Wiring


@dataclass(frozen=True)
class Value:
    """What piece `number - 1` puts out; 0 is the observation."""

    number: int


@dataclass(frozen=True)
class Piece:
    """One call of an executor's method; `Value` stands where activations would be."""

    kind: str
    arguments: tuple[Any, ...]
    options: tuple[tuple[str, Any], ...]

    @property
    def inputs(self) -> tuple[int, ...]:
        """Numbers of the values it reads."""
        every = (*self.arguments, *(value for _, value in self.options))
        return tuple(value.number for value in every if isinstance(value, Value))

    def run(self, executor: Any, values: dict[int, Any]) -> Any:
        """Call the executor's method with the values in place."""

        def real(argument: Any) -> Any:
            return values[argument.number] if isinstance(argument, Value) else argument

        options = {name: real(value) for name, value in self.options}
        return getattr(executor, self.kind)(*map(real, self.arguments), **options)


class _Recorder:
    """An executor that has every piece, and only writes down that it was called."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []

    def __getattr__(self, kind: str) -> Callable[..., Value]:
        def record(*arguments: Any, **options: Any) -> Value:
            self.pieces.append(Piece(kind, arguments, tuple(options.items())))
            return Value(len(self.pieces))

        return record


@cache
def trace(wiring: Wiring) -> tuple[tuple[Piece, ...], tuple[int, ...]]:
    """All pieces in the order they run, and the numbers of the values that are wanted."""
    recorder = _Recorder()
    found = wiring.wire(recorder, Value(0))
    ends = found if isinstance(found, tuple) else (found,)
    if ends[-1] != Value(len(recorder.pieces)):
        raise ValueError(f"{wiring} does not end in its last piece")
    return tuple(recorder.pieces), tuple(end.number for end in ends)


def pieces(wiring: Wiring) -> tuple[Piece, ...]:
    """All pieces in the order they run."""
    return trace(wiring)[0]
